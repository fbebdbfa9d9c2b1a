"""What has to be compiled is said before and after, once; what is kept is loaded without a word."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from executor import ready
from executor.packed import ready as packed_ready
from executor.packed.fused import run_phase
from executor.packed.ready import make_ready
from executor.ready import make_calls_ready
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
    monkeypatch.setattr(ready, "is_kept", lambda dispatcher, signature: kept)
    make_calls_ready([(Dispatcher(), (1,))], told.append)
    assert [word for word in told if word != "called"] == [w for w in told if any(map(w.startswith, words))]
    assert len(told) == 1 + len(words)
    if words:
        assert told[1] == "called"
        assert told[2].endswith("kept for the next run")


def test_the_question_whether_a_variant_is_kept_is_numbas_own() -> None:
    make_ready(None, None, None)
    known = ready.signature_of(run_phase, packed_ready._no_pass(None, None, None))
    assert ready.is_kept(run_phase, known)
    assert not ready.is_kept(run_phase, known[:-1])
    assert not ready.is_kept(type("Uncached", (), {"_cache": None})(), known)


_COLD = """
import sys
from executor.run import Executor
from tests.executor.requests import embedded, orders_for

request = dict(steps=20, attention=sys.argv[1], temperature=float(sys.argv[2]), layout=sys.argv[3])
with Executor(orders_for(embedded().model, **request), embedded(), path="dispatch", tell=print) as executor:
    print("compiled so far", file=sys.stderr)
    from executor.ready import kernel_calls
    known = {function: list(function.signatures) for function, _ in kernel_calls(draws=True, packed=True)}
    executor.run()
    print([f.__name__ for f, had in known.items() if had and list(f.signatures) != had])
    print([f.__name__ for f, had in known.items() if not had and f.signatures])
"""


@pytest.mark.parametrize(
    ("attention", "temperature", "layout"),
    [("device", "0", "plain"), ("host", "0.8", "plain"), ("device", "0.8", "packed16")],
)
def test_a_cold_run_by_dispatch_tells_once_and_then_compiles_nothing(
    attention: str, temperature: str, layout: str, tmp_path: Path
) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_CACHE_DIR": str(tmp_path)}
    words = [sys.executable, "-c", _COLD, attention, temperature, layout]
    first, second = (
        subprocess.run(words, env=environment, capture_output=True, text=True, check=False) for _ in range(2)
    )
    assert (first.returncode, second.returncode) == (0, 0)
    told = first.stdout.splitlines()
    assert told[0] == "compiling the kernels, once ..."
    assert told[1].startswith("compiled the kernels in ")
    assert told[1].endswith(" s; kept for the next run")
    assert told[2:] == second.stdout.splitlines() == ["[]", "[]"]


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
