"""Draws a token id from logits as llama2.c does: temperature, top-p, xorshift64*. On the host, from a seed.

Every figure is f32 and every sum runs over rising indices, so from equal logits come llama2.c's own ids. Where
llama2.c's qsort leaves the order of equal probabilities open, the lower id comes first here. Source: karpathy/llama2.c,
run.c, commit 350e04f: random_u32, random_f32, sample, sample_mult, sample_topp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from executor.kernels import softmax
from executor.packed.jit import compiled
from fleet.workload import Sampling

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]

TEMPERATURE, TOP_P = 0, 1
"""Columns of the settings of `draw`."""

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_STEPS = np.float32(16777216.0)  # 2^24: as many floats in [0, 1) does the generator give
_FIRST, _SECOND, _THIRD, _WORD, _BYTE = (np.uint64(n) for n in (12, 25, 27, 32, 8))
_FACTOR = np.uint64(0x2545F4914F6CDD1D)


@compiled
def random_f32(state: I64) -> Any:
    """The next float in [0, 1). state: (1,), the bits of the generator, never 0."""
    bits = np.uint64(state[0])
    bits ^= bits >> _FIRST
    bits ^= bits << _SECOND
    bits ^= bits >> _THIRD
    state[0] = np.int64(bits)
    return np.float32(((bits * _FACTOR) >> _WORD) >> _BYTE) / _STEPS


@compiled
def first_largest(values: F32) -> int:
    """The index of the first largest value. A NaN never wins; one at index 0 is never beaten."""
    best = 0
    for i in range(1, values.shape[0]):
        if values[i] > values[best]:
            best = i
    return best


@compiled
def draw(logits: F32, order: I32, settings: F32, state: I64) -> Any:
    """An id drawn from `logits` (V,), which become probabilities. order: (V,) scratch; settings: temperature, top-p.

    Logits that have no probabilities (a NaN, an infinity) give what run.c gives, the last id; with top-p, where run.c
    leaves its list, the first.
    """
    n = logits.shape[0]
    for i in range(n):
        logits[i] /= settings[TEMPERATURE]
    softmax(logits, n)
    coin = random_f32(state)
    if _ZERO < settings[TOP_P] < _ONE:
        return _nucleus(logits, order, settings[TOP_P], coin)
    reached = _ZERO
    for i in range(n):
        reached += logits[i]
        if coin < reached:
            return i
    return n - 1  # the sum may round to less than the coin


@compiled
def _nucleus(shares: F32, order: I32, top_p: Any, coin: Any) -> Any:
    """From the smallest set of ids, the likeliest first, whose probabilities exceed top_p."""
    n = shares.shape[0]
    cutoff = (_ONE - top_p) / np.float32(n - 1)  # what is below cannot belong to the set
    count = 0
    for i in range(n):
        if shares[i] >= cutoff:
            order[count] = i
            count += 1
    if count == 0:  # top_p below 1 / n, or no numbers: llama2.c reads before its list here
        return first_largest(shares)
    for root in range(count // 2 - 1, -1, -1):
        _sink(shares, order, root, count)
    total, kept = _ZERO, 0
    while kept < count and not total > top_p:
        last = count - 1 - kept  # the likeliest of the heap goes behind it
        order[0], order[last] = order[last], order[0]
        _sink(shares, order, 0, last)
        total += shares[order[last]]
        kept += 1
    aim, reached = coin * total, _ZERO
    for k in range(kept):
        reached += shares[order[count - 1 - k]]
        if aim < reached:
            return order[count - 1 - k]
    return order[count - kept]


@compiled
def _sink(shares: F32, order: I32, root: int, count: int) -> None:
    """Let the id at `root` sink in the heap order[:count] until nothing likelier, or equal and lower, lies below it."""
    at, child = root, 2 * root + 1
    while child < count:
        if child + 1 < count and _before(shares, order[child + 1], order[child]):
            child += 1
        if not _before(shares, order[child], order[at]):
            return
        order[at], order[child] = order[child], order[at]
        at, child = child, 2 * child + 1


@compiled
def _before(shares: F32, one: int, other: int) -> bool:
    return shares[one] > shares[other] or (shares[one] == shares[other] and one < other)


class Sampler:
    """The host's side of a request that draws its ids: the generator, and room for logits that came home.

    logits: (V,) f32, where they are put before `draw`; `address` is that of a table [state, logits, order, settings] of
    int64, the first the generator's bits and the others addresses, for a compiled call that draws by itself.
    """

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._seed = sampling.seed
        self.logits: F32 = np.zeros(vocab_size, np.float32)
        self._order: I32 = np.zeros(vocab_size, np.int32)
        self._settings: F32 = np.array([sampling.temperature, sampling.top_p], np.float32)
        arrays: tuple[npt.NDArray[Any], ...] = (self.logits, self._order, self._settings)
        self._table: I64 = np.array([self._seed, *(array.ctypes.data for array in arrays)], np.int64)

    @property
    def address(self) -> int:
        """Where the table lies."""
        return int(self._table.ctypes.data)

    def restart(self) -> None:
        """Begin the seed's sequence anew."""
        self._table[0] = self._seed

    def choose(self) -> tuple[int, int]:
        """(an id drawn from `logits`, the bits of the first largest of them). Overwrites `logits`."""
        top1_bits = int(self.logits.view(np.uint32)[first_largest(self.logits)])
        return int(draw(self.logits, self._order, self._settings, self._table[:1])), top1_bits
