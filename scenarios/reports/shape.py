"""What a picture is before it is drawn: its rows, its axis, its notes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fleet.units import parse_bytes, parse_rate, parse_seconds

Row = dict[str, Any]
K = TypeVar("K")
_UNITS = {
    "bytes": (("TiB", "GiB", "MiB", "KiB", "B"), parse_bytes),
    "rate": (("TB/s", "GB/s", "MB/s", "KB/s", "B/s"), parse_rate),
    "seconds": (("s", "ms", "us", "ns", "ps"), parse_seconds),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One picture. `name` says how it is drawn (`scenarios.reports.specs`), `unit` stands at its axis.

    `rows` are its bars and cells, `marks` its rules and points beside them, `notes` the words below its title.
    """

    name: str
    title: str
    unit: str
    rows: list[Row]
    marks: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def axis_unit(what: str, most: int) -> tuple[str, int]:
    """(unit, its size) of an axis that ends at `most`: bytes, bytes per second, or picoseconds."""
    names, parse = _UNITS[what]
    sizes = [(name, parse(f"1 {name}")) for name in names]
    return next(((name, size) for name, size in sizes if size <= most), sizes[-1])


def cut(text: str, longest: int) -> str:
    """The text on one line, its middle left out where it is too long for a label."""
    plain = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    if len(plain) <= longest:
        return plain
    head = longest // 2
    return f"{plain[:head]}\u2026{plain[len(plain) - (longest - head - 1) :]}"


def distinct(words: Mapping[K, str], longest: int) -> dict[K, str]:
    """A label of at most `longest` characters for each key, no two alike: rows of one label would be one row."""
    labels: dict[K, str] = {}
    taken: set[str] = set()
    for key, text in words.items():
        label, number = cut(text, longest), 1
        while label in taken:
            number += 1
            tail = f" #{number}"
            label = cut(text, longest - len(tail)) + tail
        taken.add(label)
        labels[key] = label
    return labels


def edge_words(src: str, dst: str) -> str:
    """`gpu:0 -> gpu:1`, each end cut by itself, so that the numbers at both tails stay."""
    return f"{cut(src, 20)} -> {cut(dst, 20)}"


def named_alike(names: Sequence[str]) -> str:
    """`gpu:0, gpu:1`, or the first and how many more are like it."""
    if len(names) > 3:
        return f"{cut(names[0], 32)} and {len(names) - 1} alike"
    return cut(", ".join(names), 40)


def several(names: Sequence[str]) -> str:
    """The devices of a worker: `gpu:0, gpu:1`, or the first and how many more."""
    if len(names) > 3:
        return f"{cut(names[0], 32)} and {len(names) - 1} more"
    return cut(", ".join(names), 60)
