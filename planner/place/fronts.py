"""The pools of one size: of each pair of kinds of cards those that no other one beats, then mixtures that beat them.

Packs come first. Where none reaches what its kinds cannot go below, every pool of them is looked at, up to what swaps
prove alike and to a number of devices that are tried. Mixtures are taken in the order of their bounds; one that a pool
already beats is left with proof.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.place.alike import Alike, Pack
from planner.place.blends import Blend
from planner.place.candidate import Objective
from planner.place.case import MOST_LIKES, Measured
from planner.place.classes import FleetClasses
from planner.place.exact import ExactSearch
from planner.place.front import NOTHING, Front, Keeping, Vector, key_under, vector_of
from planner.place.grounds import Ground
from planner.place.packs import Packs
from planner.place.pairs import most_classes
from planner.place.regions import Sizes

MOST_STEPS = 20_000
"""Devices that are tried for one size where every pool is looked at; as many again for its mixtures."""
MOST_STEPS_IN_ALL = 60_000
MOST_BLENDS_IN_ALL = 20_000
"""Mixtures whose bounds are looked at."""
MOST_BLENDS, FEWEST_BLENDS = 2_000, 32
"""The same of one size, whatever their number."""
MOST_PACKS = 500
"""Packs of any cards that are looked at for one size."""
_NO_FLOOR: Vector = (0, NOTHING, NOTHING, NOTHING, NOTHING)


@dataclass(frozen=True, slots=True)
class Found:
    """A pool that no other one beats. `bound`: what none of its size and kinds goes below, where that is not proven."""

    vector: Vector
    pack: Pack
    measured: Measured
    bound: Vector | None = None


@dataclass(frozen=True, slots=True)
class _Plan:
    """Pairs of kinds of one size, and how many mixtures there are; whether all of either are looked at."""

    pure: list[Blend]
    has_all_pure: bool
    mixtures: int
    has_all_mixed: bool


class Fronts:
    """The searches of one question; `sizes` is how many sizes there are, batches counted.

    `open`: bounds of what was left without proof. `searched`, `mixtures`: mixtures that were looked at or left with
    proof, and all of them.
    """

    def __init__(
        self, classes: FleetClasses, alike: Alike, keeping: Keeping, able: Sequence[tuple[bool, bool]],
        objective: Objective, *, nearest: bool, sizes: int,
    ) -> None:  # fmt: skip
        self.packs = Packs(classes, alike, keeping, able, nearest=nearest)
        self.sku = self.packs.sku
        self.keeping, self.objective, self.nearest = keeping, objective, nearest
        self.is_timed = objective in ("ttft", "throughput")
        self.open: list[Vector] = []
        self.searched = self.mixtures = 0
        self.most_blends = max(FEWEST_BLENDS, min(MOST_BLENDS, MOST_BLENDS_IN_ALL // max(1, sizes)))
        self.most_packs = MOST_PACKS
        if len(set(classes.symmetry.like)) > MOST_LIKES:  # each pack may have pairs that nobody looked at before
            few = max(FEWEST_BLENDS, most_classes(classes.fleet) // max(1, sizes))
            self.most_blends, self.most_packs = min(self.most_blends, few), min(MOST_PACKS, few)
        self._left = [MOST_STEPS_IN_ALL, MOST_STEPS_IN_ALL]
        self._plans: dict[tuple[int, Sizes], _Plan] = {}

    def of(self, ground: Ground, sizes: Sizes) -> tuple[list[Found], list[Pack]]:
        """Pools of one size that are told, and packs that are not admitted, of each pair of kinds one."""
        found: list[Found] = []
        failed: list[Pack] = []
        plan = self._plan(ground, sizes)
        for blend in plan.pure:
            front, refused = self._pure_front(ground, sizes, blend)
            found += front
            failed += [] if refused is None else [refused]
        if plan.mixtures and ground.case.is_known:
            found += self._mixed(ground, sizes, plan, found)
        return found, failed

    def _plan(self, ground: Ground, sizes: Sizes) -> _Plan:
        """The mixtures of a size; the same for cases in which the same devices have room."""
        key = (self.packs.room(ground.case), sizes)
        found = self._plans.get(key)
        if found is None:
            found = self._plans[key] = self._planned(ground, sizes)
        return found

    def _planned(self, ground: Ground, sizes: Sizes) -> _Plan:
        """Of too many pairs of kinds those of the first kinds."""
        kinds = [side.pure(count) for side, count in zip(ground.sides, sizes.workers, strict=True)]
        every = math.prod(side.count(count) for side, count in zip(ground.sides, sizes.workers, strict=True))
        pairs = math.prod(map(len, kinds))
        complete = pairs <= self.most_blends
        if not complete:
            kinds = [each[: math.isqrt(self.most_blends)] for each in kinds]
        pure = [Blend(((up, sizes.workers[0]),), ((down, sizes.workers[1]),)) for up, down in itertools.product(*kinds)]
        return _Plan(pure, complete, every - pairs if complete else every, every <= self.most_blends)

    def _pure_front(self, ground: Ground, sizes: Sizes, blend: Blend) -> tuple[list[Found], Pack | None]:
        """Pools of one pair of kinds that no other one beats; where there is none, one that is refused."""
        case, refused = ground.case, None
        timed = case.is_known and ground.is_timed(blend)
        floor, cost = _NO_FLOOR, NOTHING
        if case.is_known:
            floor = ground.floor(sizes, blend, timed=timed)
            cost = floor[4]
        front = Front(floor)
        for pack in self.packs.of(case, sizes, blend):
            found = case.measure(pack, nearest=self.nearest, timed=timed or self.is_timed)
            if found.verdict == "admitted":
                front.offer(vector_of(self.count_broken(pack), found, cost, timed=timed), pack, found)
            else:
                refused = refused or pack
            if front.is_settled:
                break
        is_settled = is_best = front.is_settled or not case.is_known
        if not is_settled:
            is_settled, is_best = self._looked_at_all(ground, sizes, blend, front, refused, timed=timed)
        if not front.members:
            self.open += [] if is_settled else [front.floor]
            return [], refused or self.packs.without_room(case, sizes, (blend.prefill[0][0], blend.decode[0][0]))
        if is_settled:
            return [Found(*each) for each in front.members], None
        first = min((vector for vector, _, _ in front.members), key=lambda vector: key_under(self.objective, vector))
        bound = first if is_best else front.floor
        return [Found(*each, bound) for each in front.members], None

    def _looked_at_all(
        self, ground: Ground, sizes: Sizes, blend: Blend, front: Front, refused: Pack | None, *, timed: bool
    ) -> tuple[bool, bool]:  # fmt: skip
        """Whether nothing is missing from the front after a search through all pools, and nothing of the objective.

        What the first search leaves open in all figures together may be settled in the one that is asked for.
        """
        if not front.members and refused is None and self.packs.is_exact(sizes):
            return True, True
        if not ground.case.is_small:
            return False, False
        space = ground.space(sizes, blend, timed=timed)
        if self._search(ExactSearch(space, front, min(MOST_STEPS, self._left[0])), 0) or front.is_settled:
            return True, True
        if not timed:
            return False, False
        alone = Front(front.floor, self.objective)
        for member in front.members:
            alone.offer(*member)
        done = alone.is_settled or self._search(ExactSearch(space, alone, min(MOST_STEPS, self._left[0])), 0)
        for member in alone.members:
            front.offer(*member)
        return False, done

    def _search(self, search: ExactSearch, budget: int) -> bool:
        done = search.run()
        self._left[budget] -= search.tried
        return done

    def count_broken(self, pack: Pack) -> int:
        """How many preferences a pool breaks."""
        return 0 if self.keeping.is_free else len(self.keeping.broken(pack.workers))

    def _mixed(self, ground: Ground, sizes: Sizes, plan: _Plan, pure: Sequence[Found]) -> list[Found]:
        """Pools with unlike cards in a phase that no pool of the size beats, those of one kind a phase included."""
        self.mixtures += plan.mixtures
        front = Front(_NO_FLOOR)
        own: set[int] = set()
        for each in pure:
            self._offer(ground, front, each.pack)
        for pack in self._of_any_cards(ground, sizes, plan):
            own.add(id(pack))
            self._offer(ground, front, pack)
        rest = self._blends(ground, sizes, plan, front, own)
        bound = min(rest, key=lambda vector: key_under(self.objective, vector), default=None)
        self.open += rest
        return [Found(*each, bound) for each in front.members if id(each[1]) in own]

    def _offer(self, ground: Ground, front: Front, pack: Pack) -> bool:
        """Whether a pool is admitted; then the front knows it with all figures."""
        found = ground.case.measure(pack, nearest=self.nearest, timed=True)
        if found.verdict != "admitted":
            return False
        cost = ground.cost(self.blend_of(pack))
        front.offer(vector_of(self.count_broken(pack), found, cost, timed=True), pack, found)
        return True

    def blend_of(self, pack: Pack) -> Blend:
        """The mixture that a pool has."""
        prefill, decode = (
            tuple(sorted(_counted(self.sku[worker[0]] for worker in side).items(), key=lambda each: str(each[0])))
            for side in (pack.prefill, pack.decode)
        )
        return Blend(prefill, decode)

    def _of_any_cards(self, ground: Ground, sizes: Sizes, plan: _Plan) -> Iterable[Pack]:
        """Packs of any cards; where all pairs of kinds were looked at, those with unlike ones in a phase."""
        found = itertools.islice(self.packs.of(ground.case, sizes, None), self.most_packs)
        return (pack for pack in found if not plan.has_all_pure or self.blend_of(pack).is_mixed)

    def _blends(self, ground: Ground, sizes: Sizes, plan: _Plan, front: Front, own: set[int]) -> list[Vector]:
        """Looks at mixtures, the best bound first; the bounds of those that were left without proof."""
        rest: list[Vector] = []
        left = MOST_STEPS
        ordered = self._in_order(ground, sizes, plan)
        for floor, blend in ordered:
            front.floor = floor
            settled = front.is_settled
            known = {id(member[1]) for member in front.members}
            for pack in () if settled else self.packs.of(ground.case, sizes, blend):
                self._offer(ground, front, pack)
                settled = front.is_settled
                if settled:
                    break
            if not settled and ground.case.is_small:
                search = ExactSearch(ground.space(sizes, blend, timed=True), front, max(0, min(left, self._left[1])))
                settled = self._search(search, 1)
                left -= search.tried
            own |= {id(member[1]) for member in front.members} - known
            rest += [] if settled else [floor]
        if plan.has_all_mixed:
            self.searched += plan.mixtures
            return rest
        self.searched += len(ordered)
        least = ground.least(sizes)
        return rest if front.is_beaten(least) else [*rest, least]

    def _in_order(self, ground: Ground, sizes: Sizes, plan: _Plan) -> list[tuple[Vector, Blend]]:
        """Mixtures with enough cards, and what they cannot go below, the best under the objective first."""
        counts = [side.count(workers) for side, workers in zip(ground.sides, sizes.workers, strict=True)]
        most = [self.most_blends] * 2
        if not plan.has_all_mixed:
            share = math.isqrt(self.most_blends)
            most = [max(share, self.most_blends // max(1, counts[1 - at])) for at in (0, 1)]
        ups, downs = (
            side.listed(workers, most[at], self.objective, ground.prices, sizes.workers[1 - at])
            for at, (side, workers) in enumerate(zip(ground.sides, sizes.workers, strict=True))
        )
        found = []
        for up, down in itertools.product(ups, downs):
            blend = Blend(up.mix, down.mix)
            if blend.is_mixed and ground.fits(blend):
                found.append((ground.floor(sizes, blend, timed=True), blend))
        return sorted(found, key=lambda each: key_under(self.objective, each[0]))


def _counted(kinds: Iterable[str | None]) -> dict[str | None, int]:
    held: dict[str | None, int] = {}
    for kind in kinds:
        held[kind] = held.get(kind, 0) + 1
    return held
