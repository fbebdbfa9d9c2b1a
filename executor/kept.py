"""Numba's folder of compiled code, made safe: what is damaged is compiled again, what cannot be written is not kept.

Left to itself numba ends the program on a damaged file or a full disk, and two processes that keep variants of one
function at the same moment may each take the other's file for their own.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DAMAGED = (
    pickle.UnpicklingError, EOFError, AttributeError, ImportError, LookupError, TypeError, ValueError, MemoryError,
)  # fmt: skip
"""What unpickling the rest of a torn file, or another file in its place, can raise."""


def make_safe(kernel: Any, cannot_keep: Callable[[str], None]) -> None:
    """Wrap the reading and writing of a numba function's cache. `cannot_keep` hears its name where a write fails.

    The methods are numba's own and private; where another version lacks them nothing is wrapped.
    """
    file: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if not all(hasattr(file, name) for name in ("_load_index", "_load_data", "save", "_cache_path")):
        return
    load_index, load_data, save = file._load_index, file._load_data, file.save

    def index() -> Any:
        try:
            found = load_index()
        except (*_DAMAGED, OSError):
            return {}
        return found if isinstance(found, dict) else {}

    def data(name: str) -> Any:
        try:
            found = load_data(name)
        except _DAMAGED as error:
            raise FileNotFoundError(f"{name} is damaged") from error  # which numba takes for: not kept
        if not isinstance(found, tuple):
            raise FileNotFoundError(f"{name} holds something else")
        return found

    def keep(key: Any, compiled: Any) -> None:
        try:
            with _alone_in(file._cache_path):
                save(key, compiled)
        except OSError:
            cannot_keep(kernel.__name__)

    file._load_index, file._load_data, file.save = index, data, keep


@contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Other processes that keep something in `folder` wait meanwhile. No lock where the system has none."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    at = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(at, fcntl.LOCK_EX)
        yield
    finally:
        os.close(at)
