"""Rules, prices and objectives of `place` against figures of whole admissions, with rules written down anew."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.place.candidate import OBJECTIVES, Candidate, pareto, times_of
from planner.place.classes import classes_of
from planner.place.constraints import Constraints, contradictions
from planner.place.front import Keeping
from planner.place.lost import why_lost
from planner.place.pairs import PairSearch, Question
from tests.planner.test_place_objectives import rated_devices
from tests.planner.test_place_pairs import ask_of, small_fleets
from tests.planner.test_place_pools import boards

AXES = ("handoff", "ttft", "throughput", "devices", "cost")
TIES = {
    "handoff": ("devices", "cost"), "ttft": ("handoff", "devices", "cost"),
    "throughput": ("handoff", "devices", "cost"), "devices": ("handoff", "cost"), "cost": ("handoff", "devices"),
}  # fmt: skip
"""What the page of `place` says of ties."""
WORDS = {
    "handoff": "handoff", "ttft": "time to the first token", "throughput": "throughput", "devices": "devices",
    "cost": "cost an hour",
}  # fmt: skip


def node_of(fleet: Fleet, name: str) -> str:
    """The node that a device is in."""
    (device,) = (each for each in fleet.devices if each.id == name)
    (host,) = (each for each in fleet.hosts if each.id == device.host)
    return host.node or host.id


def domains_of(fleet: Fleet, name: str) -> set[str]:
    """Domains that the fleet describes; of a device in none, all that direct links lead to, the network's not."""
    named = {domain.id for domain in fleet.domains if name in domain.members}
    if named:
        return named
    relays = {each.id for each in (*fleet.devices, *fleet.switches)}
    joins = [
        {link.src, link.dst} for link in fleet.links
        if link.peer_access == "direct" and link.kind != "net" and {link.src, link.dst} <= relays
    ]  # fmt: skip
    held = {name}
    while True:
        more = {end for ends in joins if ends & held for end in ends}
        if more <= held:
            break
        held |= more
    described = {member for domain in fleet.domains for member in domain.members}
    group = sorted(end for end in held if end not in described and any(end == each.id for each in fleet.devices))
    return {f"with {group[0]}"} if any(name in ends for ends in joins) else set()


def keeps(fleet: Fleet, rule: str, workers: list[tuple[str, ...]]) -> bool:
    """Whether workers keep to a rule, as the page of `place` says it."""
    names = [name for worker in workers for name in worker]
    if rule == "same-domain":
        return bool(set.intersection(*(domains_of(fleet, name) for name in names)))
    nodes = [{node_of(fleet, name) for name in worker} for worker in workers]
    if rule == "same-node":
        return len(set.union(*nodes)) == 1
    return all(not one & other for one, other in itertools.combinations(nodes, 2))


def broken(fleet: Fleet, constraints: Constraints, workers: list[tuple[str, ...]]) -> int:
    """Preferences that workers break."""
    names = [name for worker in workers for name in worker]
    rules = sum(not keeps(fleet, rule, workers) for rule in constraints.preferred)
    return rules + sum(name in constraints.avoided for name in names)


def figures(ask: Ask, prices: dict[str, Fraction], prefill: str, decode: str) -> dict[str, Any] | None:
    """Least is best; None: not admitted. Of the admission of the placement itself."""
    admission = admit(replace(ask, placement=Placement(prefill=prefill, decode=decode)))
    if admission.verdict != "admitted":
        return None
    times = times_of(admission)
    assert times is not None
    assert admission.workload is not None
    sku = {each.id: each.sku for each in ask.fleet.devices}
    priced = [prices.get(sku[name] or "") for name in (prefill, decode)]
    rows = any(row.phase == "handoff" for row in admission.prediction.rows)  # type: ignore[union-attr]  # admitted
    phases = (times.prefill.seconds, times.decode.seconds)
    rate = None
    if all(phases):
        rate = -Fraction(admission.workload.decode_passes + 1) / max(phases) / 2  # type: ignore[type-var]  # no None
    return {
        "handoff": times.handoff.seconds if rows else None, "ttft": None if times.ttft is None else times.ttft.seconds,
        "throughput": rate, "devices": 2, "cost": None if None in priced else sum(p for p in priced if p is not None),
    }  # fmt: skip


def key(told: dict[str, Any], bad: int, objective: str) -> tuple[Any, ...]:
    """Preferences, the objective, ties: what is unpriced last."""
    return bad, *((told[name] is None, told[name] or 0) for name in (objective, *TIES[objective]))


RULES = st.lists(st.sampled_from(["same-node", "same-domain", "spread"]), unique=True, max_size=1).map(tuple)


@st.composite
def constraints_on(draw: st.DrawFn, fleet: Fleet) -> Constraints:
    """Hard and soft rules on some devices of a fleet."""
    names = [each.id for each in fleet.devices]
    some = st.sets(st.sampled_from(names), max_size=2).map(frozenset)
    only = st.none() | st.sets(st.sampled_from(names), min_size=1).map(frozenset)
    return Constraints(
        required=draw(RULES), preferred=draw(RULES), excluded=draw(some), avoided=draw(some), prefill=draw(only),
        decode=draw(only),
    )  # fmt: skip


