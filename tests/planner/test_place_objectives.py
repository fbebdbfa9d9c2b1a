"""Pools by every objective against brute force: all choices of devices and rank orders, unlike cards, several nodes."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from fleet.placement import PHASES
from planner.admit import admit
from planner.place.candidate import OBJECTIVES, Candidate, Objective, seconds_of, times_of, value_of
from planner.place.classes import classes_of
from planner.place.constraints import Constraints
from planner.place.floors import bound_of, key_of
from planner.place.front import Keeping
from planner.place.pairs import PairSearch, Question
from planner.place.pools import PoolQuestion, PoolSearch
from planner.place.screen import Screen
from tests.planner.fleets import known
from tests.planner.test_place_pairs import small_fleets
from tests.planner.test_place_pools import REQUEST, ask_of, boards

TERA = 10**12
Worker = tuple[str, ...]


def rated_devices(fleet: Fleet, rates: list[int]) -> Fleet:
    """The fleet with so many TB/s of memory and TFLOP/s of fp32, device by device."""
    devices = []
    for each, rate in zip(fleet.devices, itertools.cycle(rates), strict=False):
        memories = tuple(replace(memory, bandwidth=known(rate * TERA)) for memory in each.memories)
        devices.append(replace(each, memories=memories, compute=(("fp32", known(rate * 20 * TERA)),)))
    return replace(fleet, devices=tuple(devices))


def workers(fleet: Fleet, ranks: int) -> list[Worker]:
    """All workers of one kind of card in one domain, in every order of ranks."""
    near, sku = classes_of(fleet).near, {each.id: each.sku for each in fleet.devices}
    return [
        worker for worker in itertools.permutations(sku, ranks)
        if len({sku[name] for name in worker}) == 1
        and (ranks == 1 or frozenset.intersection(*(near.domains[name] for name in worker)))
    ]  # fmt: skip


def sides(every: list[Worker], count: int) -> list[tuple[Worker, ...]]:
    """So many workers without a device in common."""
    return [
        side for side in itertools.combinations(every, count)
        if len({name for worker in side for name in worker}) == sum(map(len, side))
    ]  # fmt: skip


class Brute:
    """Figures of every pool, from the times of whole placements of two workers."""

    def __init__(self, question: PoolQuestion) -> None:
        self.question, self.fleet = question, question.ask.fleet
        self.sizes = next(iter(question.sizes()))
        self.screen = Screen(question.ask, tp=self.sizes.ranks)
        self.facts: dict[tuple[Worker, Worker], Any] = {}
        self.times: dict[tuple[str, Worker], Any] = {}
        near = classes_of(self.fleet).near
        self.names = [each.id for each in self.fleet.devices]
        self.sku = {each.id: each.sku for each in self.fleet.devices}
        self.keeping = Keeping(question.constraints, near, self.names)

    def pair(self, one: Worker, other: Worker) -> Any:
        """(verdict, handoff, TTFT) of two workers; the last two None where unpriced or not admitted."""
        if (one, other) not in self.facts:
            told = self.screen.pair(",".join(one), ",".join(other))
            first, handoff = self.time("prefill", one), seconds_of(told.handoff)
            self.facts[one, other] = (told.verdict, handoff, None if None in (first, handoff) else first + handoff)
        return self.facts[one, other]

    def time(self, phase: str, worker: Worker) -> Any:
        """Seconds of a phase."""
        if (phase, worker) not in self.times:
            self.times[phase, worker] = self.screen.worker_time(phase, ",".join(worker)).seconds
        return self.times[phase, worker]

    def figures(self, prefill: tuple[Worker, ...], decode: tuple[Worker, ...]) -> tuple[Any, ...] | None:
        """(handoff, TTFT, throughput with its sign turned), each as (unpriced, value); None: not admitted."""
        served = []
        nearest = self.question.routing == "nearest"
        for other in decode:
            found = [self.pair(one, other) for one in prefill]
            if nearest:
                good = [each for each in found if each[0] == "admitted"]
                found = [min(good, key=lambda f: (priced(f[1]), priced(f[2])))] if good else found[:1]
            served += found
        if nearest and not all(any(self.pair(one, other)[0] == "admitted" for other in decode) for one in prefill):
            return None
        if any(each[0] != "admitted" for each in served):
            return None
        handoff, ttft = (max(priced(each[at]) for each in served) for at in (1, 2))
        ups = [self.time("prefill", one) for one in prefill]
        downs = [self.time("decode", other) for other in decode]
        rate: Any = (True, 0)
        if all(ups) and all(downs):
            most = min(sum(1 / Fraction(each) for each in side) for side in (ups, downs))
            rate = (False, -most * 24 / self.sizes.devices)
        return handoff, ttft, rate

    def allowed(self, phase: str, ranks: int) -> list[Worker]:
        """Workers of devices that may serve a phase."""
        allows = self.question.constraints.allows
        return [each for each in workers(self.fleet, ranks) if all(allows(name, phase) for name in each)]

    def cost(self, pool: tuple[Worker, ...]) -> tuple[bool, Any]:
        """Of an hour; nothing where there are no prices."""
        prices = self.question.prices
        known = [prices.get(self.sku[name] or "") for worker in pool for name in worker] if prices else []
        return (True, 0) if None in known else (False, sum(price for price in known if price is not None))

    def pools(self) -> list[tuple[Any, ...]]:
        """(kinds of both phases, broken, handoff, TTFT, throughput, cost) of every admitted pool that keeps to the
        rules.
        """
        out = []
        number = {name: at for at, name in enumerate(self.names)}
        ups, downs = (
            sides(self.allowed(phase, ranks), count)
            for phase, ranks, count in zip(PHASES, self.sizes.ranks, self.sizes.workers, strict=True)
        )
        for prefill, decode in itertools.product(ups, downs):
            if {n for w in prefill for n in w} & {n for w in decode for n in w}:
                continue
            numbered = [tuple(number[name] for name in worker) for worker in (*prefill, *decode)]
            if self.keeping.allows(numbered) and (found := self.figures(prefill, decode)) is not None:
                broken, cost = len(self.keeping.broken(numbered)), self.cost((*prefill, *decode))
                out.append((kinds_of(self.sku, prefill, decode), broken, *found, cost))
        return out


def kinds_of(sku: dict[str, Any], *phases: tuple[Worker, ...]) -> tuple[tuple[str, ...], ...]:
    """The kinds of cards of each phase."""
    return tuple(tuple(sorted({sku[worker[0]] for worker in side})) for side in phases)


def priced(seconds: Any) -> tuple[bool, Any]:
    """Unpriced last."""
    return seconds is None, seconds or Fraction(0)


def figures_of(pool: Candidate, *, with_cost: bool = False) -> tuple[Any, ...]:
    """The same of a candidate."""
    found = pool.figures
    assert found.ttft is not None
    rate = (True, 0) if found.throughput is None else (False, -found.throughput)
    cost = priced(found.cost) if with_cost else (False, 0)
    return len(pool.broken), priced(seconds_of(found.handoff)), priced(found.ttft.seconds), rate, cost


def check(question: PoolQuestion) -> None:
    """Every objective's first pool, the front of each pair of kinds, and the mixtures that no pool beats are those of
    brute force.
    """
    brute = Brute(question)
    wanted = brute.pools()
    search = PoolSearch(question)
    try:
        answer = search.timed(search.run())
    except DescriptionError:
        assert not wanted
        return
    assert bool(answer.admitted) == bool(wanted)
    if not wanted:
        return
    assert answer.exact
    assert (answer.bound, answer.cost_bound) == (None, None)
    assert answer.mixtures is None or answer.mixtures[0] == answer.mixtures[1]
    mine: dict[Any, set[Any]] = {}
    for each in answer.admitted:
        told = figures_of(each, with_cost=bool(question.prices))
        mine.setdefault(kinds_of(brute.sku, each.prefill, each.decode), set()).add(told)
    assert {kinds: points for kinds, points in mine.items() if is_pure(kinds)} == pure_fronts(wanted)
    mixed = [each[1:] for each in wanted if not is_pure(each[0])]
    pure = {each[1:] for each in wanted if is_pure(each[0])}
    front = {point for point in front_of(mixed) if not any(beats(other, point) for other in pure)}
    found = [point for kinds, points in mine.items() if not is_pure(kinds) for point in points]
    assert sorted(found) == sorted(front), "each once"
    for objective in OBJECTIVES:
        if objective == "cost" and not question.prices:
            continue
        best = PoolSearch(replace(question, objective=objective)).run().admitted[0]
        at = {"ttft": 3, "throughput": 4, "cost": 5}.get(objective, 2)
        assert (len(best.broken), values(best, objective)) == min((each[1], each[at]) for each in wanted), objective
    for each in answer.admitted[:2]:
        search.shown(each)


def is_pure(kinds: tuple[tuple[str, ...], ...]) -> bool:
    """Whether each phase is of one kind of card."""
    return all(len(side) == 1 for side in kinds)


def beats(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """As good in everything."""
    return all(map(operator.le, one, other))


def front_of(points: Any) -> set[tuple[Any, ...]]:
    """Those that no other one beats."""
    distinct = set(points)
    return {p for p in distinct if not any(q != p and beats(q, p) for q in distinct)}


def pure_fronts(wanted: list[tuple[Any, ...]]) -> dict[Any, set[Any]]:
    """By pair of kinds."""
    held: dict[Any, list[Any]] = {}
    for each in wanted:
        if is_pure(each[0]):
            held.setdefault(each[0], []).append(each[1:])
    return {kinds: front_of(points) for kinds, points in held.items()}


def values(pool: Candidate, objective: Objective) -> tuple[bool, Any]:
    """The value that decides: of equal sizes, the handoff where devices do not."""
    return priced(value_of(pool, "handoff" if objective == "devices" else objective))


SHAPES = [(2, 2), (3, 2), (1, 1, 2), (4, 1)]
RULES: list[dict[str, Any]] = [
    {}, {}, {"required": ("same-node",)}, {"required": ("spread",)}, {"preferred": ("spread",)},
    {"preferred": ("same-domain",)}, {"excluded": frozenset({"b0/gpu:0"})}, {"avoided": frozenset({"b0/gpu:1"})},
    {"prefill": frozenset({"b0/gpu:0", "b1/gpu:0", "b1/gpu:1"})},
]  # fmt: skip


@given(
    shape=st.sampled_from(SHAPES), counts=st.sampled_from([(1, 1), (1, 2), (2, 1), (2, 2), (1, 3)]),
    ranks=st.sampled_from([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)]), links=st.sampled_from([(), (450, 100), (50, 450)]),
    rates=st.sampled_from([[3], [3, 1], [1, 3, 2], [2, 1, 1, 3]]), cards=st.sampled_from(["a", "ab", "aab"]),
    rules=st.sampled_from(RULES), nearest=st.booleans(),
    prices=st.sampled_from([{}, {"a": Fraction(3), "b": Fraction(1)}, {"a": Fraction(3)}]),
)  # fmt: skip
@example(  # a prefill worker that is nobody's nearest says nothing of TTFT
    shape=(4, 1), counts=(2, 1), ranks=(1, 1), links=(100, 100), rates=[2, 1, 1, 3], cards="abb",
    rules={"avoided": frozenset({"b0/gpu:1"})}, nearest=True, prices={"a": Fraction(1), "b": Fraction(2)},
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_objective_finds_the_best_of_all_pools(
    shape, counts, ranks, links, rates, cards, rules, nearest, prices
) -> None:
    fleet = rated_devices(boards(*shape, rates=links), rates)
    skus = itertools.cycle(cards)
    fleet = replace(fleet, devices=tuple(replace(each, sku=next(skus)) for each in fleet.devices))
    if counts[0] * ranks[0] + counts[1] * ranks[1] > len(fleet.devices):
        return
    check(question_of(fleet, counts, ranks, nearest=nearest, constraints=Constraints(**rules), prices=prices))


@given(fleet=small_fleets(), counts=st.sampled_from([(1, 2), (2, 1), (2, 2)]), nearest=st.booleans())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fleets_with_holes_have_their_best_pools_found_too(fleet: Fleet, counts, nearest: bool) -> None:
    if sum(counts) <= len(fleet.devices):
        check(question_of(rated_devices(fleet, [2, 1]), counts, (1, 1), nearest=nearest))


@given(
    fleet=st.sampled_from([boards(4, 2), boards(3, 3, rates=(450, 100)), boards(5, latency=None)]),
    rates=st.sampled_from([[3], [3, 1, 2]]), ranks=st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]), data=st.data(),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_worker_takes_what_it_takes_in_a_whole_placement(fleet: Fleet, rates, ranks, data) -> None:
    ask = ask_of(rated_devices(fleet, rates))
    names = data.draw(st.permutations([each.id for each in fleet.devices]))
    ends = [",".join(names[: ranks[0]]), ",".join(names[ranks[0] : sum(ranks)])]
    screen = Screen(ask, tp=ranks)
    times = times_of(admit(replace(ask, placement=screen.placement(*ends))))
    assert times is not None
    assert [screen.worker_time(*each) for each in zip(PHASES, ends, strict=True)] == [times.prefill, times.decode]
    for phase, whole in zip(PHASES, (times.prefill, times.decode), strict=True):
        least = screen.least_times(phase)["card"]
        assert least is not None
        assert least <= whole.seconds


@given(
    links=st.sampled_from([(), (450, 100), (50, 450)]), rates=st.sampled_from([[3], [1, 3, 2], [2, 1, 1, 3]]),
    counts=st.sampled_from([(1, 2), (2, 2), (2, 1)]), most=st.integers(0, 30), nearest=st.booleans(),
    objective=st.sampled_from(["handoff", "ttft", "throughput"]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_search_that_ends_early_tells_a_bound_between_which_and_its_pool_the_best_one_lies(
    links, rates, counts, most: int, nearest: bool, objective: Objective
) -> None:
    fleet = rated_devices(boards(3, 2, rates=links), rates)
    question = question_of(fleet, counts, (1, 1), nearest=nearest, objective=objective)
    at = {"ttft": 3, "throughput": 4}.get(objective, 2)
    best = min(each[at] for each in Brute(question).pools())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("planner.place.fronts.MOST_STEPS", most)
        answer = PoolSearch(question).run()
    first = answer.admitted[0]
    bound = first.bound if objective != "throughput" or first.bound is None else -first.bound
    assert answer.bound == first.bound
    assert values(first, objective) == best if first.proven else (False, bound) <= best <= values(first, objective)


@given(
    fleet=small_fleets(), most=st.integers(0, 40), top=st.integers(1, 3), objective=st.sampled_from(list(OBJECTIVES)),
    rules=st.sampled_from([{}, {"preferred": ("spread",)}, {"avoided": frozenset({"n0/gpu:0"})}]),
)  # fmt: skip
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_pairs_in_the_order_of_their_bounds_are_the_best_ones_or_the_bound_is_told(
    fleet: Fleet, most: int, top: int, objective: Objective, rules: dict[str, Any]
) -> None:
    if len(fleet.devices) < 2:
        return
    question = Question(
        ask=ask_of(rated_devices(fleet, [2, 1, 3])), objective=objective, top=top, constraints=Constraints(**rules),
        prices={"a": Fraction(3), "b": Fraction(1)},
    )  # fmt: skip
    whole = PairSearch(question).run()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("planner.place.pairs.FEW_CLASSES", 0)
        patched.setattr("planner.place.pairs.most_classes", lambda fleet: most)
        some, best = PairSearch(question).run(), PairSearch(question).best()
    wanted = [key_of(each, objective) for each in whole.admitted]
    found = [key_of(each, objective) for each in some.admitted]
    if some.exact:
        assert found[:top] == wanted[:top]
        assert (best is not None) == bool(wanted)
        if best is not None and most >= len(fleet.devices) ** 2:
            assert key_of(best, objective) == wanted[0]
    elif some.bound is not None and wanted:
        left = [bound_of(objective, key) for key in wanted if key not in found]
        known_ones = [value for value in left if value is not None]
        if objective == "throughput":
            assert all(some.bound >= value for value in known_ones)
        elif objective in ("handoff", "ttft"):
            assert all(some.bound <= value for value in known_ones)


def question_of(fleet: Fleet, counts: tuple[int, int], ranks: tuple[int, int], *, nearest: bool, **more: Any) -> Any:
    """One size."""
    return PoolQuestion(
        ask=ask_of(fleet, request=REQUEST), prefill_workers=(counts[0],), decode_workers=(counts[1],),
        prefill_tp=(ranks[0],), decode_tp=(ranks[1],), routing="nearest" if nearest else "any", **more,
    )  # fmt: skip
