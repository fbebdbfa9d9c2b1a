"""Samples of the Prometheus text format: names, labels, values; and what a counter rose by over a file's scrapes.

Strict and small: a line is a sample or it is told. One scrape gives what was counted since the process began; where a
series stands several times in a file, they are scrapes in their order, and the rise from the first to the last counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleet.errors import DescriptionError, Fault
from fleet.yaml_source import printable
from scenarios.observations.lines import Line
from scenarios.observations.observation import Interval, counted

Labels = tuple[tuple[str, str], ...]

_SAMPLE = re.compile(
    r'\s*([a-zA-Z_:][a-zA-Z0-9_:]{0,200})\s*(?:\{((?:[^"}]|"(?:[^"\\]|\\.)*")*+)\})?\s+(\S{1,64})(?:\s+-?[0-9.]{1,32})?\s*(?:#.*)?'
)
_NAME = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]{0,200})(?:\s*\{|\s+[^\s=:]|\s*$)")
_PREFIX = re.compile(r"\s*(\S{1,200}[:\]>|])\s*")
_LINE_NUMBER = re.compile(r"(?:^|:)[0-9]+[:-]$")
_SOURCE = "(prefix)"
_ESCAPED = re.compile(r'\\([\\"n])')
_NO_FIGURES = ("nan", "inf", "-inf")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]{0,100})\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_RANKS = (_SOURCE, "engine", "dp_rank", "pp_rank", "tp_rank", "moe_ep_rank", "engine_type")
_MOST_SERIES = 100_000


@dataclass(slots=True)
class Series:
    """One name with one set of labels: its values in the order of the file, and the lines they stand in."""

    values: list[Interval | None] = field(default_factory=list)
    """None: NaN or infinite, which a source may say."""
    lines: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Scrapes:
    """All series of a file by name and labels (without `le`), and the most scrapes that one of them has."""

    series: dict[tuple[str, Labels], Series]
    count: int
    warnings: list[str]
    unknown: list[str] = field(default_factory=list)
    """Why what a series rose by is unknown, each a sentence with what was seen and how to mend it."""

    def label_sets(self, names: Iterable[str]) -> list[Labels]:
        """Every set of labels that one of the names has, in the order of the file."""
        wanted = set(names)
        return list(dict.fromkeys(labels for name, labels in self.series if name in wanted))

    def rise(self, name: str, labels: Labels) -> Interval | None:
        """What a counter rose by; None where it is absent, was reset, or misses in one of several scrapes."""
        found = self.series.get((name, labels))
        if found is None:
            return None
        if (why := self._why_unknown(name, found)) is not None:
            if why not in self.unknown:
                self.unknown.append(why)
                self.warnings.append(why)
            return None
        known = [value for value in found.values if value is not None]
        return known[0] if self.count == 1 else known[-1] - known[0]

    def _why_unknown(self, name: str, found: Series) -> str | None:
        before: Interval | None = None
        at = 0
        for value, line in zip(found.values, found.lines, strict=True):
            if value is None:
                return f"{name} is no finite number (line {line}): unknown; keep the scrapes in which it is one"
            if before is not None and value.low < before.low:
                return (
                    f"{name} fell from {_figure(before)} (line {at}) to {_figure(value)} (line {line}) between "
                    "scrapes: its process began anew, or the file holds scrapes of two; what it counted in between is "
                    f"unknown: keep the scrapes from line {line} on, or those of one process"
                )
            before, at = value, line
        if len(found.values) < self.count:
            return (
                f"{name} stands in {len(found.values):,} of {self.count:,} scrapes (first in line {found.lines[0]}): "
                "what it counted in the others is unknown; keep the scrapes that have it"
            )
        return None

    def last(self, name: str, labels: Labels) -> Interval | None:
        """The newest value of a gauge."""
        found = self.series.get((name, labels))
        return found.values[-1] if found else None

    def first_rise(self, names: Iterable[str], labels: Labels) -> int | None:
        """What the first of the names that is known rose by: a counter that versions name differently."""
        found = next((value for name in names if (value := self.rise(name, labels)) is not None), None)
        return None if found is None else int(found.low)

    def first_line(self, names: Iterable[str], labels: Labels) -> tuple[int, ...]:
        """The first line of each of the names that is there."""
        return tuple(self.series[name, labels].lines[0] for name in names if (name, labels) in self.series)


def _figure(value: Interval) -> str:
    """A sample's value as it may be printed: whole numbers with all their digits."""
    return f"{int(value.low):,}" if value.low.denominator == 1 else f"{float(value.low):,.17g}"


