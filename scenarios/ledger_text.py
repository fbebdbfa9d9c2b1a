"""The memory ledger, the number of sequences and the weighed changes of a plan as text. Takes a finished plan."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from scenarios.table import Paint, safe
from scenarios.words import fix_words, joined, listing

Document = dict[str, Any]


def ledger_text(plan: Document, *, color: bool = False, width: int | None = None) -> str:
    """Each line of each device with its formula and source; of a refusal every dimension, with a change or why none."""
    paint = Paint(color, width)
    blocks = [_device(entry, paint) for entry in plan.get("memory") or [] if entry.get("ledger")]
    return joined([*blocks, _weighed(plan.get("counterfactuals") or [], paint)])


def _device(entry: Document, paint: Paint) -> list[str]:
    lines = [paint(safe(f"Ledger of {entry['device']}"), "bold")]
    for line in entry["ledger"]:
        head = f"  {line['line']} = {format_bytes(line['bytes'])}"
        lines += paint.fold(safe(f"{head}   {line['formula']}"), 6)
        lines += paint.fold(safe(f"      from {line['source']}"), 11)
        for term in line.get("terms") or ():
            lines += paint.fold(safe(f"      {term['what']} {term['formula']} = {term['bytes']:,} B"), 8)
    return lines


def _weighed(table: list[Document], paint: Paint) -> list[str]:
    words = []
    for row in table:
        others = f" (and {row['others']} more)" if row.get("others") else ""
        told = f"{fix_words(row['change'])}{others}" if row["change"] else f"none: {row['why']}"
        notes = [
            *(["a figure stays unknown"] if row.get("leaves") == "unverified" else []),
            *([str(row["searched"])] if row.get("searched") else []),
        ]
        words.append("; ".join([f"{row['dimension']}: {told}", *notes]))
    return listing("The smallest change in each dimension", words, paint)


def sequences_lines(plan: Document, paint: Paint) -> list[str]:
    """`Sequences   41 fit; 42 is short by ...` and `Solved      needs >= ...`, where they were asked for."""
    lines = []
    for title, key in (("Sequences", "sequences"), ("Solved", "solved")):
        if found := plan.get(key):
            lines += paint.fold(safe(f"{title:<12}{found['words']}"), 12)
    return lines
