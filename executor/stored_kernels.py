"""Operations that read weights, K and V as the checkpoint stores them, in bf16 or fp16, without a wide copy of them.

Each element is widened to f32 where it is used, which is exact, and all sums are f32; what is written to a cache is
rounded to the nearest, ties to even. bf16 is held as uint16, fp16 as int16: two types, so that each has a kernel of its
own. Sums of a matmul are reassociated: one order for all numbers of tokens, but not llama2.c's. Operations that only
such models have (a norm's own epsilon, biases, a head's two halves turned) are here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types as _types
from numba.extending import intrinsic as _intrinsic
from numba.extending import overload as _overload

from executor.jit import compiled

F32 = npt.NDArray[np.float32]
Stored = npt.NDArray[Any]
"""float32, bf16 as uint16, or fp16 as int16."""

types: Any = _types
intrinsic: Any = _intrinsic
overload: Any = _overload
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_REASSOCIATED = {"reassoc", "contract", "nsz"}


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def float_of(typing: Any, word: Any) -> Any:
    """The f32 whose bits are `word`."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.uint32), emit


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def word_of(typing: Any, value: Any) -> Any:
    """The bits of an f32."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(32))

    return types.uint32(types.float32), emit


def widen(value: Any) -> Any:
    """A stored element as f32, in compiled code only; see `_widen`."""
    raise NotImplementedError  # compiled code takes the overload below, and nothing else may ask


@overload(widen)  # type: ignore[untyped-decorator]  # numba has no types
def _widen(value: Any) -> Any:
    if value == types.float32:
        return _same
    return _widen_bfloat if value == types.uint16 else _widen_half


def _same(value: Any) -> Any:
    return value


def _widen_bfloat(value: Any) -> Any:
    return float_of(np.uint32(value) << np.uint32(16))


def _widen_half(value: Any) -> Any:
    """fp16: its 15 bits as those of an f32 that is 2**112 times too small; infinity and NaN have their own exponent."""
    word = np.uint32(np.uint16(value))
    low = (word & np.uint32(0x7FFF)) << np.uint32(13)
    wide = word_of(float_of(low) * np.float32(2.0**112))
    if low >= np.uint32(0x7C00 << 13):
        wide = low | np.uint32(0x7F800000)
    return float_of(wide | ((word & np.uint32(0x8000)) << np.uint32(16)))


def narrow(value: Any, like: Any) -> Any:
    """An f32 as an element of the type of `like`, in compiled code only; see `_narrow`."""
    raise NotImplementedError  # compiled code takes the overload below, and nothing else may ask


@overload(narrow)  # type: ignore[untyped-decorator]  # numba has no types
def _narrow(value: Any, like: Any) -> Any:
    if like == types.float32:
        return _as_it_is
    return _narrow_bfloat if like == types.uint16 else _narrow_half


def _as_it_is(value: Any, like: Any) -> Any:
    return value


def _narrow_bfloat(value: Any, like: Any) -> Any:
    word = word_of(value)
    if word & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000):
        return np.uint16((word >> np.uint32(16)) | np.uint32(0x40))  # a NaN stays one
    return np.uint16((word + np.uint32(0x7FFF) + ((word >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


def _narrow_half(value: Any, like: Any) -> Any:
    word = word_of(value)
    sign, low = (word >> np.uint32(16)) & np.uint32(0x8000), word & np.uint32(0x7FFFFFFF)
    if low > np.uint32(0x7F800000):
        half = np.uint32(0x7E00)
    elif low >= np.uint32(0x477FF000):  # rounds beyond 65,504
        half = np.uint32(0x7C00)
    elif low < np.uint32(0x38800000):  # below 2**-14: the adder rounds to the multiples of 2**-24
        half = word_of(float_of(low) + np.float32(0.5)) - np.uint32(0x3F000000)
    else:
        odd = (low >> np.uint32(13)) & np.uint32(1)
        half = (low - np.uint32(0x38000000) + np.uint32(0xFFF) + odd) >> np.uint32(13)
    return np.int16(np.uint16(half | sign))


@compiled
def embed_stored(x: F32, table: Stored, tokens: npt.NDArray[np.int32]) -> int:
    """As `executor.kernels.embed`."""
    for t in range(tokens.shape[0]):
        token = tokens[t]
        if token < 0 or token >= table.shape[0]:
            return t
        for i in range(x.shape[1]):
            x[t, i] = widen(table[token, i])
    return -1


def _matmul_stored(out: F32, x: F32, w: Stored) -> None:
    """out[t, i] = sum over j of w[i, j] * x[t, j]."""
    for i in range(w.shape[0]):
        row = w[i]
        for t in range(x.shape[0]):
            a = _ZERO
            for j in range(x.shape[1]):
                a += widen(row[j]) * x[t, j]
            out[t, i] = a


matmul_stored = compiled(_matmul_stored, fastmath=_REASSOCIATED)


@compiled
def rmsnorm_eps(out: F32, x: F32, weight: Stored, eps_bits: int) -> None:
    """out[t] = weight * (x[t] / sqrt(mean of squares + eps)); out may be x. eps_bits: the bits of an f32."""
    n, eps = x.shape[1], float_of(np.uint32(eps_bits))
    for t in range(x.shape[0]):
        ss = _ZERO
        for j in range(n):
            ss += x[t, j] * x[t, j]
        ss = _ONE / math.sqrt(ss / np.float32(n) + eps)
        for j in range(n):
            out[t, j] = widen(weight[j]) * (ss * x[t, j])


@compiled
def bias(x: F32, row: Stored) -> None:
    """x[t] += row."""
    for t in range(x.shape[0]):
        for i in range(x.shape[1]):
            x[t, i] += widen(row[i])


@compiled
def rope_half(q: F32, k: F32, cos: F32, sin: F32, pos0: int, head_dim: int) -> None:
    """Turn element i of each head with element i + head_dim / 2, by the angles of the position."""
    half = head_dim // 2
    for t in range(q.shape[0]):
        p = pos0 + t
        for i in range(q.shape[1] // 2):
            at, h = (i // half) * head_dim + i % half, i % half
            c, s = cos[p, h], sin[p, h]
            a, b = q[t, at], q[t, at + half]
            q[t, at] = a * c - b * s
            q[t, at + half] = b * c + a * s
            if at < k.shape[1]:
                a, b = k[t, at], k[t, at + half]
                k[t, at] = a * c - b * s
                k[t, at + half] = b * c + a * s


@compiled
def rope_column(cos: F32, sin: F32, column: int, frequency_bits: int, scale_bits: int) -> None:
    """One pair's column of the tables: cos and sin of position * frequency, times scale; both as the bits of an f32."""
    frequency, scale = float_of(np.uint32(frequency_bits)), float_of(np.uint32(scale_bits))
    for p in range(cos.shape[0]):
        angle = np.float32(p) * frequency
        cos[p, column] = math.cos(angle) * scale
        sin[p, column] = math.sin(angle) * scale


