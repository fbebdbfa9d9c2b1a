"""Buffers: named pieces of an arena, and views into them.

A buffer knows its address and carries no device that anybody could trust or forge: whose memory it is follows from the
address, which the backend looks up in its arena table at every call. A packed buffer (`executor.packing`) has the shape
of the wire and other words in memory: `wire` and `put` translate, `array` is the memory as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.arena import NUMPY_DTYPES, Arena, DType
from executor.packing import Packing
from fleet.errors import CopyError

_WORD_BYTES = 4


@dataclass(slots=True)
class Block:
    """An allocation: what all views of one buffer share. `freed` is set once, by the backend."""

    arena: Arena
    address: int
    nbytes: int
    freed: bool = False


class Buffer:
    """A contiguous row-major array in an arena, or a packed one. `address` is in bytes.

    `nbytes` is what this buffer or view is on the wire, `held_bytes` what its memory takes from `address` on; they
    differ where `packing` says how it lies. Of a window of a packed cache the memory is the whole layer.
    Raises CopyError when a view reaches outside its buffer.
    """

    __slots__ = ("_array", "address", "block", "dtype", "held_bytes", "name", "nbytes", "packing", "shape")

    def __init__(
        self,
        block: Block,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        address: int,
        packing: Packing | None = None,
    ) -> None:
        self.block = block
        self.name = name
        self.shape = shape
        self.dtype: DType = dtype
        self.address = address
        self.nbytes = prod(shape) * NUMPY_DTYPES[dtype].itemsize
        self.packing = packing
        self.held_bytes = self.nbytes if packing is None else packing.packed.nbytes
        self._array: npt.NDArray[Any] | None = None
        if address < block.address or address + self.held_bytes > block.address + block.nbytes:
            raise CopyError(f"{name}: a view of {self.held_bytes:,} B reaches outside the buffer of {block.nbytes:,} B")

    @property
    def freed(self) -> bool:
        """Whether the buffer, or the one that this is a view of, was freed."""
        return self.block.freed

    @property
    def array(self) -> npt.NDArray[Any]:
        """The memory as an ndarray, where this process can address it; of a packed buffer in the shape of its blocks.

        CopyError when the buffer was freed, of a window of a packed cache, whose words lie apart, and of the memory of
        a device that this process cannot address.
        """
        if self.packing is not None and self.packing.window is not None:
            raise CopyError(f"{self.name}: positions of a packed cache lie apart; use wire() and put()")
        return self._memory()

    def _live(self) -> None:
        if self.block.freed:
            raise CopyError(f"{self.name} was freed; allocate it again before it is used")

    def _memory(self) -> npt.NDArray[Any]:
        self._live()
        if not self.block.arena.addressable:
            raise CopyError(f"{self.name} lies in the memory of {self.block.arena.name}; use wire() and put()")
        self.block.arena.settle()
        if self._array is None:
            shape = self.shape if self.packing is None else self.packing.packed.shape
            self._array = self.block.arena.view(self._offset, shape, self.dtype)
        return self._array

    @property
    def wire_shape(self) -> tuple[int, ...]:
        """The shape of `wire`: two elements of two bytes are one word."""
        return (*self.shape[:-1], self.shape[-1] * NUMPY_DTYPES[self.dtype].itemsize // _WORD_BYTES)

    def wire(self) -> npt.NDArray[np.uint32]:
        """The words of this buffer in wire order and shape: its own memory where it is plain and can be addressed, else
        a copy.
        """
        if not self.block.arena.addressable:
            self._live()
            return self.block.arena.peek(self._offset, self.shape, self.dtype).view(np.uint32)
        words = self._memory().view(np.uint32)
        return words if self.packing is None else self.packing.read(words)

    def put(self, words: npt.NDArray[Any]) -> None:
        """Fill it from words in wire order and shape, bit for bit. Nothing beside it is written, nor any padding."""
        if not self.block.arena.addressable:
            self._live()
            given = np.broadcast_to(words.view(np.uint32), self.wire_shape)
            self.block.arena.poke(self._offset, np.ascontiguousarray(given))
            return
        mine, given = self._memory().view(np.uint32), words.view(np.uint32)
        if self.packing is None:
            mine[...] = given
        else:
            self.packing.write(mine, given)

    def word(self, index: int) -> int:
        """The 32-bit word number `index` of a plain buffer, in memory order."""
        if self.block.arena.addressable:
            return int(self._memory().reshape(-1).view(np.uint32)[index])
        self._live()
        return int(self.block.arena.peek(self._offset + _WORD_BYTES * index, (1,), self.dtype).view(np.uint32)[0])

    def fill(self, word: int) -> None:
        """Set every word of its memory, padding included, to `word`."""
        self._live()
        first = self._offset // _WORD_BYTES
        self.block.arena.fill_words(first, first + self.held_bytes // _WORD_BYTES, word)

    @property
    def _offset(self) -> int:
        return self.address - self.block.arena.address

    def padding(self) -> npt.NDArray[np.uint32] | None:
        """The words that belong to the layout alone, a view; None of a plain buffer."""
        return None if self.packing is None else self.packing.padding(self._memory().view(np.uint32))

    def view(self, first: int, count: int) -> Buffer:
        """Rows [first, first + count) of the leading axis, over the same memory. CopyError outside the buffer."""
        rows = self.shape[0]
        if first < 0 or count < 1 or first + count > rows:
            raise CopyError(f"{self.name}: rows {first}..{first + count - 1} asked of {rows}")
        shape = (count, *self.shape[1:])
        if self.packing is not None:
            packing, offset = self.packing.rows(first, count)
            return Buffer(self.block, self.name, shape, self.dtype, self.address + offset, packing)
        return Buffer(self.block, self.name, shape, self.dtype, self.address + first * (self.nbytes // rows))

    def at(self, index: int) -> Buffer:
        """Row `index` of the leading axis, that axis dropped. CopyError outside the buffer, or with one axis only."""
        if len(self.shape) < 2:
            raise CopyError(f"{self.name}: shape {self.shape} has no axis to drop; take view({index}, 1)")
        row = self.view(index, 1)
        packing = None if row.packing is None else row.packing.row()
        return Buffer(self.block, self.name, self.shape[1:], self.dtype, row.address, packing)

    def reshape(self, *shape: int) -> Buffer:
        """The first elements of this buffer, in memory order, as `shape`. CopyError when it holds fewer."""
        if self.packing is not None:
            raise CopyError(f"{self.name} is packed; it has no other shape than {self.shape}")
        size = prod(shape)
        if min(shape, default=0) < 1 or size > prod(self.shape):
            raise CopyError(f"{self.name}: shape {shape} does not fit into {self.shape}")
        return Buffer(self.block, self.name, shape, self.dtype, self.address)

    def __repr__(self) -> str:
        extents = ", ".join(map(str, self.shape))
        return f"Buffer({self.name}[{extents}] {self.dtype} at {self.address:#x}{', freed' if self.freed else ''})"
