"""A YAML (or JSON) text as plain data in which every value knows its line and column.

For every file that people write by hand: fleets, scenarios, sweeps. All scalars stay text (YAML's own idea of numbers
and booleans turns `no`, `010` and `1:30` into surprises), an unquoted `null` or nothing at all is None. Refused:
repeated keys, anchors, aliases, merge keys, tags, several documents, and anything beyond the limits below.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from typing import Any

from fleet.errors import DescriptionError, Fault

MAX_BYTES = 16 * 2**20
MAX_DEPTH = 64
MAX_NODES = 1_000_000
MAX_SYNTAX_FAULTS = 100

Path = tuple[str | int, ...]
Data = dict[str, "Data"] | list["Data"] | str | None
"""What a text holds: mappings, lists, text, or None for nothing."""

_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_WIDE_BOMS = (b"\xff\xfe", b"\xfe\xff")
_LINE_BREAK = re.compile(r"\r\n|\n|\r")


@dataclass(slots=True)
class Node:
    """A value and where it begins; `key_index` is where its key begins, -1 where it has none."""

    value: dict[str, Node] | list[Node] | str | None
    index: int
    key_index: int = -1

    def plain(self, *, notes: bool = False) -> Data:
        """The value without positions; keys that begin with `x-` are left out unless `notes`."""
        if isinstance(self.value, dict):
            return {k: n.plain(notes=notes) for k, n in self.value.items() if notes or not k.startswith("x-")}
        if isinstance(self.value, list):
            return [node.plain(notes=notes) for node in self.value]
        return self.value


@dataclass(frozen=True)
class Document:
    """A parsed text. Paths are tuples of keys and list positions: `("devices", 1, "id")`."""

    source: str
    text: str
    root: Node
    faults: tuple[Fault, ...] = ()
    """What the text itself does wrong (repeated keys, anchors ...) though it could be read on."""

    @cached_property
    def data(self) -> Data:
        """The whole content without positions and without `x-` notes."""
        return self.root.plain()

    @cached_property
    def _line_starts(self) -> list[int]:
        return [0, *(match.end() for match in _LINE_BREAK.finditer(self.text))]

    def position(self, index: int) -> tuple[int, int]:
        """(line, column) of a character, both from 1."""
        line = bisect_right(self._line_starts, index)
        return line, index - self._line_starts[line - 1] + 1

    def at(self, path: Path, *, key: bool = False) -> tuple[int, int]:
        """(line, column) of the value at `path`, or of its key; of the nearest thing that exists when it does not."""
        node = self.root
        for step in path:
            below = node.value
            if isinstance(below, dict) and step in below:
                node = below[str(step)]
            elif isinstance(below, list) and isinstance(step, int) and 0 <= step < len(below):
                node = below[step]
            else:
                key = False
                break
        return self.position(node.key_index if key and node.key_index >= 0 else node.index)

    def fault(self, path: Path, message: str, *, key: bool = False) -> Fault:
        """A Fault at `path`."""
        line, column = self.at(path, key=key)
        return Fault(source=self.source, field=field_name(path), message=message, line=line, column=column)


def field_name(path: Path) -> str:
    """`devices[1].memories[0].capacity`."""
    parts = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return printable("".join(parts).removeprefix("."), 120)


def printable(text: str, limit: int = 40) -> str:
    """The text for a message: cut when it is long, anything unprintable escaped."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in cut)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean gpu:1?` for the nearest of `known`, or nothing."""
    close = get_close_matches(word[:120], list(known), n=1, cutoff=0.6)
    return f"; did you mean {printable(close[0])}?" if close else ""


STDIN = "<stdin>"
"""What a text from standard input is called in messages."""


def shown_path(path: str) -> str:
    """A path as messages name it."""
    return STDIN if path == "-" else printable(path, 200)


def read_text(path: str) -> str:
    """The text of a file, `-` for standard input. UTF-8 with or without BOM, at most MAX_BYTES.

    Raises DescriptionError: missing, unreadable, a folder, too large, not UTF-8.
    """
    if path == "-":
        raw = sys.stdin.buffer.read(MAX_BYTES + 1)
        return decode(raw, STDIN)
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise DescriptionError.at(printable(path, 200), "", _why_unreadable(error)) from error
    return decode(raw, path)


def _why_unreadable(error: OSError | ValueError) -> str:
    reasons = {
        errno.ENOENT: "no such file",
        errno.EACCES: "may not be read (permission denied); change its mode or owner",
        errno.EISDIR: "is a folder; name a file",
        errno.ELOOP: "is a loop of symbolic links",
        errno.ENAMETOOLONG: "is too long for a file name",
        errno.ENOTDIR: "lies below something that is no folder",
    }
    if isinstance(error, OSError):
        return reasons.get(error.errno or 0, f"cannot be read: {os.strerror(error.errno or 0)}")
    return "is no file name"


def decode(raw: bytes, source: str) -> str:
    """Bytes of a file as text without BOM. Raises DescriptionError."""
    if len(raw) > MAX_BYTES:
        raise DescriptionError.at(source, "", f"is larger than {MAX_BYTES // 2**20} MiB; split or shorten it")
    if raw.startswith(_WIDE_BOMS) or b"\0" in raw[:64]:
        raise DescriptionError.at(source, "", "is UTF-16, UTF-32 or binary; save it as UTF-8", 1, 1)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        line = before.count(b"\n") + 1
        column = error.start - (before.rfind(b"\n") + 1) + 1
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise DescriptionError.at(source, "", message, line, column) from error


