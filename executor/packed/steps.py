"""The steps of the program text on packed memory, by address: strict, with the exact bits of `executor.kernels`.

Addresses are int64 and everything is f32 unless a name says otherwise. A step trusts its addresses and extents: who
builds a plan (`executor.packed.plan`) has checked them. `mode`: see `executor.packed.lanes`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from executor.packed.jit import carray, compiled, parallel, prange, reordered
from executor.packed.lanes import (
    PANEL_COLUMNS,
    PANEL_STRIDE,
    TILE_TOKENS,
    f32_pointer,
    i32_pointer,
    panel,
    tile_1x1,
    tile_1x2,
    tile_1x4,
    tile_1xn,
    tile_2x1,
    tile_4x1,
)
from executor.packed.rows import exact_exps, exact_swiglu, fast_softmax, fast_swiglu, largest

_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_EPSILON = np.float32(1e-5)
_ROPE_BASE = np.float32(10000.0)
_COLUMN = 64
_PROBES, _PROBED = 16384, 4096
_GROUP = 16  # blocks that many tokens share: of 1,024 columns they are 1 MiB
_FEW = 4  # tokens whose rows need no panel


@compiled
def multiply_many(
    out: int, out_stride: int, x: int, x_stride: int, n_tokens: int, w: int, block_stride: int, n: int, rows: int,
    mode: Any,
) -> None:  # fmt: skip
    """As `multiply` for several tokens.

    A tile of tokens is copied to a panel, where its rows do not compete for the same lines of the cache, and goes over
    some blocks, which stay in the second cache until the last tile of tokens has been there.
    """
    blocks, room = (rows + 15) // 16, panel()
    for start in range(0, blocks, _GROUP):
        end = min(start + _GROUP, blocks)
        for j in range(0, n, PANEL_COLUMNS):
            columns, keep, v = min(PANEL_COLUMNS, n - j), 1 if j > 0 else 0, w + j * _COLUMN
            for t in range(0, n_tokens, TILE_TOKENS):
                count, at = min(TILE_TOKENS, n_tokens - t), out + t * out_stride
                _to_panel(room, x + t * x_stride + j * 4, x_stride, count, columns)
                for b in range(start, end):
                    block, lanes = v + b * block_stride, rows - b * 16
                    _tiles(at + b * _COLUMN, out_stride, room, PANEL_STRIDE, count, block, columns, lanes, keep, mode)


@compiled
def _to_panel(room: int, x: int, x_stride: int, count: int, columns: int) -> None:
    """Copy `columns` floats of each of `count` rows of x."""
    for i in range(count):
        row = carray(f32_pointer(x + i * x_stride), (columns,))
        copied = carray(f32_pointer(room + i * PANEL_STRIDE), (columns,))
        for c in range(columns):
            copied[c] = row[c]


@compiled
def _tiles(
    out: int, out_stride: int, x: int, x_stride: int, count: int, w: int, n: int, lanes: int, keep: int, mode: Any
) -> None:
    """One block and up to `TILE_TOKENS` tokens, which lie as `multiply` says."""
    if count == TILE_TOKENS:
        tile_1xn(out, out_stride, x, x_stride, w, 0, n, lanes, keep, mode)
        return
    t = 0
    while t < count:
        at, source = out + t * out_stride, x + t * x_stride
        if count - t >= 4:
            tile_1x4(at, out_stride, source, x_stride, w, 0, n, lanes, keep, mode)
            t += 4
        elif count - t >= 2:
            tile_1x2(at, out_stride, source, x_stride, w, 0, n, lanes, keep, mode)
            t += 2
        else:
            tile_1x1(at, out_stride, source, x_stride, w, 0, n, lanes, keep, mode)
            t += 1


@compiled
def multiply(
    out: int, out_stride: int, x: int, x_stride: int, n_tokens: int, w: int, block_stride: int, n: int, rows: int,
    widest: int, mode: Any,
) -> None:  # fmt: skip
    """out[t][r] = sum over j < n of w[r][j] * x[t][j], `rows` packed rows. Strides in bytes; out is not x or w.

    One token takes `widest` (1, 2 or 4) blocks at once, the last ones overlapping those before: a row that is summed
    twice has the same bits. Several tokens share each block. One block at a time is read from end to end, which is best
    for weights that come from memory; four hide the latency of the sums where they come from a cache.
    """
    blocks = (rows + 15) // 16
    if n_tokens == 1:
        wide = min(4 if blocks >= 4 else (2 if blocks >= 2 else 1), widest)
        b = 0
        while b < blocks:
            b = min(b, blocks - wide)
            lanes = rows - (b + wide - 1) * 16
            o, v = out + b * _COLUMN, w + b * block_stride
            if wide == 4:
                tile_4x1(o, out_stride, x, x_stride, v, block_stride, n, lanes, 0, mode)
            elif wide == 2:
                tile_2x1(o, out_stride, x, x_stride, v, block_stride, n, lanes, 0, mode)
            else:
                tile_1x1(o, out_stride, x, x_stride, v, block_stride, n, lanes, 0, mode)
            b += wide
        return
    if n_tokens <= _FEW:
        for b in range(blocks):
            v = w + b * block_stride
            _tiles(out + b * _COLUMN, out_stride, x, x_stride, n_tokens, v, n, rows - b * 16, 0, mode)
    else:
        multiply_many(out, out_stride, x, x_stride, n_tokens, w, block_stride, n, rows, mode)


@parallel
def multiply_in_team(
    out: int, out_stride: int, x: int, x_stride: int, n_tokens: int, w: int, block_stride: int, n: int, rows: int,
    widest: int, mode: Any, team: int,
) -> None:  # fmt: skip
    """As `multiply`, the blocks shared out over `team` threads: rows are independent sums, so the bits are the same."""
    blocks = (rows + 15) // 16
    if mode is None:
        for i in prange(team):
            b, end = blocks * i // team, blocks * (i + 1) // team
            o, v, mine = out + b * _COLUMN, w + b * block_stride, min(rows, end * 16) - b * 16
            multiply(o, out_stride, x, x_stride, n_tokens, v, block_stride, n, mine, widest, None)
    else:
        for i in prange(team):
            b, end = blocks * i // team, blocks * (i + 1) // team
            o, v, mine = out + b * _COLUMN, w + b * block_stride, min(rows, end * 16) - b * 16
            multiply(o, out_stride, x, x_stride, n_tokens, v, block_stride, n, mine, widest, True)


@compiled
def embed(x: int, table: int, dim: int, vocab: int, tokens: int, n_tokens: int) -> int:
    """x[t] = row tokens[t] of a packed table. Gives -1, or the index of the first token outside it, where it stops."""
    ids = carray(i32_pointer(tokens), (n_tokens,))
    out = carray(f32_pointer(x), (n_tokens, dim))
    packed = carray(f32_pointer(table), ((vocab + 15) // 16, dim, 16))
    for t in range(n_tokens):
        token = ids[t]
        if token < 0 or token >= vocab:
            return t
        block, lane = token // 16, token % 16
        for i in range(dim):
            out[t, i] = packed[block, i, lane]
    return -1


@reordered
def _squares_in_any_order(row: Any) -> Any:
    total = _ZERO
    for j in range(row.shape[0]):
        total += row[j] * row[j]
    return total


@compiled
def _scaled(out: Any, row: Any, weight: Any, squares: Any) -> None:
    """out = weight * (row / sqrt(mean + 1e-5)), the mean from the sum of squares."""
    scale = _ONE / math.sqrt(squares / np.float32(row.shape[0]) + _EPSILON)
    for j in range(row.shape[0]):
        out[j] = weight[j] * (scale * row[j])


@compiled
def rmsnorm(out: int, x: int, weight: int, dim: int, n_tokens: int, mode: Any) -> None:
    """out[t] = weight * (x[t] / sqrt(mean of squares + 1e-5)); out may be x. Four tokens hide each other's sums."""
    xs = carray(f32_pointer(x), (n_tokens, dim))
    outs = carray(f32_pointer(out), (n_tokens, dim))
    ws = carray(f32_pointer(weight), (dim,))
    t = 0
    while mode is None and t + 4 <= n_tokens:
        a, b, c, d = _ZERO, _ZERO, _ZERO, _ZERO
        for j in range(dim):
            a += xs[t, j] * xs[t, j]
            b += xs[t + 1, j] * xs[t + 1, j]
            c += xs[t + 2, j] * xs[t + 2, j]
            d += xs[t + 3, j] * xs[t + 3, j]
        _scaled(outs[t], xs[t], ws, a)
        _scaled(outs[t + 1], xs[t + 1], ws, b)
        _scaled(outs[t + 2], xs[t + 2], ws, c)
        _scaled(outs[t + 3], xs[t + 3], ws, d)
        t += 4
    while t < n_tokens:
        squares = _ZERO
        if mode is None:
            for j in range(dim):
                squares += xs[t, j] * xs[t, j]
        else:
            squares = _squares_in_any_order(xs[t])
        _scaled(outs[t], xs[t], ws, squares)
        t += 1


