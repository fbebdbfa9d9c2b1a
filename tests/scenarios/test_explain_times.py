"""explain works times out again from rates, latencies, bytes and copies, and tells a plan whose parts disagree."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fleet.errors import DescriptionError
from scenarios.explain import explain, explanation_text
from scenarios.planning import make_plan
from scenarios.table import Paint
from scenarios.times_text import times_block
from scenarios.together import explain_together
from scenarios.wanted import prepare, wanted_of

Document = dict[str, Any]


@pytest.fixture(scope="module")
def plans() -> dict[str, Document]:
    return {name: make_plan(prepare(wanted_of(name, {}))) for name in ("two-gpu", "two-gpu-staged")}


def broken(plan: Document) -> set[str]:
    return {each.subject for each in explain(plan, None) if not each.follows}


@pytest.mark.parametrize("name", ["two-gpu", "two-gpu-staged"])
def test_every_time_of_a_plan_follows_from_what_stands_beside_it(name: str, plans: dict[str, Document]) -> None:
    plan = plans[name]
    told = {each.subject: each for each in explain(plan, None)}
    assert not broken(plan)
    for row in plan["waybill"]:
        derived = told[f"{row['phase']} {row['tensor']} {row['src']}->{row['dst']} time"]
        assert len(derived.terms) == len(row["legs"])
        assert "unpriced" in str(derived.figure) or " s" in str(derived.figure) or "us" in str(derived.figure)
    assert told["handoff time"].terms


CHANGES: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "a row's time": (("waybill", 4, "seconds"), 1.0, "handoff k gpu:0->gpu:1 time"),
    "a leg's time": (("waybill", 4, "legs", 0, "seconds"), 1.0, "handoff k gpu:0->gpu:1 time"),
    "a rate": (("waybill", 0, "legs", 0, "bandwidth_bytes_per_s"), 10**9, "stage weights host->gpu:0 time"),
    "a latency": (("waybill", 0, "legs", 0, "latency_s"), 1e-3, "stage weights host->gpu:0 time"),
    "no rate": (("waybill", 0, "legs", 0, "bandwidth_bytes_per_s"), None, "stage weights host->gpu:0 time"),
    "the handoff's time": (("handoff", "seconds"), 1.0, "handoff time"),
    "the handoff unpriced": (("handoff", "seconds"), None, "handoff time"),
    "the handoff's payload": (("handoff", "payload_bytes"), 1, "handoff payload"),
    "the handoff's copies": (("handoff", "copies"), 1, "handoff copies"),
    "the handoff's legs": (("handoff", "legs", 0, "bytes"), 1, "handoff legs"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_a_figure_that_does_not_follow_is_told(case: str, plans: dict[str, Document]) -> None:
    path, value, subject = CHANGES[case]
    plan = copy.deepcopy(plans["two-gpu"])
    here: Any = plan
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = value
    assert subject in broken(plan)


HUGE = (("waybill", 0, "legs", 0, "seconds"), ("waybill", 0, "legs", 0, "latency_s"), ("handoff", "seconds"))


@pytest.mark.parametrize("path", HUGE)
def test_a_number_beyond_all_times_breaks_nothing(path: tuple[Any, ...], plans: dict[str, Document]) -> None:
    plan = copy.deepcopy(plans["two-gpu"])
    here: Any = plan
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = 1e300
    assert explanation_text(plan, explain(plan, None))
    assert broken(plan)


def test_a_plan_of_an_older_version_has_no_rates_and_breaks_nothing(plans: dict[str, Document]) -> None:
    plan = copy.deepcopy(plans["two-gpu"])
    for row in plan["waybill"]:
        for leg in row["legs"]:
            for name in ("bandwidth_bytes_per_s", "latency_s", "provenance", "verified"):
                leg.pop(name, None)
    assert not broken(plan)


@pytest.mark.parametrize("subject", ["ttft", "tpot"])
def test_why_there_is_no_time_is_explained(subject: str, plans: dict[str, Document]) -> None:
    refused = make_plan(prepare(wanted_of("two-gpu-tight", {})))
    [told] = explain(refused, subject)
    assert (told.figure, told.terms) == ("unpriced", ("the plan is refused, so it has none",))
    unpriced = make_plan(prepare(wanted_of(None, {"fleet": "gpu-and-cpu", "prefill": "cpu:0", "decode": "gpu:0"})))
    assert unpriced["time"]["ttft_s"] is None
    [told] = explain(unpriced, "ttft")
    assert told.terms == ("; ".join(unpriced["time"]["unpriced"]),)


def test_no_time_is_told_of_a_refused_plan_among_several() -> None:
    refused = make_plan(prepare(wanted_of("two-gpu-tight", {})))
    with pytest.raises(DescriptionError, match="plan 1, 2 is refused"):
        explain_together([refused, refused])


def test_a_roofline_says_whose_rates_it_used() -> None:
    plan = make_plan(prepare(wanted_of("two-gpu", {"rates": "observed"})))
    assert {row["rates"] for row in plan["time"]["used"]} == {"declared"}
    assert any("roofline of declared rates" in line for line in times_block(plan["time"], Paint(on=False)))
