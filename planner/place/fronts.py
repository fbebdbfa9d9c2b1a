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
from planner.place.case import Measured
from planner.place.classes import FleetClasses
from planner.place.exact import ExactSearch
from planner.place.front import NOTHING, Front, Keeping, Vector, key_under, vector_of
from planner.place.grounds import Ground
from planner.place.packs import Packs
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


class Fronts:
    """The searches of one question; `sizes` is how many sizes there are, batches counted.

    `open`: bounds of what was left without proof. `looked_at`, `mixtures`: mixtures that were decided, and all of them.
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
        self.looked_at = self.mixtures = 0
        self.most_blends = max(FEWEST_BLENDS, min(MOST_BLENDS, MOST_BLENDS_IN_ALL // max(1, sizes)))
        self._left = [MOST_STEPS_IN_ALL, MOST_STEPS_IN_ALL]

    def of(self, ground: Ground, sizes: Sizes) -> tuple[list[Found], list[Pack]]:
        """Pools of one size that are told, and packs that are not admitted, of each pair of kinds one."""
        found: list[Found] = []
        failed: list[Pack] = []
        blends, all_pure = self._pure(ground, sizes)
        for blend in blends:
            front, refused = self._pure_front(ground, sizes, blend)
            found += front
            failed += [] if refused is None else [refused]
        if ground.case.is_known:
            found += self._mixed(ground, sizes, found, all_pure=all_pure)
        return found, failed

    def _pure(self, ground: Ground, sizes: Sizes) -> tuple[list[Blend], bool]:
        """Pairs of kinds of cards, and whether they are all pairs; of too many the first kinds."""
        kinds = [side.pure(count) for side, count in zip(ground.sides, sizes.workers, strict=True)]
        most = math.isqrt(self.most_blends)
        complete = len(kinds[0]) * len(kinds[1]) <= self.most_blends
        if not complete:
            kinds = [each[:most] for each in kinds]
        return [
            Blend(((up, sizes.workers[0]),), ((down, sizes.workers[1]),)) for up, down in itertools.product(*kinds)
        ], complete  # fmt: skip

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
        first = min((vector for vector, _, _ in front.members), key=lambda vector: key_under(self.objective, vector))
        bound = None if is_settled else first if is_best else front.floor
        return [Found(*each, bound) for each in front.members], None

    def _looked_at_all(
        self, ground: Ground, sizes: Sizes, blend: Blend, front: Front, refused: Pack | None, *, timed: bool
    ) -> tuple[bool, bool]:  # fmt: skip
        """Whether nothing is missing from the front after a search through all pools, and nothing of the objective.

        What the first search leaves open in all figures together may be settled in the one that is asked for.
        """
        if not front.members and refused is None and self.packs.is_exact(sizes):
            return True, True
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

    def _mixed(self, ground: Ground, sizes: Sizes, pure: Sequence[Found], *, all_pure: bool) -> list[Found]:
        """Pools with unlike cards in a phase that no pool of the size beats, those of one kind a phase included."""
        counts = [side.count(workers) for side, workers in zip(ground.sides, sizes.workers, strict=True)]
        alone = math.prod(len(side.pure(n)) for side, n in zip(ground.sides, sizes.workers, strict=True))
        total = counts[0] * counts[1] - (alone if all_pure else 0)
        if not total:
            return []
        self.mixtures += total
        front = Front(_NO_FLOOR)
        own: set[int] = set()
        for each in pure:
            self._offer(ground, front, each.pack)
        for pack in self._of_any_cards(ground, sizes, all_pure=all_pure):
            own.add(id(pack))
            self._offer(ground, front, pack)
        rest = self._blends(ground, sizes, front, own)
        if counts[0] * counts[1] > self.most_blends:
            least = ground.least(sizes)
            rest += [] if front.is_beaten(least) else [least]
        else:
            self.looked_at += total - len(rest)
        self.open += rest
        bound = min(rest, key=lambda vector: key_under(self.objective, vector), default=None)
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

    def _of_any_cards(self, ground: Ground, sizes: Sizes, *, all_pure: bool) -> Iterable[Pack]:
        found = itertools.islice(self.packs.of(ground.case, sizes, None), MOST_PACKS)
        return (pack for pack in found if not all_pure or self.blend_of(pack).is_mixed)

    def _blends(self, ground: Ground, sizes: Sizes, front: Front, own: set[int]) -> list[Vector]:
        """Looks at mixtures, the best bound first; the bounds of those that were left without proof."""
        rest: list[Vector] = []
        left = MOST_STEPS
        for floor, blend in self._in_order(ground, sizes):
            front.floor = floor
            if front.is_beaten(floor):
                continue
            known = {id(member[1]) for member in front.members}
            settled = False
            for pack in self.packs.of(ground.case, sizes, blend):
                self._offer(ground, front, pack)
                if front.is_settled:
                    settled = True
                    break
            if not settled:
                search = ExactSearch(ground.space(sizes, blend, timed=True), front, max(0, min(left, self._left[1])))
                settled = self._search(search, 1)
                left -= search.tried
            own |= {id(member[1]) for member in front.members} - known
            rest += [] if settled else [floor]
        return rest

    def _in_order(self, ground: Ground, sizes: Sizes) -> list[tuple[Vector, Blend]]:
        """Mixtures with enough cards, and what they cannot go below, the best under the objective first."""
        counts = [side.count(workers) for side, workers in zip(ground.sides, sizes.workers, strict=True)]
        most = [self.most_blends, self.most_blends]
        if counts[0] * counts[1] > self.most_blends:
            most = [math.isqrt(self.most_blends)] * 2
            most = [max(most[at], self.most_blends // max(1, counts[1 - at])) for at in (0, 1)]
        ups, downs = (
            side.listed(workers, most[at], self.objective, ground.prices)
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