@compiled
def rope(row: int, width: int, n_tokens: int, cos: int, sin: int, position: int, head_dim: int) -> None:
    """Rotate the pairs (i, i + 1) of rows (n_tokens, width) in place, by the angles of positions from `position` on."""
    half = head_dim // 2
    rows = carray(f32_pointer(row), (n_tokens, width // head_dim, half, 2))
    c = carray(f32_pointer(cos + position * half * 4), (n_tokens, half))
    s = carray(f32_pointer(sin + position * half * 4), (n_tokens, half))
    for t in range(n_tokens):
        for h in range(rows.shape[1]):
            for i in range(half):
                a, b = rows[t, h, i, 0], rows[t, h, i, 1]
                rows[t, h, i, 0] = a * c[t, i] - b * s[t, i]
                rows[t, h, i, 1] = a * s[t, i] + b * c[t, i]


@compiled
def rope_table(cos: int, sin: int, positions: int, head_dim: int) -> None:
    """cos, sin of position * 10000^-(i / head_dim) for the even i below head_dim: (positions, head_dim / 2) each."""
    half = head_dim // 2
    c = carray(f32_pointer(cos), (positions, half))
    s = carray(f32_pointer(sin), (positions, half))
    for h in range(half):
        frequency = _ONE / math.pow(_ROPE_BASE, np.float32(2 * h) / np.float32(head_dim))
        for p in range(positions):
            angle = np.float32(p) * frequency
            c[p, h] = math.cos(angle)
            s[p, h] = math.sin(angle)


@compiled
def store_kv(
    k: int, v: int, k_layer: int, v_layer: int, position: int, n_tokens: int, positions: int, n_kv_heads: int,
    head_dim: int,
) -> None:  # fmt: skip
    """Put rows k and v (n_tokens, kv_dim) at their positions in one layer of the paged caches."""
    ks = carray(f32_pointer(k), (n_tokens, n_kv_heads, head_dim))
    vs = carray(f32_pointer(v), (n_tokens, n_kv_heads, head_dim))
    pages, blocks = (positions + 15) // 16, (head_dim + 15) // 16
    k_cache = carray(f32_pointer(k_layer), (n_kv_heads, pages, head_dim, 16))
    v_cache = carray(f32_pointer(v_layer), (n_kv_heads, blocks, positions, 16))
    for t in range(n_tokens):
        p = position + t
        for h in range(n_kv_heads):
            for i in range(head_dim):
                k_cache[h, p // 16, i, p % 16] = ks[t, h, i]
                v_cache[h, i // 16, p, i % 16] = vs[t, h, i]


@compiled
def softmax(row: int, n: int, root: Any, mode: Any, own_exp: int = 0) -> None:
    """The scores of n positions by `root`, then their softmax, in place. `own_exp`: see `own_exp_agrees`."""
    scores = carray(f32_pointer(row), (n,))
    for p in range(n):
        scores[p] /= root
    if mode is None:
        top = largest(row, n)  # with a NaN among the scores all of them become NaN, whatever this is
        if own_exp != 0:
            exact_exps(row, n, top)
        else:
            for p in range(n):
                scores[p] = math.exp(scores[p] - top)
        total = _ZERO
        for p in range(n):
            total += scores[p]
        for p in range(n):
            scores[p] /= total
    else:
        fast_softmax(row, n)


@compiled
def attend_one(
    out: int, q: int, k_layer: int, v_layer: int, att: int, n: int, positions: int, n_heads: int, n_kv_heads: int,
    head_dim: int, mode: Any, own_exp: int = 0,
) -> None:  # fmt: skip
    """out = softmax(q . k / sqrt(head_dim)) v over positions 0 .. n - 1; the query heads of a KV head go side by side.

    att: scratch (n_heads, positions).
    """
    group = n_heads // n_kv_heads
    root = math.sqrt(np.float32(head_dim))
    k_head, v_head = (positions + 15) // 16 * head_dim * _COLUMN, (head_dim + 15) // 16 * positions * _COLUMN
    for h in range(n_kv_heads):
        row, head = att + h * group * positions * 4, h * group * head_dim * 4
        k, v = k_layer + h * k_head, v_layer + h * v_head
        multiply(row, positions * 4, q + head, head_dim * 4, group, k, head_dim * _COLUMN, head_dim, n, 4, mode)
        for g in range(group):
            softmax(row + g * positions * 4, n, root, mode, own_exp)
        multiply(out + head, head_dim * 4, row, positions * 4, group, v, positions * _COLUMN, n, head_dim, 4, mode)


@compiled
def attend_many(
    out: int, q: int, k_layer: int, v_layer: int, att: int, position: int, n_tokens: int, positions: int, n_heads: int,
    n_kv_heads: int, head_dim: int, mode: Any, own_exp: int = 0,
) -> None:  # fmt: skip
    """As `attend_one` for tokens at positions from `position` on, each over the positions up to its own.

    A tile of tokens shares each page; the few positions that only its later tokens see are added one token at a time,
    in the same order. att: scratch (n_heads, positions), a row a token of the tile.
    """
    group, width = n_heads // n_kv_heads, n_heads * head_dim * 4
    root = math.sqrt(np.float32(head_dim))
    k_head, v_head = (positions + 15) // 16 * head_dim * _COLUMN, (head_dim + 15) // 16 * positions * _COLUMN
    tile = min(TILE_TOKENS, n_heads)
    for h in range(n_heads):
        k, v = k_layer + h // group * k_head, v_layer + h // group * v_head
        for first in range(0, n_tokens, tile):
            count, shared = min(tile, n_tokens - first), position + first + 1
            start = first * width + h * head_dim * 4
            multiply(
                att,
                positions * 4,
                q + start,
                width,
                count,
                k,
                head_dim * _COLUMN,
                head_dim,
                shared + count - 1,
                4,
                mode,
            )
            for t in range(count):
                softmax(att + t * positions * 4, shared + t, root, mode, own_exp)
            multiply(out + start, width, att, positions * 4, count, v, positions * _COLUMN, shared, head_dim, 4, mode)
            for t in range(1, count):
                late, v_late = att + (t * positions + shared) * 4, v + shared * _COLUMN
                _go_on(out + start + t * width, late, v_late, positions * _COLUMN, t, head_dim, mode)


@compiled
def _go_on(out: int, x: int, w: int, block_stride: int, n: int, rows: int, mode: Any) -> None:
    """The sums of one token in `out` go on over n further columns of `rows` packed rows."""
    blocks, b = (rows + 15) // 16, 0
    while b < blocks:
        at, v, lanes = out + b * _COLUMN, w + b * block_stride, rows - b * 16
        if blocks - b >= 4:
            tile_4x1(at, 0, x, 0, v, block_stride, n, lanes - 48, 1, mode)
            b += 4
        elif blocks - b >= 2:
            tile_2x1(at, 0, x, 0, v, block_stride, n, lanes - 16, 1, mode)
            b += 2
        else:
            tile_1x1(at, 0, x, 0, v, block_stride, n, lanes, 1, mode)
            b += 1


@compiled
def add(x: int, y: int, n: int) -> None:
    """x += y, n floats."""
    xs, ys = carray(f32_pointer(x), (n,)), carray(f32_pointer(y), (n,))
    for i in range(n):
        xs[i] += ys[i]


@compiled
def swiglu(h1: int, h3: int, n: int, mode: Any, own_exp: int = 0) -> None:
    """h1 = h1 * (1 / (1 + exp(-h1))) * h3, n floats. `own_exp`: see `own_exp_agrees`."""
    if mode is None:
        if own_exp != 0:
            exact_swiglu(h1, h3, n)
            return
        gate, other = carray(f32_pointer(h1), (n,)), carray(f32_pointer(h3), (n,))
        for i in range(n):
            v = gate[i]
            v *= _ONE / (_ONE + math.exp(-v))
            gate[i] = v * other[i]
    else:
        fast_swiglu(h1, h3, n)


@compiled
def own_exp_agrees() -> int:
    """1 where `exact_exps` has the bits of the C library in 16,384 places from -86 to 86; 0 where it has not once.

    A library of another method differs in about one place of a thousand.
    """
    room = panel()
    values = carray(f32_pointer(room), (_PROBED,))
    for turn in range(_PROBES // _PROBED):
        for i in range(_PROBED):
            values[i] = _probe(turn * _PROBED + i)
        exact_exps(room, _PROBED, _ZERO)
        for i in range(_PROBED):
            if values[i] != np.float32(math.exp(_probe(turn * _PROBED + i))):
                return 0
    return 1


@compiled
def _probe(i: int) -> Any:
    return np.float32(i - _PROBES // 2) * np.float32(172.0 / _PROBES)


@compiled
def argmax(logits: int, n: int) -> int:
    """The index of the first largest logit. A NaN never wins; one at index 0 is never beaten."""
    values = carray(f32_pointer(logits), (n,))
    if math.isnan(values[0]):
        return 0
    top = largest(logits, n)
    for i in range(n):
        if values[i] == top:
            return i
    return 0
