"""A comparison with an observation, for people: predicted, what was observed as an interval, times beside, warnings."""

from __future__ import annotations

from typing import Any

from scenarios.table import Paint, Table, safe
from scenarios.words import COLOR_OF, count_of, exact_bytes, plural

Document = dict[str, Any]


def observation_blocks(comparison: Document, paint: Paint) -> list[list[str]]:
    """Rows, times, what the source printed of memory, and its warnings."""
    blocks = [_rows(comparison["rows"], paint), _times(comparison.get("times") or {}, paint)]
    told = [f"  warning: {words}" for words in comparison.get("warnings") or []]
    return [block for block in (*blocks, [line for words in told for line in paint.fold(safe(words), 4)]) if block]


def _rows(rows: list[Document], paint: Paint) -> list[str]:
    table = Table("Rows", "tensor", "edge", "kind", ">predicted", ">observed", ">copies", "witness", "verdict")
    for row in rows:
        more = len(row.get("pairs") or ()) - 1
        edge = f"{row['src']} -> {row['dst']}" + (f" and {more} more {plural(more, 'pair')}" if more > 0 else "")
        copies = f"{count_of(row['predicted_copies'])}/{_interval(row, 'copies')}"
        table.add(
            row["phase"], row["tensor"], edge, row["kind"], exact_bytes(row["predicted_bytes"]),
            f"{_interval(row, 'bytes')} B" if _interval(row, "bytes") != "-" else "-", copies, row["witness"],
            row["verdict"], colors=(None,) * 8 + (COLOR_OF.get(row["verdict"]),),
        )  # fmt: skip
    return [*table.lines(paint), "  copies: predicted/observed; a range is what the printed figure may stand for"]


def _interval(row: Document, unit: str) -> str:
    exact, ends = row[f"observed_{unit}"], row.get(f"observed_{unit}_interval")
    if exact is not None:
        return f"{exact:,}"
    return f"{ends[0]:,} to {ends[1]:,}" if ends else "-"


def _times(times: Document, paint: Paint) -> list[str]:
    """A line of seconds a transfer, one of rates, one of words; nothing where the source has no times."""
    seconds, rate = times.get("observed_seconds"), times.get("observed_bytes_per_s")
    if not seconds and not rate:
        return []
    lines = [paint("Times of a transfer (beside, they judge nothing)", "bold")]
    if seconds:
        planned = times["predicted_seconds"]
        wanted = "unpriced" if planned is None else f"{planned * 1e3:.4g} ms"
        lines.append(f"  predicted {wanted}, observed {seconds[0] * 1e3:.6g} ms on average")
    if rate:
        declared = times["declared_bytes_per_s"]
        edge = "no declared rate" if declared is None else f"{declared / 1e9:g} GB/s declared of {times['link']}"
        low, high = (f"{value / 1e9:.4g}" for value in rate)
        lines.append(f"  {low if low == high else f'{low} to {high}'} GB/s, {edge}")
    if times.get("words"):
        lines += paint.fold(safe(f"  {times['words']}"), 4)
    return lines
