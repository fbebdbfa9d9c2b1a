"""How the kernels of the event loop are compiled: the inner ones as parts of one, which alone is kept on disk.

Nothing but the loop is called from Python, so the others need no way in from there: that is most of the compile time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from executor.jit import compiled as _kept

KERNELS = ("blocks", "columns", "handoffs", "loop", "queues", "steps", "stretch")
"""Files of this folder that are compiled."""

F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """A kernel that only other kernels call."""
    njit: Any = numba.njit  # its stubs know less than it takes
    kernel = njit(cache=False, error_model="numpy", nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(
        function
    )
    return cast(F, kernel)


def outer(function: F) -> F:
    """The kernel that Python calls. Kept on disk until a file of `KERNELS` changes, not only its own."""
    kernel: Any = _kept(function)
    kept: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = (kept._source_stamp, _stamp())
    return cast(F, kernel)


def _stamp() -> tuple[tuple[str, int, int], ...]:
    folder = os.path.dirname(os.path.abspath(__file__))
    seen = [(name, os.stat(os.path.join(folder, f"{name}.py"))) for name in KERNELS]
    return tuple((name, stat.st_mtime_ns, stat.st_size) for name, stat in seen)
