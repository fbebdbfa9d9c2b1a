"""What has to be compiled is said before and after, once; what is kept is loaded without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor.packed import ready
from executor.packed.ready import make_ready
from executor.run import Executor
from tests.executor.requests import embedded, orders_for


def test_a_variant_at_hand_is_not_told() -> None:
    told: list[str] = []
    make_ready(None, None, None)
    make_ready(None, None, None, told.append)
    with Executor(orders_for(embedded().model, steps=20, layout="packed16"), embedded(), tell=told.append):
        assert told == []


@pytest.mark.parametrize(
    ("kept", "words"), [(True, []), (False, ["compiling the kernels", "compiled the kernels in "])]
)
def test_a_variant_that_is_not_kept_is_told_before_and_after(
    kept: bool, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dispatcher:
        signatures: tuple[Any, ...] = ()

        def __call__(self, *arguments: Any) -> None:
            told.append("called")

    told: list[str] = []
    monkeypatch.setattr(ready, "run_phase", Dispatcher())
    monkeypatch.setattr(ready, "_is_kept", lambda dispatcher, signature: kept)
    make_ready(None, None, None, told.append)
    assert [word for word in told if word != "called"] == [w for w in told if any(map(w.startswith, words))]
    assert len(told) == 1 + len(words)
    if words:
        assert told[1] == "called"
        assert told[2].endswith("kept for the next run")


def test_the_question_whether_a_variant_is_kept_is_numbas_own() -> None:
    make_ready(None, None, None)
    known = tuple(map(ready._typeof, ready._no_pass(None, None, None)))
    assert ready._is_kept(ready.run_phase, known)
    assert not ready._is_kept(ready.run_phase, known[:-1])
    assert not ready._is_kept(type("Uncached", (), {"_cache": None})(), known)


_FRESH = """
from executor.run import Executor
from tests.executor.requests import embedded, orders_for

with Executor(orders_for(embedded().model, steps=24, layout="packed16"), embedded(), threads=2) as executor:
    print(*executor.run().tokens)
"""


def test_threads_run_from_kept_code_in_a_fresh_process() -> None:
    """numba starts its threads when it compiles, not when it loads: code from the cache would call into nothing."""
    make_ready(None, 2, None)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run(
        [sys.executable, "-c", _FRESH], env=environment, capture_output=True, text=True, check=False
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert len(answer.stdout.split()) == 25
