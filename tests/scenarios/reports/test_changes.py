"""Two plans side by side: what changed, and why it matters."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.reports.changes import changes_block, plan_changes
from scenarios.table import Paint
from tests.command_line import asker, write_json
from tests.scenarios.made import plan

Document = dict[str, Any]


def by_what(a: Document, b: Document) -> dict[str, Document]:
    return {change["what"]: change for change in plan_changes(a, b)}


def test_a_plan_beside_itself_says_that_nothing_changed() -> None:
    assert plan_changes(plan(), plan()) == []
    assert "No changes" in changes_block([], Paint(False))[0][0]


def test_more_positions_are_named_as_the_reason_of_a_larger_cache() -> None:
    found = by_what(plan(), plan(positions=48))
    assert (found["positions"]["before"], found["positions"]["after"]) == ("24", "48")
    cache = found["gpu:0, gpu:1 kv_cache"]
    one, two = (each["memory"][0]["resident"]["kv_cache"] for each in (plan(), plan(positions=48)))
    assert f"{one:,} B" in cache["before"]
    assert f"{two:,} B" in cache["after"]
    assert f"+{two - one:,} B" in cache["after"]
    assert cache["why"] == "since positions 24 -> 48"
    assert not [what for what in found if what.startswith("handoff ")], "a filled handoff does not move with the cache"


def test_a_handoff_of_all_that_is_allocated_moves_with_the_positions() -> None:
    a, b = plan(kv_extent="allocated"), plan(kv_extent="allocated", positions=48)
    assert by_what(a, b)["handoff k gpu:0 -> gpu:1 (p2p)"]["why"] == "since positions 24 -> 48"


def test_a_verdict_names_the_device_the_line_and_the_input() -> None:
    small, large = plan(fleet="two-gpu-tight", steps=24), plan(fleet="two-gpu-tight", steps=200)
    assert (small["verdict"], large["verdict"]) == ("admitted", "refused")
    (short,) = [-entry["slack_bytes"] for entry in large["memory"] if entry["device"] == "gpu:1"]
    told = by_what(small, large)["verdict"]
    assert (told["before"], told["after"]) == ("admitted", "refused")
    assert f"gpu:1 no longer fits: short by {short:,} B" in told["why"]
    assert "kv_cache +" in told["why"]
    assert "since positions 24 -> 200" in told["why"]
    assert by_what(large, small)["verdict"]["why"].startswith("gpu:1 fits now")
    assert by_what(small, large)["TTFT"]["why"] == "a refused plan has no times"


def test_another_fleet_and_placement_are_told_with_new_and_lost_rows() -> None:
    found = by_what(plan(), plan(fleet="two-gpu-staged"))
    assert found["fleet"]["before"].startswith("two-gpu-nvlink (")
    assert found["gpu:0 -> gpu:1 (p2p)"]["sign"] == "-"
    assert found["gpu:0 -> host (d2h)"]["sign"] == "~"
    swapped = by_what(plan(), plan(prefill="gpu:1", decode="gpu:0"))
    assert (swapped["prefill"]["before"], swapped["prefill"]["after"]) == ("gpu:0", "gpu:1")


def test_nothing_that_stayed_is_named_as_a_reason() -> None:
    for change in plan_changes(plan(), plan(steps=30)):
        assert "batch" not in change["why"]
        assert "weights_dtype" not in change["why"]


@pytest.mark.parametrize("output", ["text", "md", "json", "html"])
def test_compare_prints_the_changes_in_every_format(output: str, tmp_path: Any, capfd: Any) -> None:
    ask = asker(capfd)
    a, b = write_json(tmp_path / "a.json", plan()), write_json(tmp_path / "b.json", plan(positions=48))
    found = ask("compare", a, b, "-o", output)
    assert found.code == 1
    assert "since positions 24" in found.out
    if output == "json":
        assert found.document["rows"], "the contract's rows stay"
        again = ask("report", write_json(tmp_path / "c.json", found.document), "-o", "md")
        assert "since positions 24" in again.out
