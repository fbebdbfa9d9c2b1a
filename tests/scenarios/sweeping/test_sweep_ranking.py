"""Pareto front, SLOs and the smallest fleet, against plain definitions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scenarios.sweeping import ranking
from scenarios.sweeping.ranking import figure, front, kept, smallest
from scenarios.sweeping.spec import METRICS, Bound, Metric

M = METRICS["simulate"]
OBJECTIVES = [M["ttft_p99"], M["tokens_per_s"], M["devices"]]
small = st.one_of(st.none(), st.integers(0, 3).map(float))


def row(
    case: int = 1, *, verdict: str = "admitted", devices: int = 2, cost: float | None = None, **figures: Any
) -> Any:
    held = {"finished": 1.0, "tpot_requests": 1} | figures
    return {
        "case": case, "verdict": verdict, "devices": devices, "cost_per_hour": cost, "lower_bounds": [],
        "figures": held if verdict == "admitted" else None,
    }  # fmt: skip


def beats(one: Any, other: Any) -> bool:
    """As the page says it: at least as good in all, better in one."""
    signs = [(*pair, m.more) for m in [*OBJECTIVES, M["finished"]] if (pair := (figure(one, m), figure(other, m)))]
    good = [a >= b if more else a <= b for a, b, more in signs]
    return all(good) and any(a != b for a, b, _ in signs)


@settings(deadline=None)
@given(st.lists(st.tuples(small, small, st.integers(1, 3), st.sampled_from([0.5, 1.0]), st.booleans()), max_size=14))
def test_the_front_is_what_no_other_case_beats(points: list[Any]) -> None:
    rows = [
        row(n, verdict="admitted" if yes else "refused", ttft_p99_s=t, tokens_per_s=r, devices=d, finished=f)
        for n, (t, r, d, f, yes) in enumerate(points)
    ]
    known = [r for r in rows if r["verdict"] == "admitted" and None not in (figure(r, m) for m in OBJECTIVES)]
    for one, mark in zip(rows, front(rows, OBJECTIVES), strict=True):
        expected = None if one not in known else not any(beats(other, one) for other in known)
        assert mark is expected


@given(st.lists(st.tuples(st.integers(1, 3), small, small, st.sampled_from([True, False, None])), max_size=12))
def test_the_smallest_fleet_has_fewest_devices_then_the_lowest_price_then_the_best_objectives(rows: list[Any]) -> None:
    held = [row(n, devices=d, cost=c, ttft_p99_s=t) | {"slo": {"met": met}} for n, (d, c, t, met) in enumerate(rows)]
    found = smallest(held, [M["ttft_p99"]])
    good = [r for r in held if r["slo"]["met"]]
    untold = [r for r in held if r["slo"]["met"] is None]
    if not good:
        assert found == {
            "verdict": "unknown" if untold else "none", "case": None, "smaller_unknown": len(untold),
        }  # fmt: skip
        return
    best = held[found["case"]]
    assert best["slo"]["met"]
    last = float("inf")

    def size(one: Any) -> tuple[float, float, float]:
        cost, time = one["cost_per_hour"], one["figures"]["ttft_p99_s"]
        return one["devices"], last if cost is None else cost, last if time is None else time

    assert size(best) == min(size(one) for one in good)
    assert found["smaller_unknown"] == sum(one["devices"] < best["devices"] for one in untold)


def bound(name: str, limit: float) -> Bound:
    metric: Metric = M[name]
    return Bound(metric=metric, limit=limit, text=str(limit))


@pytest.mark.parametrize(
    ("given_row", "bounds", "met"),
    [
        (row(ttft_p99_s=0.1), [bound("ttft_p99", 0.1)], True),
        (row(ttft_p99_s=0.10001), [bound("ttft_p99", 0.1)], False),
        (row(goodput=0.99), [bound("goodput", 0.99)], True),
        (row(goodput=0.98), [bound("goodput", 0.99)], False),
        (row(goodput=None), [bound("goodput", 0.99)], None),
        (row(finished=0.5, ttft_p99_s=0.0), [bound("ttft_p99", 1), bound("finished", 1)], False),
        (row(verdict="refused"), [], False),
        (row(verdict="unverified"), [], None),
        (row(devices=4), [bound("devices", 3)], False),
        (row(cost=None), [bound("cost_per_hour", 3)], None),
        (row(tpot_p99_s=None, tpot_requests=0), [bound("tpot_p99", 1)], True),
        (row(tpot_p99_s=None, tpot_requests=0, finished=0.0), [bound("tpot_p99", 1)], None),
        (row(ttft_p99_s=None, finished=0.0), [bound("ttft_p99", 1), bound("finished", 1)], False),
        (row(ttft_p99_s=0.1) | {"lower_bounds": ["ttft_p99_s"]}, [bound("ttft_p99", 0.2)], None),
        (row(ttft_p99_s=0.3) | {"lower_bounds": ["ttft_p99_s"]}, [bound("ttft_p99", 0.2)], False),
    ],
)
def test_slos_are_kept_missed_or_cannot_be_told(given_row: Any, bounds: list[Bound], met: bool | None) -> None:
    found = kept(given_row, bounds)
    assert found["met"] is met
    for miss in found["misses"]:
        assert miss["found"] != miss["bound"]


def test_a_lower_bound_beats_no_known_figure_and_is_beaten_by_one() -> None:
    """It may be any longer time: only what is known to be at most the bound is known to be better."""
    least = {"lower_bounds": ["ttft_p99_s"]}
    near, far = row(1, ttft_p99_s=1.0), row(2, ttft_p99_s=2.0)
    assert front([near | least, far], [M["ttft_p99"]]) == [True, True]
    assert front([near, far | least], [M["ttft_p99"]]) == [True, False]
    assert front([near, near | least], [M["ttft_p99"]]) == [True, False]
    assert front([near | least, far | least], [M["ttft_p99"]]) == [True, False]
    met = {"slo": {"met": True}}
    assert smallest([near | least | met, far | met], [M["ttft_p99"]])["case"] == 2


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 3), st.booleans()), min_size=2))
def test_the_front_of_many_is_the_front_of_few(points: list[ranking.Point]) -> None:
    known = sorted(set(points))
    assert len(known) < 2 or ranking._unbeaten_of_many(known) == ranking._unbeaten(known)
