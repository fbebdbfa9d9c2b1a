"""The CUDA kernels for a checkpoint's own types by name, computed on the processor by its own kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from executor.kernels import run_op
from executor.stored_kernels import STORED

Memory = Callable[..., Any]


def stored_kernels(f32: Memory, i32: Memory, u16: Memory) -> dict[str, Callable[..., None]]:
    """`f32`, `i32`, `u16`: views of memory, by address and extents."""
    found: dict[str, Callable[..., None]] = {}
    for dtype in ("fp32", "bf16", "fp16"):
        made = _of_type(dtype, f32, i32, u16)
        found |= {f"stored_{name}_{dtype}": call for name, call in made.items()}
    return found


def _of_type(dtype: str, f32: Memory, i32: Memory, u16: Memory) -> dict[str, Callable[..., None]]:
    def held(address: int, *shape: int) -> Any:
        if dtype == "fp32":
            return f32(address, *shape)
        words = u16(address, int(np.prod(shape))).reshape(shape)
        return words if dtype == "bf16" else words.view(np.float16)

    def rmsnorm(grid: Any, out: int, x: int, weight: int, eps_bits: int, n: int) -> None:
        run_op("rmsnorm_eps", f32(out, grid[0], n), f32(x, grid[0], n), held(weight, n), eps_bits=eps_bits)

    def bias(grid: Any, x: int, row: int, n: int) -> None:
        assert grid[0] * 256 >= n
        run_op("bias", f32(x, grid[1], n), held(row, n))

    def rope(grid: Any, q: int, k: int, cos: int, sin: int, pos0: int, dim: int, kv_dim: int, head_dim: int) -> None:
        assert grid[0] * 128 >= dim // 2
        tables = [f32(table, pos0 + grid[1], head_dim // 2) for table in (cos, sin)]
        STORED["rope_half"](f32(q, grid[1], dim), f32(k, grid[1], kv_dim), *tables, pos0, head_dim)

    def column(grid: Any, cos: int, sin: int, positions: int, half: int, *scalars: int) -> None:
        assert grid[0] * 256 >= positions
        STORED["rope_column"](f32(cos, positions, half), f32(sin, positions, half), *scalars)

    def embed(grid: Any, x: int, table: int, tokens: int, fault: int, vocab: int, dim: int) -> None:
        ids = i32(tokens, grid[0])
        for t, token in enumerate(ids):
            if not 0 <= token < vocab:
                i32(fault, 3)[:] = 1, t, token
                return
        run_op("embed", f32(x, grid[0], dim), held(table, vocab, dim), ids)

    def matvec(grid: Any, out: int, x: int, w: int, d: int, n: int, split: int) -> None:
        assert grid[0] * 2 * (1 if split else 4) >= d
        run_op("matmul", f32(out, grid[1], d), f32(x, grid[1], n), held(w, d, n))

    def attention(
        grid: Any, out: int, q: int, k: int, v: int, pos: int, pos0: int, n_heads: int, n_kv_heads: int, head_dim: int
    ) -> None:
        assert not pos
        rows, width, kv_dim = grid[1], n_heads * head_dim, n_kv_heads * head_dim
        scratch = np.zeros((n_heads, pos0 + rows), np.float32)
        caches = [held(cache, pos0 + rows, kv_dim) for cache in (k, v)]
        heads = {"n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim}
        run_op("attention", f32(out, rows, width), f32(q, rows, width), *caches, scratch, pos0=pos0, **heads)

    def store(grid: Any, cache: int, rows: int, n: int) -> None:
        run_op("store", held(cache, 1, n), f32(rows, 1, n))

    return {
        "rmsnorm": rmsnorm, "bias": bias, "rope": rope, "column": column, "embed": embed, "matvec": matvec,
        "attention": attention, "store": store,
    }  # fmt: skip
