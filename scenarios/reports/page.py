"""What a page is made of, whatever writes it: sections of finished cells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scenarios.words import plural

MOST_ROWS = 200
"""Rows of one table; a report is read by people. What is left out is counted below the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A heading, sentences, and a table whose headings that begin with `>` are right-aligned.

    `picture` names the picture (`scenarios.reports.charts`) that shows the same.
    """

    title: str
    words: tuple[str, ...] = ()
    headings: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """A document: what it is, its verdict (None where it has none), what was asked, its sections, its limits."""

    title: str
    verdict: str | None
    about: tuple[str, ...]
    sections: tuple[Section, ...]
    limits: tuple[str, ...]


def section(
    title: str, headings: Iterable[str], rows: Iterable[Iterable[str]], picture: str | None = None, *words: str
) -> Section:
    """A section with a table, bounded; and how many rows were left out."""
    told = [tuple(row) for row in rows]
    left = len(told) - MOST_ROWS
    more = (f"{left:,} more {plural(left, 'row')} left out; the document has them all.",) if left > 0 else ()
    return Section(
        title=title, words=(*words, *more), headings=tuple(headings), rows=tuple(told[:MOST_ROWS]), picture=picture
    )
