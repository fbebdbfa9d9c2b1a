"""The best pairs of devices of a fleet: each class of pairs is screened once, so the answer is exact on thousands.

Where a fleet has too little symmetry for that, pairs are taken in the order of a lower bound of their time, and the
search ends when nothing left can be better. If it ends before, the bound is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet
from fleet.placement import PHASES
from planner.admit import Admission, Ask
from planner.place.candidate import (
    Candidate,
    Figures,
    Objective,
    cost_of,
    rank_key,
    ranked,
    times_of,
    tokens_per_second,
)
from planner.place.classes import Listing, PairClass, classes_of
from planner.place.constraints import COMMAND_LINE, Constraints, contradictions
from planner.place.floors import Floors, Key, bound_of, key_of
from planner.place.screen import Screen, told
from planner.placement_time import answers
from planner.times import NOTHING, Time, scaled, total

MOST_WORK = 4_000_000
"""Classes times nodes that are searched at most: a way over a large fleet costs more than one over a small one."""
FEW_CLASSES = 32
"""Classes that are screened without a look at bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is looked for. The placement of `ask` is not looked at. `prices`: of an hour of a card, by SKU."""

    ask: Ask
    objective: Objective = "handoff"
    constraints: Constraints = field(default_factory=Constraints)
    prices: Mapping[str, Fraction] = field(default_factory=dict)
    top: int = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Admitted candidates, best first; the others by kind; and how far the answer is proven.

    `considered`: placements that the constraints leave, `possible`: all there are. `exact`: nothing left out can be
    better; else `bound` is what nothing left out goes below (None: not known), or `cost_bound` an hour of it.
    `mixtures`: of pools with unlike cards in a phase, how many mixtures were looked at or left with proof, and all.
    """

    question: Question
    admitted: tuple[Candidate, ...]
    others: tuple[Candidate, ...]
    considered: int
    possible: int
    exact: bool
    bound: Fraction | None = None
    cost_bound: Fraction | None = None
    mixtures: tuple[int, int] | None = None

    @property
    def verdict(self) -> str:
        """`admitted` where there is one, `unverified` where nothing better is left, else `refused`."""
        if self.admitted:
            return "admitted"
        return "unverified" if any(each.verdict == "unverified" for each in self.others) else "refused"


