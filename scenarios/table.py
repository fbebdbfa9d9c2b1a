"""Aligned tables, colour and line breaks for a terminal. Our own few lines: a library for it would double the start-up.

A width is known on a terminal only. Piped text has none: there one item stays one line, for `grep` and `diff`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_COLORS = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}
_ESCAPE = re.compile(r"\x1b\[[0-9]+m")
_ROUNDED = re.compile(r" \(-?[0-9.,]+ [KMGTPE]iB\)")
"""The rounded figure behind exact bytes: what a narrow table leaves out first."""
LEAST_PROSE = 24
"""Columns that a last column of words needs to be broken into lines; with less, rows are stacked."""


class Paint:
    """Colours words, or leaves them as they are, and breaks prose at `width` columns (None: never)."""

    def __init__(self, on: bool, width: int | None = None) -> None:
        self.on = on
        self.width = width

    def __call__(self, text: str, color: str | None) -> str:
        if not self.on or color is None or not text:
            return text
        return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"

    def fold(self, text: str, hang: int = 2) -> list[str]:
        """The text as lines of at most `width` columns, further lines indented by `hang`. Words are never cut."""
        return folded(text, self.width, hang)


def folded(text: str, width: int | None, hang: int) -> list[str]:
    """`text` broken at blanks; colours take no columns. A word longer than a line has a line of its own."""
    if width is None or _shown(text) <= width:
        return [text]
    body = text.lstrip(" ")
    lines: list[str] = []
    line = " " * (len(text) - len(body))
    fresh = True
    for word in body.split(" "):
        if not fresh and _shown(line) + 1 + _shown(word) > width:
            lines.append(line.rstrip())
            line, fresh = " " * hang, True
        line += word if fresh else f" {word}"
        fresh = False
    return [*lines, line]


def _shown(text: str) -> int:
    return width_of(_ESCAPE.sub("", text))


def safe(text: str) -> str:
    """Text from a document, fit for a terminal: control characters are escaped, so nothing can steer the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def width_of(text: str) -> int:
    """Columns that the text takes on a terminal: wide East Asian characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) != 0 for char in text)


Row = tuple[list[str], list[str | None]]
"""Cells and their colours."""


class Table:
    """Rows of cells under headings. A heading that begins with `>` aligns its column to the right.

    The first heading is the title of the table and stands out to the left of its column. On a terminal that is too
    narrow the rounded figures go first, then a last column of words is broken, then rows are stacked.
    """

    def __init__(self, *headings: str, indent: str = "  ") -> None:
        self.headings = [heading.removeprefix(">") for heading in headings]
        self.right = [heading.startswith(">") for heading in headings]
        self.indent = indent
        self.rows: list[Row] = []

    def add(self, *cells: str, colors: Sequence[str | None] = ()) -> None:
        """One row; `colors` by column, shorter is fine."""
        padded = [*colors, *[None] * (len(cells) - len(colors))]
        self.rows.append(([safe(cell) for cell in cells], padded))

    def lines(self, paint: Paint) -> list[str]:
        """The table as lines, without a heading where all headings are empty. No rows give no lines."""
        if not self.rows:
            return []
        if paint.width is None or self._width(self.rows, 2) <= paint.width:
            return self._laid(self.rows, paint, 2)
        short = [([_ROUNDED.sub("", cell) for cell in cells], colors) for cells, colors in self.rows]
        for gap in (2, 1):
            if self._width(short, gap) <= paint.width:
                return self._laid(short, paint, gap)
        last = self._columns(short)[-1]
        room = paint.width - (self._width(short, 2) - last)
        if not self.right[-1] and room >= LEAST_PROSE:
            return self._laid([part for row in short for part in _broken(row, room)], paint, 2)
        return self._stacked(paint)

    def _columns(self, rows: list[Row]) -> list[int]:
        """The width of each column. The title stands out to the left, so it takes that much less of its own."""
        heads = [width_of(heading) for heading in self.headings]
        heads[0] -= len(self.indent)
        return [max(head, *(width_of(cells[column]) for cells, _ in rows)) for column, head in enumerate(heads)]

    def _width(self, rows: list[Row], gap: int) -> int:
        widths = self._columns(rows)
        return len(self.indent) + sum(widths) + gap * (len(widths) - 1)

    def _laid(self, rows: list[Row], paint: Paint, gap: int) -> list[str]:
        widths = self._columns(rows)
        out = []
        if any(self.headings):
            colors = ["bold"] + ["dim"] * (len(widths) - 1)
            first = [widths[0] + len(self.indent), *widths[1:]]
            out.append(self._line(self.headings, colors, first, paint, "", gap))
        return out + [self._line(cells, colors, widths, paint, self.indent, gap) for cells, colors in rows]

    def _line(
        self,
        cells: Sequence[str],
        colors: Sequence[str | None],
        widths: Sequence[int],
        paint: Paint,
        indent: str,
        gap: int,
    ) -> str:
        parts = []
        for column, (cell, color) in enumerate(zip(cells, colors, strict=True)):
            blanks = " " * (widths[column] - width_of(cell))
            last = column == len(widths) - 1
            painted = paint(cell, color)
            parts.append(blanks + painted if self.right[column] else painted + ("" if last else blanks))
        return (indent + (" " * gap).join(parts)).rstrip()

    def _stacked(self, paint: Paint) -> list[str]:
        """A row on lines of its own: the words first, then each figure behind its heading."""
        out = [paint(self.headings[0], "bold")] if self.headings[0] else []
        hang = len(self.indent) + 2
        for cells, colors in self.rows:
            columns = list(zip(self.headings, self.right, cells, colors, strict=True))
            words = "  ".join(paint(cell, color) for _, right, cell, color in columns if cell.strip() and not right)
            figures = ", ".join(f"{heading} {cell}" for heading, right, cell, _ in columns if cell.strip() and right)
            out += paint.fold(self.indent + words, hang)
            out += paint.fold(" " * hang + figures, hang) if figures else []
        return out


def _broken(row: Row, room: int) -> list[Row]:
    """The row with its last cell broken to `room` columns, on as many rows as that takes."""
    cells, colors = row
    first, *rest = folded(cells[-1], room, 0)
    blank = [""] * (len(cells) - 1)
    return [([*cells[:-1], first], colors), *(([*blank, part], colors) for part in rest)]
