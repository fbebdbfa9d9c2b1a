"""The steps whose operands the layout `plain` keeps row by row, by address: the dispatch path's own kernels.

Same arguments as their like in `executor.packed.steps`, which serve for everything else: rows, norms and tables lie
alike in both layouts.
"""

from __future__ import annotations

from executor import kernels
from executor.packed.jit import carray, compiled, parallel, prange
from executor.packed.lanes import f32_pointer, i32_pointer


@compiled
def embed_rows(x: int, table: int, dim: int, vocab: int, tokens: int, n_tokens: int) -> int:
    """x[t] = row tokens[t] of a table. Gives -1, or the index of the first token outside it, where it stops."""
    ids = carray(i32_pointer(tokens), (n_tokens,))
    return kernels.embed(carray(f32_pointer(x), (n_tokens, dim)), carray(f32_pointer(table), (vocab, dim)), ids)


@compiled
def multiply_rows(out: int, x: int, n_tokens: int, w: int, n: int, rows: int) -> None:
    """out (n_tokens, rows) = x (n_tokens, n) times w (rows, n)."""
    kernels.matmul(
        carray(f32_pointer(out), (n_tokens, rows)),
        carray(f32_pointer(x), (n_tokens, n)),
        carray(f32_pointer(w), (rows, n)),
    )


@parallel
def multiply_rows_in_team(out: int, x: int, n_tokens: int, w: int, n: int, rows: int, team: int) -> None:
    """As `multiply_rows`, the rows of w shared out over `team` threads, by eights: each sum has the same bits."""
    eights = (rows + 7) // 8
    for i in prange(team):
        first, end = eights * i // team * 8, min(rows, eights * (i + 1) // team * 8)
        if first < end:
            outs = carray(f32_pointer(out), (n_tokens, rows))
            xs = carray(f32_pointer(x), (n_tokens, n))
            mine = carray(f32_pointer(w + first * n * 4), (end - first, n))
            kernels.matmul(outs[:, first:end], xs, mine)


@compiled
def attend_rows(
    out: int, q: int, k_layer: int, v_layer: int, att: int, position: int, n_tokens: int, positions: int, n_heads: int,
    n_kv_heads: int, head_dim: int,
) -> None:  # fmt: skip
    """Attention of tokens at positions from `position` on over one layer of plain caches (positions, kv_dim)."""
    width = n_heads * head_dim
    cache = (positions, n_kv_heads * head_dim)
    kernels.attention(
        carray(f32_pointer(out), (n_tokens, width)),
        carray(f32_pointer(q), (n_tokens, width)),
        carray(f32_pointer(k_layer), cache),
        carray(f32_pointer(v_layer), cache),
        carray(f32_pointer(att), (n_heads, positions)),
        position,
        n_heads,
        n_kv_heads,
        head_dim,
    )
