"""Pools that are likely to be good: packed into small parts of the fleet first, or shared out over like parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from planner.place.case import Case
from planner.place.classes import FleetClasses
from planner.place.front import Keeping
from planner.place.regions import Sizes, Worker, cells_of, halves_of, packed, regions_of

Kinds = tuple[str | None, str | None]
Regions = list[tuple[int, ...]]
Pack = tuple[list[Worker], list[Worker]]
Flags = tuple[bool, bool]


class Packs:
    """The packs of one question; `able`: whether a device is allowed in each phase."""

    def __init__(
        self, classes: FleetClasses, keeping: Keeping, able: Sequence[Flags], *, nearest: bool
    ) -> None:  # fmt: skip
        self.classes, self.constraints, self.able = classes, keeping.constraints, able
        self.keeping = keeping
        self.names = classes.symmetry.names
        self.sku = [device.sku for device in classes.fleet.devices]
        self.regions = [region for region in regions_of(classes, self._allowed) if self._is_kept(region)]
        self._cuts = halves_of(classes, self._allowed) if nearest else []
        self._packed: dict[object, Pack | None] = {}
        self._usable: dict[object, tuple[Flags, ...]] = {}
        domains = classes.near.domains
        self._is_plain = all(len(domains.get(name, ())) < 2 for name in self.names)

    def kinds(self) -> list[Kinds]:
        """All pairs of kinds of cards that are allowed."""
        found = sorted({self.sku[device] for region in self.regions for device in region}, key=str)
        return list(itertools.product(found, found))

    def is_exact(self, sizes: Sizes) -> bool:
        """Whether no pool of these sizes keeps to the rules where none could be packed."""
        return self._is_plain and ("spread" not in self.constraints.required or sizes.ranks == (1, 1))

    def of(self, case: Case, sizes: Sizes, kinds: Kinds) -> Iterator[Pack]:
        """Packs of devices with room, those without avoided devices first."""
        for spares in (True, False) if self.constraints.avoided else (False,):
            found = itertools.chain(
                self._cut_packs(case, sizes, kinds, spares=spares),
                (self._in_region(case, sizes, region, kinds, spares=spares) for region in self.regions),
            )
            yield from (pack for pack in found if pack is not None and self._is_sound(pack))

    def without_room(self, case: Case, sizes: Sizes, kinds: Kinds) -> Pack | None:
        """The first pack of allowed devices, whether or not they have room: what says what is short."""
        found = (self._in_region(case, sizes, region, kinds, room=False) for region in self.regions)
        return next((pack for pack in found if pack is not None and self._is_sound(pack)), None)

    def _allowed(self, device: int) -> Flags | None:
        return self.able[device] if any(self.able[device]) else None

    def _is_kept(self, region: tuple[int, ...]) -> bool:
        """Whether a region keeps to what is required of all devices together."""
        names = [self.names[device] for device in region]
        rules = [rule for rule in self.constraints.required if rule != "spread"]
        return all(self.classes.near.keeps(rule, names) for rule in rules)

    def _is_sound(self, pack: Pack) -> bool:
        """Whether each worker lies in one domain, and all of them together keep to what is required."""
        near, workers = self.classes.near, [*pack[0], *pack[1]]
        for worker in workers if len(pack[0][0]) > 1 or len(pack[1][0]) > 1 else ():
            held = [near.domains.get(self.names[device], frozenset()) for device in worker]
            if len(worker) > 1 and not frozenset.intersection(*held):
                return False
        return not self.constraints.required or self.keeping.allows(workers)

    def _cut_packs(self, case: Case, sizes: Sizes, kinds: Kinds, *, spares: bool) -> Iterator[Pack | None]:
        """Packs in which every decode worker lies in one piece of a cut with a prefill worker; evenly first."""
        kept = (tuple(piece for piece in cut if self._is_kept(piece)) for cut in self._cuts)
        for cut in kept:
            region = tuple(device for piece in cut for device in piece)
            if len(region) < sizes.devices:
                continue
            usable = dict(zip(region, self._flags(case, region, kinds, room=True, spares=spares), strict=True))
            by = "domain" if max(sizes.ranks) > 1 else "whole"
            cells = [cell for piece in cut for cell in cells_of(self.classes, piece, usable.__getitem__, by=by)]
            even = -(-sizes.workers[1] // sizes.workers[0])
            yield packed(cells, sizes, served=even) or packed(cells, sizes, served=sizes.workers[1])

    def _in_region(
        self, case: Case, sizes: Sizes, region: tuple[int, ...], kinds: Kinds, *, room: bool = True,
        spares: bool = False,
    ) -> Pack | None:  # fmt: skip
        if len(region) < sizes.devices:
            return None
        usable = self._flags(case, region, kinds, room=room, spares=spares)
        key = (sizes, region, usable)
        if key not in self._packed:
            spread = "spread" in self.constraints.required
            by = "node" if spread else "domain" if max(sizes.ranks) > 1 else "whole"
            of = dict(zip(region, usable, strict=True))
            cells = cells_of(self.classes, region, of.__getitem__, by=by)
            self._packed[key] = packed(cells, sizes, one_each=spread)
        return self._packed[key]

    def _flags(
        self, case: Case, region: tuple[int, ...], kinds: Kinds, *, room: bool, spares: bool
    ) -> tuple[Flags, ...]:  # fmt: skip
        """Which phases each device may serve: a card of that kind, allowed there, with `room` for any rank."""
        key = (id(case), region, kinds, room, spares)
        if key not in self._usable:
            gone = self.constraints.avoided if spares else frozenset()
            out = []
            for device in region:
                allowed, sku = self.able[device], self.sku[device]
                up, down = (all(ranks) for ranks in case.rooms[device]) if room else (True, True)
                free = self.names[device] not in gone
                out.append((
                    free and allowed[0] and up and sku == kinds[0], free and allowed[1] and down and sku == kinds[1]
                ))  # fmt: skip
            self._usable[key] = tuple(out)
        return self._usable[key]
