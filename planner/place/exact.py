"""Every pool of one size, up to swaps that prove pools alike: device by device, what cannot become better left out.

A part of a pool is left when a pool that is known beats the best that it can still become: its worst handoff and TTFT
only grow, and workers that are still to come add to throughput at most what the fastest do. Parts that swaps turn into
each other, or that name the same workers in another order, are looked at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.place.blends import Blend, Kind
from planner.place.candidate import seconds_of
from planner.place.case import Case, late
from planner.place.fastest import Fastest
from planner.place.front import NOTHING, UNPRICED, Front, Keeping, Value, Vector, vector_of
from planner.place.regions import Sizes, Worker
from planner.place.symmetry import Symmetry

Able = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
"""By phase and rank, the devices that may be that."""
Slot = tuple[int, int]
"""Phase, and rank in its worker."""


FREE_SCAN = 256
"""Devices of a fleet that are passed over for nothing: on large ones, looking for the next device is the work."""


class _SpentError(Exception):
    """More devices were tried than a search may try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """All pools of one size and blend: who may be what, and what all of them keep to.

    `symmetry`: swaps that leave `able` and the preferences as they are. `timed`: workers differ in their times.
    `fastest`: by phase and kind of card. `cost`: of an hour of any of these pools.
    """

    case: Case
    sizes: Sizes
    blend: Blend
    able: Able
    symmetry: Symmetry
    keeping: Keeping
    nearest: bool
    fastest: tuple[Mapping[Kind, Fastest], Mapping[Kind, Fastest]]
    timed: bool
    cost: Value = NOTHING

    def rate(self, known: tuple[Fraction | None, Fraction | None], left: Sequence[Mapping[Kind, int]]) -> Value:
        """The most throughput, sign turned: sequences a second that are known, and so many workers of the fastest."""
        sides = []
        for rate, counts, fastest in zip(known, left, self.fastest, strict=True):
            for kind, count in counts.items():
                more = fastest[kind].rate(count)
                if rate is None or more is None:
                    return UNPRICED
                rate += more * self.case.batch
            if rate is None:
                return UNPRICED
            sides.append(rate)
        passes = self.case.screen.workload.decode_passes
        return False, -min(sides) * (passes + 1) / self.sizes.devices


@dataclass(frozen=True, slots=True)
class _Sum:
    """What the workers so far come to; rates are sequences a second, None where unpriced."""

    broken: int
    handoff: Value
    ttft: Value
    rates: tuple[Fraction | None, Fraction | None]