@given(fleet=small_fleets(), data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_best_pairs_reasons_and_the_pareto_set_are_those_of_admitting_every_pair(fleet: Fleet, data: Any) -> None:
    fleet = rated_devices(fleet, data.draw(st.sampled_from([[2], [2, 1, 3]])))
    constraints = data.draw(constraints_on(fleet))
    prices = data.draw(st.sampled_from([{}, {"a": Fraction(3), "b": Fraction(1)}, {"b": Fraction(2)}]))
    if len(fleet.devices) < 2 or contradictions(constraints, of_pair=True):
        return
    ask = ask_of(fleet)
    wanted: dict[tuple[str, str], tuple[dict[str, Any], int]] = {}
    left = 0
    for pair in itertools.permutations([each.id for each in fleet.devices], 2):
        ends = [(name,) for name in pair]
        allowed = all(constraints.allows(name, phase) for name, phase in zip(pair, ("prefill", "decode"), strict=True))
        if allowed and all(keeps(fleet, rule, ends) for rule in constraints.required):
            left += 1
            if (told := figures(ask, prices, *pair)) is not None:
                wanted[pair] = (told, broken(fleet, constraints, ends))
    for objective in OBJECTIVES:
        question = Question(ask=ask, constraints=constraints, prices=prices, objective=objective)
        try:
            answer = PairSearch(question).run()
        except DescriptionError:
            assert not left
            return
        assert (answer.considered, answer.exact) == (left, True)
        found = [(each.prefill[0][0], each.decode[0][0]) for each in answer.admitted]
        assert sum(each.alike or 0 for each in answer.admitted) == len(wanted)
        keys = [key(*wanted[pair], objective) for pair in found]
        assert keys == sorted(keys)
        assert set(keys) == {key(*each, objective) for each in wanted.values()}
        for each, pair in zip(answer.admitted[1:], found[1:], strict=True):
            check_reason(answer.admitted[0], each, wanted[found[0]], wanted[pair], objective)
        check_pareto(answer.admitted, [wanted[pair][0] for pair in found], [each for each, _ in wanted.values()])


def check_reason(first: Candidate, other: Candidate, best: Any, mine: Any, objective: Any) -> None:
    """The reason names the first thing in which the other is worse, with its size."""
    words = why_lost(first, other, objective)
    if mine[1] > best[1]:
        assert words.startswith("breaks what is preferred: ")
        assert any(words.count(each) for each in other.broken)
        return
    for name in (objective, *TIES[objective]):
        one, another = mine[0][name], best[0][name]
        if one == another:
            continue
        before = "" if name == objective else f"as good in {WORDS[objective]}, but "
        assert words.startswith(before)
        said = words.removeprefix(before)
        if one is None:
            assert said == f"its {WORDS[name]} is unpriced"
        elif name in ("handoff", "ttft"):
            assert one > another
            ratio = f" {float(one / another):.3g} times as long:" if another else ""
            assert said.startswith(f"{WORDS[name]}{ratio}")
        elif name == "cost":
            assert said == f"costs {float(one):.4g} an hour against {float(another):.4g}"
        else:
            assert name == "throughput"
            assert said.startswith(f"{float(-one):.4g} tokens a second and device against {float(-another):.4g}")
        return
    slack = first.figures.slack_bytes, other.figures.slack_bytes
    if None not in slack and slack[1] < slack[0]:  # type: ignore[operator]  # no None
        assert "less room in memory" in words
    else:
        assert words.startswith("as good in every figure")


def check_pareto(admitted: Any, found: list[dict[str, Any]], every: list[dict[str, Any]]) -> None:
    """Marked are exactly those that no pair of the fleet beats; figures that are not priced for all do not count."""
    axes = [name for name in AXES if all(each[name] is not None for each in every)]
    points = [tuple(each[name] for name in axes) for each in every]
    for marked, each in zip(pareto(admitted), found, strict=True):
        mine = tuple(each[name] for name in axes)
        assert marked is not any(other != mine and all(map(operator.le, other, mine)) for other in points)


@given(
    fleet=st.one_of(small_fleets(), st.sampled_from([boards(2, 2), boards(3, 1), boards(1, 1, 2)])), data=st.data(),
    joined=st.booleans(),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_groups_of_workers_keep_to_rules_as_the_page_says(fleet: Fleet, data: Any, joined: bool) -> None:
    if joined and len(fleet.hosts) > 1:  # two hosts under one operating system
        hosts = tuple(replace(host, node="os" if at < 2 else None) for at, host in enumerate(fleet.hosts))
        fleet = replace(fleet, hosts=hosts)
    names = data.draw(st.permutations([each.id for each in fleet.devices]))
    sizes = data.draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
    workers, at = [], 0
    for size in sizes:
        workers.append(tuple(names[at : at + size]))
        at += size
    workers = [worker for worker in workers if worker]
    preferred = ("same-node", "same-domain", "spread")
    constraints = Constraints(preferred=preferred, avoided=frozenset(names[:1]))
    numbers = [each.id for each in fleet.devices]
    keeping = Keeping(constraints, classes_of(fleet).near, numbers)
    numbered = [tuple(map(numbers.index, worker)) for worker in workers]
    for rule in preferred:
        assert keeping.keeps(rule, numbered) is keeps(fleet, rule, workers), rule
    assert len(keeping.broken(numbered)) == broken(fleet, constraints, workers)
