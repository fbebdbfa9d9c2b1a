"""Kernels: what a step looks at through windows: attention to the last so many positions and no others.

A token at position p attends to min(p + 1, window) positions, its own among them. A chunk of n tokens reads the cache
from the first position that its first token attends to: min(end, window - 1 + n) positions, as `planner.work` has it.
"""

from __future__ import annotations

from typing import Any

from scenarios.simulation.columns import (
    ATTENDED,
    CHUNK,
    DECODING,
    DONE,
    GROWING,
    KV,
    NRUN,
    PAIRS,
    READ,
    ST,
)  # fmt: skip
from scenarios.simulation.jit import inner


def _chunk_pairs(done: int, n: int, window: int) -> int:
    """Positions that n tokens after `done` of their prompt attend to, in all."""
    below = max(0, min(n, window - done))
    return below * done + below * (below + 1) // 2 + (n - below) * window


chunk_pairs = inner(_chunk_pairs)


def _look(c: Any, s: Any, w: int) -> None:
    """Sums over the next step of a worker, window by window: those of its chunks, and of its decoding tokens."""
    for j in range(len(c.windows)):
        window = c.windows[j]
        pairs = read = attended = growing = 0
        for i in range(s.V[w, NRUN]):
            r = s.run[w, i]
            if s.R[r, ST] == DECODING:
                attended += min(s.R[r, KV] + 1, window)
                growing += s.R[r, KV] + 1 < window
            elif s.R[r, CHUNK] > 0:
                done, n = s.R[r, DONE], s.R[r, CHUNK]
                pairs += chunk_pairs(done, n, window)
                read += min(done + n, window - 1 + n)
        s.seen[j, PAIRS], s.seen[j, READ], s.seen[j, ATTENDED], s.seen[j, GROWING] = pairs, read, attended, growing


look = inner(_look)
