"""Verdicts at the byte, and refusals whose fix is admitted when it is applied."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError, PlacementError
from fleet.machine import Budget, Figure, Fleet, Quantity
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.fixes import explain_refusal, offered
from planner.request import Request, resolve
from tests.planner.fleets import device, known, llama2c, pair

SPLIT = Placement(prefill="gpu:0", decode="gpu:1")


def ask(fleet: Fleet, **request: object) -> Ask:
    asked = Request(**({"prompt_tokens": 14, "steps": 40} | request))  # type: ignore[arg-type]  # table-driven
    return Ask(fleet=fleet, model=llama2c(), request=asked, placement=SPLIT, utilization=Fraction(1))


def needed() -> int:
    prediction = admit(ask(pair(granule=1))).prediction
    assert prediction is not None
    return prediction.footprints[0].total_bytes


def codes(admission: Admission) -> list[tuple[str, str | None, int | None]]:
    return [(r.code, r.device, r.shortfall_bytes) for r in admission.reasons]


@pytest.mark.parametrize(("spare", "verdict"), [(-1, "refused"), (0, "admitted"), (1, "admitted")])
def test_capacity_decides_at_the_byte(spare: int, verdict: str) -> None:
    admission = admit(ask(pair(granule=1, decode_capacity=needed() + spare)))
    assert admission.verdict == verdict
    assert codes(admission) == ([("EXCEEDS_CAPACITY", "gpu:1", 1)] if spare < 0 else [])


@pytest.mark.parametrize(("spare", "verdict"), [(-1, "refused"), (0, "admitted")])
def test_budget_decides_at_the_byte(spare: int, verdict: str) -> None:
    fleet = pair(granule=1, decode_capacity=2 * (needed() + spare))
    admission = admit(replace(ask(fleet), utilization=Fraction(1, 2)))
    assert admission.verdict == verdict
    assert codes(admission) == ([("EXCEEDS_BUDGET", "gpu:1", 1)] if spare < 0 else [])


def test_reserve_comes_off_the_budget() -> None:
    fleet = pair(granule=1, capacity=needed() + 99, budget=Budget(utilization=Fraction(1), reserve=100))
    assert codes(admit(replace(ask(fleet), utilization=None))) == [
        ("EXCEEDS_BUDGET", "gpu:0", 1),
        ("EXCEEDS_BUDGET", "gpu:1", 1),
    ]


def test_runtime_and_granule_count() -> None:
    one = needed()
    assert admit(ask(pair(granule=1, capacity=one + 7, runtime=7))).verdict == "admitted"
    assert admit(ask(pair(granule=1, capacity=one + 6, runtime=7))).verdict == "refused"
    rounded = -(-one // 4096) * 4096
    assert admit(ask(pair(granule=4096, capacity=rounded))).verdict == "admitted"
    assert admit(ask(pair(granule=4096, capacity=rounded - 1))).verdict == "refused"


def test_message_names_device_line_and_shortfall() -> None:
    [reason] = admit(ask(pair(granule=1, decode_capacity=needed() - 100_000))).reasons
    assert reason.line == "kv_cache" or reason.line == "weights"
    assert "gpu:1 is short by 100,000 B" in reason.message
    assert "test.yaml:1" in reason.message


def test_unknown_capacity_is_never_admitted() -> None:
    fleet = pair()
    blind = replace(fleet, devices=(fleet.devices[0], device("gpu:1", capacity=None, topology_id=501)))
    admission = admit(ask(blind))
    assert admission.verdict == "unverified"
    assert [r.code for r in admission.reasons] == ["CAPACITY_UNKNOWN"]


def test_a_sure_refusal_outweighs_an_unknown() -> None:
    fleet = pair("unknown", granule=1, decode_capacity=10)
    assert admit(ask(fleet)).verdict == "refused"


def test_unknown_peer_access_shows_both_readings() -> None:
    admission = admit(ask(pair("unknown")))
    assert admission.verdict == "unverified"
    assert set(admission.readings) == {"direct", "staged"}
    direct, staged = (admission.readings[name].edges for name in ("direct", "staged"))
    assert ("gpu:0", "gpu:1") in {(e.src, e.dst) for e in direct}
    assert ("gpu:0", "gpu:1") not in {(e.src, e.dst) for e in staged}


@pytest.mark.parametrize("drop", [("host", "gpu:0"), ("gpu:0", "host"), ("host", "gpu:1"), ("gpu:1", "host")])
def test_every_missing_host_link_is_a_refusal_by_name(drop: tuple[str, str]) -> None:
    admission, _ = explain_refusal(admit(ask(pair(drop=drop))))
    assert admission.verdict == "refused"
    assert [(r.code, r.edge) for r in admission.reasons] == [("NO_ROUTE", drop)]


def test_a_missing_peer_link_is_staged_over_the_host() -> None:
    admission = admit(ask(pair(drop=("gpu:0", "gpu:1"))))
    assert admission.verdict == "admitted"
    assert admission.prediction is not None
    assert [leg.kind for leg in admission.prediction.handoff_rows[0].legs or ()] == ["d2h", "h2d"]


@pytest.mark.parametrize(
    "fleet",
    [
        pair(granule=1, decode_capacity=1_080_000),
        pair(granule=1, capacity=1_080_000),
        pair(granule=1, capacity=500_000, decode_capacity=400_000),
        pair(drop=("host", "gpu:1")),
        pair(drop=("gpu:1", "host")),
        pair("staged", drop=("gpu:0", "host")),
        pair("staged", pool=10),
        pair(granule=1, decode_capacity=10),
        pair(capacity=10, decode_capacity=10, drop=("gpu:1", "host")),
        pair("unknown", granule=1, capacity=10, drop=("host", "gpu:0")),
    ],
)
@pytest.mark.parametrize("request_", [{}, {"positions": 512}, {"batch": 7}, {"steps": None, "new_tokens": 20}])
def test_the_fix_of_a_refusal_is_admitted(fleet: Fleet, request_: dict[str, int]) -> None:
    admission = admit(ask(fleet, **request_))
    assert admission.verdict == "refused"
    explained, changes = explain_refusal(admission)
    assert changes
    assert [r.fix for r in explained.reasons if r.severity == "error"]
    for change in offered(admission):
        assert admit(change.ask).verdict == "admitted"


def test_fewer_passes_is_the_most_that_fits() -> None:
    fleet = pair(granule=1, decode_capacity=needed() - 1)
    _, changes = explain_refusal(admit(ask(fleet)))
    to = next(c["to"] for c in changes if c.get("flag") == "--steps")
    assert admit(ask(fleet, steps=to)).verdict == "admitted"
    assert admit(ask(fleet, steps=to + 1)).verdict == "refused"


def test_capacity_fix_is_the_least_that_fits() -> None:
    fleet = pair(granule=1, decode_capacity=10)
    _, changes = explain_refusal(admit(replace(ask(fleet), utilization=Fraction(9, 10))))
    to = int(next(c["to"] for c in changes if "capacity" in c.get("field", "")).removesuffix(" B"))
    for capacity, verdict in ((to, "admitted"), (to - 1, "refused")):
        again = replace(ask(pair(granule=1, decode_capacity=capacity)), utilization=Fraction(9, 10))
        assert admit(again).verdict == verdict


def test_staging_is_cut_to_the_pinned_pool() -> None:
    position = 32 * 4
    admission = admit(ask(pair("staged", pool=4 * position)))
    assert admission.prediction is not None
    assert admission.prediction.routed.chunk == 4
    legs = admission.prediction.handoff_rows[0].legs or ()
    assert [(leg.bytes, leg.copies) for leg in legs] == [(8_960, 5 * 4)] * 2
    assert (admission.prediction.handoff_rows[0].bytes, admission.prediction.handoff_rows[0].copies) == (8_960, 5)


def test_an_unknown_device_is_named_with_a_hint() -> None:
    with pytest.raises(PlacementError, match=r"decode: 'gpu:2' is not a device of fleet pair; did you mean gpu:1"):
        admit(replace(ask(pair()), placement=Placement(prefill="gpu:0", decode="gpu:2")))


def test_every_fault_of_a_request_is_told_at_once() -> None:
    wrong = Request(prompt_tokens=0, steps=-1, batch=0, attention="gpu", kv_extent="blocks:0", layout="packed99")
    with pytest.raises(DescriptionError) as caught:
        resolve(wrong, llama2c())
    assert {fault.field for fault in caught.value.faults} == {
        "prompt_tokens",
        "steps",
        "batch",
        "attention",
        "kv_extent",
        "layout",
    }


@pytest.mark.parametrize(
    ("request_", "passes", "positions"),
    [
        (Request(prompt_tokens=5, steps=0), 512, 512),
        (Request(prompt_tokens=5, steps=600), 512, 512),
        (Request(prompt_tokens=5, steps=1), 1, 1),
        (Request(prompt_tokens=5), 256, 256),
        (Request(prompt_tokens=5, new_tokens=1), 5, 5),
        (Request(prompt_tokens=5, new_tokens=508), 512, 512),
        (Request(prompt_tokens=600, steps=0), 512, 512),
    ],
)
def test_counts_follow_llama2c(request_: Request, passes: int, positions: int) -> None:
    workload = resolve(request_, llama2c())
    assert (workload.passes, workload.positions) == (passes, positions)


@pytest.mark.parametrize(
    "request_",
    [
        Request(prompt_tokens=5, new_tokens=509),
        Request(prompt_tokens=5, steps=40, positions=39),
        Request(prompt_tokens=5, steps=40, positions=513),
        Request(prompt_tokens=5, steps=4, new_tokens=4),
        Request(prompt_ids=(1, 512)),
        Request(prompt_ids=()),
        Request(attention="host", prefill_chunk=2),
    ],
)
def test_requests_that_cannot_be_meant_are_refused(request_: Request) -> None:
    with pytest.raises(DescriptionError):
        resolve(request_, llama2c())


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3_000_000), st.integers(0, 3_000_000), st.integers(1, 512))
def test_more_capacity_never_turns_admitted_into_refused(capacity: int, more: int, steps: int) -> None:
    first = admit(ask(pair(capacity=capacity), steps=steps))
    if first.verdict == "admitted":
        assert admit(ask(pair(capacity=capacity + more), steps=steps)).verdict == "admitted"


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(6)))
def test_the_order_of_links_and_devices_changes_nothing(order: list[int]) -> None:
    fleet = pair()
    shuffled = replace(fleet, links=tuple(fleet.links[i] for i in order), devices=fleet.devices[::-1])
    first, second = admit(ask(fleet)), admit(ask(shuffled))
    assert first.prediction is not None
    assert second.prediction is not None
    assert first.prediction.rows == second.prediction.rows
    assert first.prediction.edges == second.prediction.edges


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 60))
def test_handoff_bytes_add_over_tokens(first: int, second: int) -> None:
    def handoff(prompt: int) -> int:
        prediction = admit(ask(pair(), prompt_tokens=prompt, steps=200)).prediction
        assert prediction is not None
        return sum(row.bytes for row in prediction.handoff_rows)

    assert handoff(first + second) == handoff(first) + handoff(second)


def test_totals_beyond_63_bits_are_refused_not_wrapped() -> None:
    huge = llama2c(2**20, 2**20, 2**20, 2**10, 2**10, 2**20, 2**20)
    fleet = pair(capacity=2**62)
    asked = Ask(fleet=fleet, model=huge, request=Request(prompt_tokens=2, steps=9, batch=2**30), placement=SPLIT)
    assert "SIZE_OVERFLOW" in {reason.code for reason in admit(asked).reasons}


def test_observed_figures_do_not_change_a_plan() -> None:
    fleet = pair()
    seen = Quantity(declared=known(450 * 10**9).declared, observed=Figure(value=1, provenance="measured", source="t"))
    again = replace(fleet, links=tuple(replace(link, bandwidth=seen) for link in fleet.links))
    first, second = admit(ask(fleet)).prediction, admit(ask(again)).prediction
    assert first is not None
    assert second is not None
    assert [row.bytes for row in first.rows] == [row.bytes for row in second.rows]


@pytest.mark.parametrize(("count", "words"), [(0, "BOS makes it 1 at least"), (10**20, "use 1 to 1099511627776")])
def test_a_count_of_prompt_tokens_outside_its_range_is_told_by_the_end_that_it_passes(count: int, words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        admit(ask(pair(), prompt_tokens=count))
