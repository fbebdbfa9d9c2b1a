"""Operations of `executor.ops` one by one on packed operands, by the very steps that a compiled call takes.

Which operands may be packed says `executor.ops`; the device ABI has checked shapes, scalars and whose memory it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from executor.buffer import Buffer
from executor.packed import steps
from executor.packed.lanes import STRICT
from fleet.errors import BackendError

_COLUMN_BYTES = 64
_WIDEST = 4


def launch_packed(op: str, arrays: Sequence[Buffer], scalars: Sequence[int]) -> None:
    """Run one operation, output first; BackendError for a token id outside the table."""
    _LAUNCHES[op](arrays, scalars)


def _embed(arrays: Sequence[Buffer], scalars: Sequence[int]) -> None:
    x, table, tokens = arrays
    (n_tokens, dim), vocab = x.shape, table.shape[0]
    outside = steps.embed(x.address, table.address, dim, vocab, tokens.address, n_tokens)
    if outside >= 0:
        token = tokens.word(outside)
        raise BackendError(f"embed: token id {token} at index {outside} is not below {vocab}, the vocabulary")


def _matmul(arrays: Sequence[Buffer], scalars: Sequence[int]) -> None:
    out, x, w = arrays
    (n_tokens, n), rows = x.shape, w.shape[0]
    steps.multiply(
        out.address, rows * 4, x.address, n * 4, n_tokens, w.address, n * _COLUMN_BYTES, n, rows, _WIDEST, STRICT
    )


def _attention(arrays: Sequence[Buffer], scalars: Sequence[int]) -> None:
    out, q, k, v, att = arrays
    position, n_heads, n_kv_heads, head_dim = scalars
    n_tokens, positions = q.shape[0], k.shape[0]
    at = (out.address, q.address, k.address, v.address, att.address)
    if n_tokens == 1:
        steps.attend_one(*at, position + 1, positions, n_heads, n_kv_heads, head_dim, STRICT)
    else:
        steps.attend_many(*at, position, n_tokens, positions, n_heads, n_kv_heads, head_dim, STRICT)


def _store(arrays: Sequence[Buffer], scalars: Sequence[int]) -> None:
    cache, rows = arrays
    cache.put(rows.wire())


_LAUNCHES = {"embed": _embed, "matmul": _matmul, "attention": _attention, "store": _store}
