"""Pairs of devices, counted by class: for each class how many there are, and the first in the order of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fleet.machine import Device, Fleet
from planner.place.constraints import Neighbourhood, neighbourhood
from planner.place.cuts import Cuts, cuts_of
from planner.place.symmetry import Symmetry, symmetry_of

Key = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairClass:
    """`count` ordered pairs that cannot be told apart, and the first of them by number of prefill, then decode."""

    key: Key
    prefill: int
    decode: int
    count: int


@dataclass(slots=True)
class _Held:
    """Devices of one likeness in a part: how many, the first, and the first in another child than that."""

    count: int
    first: int
    child: int
    second: int = -1


MOST_LISTED = 1_500_000
"""Classes of pairs that are listed at all."""
Tally = list[dict[int, _Held]]


def _tally(symmetry: Symmetry, able: Sequence[bool] | None) -> Tally:
    """By part and likeness, the able devices in it. Parts of one device are left out."""
    tally: Tally = [{} for _ in symmetry.parts]
    for device, (like, chain) in enumerate(zip(symmetry.like, symmetry.chains, strict=True)):
        if able is not None and not able[device]:
            continue
        child = chain[-1]
        for part in chain[-2::-1]:
            held = tally[part].get(like)
            if held is None:
                tally[part][like] = _Held(1, device, child)
            else:
                held.count += 1
                if held.second < 0 and held.child != child:
                    held.second = device
            child = part
    return tally


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    """Classes of pairs in the order of the fleet. `complete` is False where there were too many to list them all."""

    pairs: tuple[PairClass, ...]
    complete: bool


def pair_classes(
    symmetry: Symmetry, prefill: Sequence[bool] | None = None, decode: Sequence[bool] | None = None
) -> Listing:  # fmt: skip
    """All classes of ordered pairs of two devices, able ones on either side (None: all).

    Of more than `MOST_LISTED` those within the smallest parts; where there are no parts, the first ones.
    """
    ups = _tally(symmetry, prefill)
    downs = ups if prefill is decode else _tally(symmetry, decode)
    kinds = _kept_kinds(symmetry, ups, downs)
    inside = _inside(symmetry, (ups, downs), (prefill, decode), kinds)
    found: dict[Key, tuple[int, int, int]] = {}
    for number, part in enumerate(symmetry.parts):
        for up, one in ups[number].items() if part.like in kinds else ():
            if len(found) > 2 * MOST_LISTED:
                break
            for down, other in downs[number].items():
                count = one.count * other.count - inside.get((number, up, down), 0)
                if not count:
                    continue
                pair = _first_pair(one, other)
                known = found.get((part.like, up, down))
                if known is None:
                    found[part.like, up, down] = (count, *pair)
                else:
                    found[part.like, up, down] = (known[0] + count, *min(known[1:], pair))
    listed = [PairClass(key=key, prefill=p, decode=d, count=n) for key, (n, p, d) in found.items()]
    ends = range(len(symmetry.names))
    able = [(prefill is None or prefill[at], decode is None or decode[at]) for at in ends]
    total = sum(up for up, _ in able) * sum(down for _, down in able) - sum(up and down for up, down in able)
    ordered = sorted(listed, key=lambda each: (each.prefill, each.decode))
    return Listing(pairs=tuple(ordered), complete=sum(each.count for each in listed) == total)


def _kept_kinds(symmetry: Symmetry, ups: Tally, downs: Tally) -> set[int]:
    """Kinds of parts whose classes are listed: small ones first, as many as may be listed, one at least."""
    cost: dict[int, int] = {}
    for number, part in enumerate(symmetry.parts):
        cost[part.like] = max(cost.get(part.like, 0), len(ups[number]) * len(downs[number]))
    kept: set[int] = set()
    total = 0
    for kind, count in sorted(cost.items(), key=lambda item: (item[1], -item[0])):
        total += count
        if count and total > MOST_LISTED and any(cost[each] for each in kept):
            break
        kept.add(kind)
    return kept


def _inside(
    symmetry: Symmetry, tallies: tuple[Tally, Tally], able: tuple[Sequence[bool] | None, Sequence[bool] | None],
    kinds: set[int],
) -> dict[Key, int]:  # fmt: skip
    """Pairs of each likeness that lie in one child of a part, a device with itself included."""
    inside: dict[Key, int] = {}
    prefill, decode = able
    for device, (like, chain) in enumerate(zip(symmetry.like, symmetry.chains, strict=True)):
        if len(chain) > 1 and (prefill is None or prefill[device]) and (decode is None or decode[device]):
            inside[chain[-2], like, like] = inside.get((chain[-2], like, like), 0) + 1
    for number, part in enumerate(symmetry.parts):
        if part.parent < 0 or symmetry.parts[part.parent].like not in kinds:
            continue
        for up, one in tallies[0][number].items():
            for down, other in tallies[1][number].items():
                key = (part.parent, up, down)
                inside[key] = inside.get(key, 0) + one.count * other.count
    return inside


def _first_pair(one: _Held, other: _Held) -> tuple[int, int]:
    """The first prefill with any partner in another child, and its first partner."""
    if one.child != other.child:
        return one.first, other.first
    if other.second >= 0:
        return one.first, other.second
    return one.second, other.first


@dataclass(slots=True)
class FleetClasses:
    """A fleet's symmetry, with the classes of all its pairs and its neighbourhood once they were asked for.

    `most_beside` is the largest runtime and granule of a device: what a total has at most beside its lines.
    """

    fleet: Fleet
    symmetry: Symmetry
    most_beside: int
    _all: Listing | None = field(default=None)
    _near: Neighbourhood | None = field(default=None)
    _devices: dict[str, Device] | None = field(default=None)
    _cuts: Cuts | None = field(default=None)

    def cuts(self, fleet: Fleet) -> Cuts:
        """The cuts of a fleet; those of the fleet that the classes were made of are kept."""
        if fleet is not self.fleet:
            return cuts_of(fleet)
        if self._cuts is None:
            self._cuts = cuts_of(fleet)
        return self._cuts

    def devices_of(self, fleet: Fleet) -> dict[str, Device]:
        """The devices of a fleet by id; those of the fleet that the classes were made of are kept."""
        if fleet is not self.fleet:
            return {device.id: device for device in fleet.devices}
        if self._devices is None:
            self._devices = {device.id: device for device in fleet.devices}
        return self._devices

    @property
    def near(self) -> Neighbourhood:
        """Nodes and domains."""
        if self._near is None:
            self._near = neighbourhood(self.fleet)
        return self._near

    def pairs(self, allows: Callable[[str, str], bool] | None) -> Listing:
        """The classes of pairs whose devices are allowed (device, phase) on either side."""
        if allows is None:
            if self._all is None:
                self._all = pair_classes(self.symmetry)
            return self._all
        prefill = [allows(name, "prefill") for name in self.symmetry.names]
        decode = [allows(name, "decode") for name in self.symmetry.names]
        if all(prefill) and all(decode):
            return self.pairs(None)
        return pair_classes(self.symmetry, prefill, prefill if prefill == decode else decode)


_KEPT: dict[str, FleetClasses] = {}
_MOST_KEPT = 8


def classes_of(fleet: Fleet) -> FleetClasses:
    """The classes of a fleet; kept for the last few digests. Kept is neither a fleet without one, nor one in use."""
    kept = _KEPT.get(fleet.digest)
    if kept is not None and kept.fleet is fleet:
        return kept
    keeps = bool(fleet.digest) and all(device.in_use == 0 for device in fleet.devices)
    kept = kept if keeps else None
    if kept is None:
        beside = max(((d.runtime.value or 0) + (d.memory.granule.value or 0) for d in fleet.devices), default=0)
        kept = FleetClasses(fleet, symmetry_of(fleet), beside)
        if keeps:
            while len(_KEPT) >= _MOST_KEPT:
                del _KEPT[next(iter(_KEPT))]
            _KEPT[fleet.digest] = kept
    return kept
