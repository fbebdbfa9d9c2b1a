"""How this package compiles: kept on disk, without the interpreter's lock, stale when any of its files changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

# A vector math library rounds unlike the C library, and numba decides on it when it is first imported.
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")

import numba

from executor.jit import compiled as strict

_numba: Any = numba
prange: Any = _numba.prange
carray: Any = _numba.carray
"""An array over an address, inside compiled code."""

F = TypeVar("F", bound=Callable[..., Any])


_CALLED = [Path(__file__).parents[1] / name for name in ("kernels.py", "jit.py", "sampling.py")]


def source_stamp() -> tuple[float, int]:
    """Newest change and total size of the files of this package, and of those that it calls."""
    here = Path(__file__).parent
    files = [path.stat() for path in sorted([*here.glob("*.py"), *_CALLED])]
    return max(file.st_mtime for file in files), sum(file.st_size for file in files)


_STAMP = source_stamp()


def compiled(function: F) -> F:
    """Compile in strict IEEE order, cached on disk.

    numba drops a cached function when its own file changes, and keeps it when a file that it calls into does: machine
    code of another version would then run. So every function here carries the stamp of the whole package.
    """
    return _kept(function)


def reordered(function: F) -> F:
    """As `compiled`, but sums may be taken in any order and multiplies fused with adds: for the fast mode only."""
    return _kept(function, fastmath={"reassoc", "contract", "nsz"})


def parallel(function: F) -> F:
    """As `compiled`, with `prange` loops over numba's threads. Loads its threading layer, so only where asked for."""
    return _kept(function, parallel=True)


def start_threads(team: int) -> None:
    """Have numba's threads run, for `team` of them or as many as there may be.

    Code from the cache calls into the threading layer, which numba starts by itself only when it compiles.
    """
    _numba.set_num_threads(min(team, _numba.config.NUMBA_NUM_THREADS))


def _kept(function: F, **options: Any) -> F:
    """Kept on disk where some folder can be written, compiled anew at each start where none can."""
    dispatcher: Any = strict(function, **options)
    kept = getattr(dispatcher._cache, "_cache_file", None)
    if kept is not None:
        kept._source_stamp = _STAMP
    return cast(F, dispatcher)
