"""The memory ledger: lines sum to totals, terms to lines, bounds to the budget; and how many sequences fit."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.machine import Budget
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.counterfactual import with_batch
from planner.counterfactual_sequences import most_sequences, sequences_words
from planner.ledger import MOST_TERMS, device_ledger
from planner.ledger_bounds import Terms, allowed, least_capacity, least_utilization
from planner.plan import prediction_document
from planner.request import Request
from tests.planner.fleets import llama2c, pair
from tests.planner.test_counterfactual import asks, dense, mesh

SPLIT = Placement(prefill="gpu:0", decode="gpu:1")
shares = st.integers(1, 1000).map(lambda n: Fraction(n, 1000))
terms = st.builds(
    Terms, utilization=shares, reserve=st.integers(0, 5000), in_use=st.integers(0, 5000),
    basis=st.sampled_from(["total", "free"]),
)  # fmt: skip


@st.composite
def held(draw: st.DrawFn) -> tuple[int, int]:
    """(total, cache) bytes."""
    total = draw(st.integers(1, 100_000))
    return total, draw(st.integers(0, total))


@settings(deadline=None, max_examples=300)
@given(held(), terms)
def test_the_least_capacity_fits_and_a_byte_less_does_not(one: tuple[int, int], of: Terms) -> None:
    total, cache = one
    least = least_capacity(total, cache, of)
    assert allowed(least, total, cache, of) >= total
    assert allowed(least - 1, total, cache, of) < total


@settings(deadline=None, max_examples=300)
@given(held(), terms, st.integers(1, 300_000))
@example((1, 0), Terms(utilization=Fraction(1, 1000), basis="free"), 1)
def test_the_least_utilization_fits_and_less_does_not(one: tuple[int, int], of: Terms, capacity: int) -> None:
    total, cache = one
    share = least_utilization(capacity, total, cache, of)
    if share is None:
        assert allowed(capacity, total, cache, replace(of, utilization=Fraction(1))) < total
    elif share:
        assert allowed(capacity, total, cache, replace(of, utilization=share)) >= total
        assert allowed(capacity, total, cache, replace(of, utilization=share - Fraction(1, 10**9))) < total


@settings(deadline=None, max_examples=300)
@given(held(), terms, st.integers(0, 300_000), st.integers(0, 1000), st.integers(0, 1000))
def test_room_grows_with_capacity_and_shrinks_with_what_is_held(
    one: tuple[int, int], of: Terms, capacity: int, more: int, beside: int
) -> None:
    total, cache = one
    slack = allowed(capacity, total, cache, of) - total
    assert allowed(capacity + more, total, cache, of) - total >= slack
    assert allowed(capacity, total + more + beside, cache + more, of) - (total + more + beside) <= slack
    assert allowed(capacity, total, cache, replace(of, in_use=of.in_use + more)) - total <= slack
    assert allowed(capacity, total, cache, of) <= max(capacity - of.in_use, 0)


@settings(deadline=None, max_examples=60)
@given(asks())
def test_lines_sum_to_the_total_and_terms_to_lines(ask: Ask) -> None:
    admission = admit(ask)
    assert admission.prediction is not None
    for footprint in admission.prediction.footprints:
        lines = {line.line: line for line in device_ledger(admission, footprint)}
        assert sum(line.bytes or 0 for line in lines.values() if line.held) == footprint.total_bytes
        assert lines["total"].bytes == footprint.total_bytes
        for line in lines.values():
            assert line.formula
            assert line.source
            assert len(line.terms) <= MOST_TERMS
            if line.terms:
                assert sum(term.bytes for term in line.terms) == line.bytes
        if footprint.device is not None:
            budget, slack, has = (lines[name].bytes for name in ("budget", "slack", "slack of the device"))
            assert None not in (budget, slack, has)
            assert slack == (budget or 0) - footprint.total_bytes
            assert (has or 0) >= (slack or 0)
            assert ((slack or 0) >= 0) == all(r.device != footprint.device for r in admission.reasons)


def ask_of(model: Any = None, **request: Any) -> Ask:
    words = {"prompt_tokens": 14, "steps": 40} | request
    return Ask(fleet=pair(), model=model or llama2c(), request=Request(**words), placement=SPLIT)


def ledger_of(ask: Ask, device: str = "gpu:1") -> dict[str, dict[str, Any]]:
    entry = next(e for e in prediction_document(admit(ask))["memory"] if e["device"] == device)
    return {line["line"]: line for line in entry["ledger"]}


def test_the_cache_is_told_by_sequences_context_and_block() -> None:
    line = ledger_of(ask_of(positions=100, batch=3, kv_extent="blocks:16"))["kv_cache"]
    assert line["source"] == "3 sequences x context 100 in blocks of 16 (112), fp32"
    assert line["terms"][0] == {
        "what": "decode/k",
        "formula": "[3 x 5 x 112 x 32] x 4 B",
        "bytes": 3 * 5 * 112 * 32 * 4,
    }


def test_what_is_in_flight_is_told_on_both_sides() -> None:
    handoff = 2 * 5 * 14 * 32 * 4
    for device, words in (("gpu:0", "kept here"), ("gpu:1", "set aside here")):
        line = ledger_of(ask_of(), device)["in flight"]
        assert line["bytes"] == handoff
        assert words in line["source"]
    oracle = replace(ask_of(), placement=Placement(prefill="gpu:0", decode="gpu:0"))
    assert "one device" in ledger_of(oracle, "gpu:0")["in flight"]["source"]


def test_staging_is_a_line_of_the_host() -> None:
    ask = replace(ask_of(), fleet=pair("staged"))
    assert ledger_of(ask, "host:bounce")["workspace"]["bytes"] == 14 * 32 * 4


def test_figures_that_nobody_declares_are_said_to_be_so() -> None:
    fleet = pair()
    bare = tuple(replace(d, runtime=type(d.runtime)()) for d in fleet.devices)
    lines = ledger_of(replace(ask_of(), fleet=replace(fleet, devices=bare)))
    assert lines["runtime"]["source"] == "undeclared: counted as 0 B"
    assert lines["capacity"]["source"] == "spec: test"
    assert lines["in use"]["source"] == "nobody said that anything is"


def test_a_share_of_the_free_is_told_with_its_formula() -> None:
    ask = replace(ask_of(), share_of="free", utilization=Fraction(1, 2))
    lines = ledger_of(ask)
    rest = lines["total"]["bytes"] - lines["kv_cache"]["bytes"]
    assert lines["budget"]["bytes"] == rest + (lines["capacity"]["bytes"] - rest) // 2
    assert "of free: --utilization" in lines["budget"]["source"]


@settings(deadline=None, max_examples=40)
@given(st.integers(1_000_000, 9_000_000), st.sampled_from(["total", "free"]), st.integers(0, 300_000))
def test_the_sequences_that_fit_are_admitted_and_one_more_is_not(capacity: int, basis: Any, reserve: int) -> None:
    fleet = mesh([capacity, 9_000_000], budget=Budget(reserve=reserve))
    ask = Ask(
        fleet=fleet, model=llama2c(), request=Request(prompt_tokens=14, steps=40), placement=SPLIT, share_of=basis
    )
    found = most_sequences(ask)
    assert found.fit is not None
    if found.fit:
        assert admit(with_batch(ask, found.fit)).verdict == "admitted"
    beyond = admit(with_batch(ask, found.fit + 1))
    assert beyond.verdict == "refused"
    assert tuple(r.message for r in beyond.reasons if r.severity == "error") == tuple(r.message for r in found.short)


def test_words_say_how_many_fit_and_what_one_more_lacks() -> None:
    ask = Ask(
        fleet=mesh([9_000_000, 2_000_000]), model=llama2c(), request=Request(prompt_tokens=14, steps=40),
        placement=SPLIT, utilization=Fraction(1),
    )  # fmt: skip
    found = most_sequences(ask)
    [short] = admit(with_batch(ask, (found.fit or 0) + 1)).reasons
    assert sequences_words(found).startswith(
        f"{found.fit} fit; {(found.fit or 0) + 1} is short by {short.shortfall_bytes:,} B"
    )
    assert sequences_words(found).endswith("on gpu:1")


def test_what_cannot_be_told_of_sequences_is_said() -> None:
    unknown = replace(ask_of(), fleet=pair(capacity=None))
    assert most_sequences(unknown).fit is None
    packed = most_sequences(ask_of(llama2c(), layout="packed16"))
    assert packed.fit == 1
    assert "holds one sequence" in sequences_words(packed)


def test_ranks_of_a_worker_have_a_ledger_each() -> None:
    placement = Placement(prefill="gpu:0", decode="gpu:1,gpu:2", tp=(1, 2))
    ask = Ask(
        fleet=mesh([9_000_000] * 3), model=dense(), request=Request(prompt_tokens=14, steps=40), placement=placement
    )
    whole, part = (ledger_of(ask, name)["weights"]["bytes"] for name in ("gpu:0", "gpu:1"))
    assert part < whole
