"""What a cache takes on a worker: the planner's parts, summed over its ranks.

Where every part grows with the positions, memory is counted in blocks of positions. Windows and states do not grow so;
then it is counted in bytes, of all ranks of a worker together: n positions in whole blocks, a window's part no more
than its window, a state's part once. One figure says how full several ranks are where they are filled in one
proportion; where they are not, the worker is not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.errors import InconclusiveError
from fleet.model import Model
from fleet.workload import Workload
from planner.caches import held_parts
from planner.workers import Rank, rank_model


@dataclass(frozen=True, kw_only=True, slots=True)
class Hold:
    """Bytes of one sequence: `fixed`, `each` a position, and by window (tokens, bytes a position up to it)."""

    fixed: int = 0
    each: int = 0
    windows: tuple[tuple[int, int], ...] = ()

    @property
    def is_even(self) -> bool:
        """Whether n positions take n times as much as one."""
        return not self.fixed and not self.windows

    def at(self, positions: int) -> int:
        """Bytes of so many positions, which are whole blocks."""
        bound = sum(each * min(positions, window) for window, each in self.windows)
        return self.fixed + self.each * positions + bound


def hold_of(model: Model, workload: Workload, most: int) -> Hold:
    """What a model (or a rank's part of it) keeps of a sequence; a window of `most` positions or more bounds nothing.

    Bytes are those of `planner.caches`: the buffers that the planner lists.
    """
    fixed = each = 0
    windows: dict[int, int] = {}
    for part in held_parts(model, workload):
        nbytes = part.layers * part.position_bytes
        if part.is_state:
            fixed += nbytes
        elif part.window is None or part.window >= most:
            each += nbytes
        else:
            windows[part.window] = windows.get(part.window, 0) + nbytes
    return Hold(fixed=fixed, each=each, windows=tuple(sorted(windows.items())))


def worker_hold(model: Model, ranks: Sequence[Rank], workload: Workload, most: int) -> Hold:
    """The same of all ranks of a worker together. Raises InconclusiveError where they are filled unlike."""
    held = [
        hold_of(model if len(ranks) == 1 else rank_model(model, rank.cut), workload, most) for rank in ranks
    ]  # fmt: skip
    sizes = sorted({window for one in held for window, _ in one.windows})
    table = [(one.fixed, one.each, *(dict(one.windows).get(size, 0) for size in sizes)) for one in held]
    # A rank that keeps nothing is never full.
    if len({tuple(n // math.gcd(*row) for n in row) for row in table if any(row)}) > 1:
        names = ",".join(rank.device for rank in ranks)
        raise InconclusiveError(
            f"the ranks of {names} keep layers with and without windows or states in unlike shares, so that no one"
            " figure says how full all of them are: not simulated; use pp 1, or stages alike"
        )
    fixed, each, *bounded = (sum(column) for column in zip(*table, strict=True))
    return Hold(fixed=fixed, each=each, windows=tuple(zip(sizes, bounded, strict=True)))