class PairSearch:
    """The pairs of one question. Raises DescriptionError where the constraints leave none, or contradict each other."""

    def __init__(self, question: Question) -> None:
        if told_words := contradictions(question.constraints, of_pair=True):
            raise DescriptionError([Fault(source=COMMAND_LINE, field="", message=words) for words in told_words])
        self.question = question
        self.classes = classes_of(question.ask.fleet)
        self.screen = Screen(question.ask, classes=self.classes)
        self.names = self.classes.symmetry.names
        self._phases: dict[tuple[str, int], Time] = {}
        self._complete = True

    def run(self) -> Answer:
        """The answer, times of all candidates included."""
        question = self.question
        left = self._left(question.constraints)
        if not left:
            raise self._nothing_left()
        chosen, bound, exact = self._chosen(left)
        number = self.classes.symmetry.number
        # Bounds decide what is looked at first, and not which of equal ones is told first.
        in_fleet = sorted(chosen, key=lambda each: [number[name] for name in _ends(each)])
        found = [self._timed(each) for each in in_fleet]
        admitted = ranked((each for each in found if each.verdict == "admitted"), question.objective)
        others = tuple(each for each in found if each.verdict != "admitted")
        count = len(self.names)
        return Answer(
            question=question, admitted=tuple(admitted), others=others, exact=exact, bound=bound,
            considered=sum(each.count for each in left), possible=count * (count - 1),
        )  # fmt: skip

    def best(self) -> Candidate | None:
        """A best pair alone, without times that the objective does not ask for. Of equal ones it is some."""
        chosen, _, _ = self._chosen(self._left(self.question.constraints), top=1)
        found = (self._timed(each) if self._is_timed else each for each in chosen if each.verdict == "admitted")
        return min(found, key=lambda each: rank_key(each, self.question.objective), default=None)

    def admission(self, candidate: Candidate) -> Admission:
        """The admission of a pair; a screen that says otherwise is a bug and never goes unnoticed."""
        answer = self.screen.admission(*_ends(candidate))
        if told(answer) != self.screen.pair(*_ends(candidate)):
            raise RuntimeError(f"the screen and the admission of {_ends(candidate)} disagree")
        return answer

    def shown(self, candidate: Candidate) -> Candidate:
        """A pair with its times, admitted once more."""
        if candidate.verdict != "admitted":
            return candidate
        times, found = times_of(self.admission(candidate)), self._timed(candidate)
        if times is None or (times.ttft, times.tpot) != (found.figures.ttft, found.figures.tpot):
            raise RuntimeError(f"the times of {_ends(candidate)} are not those of its admission")
        return found

    @property
    def _is_timed(self) -> bool:
        return self.question.objective in ("ttft", "throughput")

    def _left(self, constraints: Constraints) -> Sequence[PairClass]:
        """The classes that keep to what is required."""
        listing = self._listed(constraints)
        self._complete, listed = listing.complete, listing.pairs
        # Rules and likeness go together: a node or a domain is part of what makes pairs alike.
        return [
            each for each in listed
            if all(self.classes.near.keeps(rule, self._pair(each)) for rule in constraints.required)
        ] if constraints.required else listed  # fmt: skip

    def _listed(self, constraints: Constraints) -> Listing:
        """The classes of allowed devices. Avoided devices and others are not alike, so each mixture has its own."""
        free = not constraints.excluded and constraints.prefill is None and constraints.decode is None
        if not constraints.avoided:
            return self.classes.pairs(None if free else constraints.allows)
        listings = []
        for up, down in product((False, True), repeat=2):

            def allows(name: str, phase: str, up: bool = up, down: bool = down) -> bool:
                avoided = name in constraints.avoided
                return avoided is (up if phase == "prefill" else down) and constraints.allows(name, phase)

            listings.append(self.classes.pairs(allows))
        pairs = sorted((each for one in listings for each in one.pairs), key=lambda each: (each.prefill, each.decode))
        return Listing(pairs=tuple(pairs), complete=all(one.complete for one in listings))

    def _pair(self, each: PairClass) -> tuple[str, str]:
        return self.names[each.prefill], self.names[each.decode]

    def _nothing_left(self) -> DescriptionError:
        """Which constraints leave no pair, and what each of them costs."""
        question, constraints = self.question, self.question.constraints
        if not constraints.words:
            words = f"fleet {question.ask.fleet.name} has {len(self.names)} device(s); a split needs two"
            return DescriptionError.at(question.ask.fleet.source or question.ask.fleet.name, "devices", words)
        faults = []
        for word in constraints.words:
            count = sum(each.count for each in self._left(constraints.without(word)))
            without = f"without it {count:,} pairs are left" if count else "without it none is left, too"
            faults.append(Fault(source=COMMAND_LINE, field=word, message=f"excludes every pair; {without}"))
        return DescriptionError(faults)

    def _chosen(
        self, left: Sequence[PairClass], top: int | None = None
    ) -> tuple[list[Candidate], Fraction | None, bool]:  # fmt: skip
        """(candidates, lower bound of what is left out, whether nothing left out can be better).

        `top`: only so many are wanted, so that the search may end as soon as nothing left can be among them.
        """
        most = most_classes(self.question.ask.fleet)
        few = len(left) <= most and self._complete
        small = top is None and len(left) <= FEW_CLASSES and self._complete
        if small or (few and top is None) or self.question.ask.model.unknown:
            return [self._candidate(each) for each in left], None, True
        objective = self.question.objective
        floors = Floors(self.screen, objective, self.question.prices, self._phase, self._count_broken)
        wanted = self.question.top if top is None else top
        found: list[Candidate] = []
        good: list[Key] = []
        ordered = floors.order([self._pair(each) for each in left])
        for number, (floor, at) in enumerate(ordered):
            if len(good) >= wanted and good[wanted - 1] <= floor:
                break
            if number >= most:
                least = (
                    min((0, *key[1:]) for key, _ in ordered[number:]) if self._complete else floors.least(self.names)
                )
                return found, bound_of(objective, least), False
            candidate = self._candidate(left[at])
            found.append(candidate)
            if candidate.verdict == "admitted":
                good = sorted([*good, key_of(self._timed(candidate) if self._is_timed else candidate, objective)])[
                    :wanted
                ]
        if self._complete:
            return found, None, True
        least = floors.least(self.names)
        return found, bound_of(objective, least), len(good) >= wanted and good[wanted - 1] <= least

    def _count_broken(self, prefill: str, decode: str) -> int:
        return len(self.classes.near.broken(self.question.constraints, (prefill, decode))) if self._prefers else 0

    def _phase(self, phase: str, name: str, *, names_it: bool = False) -> Time:
        """The time of a phase on a device; of all that are alike once. `names_it`: what is unpriced is the device's."""
        symmetry = self.classes.symmetry
        key = (phase, symmetry.like[symmetry.number[name]])
        if key not in self._phases:
            self._phases[key] = self.screen.worker_time(phase, symmetry.names[key[1]])
        found = self._phases[key]
        return self.screen.worker_time(phase, name) if names_it and found.seconds is None else found

    def _candidate(self, each: PairClass) -> Candidate:
        prefill, decode = self._pair(each)
        found = self.screen.pair(prefill, decode)
        question = self.question
        broken = self.classes.near.broken(question.constraints, (prefill, decode)) if self._prefers else ()
        figures = Figures(
            devices=2, handoff=found.handoff, slack_bytes=found.slack_bytes,
            cost=cost_of(question.ask.fleet, (prefill, decode), question.prices) if question.prices else None,
        )  # fmt: skip
        return Candidate(
            prefill=((prefill,),), decode=((decode,),), verdict=found.verdict, codes=found.codes, figures=figures,
            alike=each.count, broken=broken, staged=found.staged, batch=question.ask.request.batch,
        )  # fmt: skip

    @property
    def _prefers(self) -> bool:
        return bool(self.question.constraints.preferred or self.question.constraints.avoided)

    def _timed(self, candidate: Candidate) -> Candidate:
        """The same with TTFT, TPOT and throughput, where it is admitted."""
        if candidate.verdict != "admitted":
            return candidate
        ends = zip(PHASES, _ends(candidate), strict=True)
        first, steps = (self._phase(*end, names_it=True) for end in ends)
        handoff, workload = candidate.figures.handoff, self.screen.workload
        passes = workload.decode_passes
        rate = tokens_per_second(first, steps, (1, 1), workload.batch, passes)
        figures = replace(
            candidate.figures, ttft=total((first, handoff or NOTHING)) if answers(workload) else None,
            tpot=scaled(steps, Fraction(1, passes)) if passes else None, throughput=None if rate is None else rate / 2,
        )  # fmt: skip
        return replace(candidate, figures=figures)


def _ends(candidate: Candidate) -> tuple[str, str]:
    return candidate.prefill[0][0], candidate.decode[0][0]


def most_classes(fleet: Fleet) -> int:
    """Classes that are all screened; of more, those first whose lower bound is least."""
    nodes = len(fleet.devices) + len(fleet.hosts) + len(fleet.switches) + len(fleet.nics)
    return max(500, MOST_WORK // max(1, nodes))
