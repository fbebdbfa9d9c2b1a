"""Has the compiled call of a phase at hand before it is timed, and says so where that takes a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from executor.packed import slots
from executor.packed.fused import run_phase
from executor.packed.jit import start_threads
from executor.packed.pieces import Book
from executor.packed.steps import own_exp_agrees, rope_table
from executor.ready import make_calls_ready


def make_ready(mode: Any, team: Any, plain: Any, tell: Callable[[str], None] | None = None) -> None:
    """Load the compiled call of this variant, or compile it: `tell` hears before and after, only where it compiles."""
    if team is not None:
        start_threads(team)
    make_calls_ready([(run_phase, _no_pass(mode, team, plain)), (rope_table, (0, 0, 0, 2)), (own_exp_agrees, ())], tell)


def _no_pass(mode: Any, team: Any, plain: Any) -> tuple[Any, ...]:
    """Arguments of a stretch of no passes: of the types of any other, and nothing is done."""
    rows, places, codes = (np.zeros((0, width), np.int64) for width in (11, 4, slots.OP_CODES))
    trace = np.zeros((slots.TRACES, 1, slots.TRACE_COLUMNS), np.int64)
    state = np.zeros(slots.STATE_LENGTH, np.int64)
    book = Book(rows=rows, places=places, codes=codes, trace=trace, state=state)
    ids, top1 = np.zeros(0, np.int32), np.zeros(0, np.uint32)
    return np.zeros(slots.PLAN_LENGTH, np.int64), book, ids, ids, top1, mode, team, plain
