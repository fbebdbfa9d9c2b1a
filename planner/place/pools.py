"""The best pools of workers: P of prefill and D of decode, each of so many ranks inside one link domain.

Any worker of prefill hands over to any of decode, so a pool is admitted when every pair of them is, and its handoff is
that of its worst pair. Pools are looked for in every part of the fleet, the smallest first; where none of these reaches
all bounds of its sizes, every pool is looked at, up to what swaps prove alike. Where that takes too long, the bound is
told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from fleet.errors import DescriptionError, Fault
from planner.admit import Admission
from planner.place.candidate import Candidate, Figures, cost_of, ranked, times_of, value_of
from planner.place.case import Alike, Case, Fastest, Measured
from planner.place.classes import classes_of
from planner.place.constraints import COMMAND_LINE, contradictions
from planner.place.exact import Able, ExactSearch, Space
from planner.place.front import NOTHING, Front, Keeping, Pool, Vector, bound_under, key_under, reaches, vector_of
from planner.place.packs import Kinds, Packs
from planner.place.pairs import Answer, Question
from planner.place.regions import Sizes
from planner.place.screen import told
from planner.place.symmetry import Symmetry, symmetry_of
from planner.workers import degree_fault

MOST_POOLS = 100_000
"""Sizes that are tried, batches counted: more are a slip, not a search."""
MOST_STEPS = 20_000
"""Devices that are tried for one size where every pool is looked at."""
MOST_STEPS_IN_ALL = 60_000
Routing = Literal["any", "nearest"]
_NO_FLOOR: Vector = (0, NOTHING, NOTHING, NOTHING)
_UNTIMED = (Fastest(None, is_only=True), Fastest(None, is_only=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolQuestion(Question):
    """Numbers of workers, ranks of a worker and sequences of a worker to try; `most_devices` None: the whole fleet.

    `routing`: any prefill worker hands over to any decode worker, or each decode worker is served by its nearest one.
    """

    prefill_workers: tuple[int, ...] = (1,)
    decode_workers: tuple[int, ...] = (1,)
    prefill_tp: tuple[int, ...] = (1,)
    decode_tp: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (1,)
    most_devices: int | None = None
    routing: Routing = "any"

    def sizes(self) -> Iterator[Sizes]:
        """All combinations of workers and ranks."""
        for ranks in itertools.product(self.prefill_tp, self.decode_tp):
            for workers in itertools.product(self.prefill_workers, self.decode_workers):
                yield Sizes(workers=workers, ranks=ranks)

    @property
    def combinations(self) -> int:
        """How many, batches counted."""
        parts = (self.prefill_workers, self.decode_workers, self.prefill_tp, self.decode_tp, self.batches)
        total = 1
        for part in parts:
            total *= len(part)
        return total


class PoolSearch:
    """The pools of one question. Raises DescriptionError where it contradicts itself or the model."""

    def __init__(self, question: PoolQuestion) -> None:
        self.question = question
        self._check()
        self.classes = classes_of(question.ask.fleet)
        self.names = self.classes.symmetry.names
        constraints = question.constraints
        self.able = [
            (constraints.allows(name, "prefill"), constraints.allows(name, "decode")) for name in self.names
        ]  # fmt: skip
        self.keeping = Keeping(constraints, self.classes.near, self.names)
        self.alike = Alike(self.classes.symmetry)
        self.nearest = question.routing == "nearest"
        self.packs = Packs(self.classes, self.keeping, self.able, nearest=self.nearest)
        self._cases: dict[tuple[int, tuple[int, int]], Case] = {}
        self._ables: dict[object, tuple[Able, Symmetry]] = {}
        self._symmetries: dict[object, Symmetry] = {}
        self._left = MOST_STEPS_IN_ALL
        self._open: list[Vector] = []

    def _check(self) -> None:
        question, faults = self.question, []
        faults += [("", words) for words in contradictions(question.constraints, of_pair=False)]
        if question.combinations > MOST_POOLS:
            faults.append(("", f"{question.combinations:,} sizes of pools; name fewer than {MOST_POOLS:,}"))
        for flag, degrees in (("--prefill-tp", question.prefill_tp), ("--decode-tp", question.decode_tp)):
            told_words = (degree_fault(question.ask.model, tp) for tp in degrees if not question.ask.model.unknown)
            faults += [(flag, words) for words in told_words if words]
        if faults:
            raise DescriptionError([Fault(source=COMMAND_LINE, field=flag, message=words) for flag, words in faults])

    def run(self) -> Answer:
        """The answer: of each size and pair of kinds of cards the pools that no other one of these beats.

        Times are in it where the objective asks for them; `timed` has them all.
        """
        question = self.question
        listed = self._listed()
        found: list[Candidate] = []
        for batch in question.batches:
            for ranks, group in itertools.groupby(listed, key=lambda sizes: sizes.ranks):
                case = self._case(batch, ranks)
                found += [each for sizes in group for each in self._of_sizes(case, sizes)]
        if not found:
            raise self._nothing_left()
        admitted = ranked((each for each in found if each.verdict == "admitted"), question.objective)
        others = tuple(each for each in found if each.verdict != "admitted")
        exact = not self._open and all(each.proven for each in admitted)
        return Answer(
            question=question, admitted=tuple(admitted), others=others, considered=len(listed) * len(question.batches),
            possible=question.combinations, exact=exact, bound=self._bound(admitted),
        )  # fmt: skip

    def _listed(self) -> list[Sizes]:
        """The sizes that the allowed devices are enough for."""
        question = self.question
        count = sum(up or down for up, down in self.able)
        most = min(count, question.most_devices or count)
        listed = [sizes for sizes in question.sizes() if sizes.devices <= most]
        if listed:
            return listed
        least = min(sizes.devices for sizes in question.sizes())
        limit = f"the fleet has {most}"
        if most < len(self.names):
            gone = [word for word in question.constraints.words if not word.startswith("--require")]
            words = " and ".join(gone) if count == most else "--max-devices"
            limit = f"{words} {'leave' if ' and ' in words else 'leaves'} {most}"
        words = f"the smallest pool of these takes {least} devices, and {limit}; ask for fewer workers or ranks"
        raise DescriptionError.at(COMMAND_LINE, "", words)

    def _bound(self, admitted: list[Candidate]) -> Fraction | None:
        """What no pool at all can be better than, where the first one is not proven to be that."""
        objective = self.question.objective
        if not admitted:
            return None
        bounds = [each.bound for each in admitted] + [bound_under(objective, floor) for floor in self._open]
        known = [bound for bound in bounds if bound is not None]
        first = value_of(admitted[0], objective if objective in ("ttft", "throughput") else "handoff")
        if not known or first is None:
            return min(known, default=None)
        best, found = (max(known), -first) if objective == "throughput" else (min(known), first)
        return None if (best <= found if objective == "throughput" else best >= found) else best

    def _nothing_left(self) -> DescriptionError:
        """Which constraints leave no pool, whatever the memory; without any, what a pool is made of does."""
        if self._open:
            words = f"no pool was found, and more than {MOST_STEPS:,} parts of pools were left; ask for fewer workers"
            return DescriptionError.at(COMMAND_LINE, "", words)
        faults = []
        for word in self.question.constraints.words:
            narrow = replace(self.question, constraints=self.question.constraints.without(word))
            try:
                PoolSearch(narrow).run()
                told_words = "without it there are some"
            except DescriptionError:
                told_words = "without it there is none, too"
            faults.append(Fault(source=COMMAND_LINE, field=word, message=f"excludes every pool; {told_words}"))
        if faults:
            return DescriptionError(faults)
        words = (
            "no pool of these sizes has every worker in one link domain and of one kind of card; ask for fewer ranks,"
            " or state domains or peer_access: direct in the fleet file"
        )
        return DescriptionError.at(COMMAND_LINE, "", words)

    def _case(self, batch: int, ranks: tuple[int, int]) -> Case:
        if (batch, ranks) not in self._cases:
            self._cases[batch, ranks] = Case(self.question.ask, self.classes, self.alike, batch, ranks)
        return self._cases[batch, ranks]

    def _of_sizes(self, case: Case, sizes: Sizes) -> Iterable[Candidate]:
        """The best pools of each pair of kinds of cards: admitted ones, or else one that says why not."""
        failed: list[Candidate] = []
        found: list[Candidate] = []
        for kinds in self.packs.kinds():
            front, refused = self._front(case, sizes, kinds)
            found += front
            failed += [refused] if refused is not None else []
        return found or failed[:1]

    def _front(self, case: Case, sizes: Sizes, kinds: Kinds) -> tuple[list[Candidate], Candidate | None]:
        """Pools of one size and pair of kinds that no other one beats; where there is none, one that is refused."""
        refused: Pool | None = None
        space = self._space(case, sizes, kinds)
        if space is None:
            return [], self._short(case, sizes, kinds)
        front = Front(space.floor() if case.is_known else _NO_FLOOR)
        for prefill, decode in self.packs.of(case, sizes, kinds):
            pool = (tuple(prefill), tuple(decode))
            found = case.measure(*pool, nearest=self.nearest, timed=space.timed or self._is_timed)
            if found.verdict == "admitted":
                front.offer(vector_of(self._count_broken(pool), found, timed=space.timed), pool, found)
            else:
                refused = refused or pool
            if front.is_settled:
                break
        is_settled = front.is_settled or not case.is_known
        is_best = is_settled
        if not is_settled:
            is_settled, is_best = self._looked_at_all(space, front, refused)
        if not front.members:
            self._open += [] if is_settled else [front.floor]
            return [], self._candidate(case, refused) if refused else self._short(case, sizes, kinds)
        objective = self.question.objective
        first = min((vector for vector, _, _ in front.members), key=lambda vector: key_under(objective, vector))
        bound = first if is_best else front.floor
        return [self._told(case, each, bound, proven=is_settled) for each in front.members], None

    def _looked_at_all(self, space: Space, front: Front, refused: Pool | None) -> tuple[bool, bool]:
        """Whether nothing is missing from the front after a search through all pools, and nothing of the objective.

        What the first search leaves open in all figures together may be settled in the one that is asked for.
        """
        if not front.members and refused is None and self.packs.is_exact(space.sizes):
            return True, True
        if self._search(space, front) or front.is_settled:
            return True, True
        if not space.timed:
            return False, False
        alone = Front(front.floor, self.question.objective)
        for vector, pool, found in front.members:
            alone.offer(vector, pool, found)
        done = alone.is_settled or self._search(space, alone)
        for vector, pool, found in alone.members:
            front.offer(vector, pool, found)
        return False, done

    def _search(self, space: Space, front: Front) -> bool:
        search = ExactSearch(space, front, min(MOST_STEPS, self._left))
        done = search.run()
        self._left -= search.tried
        return done

    def _space(self, case: Case, sizes: Sizes, kinds: Kinds) -> Space | None:
        """All pools of that kind; None where no device of a phase has room."""
        key = (id(case), kinds)
        if key not in self._ables:
            able = self._able(case, kinds)
            self._ables[key] = (able, self._symmetry(able))
        able, symmetry = self._ables[key]
        if not all(any(rank) for side in able for rank in side):
            return None
        up, down = (case.fastest(phase, able[phase], symmetry) for phase in (0, 1)) if case.is_known else _UNTIMED
        return Space(
            case=case, sizes=sizes, able=able, symmetry=symmetry, keeping=self.keeping, nearest=self.nearest,
            fastest=(up, down),
        )  # fmt: skip

    def _able(self, case: Case, kinds: Kinds) -> Able:
        up, down = (
            tuple(
                tuple(
                    self.able[device][phase] and self.packs.sku[device] == kinds[phase] and room[phase][rank]
                    for device, room in enumerate(case.rooms)
                )
                for rank in range(case.ranks[phase])
            )
            for phase in (0, 1)
        )
        return up, down

    def _symmetry(self, able: Able) -> Symmetry:
        """Swaps that turn no device into one that may not be the same, or is avoided and the other is not."""
        avoided = self.question.constraints.avoided
        marks = tuple(
            zip((name in avoided for name in self.names), *(rank for side in able for rank in side), strict=True)
        )
        if marks not in self._symmetries:
            whole = self.classes.symmetry
            plain = all(marks[device] == marks[like] for device, like in enumerate(whole.like))
            self._symmetries[marks] = whole if plain else symmetry_of(self.question.ask.fleet, marks)
        return self._symmetries[marks]

    def _short(self, case: Case, sizes: Sizes, kinds: Kinds) -> Candidate | None:
        pack = self.packs.without_room(case, sizes, kinds)
        return None if pack is None else self._candidate(case, (tuple(pack[0]), tuple(pack[1])))

    def _told(
        self, case: Case, member: tuple[Vector, Pool, Measured], bound: Vector, *, proven: bool
    ) -> Candidate:  # fmt: skip
        """A pool of the front, with its times where the objective asks for them, and the bound where it is not met."""
        vector, pool, found = member
        objective = self.question.objective
        if self._is_timed and not found.is_timed:
            found = case.measure(*pool, nearest=self.nearest, timed=True)
        candidate = self._candidate(case, pool, found)
        if proven or reaches(objective, vector, bound):
            return candidate
        return replace(candidate, bound=bound_under(objective, bound), proven=False)

    @property
    def _is_timed(self) -> bool:
        return self.question.objective in ("ttft", "throughput")

    def _count_broken(self, pool: Pool) -> int:
        return len(self.keeping.broken((*pool[0], *pool[1])))

    def _candidate(self, case: Case, pool: Pool, found: Measured | None = None) -> Candidate:
        """The candidate of a pool: the verdict of its worst pair of workers, and the longest handoff."""
        found = found or case.measure(*pool, nearest=self.nearest, timed=False)
        prefills, decodes = (tuple(tuple(self.names[d] for d in worker) for worker in side) for side in pool)
        names = [name for worker in (*prefills, *decodes) for name in worker]
        prices = self.question.prices
        figures = Figures(
            devices=len(names), handoff=found.handoff, slack_bytes=found.slack_bytes, ttft=found.ttft, tpot=found.tpot,
            throughput=found.throughput, cost=cost_of(self.question.ask.fleet, names, prices) if prices else None,
        )  # fmt: skip
        return Candidate(
            prefill=prefills, decode=decodes, verdict=found.verdict, codes=found.codes, figures=figures, alike=None,
            broken=self.keeping.broken((*pool[0], *pool[1])), staged=found.staged, batch=case.batch,
        )  # fmt: skip

    def timed(self, answer: Answer) -> Answer:
        """The answer with the times of all its pools: what the Pareto set is of."""
        return replace(answer, admitted=tuple(map(self._with_times, answer.admitted)))

    def _with_times(self, pool: Candidate) -> Candidate:
        case, workers = self._of(pool)
        found = case.measure(*workers, nearest=self.nearest, timed=True)
        figures = replace(pool.figures, ttft=found.ttft, tpot=found.tpot, throughput=found.throughput)
        return replace(pool, figures=figures)

    def shown(self, pool: Candidate) -> Candidate:
        """A pool with its times, its worst pair of workers admitted once more: a wrong screen never goes unnoticed."""
        if pool.verdict != "admitted":
            return pool
        case, workers = self._of(pool)
        found = case.measure(*workers, nearest=self.nearest, timed=True)
        answer = case.screen.admission(*found.ends)
        times = times_of(answer)
        prefill, decode = (tuple(map(self.classes.symmetry.number.__getitem__, end.split(","))) for end in found.ends)
        mine = (case.time(0, prefill).seconds, case.time(1, decode).seconds)
        theirs = None if times is None else (times.prefill.seconds, times.decode.seconds)
        if told(answer) != case.pair(prefill, decode)[1] or mine != theirs:
            raise RuntimeError(f"the screen and the admission of {found.ends} disagree")
        return self._with_times(pool)

    def admission(self, pool: Candidate) -> Admission:
        """The admission of the worst pair of workers of a pool."""
        case, workers = self._of(pool)
        return case.screen.admission(*case.measure(*workers, nearest=self.nearest, timed=False).ends)

    def _of(self, pool: Candidate) -> tuple[Case, Pool]:
        number = self.classes.symmetry.number
        prefill, decode = (
            tuple(tuple(number[name] for name in worker) for worker in side) for side in (pool.prefill, pool.decode)
        )
        return self._case(pool.batch, (len(prefill[0]), len(decode[0]))), (prefill, decode)
