"""What stands beside the rows of a run: observers, threads, cache written, logits; and two runs set side by side."""

from __future__ import annotations

import copy
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scenarios.compare import compare
from tests.command_line import Ask, asker
from tests.scenarios.made import check, failed, plan, run_of, sha256

Document = dict[str, Any]
NAN, INFINITE, LARGE = "7fc00000", "7f800000", "7f7fffff"


def settings(**words: Any) -> Callable[[Document], Any]:
    return lambda run: run.update(settings=(run.get("settings") or {}) | words)


EDITS: dict[str, tuple[Callable[[Document], Any], str]] = {
    "nobody looked": (settings(observers=[]), "settings.observers are none, but there is witness arrival"),
    "only arenas were looked at": (settings(observers=["residency"]), "settings.observers are residency, but there is"),
    "arenas were not looked at": (settings(observers=["arrival"]), "but there are high-water marks"),
    "threads of another path": (
        lambda run: (settings(threads=4)(run), run.update(path="dispatch")),
        "settings.threads is 4, but path dispatch computes on one",
    ),
    "fast in another layout": (settings(fast=True), "settings.fast is true, but layout plain has no fast mode"),
    "another cache": (
        lambda run: run.update(cache_written_bytes=1),
        "cache_written_bytes is 1, its decode passes make",
    ),
}


@pytest.mark.parametrize("case", EDITS)
def test_a_run_whose_settings_contradict_it_is_different(case: str) -> None:
    edit, told = EDITS[case]
    planned = plan()
    run = run_of(planned)
    assert check(compare(planned, run), "run_agrees_with_itself")["result"] == "passed"
    edit(run)
    finding = check(compare(planned, run), "run_agrees_with_itself")
    assert finding["result"] == "failed"
    assert told in finding["detail"]


def test_settings_that_fit_are_fine() -> None:
    planned = plan()
    run = run_of(planned)
    settings(observers=["arrival", "residency"], threads=1)(run)
    assert check(compare(planned, run), "run_agrees_with_itself")["result"] == "passed"


@pytest.mark.parametrize("bits", [NAN, INFINITE, "ffc00001"])
def test_logits_that_are_no_numbers_are_never_equal(bits: str) -> None:
    planned = plan()
    run = run_of(planned)
    assert compare(planned, run)["verdict"] == "equal"
    run["logits_top1_bits"][0] = LARGE
    assert compare(planned, run)["verdict"] == "equal"
    run["logits_top1_bits"][0] = bits
    comparison = compare(planned, run)
    assert comparison["verdict"] == "inconclusive"
    assert "1 of" in check(comparison, "run_agrees_with_itself")["detail"]
    assert compare(run, copy.deepcopy(run))["verdict"] == "inconclusive"


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def test_a_checkpoint_of_nan_runs_and_ends_with_cannot_say(tmp_path: Path, ask: Ask) -> None:
    from tests.checkpoint_files import Dims, checkpoint_bytes

    data = bytearray(checkpoint_bytes(Dims(seq_len=32), 0)[0])
    floats = (len(data) - 28) // 8  # the first half of them
    data[28 : 28 + 4 * floats] = struct.pack("<f", float("nan")) * floats
    model = tmp_path / "model.bin"
    model.write_bytes(bytes(data))
    out = tmp_path / "plan.json"
    assert ask("admit", "--fleet", "two-gpu-nvlink", "--model", model, "--steps", "6", "--plan-out", out).code == 0
    answer = ask("run", out, "-o", "json")
    assert answer.code == 3
    assert answer.document["comparison"]["verdict"] == "inconclusive"


CHANGED: dict[str, tuple[Callable[[Document], Any], str, str]] = {
    "a digest": (
        lambda run: run["arrivals"][0].update(digest_src=sha256("x"), digest_dst=sha256("x")),
        "kv_content_unchanged", "pairs of tensor and layer differ, the first is k of 0",
    ),
    "a digest more": (lambda run: run["arrivals"].pop(), "kv_content_unchanged", "differ"),
    "a run that contradicts itself": (
        lambda run: run.update(generated_tokens=[]), "run_agrees_with_itself", "B: generated_tokens are not",
    ),
    "observers that did not look": (settings(observers=[]), "run_agrees_with_itself", "B: settings.observers are none"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGED)
def test_two_runs_differ_in_content_and_in_what_they_claim(case: str) -> None:
    edit, name, told = CHANGED[case]
    run = run_of(plan())
    other = copy.deepcopy(run)
    assert compare(run, other)["verdict"] == "equal"
    edit(other)
    comparison = compare(run, other)
    assert name in failed(comparison)
    assert told in check(comparison, name)["detail"]


def test_the_cache_that_decode_wrote_is_compared_where_both_runs_say_it() -> None:
    first = run_of(plan()) | {"cache_written_bytes": 64}
    assert check(compare(first, dict(first)), "kv_content_unchanged")["result"] == "passed"
    assert "kv_content_unchanged" in failed(compare(first, first | {"cache_written_bytes": 32}))


def test_other_settings_are_told_and_decide_nothing() -> None:
    run = run_of(plan()) | {"settings": {"threads": 1, "observers": ["arrival", "residency"]}}
    other = copy.deepcopy(run) | {"settings": {"threads": 1, "observers": ["arrival", "residency"], "fast": True}}
    comparison = compare(run | {"path": "fused"}, other | {"path": "dispatch"})
    assert comparison["verdict"] == "equal"
    detail = check(comparison, "settings_unchanged")["detail"]
    assert "fast unstated -> True" in detail
    assert "path fused -> dispatch" in detail
    assert check(compare(run, copy.deepcopy(run)), "settings_unchanged")["result"] == "passed"


def test_two_plans_have_neither_settings_nor_content() -> None:
    comparison = compare(plan(), plan())
    for name in ("settings_unchanged", "run_agrees_with_itself", "kv_content_unchanged"):
        assert check(comparison, name)["result"] == "waived"
