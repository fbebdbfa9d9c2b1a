"""True to the granule: the admitted maximum runs inside its fence; one granule more is refused, and fails in a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.run import Executor
from fleet.checkpoints import seeded_model
from fleet.errors import DescriptionError, FenceError
from fleet.machine import Fleet
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.counterfactual import context
from planner.plan import make_orders
from planner.request import Request
from tests.executor.requests import PROMPT, embedded
from tests.planner.fleets import pair

GRANULE = 4096
CAPACITY = 1_500_000
RUNTIME = 8192
CASES = {
    "direct": {},
    "staged": {"peer": "staged"},
    "packed": {"layout": "packed16"},
    "host": {"attention": "host"},
}


def asked(positions: int, fleet: Fleet, *, layout: str = "plain", attention: str = "device") -> Ask:
    return Ask(
        fleet=fleet, model=seeded_model(), placement=Placement(prefill="gpu:0", decode="gpu:1"),
        request=Request(prompt_ids=PROMPT, steps=20, positions=positions, layout=layout, attention=attention),
    )  # fmt: skip


def fleet_of(capacity: int, peer: str = "direct") -> Fleet:
    return pair(peer, capacity=capacity, granule=GRANULE, runtime=RUNTIME)


def total(admission: Admission) -> int:
    assert admission.prediction is not None
    return admission.prediction.footprints[0].total_bytes


def largest(case: dict[str, str]) -> tuple[Ask, Admission]:
    """The longest cache that a device of CAPACITY admits, cut down to exactly what it holds."""
    peer = case.get("peer", "direct")
    more = {key: value for key, value in case.items() if key != "peer"}
    ask = asked(256, fleet_of(CAPACITY, peer), **more)
    admission = admit(ask)
    if admission.verdict == "refused":
        [change] = context(admission)
        ask = change.ask
    else:
        ask = asked(200, fleet_of(CAPACITY, peer), **more)
    admission = admit(ask)
    exact = -(-total(admission) * 10 // 9)  # the budget is 0.9 of it
    ask = replace(ask, fleet=fleet_of(exact, peer))
    return ask, admit(ask)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_admitted_maximum_runs_and_one_granule_more_is_refused_and_fails(case: dict[str, str]) -> None:
    ask, admission = largest(case)
    assert admission.verdict == "admitted"
    assert [b.budget_bytes for b in admission.budgets.values() if b.budget_bytes is not None] == [total(admission)] * 2
    orders = make_orders(admission)
    with Executor(orders, embedded()) as executor:
        facts = executor.run()
    for fence in orders.fences:
        high = dict(facts.resident)[fence.arena]
        assert fence.bytes - GRANULE < high <= fence.bytes

    less = replace(
        ask, fleet=fleet_of(ask.fleet.devices[0].memory.capacity.value - GRANULE, case.get("peer", "direct"))
    )  # type: ignore[operator]  # known
    assert admit(less).verdict == "refused"

    larger = one_granule_larger(ask)
    assert admit(larger).verdict == "refused"
    there = admit(replace(larger, fleet=fleet_of(2 * CAPACITY, case.get("peer", "direct"))))
    assert total(there) >= total(admission) + GRANULE
    beyond = replace(make_orders(there), fences=orders.fences)
    with pytest.raises(DescriptionError, match="the fence is"):
        Executor(beyond, embedded())


def one_granule_larger(ask: Ask) -> Ask:
    """The shortest longer cache whose total is a granule or more above."""
    wide = replace(ask, fleet=fleet_of(2 * CAPACITY))
    here = total(admit(wide))
    positions = ask.request.positions
    assert positions is not None
    for count in range(positions + 1, 257):
        longer = replace(ask, request=replace(ask.request, positions=count))
        if total(admit(replace(longer, fleet=wide.fleet))) > here:
            return longer
    raise AssertionError("no longer cache of this model is a granule larger")


def test_an_allocation_of_one_granule_beyond_the_fence_fails_in_the_arena() -> None:
    _, admission = largest({})
    orders = make_orders(admission)
    with Executor(orders, embedded()) as executor:
        executor.run()
        device = executor.machine.device_of("prefill")
        with pytest.raises(FenceError, match="short"):
            executor.machine.backend.alloc(device, "one more", (GRANULE // 4,), "fp32")
