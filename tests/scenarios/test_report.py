"""Text for people: figures with units and exact bytes, aligned, and nothing that could steer a terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.checks import CHECK_NAMES
from scenarios.compare import compare
from scenarios.limits import comparison_limits, plan_limits, proof_limits, run_limits
from scenarios.report import comparison_text, fix_words, plan_text, proof_text, run_text
from scenarios.table import Paint, Table, width_of
from tests.scenarios.made import plan, run_of

ESCAPE = re.compile(r"\x1b\[[0-9]+m")


def without_color(text: str) -> str:
    return ESCAPE.sub("", text)


@pytest.mark.parametrize("words", [{}, {"attention": "host"}, {"fleet": "two-gpu-staged"}])
def test_a_plan_shows_every_figure_of_its_rows_edges_and_memory(words: dict[str, Any]) -> None:
    planned = plan(**words)
    text = plan_text(planned)
    assert text.startswith("ADMITTED")
    for part in (*planned["waybill"], *planned["edges"]):
        assert f"{part['bytes']:,} B" in text
        assert f"{part['copies']:,}" in text
    for entry in planned["memory"]:
        assert f"{entry['total_bytes']:,} B" in text
        assert all(f"{figure:,} B" in text for figure in entry["resident"].values() if figure)
    assert all(limit in text for limit in planned["limits"])
    assert all(default in text for default in planned["defaults"])


def test_exact_bytes_stand_beside_rounded_ones() -> None:
    assert "1,041,664 B (1017.25 KiB)" in plan_text(plan())


def test_a_refusal_shows_shortfall_and_fix() -> None:
    refused = plan(utilization="0.0001")
    text = plan_text(refused)
    assert text.startswith("REFUSED")
    reason = refused["reasons"][0]
    assert reason["code"] in text
    assert f"shortfall {reason['shortfall_bytes']:,} B" in text
    assert f"fix: {fix_words(reason['fix'])}" in text


def test_a_fix_names_flag_or_field_and_what_it_was() -> None:
    assert fix_words({"flag": "--positions", "from": 128, "to": 64}) == "--positions 64 (was 128)"
    field = {"field": "skus.a.capacity", "from": None, "to": "80 GiB"}
    assert fix_words(field) == "skus.a.capacity: 80 GiB"
    assert fix_words({"flag": "--batch", "from": 4, "to": 1, "and": [field]}).endswith(" and skus.a.capacity: 80 GiB")


def test_an_unverified_plan_of_an_unknown_model_is_told() -> None:
    bare = {
        "schema": "kvwaybill/plan/1",
        "verdict": "unverified",
        "reasons": [{"code": "MODEL_UNKNOWN", "severity": "unknown", "message": "family x is not understood"}],
        "limits": plan_limits(None),
    }
    assert "family x is not understood" in plan_text(bare)


def test_a_run_shows_text_dispatches_rows_checks_and_marks() -> None:
    planned = plan()
    run = run_of(planned) | {"text": "Hello\x1b[31m world\n"}
    run["comparison"] = compare(planned, run)
    text = run_text(run)
    assert text.startswith("EQUAL on numba (emulated)")
    assert "\x1b" not in text
    assert "Hello\\x1b[31m world" in text
    assert all(check["name"] in text for check in run["comparison"]["checks"])
    assert all(f"{entry['high_water_bytes']:,} B" in text for entry in run["resident"])
    assert "unwitnessed" in text


def test_a_run_without_comparison_is_shown_too() -> None:
    assert run_text(run_of(plan())).startswith("ran on numba")


def test_a_shortened_run_says_what_it_is_compared_by() -> None:
    planned = plan()
    text = comparison_text(compare(planned, run_of(planned, stopped_after=5)))
    full = planned["passes"]["decode"]
    assert f"5 of {full} decode" in text


def test_colour_changes_no_letter() -> None:
    planned = plan()
    run = run_of(planned)
    run["comparison"] = compare(planned, run)
    for render, document in ((plan_text, planned), (run_text, run), (comparison_text, run["comparison"])):
        plain, colored = render(document), render(document, color=True)
        assert "\x1b" not in plain
        assert "\x1b" in colored
        assert without_color(colored) == plain


def test_the_matrix_shows_each_check_under_each_sabotage() -> None:
    rows = [
        {"sabotage": "handoff deleted", "must_fail": ["edges_match"], "must_pass": ["resident_match"],
         "failed": ["edges_match", "kv_content_arrived"], "verdict": "caught"},
        {"sabotage": "theatre", "must_fail": ["no_stray_access"], "must_pass": ["edges_match"],
         "failed": ["edges_match"], "verdict": "missed", "detail": "edges_match failed"},
        {"sabotage": "nothing", "must_fail": [], "must_pass": [], "failed": [], "verdict": "waived",
         "detail": "one layer"},
    ]  # fmt: skip
    proof = {"verdict": "not proved", "matrix": rows, "comparisons": [], "never_failed": ["decode_dispatched"],
             "limits": proof_limits("device", "emulated")}  # fmt: skip
    text = proof_text(proof)
    assert text.startswith("NOT PROVED  1 of 2 sabotages caught")
    marks = {
        line.split()[0]: line.split()[1:]
        for line in text.splitlines()
        if line.split()[:1] and line.split()[0] in CHECK_NAMES
    }
    assert marks["edges_match"] == ["FAIL", "ERR", "-"]
    assert marks["resident_match"] == ["ok", ".", "-"]
    assert marks["no_stray_access"] == [".", "no", "-"]
    assert marks["kv_content_arrived"] == ["fail", ".", "-"]
    assert "decode_dispatched: passed, but no sabotage made it fail" in text
    assert "theatre: edges_match failed" in text


cells = st.text(st.characters(codec="utf-8"), max_size=12)


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5))
def test_columns_line_up_whatever_stands_in_them(rows: list[tuple[str, str, str]]) -> None:
    table = Table("title", ">middle", ">last")
    for row in rows:
        table.add(*row)
    lines = table.lines(Paint(False))
    assert all(line.isprintable() for line in lines)
    # The last column is right-aligned, so every line that has something there ends at one column.
    ends = {width_of(line) for line, row in zip(lines[1:], rows, strict=True) if row[2].strip() and row[2][-1:].strip()}
    assert len(ends) <= 1


def test_an_empty_table_has_no_heading() -> None:
    assert Table("a", "b").lines(Paint(True)) == []


@pytest.mark.parametrize("attention", ["device", "host"])
@pytest.mark.parametrize("tier", ["emulated", "on-device"])
def test_limits_name_type_batch_mode_and_tier(attention: str, tier: str) -> None:
    limits = "\n".join(run_limits(attention, tier, {"arrival"} if tier == "emulated" else set()))
    assert "f32" in limits
    assert "batch 1" in limits
    assert f"attention: {attention}" in limits
    assert f"tier {tier}" in limits


def test_limits_say_when_no_witness_looked() -> None:
    assert any("No witness looked" in limit for limit in run_limits("device", "on-device"))


def test_limits_of_a_comparison_follow_what_is_compared() -> None:
    planned = plan()
    run = run_of(planned)
    assert "nothing ran" in comparison_limits(planned, planned)[0]
    assert "Two runs" in comparison_limits(run, run)[0]
    assert any("arrival witness" in limit for limit in comparison_limits(planned, run))
