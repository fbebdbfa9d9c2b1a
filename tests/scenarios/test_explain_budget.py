"""A budget that does not follow from the plan's own share and reserve is told."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.explain import explain
from scenarios.planning import make_plan
from scenarios.wanted import prepare, wanted_of

Document = dict[str, Any]


def budgets(plan: Document) -> list[bool]:
    return [d.follows for d in explain(plan, None) if d.subject.endswith(" budget")]


def test_budgets_follow_from_capacity_share_and_reserve() -> None:
    for words in ({}, {"utilization": "0.917"}, {"utilization": "35 %"}):
        assert budgets(make_plan(prepare(wanted_of("two-gpu", words)))) == [True, True]


@pytest.mark.parametrize("changed", [{"utilization": "0.5"}, {"reserve_bytes": 1}, {"utilization": "none"}])
def test_a_false_share_or_reserve_is_told(changed: Document) -> None:
    plan = make_plan(prepare(wanted_of("two-gpu", {})))
    assert budgets(plan | {"inputs": plan["inputs"] | changed}) == [False, False]


@pytest.mark.parametrize("junk", [[], {}, "1", None, True, 1.5])
def test_a_reserve_that_is_no_figure_breaks_nothing(junk: object) -> None:
    plan = make_plan(prepare(wanted_of("two-gpu", {})))
    assert budgets(plan | {"inputs": plan["inputs"] | {"reserve_bytes": junk}}) == [True, True]
