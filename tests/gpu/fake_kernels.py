"""The CUDA kernels by name, computed on the processor: what each must do with its parameters, in their order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from executor import kernels as cpu

WARPS = 4


def f32(address: int, *shape: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_float * int(np.prod(shape))).from_address(address)).reshape(shape)


def i32(address: int, count: int = 1) -> Any:
    return np.ctypeslib.as_array((ctypes.c_int32 * count).from_address(address))


def embed(grid: Any, x: int, table: int, tokens: int, fault: int, vocab: int, dim: int) -> None:
    for t, token in enumerate(i32(tokens, grid[0])):
        if not 0 <= token < vocab:
            i32(fault, 3)[:] = 1, t, token
            return
        f32(x, grid[0], dim)[t] = f32(table, vocab, dim)[token]


def rmsnorm(grid: Any, out: int, x: int, weight: int, n: int) -> None:
    cpu.rmsnorm(f32(out, grid[0], n), f32(x, grid[0], n), f32(weight, n))


def matvec(grid: Any, out: int, x: int, w: int, d: int, n: int, split: int) -> None:
    assert grid[0] * 2 * (1 if split else WARPS) >= d
    cpu.matmul(f32(out, grid[1], d), f32(x, grid[1], n), f32(w, d, n))


def matmul(grid: Any, out: int, x: int, w: int, rows: int, d: int, n: int) -> None:
    cpu.matmul(f32(out, rows, d), f32(x, rows, n), f32(w, d, n))


def rope(
    grid: Any, q: int, k: int, cos: int, sin: int, pos: int, pos0: int, dim: int, kv_dim: int, head_dim: int
) -> None:
    first = int(i32(pos)[0]) if pos else pos0
    tables = [f32(t, first + grid[1], head_dim // 2) for t in (cos, sin)]
    cpu.rope(f32(q, grid[1], dim), f32(k, grid[1], kv_dim), *tables, first, head_dim)


def attention(
    grid: Any, out: int, q: int, k: int, v: int, pos: int, pos0: int, n_heads: int, n_kv_heads: int, head_dim: int
) -> None:
    first, rows = int(i32(pos)[0]) if pos else pos0, grid[1]
    caches = [f32(c, first + rows, n_kv_heads * head_dim) for c in (k, v)]
    width = n_heads * head_dim
    scratch = np.zeros((n_heads, first + rows), np.float32)
    cpu.attention(f32(out, rows, width), f32(q, rows, width), *caches, scratch, first, n_heads, n_kv_heads, head_dim)


def add(grid: Any, x: int, y: int, n: int) -> None:
    cpu.add(f32(x, 1, n), f32(y, 1, n))


def swiglu(grid: Any, h1: int, h3: int, n: int) -> None:
    cpu.swiglu(f32(h1, 1, n), f32(h3, 1, n))


def argmax(grid: Any, out: int, logits: int, bits: int, pos: int, pos0: int, n: int) -> None:
    cpu.argmax(i32(out), f32(logits, n))
    if pos:
        at = i32(pos)
        i32(bits, int(at[0]) - pos0 + 1)[-1] = f32(logits, n).view(np.int32)[i32(out)[0]]
        at[0] += 1


def advance(grid: Any, pos: int) -> None:
    i32(pos)[0] += 1


def rope_table(grid: Any, cos: int, sin: int, positions: int, half: int, head_dim: int) -> None:
    cpu.rope_table(f32(cos, positions, half), f32(sin, positions, half), head_dim)


def _normed(x: int, gain: int, n: int) -> Any:
    out = np.zeros((1, n), np.float32)
    cpu.rmsnorm(out, f32(x, 1, n), f32(gain, n))
    return out


def decode_qkv(
    grid: Any, q: int, k: int, v: int, x: int, gain: int, wq: int, wk: int, wv: int, cos: int, sin: int, pos: int,
    dim: int, kv_dim: int, head_dim: int, split: int,
) -> None:  # fmt: skip
    p, row = int(i32(pos)[0]), _normed(x, gain, dim)
    assert grid[0] * 2 * (1 if split else WARPS) >= dim + 2 * kv_dim
    kv = [f32(c, p + 1, kv_dim)[p:] for c in (k, v)]
    cpu.matmul(f32(q, 1, dim), row, f32(wq, dim, dim))
    cpu.matmul(kv[0], row, f32(wk, kv_dim, dim))
    cpu.matmul(kv[1], row, f32(wv, kv_dim, dim))
    cpu.rope(f32(q, 1, dim), kv[0], *(f32(t, p + 1, head_dim // 2) for t in (cos, sin)), p, head_dim)


def decode_add(grid: Any, x: int, y: int, w: int, d: int, n: int, split: int) -> None:
    out = np.zeros((1, d), np.float32)
    cpu.matmul(out, f32(y, 1, n), f32(w, d, n))
    cpu.add(f32(x, 1, d), out)


def decode_ffn(grid: Any, h: int, x: int, gain: int, w1: int, w3: int, hidden: int, n: int, split: int) -> None:
    row, h3 = _normed(x, gain, n), np.zeros((1, hidden), np.float32)
    assert grid[0] * (1 if split else WARPS) >= hidden
    cpu.matmul(f32(h, 1, hidden), row, f32(w1, hidden, n))
    cpu.matmul(h3, row, f32(w3, hidden, n))
    cpu.swiglu(f32(h, 1, hidden), h3)


def decode_logits(grid: Any, logits: int, x: int, gain: int, w: int, d: int, n: int, split: int) -> None:
    cpu.matmul(f32(logits, 1, d), _normed(x, gain, n), f32(w, d, n))


KERNELS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        embed, rmsnorm, matvec, matmul, rope, attention, add, swiglu, argmax, advance, rope_table, decode_qkv,
        decode_add, decode_ffn, decode_logits,
    )
}  # fmt: skip
