"""What all pools of one case start from: devices with room by kind of card, the fastest of them, and their symmetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from planner.place.blends import Blend, Kind, Side, Sides, cost_floor, order_of
from planner.place.case import Case, late
from planner.place.exact import Able, Space
from planner.place.fastest import Fastest, unlike_workers
from planner.place.front import NOTHING, UNPRICED, Keeping, Value, Vector
from planner.place.regions import Sizes, Worker
from planner.place.symmetry import Symmetry

MOST_TIMED = 64
"""Kinds of cards whose workers are all timed; of more, what no device is faster than bounds them."""

Unlike = dict[tuple[tuple[tuple[int, ...], ...], int], tuple[Symmetry, Sequence[Worker] | None]]
"""By devices and swaps, the workers that are not alike; swaps are kept, so that their number stays theirs."""


class Lazy(Mapping[Kind, Fastest]):
    """The fastest of each kind, once somebody asks."""

    def __init__(self, kinds: Sequence[Kind], found: Callable[[Kind], Fastest]) -> None:
        self._kinds, self._found = kinds, found
        self._held: dict[Kind, Fastest] = {}

    def __getitem__(self, kind: Kind) -> Fastest:
        if kind not in self._held:
            self._held[kind] = self._found(kind)
        return self._held[kind]

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)


class Ground:
    """One case of one question. `able`: whether a device is allowed in each phase; `prices` of an hour by SKU; `unlike`
    is kept for all cases of a question.
    """

    def __init__(
        self, case: Case, keeping: Keeping, able: Sequence[tuple[bool, bool]],
        symmetry: Callable[[tuple[object, ...]], Symmetry], prices: Mapping[str, Fraction], unlike: Unlike, *,
        nearest: bool,
    ) -> None:  # fmt: skip
        self.case, self.keeping, self.nearest, self.prices = case, keeping, nearest, prices
        self.allowed, self._unlike = able, unlike
        self._symmetry_of = symmetry
        self._symmetry: Symmetry | None = None
        devices: list[dict[Kind, list[int]]] = [{}, {}]
        for at, device in enumerate(case.classes.fleet.devices):
            for phase in (0, 1):
                if able[at][phase] and case.has_room(at, phase):
                    devices[phase].setdefault(device.sku, []).append(at)
        self.devices = devices
        self.sides = tuple(self._sides(phase) for phase in (0, 1))
        self._between: dict[tuple[object, object], Value] = {}
        self._broken: dict[Sizes, int] = {}
        self._timed: dict[tuple[Kind, Kind], bool] = {}
        kinds = sorted({*devices[0], *devices[1]}, key=order_of)
        self._cards = {kind: len({*devices[0].get(kind, ()), *devices[1].get(kind, ())}) for kind in kinds}

    def _sides(self, phase: int) -> Sides:
        held, size = self.devices[phase], self.case.ranks[phase]
        kinds = sorted(held, key=order_of)
        room = {kind: len(held[kind]) // size for kind in kinds}
        return Sides(Lazy(kinds, lambda kind: self._fastest(phase, kind)), room)

    def _fastest(self, phase: int, kind: Kind) -> Fastest:
        case = self.case
        workers: Sequence[Worker] | None = ()
        able: tuple[tuple[int, ...], ...] = ((),)
        if case.is_known:
            able = self.able((kind,), phase)
            # Alone, alike devices take the same time; the ranks of a worker have to be alike with all that may join.
            symmetry = case.symmetry if case.ranks[phase] == 1 else self.symmetry
            workers = None if len(self.devices[phase]) > MOST_TIMED else self._workers(able, symmetry)
        singles = able[0] if case.ranks[phase] == 1 else ()
        return Fastest(
            workers, singles, lambda worker: case.time_of(phase, worker), lambda: case.least_time(phase, kind)
        )  # fmt: skip

    def _workers(self, able: tuple[tuple[int, ...], ...], symmetry: Symmetry) -> Sequence[Worker] | None:
        """The same for every batch."""
        key = (able, id(symmetry))
        if key not in self._unlike:
            self._unlike[key] = (symmetry, unlike_workers(self.case.classes, able, symmetry))
        return self._unlike[key][1]

    @property
    def symmetry(self) -> Symmetry:
        """Swaps that turn no device into one that may not be the same, or is avoided and the other is not."""
        if self._symmetry is None:
            case, avoided = self.case, self.keeping.constraints.avoided
            self._symmetry = self._symmetry_of(tuple(
                (name in avoided, *allowed, case.room(device))
                for device, (name, allowed) in enumerate(zip(case.names, self.allowed, strict=True))
            ))  # fmt: skip
        return self._symmetry

    def able(self, kinds: Sequence[Kind], phase: int) -> tuple[tuple[int, ...], ...]:
        """By rank, the devices of these kinds that may be that."""
        held = sorted(device for kind in kinds for device in self.devices[phase].get(kind, ()))
        room = self.case.room
        return tuple(
            tuple(device for device in held if room(device)[phase][rank]) for rank in range(self.case.ranks[phase])
        )

    def space(self, sizes: Sizes, blend: Blend, *, timed: bool) -> Space:
        """All pools of a blend."""
        able: Able = tuple(
            self.able([kind for kind, _ in mix], phase) for phase, mix in enumerate((blend.prefill, blend.decode))
        )  # type: ignore[assignment]  # of both phases
        return Space(
            case=self.case, sizes=sizes, blend=blend, able=able, symmetry=self.symmetry, keeping=self.keeping,
            nearest=self.nearest, fastest=(self.sides[0].fastest, self.sides[1].fastest), timed=timed,
            cost=self.cost(blend),
        )  # fmt: skip

    def is_timed(self, blend: Blend) -> bool:
        """Whether the times of workers, and not the handoff alone, tell pools of a blend apart."""
        if blend.is_mixed:
            return True
        kinds = (blend.prefill[0][0], blend.decode[0][0])
        if kinds not in self._timed:
            only = [side.fastest[kind].is_only for side, kind in zip(self.sides, kinds, strict=True)]
            self._timed[kinds] = not all(only)
        return self._timed[kinds]

    def cost(self, blend: Blend) -> Value:
        """Of an hour; nothing where no prices are given."""
        return late(cost_floor(blend, self.case.ranks, self.prices)) if self.prices else NOTHING

    def fits(self, blend: Blend) -> bool:
        """Whether there are as many cards of each kind."""
        ranks = self.case.ranks
        return all(self._cards[kind] >= up * ranks[0] + down * ranks[1] for kind, (up, down) in blend.parts)

    def floor(self, sizes: Sizes, blend: Blend, *, timed: bool) -> Vector:
        """What no pool of a blend is below in any figure."""
        kinds = tuple(tuple(kind for kind, _ in mix) for mix in (blend.prefill, blend.decode))
        handoff = max(self._handoff(sizes), self._kinds_apart(kinds[0], kinds[1]))
        if not timed:
            return self._least_broken(sizes), handoff, NOTHING, NOTHING, self.cost(blend)
        up, down = (side.side(mix) for side, mix in zip(self.sides, (blend.prefill, blend.decode), strict=True))
        return self._vector(sizes, handoff, (up, down), self.cost(blend))

    def least(self, sizes: Sizes) -> Vector:
        """What no pool of a size is below, whatever its cards are."""
        ends = (self.sides[0].best(sizes.workers[0]), self.sides[1].best(sizes.workers[1]))
        known = sorted(price for price in self.prices.values())
        cost = (False, known[0] * sizes.devices) if known else NOTHING
        return self._vector(sizes, self._handoff(sizes), ends, cost)

    def _handoff(self, sizes: Sizes) -> Value:
        alone = Sizes(workers=(1, 1), ranks=sizes.ranks) if self.nearest else sizes
        found = self.case.bounds.floor(alone)
        return UNPRICED if found is None else (False, found)

    def _kinds_apart(self, ups: tuple[Kind, ...], downs: tuple[Kind, ...]) -> Value:
        """Each prefill worker hands over to each decode worker; or each of these is served by the nearest."""
        key = (ups, downs)
        if key not in self._between:
            between = self.case.bounds.between
            times = [[late(between((up, down))) for up in ups] for down in downs]
            self._between[key] = max((min if self.nearest else max)(row) for row in times)
        return self._between[key]

    def _least_broken(self, sizes: Sizes) -> int:
        """Fewer preferences than this no pool of a size breaks."""
        if self.keeping.is_free:
            return 0
        if sizes not in self._broken:
            usable = {device for side in self.devices for held in side.values() for device in held}
            self._broken[sizes] = self.keeping.least_broken(sorted(usable), sizes.devices, sum(sizes.workers))
        return self._broken[sizes]

    def _vector(self, sizes: Sizes, handoff: Value, ends: tuple[Side, Side], cost: Value) -> Vector:
        case = self.case
        up, down = ends
        ttft: Value = UNPRICED
        if case.has_no_ttft:
            ttft = NOTHING
        elif up.fast is not None and up.slow is not None and not handoff[0]:
            alone = case.bounds.floor(Sizes(workers=(1, 1), ranks=sizes.ranks)) or Fraction(0)
            slowest = up.fast if self.nearest else up.slow  # which may serve nobody where the nearest one serves
            ttft = (False, max(up.fast + handoff[1], slowest + alone))
        rate: Value = UNPRICED
        if up.rate is not None and down.rate is not None:
            most = min(up.rate, down.rate) * case.batch
            rate = (False, -most * Fraction(case.screen.workload.decode_passes + 1, sizes.devices))
        return self._least_broken(sizes), handoff, ttft, rate, cost
