"""The best pools of workers: P of prefill and D of decode, each of so many ranks inside one link domain.

Any worker of prefill hands over to any of decode, so a pool is admitted when every pair of them is, and its handoff is
that of its worst pair. Pools are looked for in every part of the fleet, the smallest first; where none of these reaches
all bounds of its sizes, every pool is looked at, up to what swaps prove alike. Where that takes too long, the bound is
told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from fleet.errors import DescriptionError, Fault
from planner.admit import Admission
from planner.place.alike import Alike, Pack
from planner.place.candidate import Candidate, Figures, Worker, cost_of, ranked, times_of, value_of
from planner.place.case import Case, Measured
from planner.place.classes import classes_of
from planner.place.constraints import COMMAND_LINE, contradictions
from planner.place.front import Keeping, Vector, bound_under, cost_under, reaches
from planner.place.fronts import MOST_STEPS, Found, Fronts
from planner.place.grounds import Ground, Unlike
from planner.place.pairs import Answer, Question
from planner.place.regions import Sizes
from planner.place.screen import told
from planner.place.symmetry import Symmetry, symmetry_of
from planner.workers import degree_fault

MOST_POOLS = 100_000
"""Sizes that are tried, batches counted: more are a slip, not a search."""
Routing = Literal["any", "nearest"]


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
        self.fronts = Fronts(
            self.classes, self.alike, self.keeping, self.able, question.objective, nearest=self.nearest,
            sizes=question.combinations,
        )  # fmt: skip
        self._grounds: dict[tuple[int, tuple[int, int]], Ground] = {}
        self._symmetries: dict[object, Symmetry] = {}
        self._unlike: Unlike = {}
        self._told: dict[int, tuple[Pack, _Named]] = {}

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
                ground = self._ground(batch, ranks)
                found += [each for sizes in group for each in self._of_sizes(ground, sizes)]
        if not found:
            raise self._nothing_left()
        admitted = ranked((each for each in found if each.verdict == "admitted"), question.objective)
        others = tuple(each for each in found if each.verdict != "admitted")
        fronts = self.fronts
        bound, cost = self._bound(admitted)
        return Answer(
            question=question, admitted=tuple(admitted), others=others, considered=len(listed) * len(question.batches),
            possible=question.combinations, exact=not fronts.open and all(each.proven for each in admitted),
            bound=bound, cost_bound=cost, mixtures=(fronts.searched, fronts.mixtures) if fronts.mixtures else None,
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

    def _bound(self, admitted: list[Candidate]) -> tuple[Fraction | None, Fraction | None]:
        """What no pool at all can be better than, and cost less than, where the first one is not proven to be that."""
        objective, opened = self.question.objective, self.fronts.open
        if not admitted:
            return None, None
        first = admitted[0]
        costs = [each.cost_bound for each in admitted] + [_cost_of(floor) for floor in opened if objective == "cost"]
        cheap = min((cost for cost in costs if cost is not None), default=None)
        if cheap is not None and (first.figures.cost is None or cheap < first.figures.cost):
            return None, cheap
        bounds = [each.bound for each in admitted] + [bound_under(objective, floor) for floor in opened]
        known = [bound for bound in bounds if bound is not None]
        value = value_of(first, objective if objective in ("ttft", "throughput") else "handoff")
        if not known or value is None:
            return min(known, default=None), None
        best, found = (max(known), -value) if objective == "throughput" else (min(known), value)
        return None if (best <= found if objective == "throughput" else best >= found) else best, None

    def _nothing_left(self) -> DescriptionError:
        """Which constraints leave no pool, whatever the memory; without any, what a pool is made of does."""
        if self.fronts.open:
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

    def _ground(self, batch: int, ranks: tuple[int, int]) -> Ground:
        if (batch, ranks) not in self._grounds:
            self._grounds[batch, ranks] = Ground(
                Case(self.question.ask, self.classes, self.alike, batch, ranks), self.keeping, self.able,
                self._symmetry, self.question.prices, self._unlike, nearest=self.nearest,
            )  # fmt: skip
        return self._grounds[batch, ranks]

    def _of_sizes(self, ground: Ground, sizes: Sizes) -> list[Candidate]:
        """The best pools of a size: admitted ones, or else one that says why not."""
        found, failed = self.fronts.of(ground, sizes)
        if found:
            return [self._candidate_of(ground.case, each) for each in found]
        return [self._candidate(ground.case, pack) for pack in failed[:1]]

    def _symmetry(self, marks: tuple[object, ...]) -> Symmetry:
        """Swaps that turn no device into one of another mark."""
        if marks not in self._symmetries:
            whole = self.classes.symmetry
            plain = all(marks[device] == marks[like] for device, like in enumerate(whole.like))
            self._symmetries[marks] = whole if plain else symmetry_of(self.question.ask.fleet, marks)
        return self._symmetries[marks]

    def _candidate_of(self, case: Case, found: Found) -> Candidate:
        """A pool of the front, with its times where the objective asks for them, and the bound where it is not met."""
        objective, measured = self.question.objective, found.measured
        if self.fronts.is_timed and not measured.is_timed:
            measured = case.measure(found.pack, nearest=self.nearest, timed=True)
        candidate = self._candidate(case, found.pack, measured)
        if found.bound is None or reaches(objective, found.vector, found.bound):
            return candidate
        cost = cost_under(objective, found.bound, found.vector)
        bound = bound_under(objective, found.bound) if cost is None else None
        return replace(candidate, bound=bound, cost_bound=cost, proven=False)

    def _named(self, pack: Pack) -> _Named:
        """What all batches have in common: names, what is broken, and the cost."""
        held = self._told.get(id(pack))
        if held is None:
            prefill, decode = (
                tuple(tuple(self.names[d] for d in worker) for worker in side) for side in (pack.prefill, pack.decode)
            )
            names = [name for worker in (*prefill, *decode) for name in worker]
            prices = self.question.prices
            cost = cost_of(self.question.ask.fleet, names, prices) if prices else None
            broken = () if self.keeping.is_free else self.keeping.broken(pack.workers)
            held = self._told[id(pack)] = (pack, _Named(prefill, decode, len(names), broken, cost))
        return held[1]

    def _candidate(self, case: Case, pack: Pack, found: Measured | None = None) -> Candidate:
        """The candidate of a pool: the verdict of its worst pair of workers, and the longest handoff."""
        found = found or case.measure(pack, nearest=self.nearest, timed=False)
        named = self._named(pack)
        figures = Figures(
            devices=named.devices, handoff=found.handoff, slack_bytes=found.slack_bytes, ttft=found.ttft,
            tpot=found.tpot, throughput=found.throughput, cost=named.cost,
        )  # fmt: skip
        return Candidate(
            prefill=named.prefill, decode=named.decode, verdict=found.verdict, codes=found.codes, figures=figures,
            alike=None, broken=named.broken, staged=found.staged, batch=case.batch,
        )  # fmt: skip

    def timed(self, answer: Answer) -> Answer:
        """The answer with the times of all its pools: what the Pareto set is of."""
        return replace(answer, admitted=tuple(map(self._with_times, answer.admitted)))

    def _with_times(self, pool: Candidate) -> Candidate:
        case, pack = self._of(pool)
        found = case.measure(pack, nearest=self.nearest, timed=True)
        figures = replace(pool.figures, ttft=found.ttft, tpot=found.tpot, throughput=found.throughput)
        return replace(pool, figures=figures)

    def shown(self, pool: Candidate) -> Candidate:
        """A pool with its times, its worst pair of workers admitted once more: a wrong screen never goes unnoticed."""
        if pool.verdict != "admitted":
            return pool
        case, pack = self._of(pool)
        ends = case.ends(pack, nearest=self.nearest)
        answer = case.screen.admission(*ends)
        times = times_of(answer)
        prefill, decode = (tuple(map(self.classes.symmetry.number.__getitem__, end.split(","))) for end in ends)
        mine = (case.time(0, prefill).seconds, case.time(1, decode).seconds)
        theirs = None if times is None else (times.prefill.seconds, times.decode.seconds)
        if told(answer) != case.pair(prefill, decode) or mine != theirs:
            raise RuntimeError(f"the screen and the admission of {ends} disagree")
        return self._with_times(pool)

    def admission(self, pool: Candidate) -> Admission:
        """The admission of the worst pair of workers of a pool."""
        case, pack = self._of(pool)
        return case.screen.admission(*case.ends(pack, nearest=self.nearest))

    def _of(self, pool: Candidate) -> tuple[Case, Pack]:
        number = self.classes.symmetry.number
        prefill, decode = (
            tuple(tuple(number[name] for name in worker) for worker in side) for side in (pool.prefill, pool.decode)
        )
        return self._ground(pool.batch, (len(prefill[0]), len(decode[0]))).case, self.alike.pack(prefill, decode)


@dataclass(frozen=True, slots=True)
class _Named:
    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]
    devices: int
    broken: tuple[str, ...]
    cost: Fraction | None


def _cost_of(floor: Vector) -> Fraction | None:
    return None if floor[4][0] else floor[4][1]
