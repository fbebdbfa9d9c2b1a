"""Kernels: what is waiting, running and held over time, as exact integrals over equal bins.

A change by n at a time adds n to its bin, and n times what is left of that bin to a second sum: both together are the
integral of the level over every bin, whatever happened between. Bins grow by 2 and 5 in turn when time passes the last
one, so that the number of bins stays and every width is a round one.
"""

from __future__ import annotations

from typing import Any

from scenarios.simulation.columns import BIN, BIN_LEFT, BIN_WIDTH, GROW_BY
from scenarios.simulation.jit import inner


def _note(s: Any, w: int, kind: int, n: int) -> None:
    """The level `kind` of a worker changes by n now."""
    s.steps[w, kind, s.g[BIN]] += n
    s.parts[w, kind, s.g[BIN]] += n * float(s.g[BIN_LEFT])


note = inner(_note)


def _note_at(s: Any, w: int, kind: int, n: int, time: int) -> None:
    """The same at a time before now."""
    at = time // s.g[BIN_WIDTH]
    s.steps[w, kind, at] += n
    s.parts[w, kind, at] += n * float((at + 1) * s.g[BIN_WIDTH] - time)


note_at = inner(_note_at)


def _widen(s: Any) -> None:
    """Joins bins."""
    by, width = s.g[GROW_BY], s.g[BIN_WIDTH]
    rows, kinds, bins = s.steps.shape
    for w in range(rows):
        for kind in range(kinds):
            for i in range(bins):
                n, part = 0, 0.0
                for j in range(i * by, min(bins, (i + 1) * by)):  # 10 divides the number of bins
                    part += s.parts[w, kind, j] + n * float(width)
                    n += s.steps[w, kind, j]
                s.steps[w, kind, i], s.parts[w, kind, i] = n, part
    s.g[BIN_WIDTH] = width * by
    s.g[GROW_BY] = 7 - by


widen = inner(_widen)


def _tick(s: Any, time: int) -> None:
    """Now is `time`."""
    while time // s.g[BIN_WIDTH] >= s.steps.shape[2]:
        widen(s)
    s.g[BIN] = time // s.g[BIN_WIDTH]
    s.g[BIN_LEFT] = (s.g[BIN] + 1) * s.g[BIN_WIDTH] - time


tick = inner(_tick)
