"""Aligned tables and colour for a terminal. Our own few lines: a library for it would double the start-up time."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

_COLORS = {"green": "32", "red": "31", "yellow": "33", "bold": "1", "dim": "2"}


class Paint:
    """Colours words, or leaves them as they are. Widths are always counted before colouring."""

    def __init__(self, on: bool) -> None:
        self.on = on

    def __call__(self, text: str, color: str | None) -> str:
        if not self.on or color is None or not text:
            return text
        return f"\x1b[{_COLORS[color]}m{text}\x1b[0m"


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


class Table:
    """Rows of cells under headings. A heading that begins with `>` aligns its column to the right.

    The first heading is the title of the table and stands out to the left of its column.
    """

    def __init__(self, *headings: str, indent: str = "  ") -> None:
        self.headings = [heading.removeprefix(">") for heading in headings]
        self.right = [heading.startswith(">") for heading in headings]
        self.indent = indent
        self.rows: list[tuple[Sequence[str], Sequence[str | None]]] = []

    def add(self, *cells: str, colors: Sequence[str | None] = ()) -> None:
        """One row; `colors` by column, shorter is fine."""
        padded = [*colors, *[None] * (len(cells) - len(colors))]
        self.rows.append(([safe(cell) for cell in cells], padded))

    def lines(self, paint: Paint) -> list[str]:
        """The table as lines, without a heading where all headings are empty. No rows give no lines."""
        if not self.rows:
            return []
        widths = [
            max(width_of(heading), *(width_of(cells[column]) for cells, _ in self.rows))
            for column, heading in enumerate(self.headings)
        ]
        out = []
        if any(self.headings):
            colors = ["bold"] + ["dim"] * (len(widths) - 1)
            out.append(self._line(self.headings, colors, [widths[0] + len(self.indent), *widths[1:]], paint, indent=""))
        out += [self._line(cells, colors, widths, paint, self.indent) for cells, colors in self.rows]
        return out

    def _line(
        self, cells: Sequence[str], colors: Sequence[str | None], widths: Sequence[int], paint: Paint, indent: str
    ) -> str:
        parts = []
        for column, (cell, color) in enumerate(zip(cells, colors, strict=True)):
            blanks = " " * (widths[column] - width_of(cell))
            last = column == len(widths) - 1
            painted = paint(cell, color)
            parts.append(blanks + painted if self.right[column] else painted + ("" if last else blanks))
        return (indent + "  ".join(parts)).rstrip()