class ExactSearch:
    """The search of one space. `run` fills the front; False: more than `most` devices would have to be tried."""

    def __init__(self, space: Space, front: Front, most: int) -> None:
        self.space, self.front, self.most = space, front, most
        self.tried = 0
        self.workers: tuple[list[Worker], list[Worker]] = ([], [])
        self.partial: Worker = ()
        self.used: set[int] = set()
        self.touched: dict[int, int] = {}
        self.seen: set[object] = set()
        self.slots = list(self._slots())
        blend, devices = space.blend, space.case.classes.fleet.devices
        self.left: tuple[dict[Kind, int], dict[Kind, int]] = (dict(blend.prefill), dict(blend.decode))
        self.kind = [device.sku for device in devices] if blend.is_mixed else []

    def _slots(self) -> Iterator[Slot]:
        """Prefill and decode in turn, so that pairs show early; all of prefill first where the nearest one serves."""
        counts, ranks = self.space.sizes.workers, self.space.sizes.ranks
        if self.space.nearest:
            order = [0] * counts[0] + [1] * counts[1]
        else:
            order = [phase for at in range(max(counts)) for phase in (0, 1) if at < counts[phase]]
        return ((phase, rank) for phase in order for rank in range(ranks[phase]))

    def run(self) -> bool:
        """Whether all pools were looked at, or left with proof."""
        try:
            self._extend(0, _Sum(0, NOTHING, NOTHING, (Fraction(0), Fraction(0))))
        except _SpentError:
            return False
        return True

    def _extend(self, at: int, held: _Sum) -> None:
        if at == len(self.slots):
            self._finish()
            return
        phase, rank = self.slots[at]
        for device in self._unlike(phase, rank):
            self.tried += 1
            if self.tried > self.most:
                raise _SpentError
            before = self.partial
            self._put(device, 1)
            self.partial = (*before, device)
            ends = len(self.partial) == self.space.sizes.ranks[phase]
            if ends:
                self._end(phase, 1)
            key = self._key(phase)
            if key not in self.seen:
                self.seen.add(key)
                more = self._with_worker(phase, held) if ends else held
                if more is not None and not self.front.is_beaten(self._best_of(more)):
                    self._extend(at + 1, more)
            if ends:
                self._end(phase, -1)
            self.partial = before
            self._put(device, -1)

    def _end(self, phase: int, count: int) -> None:
        """A worker is whole, or no longer there; it is one less of its kind to come."""
        if count > 0:
            self.workers[phase].append(self.partial)
            worker, self.partial = self.partial, ()
        else:
            worker = self.workers[phase].pop()
        kind = self.kind[worker[0]] if self.kind else next(iter(self.left[phase]))
        self.left[phase][kind] -= count

    def _fits(self, phase: int, device: int) -> bool:
        """Whether a card of its kind is still to come; all ranks of a worker are of one kind."""
        if not self.kind:
            return True
        if self.partial:
            return self.kind[device] == self.kind[self.partial[0]]
        return self.left[phase].get(self.kind[device], 0) > 0

    def _put(self, device: int, count: int) -> None:
        (self.used.add if count > 0 else self.used.remove)(device)
        for part in self.space.symmetry.chains[device]:
            self.touched[part] = self.touched.get(part, 0) + count

    def _unlike(self, phase: int, rank: int) -> list[int]:
        """Devices that may come next, one of each kind that swaps around those that are there turn into each other."""
        symmetry, domains = self.space.symmetry, self.space.case.classes.near.domains
        found: dict[tuple[int, int], int] = {}
        self.tried += len(self.space.able[phase][rank]) // FREE_SCAN
        for device in self.space.able[phase][rank]:
            if device in self.used or not self._fits(phase, device):
                continue
            if self.partial and not frozenset.intersection(
                *(domains.get(symmetry.names[each], frozenset()) for each in (*self.partial, device))
            ):
                continue
            shared = next((part for part in reversed(symmetry.chains[device]) if self.touched.get(part)), -1)
            found.setdefault((symmetry.like[device], shared), device)
        return list(found.values())

    def _key(self, phase: int) -> object:
        """Equal only for parts of pools that swaps and another order of workers turn into each other."""
        chosen = [
            (device, of, rank, (of, number))
            for of, side in enumerate(self.workers) for number, worker in enumerate(side)
            for rank, device in enumerate(worker)
        ]  # fmt: skip
        chosen += [(device, phase, rank, (phase, -1)) for rank, device in enumerate(self.partial)]
        shape, order = _form(self.space.symmetry, chosen, 0)
        numbers: dict[tuple[int, int], int] = {}
        return shape, tuple(numbers.setdefault(worker, len(numbers)) for worker in order), len(self.partial)

    def _with_worker(self, phase: int, held: _Sum) -> _Sum | None:
        """The sum with the last worker of a phase; None where a pair is not admitted, or a rule is not kept."""
        space, case = self.space, self.space.case
        together = (*self.workers[0], *self.workers[1])
        if not space.keeping.allows(together):
            return None
        worker = self.workers[phase][-1]
        pairs = [(worker, other) for other in self.workers[1]] if phase == 0 else []
        if phase == 1:
            pairs = [(one, worker) for one in case.served(self.workers[0], worker, nearest=space.nearest)]
        handoff, ttft = held.handoff, held.ttft
        for one, other in pairs:
            found = case.pair(one, other)
            if found.verdict != "admitted":
                return None
            value = NOTHING if found.handoff is None else late(seconds_of(found.handoff))
            handoff = max(handoff, value)
            if space.timed:
                first = late(case.time_of(0, one))
                ttft = max(ttft, (True, Fraction(0)) if first[0] or value[0] else (False, first[1] + value[1]))
        broken = len(space.keeping.broken(together))
        return _Sum(broken, handoff, ttft, self._rates(phase, worker, held.rates) if space.timed else held.rates)

    def _rates(
        self, phase: int, worker: Worker, rates: tuple[Fraction | None, Fraction | None]
    ) -> tuple[Fraction | None, Fraction | None]:
        seconds, so_far = self.space.case.time_of(phase, worker), rates[phase]
        more = None if so_far is None or not seconds else so_far + self.space.case.batch / seconds
        return (more, rates[1]) if phase == 0 else (rates[0], more)

    def _best_of(self, held: _Sum) -> Vector:
        """What a pool with this part cannot be below."""
        floor, space = self.front.floor, self.space
        broken, handoff = max(held.broken, floor[0]), max(held.handoff, floor[1])
        if not space.timed:
            return broken, handoff, NOTHING, NOTHING, space.cost
        ttft = NOTHING if space.case.has_no_ttft else max(held.ttft, floor[2])
        return broken, handoff, ttft, space.rate(held.rates, self.left), space.cost

    def _finish(self) -> None:
        space = self.space
        pack = space.case.alike.pack(tuple(self.workers[0]), tuple(self.workers[1]))
        found = space.case.measure(pack, nearest=space.nearest, timed=space.timed)
        if found.verdict != "admitted":  # a prefill worker that no decode worker can be served by
            return
        broken = len(space.keeping.broken(pack.workers))
        self.front.offer(vector_of(broken, found, space.cost, timed=space.timed), pack, found)


Chosen = tuple[int, int, int, tuple[int, int]]


def _form(symmetry: Symmetry, chosen: Sequence[Chosen], level: int) -> tuple[tuple[object, ...], list[tuple[int, int]]]:
    """(how the chosen lie in parts, what each is; the workers in that order): the first is blind to which worker."""
    if len(chosen) == 1:
        device, phase, rank, worker = chosen[0]
        return (0, symmetry.like[device], phase, rank), [worker]
    parts: dict[int, list[Chosen]] = {}
    for each in chosen:
        parts.setdefault(symmetry.chains[each[0]][level], []).append(each)
    if len(parts) == 1:
        return _form(symmetry, chosen, level + 1)
    forms = sorted(_form(symmetry, each, level + 1) for each in parts.values())
    part = symmetry.parts[symmetry.chains[chosen[0][0]][level - 1]].like if level else -1
    return (1, part, tuple(form for form, _ in forms)), [worker for _, order in forms for worker in order]
