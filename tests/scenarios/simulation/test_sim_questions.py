"""`kvwaybill simulate` of a run scenario: its workload again and again, or a trace, with what is assumed in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from scenarios.api import simulate
from tests.command_line import Ask, asker


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def test_a_run_scenario_is_simulated_at_the_rate_that_it_keeps_up_with(ask: Ask) -> None:
    answer = ask("simulate", "two-gpu", "--requests", "200", "-o", "json")
    assert answer.code == 0
    counts, told = answer.document["requests"], " ".join(answer.document["assumed"])
    assert (counts["all"], counts["finished"]) == (200, 200)
    assert counts["prompt_tokens"] == 200 * 41
    assert counts["new_tokens"] == 200 * 56, "96 steps are 41 prompt tokens and 55 more passes: 56 tokens"
    for words in ("one worker a phase", "comes 200 times: 41 prompt tokens, 56 new ones", "as decode keeps up with"):
        assert words in told
    assert answer.document["handoffs"]["bytes"] == 200 * 41 * 2 * 5 * 32 * 4, "k and v of five layers of 32 floats"


def test_a_given_rate_and_what_was_assumed_stand_in_the_text(ask: Ask) -> None:
    answer = ask("simulate", "two-gpu-staged", "--rate", "500", "--requests", "20")
    assert answer.code == 0
    assert "Assumed" in answer.out
    assert "500 a second, as given" in answer.out


def test_a_trace_comes_in_place_of_the_scenarios_workload(ask: Ask, tmp_path: Path) -> None:
    trace = tmp_path / "t.csv"
    trace.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,10,5\n1,20,2\n")
    answer = ask("simulate", "two-gpu", "--trace", trace, "-o", "json")
    assert answer.code == 0
    assert answer.document["requests"]["prompt_tokens"] == 30
    assert "requests are the trace's, not the scenario's workload" in answer.document["assumed"]
    assert ask("simulate", "two-gpu", "--trace", trace, "--rate", "3").code == 2
    assert ask("simulate", "chat", "--trace", trace, "--requests", "3").code == 2


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("two-gpu-tight", 1, "short by"),
        ("two-gpu-unknown", 3, "is unknown"),
        ("two-gpu-host", 3, "attention on the host"),
        ("one-gpu", 3, "both phases on one device"),
    ],
)
def test_what_is_refused_unknown_or_not_simulated_says_so(ask: Ask, name: str, code: int, words: str) -> None:
    answer = ask("simulate", name)
    assert answer.code == code
    assert words in answer.out + answer.err


SCENARIO = """schema: kvwaybill/scenario/1
fleet: two-gpu-nvlink
workload: {prompt_tokens: 60, steps: 90}
placement: {prefill: gpu:0, decode: gpu:1}
"""
BAD = {
    "steps: 90": ("steps: 9", "end inside the prompt"),
    "gpu:1": ("gpu:7", "is not a device"),
    "workload": ("wrkload", "no such field"),
    "attention: host\n": ("kv_extent: allocated\n", "a handoff of the allocated cache"),
}


@pytest.mark.parametrize("old", BAD)
def test_a_bad_scenario_is_told_in_words(ask: Ask, tmp_path: Path, old: str) -> None:
    new, words = BAD[old]
    text = SCENARIO.replace(old, new) if old in SCENARIO else SCENARIO + new
    (tmp_path / "s.yaml").write_text(text)
    answer = ask("simulate", tmp_path / "s.yaml")
    assert answer.code == (3 if old not in SCENARIO else 2)
    assert words in answer.err


@pytest.mark.parametrize("words", [("two-gpu", "--rate", "0.001"), ("chat", "--rate", "0.000001")])
def test_requests_that_would_come_for_years_are_told_and_not_wrapped_around(ask: Ask, words: tuple[str, ...]) -> None:
    """Their picoseconds pass 64 bits: they came in the past."""
    answer = ask("simulate", *words, "--requests", "100000")
    assert answer.code == 2
    assert "a run may last 26" in answer.err


def test_blocks_of_the_scenario_are_the_blocks_of_the_cache(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO + "kv_extent: blocks:32\n")
    document = ask("simulate", tmp_path / "s.yaml", "--requests", "3", "-o", "json").document
    assert document["inputs"]["block_tokens"] == 32
    assert document["handoffs"]["bytes"] == 3 * 64 * 2 * 5 * 32 * 4, "whole blocks: 64 positions for 60"


def test_the_python_way_takes_both_kinds_of_files() -> None:
    document = simulate("two-gpu")
    assert document is not None
    assert document["requests"]["finished"] == 1000