def parse_text(text: str, source: str) -> Document:
    """The Document of a text. Raises DescriptionError when it cannot be read on (syntax, limits, empty).

    Faults after which reading goes on are kept in `Document.faults`; the caller tells them with its own.
    """
    if len(text) > MAX_BYTES:
        raise DescriptionError.at(source, "", f"is larger than {MAX_BYTES // 2**20} MiB; split or shorten it")
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise DescriptionError.at(source, "", "is empty")
    return _Reader(text, source).document()


class _Reader:
    """Composes nodes out of ruamel's events: no tags are resolved, no objects are built."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.faults: list[Fault] = []
        self.places = Document(source=source, text=text, root=Node(None, 0))
        self.n_nodes = 0

    def document(self) -> Document:
        root = Node(None, 0)
        try:
            for node in self._documents():
                root = node
        except DescriptionError as error:
            raise DescriptionError([*self.faults, *error.faults]) from error
        return Document(source=self.source, text=self.text, root=root, faults=tuple(self.faults))

    def _documents(self) -> Iterator[Node]:
        """The single document of the text; a second one is a fault."""
        self.events = self._events()
        seen = 0
        for event in self.events:
            if type(event).__name__ == "DocumentStartEvent":
                seen += 1
                if seen > 1:
                    self._stop(event.start_mark.index, "starts a second document; one file holds one")
                yield self._value(next(self.events), 0)
        if not seen:
            raise DescriptionError.at(self.source, "", "is empty: it holds only comments")

    def _events(self) -> Iterator[Any]:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
        from ruamel.yaml.reader import ReaderError

        try:
            yield from YAML(typ="safe", pure=True).parse(self.text)
        except MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            index = mark.index if mark is not None else 0
            raise self._error(index, self._syntax(index, str(error.problem or error.context or ""))) from error
        except ReaderError as error:
            position = error.position if isinstance(error.position, int) else 0
            raise self._error(position, "holds a character that YAML does not allow; remove it") from error
        except (YAMLError, ValueError, OverflowError, LookupError, TypeError, AttributeError, AssertionError) as error:
            # ruamel lets its own slips through (an escape beyond Unicode, an odd directive): still a fault of the text
            raise DescriptionError.at(
                self.source, "", "cannot be read as YAML: a malformed escape or directive"
            ) from error

    def _syntax(self, index: int, problem: str) -> str:
        if "\t" in self.text[index : index + 1] or "'\\t'" in problem:
            return "a tab cannot indent or begin a value; use blanks"
        if problem.startswith("mapping values"):
            return "a second colon in one line; put text that holds a colon in quotes, or break the line"
        return f"is not YAML here: {printable(problem, 100)}" if problem else "is not YAML here"

    def _error(self, index: int, message: str) -> DescriptionError:
        line, column = self.places.position(min(index, len(self.text)))
        return DescriptionError.at(self.source, "", message, line, column)

    def _stop(self, index: int, message: str) -> None:
        raise self._error(index, message)

    def _note(self, index: int, message: str, field: str = "") -> None:
        """A fault after which reading goes on."""
        line, column = self.places.position(index)
        self.faults.append(Fault(source=self.source, field=field, message=message, line=line, column=column))
        if len(self.faults) >= MAX_SYNTAX_FAULTS:
            self._stop(index, "too many faults of syntax; the rest was not read")

    def _value(self, event: Any, depth: int) -> Node:
        """The node that begins with `event`; consumes its events. Depth is bounded, so recursion is safe."""
        name = type(event).__name__
        index = event.start_mark.index
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            self._stop(index, f"holds more than {MAX_NODES:,} values")
        if depth > MAX_DEPTH:
            self._stop(index, f"is nested deeper than {MAX_DEPTH} levels")
        if name == "AliasEvent":
            self._note(index, f"alias *{printable(event.anchor)}: aliases are not allowed; write the value out")
            return Node(None, index)
        if event.anchor is not None:
            self._note(index, f"anchor &{printable(event.anchor)}: anchors are not allowed; write the value out")
        if event.tag is not None:
            self._note(index, f"tag {printable(str(event.tag))}: tags are not allowed; remove it")
        if name == "ScalarEvent":
            return Node(self._scalar(event, index), index)
        if name == "SequenceStartEvent":
            return Node(self._sequence(depth), index)
        return Node(self._mapping(depth), index)

    def _scalar(self, event: Any, index: int) -> str | None:
        text: str = event.value
        if event.style is None and text in _NULLS:
            return None
        if not any("\ud800" <= char <= "\udfff" for char in text):
            return text
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")  # a pair of escapes, as JSON writes them
        except UnicodeDecodeError:
            self._note(index, "holds half of a surrogate pair; remove the escape")
            return text.encode("utf-8", "replace").decode("utf-8")

    def _sequence(self, depth: int) -> list[Node]:
        nodes = []
        for event in self.events:
            if type(event).__name__ == "SequenceEndEvent":
                break
            nodes.append(self._value(event, depth + 1))
        return nodes

    def _mapping(self, depth: int) -> dict[str, Node]:
        nodes: dict[str, Node] = {}
        for event in self.events:
            if type(event).__name__ == "MappingEndEvent":
                break
            index = event.start_mark.index
            key = self._value(event, depth + 1)
            value = self._value(next(self.events), depth + 1)
            value.key_index = index
            self._keep(nodes, key, value, event)
        return nodes

    def _keep(self, nodes: dict[str, Node], key: Node, value: Node, event: Any) -> None:
        index = value.key_index
        if isinstance(key.value, (dict, list)) or key.value is None:
            self._note(index, "a key must be a plain word")
        elif key.value == "<<" and event.style is None:
            self._note(index, "merge keys (<<) are not allowed; write the fields out")
        elif key.value in nodes:
            first = self.places.position(nodes[key.value].key_index)[0]
            self._note(index, f"is given twice, first at line {first}; keep one", field_name((key.value,)))
        else:
            nodes[key.value] = value
