"""A bounded walk through the metadata of a GGUF file: a window of a mebibyte moves, nothing is kept that is skipped.

Every length is checked against what is left of the file before anything is read, so that a length of 2^60 is a
sentence and not an allocation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, NoReturn

from fleet.checkpoints.gguf_types import ARRAY, BOOL, SCALARS, STRING
from fleet.checkpoints.source import read_at
from fleet.errors import DescriptionError

MAX_HEADER_BYTES = 1 << 28
"""Metadata and tensor table of the largest published files have some 20 MB, nearly all of it vocabulary."""
MAX_ITEMS = 1 << 22
"""Most strings walked in one file: several times the largest vocabulary with its merges."""
KEPT_STRING = 1 << 16
KEPT_ITEMS = 1 << 14
MAX_KEPT = 1 << 20

_WINDOW = 1 << 20
_MAX_DEPTH = 4
COPY = "copy or download the file again"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A metadata value that was walked and not kept: a long text or a long list of `count` items or bytes."""

    count: int


class Cursor:
    """Reads little-endian fields from the file's beginning on. Raises DescriptionError where the file ends first."""

    def __init__(self, handle: BinaryIO, size: int, path: str, told: str) -> None:
        self.size, self.told = size, told
        self._handle, self._path = handle, path
        self._window, self._base, self._at = b"", 0, 0
        self._items = 0
        self._kept = 0

    @property
    def position(self) -> int:
        """The next byte's place in the file."""
        return self._base + self._at

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes, which must be few."""
        if self._at + length > len(self._window):
            self._need(length, what)
            self._base, self._at = self.position, 0
            self._window = read_at(self._handle, self._base, max(_WINDOW, length), self._path)
            if len(self._window) < length:
                self.broken(what, "became shorter while it was read")
        piece = self._window[self._at : self._at + length]
        self._at += length
        return piece

    def skip(self, length: int, what: str) -> None:
        """Moves on by `length` bytes without reading them."""
        self._need(length, what)
        self._at += length
        if self._at > len(self._window):
            self._window, self._base, self._at = b"", self.position, 0

    def u32(self, what: str) -> int:
        value: int = struct.unpack("<I", self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = struct.unpack("<Q", self.take(8, what))[0]
        return value

    def text(self, limit: int, what: str) -> str:
        """A string of at most `limit` bytes."""
        length = self.u64(what)
        if length > limit:
            self.broken(what, f"has {length:,} bytes, at most {limit:,} are allowed")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            self.broken(what, "is not UTF-8")

    def value(self, kind: int, what: str, depth: int = 0) -> object:
        """A metadata value of type `kind`: a number, a truth, a text, a tuple of numbers, or Skipped."""
        if kind == STRING:
            return self._string(what)
        if kind == ARRAY:
            return self._array(what, depth)
        if kind not in SCALARS:
            self.broken(what, f"has value type {kind}: not known")
        letter, width = SCALARS[kind]
        value: int | float = struct.unpack(f"<{letter}", self.take(width, what))[0]
        if kind == BOOL:
            if value > 1:
                self.broken(what, f"is {value}: must be true (1) or false (0)")
            return bool(value)
        return value

    def broken(self, what: str, words: str) -> NoReturn:
        """Raises DescriptionError: the walk cannot go on."""
        raise DescriptionError.at(self.told, what, f"{words}, at byte {self.position:,}; {COPY}")

    def _need(self, length: int, what: str) -> None:
        left = self.size - self.position
        if length > left:
            self.broken(what, f"is truncated: {length:,} bytes are announced, {left:,} are left")
        if self.position + length > MAX_HEADER_BYTES:
            self.broken(what, f"lies beyond {MAX_HEADER_BYTES:,} bytes of metadata: no model file has as much")

    def _string(self, what: str) -> object:
        length = self.u64(what)
        if length > KEPT_STRING:
            self.skip(length, what)
            return Skipped(length)
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            self.broken(what, "is not UTF-8")

    def _array(self, what: str, depth: int) -> object:
        kind, count = self.u32(what), self.u64(what)
        if depth >= _MAX_DEPTH:
            self.broken(what, f"is a list nested deeper than {_MAX_DEPTH} levels")
        if kind in SCALARS:
            return self._numbers(kind, count, what)
        if kind not in (STRING, ARRAY):
            self.broken(what, f"is a list of value type {kind}: not known")
        self._items += count
        # The bound of the file first: it tells a damaged count from a large list.
        self._need(count * (8 if kind == STRING else 12), what)
        if self._items > MAX_ITEMS:
            self.broken(what, f"brings the strings to {self._items:,}, at most {MAX_ITEMS:,} are walked")
        if kind == STRING:
            self._skip_strings(count, what)
        else:
            for _ in range(count):
                self._array(what, depth + 1)
        return Skipped(count)

    def _numbers(self, kind: int, count: int, what: str) -> object:
        letter, width = SCALARS[kind]
        self._kept += count
        if count > KEPT_ITEMS or self._kept > MAX_KEPT:
            self.skip(count * width, what)
            return Skipped(count)
        values = struct.unpack(f"<{count}{letter}", self.take(count * width, what))
        return tuple(map(bool, values)) if kind == BOOL else values

    def _skip_strings(self, count: int, what: str) -> None:
        """Walks `count` strings; the loop is flat because a vocabulary has hundreds of thousands."""
        unpack = struct.Struct("<Q").unpack_from
        while count:
            window, at = self._window, self._at
            last = len(window) - 8
            while count and at <= last:
                (length,) = unpack(window, at)
                if at + 8 + length > len(window):
                    break
                at += 8 + length
                count -= 1
            self._at = at
            if count:
                # At the window's edge, or longer than it.
                self.skip(self.u64(what), what)
                count -= 1
