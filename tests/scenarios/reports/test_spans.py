"""The spans of a run: when each order was carried out, by the clock of the host."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from scenarios.documents import read_document
from tests.command_line import asker


def test_a_run_tells_when_each_order_began_and_ended(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    ask = asker(capfd)
    out = tmp_path / "run.json"
    assert ask("run", "two-gpu", "--prompt", "hey", "--steps", "9", "--run-out", out).code == 0
    spans = read_document(str(out), ("run",))["spans"]
    assert [(span["phase"], span["src"], span["dst"], span["tensor"], span["orders"]) for span in spans] == [
        ("stage", "host", "gpu:0", None, 12),
        ("stage", "host", "gpu:1", None, 12),
        ("prefill", None, "gpu:0", None, 1),
        ("handoff", "gpu:0", "gpu:1", "k", 1),
        ("handoff", "gpu:0", "gpu:1", "v", 1),
        ("decode", None, "gpu:1", None, 1),
    ]
    assert spans[0]["start_ns"] == 0
    assert all(span["start_ns"] < span["end_ns"] for span in spans)
    assert all(one["end_ns"] <= other["start_ns"] for one, other in pairwise(spans))


def test_without_handoff_there_is_no_span_of_a_copy(capfd: pytest.CaptureFixture[str]) -> None:
    ask = asker(capfd)
    found = ask("run", "two-gpu", "--prompt", "hey", "--steps", "9", "--without", "handoff", "-o", "json")
    assert [span["phase"] for span in found.document["spans"]] == ["stage", "stage", "prefill", "decode"]
