"""How this package compiles: kept on disk, without the interpreter's lock, stale when any of its files changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

# A vector math library rounds unlike the C library, and numba decides on it when it is first imported.
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")

import numba

_numba: Any = numba
prange: Any = _numba.prange
carray: Any = _numba.carray
"""An array over an address, inside compiled code."""

F = TypeVar("F", bound=Callable[..., Any])


def source_stamp() -> tuple[float, int]:
    """Newest change and total size of the files of this package."""
    files = [path.stat() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return max(file.st_mtime for file in files), sum(file.st_size for file in files)


_STAMP = source_stamp()


def compiled(function: F) -> F:
    """Compile in strict IEEE order, cached on disk.

    numba drops a cached function when its own file changes, and keeps it when a file that it calls into does: machine
    code of another version would then run. So every function here carries the stamp of the whole package.
    """
    return cast(F, _stamped(numba.njit(cache=True, error_model="numpy", nogil=True)(function)))


def reordered(function: F) -> F:
    """As `compiled`, but sums may be taken in any order and multiplies fused with adds: for the fast mode only."""
    fastmath = {"reassoc", "contract", "nsz"}
    return cast(F, _stamped(numba.njit(cache=True, error_model="numpy", nogil=True, fastmath=fastmath)(function)))


def parallel(function: F) -> F:
    """As `compiled`, with `prange` loops over numba's threads. Loads its threading layer, so only where asked for."""
    return cast(F, _stamped(numba.njit(cache=True, error_model="numpy", nogil=True, parallel=True)(function)))


def _stamped(dispatcher: Any) -> Any:
    dispatcher._cache._cache_file._source_stamp = _STAMP
    return dispatcher
