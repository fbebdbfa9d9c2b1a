"""Kernels run where no folder for compiled code can be written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numba
import pytest

from executor import jit


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