def name_of(text: str) -> str | None:
    """The name that a line begins with, of a whole sample or of a cut one; None for comments and other text."""
    found = _NAME.match(text)
    return found[1] if found else None


def has_mark(text: str, marks: tuple[str, ...]) -> bool:
    """Whether the line is a sample whose name begins with one of the marks; behind a prefix, a whole sample."""
    name = name_of(text)
    if name is not None and name.startswith(marks):
        return True
    at = _behind_prefix(text, marks)
    return at is not None and _SAMPLE.fullmatch(text, at) is not None


def _behind_prefix(text: str, marks: tuple[str, ...]) -> int | None:
    """Where the sample begins behind the name of a pod or of grep's file; None where there is no such prefix."""
    found = [text.find(mark) for mark in marks]
    at = min((place for place in found if place > 0), default=None)
    return at if at is not None and _PREFIX.fullmatch(text, 0, at) else None


def without_prefix(line: Line, marks: tuple[str, ...]) -> tuple[Line, str]:
    """(the line from its sample on, the prefix that stood before it without grep's number of the line)."""
    name = name_of(line.text)
    if name is not None and name.startswith(marks):
        return line, ""
    at = _behind_prefix(line.text, marks)
    if at is None:
        return line, ""
    return Line(line.number, line.text[at:]), _LINE_NUMBER.sub("", line.text[:at].strip())


def scrapes_of(
    lines: Sequence[Line], source: str, marks: tuple[str, ...] = (), unsaid: tuple[str, ...] = ()
) -> Scrapes:
    """The series of lines that are samples, those behind different prefixes apart. `unsaid`: labels to leave out.

    DescriptionError for values that are no numbers and broken labels.
    """
    series: dict[tuple[str, Labels], Series] = {}
    faults: list[Fault] = []
    for line, prefix in (without_prefix(line, marks) if marks else (line, "") for line in lines):
        found = _SAMPLE.fullmatch(line.text)
        if found is None:
            message = "no whole sample (name{labels} value): the line is cut"
            faults.append(Fault(source=source, field="", message=message, line=line.number, column=1))
            continue
        if found[1].endswith(("_bucket", "_created")):
            continue
        try:
            labels, figure = labels_of(found[2] or ""), found[3].removeprefix("+")
            value = None if figure.lower() in _NO_FIGURES else counted(figure)
        except (ValueError, OverflowError) as error:
            message = f"{found[1]}: {error}; the sample is cut, or the counter is not whole"
            faults.append(Fault(source=source, field="", message=message, line=line.number, column=1))
            continue
        told = [pair for pair in labels if pair[0] not in unsaid]
        labels = tuple(sorted([*told, (_SOURCE, prefix)] if prefix else told))
        one = series.setdefault((found[1], labels), Series())
        one.values.append(value)
        one.lines.append(line.number)
        if len(series) > _MOST_SERIES:
            raise DescriptionError.at(source, "", f"more than {_MOST_SERIES:,} series", line.number, 1)
    if faults:
        raise DescriptionError(faults)
    return Scrapes(series, max((len(one.values) for one in series.values()), default=0), [])


def labels_of(text: str) -> Labels:
    """The labels in braces, sorted, `le` left out. ValueError where one is broken or stands twice."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text) and text[at:].strip():
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            raise ValueError("its labels are broken")
        labels[found[1]] = _ESCAPED.sub(lambda each: {"n": "\n"}.get(each[1], each[1]), found[2])
        at = found.end()
    labels.pop("le", None)
    return tuple(sorted(labels.items()))


def rank_of(labels: Labels) -> str | None:
    """The labels that tell ranks apart, never those that name a machine."""
    told = dict(labels)
    return ", ".join(f"{name} {printable(told[name], 40)}" for name in _RANKS if name in told) or None


def model_of(labels: Labels) -> str | None:
    """The model's name, where a label says it."""
    return printable(dict(labels).get("model_name", ""), 200) or None
