"""Chrome traces: no two events of a thread cross. Histories: statistics beside slow oracles."""

from __future__ import annotations

import json
import statistics
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from scenarios.reports.history import Seen, history_document, mann_kendall, quantile, theil_sen
from scenarios.reports.history_text import history_text, percent
from scenarios.reports.trace import trace_text
from tests.scenarios.made import plan
from tests.scenarios.reports.report_cases import HOSTILE, proof, records, run

Document = dict[str, Any]


def events(text: str) -> list[Document]:
    """The complete events of a trace, after holding it to the format."""
    document = json.loads(text)
    assert document["displayTimeUnit"] == "ns"
    named = set()
    found = []
    for event in document["traceEvents"]:
        assert event["ph"] in ("M", "X")
        if event["ph"] == "M":
            named.add((event["pid"], event["tid"]))
            assert isinstance(event["args"]["name"], str)
        else:
            assert (event["pid"], event["tid"]) in named
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            found.append(event)
    return found


def crossings(found: list[Document]) -> int:
    """Pairs of one thread that overlap, in picoseconds."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in found:
        start = round(event["ts"] * 10**6)
        threads.setdefault((event["pid"], event["tid"]), []).append((start, start + round(event["dur"] * 10**6)))
    return sum(a[0] < b[1] and b[0] < a[1] for spans in threads.values() for a, b in combinations(spans, 2))


def test_a_trace_of_plan_and_run_is_two_processes_with_their_own_times() -> None:
    found = events(trace_text([("plan", plan(), "plan.json"), ("run", run(), HOSTILE)]))
    observed = [event for event in found if event["pid"] == 2]
    spans = run()["spans"]
    assert [(event["ts"] * 1000, round(event["dur"] * 1000)) for event in observed] == [
        (span["start_ns"], span["end_ns"] - span["start_ns"]) for span in spans
    ]
    predicted = sum(event["dur"] for event in found if event["pid"] == 1 and event["name"] == "handoff")
    assert predicted == pytest.approx(plan()["handoff"]["seconds"] * 1e6, abs=1e-5)
    assert crossings(found) == 0


def test_requests_that_overlap_on_a_device_take_slots() -> None:
    found = events(trace_text([("records", records(), "r")]))
    assert crossings(found) == 0
    prefills = {event["name"]: event for event in found if event["name"].startswith("prefill")}
    assert prefills["prefill 0"]["tid"] != prefills["prefill 1"]["tid"]
    assert prefills["prefill 2"]["tid"] == prefills["prefill 0"]["tid"]
    assert round(prefills["prefill 0"]["dur"] * 10**6) == 5_000_001
    assert not [event for event in found if event["name"] in ("handoff 2", "decode 2")]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=30))
def test_no_requests_cross_in_a_slot_and_no_more_slots_are_used_than_overlap(spans: list[tuple[int, int]]) -> None:
    one = records()["records"][2]
    made = [
        one | {"request": n, "prefill_start_ps": a, "prefill_end_ps": a + length} for n, (a, length) in enumerate(spans)
    ]
    found = events(trace_text([("records", {"records": made}, "r")]))
    assert len(found) == len(spans)
    assert crossings(found) == 0
    deepest = max((sum(a <= t < a + max(length, 1) for a, length in spans) for t in range(72)), default=0)
    assert len({event["tid"] for event in found}) <= deepest


def test_a_document_without_times_makes_no_trace() -> None:
    with pytest.raises(DescriptionError, match="no timeline"):
        trace_text([("proof", proof(), "proof.json")])


FLOATS = st.lists(st.integers(-50, 50).map(lambda n: n / 8), min_size=2, max_size=12)


@given(FLOATS)
def test_quartiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=4, method="inclusive")
    found = [quantile(sorted(values), Fraction(share, 4)) for share in (1, 2, 3)]
    assert found == pytest.approx(expected)


@given(FLOATS, st.integers(-3, 3))
def test_a_slope_moves_with_a_line_that_is_added(values: list[float], slope: int) -> None:
    points = list(enumerate(values))
    moved = [(at, value + slope * at) for at, value in points]
    assert theil_sen(moved) == pytest.approx((theil_sen(points) or 0) + slope)


def test_the_test_of_trend_gives_the_figures_of_its_book() -> None:
    """S = 45 of ten rising values: variance 125, z = 44 / sqrt(125)."""
    assert mann_kendall(list(range(10))) == pytest.approx(8.303e-05, rel=1e-3)
    assert mann_kendall([1.0] * 9) == 1.0
    assert mann_kendall([1, 1, 2, 2, 3, 3, 4, 4]) == mann_kendall([4, 4, 3, 3, 2, 2, 1, 1])


def on_device(handoff_ns: int, extra_bytes: int = 0) -> Document:
    """A run on cards whose handoff took so long and whose witness saw so much more than predicted."""
    document = json.loads(json.dumps(run())) | {"tier": "on-device"}
    for row in document["comparison"]["rows"]:
        row["observed_bytes"] = row["predicted_bytes"] + (extra_bytes if row["phase"] == "handoff" else 0)
    k, v = (span for span in document["spans"] if span["phase"] == "handoff")
    k["end_ns"], v["end_ns"] = k["start_ns"] + handoff_ns, v["start_ns"]
    made: Document = document
    return made


def classes(document: Document) -> dict[tuple[str, str], Document]:
    (group,) = document["groups"]
    return {(row["class"], row["figure"]): row for row in group["classes"]}


def test_errors_of_bytes_and_seconds_are_shares_of_what_was_predicted() -> None:
    planned = plan()
    seconds, nbytes = planned["handoff"]["seconds"], planned["handoff"]["bytes"]
    seen = [Seen(source=str(n), document=on_device(20_000 + n, 100 * n), plan=planned) for n in range(3)]
    found = classes(history_document(seen))
    assert found["handoff p2p", "bytes"]["errors"] == pytest.approx([0, 200 / nbytes, 400 / nbytes])
    expected = [((20_000 + n) * 1e-9 - seconds) / seconds for n in range(3)]
    assert found["handoff p2p", "seconds"]["errors"] == pytest.approx(expected, rel=1e-9)
    assert found["handoff p2p", "seconds"]["drift"] == "too few"


def test_a_drift_is_found_and_noise_is_none() -> None:
    planned = plan()
    rising = [Seen(source="r", document=on_device(20_000 + 500 * n), plan=planned) for n in range(9)]
    assert classes(history_document(rising))["handoff p2p", "seconds"]["drift"] == "up"
    falling = [Seen(source="r", document=on_device(20_000 - 500 * n), plan=planned) for n in range(9)]
    assert classes(history_document(falling))["handoff p2p", "seconds"]["drift"] == "down"
    noise = [Seen(source="r", document=on_device(20_000 + 500 * (n % 2)), plan=planned) for n in range(9)]
    assert classes(history_document(noise))["handoff p2p", "seconds"]["drift"] == "none"


def test_an_emulated_run_has_no_error_of_seconds_and_an_unseen_edge_none_of_bytes() -> None:
    document = on_device(1) | {"tier": "emulated"}
    for row in document["comparison"]["rows"]:
        row["observed_bytes"] = None
    found = classes(history_document([Seen(source="r", document=document, plan=plan())]))
    assert all(row["median"] is None and row["errors"] == [None] for row in found.values())
    assert all(row["unwitnessed"] == 1 for row in found.values())
    assert "0 %" not in history_text(history_document([Seen(source="r", document=document)])).replace("100 %", "")


def test_percent_says_zero_of_nothing_but_zero() -> None:
    assert [percent(error) for error in (0, 1e-9, None, -0.5)] == ["0 %", "+1e-07 %", "-", "-50 %"]


def test_runs_of_two_plans_are_two_groups_and_of_one_fleet_one() -> None:
    other = run() | {"plan_id": "0" * 64}
    seen = [Seen(source="a", document=run()), Seen(source="b", document=other)]
    assert len(history_document(seen)["groups"]) == 2
    fleet = {"inputs": {"fleet": {"digest": "1" * 64, "name": "f"}}}
    seen = [Seen(source=each.source, document=each.document | fleet) for each in seen]
    assert len(history_document(seen, by="fleet")["groups"]) == 1
