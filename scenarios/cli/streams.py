"""The three standard streams of a process that others started: closed, full, or with nobody at the other end."""

from __future__ import annotations

import contextlib
import os
import re
import sys

_PAINTED = re.compile(r"(\x1b\[(?:0|1|2|3[1-3])m)")
"""What `scenarios.table.Paint` writes, and no other sequence."""

_WHERE_CLOSED = (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w"))
"""stdout is opened so that writing fails: a result that nobody gets must not end as if somebody had."""


def open_closed() -> None:
    """Put something behind each stream that was closed when the process began (`>&-`).

    Python sets such a stream to None, and the next file opened gets its number: a document could be written into it by
    whoever prints. stdin is then empty, stderr is dropped, and writing to stdout is an OSError.
    """
    for name, flags, mode in _WHERE_CLOSED:
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, flags)  # the lowest free number, which is the stream's own
            setattr(sys, name, open(handle, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115


def tell(words: str) -> None:
    """A line or several to stderr, fit for a terminal. Where stderr cannot be written, there is nobody to tell."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(fit(words) + "\n")
        sys.stderr.flush()


def fit(text: str, *, color: bool = False) -> str:
    """The text with every control character escaped but line ends, and with `color` our own colours."""
    from scenarios.table import safe

    def fitted(line: str) -> str:
        if line.isprintable():
            return line
        parts = _PAINTED.split(line) if color else [line]
        return "".join(part if index % 2 else safe(part) for index, part in enumerate(parts))

    return "\n".join(fitted(line) for line in text.split("\n"))
