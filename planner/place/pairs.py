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
    value_of,
)
from planner.place.classes import Listing, PairClass, classes_of
from planner.place.constraints import COMMAND_LINE, Constraints, contradictions
from planner.place.screen import Screen, told

_NO_BOUND = 2**63
"""More bytes per second than a fleet can state."""
MOST_WORK = 4_000_000
"""Classes times nodes that are searched at most: a way over a large fleet costs more than one over a small one."""
FEW_CLASSES = 32
"""Classes that are screened without a look at bounds."""
MOST_TIMED = 256
"""Classes whose TTFT and TPOT are reckoned though the objective does not ask for them: they are in the Pareto set."""


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
    better; else `bound` is what nothing left out goes below (None: not known).
    """

    question: Question
    admitted: tuple[Candidate, ...]
    others: tuple[Candidate, ...]
    considered: int
    possible: int
    exact: bool
    bound: Fraction | None = None

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
        self._complete = True

    def run(self) -> Answer:
        """The answer, times of all candidates included where there are few."""
        question = self.question
        left = self._left(question.constraints)
        if not left:
            raise self._nothing_left()
        chosen, bound, exact = self._chosen(left)
        found = [self._timed(each) for each in chosen] if self._wants_times(len(chosen)) else chosen
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
        return self._timed(candidate)

    @property
    def _is_timed(self) -> bool:
        return self.question.objective in ("ttft", "throughput")

    def _wants_times(self, count: int) -> bool:
        return self._is_timed or count <= MOST_TIMED

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
        floors = _Floors(self.screen, self.question) if len(left) > FEW_CLASSES or not self._complete else None
        most = most_classes(self.question.ask.fleet)
        few = len(left) <= most and self._complete
        if floors is None or (few and (top is None or not floors.known)):
            return [self._candidate(each) for each in left], None, True
        wanted = self.question.top if top is None else top
        order = sorted((-floors.rate(*self._pair(each)), at) for at, each in enumerate(left))
        found: list[Candidate] = []
        good: list[Fraction | int] = []
        for number, (rate, at) in enumerate(order):
            floor = floors.seconds(-rate)
            if len(good) >= wanted and good[wanted - 1] <= floor:
                break
            if number >= most:
                least = floor if self._complete else floors.seconds(floors.fastest)
                return found, least if floors.known else None, False
            candidate = self._candidate(left[at])
            found.append(candidate)
            value = value_of(candidate, self.question.objective)
            if candidate.verdict == "admitted" and value is not None and floors.known:
                good = sorted([*good, value])[:wanted]
        if self._complete:
            return found, None, True
        floor = floors.seconds(floors.fastest)
        return found, floor if floors.known else None, len(good) >= wanted and good[wanted - 1] <= floor

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
        answer = self.admission(candidate)
        times = times_of(answer)
        assert times is not None
        assert answer.workload is not None
        rate = tokens_per_second(
            times.prefill, times.decode, (1, 1), answer.workload.batch, answer.workload.decode_passes
        )
        figures = replace(
            candidate.figures, ttft=times.ttft, tpot=times.tpot, throughput=None if rate is None else rate / 2
        )
        return replace(candidate, figures=figures)


def _ends(candidate: Candidate) -> tuple[str, str]:
    return candidate.prefill[0][0], candidate.decode[0][0]


def most_classes(fleet: Fleet) -> int:
    """Classes that are all screened; of more, those first whose lower bound is least."""
    nodes = len(fleet.devices) + len(fleet.hosts) + len(fleet.switches) + len(fleet.nics)
    return max(500, MOST_WORK // max(1, nodes))


class _Floors:
    """Below what a pair cannot be, from each device's own links: all bytes leave over one of them and come in over one.

    `known` is False for objectives without such a bound, and where preferences go first.
    """

    def __init__(self, screen: Screen, question: Question) -> None:
        self.known = question.objective in ("handoff", "ttft") and not (
            question.constraints.preferred or question.constraints.avoided
        )
        self.nbytes = screen.handoff_bytes
        self._out: dict[str, int] = {}
        self._into: dict[str, int] = {}
        for link in question.ask.fleet.links:
            rates = [q.value for q in (link.bandwidth.declared, link.bandwidth.observed) if q is not None]
            for rate in rates:  # what goes over a link without a rate is unpriced
                self._out[link.src] = max(self._out.get(link.src, 0), rate)
                self._into[link.dst] = max(self._into.get(link.dst, 0), rate)

    def rate(self, prefill: str, decode: str) -> int:
        """Bytes per second that the pair cannot exceed; `_NO_BOUND` where nothing is known."""
        if not self.known:
            return _NO_BOUND
        return min(self._out.get(prefill, _NO_BOUND), self._into.get(decode, _NO_BOUND))

    @property
    def fastest(self) -> int:
        """What no pair at all exceeds."""
        ends = (max(rates.values(), default=_NO_BOUND) for rates in (self._out, self._into))
        return min(ends) if self.known else _NO_BOUND

    def seconds(self, rate: int) -> Fraction:
        """The least time at that rate."""
        return Fraction(0) if rate == _NO_BOUND else Fraction(self.nbytes, rate)
