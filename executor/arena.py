"""Arenas: the one memory of a device, a mapping of its own with a fence that no allocation may pass.

A CPU has one memory; emulated devices are kept apart here by giving each an anonymous mapping between two pages that
nobody may touch. So an address says whose memory it is, a page protection can prove that nobody else read it, and the
poison in it tells a byte that arrived from one that was always there. What runs in an arena is left to the backends.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
import zlib
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from executor.observers.digest import tree_digest
from fleet.errors import BackendError, FenceError, InconclusiveError

DType = Literal["fp32", "int32", "bf16", "fp16"]
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "fp32": np.dtype(np.float32),
    "int32": np.dtype(np.int32),
    "bf16": np.dtype(np.uint16),
    "fp16": np.dtype(np.float16),
}
"""NumPy has no bf16: its two bytes are held as they are."""


def type_of(array: npt.NDArray[Any]) -> DType:
    """The name of an array's type. KeyError for one that no buffer has."""
    found: DType = _NAMES[array.dtype]
    return found


_NAMES: dict[np.dtype[Any], Any] = {value: key for key, value in NUMPY_DTYPES.items()}
_POISON_BASE = 0x7FA00000  # a signalling NaN of f32 whatever the low 20 bits are
_POISON_MASK = 0x000FFFFF
_PROT_NONE = 0  # the mmap module does not name it
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.munmap.restype = ctypes.c_int
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mprotect.restype = ctypes.c_int


def poison_word(name: str, request: int) -> int:
    """The 32-bit word that fills arena `name` before `request`: an f32 NaN, and never one request's word in the next.

    As an int32 it is above two thousand million, so it is no token id either.
    """
    return _POISON_BASE | ((zlib.crc32(name.encode()) + 0x9E37 * request) & _POISON_MASK)


_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_bytes() -> int | None:
    """Memory that this process may ever have: the physical memory, or less where a control group limits it. None where
    the system tells neither.
    """
    limits = []
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not every system names its pages
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path in _CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):
            continue  # no such group, or `max`: no limit
    return min((limit for limit in limits if limit > 0), default=None)


def require_memory(nbytes: int) -> None:
    """InconclusiveError when arenas of `nbytes` in all are more than this machine has: every page is filled with
    poison before use, so what cannot be held would end the process, and not with words.
    """
    there = machine_bytes()
    if there is not None and nbytes > there:
        raise InconclusiveError(
            f"the orders fence {nbytes:,} B of memory and this machine has {there:,} B;"
            " run it on a larger one, or ask for fewer positions or another model"
        )


