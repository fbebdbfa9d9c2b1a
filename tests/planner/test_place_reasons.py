"""The reason of each lower placement, decider by decider, and the bound between kinds of cards under each routing."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest

from planner.place.candidate import OBJECTIVES, Candidate, Figures, deciders, ranked
from planner.place.grounds import Ground
from planner.place.lost import why_lost
from planner.times import Time

WORDS = {
    "handoff": "handoff", "ttft": "first token", "throughput": "a second and device", "devices": "devices",
    "cost": "an hour",
}  # fmt: skip
EVEN = Figures(devices=2, throughput=Fraction(10), cost=Fraction(5), slack_bytes=100)
WORSE: dict[str, Any] = {"devices": 3, "throughput": Fraction(9), "cost": Fraction(6)}


def time(seconds: int) -> Time:
    """A time as far as ranks and reasons look at it."""
    return cast("Time", SimpleNamespace(seconds=Fraction(seconds), error=None))


def placed(figures: Figures) -> Candidate:
    """An admitted pair with these figures."""
    return Candidate(prefill=(("gpu:0",),), decode=(("gpu:1",),), verdict="admitted", codes=(), figures=figures)


@pytest.mark.parametrize(
    ("objective", "name"), [(objective, name) for objective in OBJECTIVES for name in deciders(objective)]
)
def test_the_reason_is_the_one_figure_that_is_worse_however_late_it_decides(objective, name):
    even = replace(EVEN, handoff=time(1), ttft=time(2))
    first, other = placed(even), placed(replace(even, **{name: WORSE.get(name, time(4))}))
    assert ranked([other, first], objective) == [first, other]
    words = why_lost(first, other, objective)
    assert WORDS[name] in words.removeprefix("as good in ").rpartition("but ")[2]
    assert words.startswith("as good in ") == (name != objective)
    assert "room in memory" not in words
    assert "order of the fleet" not in words


@pytest.mark.parametrize(("nearest", "seconds"), [(True, 3), (False, 9)])
def test_kinds_are_apart_by_the_nearest_way_only_where_the_nearest_one_serves(nearest, seconds):
    times = {("a", "x"): 1, ("b", "x"): 9, ("a", "y"): 7, ("b", "y"): 3}
    bounds = SimpleNamespace(between=lambda pair: Fraction(times[pair]))
    ground = SimpleNamespace(nearest=nearest, _between={}, case=SimpleNamespace(bounds=bounds))
    found = Ground._kinds_apart(cast("Any", ground), cast("Any", ("a", "b")), cast("Any", ("x", "y")))
    assert found == (False, Fraction(seconds))
