"""A history for people: as text and as a page."""

from __future__ import annotations

from typing import Any

from scenarios.reports.page import Page, section
from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block

Document = dict[str, Any]
HEADS = ("class", "of", ">runs", ">unwitnessed", ">median error", ">quartiles", ">range", ">a run", "drift")


def percent(error: float | None) -> str:
    """`+1.25 %`; `0 %` only where it is 0."""
    if error is None:
        return "-"
    if error == 0:
        return "0 %"
    return f"{100 * error:+.3g} %"


def _cells(row: Document) -> tuple[str, ...]:
    slope = "-" if row["slope_per_run"] is None else percent(row["slope_per_run"])
    told = row["drift"] if row["drift"] in ("too few", "none") else f"{row['drift']} (p {row['p']:.2g})"
    return (
        row["class"], row["figure"], f"{row['runs']:,}", f"{row['unwitnessed']:,}", percent(row["median"]),
        _span(row["q1"], row["q3"]), _span(row["min"], row["max"]), slope, told,
    )  # fmt: skip


def _span(low: float | None, high: float | None) -> str:
    return "-" if low is None else f"{percent(low)} to {percent(high)}"


def _heading(document: Document, group: Document) -> str:
    fleet = f", fleet {group['fleet']}" if group["fleet"] else ""
    return f"{document['by']} {group['key'][:12]}: {len(group['runs'])} runs{fleet}"


def history_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """A table a group: error by class of edge, its spread, its drift."""
    paint = Paint(color, width)
    blocks = []
    for group in document["groups"]:
        table = Table(*(head for head in HEADS))
        for row in group["classes"]:
            drifts = row["drift"] in ("up", "down")
            table.add(*_cells(row), colors=(None,) * 8 + ("red" if drifts else None,))
        blocks.append([paint(safe(_heading(document, group)), "bold"), *table.lines(paint)])
    note = "Error: (observed - predicted) / predicted. `-`: no run in which a witness saw it, or no time was known."
    return joined([*blocks, paint.fold(note, 2), limits_block(document, paint)])


def history_page(document: Document, source: str) -> Page:
    """The same as a page."""
    sections = tuple(
        section(_heading(document, group), HEADS, map(_cells, group["classes"]), "history")
        for group in document["groups"]
    )
    about = (f"Prediction errors by class of edge, grouped by {document['by']}",)
    return Page(
        title=f"History {source}", verdict=None, about=about, sections=sections, limits=tuple(document["limits"])
    )
