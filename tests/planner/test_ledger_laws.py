"""Laws of the one admission: monotone, blind to names, never on an unknown, sums that hold, no time for a refusal."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.machine import Fleet, Quantity
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.plan import prediction_document
from planner.request import Request
from tests.planner.fleets import known
from tests.planner.test_counterfactual import MODEL, asks, mesh

ORDER = {"admitted": 0, "unverified": 1, "refused": 2}


def shortfalls(admission: Admission) -> dict[str, int]:
    """total - budget of each device."""
    assert admission.prediction is not None
    return {
        f.arena: f.total_bytes - budget
        for f in admission.prediction.footprints
        if (budget := admission.budgets[f.arena].budget_bytes) is not None
    }


def with_capacity(fleet: Fleet, more: int) -> Fleet:
    devices = tuple(
        replace(d, memories=(replace(d.memories[0], capacity=known((d.memory.capacity.value or 0) + more)),))
        for d in fleet.devices
    )
    return replace(fleet, devices=devices)


@settings(deadline=None, max_examples=80)
@given(asks(), st.integers(1, 500_000))
def test_more_capacity_only_helps(ask: Ask, more: int) -> None:
    first, second = admit(ask), admit(replace(ask, fleet=with_capacity(ask.fleet, more)))
    assert ORDER[second.verdict] <= ORDER[first.verdict]
    before, after = shortfalls(first), shortfalls(second)
    assert all(after[name] <= before[name] for name in before)


@settings(deadline=None, max_examples=80)
@given(asks(), st.integers(1, 5), st.sampled_from(["batch", "positions"]))
def test_more_sequences_and_a_longer_context_only_hurt(ask: Ask, more: int, field: str) -> None:
    request = ask.request
    now = getattr(request, field)
    if field == "positions":
        now = now or admit(ask).workload.positions  # type: ignore[union-attr]  # understood
        more = min(more, 512 - now)
        ask = replace(ask, request=replace(request, positions=now))
    first = admit(ask)
    grown: dict[str, Any] = {field: now + more}
    second = admit(replace(ask, request=replace(ask.request, **grown)))
    assert ORDER[second.verdict] >= ORDER[first.verdict]
    before, after = shortfalls(first), shortfalls(second)
    assert all(after[name] >= before[name] for name in before)


def renamed(ask: Ask, names: dict[str, str]) -> Ask:
    fleet = replace(
        ask.fleet, devices=tuple(replace(d, id=names[d.id]) for d in ask.fleet.devices),
        links=tuple(replace(k, src=names.get(k.src, k.src), dst=names.get(k.dst, k.dst)) for k in ask.fleet.links),
        digest="",
    )  # fmt: skip
    placed = ask.placement
    return replace(ask, fleet=fleet, placement=Placement(prefill=names[placed.prefill], decode=names[placed.decode]))


@settings(deadline=None, max_examples=40)
@given(asks(), st.permutations(["west:3", "q:0", "a/gpu:9", "zz", "gpu:77"]))
def test_renaming_devices_changes_names_only(ask: Ask, new: list[str]) -> None:
    names = {d.id: new[number] for number, d in enumerate(ask.fleet.devices)}
    first, second = admit(ask), admit(renamed(ask, names))
    assert first.verdict == second.verdict
    assert [(r.code, names.get(r.device or "", r.device), r.shortfall_bytes) for r in first.reasons] == [
        (r.code, r.device, r.shortfall_bytes) for r in second.reasons
    ]
    assert {names.get(name, name): short for name, short in shortfalls(first).items()} == shortfalls(second)
    assert first.prediction is not None
    assert second.prediction is not None
    moved = [(row.tensor, row.bytes, row.copies, row.seconds) for row in first.prediction.rows]
    assert sorted(map(str, moved)) == sorted(
        str((row.tensor, row.bytes, row.copies, row.seconds)) for row in second.prediction.rows
    )


UNKNOWNS = ("capacity", "in use", "peer access")


def without(ask: Ask, what: str) -> Ask:
    """The same question with one figure unknown that it needs."""
    fleet = ask.fleet
    first = fleet.devices[0]
    if what == "capacity":
        first = replace(first, memories=(replace(first.memories[0], capacity=Quantity()),))
    elif what == "in use":
        first = replace(first, in_use=None)
    else:
        links = tuple(replace(k, peer_access="unknown") if k.peer_access else k for k in fleet.links)
        return replace(ask, fleet=replace(fleet, links=links, digest=""))
    return replace(ask, fleet=replace(fleet, devices=(first, *fleet.devices[1:]), digest=""))


@pytest.mark.parametrize("what", UNKNOWNS)
@settings(deadline=None, max_examples=30)
@given(ask=asks())
def test_nothing_is_admitted_on_an_unknown(what: str, ask: Ask) -> None:
    assert admit(without(ask, what)).verdict != "admitted"


@settings(deadline=None, max_examples=40)
@given(asks())
def test_no_time_to_a_token_is_told_of_what_is_not_admitted(ask: Ask) -> None:
    admission = admit(ask)
    time = prediction_document(admission)["time"]
    if admission.verdict != "admitted":
        assert (time["ttft_s"], time["tpot_s"]) == (None, None)


def test_a_share_of_the_free_and_of_the_total_differ_where_weights_are_heavy() -> None:
    ask = Ask(
        fleet=mesh([1_250_000, 1_250_000]), model=MODEL, request=Request(prompt_tokens=14, steps=80),
        placement=Placement(prefill="gpu:0", decode="gpu:1"), utilization=Fraction(9, 10),
    )  # fmt: skip
    assert admit(replace(ask, share_of="total")).verdict == "refused"
    assert admit(replace(ask, share_of="free")).verdict == "admitted"
