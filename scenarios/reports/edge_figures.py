"""The numbers of the pictures of edges: bytes by who says them, printed figures as the ranges that they stand for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.units import format_bytes
from scenarios.reports.shape import Figure, Row, distinct, edge_words

Document = dict[str, Any]
Range = tuple[int, int]
_Key = tuple[str, str, str, str]
MOST_EDGES = 24
FEW = 12
"""So many edges or fewer are drawn one by one, also where they carry the same."""
WHO = ("predicted", "counted", "observed")


@dataclass(slots=True)
class _Edge:
    """What the rows of one edge say: bytes by who says them, None = unknown; verdicts; what was observed, as ranges."""

    phase: str
    src: str
    dst: str
    kind: str
    figures: dict[str, list[int | None]] = field(default_factory=dict)
    verdicts: set[str] = field(default_factory=set)
    ranges: list[Range | None] = field(default_factory=list)

    @property
    def key(self) -> _Key:
        """What tells it from other edges."""
        return self.phase, self.src, self.dst, self.kind

    @property
    def is_handoff(self) -> bool:
        """Whether it carries K and V from phase to phase."""
        return self.phase == "handoff"

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
    order = sorted(edges, key=lambda name: (not edges[name].is_handoff, -(_predicted(edges[name]) or 0)))
    alike = _alike([edges[name] for name in order])
    labels = distinct({group[0].key: _label(group) for group in alike}, 100)
    rows = [
        {"edge": labels[group[0].key], "who": who} | _bar(group[0], who)
        for group in alike[:MOST_EDGES]
        for who in group[0].figures
    ]
    left = sum(map(len, alike[MOST_EDGES:]))
    notes = [f"{left:,} more edges, none of which carries more than the last"] if left > 0 else []
    if len(alike) < len(order):
        notes.append("edges of one phase and kind that carry the same stand once")
    if any("low" in row for row in rows):
        notes.append("printed figures are rounded: both ends of what they may stand for are marked")
    return Figure(name="edges", title="Bytes by edge", unit="bytes, log scale", rows=rows, notes=notes)


def closely_figure(document: Document) -> Figure | None:
    """Of edges that were observed as ranges and judged, the range beside the prediction, in bytes beyond it."""
    rows: list[Row] = []
    edges = _edges(document)
    labels = distinct({edge.key: _label([edge]) for edge in edges.values()}, 100)
    for edge in edges.values():
        found, predicted = edge.range, _predicted(edge)
        if found is None or predicted is None or edge.verdicts == {"unwitnessed"}:
            continue
        low, high = (end - predicted for end in found)
        rows.append(
            {"edge": labels[edge.key], "low": low, "high": high, "predicted": predicted, "inside": low <= 0 <= high,
             "told": _beside_words(low, high)}
        )  # fmt: skip
    notes = [f"0 is the prediction: {format_bytes(row['predicted'])}" for row in rows[:1]] if len(rows) == 1 else []
    return Figure(
        name="closely", title="Observed beside predicted, closely", unit="bytes beyond the prediction",
        rows=rows[:MOST_EDGES], notes=notes,
    )  # fmt: skip


def _alike(edges: Sequence[_Edge]) -> list[list[_Edge]]:
    """Edges of one phase and kind with the same figures together, in their order; one by one where they are few."""
    groups: dict[object, list[_Edge]] = {}
    for at, edge in enumerate(edges):
        same = (edge.phase, edge.kind, str(edge.figures), sorted(edge.verdicts), edge.ranges)
        groups.setdefault(at if len(edges) <= FEW else str(same), []).append(edge)
    return list(groups.values())


def _label(group: Sequence[_Edge]) -> str:
    first = group[0]
    more = f" and {len(group) - 1:,} alike" if len(group) > 1 else ""
    kv = "KV " if first.is_handoff else ""
    return f"{kv}{first.phase} {edge_words(first.src, first.dst)} ({first.kind}){more}"


def _edges(document: Document) -> dict[_Key, _Edge]:
    """By phase, ends and kind. Only where a run stands beside its plan somebody counted."""
    uncounted = document.get("compared") in (["plan", "plan"], ["run", "run"], ["plan", "observation"])
    found: dict[_Key, _Edge] = {}
    for leg, figures, verdict in _legs(document):
        key = (leg["phase"], leg["src"], leg["dst"], leg["kind"])
        edge = found.setdefault(key, _Edge(*key))
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
