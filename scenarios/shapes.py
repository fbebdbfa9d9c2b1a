"""Small checks for JSON values that may come from anybody: each wrong or missing field becomes a Fault with its path.

Written by hand rather than with pydantic because `kvwaybill compare` reads documents on every call and start-up counts.
Emitted documents keep unknown keys, so a record looks at the fields it names and at no other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from fleet.errors import DescriptionError, Fault

MAX_FIGURE = 2**63 - 1
"""Largest byte figure or count in a document: what a ledger row of int64 can hold."""
MAX_FAULTS = 1000

Shape = Callable[[Any, str, "Sink"], None]

_WORDS = {dict: "an object", list: "a list", str: "text", bool: "true/false", int: "a whole number", float: "a number"}


class Sink:
    """Collects the faults of one document. Stops counting at MAX_FAULTS so that a hostile file cannot fill memory."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.faults: list[Fault] = []

    def add(self, path: str, message: str) -> None:
        """One fault at a JSON path such as `waybill[3].bytes`."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(Fault(source=self.source, field=path, message=message))

    def wanted(self, path: str, wanted: str, value: Any) -> None:
        """A fault of the form `wanted a whole number, found "12"`."""
        self.add(path, f"wanted {wanted}, found {shown(value)}")

    def raise_if_any(self) -> None:
        """DescriptionError with all faults, in the order found."""
        if self.faults:
            raise DescriptionError(self.faults)


def shown(value: Any) -> str:
    """A value in a message: short, on one line, and never the whole of a hostile one."""
    if value is None:
        return "null"
    if isinstance(value, (dict, list)):
        return _WORDS[type(value)]
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 128:
        return "a number of more than 128 bits"
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 48 else text[:45] + "..."


def join(path: str, key: str) -> str:
    """`path.key`, or `key` at the top."""
    return f"{path}.{key}" if path else key


def integer(low: int = 0, high: int = MAX_FIGURE, *, null: bool = False) -> Shape:
    """A whole number from low to high. true and false are not numbers; 1.0 is not whole."""

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if type(value) is not int:
            sink.wanted(path, "a whole number", value)
        elif not low <= value <= high:
            sink.add(path, f"{shown(value)} is outside {low}..{high}")

    return check


def number(*, null: bool = False) -> Shape:
    """A finite number that is not negative."""

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if type(value) not in (int, float):
            sink.wanted(path, "a number", value)
        elif value < 0 or (isinstance(value, float) and not math.isfinite(value)):
            sink.add(path, f"{shown(value)} is not a finite number from 0 up")

    return check


def text(most: int = 4096, *, null: bool = False, pattern: str | None = None) -> Shape:
    """Text of at most `most` characters that fits the pattern as a whole."""
    compiled = None if pattern is None else re.compile(pattern)

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if not isinstance(value, str):
            sink.wanted(path, "text", value)
        elif len(value) > most:
            sink.add(path, f"text of {len(value)} characters; at most {most} are read")
        elif compiled is not None and not compiled.fullmatch(value):
            sink.add(path, f"{shown(value)} does not have the form {pattern}")

    return check


def choice(*words: str, null: bool = False) -> Shape:
    """One of the words."""

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if not isinstance(value, str) or value not in words:
            sink.add(path, f"{shown(value)} is none of {', '.join(words)}")

    return check


def flag(*, null: bool = False) -> Shape:
    """true or false."""

    def check(value: Any, path: str, sink: Sink) -> None:
        if not isinstance(value, bool) and not (value is None and null):
            sink.wanted(path, "true or false", value)

    return check


def listing(item: Shape, *, most: int = 1_000_000, least: int = 0, null: bool = False) -> Shape:
    """A list of least..most items of one shape."""

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if not isinstance(value, list):
            sink.wanted(path, "a list", value)
        elif not least <= len(value) <= most:
            sink.add(path, f"{len(value)} items; {least}..{most} are read")
        else:
            for index, entry in enumerate(value):
                item(entry, f"{path}[{index}]", sink)

    return check


def table(item: Shape, *, most: int = 10_000, null: bool = False) -> Shape:
    """An object whose keys are free and whose values have one shape."""

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if not isinstance(value, dict):
            sink.wanted(path, "an object", value)
        elif len(value) > most:
            sink.add(path, f"{len(value)} entries; at most {most} are read")
        else:
            for key, entry in value.items():
                item(entry, join(path, key), sink)

    return check


def record(required: Mapping[str, Shape], optional: Mapping[str, Shape] | None = None, *, null: bool = False) -> Shape:
    """An object with these fields. Further keys are kept and not looked at."""
    may = optional or {}

    def check(value: Any, path: str, sink: Sink) -> None:
        if value is None and null:
            return
        if not isinstance(value, dict):
            sink.wanted(path, "an object", value)
            return
        for key, shape in required.items():
            if key in value:
                shape(value[key], join(path, key), sink)
            else:
                sink.add(join(path, key), "missing")
        for key, shape in may.items():
            if key in value:
                shape(value[key], join(path, key), sink)

    return check