@compiled
def attention_stored(
    out: F32, q: F32, k_cache: Stored, v_cache: Stored, att: F32, pos0: int, n_heads: int, n_kv_heads: int,
    head_dim: int,
) -> None:  # fmt: skip
    """As `executor.kernels.attention`, over caches that are widened as they are read."""
    group = n_heads // n_kv_heads
    root = math.sqrt(np.float32(head_dim))
    for t in range(q.shape[0]):
        n = pos0 + t + 1
        for h in range(n_heads):
            row, q0, k0 = att[h], h * head_dim, (h // group) * head_dim
            top = np.float32(-np.inf)
            for p in range(n):
                score = _ZERO
                for i in range(head_dim):
                    score += q[t, q0 + i] * widen(k_cache[p, k0 + i])
                row[p] = score / root
                if row[p] > top or p == 0:
                    top = row[p]
            total = _ZERO
            for p in range(n):
                row[p] = math.exp(row[p] - top)
                total += row[p]
            for i in range(head_dim):
                out[t, q0 + i] = _ZERO
            for p in range(n):
                share = row[p] / total
                row[p] = share
                for i in range(head_dim):
                    out[t, q0 + i] += share * widen(v_cache[p, k0 + i])


@compiled
def store_stored(cache: Stored, rows: F32) -> None:
    """cache = rows, each rounded to the nearest, ties to even."""
    for t in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            cache[t, i] = narrow(rows[t, i], cache[t, i])


STORED: dict[str, Callable[..., Any]] = {
    "embed": embed_stored,
    "matmul": matmul_stored,
    "rmsnorm_eps": rmsnorm_eps,
    "bias": bias,
    "rope_half": rope_half,
    "rope_column": rope_column,
    "attention": attention_stored,
    "store": store_stored,
}
"""By the names of `executor.ops.OPS`: what takes operands of two bytes, and what only such models have."""


def plain_type(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array as these kernels take it: fp16 under the type that stands for it."""
    return array.view(np.int16) if array.dtype == np.float16 else array
