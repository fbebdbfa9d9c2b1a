"""The operations of `executor.ops` on the CPU, in plain row-major layout and strict f32: llama2.c's exact bits.

Every sum starts at 0 and runs over rising indices with a multiply and an add apart; nothing is reassociated or fused.
Rows of a matmul are independent sums, so eight of them run side by side: that changes no bit. exp, pow, sin and cos are
the C library's single precision functions. Order of operations: karpathy/llama2.c, run.c, commit 350e04f.

Kernels check nothing: `executor.ops.check_shapes` does, for the device ABI; who has host arrays calls `run_op`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

# A vector math library rounds unlike the C library, and numba decides on it when it is first imported.
os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")

import numpy as np
import numpy.typing as npt
from numba.core import config

from executor.arena import NUMPY_DTYPES
from executor.jit import compiled
from executor.ops import check_positions, check_shapes, op_spec, ordered_scalars
from fleet.errors import BackendError, BackendUnavailableError

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

_DTYPE_NAMES = {value: key for key, value in NUMPY_DTYPES.items()}
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_EPSILON = np.float32(1e-5)
_ROPE_BASE = np.float32(10000.0)


def require_c_library_math() -> None:
    """Raise BackendUnavailableError when numba was loaded, before this module, with a vector math library."""
    if getattr(config, "USING_SVML", False):
        raise BackendUnavailableError(
            "numba was loaded with a vector math library, whose exp is not the C library's to the bit; "
            "set NUMBA_DISABLE_INTEL_SVML=1 in the environment"
        )


require_c_library_math()


@compiled
def embed(x: F32, table: F32, tokens: I32) -> int:
    """x[t] = table[tokens[t]]. Gives -1, or the index of the first token outside the table, where it stops."""
    for t in range(tokens.shape[0]):
        token = tokens[t]
        if token < 0 or token >= table.shape[0]:
            return t
        for i in range(x.shape[1]):
            x[t, i] = table[token, i]
    return -1


@compiled
def rmsnorm(out: F32, x: F32, weight: F32) -> None:
    """out[t] = weight * (x[t] / sqrt(mean of squares + 1e-5)); out may be x."""
    n = x.shape[1]
    for t in range(x.shape[0]):
        ss = _ZERO
        for j in range(n):
            ss += x[t, j] * x[t, j]
        ss /= np.float32(n)
        ss += _EPSILON
        ss = _ONE / math.sqrt(ss)
        for j in range(n):
            out[t, j] = weight[j] * (ss * x[t, j])


@compiled
def matmul(out: F32, x: F32, w: F32) -> None:
    """out[t, i] = sum over j of w[i, j] * x[t, j], each sum in the order of j. Eight rows of w are read at once."""
    d, n = w.shape
    whole = d - d % 8
    for i in range(0, whole, 8):
        for t in range(x.shape[0]):
            a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = _ZERO
            for j in range(n):
                v = x[t, j]
                a0 += w[i, j] * v
                a1 += w[i + 1, j] * v
                a2 += w[i + 2, j] * v
                a3 += w[i + 3, j] * v
                a4 += w[i + 4, j] * v
                a5 += w[i + 5, j] * v
                a6 += w[i + 6, j] * v
                a7 += w[i + 7, j] * v
            out[t, i] = a0
            out[t, i + 1] = a1
            out[t, i + 2] = a2
            out[t, i + 3] = a3
            out[t, i + 4] = a4
            out[t, i + 5] = a5
            out[t, i + 6] = a6
            out[t, i + 7] = a7
    for i in range(whole, d):
        for t in range(x.shape[0]):
            a = _ZERO
            for j in range(n):
                a += w[i, j] * x[t, j]
            out[t, i] = a


@compiled
def rope(q: F32, k: F32, cos: F32, sin: F32, pos0: int, head_dim: int) -> None:
    """Rotate the pairs (i, i + 1) of q and k in place by the angles of their position, from tables of `rope_table`."""
    for t in range(q.shape[0]):
        p = pos0 + t
        for i in range(0, q.shape[1], 2):
            h = (i % head_dim) // 2
            c, s = cos[p, h], sin[p, h]
            a, b = q[t, i], q[t, i + 1]
            q[t, i] = a * c - b * s
            q[t, i + 1] = a * s + b * c
            if i < k.shape[1]:
                a, b = k[t, i], k[t, i + 1]
                k[t, i] = a * c - b * s
                k[t, i + 1] = a * s + b * c


@compiled
def attention(
    out: F32,
    q: F32,
    k_cache: F32,
    v_cache: F32,
    att: F32,
    pos0: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
) -> None:
    """out[t] = softmax(q[t] . k / sqrt(head_dim)) v over positions 0 .. pos0 + t, a head at a time.

    att: scratch, one row a head; it holds the last token's weights afterwards.
    """
    group = n_heads // n_kv_heads
    root = math.sqrt(np.float32(head_dim))
    for t in range(q.shape[0]):
        n = pos0 + t + 1
        for h in range(n_heads):
            row = att[h]
            q0, k0 = h * head_dim, (h // group) * head_dim
            for p in range(n):
                score = _ZERO
                for i in range(head_dim):
                    score += q[t, q0 + i] * k_cache[p, k0 + i]
                row[p] = score / root
            softmax(row, n)
            for i in range(head_dim):
                out[t, q0 + i] = _ZERO
            for p in range(n):
                a = row[p]
                for i in range(head_dim):
                    out[t, q0 + i] += a * v_cache[p, k0 + i]


@compiled
def softmax(row: F32, n: int) -> None:
    """The first n of a row become exp(x - largest), divided by their sum."""
    top = row[0]
    for p in range(1, n):
        if row[p] > top:
            top = row[p]
    total = _ZERO
    for p in range(n):
        row[p] = math.exp(row[p] - top)
        total += row[p]
    for p in range(n):
        row[p] /= total


@compiled
def store(cache: F32, rows: F32) -> None:
    """cache = rows: those that were computed beside a cache, at their positions of it."""
    for t in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            cache[t, i] = rows[t, i]


@compiled
def add(x: F32, y: F32) -> None:
    """x += y."""
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[t, i] += y[t, i]


@compiled
def swiglu(h1: F32, h3: F32) -> None:
    """h1 = h1 * (1 / (1 + exp(-h1))) * h3."""
    for t in range(h1.shape[0]):
        for i in range(h1.shape[1]):
            v = h1[t, i]
            v *= _ONE / (_ONE + math.exp(-v))
            h1[t, i] = v * h3[t, i]


@compiled
def argmax(out: I32, logits: F32) -> None:
    """out[0] = the index of the first largest logit. A NaN never wins; one at index 0 is never beaten."""
    best, top = 0, logits[0]
    for i in range(1, logits.shape[0]):
        if logits[i] > top:
            best, top = i, logits[i]
    out[0] = best


@compiled
def rope_table(cos: F32, sin: F32, head_dim: int) -> None:
    """cos, sin of position * 10000^-(i / head_dim) for the even i below head_dim: one column a pair."""
    for h in range(cos.shape[1]):
        frequency = _ONE / math.pow(_ROPE_BASE, np.float32(2 * h) / np.float32(head_dim))
        for p in range(cos.shape[0]):
            angle = np.float32(p) * frequency
            cos[p, h] = math.cos(angle)
            sin[p, h] = math.sin(angle)


KERNELS: dict[str, Callable[..., Any]] = {
    "embed": embed,
    "rmsnorm": rmsnorm,
    "matmul": matmul,
    "rope": rope,
    "attention": attention,
    "store": store,
    "add": add,
    "swiglu": swiglu,
    "argmax": argmax,
    "rope_table": rope_table,
}
"""The kernels by the names of `executor.ops.OPS`: arrays output first, then the scalars in the order of that table."""


def call_kernel(op: str, arrays: Sequence[npt.NDArray[Any]], scalars: Sequence[int]) -> None:
    """Run a kernel on arrays that were checked before. BackendError for a token id outside the embedding table."""
    result = _kernel_for(op, arrays)(*arrays, *scalars)
    if result is not None and result >= 0:
        ids, rows = arrays[2], arrays[1].shape[0]
        raise BackendError(f"embed: token id {ids[result]} at index {result} is not below {rows}, the vocabulary")


def _kernel_for(op: str, arrays: Sequence[npt.NDArray[Any]]) -> Callable[..., Any]:
    """llama2.c's kernel, or that of `executor.stored_kernels` where an operand has elements of two bytes."""
    if op in KERNELS and all(array.itemsize == 4 for array in arrays):
        return KERNELS[op]
    from executor.stored_kernels import STORED, plain_type

    return lambda *given: STORED[op](*(plain_type(a) for a in given[: len(arrays)]), *given[len(arrays) :])


