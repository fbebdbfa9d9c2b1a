"""The numbers of the pictures of edges: bytes by who says them, printed figures as the ranges that they stand for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fleet.units import format_bytes
from scenarios.reports.shape import Figure, Row, cut

Document = dict[str, Any]
Range = tuple[int, int]
MOST_EDGES = 24
WHO = ("predicted", "counted", "observed")


@dataclass(slots=True)
class _Edge:
    """What the rows of one edge say: bytes by who says them, None = unknown; verdicts; what was observed, as ranges."""

    figures: dict[str, list[int | None]] = field(default_factory=dict)
    verdicts: set[str] = field(default_factory=set)
    ranges: list[Range | None] = field(default_factory=list)

    @property
    def range(self) -> Range | None:
        """[least, most] of what was observed, where some of it is known by a range only; None where it is not."""
        known = [found for found in self.ranges if found is not None]
        if not known or len(known) < len(self.ranges) or _total(self.figures.get("observed", [])) is not None:
            return None
        return sum(low for low, _ in known), sum(high for _, high in known)


def edges_figure(document: Document) -> Figure | None:
    """Bytes of each phase and edge: predicted before counted before observed. A plan is predicted alone.

    What was observed as a range has its least as a bar, and both ends as marks.
    """
    edges = _edges(document)
    order = sorted(edges, key=lambda name: (not name.startswith("KV "), -(_predicted(edges[name]) or 0)))
    rows = [
        {"edge": cut(name, 60), "who": who} | _bar(edges[name], who)
        for name in order[:MOST_EDGES]
        for who in edges[name].figures
    ]
    left = len(order) - MOST_EDGES
    notes = [f"{left} more edges that carry less"] if left > 0 else []
    if any("low" in row for row in rows):
        notes.append("printed figures are rounded: both ends of what they may stand for are marked")
    return Figure(name="edges", title="Bytes by edge", unit="bytes, log scale", rows=rows, notes=notes)


def closely_figure(document: Document) -> Figure | None:
    """Of edges that were observed as ranges and judged, the range beside the prediction, in bytes beyond it."""
    rows: list[Row] = []
    for name, edge in _edges(document).items():
        found, predicted = edge.range, _predicted(edge)
        if found is None or predicted is None or edge.verdicts == {"unwitnessed"}:
            continue
        low, high = (end - predicted for end in found)
        rows.append(
            {"edge": cut(name, 60), "low": low, "high": high, "predicted": predicted, "inside": low <= 0 <= high,
             "told": _beside_words(low, high)}
        )  # fmt: skip
    notes = [f"0 is the prediction: {format_bytes(row['predicted'])}" for row in rows[:1]] if len(rows) == 1 else []
    return Figure(
        name="closely", title="Observed beside predicted, closely", unit="bytes beyond the prediction",
        rows=rows[:MOST_EDGES], notes=notes,
    )  # fmt: skip


def _edges(document: Document) -> dict[str, _Edge]:
    """By phase, ends and kind. Only where a run stands beside its plan somebody counted."""
    uncounted = document.get("compared") in (["plan", "plan"], ["run", "run"], ["plan", "observation"])
    found: dict[str, _Edge] = {}
    for leg, figures, verdict in _legs(document):
        kv = "KV " if leg["phase"] == "handoff" else ""
        edge = found.setdefault(f"{kv}{leg['phase']} {leg['src']} -> {leg['dst']} ({leg['kind']})", _Edge())
        edge.verdicts.add(verdict)
        edge.ranges.append(_range_of(leg))
        for who, nbytes in figures.items():
            if not (uncounted and who == "counted"):
                edge.figures.setdefault(who, []).append(nbytes)
    return found


def _legs(document: Document) -> Iterable[tuple[Document, dict[str, int | None], str]]:
    """(row or leg, bytes by who says them, verdict)."""
    if "rows" in document:
        for row in document["rows"]:
            yield row, {who: row[f"{who}_bytes"] for who in WHO}, row["verdict"]
        return
    for row in document.get("waybill") or []:
        for leg in row.get("legs") or [row]:
            yield row | leg, {"predicted": leg["bytes"]}, ""


def _range_of(row: Document) -> Range | None:
    if row.get("observed_bytes") is not None:
        return row["observed_bytes"], row["observed_bytes"]
    ends = row.get("observed_bytes_interval")
    return None if ends is None else (ends[0], ends[1])


def _predicted(edge: _Edge) -> int | None:
    return _total(edge.figures.get("predicted", []))


def _total(found: list[int | None]) -> int | None:
    return None if None in found else sum(nbytes or 0 for nbytes in found)


def _bar(edge: _Edge, who: str) -> Row:
    """Of a range: `low` and `high`, its least as the bar."""
    total, found = _total(edge.figures[who]), edge.range if who == "observed" else None
    if found is None:
        return {"bytes": total, "value": total or None, "told": _edge_words(edge, who, total)}
    low, high = found
    unjudged = ", unwitnessed" if edge.verdicts == {"unwitnessed"} else ""
    told = f"{low:,} to {format_bytes(high)}{unjudged}"
    return {"bytes": None, "value": low or None, "low": max(low, 1), "high": max(high, 1), "interval": [low, high],
            "told": told}  # fmt: skip


def _edge_words(edge: _Edge, who: str, total: int | None) -> str:
    """Bytes; `missing` of what was planned and never moved; `unwitnessed` of what moved and nobody saw."""
    if total is not None:
        return format_bytes(total)
    if who == "observed" and edge.verdicts == {"missing"}:
        return "missing"
    if who == "predicted":
        return "unknown"
    found = edge.figures[who]
    seen = sum(nbytes is not None for nbytes in found)
    return "unwitnessed" if not seen else f"unwitnessed in {len(found) - seen} rows"


def _beside_words(low: int, high: int) -> str:
    if low <= 0 <= high:
        return f"{low:+,} to {high:+,} B: the prediction lies inside"
    return f"{low:+,} to {high:+,} B: the prediction lies outside"
