"""Solving for a link or a capacity: exact, proven by predicting again with the answer and with one step less."""

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
from planner.request import Request
from planner.solve import solve, ttft_of
from tests.planner.fleets import known, llama2c, pair

SPLIT = Placement(prefill="gpu:0", decode="gpu:1")


def rated(fleet: Fleet, *, flops: int = 10**12, memory: int = 10**12, latency: int | None = None) -> Fleet:
    """Devices with rates of computing and of memory; `latency` of peer links in picoseconds."""
    devices = tuple(
        replace(d, compute=(("fp32", known(flops)),), memories=(replace(d.memories[0], bandwidth=known(memory)),))
        for d in fleet.devices
    )
    links = tuple(
        link if link.peer_access is None or latency is None else replace(link, latency=known(latency))
        for link in fleet.links
    )
    return replace(fleet, devices=devices, links=links)


def asked(fleet: Fleet, **request: Any) -> Admission:
    words = {"prompt_tokens": 100, "steps": 200, "prefill_chunk": 100} | request
    return admit(Ask(fleet=fleet, model=llama2c(), request=Request(**words), placement=SPLIT))


def with_peer(fleet: Fleet, **figures: Quantity) -> Fleet:
    links = tuple(replace(link, **figures) if link.peer_access is not None else link for link in fleet.links)
    return replace(fleet, links=links)


def seconds(admission: Admission) -> Fraction:
    time = ttft_of(admission)
    assert time is not None
    assert time.seconds is not None
    return time.seconds


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 10**6), st.integers(0, 10**7), st.sampled_from(["filled", "allocated", "blocks:16"]))
def test_the_rate_meets_the_target_and_a_byte_a_second_less_does_not(over: int, latency: int, extent: str) -> None:
    fleet = rated(pair(), latency=latency)
    fastest = seconds(asked(with_peer(fleet, bandwidth=known(10**18)), kv_extent=extent))
    target = fastest + Fraction(over, 10**9)
    found = solve(asked(fleet, kv_extent=extent), "link", target)
    assert found.verdict == "solved"
    assert found.rate is not None
    assert seconds(asked(with_peer(fleet, bandwidth=known(found.rate)), kv_extent=extent)) <= target
    if found.rate > 1:
        assert seconds(asked(with_peer(fleet, bandwidth=known(found.rate - 1)), kv_extent=extent)) > target
    slow = found.rate > 450 * 10**9
    assert [need["to"] for need in found.needs] == [found.rate] * slow


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 40))
def test_the_most_copies_meet_the_target_and_one_more_does_not(block: int, over: int) -> None:
    fleet = rated(pair(), latency=10**6)
    admission = asked(fleet, kv_extent=f"blocks:{block}")
    target = seconds(admission) + Fraction(over, 10**7)
    found = solve(admission, "link", target)
    assert found.copies_per_layer == -(-100 // block)
    assert found.most_copies is not None
    assert admission.prediction is not None
    bytes_and_rest = seconds(admission) - Fraction(10**6 * 2 * 5 * found.copies_per_layer, 10**12)
    for copies, fits in ((found.most_copies, True), (found.most_copies + 1, False)):
        assert (bytes_and_rest + Fraction(10**6 * 2 * 5 * copies, 10**12) <= target) is fits


def test_both_legs_of_a_staged_handoff_count() -> None:
    fleet = rated(pair("staged"))
    fast = tuple(replace(k, bandwidth=known(10**18)) for k in fleet.links)
    target = seconds(asked(replace(fleet, links=fast))) + Fraction(1, 10**5)
    found = solve(asked(fleet), "link", target)
    assert found.rate is not None
    way = {("gpu:0", "host"), ("host", "gpu:1")}
    for rate, meets in ((found.rate, True), (found.rate - 1, False)):
        links = tuple(replace(k, bandwidth=known(rate)) if (k.src, k.dst) in way else k for k in fleet.links)
        assert (seconds(asked(replace(fleet, links=links))) <= target) is meets


def test_a_link_without_a_rate_is_solved_for_too() -> None:
    fleet = with_peer(rated(pair()), bandwidth=Quantity())
    found = solve(asked(fleet), "link", Fraction(1, 100))
    assert found.verdict == "solved"
    assert [(need["from"], need["to"]) for need in found.needs] == [(None, found.rate)]
    assert found.ttft is None


def test_what_no_rate_would_do_is_said_with_the_least_time() -> None:
    found = solve(asked(rated(pair(), flops=10**9)), "link", Fraction(1, 10**6))
    assert found.verdict == "impossible"
    assert "no rate of the links would do: with any, TTFT is at least" in found.words


def test_copies_are_told_where_only_fewer_of_them_would_do() -> None:
    fleet = rated(pair(), latency=10**9)
    target = seconds(asked(fleet)) + Fraction(1, 1000)
    found = solve(asked(fleet, kv_extent="blocks:1"), "link", target)
    assert found.verdict == "impossible"
    assert "at most 1 copies a layer of each tensor would do" in found.words


def test_without_a_price_of_prefill_only_a_lower_bound_is_told() -> None:
    found = solve(asked(pair()), "link", Fraction(1, 100))
    assert found.verdict == "unverified"
    assert found.rate is not None
    assert found.words.startswith("at least ")
    assert "more cannot be told" in found.words


def test_no_time_is_told_of_what_is_not_admitted() -> None:
    refused = asked(rated(pair(capacity=1000)))
    found = solve(refused, "link", Fraction(1))
    assert (found.verdict, found.ttft, found.rate) == ("impossible", None, None)
    assert "no time to the first token is told of it" in found.words


@pytest.mark.parametrize("basis", ["total", "free"])
def test_the_capacity_is_the_least_that_is_admitted(basis: Any) -> None:
    for capacity in (1000, 80 * 2**30):
        fleet = pair(capacity=capacity, granule=1)
        admission = asked(fleet)
        ask = replace(admission.ask, share_of=basis)
        found = solve(admit(ask), "capacity", None)
        assert found.verdict == "solved"
        for less, verdict in ((0, "admitted"), (1, "refused")):
            sizes = {need["field"]: need["to"] - less for need in found.needs}
            devices = tuple(
                replace(d, memories=(replace(d.memories[0], capacity=known(sizes[d.capacity_field])),))
                for d in fleet.devices
            )
            assert admit(replace(ask, fleet=replace(fleet, devices=devices))).verdict == verdict