class _Mapping:
    """Anonymous private pages between two guard pages. They go when the last array over them goes."""

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self.nbytes = max(page, -(-nbytes // page) * page)
        total = self.nbytes + 2 * page
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        base = _libc.mmap(None, total, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        if base is None or base == _MAP_FAILED:
            reason = os.strerror(ctypes.get_errno())
            raise InconclusiveError(
                f"this machine cannot map {nbytes:,} B of memory: {reason}; use a larger one, or a smaller request"
            )
        self.address = base + page
        weakref.finalize(self, _libc.munmap, base, total).atexit = False  # arrays may outlive the exit handlers
        self.protect(base, page, _PROT_NONE)
        self.protect(base + page + self.nbytes, page, _PROT_NONE)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (self.nbytes,),
            "data": (base + page, False),
        }

    def protect(self, address: int, nbytes: int, rights: int) -> None:
        if _libc.mprotect(address, nbytes, rights) != 0:
            raise BackendError(f"mprotect of {nbytes:,} B failed: {os.strerror(ctypes.get_errno())}")


class Arena:
    """The memory of one device or host role: `fence_bytes` of it, filled with the word `poison`.

    Blocks lie in the order in which they are asked for; a gap left by `free` is used again by the first that fits it.
    `high_water` is the largest end of a block so far, in bytes from the start. Raises InconclusiveError when the
    machine cannot give the memory. `addressable`: this process can read and write it in place; what is not is looked at
    by `peek` and written by `poke`, past all copies of the ABI.
    """

    addressable: ClassVar[bool] = True

    def __init__(self, name: str, fence_bytes: int, poison: int) -> None:
        if fence_bytes < 0:
            raise BackendError(f"arena {name}: a fence of {fence_bytes} B; give 0 or more")
        self.name = name
        self.fence = fence_bytes
        self.high_water = 0
        self._blocks: dict[int, int] = {}  # offset -> nbytes of live blocks, by rising offset
        self._mapping: _Mapping | None = None
        self._bytes: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.address: int = self._reserve(fence_bytes)
        self.fill(poison)

    def _reserve(self, nbytes: int) -> int:
        """Get the memory; gives its address."""
        self._mapping = _Mapping(nbytes)
        self._bytes = np.asarray(self._mapping)
        address: int = self._mapping.address
        return address

    def fill(self, word: int) -> None:
        """Set every 32-bit word of the arena to `word`, allocated or not; `poison` becomes that word."""
        self.fill_words(0, None, word)
        self.poison = word

    def fill_words(self, first: int, last: int | None, word: int) -> None:
        """Set words [first, last) of the arena, counted from its start (None: to its end), to `word`."""
        self._bytes.view(np.uint32)[first:last].fill(word)

    def settle(self) -> None:
        """Wait for copies that are still under way to or from this memory: here nobody makes such."""

    def peek(self, offset: int, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        """What lies `offset` bytes into the arena: a copy."""
        return self.view(offset, shape, dtype).copy()

    def poke(self, offset: int, words: npt.NDArray[np.uint32]) -> None:
        """Write 32-bit words, `offset` bytes into the arena."""
        self.view(offset, words.shape, "int32").view(np.uint32)[...] = words

    def digests(self, offset: int, nbytes: int, stride: int, count: int) -> list[str]:
        """`tree_digest` of `count` ranges of `nbytes` bytes, the first at `offset`, each `stride` bytes from the last.

        Where memory is a device's own it is hashed there, and the digests alone are copied.
        """
        words = (nbytes // 4,)
        return [tree_digest(self.view(offset + i * stride, words, "int32").tobytes()) for i in range(count)]

    def count_other(self, offset: int, nbytes: int, stride: int, count: int, word: int) -> int:
        """How many 32-bit words of the ranges (see `digests`) are not `word`; counted where the memory is."""
        views = (self.view(offset + i * stride, (nbytes // 4,), "int32").view(np.uint32) for i in range(count))
        return sum(int(np.count_nonzero(view != np.uint32(word))) for view in views)

    def protect(self) -> None:
        """Make the arena unreadable and unwritable for this process: any access dies with SIGSEGV."""
        mapping = self._open()
        mapping.protect(mapping.address, mapping.nbytes, _PROT_NONE)

    def unprotect(self) -> None:
        """Undo `protect`."""
        mapping = self._open()
        mapping.protect(mapping.address, mapping.nbytes, mmap.PROT_READ | mmap.PROT_WRITE)

    def contains(self, address: int) -> bool:
        """Whether the address lies inside the fence (of an arena with a fence of 0, nothing does)."""
        return 0 <= address - self.address < self.fence

    def view(self, offset: int, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        """The array of this shape that starts `offset` bytes into the arena; it shares the arena's memory."""
        self._open()
        return np.ndarray(shape, NUMPY_DTYPES[dtype], self._bytes, offset)

    def snapshot(self) -> npt.NDArray[np.uint32]:
        """A copy of every whole word below the fence: what the memory holds, past all copies of the ABI."""
        self._open()
        return self._bytes.view(np.uint32)[: self.fence // 4].copy()

    def allocate(self, name: str, nbytes: int, align: int = 4) -> int:
        """Place a block of `nbytes` bytes on a multiple of `align`; gives its offset.

        Raises FenceError when it would end beyond the fence: a block that ends on it fits, one byte more does not.
        """
        self._open()
        if nbytes <= 0:
            raise FenceError(f"arena {self.name}: {name} asks for {nbytes} B; a buffer holds at least one element")
        offset = 0
        for start, size in self._blocks.items():
            if offset + nbytes <= start:
                break
            offset = -(-(start + size) // align) * align
        if offset + nbytes > self.fence:
            left = max(0, self.fence - offset)
            raise FenceError(
                f"arena {self.name}: {name} asks for {nbytes:,} B, {left:,} B are left below the fence of "
                f"{self.fence:,} B ({offset + nbytes - self.fence:,} B short); admit the plan again with this buffer"
            )
        self._blocks[offset] = nbytes
        self._blocks = dict(sorted(self._blocks.items()))
        self.high_water = max(self.high_water, offset + nbytes)
        return offset

    def free(self, offset: int) -> None:
        """Give the block at `offset` back and poison it: neither a stale reader nor a new owner sees old data."""
        nbytes = self._blocks.pop(offset, None)
        if nbytes is None:
            raise BackendError(f"arena {self.name}: no block at offset {offset}; it was freed before or never placed")
        self.fill_words(-(-offset // 4), (offset + nbytes) // 4, self.poison)

    def close(self) -> None:
        """Give the memory back as soon as no array over it is left. Closing twice is harmless."""
        self._mapping = None
        self._bytes = np.empty(0, np.uint8)
        self._blocks.clear()

    def _open(self) -> _Mapping:
        if self._mapping is None:
            raise BackendError(f"arena {self.name} is closed")
        return self._mapping
