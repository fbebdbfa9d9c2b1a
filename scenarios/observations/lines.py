"""The lines of a log, streamed: colours and other escapes taken out, every line and the whole file bounded."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

from fleet.errors import DescriptionError

MAX_FILE = 4 << 30
MAX_LINE = 1 << 20
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;:?<=>!]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_BINARY = 32
"""NULs in the first 4 KiB from which on a file is no text (UTF-16 logs are told by name)."""


class Line(NamedTuple):
    """One line of a text: its number from 1, without escapes or the line end."""

    number: int
    text: str


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


def lines_of(file: BinaryIO, source: str, head: bytes = b"", marks: Sequence[bytes] = ()) -> Iterator[Line]:
    """Every line, `head` being what was read of the file already. Raises DescriptionError where a limit is passed.

    With `marks`, stretches that hold none of them are left out: gigabytes of a log say nothing of transfers. Lines keep
    their numbers. A stretch with escapes is not left out, since one may stand within a mark.
    """
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DescriptionError.at(source, "", "is UTF-16; write it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
    if head.startswith((b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")):
        raise DescriptionError.at(source, "", "is compressed; unpack it first: what it holds is not known beforehand")
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
