"""Times of legs, rows and handoffs: worked by hand, and laws that hold for any figures."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.machine import Figure, Link, Quantity
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.queueing import Arrival, queued
from planner.request import Request
from planner.roofline import Rates
from planner.rows import Leg, Row, staged_as
from planner.times import NOTHING, handoff_time, leg_time, longest, pipelined, row_time, scaled, total
from tests.planner.fleets import GB, known, llama2c, pair

US = 10**6
SECOND = 10**12
counts = st.integers(0, 10**6)
sizes = st.integers(0, 2**50)
rates = st.integers(1, 2**50)
latencies = st.integers(0, 10**9)


def observed(value: int, error: str | None = None) -> Figure:
    share = None if error is None else Fraction(error)
    return Figure(value=value, provenance="measured", source="a test", error=share)


def link(
    rate: Quantity | int | None, latency: Quantity | int | None = None, src: str = "gpu:0", dst: str = "gpu:1"
) -> Link:
    figures = [known(f) if isinstance(f, int) else Quantity() if f is None else f for f in (rate, latency)]
    return Link(src=src, dst=dst, kind="nvlink", bandwidth=figures[0], latency=figures[1], where=f"{src}-{dst}")


def leg(nbytes: int, copies: int, *links: Link) -> Leg:
    kind = links[0].kind if links else None
    return Leg(src="gpu:0", dst="gpu:1", kind="p2p", link=kind, bytes=nbytes, copies=copies, through=links)


def row(*legs: Leg, src: str = "gpu:0", dst: str = "gpu:1") -> Row:
    first = legs[0]
    return Row(
        phase="handoff", tensor="k", src=src, dst=dst, kind="p2p", payload_bytes=first.bytes, bytes=first.bytes,
        copies=first.copies, legs=legs,
    )  # fmt: skip


def test_a_leg_is_latency_times_copies_and_bytes_over_rate() -> None:
    time = leg_time(leg(442_368, 6, link(450 * GB, 2_600_000)))
    # 6 x 2.6 us + 442,368 B / 450e9 B/s = 15.6 us + 0.98304 us
    assert time.seconds == Fraction(15_600, 10**9) + Fraction(442_368, 450 * GB) == Fraction(1_658_304, 10**11)
    assert (time.basis, time.lower_bound, time.told_error) == ("declared", False, "unscored")


def test_a_public_fit_of_a_host_seam_gives_its_own_figure() -> None:
    # alpha 9.79 us and beta 25.5 GB/s: 4 KiB take 9.79 us + 0.1606 us.
    time = leg_time(leg(4096, 1, link(25_500_000_000, 9_790_000)))
    assert time.seconds is not None
    assert round(time.seconds * 10**9, 1) == round(Fraction(99506275, 10**4), 1)


def test_no_bytes_take_the_latency_alone() -> None:
    assert leg_time(leg(0, 3, link(GB, US))).seconds == Fraction(3, 10**6)


def test_a_way_over_switches_adds_latencies_and_takes_the_slowest_rate() -> None:
    time = leg_time(leg(10 * GB, 2, link(50 * GB, US), link(10 * GB, 3 * US), link(20 * GB, US)))
    assert time.seconds == 1 + Fraction(10, 10**6)


def test_a_link_without_latency_gives_a_lower_bound_and_one_without_rate_no_time() -> None:
    assert leg_time(leg(GB, 1, link(GB))).lower_bound
    missing = leg_time(leg(GB, 1, link(None, US)))
    assert missing.seconds is None
    assert missing.unpriced == ("the rate of gpu:0 -> gpu:1 is unknown",)
    assert leg_time(leg(GB, 1)).seconds is None


def test_observed_figures_are_used_only_when_asked_for_and_the_basis_says_so() -> None:
    seen = link(Quantity(declared=known(450 * GB).declared, observed=observed(371 * GB)), US)
    copied = leg(371 * GB, 0, seen)
    assert leg_time(copied).seconds == Fraction(371, 450)
    mixed = leg_time(copied, "observed")
    assert (mixed.seconds, mixed.basis) == (1, "declared and observed")
    only = replace(seen, latency=Quantity(observed=observed(US)))
    assert leg_time(leg(GB, 1, only), "observed").basis == "observed"
    assert leg_time(leg(GB, 1, link(4 * GB, US)), "observed").basis == "declared"


def test_an_error_is_told_only_when_every_figure_states_one() -> None:
    both = link(Quantity(observed=observed(GB, "0.08")), Quantity(observed=observed(US, "0.02")))
    assert leg_time(leg(GB, 1, both), "observed").told_error == "8 %"
    one = link(Quantity(observed=observed(GB, "0.08")), US)
    assert leg_time(leg(GB, 1, one), "observed").told_error == "unscored"
    no_latency = link(Quantity(observed=observed(GB, "0.08")))
    assert leg_time(leg(GB, 1, no_latency), "observed").told_error == "unscored"


def test_a_sum_is_scored_by_its_worst_part_and_unscored_by_one_that_is() -> None:
    good = leg_time(
        leg(GB, 1, link(Quantity(observed=observed(GB, "0.02")), Quantity(observed=observed(0, "0.02")))), "observed"
    )
    worse = leg_time(
        leg(GB, 1, link(Quantity(observed=observed(GB, "0.1")), Quantity(observed=observed(0, "0.1")))), "observed"
    )
    assert total([good, worse, NOTHING]).told_error == "10 %"
    assert total([good, leg_time(leg(GB, 1, link(GB, US)))]).error is None


def test_a_policy_figure_is_never_scored() -> None:
    chosen = Figure(value=GB, provenance="policy", source="a test", error=Fraction(1, 10))
    time = leg_time(leg(GB, 1, link(Quantity(declared=chosen), Quantity(declared=replace(chosen, value=0)))))
    assert time.policy
    assert time.told_error == "unscored"


def test_staged_legs_follow_each_other_or_overlap_chunk_by_chunk() -> None:
    # 4 chunks of 1 GB: 1 us + 0.02 s down, 2 us + 0.05 s up.
    down, up = leg(4 * GB, 4, link(50 * GB, US)), leg(4 * GB, 4, link(20 * GB, 2 * US))
    one, other = Fraction(1, 10**6) + Fraction(1, 50), Fraction(2, 10**6) + Fraction(1, 20)
    staged = row(down, up)
    assert row_time(staged).seconds == 4 * (one + other)
    assert row_time(staged, staging="pipelined").seconds == one + other + 3 * other


def flow_shop(jobs: int, machines: list[Fraction]) -> Fraction:
    """The end of the last of equal jobs that pass machines in order, one at a time on each: by walking every one."""
    free = [Fraction(0)] * len(machines)
    for _ in range(jobs):
        ready = Fraction(0)
        for place, takes in enumerate(machines):
            ready = free[place] = max(free[place], ready) + takes
    return free[-1]


@given(st.integers(1, 12), st.lists(st.tuples(rates, latencies), min_size=1, max_size=4), st.integers(0, 10**6))
def test_pipelined_chunks_end_when_a_walk_over_every_chunk_says(
    chunks: int, figures: list[tuple[int, int]], size: int
) -> None:
    legs = [leg(chunks * size, chunks, link(rate, latency)) for rate, latency in figures]
    walked = flow_shop(chunks, [Fraction(latency, SECOND) + Fraction(size, rate) for rate, latency in figures])
    assert pipelined(legs).seconds == walked
    alone = [leg_time(one).seconds for one in legs]
    assert max(time for time in alone if time is not None) <= walked <= sum(time for time in alone if time is not None)


@given(st.integers(1, 12), st.lists(st.tuples(rates, latencies), min_size=1, max_size=4), st.integers(0, 10**6))
def test_a_row_that_is_staged_pipelined_takes_what_the_walk_takes_and_bytes_are_the_same(
    chunks: int, figures: list[tuple[int, int]], size: int
) -> None:
    legs = [leg(chunks * size, chunks, link(rate, latency)) for rate, latency in figures]
    held = replace(row(*(replace(one, seconds=leg_time(one).seconds) for one in legs)), phase="handoff")
    (other,) = staged_as([held], "pipelined")
    assert other.seconds == flow_shop(chunks, [Fraction(late, SECOND) + Fraction(size, rate) for rate, late in figures])
    assert replace(other, staging="sequential") == held
    assert held.seconds == sum((leg_time(one).seconds or 0 for one in legs), Fraction(0))
    assert staged_as([replace(held, phase="stage")], "pipelined")[0].seconds == held.seconds


@given(sizes, sizes, counts, rates, rates, latencies)
def test_more_bytes_never_take_less_and_more_bandwidth_never_more(
    few: int, more: int, copies: int, slow: int, faster: int, latency: int
) -> None:
    def seconds(nbytes: int, rate: int) -> Fraction:
        found = leg_time(leg(nbytes, copies, link(rate, latency))).seconds
        assert found is not None
        return found

    assert seconds(few, slow) <= seconds(few + more, slow)
    assert seconds(few, slow + faster) <= seconds(few, slow)
    assert seconds(0, slow) == Fraction(latency * copies, SECOND)


@given(st.sampled_from(["direct", "staged"]), st.integers(2, 40))
def test_the_times_of_a_plan_are_those_of_its_rows(access: str, prompt: int) -> None:
    asked = Request(prompt_tokens=prompt, steps=prompt + 5)
    placement = Placement(prefill="gpu:0", decode="gpu:1")
    prediction = admit(Ask(fleet=pair(access), model=llama2c(), request=asked, placement=placement)).prediction
    assert prediction is not None
    for one in prediction.rows:
        assert row_time(one).seconds == one.seconds
    assert handoff_time(prediction.handoff_rows).seconds == prediction.handoff_seconds


def test_rows_between_other_ends_run_beside_each_other_but_share_what_they_pass() -> None:
    uplink = link(10 * GB, US, "sw", "host")
    first = row(leg(10 * GB, 1, uplink), src="gpu:0", dst="gpu:2")
    second = row(leg(10 * GB, 1, uplink), src="gpu:1", dst="gpu:3")
    apart = row(leg(10 * GB, 1, link(10 * GB, US, "gpu:1", "gpu:3")), src="gpu:1", dst="gpu:3")
    alone = 1 + Fraction(1, 10**6)
    beside = handoff_time([first, apart])
    assert (beside.seconds, beside.lower_bound) == (alone, True)
    assert handoff_time([first, second]).seconds == 2
    assert handoff_time([first, first]).seconds == 2 * alone


def test_an_unknown_way_is_unpriced_in_words() -> None:
    lost = replace(row(leg(GB, 1, link(GB, US))), legs=None)
    assert row_time(lost).unpriced == ("the way of k from gpu:0 to gpu:1 is unknown",)
    assert handoff_time([lost]).seconds is None
    assert longest([NOTHING, row_time(lost)]).seconds is None
    assert scaled(row_time(lost), Fraction(1, 2)).seconds is None


def test_handoffs_queue_on_a_link_in_the_order_in_which_they_come() -> None:
    shared, own = link(GB, 0, "sw", "host"), link(GB, 0, "gpu:5", "gpu:6")
    late = Arrival(name="b", rows=(row(leg(2 * GB, 1, shared)),), at=Fraction(1))
    early = Arrival(name="a", rows=(row(leg(4 * GB, 1, shared)),))
    apart = Arrival(name="c", rows=(row(leg(GB, 1, own)),), at=Fraction(1, 2))
    a, c, b = queued([late, early, apart])
    assert (a.start, a.end, a.waited, a.behind) == (0, 4, 0, ())
    assert (c.start, c.end, c.waited, c.behind) == (Fraction(1, 2), Fraction(3, 2), 0, ())
    assert (b.start, b.end, b.waited, b.behind) == (4, 6, 3, ("a",))
    assert b.time.seconds == 5


def test_both_ways_of_a_shared_duplex_are_one_resource() -> None:
    there = replace(link(GB, 0, "gpu:0", "gpu:1"), duplex="shared")
    back = replace(link(GB, 0, "gpu:1", "gpu:0"), duplex="shared")
    one, other = (Arrival(name=name, rows=(row(leg(GB, 1, way)),)) for name, way in (("a", there), ("b", back)))
    assert [found.end for found in queued([one, other])] == [1, 2]
    apart = (replace(there, duplex=None), replace(back, duplex=None))
    free = [Arrival(name=n, rows=(row(leg(GB, 1, way)),)) for n, way in zip("ab", apart, strict=True)]
    assert [found.end for found in queued(free)] == [1, 1]


def test_an_unpriced_handoff_holds_nothing() -> None:
    shared, dark = link(GB, 0, "sw", "host"), link(None, 0, "sw", "host")
    lost = Arrival(name="a", rows=(row(leg(GB, 1, dark)),))
    other = Arrival(name="b", rows=(row(leg(GB, 1, shared)),))
    first, second = queued([lost, other])
    assert (first.end, first.time.unpriced) == (None, ("the rate of sw -> host is unknown",))
    assert (second.waited, second.end) == (0, 1)


arrivals = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9), st.integers(0, 2)), min_size=1, max_size=8)


@given(arrivals, st.sampled_from(["declared", "observed"]))
def test_a_queue_keeps_a_link_to_one_copy_at_a_time_and_never_makes_one_faster(
    asked: list[tuple[int, int, int]], of: Rates
) -> None:
    links = [link(GB, US, f"sw:{number}", "host") for number in range(3)]
    came = [
        Arrival(name=str(i), rows=(row(leg(size * GB, 1, links[which])),), at=Fraction(at))
        for i, (at, size, which) in enumerate(asked)
    ]
    found = {one.name: one for one in queued(came, of)}
    for which in range(3):
        spans = sorted(
            (one.start, one.end)
            for i, (_, _, where) in enumerate(asked)
            if where == which and (one := found[str(i)]).start is not None and one.end is not None
        )
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    for i, (at, size, _) in enumerate(asked):
        end = found[str(i)].end
        assert end is not None
        assert end >= at + size + Fraction(1, 10**6)
        assert end == at + (found[str(i)].waited or 0) + size + Fraction(1, 10**6)


@pytest.mark.parametrize("nbytes", [0, 1, 2**62])
def test_times_are_exact_fractions(nbytes: int) -> None:
    assert leg_time(leg(nbytes, 1, link(3, 1))).seconds == Fraction(1, SECOND) + Fraction(nbytes, 3)
