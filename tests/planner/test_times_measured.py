"""The link model beside what was measured: a line fitted to two sizes prices the sizes that it was not shown."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fleet.machine import Figure, Link, Quantity
from planner.rows import Leg
from planner.times import leg_time

MEASURED = Path(__file__).parents[3] / "shared" / "data" / "calibration" / "h200.json"
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not MEASURED.exists(), reason="the shared calibration is not beside the project"),
]
SECOND = 10**12


def line(fit: dict[str, Any]) -> Link:
    """The fit as observed figures that state its worst residual."""
    error = Fraction(fit["max_abs_rel_residual"]).limit_denominator(10**6) + Fraction(1, 10**6)

    def seen(value: float) -> Quantity:
        return Quantity(observed=Figure(value=round(value), provenance="measured", source="a fit", error=error))

    return Link(
        src="host", dst="gpu:0", kind="pcie", bandwidth=seen(fit["beta_bytes_per_s"]),
        latency=seen(fit["alpha_s"] * SECOND),
    )  # fmt: skip


@pytest.mark.parametrize("way", ["h2d_pinned", "d2h_pinned"])
def test_pinned_copies_lie_within_the_error_that_the_time_states(way: str) -> None:
    link = json.loads(MEASURED.read_text())["links"][way]
    medians = link["median_event_s_by_size_bytes"]
    worst = Fraction(0)
    for size, taken in medians.items():
        leg = Leg(
            src="host", dst="gpu:0", kind="h2d", link="pcie", bytes=int(size), copies=1,
            through=(line(link["event_fit_1KiB_to_1GiB"]),),
        )  # fmt: skip
        time = leg_time(leg, "observed")
        assert time.seconds is not None
        assert time.error is not None
        off = abs(time.seconds - Fraction(taken)) / Fraction(taken)
        assert off <= time.error, size
        worst = max(worst, off)
    assert len(medians) == 21
    assert worst > 0


def test_bandwidth_alone_misses_small_copies_by_far_which_is_why_latency_is_priced() -> None:
    link = json.loads(MEASURED.read_text())["links"]["h2d_pinned"]
    fit = link["event_fit_1KiB_to_1GiB"]
    alone = 4096 / fit["beta_bytes_per_s"]
    assert alone / link["median_event_s_by_size_bytes"]["4096"] < 0.02


def test_the_shares_of_the_table_are_those_that_were_measured() -> None:
    from planner.roofline import _ON_H200

    shape = json.loads(MEASURED.read_text())["decode"]["tuned_kernels"]["llama2_7B_shape"]
    moved = shape["weight_bytes_per_token"] + shape["kv_bytes_read_per_token_at_mid"]
    rate = moved / shape["fused_graph_wall_s"]
    assert abs(rate / 4.8e12 - float(_ON_H200["memory declared"][0])) < 0.001
    assert abs(rate / 4.528e12 - float(_ON_H200["memory observed"][0])) < 0.001
