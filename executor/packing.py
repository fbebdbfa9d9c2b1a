"""Buffers that lie in memory otherwise than on the wire: which words of the memory a piece of the wire order is.

A packed buffer has the shape and the `nbytes` of the wire; what it takes, padding included, is `held_bytes`. Copies go
through the maps of `executor.packed.layout`, so no padding word is ever read or written by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from executor.packed.layout import LAYOUT, Packed, kv_index, pack, packed_kv, packed_weight, padding, unpack
from fleet.errors import CopyError
from fleet.model import Model
from planner.orders import BufferOrder

Array = npt.NDArray[Any]
Kind = Literal["matrix", "k", "v"]


@dataclass(frozen=True, slots=True)
class Packing:
    """How a buffer, or a part of one, lies in memory: a stack of packed matrices, or a paged cache.

    `window`: positions [first, last) of one layer of a cache; the memory is then that whole layer. None: everything.
    """

    kind: Kind
    packed: Packed
    window: tuple[int, int] | None = None

    @property
    def layout(self) -> str:
        """The layout's name."""
        return LAYOUT

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape on the wire: (*lead, rows, n), or (layers, positions, kv_dim) of a cache, or a window's rows."""
        packed = self.packed
        if self.kind == "matrix":
            return (*packed.lead, packed.rows, packed.n)
        first, last = self.window or (0, self.positions)
        return (*packed.lead[:-1], last - first, packed.lead[-1] * self._head_dim)

    @property
    def positions(self) -> int:
        """Positions that a cache holds."""
        return self.packed.rows if self.kind == "k" else self.packed.n

    @property
    def _head_dim(self) -> int:
        return self.packed.n if self.kind == "k" else self.packed.rows

    @property
    def stacked(self) -> bool:
        """Whether the leading axis of the wire shape is one of the stack, so that its rows lie one behind the other."""
        return len(self.packed.lead) > (0 if self.kind == "matrix" else 1)

    def rows(self, first: int, count: int) -> tuple[Packing, int]:
        """(packing, bytes from the start) of rows [first, first + count) of the leading axis of the wire shape.

        CopyError for rows of a single weight matrix: a block mixes them.
        """
        if self.stacked:
            part = replace(self, packed=replace(self.packed, lead=(count, *self.packed.lead[1:])))
            return part, first * (self.packed.nbytes // self.packed.lead[0])
        if self.kind == "matrix":
            raise CopyError("rows of one packed matrix lie mixed in blocks of sixteen; take the whole matrix")
        start = (self.window or (0, 0))[0] + first
        return replace(self, window=(start, start + count)), 0

    def row(self) -> Packing:
        """Of a stack of one: the same without that axis."""
        if not self.stacked:
            raise CopyError("a packed matrix or layer has no axis to drop")
        return replace(self, packed=replace(self.packed, lead=self.packed.lead[1:]))

    def read(self, memory: Array) -> Array:
        """A copy in wire order of what `memory` (the array of `packed.shape`) holds."""
        if self.kind == "matrix":
            return unpack(memory, self.packed.rows)
        flat = memory.reshape(-1, self._layer_words)
        return np.ascontiguousarray(flat[:, self._index()]).reshape(self.wire_shape)

    def write(self, memory: Array, wire: Array) -> None:
        """Put `wire` (of the wire shape) into `memory`; padding and positions outside the window stay as they are."""
        if self.kind == "matrix":
            pack(wire, memory)
        else:
            memory.reshape(-1, self._layer_words)[:, self._index()] = wire.reshape(-1, *self.wire_shape[-2:])

    def padding(self, memory: Array) -> Array:
        """The padding lanes of `memory`, a view: of a window those of its whole layer."""
        return padding(memory, self.packed.rows)

    @property
    def _layer_words(self) -> int:
        return self.packed.lead[-1] * self.packed.matrix_bytes // 4

    def _index(self) -> Array:
        first, last = self.window or (0, self.positions)
        return _kv_index(self.kind, replace(self.packed, lead=self.packed.lead[-1:]), first, last)


@lru_cache(maxsize=8)
def _kv_index(kind: Any, layer: Packed, first: int, last: int) -> Array:
    index = kv_index(kind, layer, first, last)
    index.flags.writeable = False
    return index


def packing_of(order: BufferOrder, model: Model) -> Packing | None:
    """The packing that an ordered buffer asks for, None where it is plain. CopyError for a shape without rows."""
    if order.layout != LAYOUT:
        return None
    kind: Any = order.name.rpartition("/")[2]
    if order.name.startswith("kv/"):
        layers, positions, _ = order.shape
        return Packing(kind, packed_kv(kind, layers, positions, model.n_kv_heads, model.head_dim))
    packed = packed_weight(order.shape)
    if packed is None:
        raise CopyError(f"{order.name}: shape {order.shape} has no rows to pack")
    return Packing("matrix", packed)
