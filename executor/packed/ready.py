"""Has the compiled call of a phase at hand before it is timed, and says so where that takes a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from executor.jit import cache_note
from executor.packed import slots
from executor.packed.fused import run_phase
from executor.packed.pieces import Book
from executor.packed.steps import rope_table

_numba: Any = numba
_typeof: Any = numba.typeof


def make_ready(mode: Any, team: Any, plain: Any, tell: Callable[[str], None] | None = None) -> None:
    """Load the compiled call of this variant, or compile it: `tell` hears before and after, only where it compiles."""
    arguments = _no_pass(mode, team, plain)
    dispatcher: Any = run_phase
    known = tuple(_typeof(argument) for argument in arguments)
    if any(tuple(signature) == known for signature in dispatcher.signatures):
        return
    if team is not None:
        # Code from the cache calls into the threading layer, which numba starts by itself only when it compiles.
        _numba.set_num_threads(min(team, _numba.config.NUMBA_NUM_THREADS))
    compiles = not _is_kept(dispatcher, known)
    if compiles and tell is not None:
        tell("compiling the kernels, once ...")
    began = time.perf_counter()
    run_phase(*arguments)
    rope_table(0, 0, 0, 2)
    if compiles and tell is not None:
        kept = "kept for the next run" if cache_note() is None else cache_note()
        tell(f"compiled the kernels in {time.perf_counter() - began:.1f} s; {kept}")


def _no_pass(mode: Any, team: Any, plain: Any) -> tuple[Any, ...]:
    """Arguments of a stretch of no passes: of the types of any other, and nothing is done."""
    rows, places, codes = (np.zeros((0, width), np.int64) for width in (11, 4, slots.OP_CODES))
    trace = np.zeros((slots.TRACES, 1, slots.TRACE_COLUMNS), np.int64)
    state = np.zeros(slots.STATE_LENGTH, np.int64)
    book = Book(rows=rows, places=places, codes=codes, trace=trace, state=state)
    ids, top1 = np.zeros(0, np.int32), np.zeros(0, np.uint32)
    return np.zeros(slots.PLAN_LENGTH, np.int64), book, ids, ids, top1, mode, team, plain


def _is_kept(dispatcher: Any, signature: tuple[Any, ...]) -> bool:
    """Whether numba's cache on disk holds this variant. False where that cannot be told.

    numba has no public question for it; what is asked here is what its own look-up asks.
    """
    cache = dispatcher._cache
    file, key_of = getattr(cache, "_cache_file", None), getattr(cache, "_index_key", None)
    if file is None or key_of is None:
        return False
    return key_of(signature, dispatcher.targetctx.codegen()) in file._load_index()
