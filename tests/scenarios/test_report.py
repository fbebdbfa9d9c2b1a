"""Text for people: figures with units and exact bytes, aligned, and nothing that could steer a terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.admissions import admissions_document
from scenarios.checks import CHECK_NAMES
from scenarios.compare import compare
from scenarios.limits import comparison_limits, plan_limits, proof_limits, run_limits
from scenarios.report import admissions_text, plan_text
from scenarios.report_proof import proof_text
from scenarios.report_run import comparison_text, run_text
from scenarios.table import Paint, Table, folded, width_of
from scenarios.words import fix_words, without_repeats
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
             "limits": proof_limits("device", "emulated", {"arrival"})}  # fmt: skip
    text = proof_text(proof)
    assert text.startswith("NOT PROVED  1 of 2 sabotages caught")
    marks = {
        line.split()[0]: line.split()[1:]
        for line in text.splitlines()
        if line.split()[:1] and line.split()[0] in CHECK_NAMES
    }
    assert marks["edges_match"] == ["F", "!", "-"]
    assert marks["resident_match"] == ["p", ".", "-"]
    assert marks["no_stray_access"] == [".", "?", "-"]
    assert marks["kv_content_arrived"] == ["f", ".", "-"]
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


def test_a_link_without_latency_gives_a_lower_bound_that_is_marked() -> None:
    planned = plan(fleet="gpu-and-cpu", decode="cpu:0")
    bounded = [row for row in planned["waybill"] if row.get("lower_bound")]
    assert {(row["src"], row["dst"]) for row in bounded} == {("host", "cpu:0"), ("cpu:0", "host")}
    assert all(row["legs"][0]["lower_bound"] for row in bounded)
    text = plan_text(planned)
    # and of the time to the first token, which a small prefill bounds too, and where the limits explain it
    assert planned["time"]["ttft_lower_bound"]
    assert planned["time"]["tpot_s"] is None
    assert text.count(">= ") == len(bounded) + 2
    assert "states no latency" in text
    assert "lower_bound" not in plan()["handoff"]
    over = plan(fleet="gpu-and-cpu", decode="cpu:0")
    over["handoff"]["lower_bound"] = True
    assert ">= " in next(line for line in plan_text(over).splitlines() if line.startswith("Handoff"))


def test_a_time_without_a_rate_is_called_unpriced() -> None:
    planned = plan(decode="gpu:0")
    assert [row["seconds"] for row in planned["waybill"] if row["phase"] == "handoff"] == [None, None]
    lines = [line for line in plan_text(planned).splitlines() if line.startswith("  handoff")]
    assert all(line.endswith("unpriced") for line in lines)


@pytest.mark.parametrize(
    ("words", "told", "advice"),
    [
        ({"steps": 9}, "9 passes end inside the prompt of 11 tokens", "ask for --steps 12 or more"),
        ({"steps": 11}, "11 passes end with the prompt", "ask for --steps 12 or more"),
        ({"steps": None, "new_tokens": 1}, "11 passes end with the prompt", "ask for --new-tokens 2 or more"),
        ({"prompt": None, "prompt_tokens": 300}, "inside the prompt of 300", "give a prompt of 255 at most"),
    ],
)
def test_passes_that_end_with_the_prompt_are_warned_of(words: dict[str, Any], told: str, advice: str) -> None:
    planned = plan(**words)
    (warning,) = planned["warnings"]
    assert told in warning
    assert advice in warning
    assert "\nHandoff     none\n" in plan_text(planned)
    assert warning in plan_text(planned)
    assert plan(steps=12)["warnings"] == []


def test_passes_beyond_the_model_are_cut_in_words() -> None:
    assert plan(steps=256)["warnings"] == []
    (warning,) = plan(steps=1_000_000)["warnings"]
    assert warning == "1,000,000 passes were asked for; the model has 256 positions, so 256 are planned"


def test_the_second_line_says_what_was_asked() -> None:
    planned = plan()
    asked = plan_text(planned).splitlines()[1]
    for words in ("11 prompt + 14 new tokens in 24 passes", "batch 1", "weights fp32", "KV fp32", "extent filled",
                  "attention device", f"plan {planned['id'][:12]}"):  # fmt: skip
        assert words in asked


def test_the_memory_table_adds_up_what_a_run_must_show() -> None:
    planned = plan()
    held = run_of(planned)["resident"]
    (line,) = [line for line in plan_text(planned).splitlines() if line.startswith("  = buffers")]
    assert all(f"{entry['high_water_bytes']:,} B" in line for entry in held)


def test_one_fix_for_several_reasons_is_told_once() -> None:
    refused = plan(utilization="0.0001")
    assert len(refused["reasons"]) == 2
    assert plan_text(refused).count("fix: ") == 1


def test_several_fleets_begin_with_a_line_for_each() -> None:
    plans = [plan(), plan(utilization="0.0001"), plan(fleet="two-gpu-unknown")]
    head = admissions_text(plans).split("\n\n")[0].splitlines()
    assert [line.split()[1] for line in head] == ["verdict", "admitted", "refused", "unverified"]
    refused = plans[1]["memory"][0]
    assert all(f"{refused[field]:,} B" in head[2] for field in ("total_bytes", "budget_bytes", "slack_bytes"))
    assert "unknown" in head[3]


def test_the_row_of_a_fleet_says_in_json_what_the_table_says() -> None:
    plans = [plan(), plan(utilization="0.0001"), plan(fleet="two-gpu-unknown")]
    document = admissions_document(plans)
    assert document["plans"] == plans
    for row, held in zip(document["fleets"], plans, strict=True):
        assert set(row) == {
            "fleet", "verdict", "binding", "device", "required_bytes", "available_bytes", "margin_bytes", "handoff",
        }  # fmt: skip
        assert row["handoff"]["seconds"] == held["handoff"]["seconds"]
        [entry] = [entry for entry in held["memory"] if entry["device"] == row["device"]]
        assert (row["required_bytes"], row["margin_bytes"]) == (entry["total_bytes"], entry["slack_bytes"])
        assert row["device"] in row["binding"]
    assert document["fleets"][2]["margin_bytes"] is None


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_the_table_of_fleets_fits_a_terminal_and_is_colourless_unless_asked(width: int) -> None:
    plans = [plan(), plan(utilization="0.0001")]
    head = admissions_text(plans, width=width).split("\n\n")[0].splitlines()
    assert all(len(line) <= width for line in head)
    whole = " ".join(head)
    for word in ("verdict", "binding line") if width > 100 else ():
        assert word in whole
    for word in ("required", "available", "margin", "handoff"):
        assert word in whole
    assert "\x1b" not in whole
    assert "\x1b[31mrefused" in admissions_text(plans, color=True)


def test_two_plans_are_set_side_by_side_as_a_and_b() -> None:
    text = comparison_text(compare(plan(), plan(kv_extent="allocated")))
    rows = [line for line in text.splitlines() if line.startswith("  handoff  ")]
    assert [line.split()[1] for line in rows] == ["k", "v"]
    assert "predicted  " not in text
    assert "6 more rows the same in A and B" in text
    assert re.search(r"waived: concerns a plan and its run; two plans are compared here: \w+, ", text)
    assert "All 8 rows have the same bytes and copies" in comparison_text(compare(plan(), plan()))


def test_a_piece_that_is_repeated_over_and_over_stands_once() -> None:
    assert without_repeats("A tale" + "<unk>" * 49) == "A tale[<unk> x 49]"
    assert without_repeats("aaaaaaa and bbbbbbb") == "aaaaaaa and bbbbbbb"


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.integers(40, 90), st.integers(0, 8))
def test_folded_text_keeps_its_words_and_the_width(text: str, width: int, hang: int) -> None:
    lines = folded(text, width, hang)
    assert " ".join(lines).split() == text.split()
    assert all(width_of(line) <= width or " " not in line.strip() for line in lines)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("words", [{}, {"fleet": "two-gpu-staged"}, {"utilization": "0.0001"}, {"attention": "host"}])
def test_a_terminal_is_not_written_over_its_edge(words: dict[str, Any], width: int) -> None:
    planned = plan(**words)
    texts = [plan_text(planned, width=width)]
    if planned["verdict"] == "admitted":
        run = run_of(planned)
        run["comparison"] = compare(planned, run)
        texts.append(run_text(run, width=width))
    for text in texts:
        over = [line for line in text.splitlines() if width_of(line) > width]
        assert all(max(map(width_of, line.split())) > width - 10 for line in over)  # a word is never cut
        figures = {f"{part['bytes']:,} B" for part in planned["edges"]}
        assert all(figure in " ".join(text.split()) for figure in figures)
