"""Buffers: named pieces of an arena, and views into them.

A buffer knows its address and carries no device that anybody could trust or forge: whose memory it is follows from the
address, which the backend looks up in its arena table at every call.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy.typing as npt

from executor.arena import NUMPY_DTYPES, Arena, DType
from fleet.errors import CopyError


@dataclass(slots=True)
class Block:
    """An allocation: what all views of one buffer share. `freed` is set once, by the backend."""

    arena: Arena
    address: int
    nbytes: int
    freed: bool = False


class Buffer:
    """A contiguous row-major array in an arena. `address` is in bytes, `nbytes` is that of this buffer or view.

    Raises CopyError when a view reaches outside its buffer.
    """

    __slots__ = ("_array", "address", "block", "dtype", "name", "nbytes", "shape")

    def __init__(self, block: Block, name: str, shape: tuple[int, ...], dtype: DType, address: int) -> None:
        self.block = block
        self.name = name
        self.shape = shape
        self.dtype: DType = dtype
        self.address = address
        self.nbytes = prod(shape) * NUMPY_DTYPES[dtype].itemsize
        self._array: npt.NDArray[Any] | None = None
        if address < block.address or address + self.nbytes > block.address + block.nbytes:
            raise CopyError(f"{name}: a view of {self.nbytes:,} B reaches outside the buffer of {block.nbytes:,} B")

    @property
    def freed(self) -> bool:
        """Whether the buffer, or the one that this is a view of, was freed."""
        return self.block.freed

    @property
    def array(self) -> npt.NDArray[Any]:
        """The memory as an ndarray, where this process can address it. CopyError when the buffer was freed."""
        if self.block.freed:
            raise CopyError(f"{self.name} was freed; allocate it again before it is used")
        if self._array is None:
            self._array = self.block.arena.view(self.address - self.block.arena.address, self.shape, self.dtype)
        return self._array

    def view(self, first: int, count: int) -> Buffer:
        """Rows [first, first + count) of the leading axis, over the same memory. CopyError outside the buffer."""
        rows = self.shape[0]
        if first < 0 or count < 1 or first + count > rows:
            raise CopyError(f"{self.name}: rows {first}..{first + count - 1} asked of {rows}")
        stride = self.nbytes // rows
        return Buffer(self.block, self.name, (count, *self.shape[1:]), self.dtype, self.address + first * stride)

    def at(self, index: int) -> Buffer:
        """Row `index` of the leading axis, that axis dropped. CopyError outside the buffer, or with one axis only."""
        if len(self.shape) < 2:
            raise CopyError(f"{self.name}: shape {self.shape} has no axis to drop; take view({index}, 1)")
        row = self.view(index, 1)
        return Buffer(self.block, self.name, self.shape[1:], self.dtype, row.address)

    def reshape(self, *shape: int) -> Buffer:
        """The first elements of this buffer, in memory order, as `shape`. CopyError when it holds fewer."""
        size = prod(shape)
        if min(shape, default=0) < 1 or size > prod(self.shape):
            raise CopyError(f"{self.name}: shape {shape} does not fit into {self.shape}")
        return Buffer(self.block, self.name, shape, self.dtype, self.address)

    def __repr__(self) -> str:
        extents = ", ".join(map(str, self.shape))
        return f"Buffer({self.name}[{extents}] {self.dtype} at {self.address:#x}{', freed' if self.freed else ''})"
