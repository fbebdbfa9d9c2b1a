"""Arenas of CUDA devices, one `cudaMalloc` each, looked at past the ABI under a tag; and of processors beside them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from executor.arena import NUMPY_DTYPES, Arena, DType
from executor.cuda.driver import Driver, DriverError, faults, selected, worded
from executor.cuda.kernels import Kernels, signed_word
from executor.cuda.lane import Lane
from executor.cuda.source_digest import RANGES
from fleet.errors import BackendError, DeviceMemoryError

__all__ = ["CudaArena", "SharedArena"]

_COUNT_THREADS = 256

Looking = Callable[[], contextlib.AbstractContextManager[None]]
"""Marks what is copied inside as a look of the witnesses, not as traffic of the run."""


class SharedArena(Arena):
    """The memory of a processor beside cards, which copy to and from it while the program goes on.

    `awaited` holds the lanes whose copies may be under way, by device: whoever uses the memory waits for them first.
    """

    def __init__(self, name: str, fence_bytes: int, poison: int) -> None:
        self.awaited: dict[str, Lane] = {}
        super().__init__(name, fence_bytes, poison)

    def settle(self, but_for: Lane | None = None) -> None:
        """Wait for the copies that are still under way, but those of one lane. Raises what went wrong in them."""
        for device in [name for name, lane in self.awaited.items() if lane is not but_for]:
            lane = self.awaited.pop(device)
            with selected(lane.driver, lane.ordinal):
                lane.synchronize()

    def fill_words(self, first: int, last: int | None, word: int) -> None:
        """See `executor.arena.Arena.fill_words`."""
        self.settle()
        super().fill_words(first, last, word)

    def view(self, offset: int, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        """See `executor.arena.Arena.view`, by which digests, counts and looks go too."""
        self.settle()
        return super().view(offset, shape, dtype)

    def snapshot(self) -> npt.NDArray[np.uint32]:
        """See `executor.arena.Arena.snapshot`."""
        self.settle()
        return super().snapshot()


class CudaArena(Arena):
    """The memory of one CUDA device. `stream` orders its memsets and looks with the device's own work.

    Raises DeviceMemoryError when the device has not that much free memory, saying how much it has.
    """

    addressable: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        fence_bytes: int,
        poison: int,
        driver: Driver,
        ordinal: int,
        stream: int,
        looking: Looking,
        kernels: Callable[[], Kernels] | None = None,
    ) -> None:
        self._driver, self._ordinal, self._stream, self._looking = driver, ordinal, stream, looking
        self._kernels = kernels
        self._held = False
        super().__init__(name, fence_bytes, poison)

    def _reserve(self, nbytes: int) -> int:
        with selected(self._driver, self._ordinal):
            free, total = self._driver.memory()
            what = f"allocating an arena of {nbytes:,} B ({free:,} B of {total:,} B are free)"
            try:
                address = self._driver.malloc(max(nbytes, 4))
            except DriverError as fault:
                told = worded(fault, what, self.name)
                raise DeviceMemoryError(str(told), self.name, free) if fault.kind == "memory" else told from fault
        self._held = True
        return address

    def fill_words(self, first: int, last: int | None, word: int) -> None:
        """See the base class: a memset on the device, done when this returns."""
        self._open()
        end = self.fence // 4 if last is None else last
        if end > first:
            with selected(self._driver, self._ordinal), faults("poisoning memory", self.name):
                self._driver.fill(self.address + 4 * first, word, end - first, self._stream)
                self._driver.synchronize(self._stream)

    def view(self, offset: int, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        """There is none: this process cannot address the memory of a device."""
        raise BackendError(f"arena {self.name} is the memory of a device; look at it with peek")

    def peek(self, offset: int, shape: tuple[int, ...], dtype: DType) -> npt.NDArray[Any]:
        """See the base class."""
        self._open()
        array = np.empty(shape, NUMPY_DTYPES[dtype])
        if array.nbytes:
            self._move("d2h", array.ctypes.data, self.address + offset, array.nbytes)
        return array

    def poke(self, offset: int, words: npt.NDArray[np.uint32]) -> None:
        """See the base class."""
        self._open()
        if words.nbytes:
            self._move("h2d", self.address + offset, words.ctypes.data, words.nbytes)

    def _move(self, direction: Any, dst: int, src: int, nbytes: int) -> None:
        with selected(self._driver, self._ordinal), self._looking(), faults("looking at memory", self.name):
            self._driver.copy(direction, dst, src, nbytes, self._stream)
            self._driver.synchronize(self._stream)

    def digests(self, offset: int, nbytes: int, stride: int, count: int) -> list[str]:
        """See the base class: hashed by a kernel; 32 B a range come down, under the tag of a look."""
        found: list[str] = []
        for first in range(0, count, RANGES):
            some = min(RANGES, count - first)
            words = self._look("digest", offset + first * stride, nbytes, stride, (some, 1), 8 * some)
            found += ["".join(f"{word:08x}" for word in words[8 * i : 8 * i + 8]) for i in range(some)]
        return found

    def count_other(self, offset: int, nbytes: int, stride: int, count: int, word: int) -> int:
        """See the base class: counted by a kernel; 8 B come down, under the tag of a look."""
        blocks = max(1, min(128, -(-nbytes // (4 * _COUNT_THREADS))))
        words = self._look("count_other", offset, nbytes, stride, (blocks, count), 2, signed_word(word))
        return int(words[0]) | int(words[1]) << 32

    def _look(
        self, kernel: str, offset: int, nbytes: int, stride: int, grid: tuple[int, int], n_words: int, *more: int
    ) -> npt.NDArray[np.uint32]:
        """What a kernel of the witnesses finds in ranges of the arena: `n_words` words."""
        self._open()
        if self._kernels is None:
            raise BackendError(f"arena {self.name} has no kernels to look with")
        found = np.zeros(n_words, np.uint32)
        with selected(self._driver, self._ordinal):
            kernels = self._kernels()
            if nbytes and grid[1]:
                with faults("looking at memory", self.name):
                    self._driver.fill(kernels.looked, 0, n_words, self._stream)
                    args = [kernels.looked, self.address + offset, stride // 4, nbytes // 4, *more]
                    kernels.launch(kernel, grid, 128 if kernel == "digest" else _COUNT_THREADS, args)
                self._move("d2h", found.ctypes.data, kernels.looked, found.nbytes)
        return found

    def snapshot(self) -> npt.NDArray[np.uint32]:
        """See the base class."""
        return self.peek(0, (self.fence // 4,), "int32").view(np.uint32)

    def protect(self) -> None:
        """Not here: the pages of a device are not this process's to close."""
        raise BackendError(f"arena {self.name}: the memory of a device cannot be locked away")

    def unprotect(self) -> None:
        """See `protect`."""
        self.protect()

    def close(self) -> None:
        """Give the memory back. Closing twice is harmless; a lost device has nothing left to give."""
        if self._held:
            self._held = False
            self._blocks.clear()
            with faults("freeing memory", self.name), selected(self._driver, self._ordinal):
                self._driver.free(self.address)

    def _open(self) -> Any:
        if not self._held:
            raise BackendError(f"arena {self.name} is closed")
