"""Pools that are likely to be good: packed into small parts of the fleet first, or shared out over like parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from planner.place.alike import Alike, Pack
from planner.place.blends import Blend, Kind
from planner.place.case import Case
from planner.place.classes import FleetClasses
from planner.place.front import Keeping
from planner.place.regions import Cell, Sizes, Worker, cells_of, halves_of, packed, regions_of

Kinds = tuple[Kind, Kind]
Packed = tuple[list[Worker], list[Worker]]
Flags = tuple[bool, bool]


class Packs:
    """The packs of one question; `able`: whether a device is allowed in each phase."""

    def __init__(
        self, classes: FleetClasses, alike: Alike, keeping: Keeping, able: Sequence[Flags], *, nearest: bool
    ) -> None:  # fmt: skip
        self.classes, self.alike, self.constraints, self.able = classes, alike, keeping.constraints, able
        self.keeping, self.nearest = keeping, nearest
        self.names = classes.symmetry.names
        self.sku = [device.sku for device in classes.fleet.devices]
        self.regions = [region for region in regions_of(classes, self._allowed) if self._is_kept(region)]
        self._inside = [self._by_kind(region) for region in self.regions]
        self._holding: dict[Kind, list[int]] = {}
        for at, held in enumerate(self._inside):
            for kind in held:
                self._holding.setdefault(kind, []).append(at)
        self._cuts = halves_of(classes, self._allowed) if nearest else []
        self._room_numbers: dict[object, int] = {}
        self._numbers: dict[int, int] = {}
        self._flag_numbers: dict[tuple[Flags, ...], int] = {}
        self._usable: dict[object, tuple[tuple[int, ...], tuple[Flags, ...], int]] = {}
        self._cells: dict[object, list[Cell]] = {}
        self._packed: dict[object, Packed | None] = {}
        self._kept: dict[object, _Replay] = {}
        domains = classes.near.domains
        self._is_plain = all(len(domains.get(name, ())) < 2 for name in self.names)

    def is_exact(self, sizes: Sizes) -> bool:
        """Whether no pool of one kind of card a phase keeps to the rules where none could be packed."""
        return self._is_plain and ("spread" not in self.constraints.required or sizes.ranks == (1, 1))

    def of(self, case: Case, sizes: Sizes, blend: Blend | None) -> Iterable[Pack]:
        """Packs of devices with room, those without avoided devices first; `blend` None: of any cards."""
        key = (self.room(case), sizes, blend)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = _Replay(self._of(case, sizes, blend))
        return found

    def _of(self, case: Case, sizes: Sizes, blend: Blend | None) -> Iterator[Pack]:
        for spares in (True, False) if self.constraints.avoided else (False,):
            found: Iterator[Packed | None]
            if blend is not None and blend.is_mixed:
                found = (self._blended(case, sizes, at, blend, spares=spares) for at in self._where(sizes, blend))
            else:
                kinds = None if blend is None else (blend.prefill[0][0], blend.decode[0][0])
                found = itertools.chain(
                    self._cut_packs(case, sizes, kinds, spares=spares),
                    (self._in_region(case, sizes, at, kinds, spares=spares) for at in self._where(sizes, blend)),
                )
            for pack in found:
                if pack is not None and self._is_sound(pack):
                    yield self.alike.pack(tuple(pack[0]), tuple(pack[1]))

    def without_room(self, case: Case, sizes: Sizes, kinds: Kinds) -> Pack | None:
        """The first pack of allowed devices, whether or not they have room: what says what is short."""
        blend = Blend(((kinds[0], sizes.workers[0]),), ((kinds[1], sizes.workers[1]),))
        found = (self._in_region(case, sizes, at, kinds, room=False) for at in self._where(sizes, blend))
        pack = next((pack for pack in found if pack is not None and self._is_sound(pack)), None)
        return None if pack is None else self.alike.pack(tuple(pack[0]), tuple(pack[1]))

    def _by_kind(self, region: tuple[int, ...]) -> dict[Kind, tuple[int, ...]]:
        held: dict[Kind, list[int]] = {}
        for device in region:
            held.setdefault(self.sku[device], []).append(device)
        return {kind: tuple(devices) for kind, devices in held.items()}

    def _where(self, sizes: Sizes, blend: Blend | None) -> Iterator[int]:
        """Parts of the fleet with enough cards of each kind, the smallest first."""
        if blend is None:
            yield from range(len(self.regions))
            return
        ranks = sizes.ranks
        needed = [(kind, up * ranks[0] + down * ranks[1]) for kind, (up, down) in blend.parts]
        for at in min((self._holding.get(kind, []) for kind, _ in needed), key=len):
            held = self._inside[at]
            if all(len(held.get(kind, ())) >= count for kind, count in needed):
                yield at

    def _allowed(self, device: int) -> Flags | None:
        return self.able[device] if any(self.able[device]) else None

    def _is_kept(self, region: tuple[int, ...]) -> bool:
        """Whether a region keeps to what is required of all devices together."""
        names = [self.names[device] for device in region]
        rules = [rule for rule in self.constraints.required if rule != "spread"]
        return all(self.classes.near.keeps(rule, names) for rule in rules)

    def _is_sound(self, pack: Packed) -> bool:
        """Whether each worker is of one kind in one domain, and all of them together keep to what is required."""
        near, workers = self.classes.near, [*pack[0], *pack[1]]
        for worker in workers if len(pack[0][0]) > 1 or len(pack[1][0]) > 1 else ():
            held = [near.domains.get(self.names[device], frozenset()) for device in worker]
            kinds = {self.sku[device] for device in worker}
            if len(worker) > 1 and not (len(kinds) == 1 and frozenset.intersection(*held)):
                return False
        return not self.constraints.required or self.keeping.allows(workers)

    def _cut_packs(self, case: Case, sizes: Sizes, kinds: Kinds | None, *, spares: bool) -> Iterator[Packed | None]:
        """Packs in which every decode worker lies in one piece of a cut with a prefill worker; evenly first."""
        kept = (tuple(piece for piece in cut if self._is_kept(piece)) for cut in self._cuts)
        for cut in kept:
            region = tuple(device for piece in cut for device in piece)
            if len(region) < sizes.devices:
                continue
            usable = dict(zip(region, self._flags(case, region, kinds, room=True, spares=spares), strict=True))
            by = "whole" if max(sizes.ranks) == 1 else "kind" if kinds is None else "domain"
            cells = [cell for piece in cut for cell in cells_of(self.classes, piece, usable.__getitem__, by=by)]
            even = -(-sizes.workers[1] // sizes.workers[0])
            yield packed(cells, sizes, served=even) or packed(cells, sizes, served=sizes.workers[1])

    def _blended(self, case: Case, sizes: Sizes, at: int, blend: Blend, *, spares: bool) -> Packed | None:
        """The workers of each kind, packed one kind after another: cards of two kinds are never the same."""
        prefill: list[Worker] = []
        decode: list[Worker] = []
        for kind, workers in blend.parts:
            part = Sizes(workers=workers, ranks=sizes.ranks)
            found = self._in_region(case, part, at, (kind, kind), spares=spares)
            if found is None:
                return None
            prefill += found[0]
            decode += found[1]
        return sorted(prefill), sorted(decode)

    def _in_region(
        self, case: Case, sizes: Sizes, at: int, kinds: Kinds | None, *, room: bool = True, spares: bool = False
    ) -> Packed | None:  # fmt: skip
        if len(self.regions[at]) < sizes.devices:
            return None
        devices, usable, number = self._usable_in(case, at, kinds, room=room, spares=spares)
        spread = "spread" in self.constraints.required
        by = "node" if spread else "whole" if max(sizes.ranks) == 1 else "kind" if kinds is None else "domain"
        key = (at, kinds, number, by)
        if (key, sizes) not in self._packed:
            if key not in self._cells:
                of = dict(zip(devices, usable, strict=True))
                self._cells[key] = cells_of(self.classes, devices, of.__getitem__, by=by)
            self._packed[key, sizes] = packed(self._cells[key], sizes, one_each=spread)
        return self._packed[key, sizes]

    def _usable_in(
        self, case: Case, at: int, kinds: Kinds | None, *, room: bool, spares: bool
    ) -> tuple[tuple[int, ...], tuple[Flags, ...], int]:  # fmt: skip
        """The devices of a part that are of these kinds, what each may serve, and the number of all of that."""
        key = (self.room(case), at, kinds, room, spares)
        found = self._usable.get(key)
        if found is None:
            held = self._inside[at]
            devices = self.regions[at]
            if kinds is not None:
                devices = tuple(sorted(device for kind in dict.fromkeys(kinds) for device in held.get(kind, ())))
            flags = self._flags(case, devices, kinds, room=room, spares=spares)
            number = self._flag_numbers.setdefault(flags, len(self._flag_numbers))
            found = self._usable[key] = (devices, flags, number)
        return found

    def room(self, case: Case) -> int:
        """The number of which devices have room in a case; cases of several batches have one, as a rule."""
        if id(case) not in self._numbers:
            rooms: object = tuple(map(case.room, range(len(self.names)))) if case.is_small else id(case)
            self._numbers[id(case)] = self._room_numbers.setdefault(rooms, len(self._room_numbers))
        return self._numbers[id(case)]

    def _flags(
        self, case: Case, devices: tuple[int, ...], kinds: Kinds | None, *, room: bool, spares: bool
    ) -> tuple[Flags, ...]:  # fmt: skip
        """Which phases each device may serve: a card of that kind (None: any), allowed there, with `room`."""
        gone = self.constraints.avoided if spares else frozenset()
        out = []
        for device in devices:
            allowed, sku = self.able[device], self.sku[device]
            up, down = (all(ranks) for ranks in case.room(device)) if room else (True, True)
            free = self.names[device] not in gone
            first, second = (True, True) if kinds is None else (sku == kinds[0], sku == kinds[1])
            out.append((free and allowed[0] and up and first, free and allowed[1] and down and second))
        return tuple(out)


class _Replay:
    """Packs that are made when somebody comes to them, and kept for who comes after."""

    def __init__(self, source: Iterator[Pack]) -> None:
        self._source, self._held = source, list[Pack]()

    def __iter__(self) -> Iterator[Pack]:
        at = 0
        while True:
            if at == len(self._held):
                more = next(self._source, None)
                if more is None:
                    return
                self._held.append(more)
            yield self._held[at]
            at += 1
