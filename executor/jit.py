"""How kernels are compiled: by numba, kept on disk where a folder can be written, anew at each start where none can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types as _types

from executor.kept import make_safe

F = TypeVar("F", bound=Callable[..., Any])

_uncached: list[str] = []


def compiled(function: F, **options: Any) -> F:
    """`function` as a numba kernel, released from the interpreter's lock and with numpy's rules for errors.

    Numba keeps compiled code beside the source, else in the user's cache folder, else where NUMBA_CACHE_DIR says; with
    none of them writable (a read-only install, a user without a home) it refuses to cache, and we go without.
    """
    try:
        kernel = numba.njit(cache=True, error_model="numpy", nogil=True, **options)(function)
    except RuntimeError:
        kernel = numba.njit(cache=False, error_model="numpy", nogil=True, **options)(function)
        _uncached.append(function.__name__)
    if kernel is function:  # NUMBA_DISABLE_JIT
        return function
    make_safe(kernel, _uncached.append)
    _forget_literals(kernel)
    return cast(F, kernel)


def _forget_literals(kernel: Any) -> None:
    """Calls from other kernels with constants take the specialisation that any number of that type takes.

    Left to itself numba compiles a function anew for each constant that a caller passes: a third of the compile time.
    """
    types: Any = _types
    template = kernel.get_call_template

    def of_plain_types(args: Any, kws: Any) -> Any:
        return template([types.unliteral(t) for t in args], {name: types.unliteral(t) for name, t in kws.items()})

    kernel.get_call_template = of_plain_types


def cache_note() -> str | None:
    """One sentence where compiled code cannot be kept; None where it can."""
    if not _uncached:
        return None
    return "no folder for compiled kernels can be written: they are compiled anew at each start; set NUMBA_CACHE_DIR"
