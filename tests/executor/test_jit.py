"""Kernels run where no folder for compiled code can be written, or where what lies in it is damaged."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import pytest

from executor import jit
from executor.kept import make_safe


def test_kernels_are_compiled_without_a_cache_where_none_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def no_locator(*, cache: bool, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function 'double': no locator available")
        return real(cache=cache, **options)

    monkeypatch.setattr(jit, "numba", SimpleNamespace(njit=no_locator))
    monkeypatch.setattr(jit, "_uncached", [])

    def double(x: int) -> int:
        return 2 * x

    assert jit.cache_note() is None
    assert jit.compiled(double)(21) == 42
    assert "NUMBA_CACHE_DIR" in str(jit.cache_note())


@jit.compiled
def _callee(first: int, second: int) -> int:
    return first + second


def test_constants_that_other_kernels_pass_do_not_compile_a_kernel_again() -> None:
    dispatcher, types = _any(_callee), _any(numba.types)
    number = types.int64
    for passed in ([types.literal(1), number], [number, types.literal(2)], [number, number]):
        dispatcher.get_call_template(passed, {})
    assert dispatcher.signatures == [(number, number)]


def _any(value: Any) -> Any:
    return value


_USER = """
import sys
from executor import jit

@jit.compiled
def double(x):
    return 2 * x

print(double(int(sys.argv[1])), jit.cache_note() is None, len(double.stats.cache_hits))
"""


def _use(folder: Path, number: str = "21") -> list[str]:
    (folder / "user.py").write_text(_USER)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_CACHE_DIR": str(folder / "kept")}
    words = [sys.executable, str(folder / "user.py"), number]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("ending", "content"), [("nbi", b""), ("nbc", b"\n\x00torn"), ("nbc", pickle.dumps("of another kind"))]
)
def test_a_damaged_file_of_the_cache_is_compiled_again_and_mended(ending: str, content: bytes, tmp_path: Path) -> None:
    assert _use(tmp_path) == ["42", "True", "0"]
    (kept,) = (tmp_path / "kept").rglob(f"*.{ending}")
    kept.write_bytes(content)
    assert _use(tmp_path) == ["42", "True", "0"]
    assert _use(tmp_path) == ["42", "True", "1"]


def test_a_cache_that_cannot_be_written_is_told_and_does_without() -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    told: list[str] = []
    kernel = SimpleNamespace(__name__="double", _cache=SimpleNamespace(_cache_file=_files("/", full)))
    make_safe(kernel, told.append)
    kernel._cache._cache_file.save("key", "data")
    assert told == ["double"]


def test_two_processes_keep_what_they_compiled_one_after_the_other(tmp_path: Path) -> None:
    """Each would else find the same next name free, and one would later run the other's code."""
    fcntl = pytest.importorskip("fcntl")
    tried: list[str] = []

    def save(*_: Any) -> None:
        other = os.open(tmp_path, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(other)
        tried.append("alone")

    kernel = SimpleNamespace(__name__="double", _cache=SimpleNamespace(_cache_file=_files(str(tmp_path), save)))
    make_safe(kernel, tried.append)
    kernel._cache._cache_file.save("key", "data")
    kernel._cache._cache_file.save("key", "data")
    assert tried == ["alone", "alone"]


def _files(folder: str, save: Any) -> Any:
    return SimpleNamespace(_cache_path=folder, _load_index=dict, _load_data=str, save=save)
