"""The CUDA kernels by name, computed on the processor: what each must do with its parameters, in their order."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np

from executor import kernels as cpu
from executor.observers.digest import tree_digest
from tests.gpu.fake_stored import stored_kernels

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


def decode_step(
    grid: Any, token: int, fault: int, following: int, bits: int, pos: int, table: int, rms_att: int, wq: int, wk: int,
    wv: int, wo: int, rms_ffn: int, w1: int, w2: int, w3: int, rms_final: int, classifier: int, cos: int, sin: int,
    x: int, q: int, xb: int, hb: int, hb2: int, logits: int, k: int, v: int, pos0: int, dim: int, kv_dim: int,
    hidden: int, n_layers: int, n_heads: int, n_kv_heads: int, vocab: int, positions: int, wants_logits: int,
) -> None:  # fmt: skip
    embed((1, 1), x, table, token, fault, vocab, dim)
    if i32(fault)[0]:
        return
    for layer in range(n_layers):
        caches = [c + 4 * layer * positions * kv_dim for c in (k, v)]
        weights = [w + 4 * layer * d * dim for w, d in ((wq, dim), (wk, kv_dim), (wv, kv_dim))]
        args = (cos, sin, pos, dim, kv_dim, dim // n_heads, 1)
        decode_qkv((dim + 2 * kv_dim, 1), q, *caches, x, rms_att + 4 * layer * dim, *weights, *args)
        attention((n_heads, 1), xb, q, *caches, pos, 0, n_heads, n_kv_heads, dim // n_heads)
        decode_add((dim, 1), x, xb, wo + 4 * layer * dim * dim, dim, dim, 1)
        both = (w + 4 * layer * hidden * dim for w in (w1, w3))
        decode_ffn((hidden, 1), hb, x, rms_ffn + 4 * layer * dim, *both, hidden, dim, 1)
        decode_add((dim, 1), x, hb, w2 + 4 * layer * dim * hidden, dim, hidden, 1)
    if wants_logits:
        decode_logits((vocab, 1), logits, x, rms_final, classifier, vocab, dim, 1)
        argmax((1, 1), following, logits, bits, pos, pos0, vocab)
    else:
        advance((1, 1), pos)


def product(out: int, x: int, w: int, rows: int, d: int, n: int, add: bool) -> None:
    found = np.zeros((rows, d), np.float32)
    cpu.matmul(found, f32(x, rows, n), f32(w, d, n))
    f32(out, rows, d)[...] = found + (f32(out, rows, d) if add else 0)


def attention_tile(
    grid: Any, out: int, q: int, k: int, v: int, rows: int, pos0: int, n_heads: int, n_kv_heads: int, head_dim: int
) -> None:
    assert grid == (n_heads, -(-rows // 64))
    attention((n_heads, rows), out, q, k, v, 0, pos0, n_heads, n_kv_heads, head_dim)


def _ranges(base: int, stride: int, words: int, count: int) -> list[bytes]:
    return [ctypes.string_at(base + 4 * stride * i, 4 * words) for i in range(count)]


def digest(grid: Any, out: int, base: int, stride: int, words: int) -> None:
    found = "".join(tree_digest(content) for content in _ranges(base, stride, words, grid[0]))
    i32(out, 8 * grid[0])[:] = np.frombuffer(bytes.fromhex(found), ">i4")


def count_other(grid: Any, out: int, base: int, stride: int, words: int, word: int) -> None:
    found = sum(int((np.frombuffer(c, np.int32) != word).sum()) for c in _ranges(base, stride, words, grid[1]))
    i32(out, 2)[:] = found & 0x7FFFFFFF, found >> 32


# Narrow types: what lies in memory is widened, the f32 kernel computes, what is written is narrowed.


def _u16(address: int, count: int) -> Any:
    return np.ctypeslib.as_array((ctypes.c_uint16 * count).from_address(address))


def widened(dtype: str, raw: Any) -> Any:
    if dtype == "fp16":
        return raw.view(np.float16).astype(np.float32)
    return (raw.astype(np.uint32) << 16).view(np.float32)


def narrowed(dtype: str, values: Any) -> Any:
    values = np.ascontiguousarray(values, np.float32).reshape(-1)
    if dtype == "fp16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    u = values.view(np.uint32).astype(np.uint64)
    rounded = (u + 0x7FFF + ((u >> 16) & 1)) >> 16
    return np.where(np.isnan(values), (u >> 16) | 0x40, rounded).astype(np.uint16)


def narrow_product(
    dtype: str, narrow_out: bool, out: int, x: int, w: int, rows: int, d: int, n: int, add: bool
) -> None:
    given, weight = (widened(dtype, _u16(at, r * n)).reshape(r, n) for at, r in ((x, rows), (w, d)))
    found = np.zeros((rows, d), np.float32)
    cpu.matmul(found, given, weight)
    if narrow_out:
        _u16(out, rows * d)[:] = narrowed(dtype, found)
    else:
        f32(out, rows, d)[...] = found + (f32(out, rows, d) if add else 0)


def _step_sizes(args: Any) -> list[int]:
    dim, kv_dim, hidden, n_layers, _, _, vocab = args[28:35]
    rows = [dim, kv_dim, kv_dim, dim, hidden, hidden, hidden]
    return [vocab * dim, *(n_layers * d * dim for d in rows), vocab * dim]


def _of_type(dtype: str) -> dict[str, Callable[..., None]]:
    def wide(at: int, count: int) -> Any:
        return widened(dtype, _u16(at, count))

    def _embed(grid: Any, x: int, table: int, tokens: int, fault: int, vocab: int, dim: int) -> None:
        held = wide(table, vocab * dim)
        embed(grid, x, held.ctypes.data, tokens, fault, vocab, dim)

    def _rmsnorm(grid: Any, out: int, x: int, weight: int, n: int) -> None:
        found = np.zeros((grid[0], n), np.float32)
        cpu.rmsnorm(found, f32(x, grid[0], n), f32(weight, n))
        _u16(out, grid[0] * n)[:] = narrowed(dtype, found)

    def _swiglu(grid: Any, h1: int, h3: int, n: int) -> None:
        one, three = wide(h1, n).reshape(1, n), wide(h3, n).reshape(1, n)
        cpu.swiglu(one, three)
        _u16(h1, n)[:] = narrowed(dtype, one)

    def _narrow(grid: Any, out: int, x: int, n: int) -> None:
        _u16(out, n)[:] = narrowed(dtype, f32(x, n))

    def _in_place(grid: Any, at: int, lost: int, first: int, last: int) -> None:
        values = f32(at, last)[first:].copy()
        found = narrowed(dtype, values)
        assert first == 0 or 2 * last <= 4 * first, "a launch must not write what it reads"
        _u16(at, last)[first:] = found
        i32(lost, 2)[0] += int((np.isfinite(values) & ~np.isfinite(widened(dtype, found))).sum())

    def decode(plain: Callable[..., None], weights: tuple[int, ...], sizes: Callable[..., list[int]]) -> Any:
        def call(grid: Any, *args: int) -> None:
            held = [wide(args[i], count) for i, count in zip(weights, sizes(args), strict=True)]
            changed = list(args)
            for i, values in zip(weights, held, strict=True):
                changed[i] = values.ctypes.data
            plain(grid, *changed)

        return call

    found = {
        "embed": _embed, "rmsnorm": _rmsnorm, "swiglu": _swiglu, "narrow": _narrow, "narrow_in_place": _in_place,
        "decode_qkv": decode(decode_qkv, (5, 6, 7), lambda a: [a[11] * a[11], a[12] * a[11], a[12] * a[11]]),
        "decode_add": decode(decode_add, (2,), lambda a: [a[3] * a[4]]),
        "decode_ffn": decode(decode_ffn, (3, 4), lambda a: [a[5] * a[6]] * 2),
        "decode_logits": decode(decode_logits, (3,), lambda a: [a[4] * a[5]]),
        "decode_step": decode(decode_step, (5, 7, 8, 9, 10, 12, 13, 14, 16), _step_sizes),
    }  # fmt: skip
    return {f"{name}_{dtype}": call for name, call in found.items()}


KERNELS: dict[str, Callable[..., None]] = {
    f.__name__: f
    for f in (
        embed,
        rmsnorm,
        matvec,
        matmul,
        rope,
        attention,
        add,
        swiglu,
        argmax,
        advance,
        rope_table,
        decode_qkv,
        decode_add,
        decode_ffn,
        decode_logits,
        decode_step,
        digest,
        count_other,
        attention_tile,
    )
} | _of_type("bf16") | _of_type("fp16") | stored_kernels(f32, i32, _u16)  # fmt: skip