def run_op(op: str, *arrays: npt.NDArray[Any], **scalars: int) -> None:
    """Run an operation of `executor.ops` on host arrays: output first, C-contiguous, of the types of the table.

    Read-only operands are fine. Raises BackendError when shapes, types or scalars do not fit.
    """
    values = ordered_scalars(op, scalars)
    dtypes = tuple(_DTYPE_NAMES.get(a.dtype, str(a.dtype)) for a in arrays)
    check_shapes(op, tuple(a.shape for a in arrays), dtypes, values[1:] if "pos0" in scalars else values)
    if "pos0" in scalars:
        check_positions(op, scalars["pos0"], arrays[0].shape[0], arrays[2].shape[0])
    spec = op_spec(op)
    if spec.distinct and any(np.may_share_memory(arrays[0], other) for other in arrays[1:]):
        raise BackendError(f"{op}: the output overlaps an operand")
    call_kernel(op, [_plain(op, a, i < spec.written) for i, a in enumerate(arrays)], values)


def _plain(op: str, array: npt.NDArray[Any], written: bool) -> npt.NDArray[Any]:
    flags = array.flags
    if not flags.c_contiguous or not flags.aligned:
        raise BackendError(f"{op}: an operand is strided or unaligned; pass np.require(it, requirements='CA')")
    if flags.writeable:
        return array
    if written:
        raise BackendError(f"{op}: the output is read-only")
    # Numba compiles read-only arrays as a type of their own; the same memory under a plain type is compiled already.
    return np.asarray(_Plain(array))


class _Plain:
    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.owner = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
