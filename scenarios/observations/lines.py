"""The lines of a log, streamed: colours and other escapes taken out, every line and the whole file bounded."""

from __future__ import annotations

import os
import re
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple, Protocol

from fleet.errors import DescriptionError

MAX_FILE = 4 << 30
MAX_LINE = 1 << 20
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;:?<=>!]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_GZIP = b"\x1f\x8b"
MAX_UNPACKED, MOST_TIMES = 1 << 30, 200
"""Bytes that a packed text unpacks to, and how many times its own: logs pack 10 to 100 times."""
_SMALL = 16 << 20
_BINARY = 32
"""NULs in the first 4 KiB from which on a file is no text (UTF-16 logs are told by name)."""


class Readable(Protocol):
    """What bytes come from."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, b"" at the end."""


class Line(NamedTuple):
    """One line of a text: its number from 1, without escapes or the line end."""

    number: int
    text: str


_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}:[0-9]{2}")


def without_repeats(lines: Iterable[tuple[int, str]], warnings: list[str]) -> list[tuple[int, str]]:
    """(number, text) of each line; one that agrees with an earlier one to the time of day is told, and left out."""
    seen: set[str] = set()
    once = []
    for number, text in lines:
        if _CLOCK.search(text) and text in seen:
            warnings.append(f"line {number} repeats an earlier one, time of day included: counted once")
            continue
        seen.add(text)
        once.append((number, text))
    return once


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """The file at `path` (`-` = stdin), to be read once. DescriptionError for devices, folders, nothing."""
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb")  # noqa: SIM115 - the caller's block is outside this try: its errors are its own
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else "not a path"
        raise DescriptionError.at(path, "", f"cannot be read: {reason}") from error
    with file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise DescriptionError.at(path, "", "is a device, not a file")
        yield file


class _Unpacked:
    """A text out of gzip, never more of it at once than is asked for. Members that follow one another are one text."""

    def __init__(self, file: Readable, source: str, head: bytes) -> None:
        self.file, self.source, self.packed = file, source, head
        self.taken, self.total = len(head), 0
        self.member = zlib.decompressobj(wbits=31)

    def read(self, size: int) -> bytes:
        """At most `size` bytes, b"" at the end. DescriptionError where it is cut, damaged, or unpacks without end."""
        while True:
            if not self.packed and not (packed := self.file.read(1 << 16)):
                if self.member.eof:
                    return b""
                raise DescriptionError.at(self.source, "", "is cut: its gzip does not end; copy the file again")
            if not self.packed:
                self.packed = packed
                self.taken += len(packed)
            if self.member.eof:
                self.member = zlib.decompressobj(wbits=31)
            try:
                data = self.member.decompress(self.packed, size)
            except zlib.error as error:
                raise DescriptionError.at(self.source, "", f"is damaged gzip ({error}); copy the file again") from error
            # Zeros behind a member are padding.
            self.packed = self.member.unused_data.lstrip(b"\0") if self.member.eof else self.member.unconsumed_tail
            self.total += len(data)
            self._check_size()
            if data:
                return data

    def _check_size(self) -> None:
        if self.total > MAX_UNPACKED:
            message = f"unpacks to more than {MAX_UNPACKED >> 30} GiB; keep the lines that matter"
            raise DescriptionError.at(self.source, "", message)
        if self.total > _SMALL and self.total > MOST_TIMES * self.taken:
            raise DescriptionError.at(self.source, "", f"unpacks to more than {MOST_TIMES} times its size; no log")


def lines_of(file: Readable, source: str, head: bytes = b"", marks: Sequence[bytes] = ()) -> Iterator[Line]:
    """Every line, `head` being what was read of the file already. Raises DescriptionError where a limit is passed.

    With `marks`, stretches that hold none of them are left out: gigabytes of a log say nothing of transfers. Lines keep
    their numbers. A stretch with escapes is not left out, since one may stand within a mark.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DescriptionError.at(source, "", "is UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
    if head.startswith(_GZIP):
        packed = _Unpacked(file, source, head)
        if (inner := packed.read(1 << 12)).startswith(_GZIP):
            raise DescriptionError.at(source, "", "is packed twice; unpack it first")
        yield from lines_of(packed, source, inner, marks)
        return
    if head.startswith((b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise DescriptionError.at(source, "", "is compressed; unpack it first (of packed texts gzip alone is read)")
    if head.count(0) >= _BINARY:
        raise DescriptionError.at(source, "", "is binary, and no binary format that is read here")
    rest, number, total = head, 0, len(head)
    while True:
        chunk = file.read(1 << 16)
        total += len(chunk)
        if total > MAX_FILE:
            raise DescriptionError.at(source, "", f"larger than {MAX_FILE >> 30} GiB; keep the lines that matter")
        stretch = rest + chunk
        if chunk and marks and b"\x1b" not in stretch and not any(mark in stretch for mark in marks):
            number += _passed_over(stretch, source, number)
            rest = stretch[stretch.rfind(b"\n") + 1 :]
            if len(rest) > MAX_LINE:
                _too_long(source, number + 1)
            continue
        *whole, rest = stretch.split(b"\n")
        for part in whole if chunk else [*whole, rest]:
            number += 1
            yield Line(number, _plain(part, source, number))
        if not chunk:
            return
        if len(rest) > MAX_LINE:
            _too_long(source, number + 1)


def _passed_over(stretch: bytes, source: str, number: int) -> int:
    """Lines that end in it. Only the first can be as long as a line must not be: the rest of it is one chunk."""
    if stretch.find(b"\n") > MAX_LINE:
        _too_long(source, number + 1)
    return stretch.count(b"\n")


def _plain(line: bytes, source: str, number: int) -> str:
    if len(line) > MAX_LINE:
        _too_long(source, number)
    text = _ESCAPES.sub(b"", line) if b"\x1b" in line else line
    return text.decode("utf-8", errors="replace").rstrip("\r").lstrip("\ufeff")


def _too_long(source: str, number: int) -> None:
    raise DescriptionError.at(source, "", f"a line longer than {MAX_LINE >> 20} MiB; no log", number, 1)
