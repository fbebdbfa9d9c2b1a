"""Finds the format of a file by its content and hands the lines that the format knows to its reader.

A text reader is a module of `TEXT` with `NAME`, `ENGINE`, `MARKS` (substrings, one of which stands in every line that
it knows), `knows(text) -> bool`, perhaps `is_piece(text) -> bool` (kept too, but no sign of the format), and
`read(lines, source, version) -> Reading`. A reader of whole files, text or binary, is a module of `BINARY` with `NAME`,
`matches(head: bytes) -> bool` and `read(path, source, version) -> Reading`. Readers raise DescriptionError with every
fault. A folder is TensorRT-LLM's, of which each file is a rank's.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from fleet.errors import DescriptionError, Fault
from scenarios.observations.lines import Line, lines_of, opened
from scenarios.observations.observation import Reading

BINARY: tuple[str, ...] = ("nsight", "trtllm_csv")
"""Readers of whole files, asked first, by the first bytes."""
TEXT: tuple[str, ...] = ("vllm_log", "vllm_metrics", "sglang_metrics", "nixl", "mooncake_log", "trtllm_perf")
HEAD = 4096
MOST_KEPT = 64 << 20
"""Characters of known lines that are kept: a log of gigabytes holds far fewer lines that matter."""


class TextReader(Protocol):
    """What a module of `TEXT` has."""

    NAME: str
    ENGINE: str
    MARKS: tuple[str, ...]

    def knows(self, text: str) -> bool:
        """Whether a line with one of the marks is of this format; never raises."""

    def read(self, lines: Sequence[Line], source: str, version: str | None) -> Reading:
        """What its lines say. Raises DescriptionError."""


class BinaryReader(Protocol):
    """What a module of `BINARY` has."""

    NAME: str

    def matches(self, head: bytes) -> bool:
        """Whether a file that begins so is of this format; never raises."""

    def read(self, path: str, source: str, version: str | None) -> Reading:
        """What the file says. Raises DescriptionError."""


def _text_readers() -> list[TextReader]:
    return [cast(TextReader, importlib.import_module(f"scenarios.observations.{name}")) for name in TEXT]


def _binary_readers() -> list[BinaryReader]:
    return [cast(BinaryReader, importlib.import_module(f"scenarios.observations.{name}")) for name in BINARY]


def format_names() -> tuple[str, ...]:
    """Every format that is recognised, as messages name it."""
    return (*(reader.NAME for reader in _binary_readers()), *(reader.NAME for reader in _text_readers()))


def marks() -> tuple[bytes, ...]:
    """What stands in every line that any text reader knows."""
    return tuple(mark.encode() for reader in _text_readers() for mark in reader.MARKS)


def read_observations(path: str, *, version: str | None = None) -> Reading:
    """What the file (or TensorRT-LLM's folder) at `path` says of transfers; `-` reads a text from stdin.

    `version` is the engine's, kept with what was read. Raises DescriptionError where no format, or several, are found.
    """
    if path != "-" and os.path.isdir(path):
        from scenarios.observations.trtllm_csv import read_folder

        return read_folder(path, version)
    source = "<stdin>" if path == "-" else path
    with opened(path) as file:
        try:
            head = file.read(HEAD)
            for binary in _binary_readers():
                if binary.matches(head):
                    if path == "-" or not os.path.isfile(path):
                        raise DescriptionError.at(source, "", f"is {binary.NAME}, which is read from a file only")
                    return binary.read(path, source, version)
            return read_lines(lines_of(file, source, head, marks()), source, version)
        except OSError as error:
            raise DescriptionError.at(source, "", f"cannot be read: {error.strerror or error}") from error


def read_lines(lines: Iterable[Line], source: str, version: str | None = None) -> Reading:
    """The same of lines that were read already."""
    readers = _text_readers()
    kept: dict[str, list[Line]] = {reader.NAME: [] for reader in readers}
    sure = dict.fromkeys(kept, False)
    marked = [(mark, reader) for reader in readers for mark in reader.MARKS]
    size = 0
    for line in lines:
        text = line.text
        for reader in {id(reader): reader for mark, reader in marked if mark in text}.values():
            known = reader.knows(text)
            if known or getattr(reader, "is_piece", _never)(text):
                kept[reader.NAME].append(line)
                sure[reader.NAME] = sure[reader.NAME] or known
                size += len(text)
                if size > MOST_KEPT:
                    message = f"more than {MOST_KEPT >> 20} MiB of lines about transfers; cut it to one run"
                    raise DescriptionError.at(source, "", message, line.number, 1)
    found = [reader for reader in readers if sure[reader.NAME]]
    if not found:
        names = ", ".join(format_names())
        raise DescriptionError.at(source, "", f"no line of a format that is known: {names}")
    if len(found) > 1:
        raise DescriptionError([_mixed(reader, kept[reader.NAME], source) for reader in found])
    return found[0].read(kept[found[0].NAME], source, version)


def knows_line(text: str) -> bool:
    """Whether any text reader knows the line."""
    readers = _text_readers()
    return any(reader.knows(text) for reader in readers if any(mark in text for mark in reader.MARKS))


def _never(text: str) -> bool:
    return False


def _mixed(reader: TextReader, lines: Sequence[Line], source: str) -> Fault:
    numbers = ", ".join(str(line.number) for line in lines[:5]) + (", ..." if len(lines) > 5 else "")
    message = f"lines of {reader.NAME}: {numbers}; several sources in one file would be summed twice: keep those of one"
    return Fault(source=source, field="", message=message, line=lines[0].number, column=1)
