"""The layout `packed16`: a matrix as blocks of sixteen rows, column-major inside a block. What lies where, and how big.

A matrix [rows, n] becomes [blocks, n, 16]: row r is lane r % 16 of block r // 16. Sixteen sums can then run side by
side, each over its own row in rising order, so that speed costs no bit. Weights are packed as they are; K of one layer
and KV head is the matrix [positions, head_dim] (its blocks are pages of sixteen positions), V is [head_dim, positions].
The last block may hold lanes without a row: nobody writes them, and no result depends on them.

The wire never carries this layout: copies pack and unpack on the device's side, by the index maps below.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fleet.model import Model

LAYOUT = "packed16"
LANES = 16
WORD_BYTES = 4
ALIGNMENT = 64
"""Bytes that a packed buffer should start on a multiple of: one block column is then one cache line."""

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]
KvTensor = Literal["k", "v"]
KV_TENSORS: tuple[KvTensor, ...] = ("k", "v")


@dataclass(frozen=True, slots=True)
class Packed:
    """A stack of packed matrices: `lead` extents, then `rows` x `n`. Words are 4 bytes."""

    lead: tuple[int, ...]
    rows: int
    n: int

    @property
    def blocks(self) -> int:
        """Blocks of one matrix."""
        return -(-self.rows // LANES)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in memory: (*lead, blocks, n, 16)."""
        return (*self.lead, self.blocks, self.n, LANES)

    @property
    def matrix_bytes(self) -> int:
        """Bytes of one matrix, padding included: the stride of the last leading axis."""
        return self.blocks * self.n * LANES * WORD_BYTES

    @property
    def nbytes(self) -> int:
        """Bytes of the whole stack in memory."""
        return prod(self.lead) * self.matrix_bytes

    @property
    def wire_bytes(self) -> int:
        """Bytes of the same stack on the wire, without padding."""
        return prod(self.lead) * self.rows * self.n * WORD_BYTES

    @property
    def padding_bytes(self) -> int:
        """Bytes that no row fills: lead * (16 * ceil(rows / 16) - rows) * n * 4."""
        return self.nbytes - self.wire_bytes


def packed_weight(shape: Sequence[int]) -> Packed | None:
    """A weight tensor ([rows, n] or [layers, rows, n]) in this layout; None for a vector a layer, which stays plain."""
    return None if len(shape) < 2 else Packed(tuple(shape[:-2]), shape[-2], shape[-1])


def packs_weight(model: Model, name: str) -> bool:
    """Whether a named tensor is packed: a norm has no rows to sum over, so it stays plain."""
    return any(spec.name == name and spec.role != "norm" and len(spec.shape) >= 2 for spec in model.tensors)


def packed_kv(tensor: KvTensor, n_layers: int, positions: int, n_kv_heads: int, head_dim: int) -> Packed:
    """The KV cache of one phase: K in pages of sixteen positions, V in blocks of sixteen dimensions."""
    rows, n = (positions, head_dim) if tensor == "k" else (head_dim, positions)
    return Packed((n_layers, n_kv_heads), rows, n)


def pack(wire: Array, out: Array) -> None:
    """Write the matrices of `wire` (*lead, rows, n) into `out` (*lead, blocks, n, 16). Padding keeps what it holds.

    ValueError when the shapes do not belong together.
    """
    *lead, rows, n = wire.shape
    if out.shape != Packed(tuple(lead), rows, n).shape:
        raise ValueError(f"{wire.shape} packs into {Packed(tuple(lead), rows, n).shape}, not into {out.shape}")
    whole, rest = divmod(rows, LANES)
    body = wire[..., : whole * LANES, :].reshape(*lead, whole, LANES, n)
    np.copyto(out[..., :whole, :, :], np.swapaxes(body, -1, -2))
    if rest:
        np.copyto(out[..., whole, :, :rest], np.swapaxes(wire[..., whole * LANES :, :], -1, -2))


def unpack(packed: Array, rows: int) -> Array:
    """The matrices (*lead, rows, n) of `packed`, a new array in wire order. ValueError when the blocks do not fit."""
    *lead, blocks, n, lanes = packed.shape
    if lanes != LANES or blocks != -(-rows // LANES):
        raise ValueError(f"{packed.shape} does not hold matrices of {rows} rows in blocks of {LANES}")
    return np.ascontiguousarray(np.swapaxes(packed, -1, -2).reshape(*lead, blocks * LANES, n)[..., :rows, :])


def padding(packed: Array, rows: int) -> Array:
    """The padding lanes of `packed` as a view: holds poison before and after any work. Empty when there is none."""
    return packed[..., -1:, :, rows - (packed.shape[-3] - 1) * LANES :]


def matrix_index(rows: int, n: int) -> Index:
    """(rows, n): which word of a packed matrix holds each element of the wire matrix."""
    row = np.arange(rows, dtype=np.int64)[:, None]
    return (row // LANES * n + np.arange(n, dtype=np.int64)) * LANES + row % LANES


def kv_index(tensor: KvTensor, cache: Packed, p0: int, p1: int) -> Index:
    """(p1 - p0, n_kv_heads * head_dim): which word of one layer of `cache` holds each element of wire positions p0..p1.

    The wire order of a layer is [position][kv_dim]. ValueError for positions that the cache does not have.
    """
    n_heads = cache.lead[-1]
    positions, head_dim = (cache.rows, cache.n) if tensor == "k" else (cache.n, cache.rows)
    if not 0 <= p0 <= p1 <= positions:
        raise ValueError(f"positions {p0}..{p1 - 1} of a cache that has {positions}")
    p = np.arange(p0, p1, dtype=np.int64)[:, None, None]
    head = np.arange(n_heads, dtype=np.int64)[:, None] * (cache.matrix_bytes // WORD_BYTES)
    i = np.arange(head_dim, dtype=np.int64)
    row, column = (p, i) if tensor == "k" else (i, p)
    words = head + (row // LANES * cache.n + column) * LANES + row % LANES
    return np.ascontiguousarray(words.reshape(p1 - p0, n_heads * head_dim))


def read_kv(packed_layer: Array, index: Index) -> Array:
    """Positions of one layer in wire order (positions, kv_dim): a copy, by an index of `kv_index`."""
    return packed_layer.reshape(-1)[index]


def write_kv(packed_layer: Array, index: Index, wire: Array) -> None:
    """Put wire positions (positions, kv_dim) into one contiguous layer; nothing else of the layer is written."""
    flat = packed_layer.reshape(-1)
    if not np.shares_memory(flat, packed_layer):
        raise ValueError("a strided layer cannot be written to; pass one layer of the whole cache")
    flat[index] = wire
