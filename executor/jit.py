"""How kernels are compiled: by numba, kept on disk where a folder can be written, anew at each start where none can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

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
    return cast(F, kernel)


def cache_note() -> str | None:
    """One sentence where compiled code cannot be kept; None where it can."""
    if not _uncached:
        return None
    return "no folder for compiled kernels is writable: they are compiled anew at each start; set NUMBA_CACHE_DIR"
