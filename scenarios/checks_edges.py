"""The two checks about bytes on edges, and whether a document's own sums agree (also those of memory)."""

from __future__ import annotations

from collections import Counter
from typing import Any

from scenarios.case import Case, Document
from scenarios.finding import Finding, failed, inconclusive, no_decode, passed
from scenarios.plan_figures import figures_disagree, ledger_disagrees, lines_disagree

WITNESSED_PHASES = ("stage", "handoff")
"""The phases whose rows a witness must have seen; others move a few bytes a pass and are counted only."""
BAD_ROWS = ("mismatch", "missing", "unplanned")


def edges_match(case: Case) -> Finding:
    """Fails on any row that is mismatched, missing or unplanned, and on a document whose sums do not fit its rows."""
    wrong = [row for row in case.rows if row["verdict"] in BAD_ROWS]
    odd = [f"{who}: {fault}" for who, doc in (("plan", case.a), ("run", case.b)) for fault in sums_disagree(doc)]
    odd += [f"plan: {fault}" for fault in figures_disagree(case.a)]
    if wrong or odd:
        return failed("; ".join([*(row_words(row) for row in wrong[:4]), *odd[:4]]) + _more(len(wrong), len(odd)))
    unseen = [row for row in case.rows if row["verdict"] == "unwitnessed"]
    must = [row for row in unseen if row["phase"] in WITNESSED_PHASES]
    tail = f"{len(unseen)} of {len(case.rows)} rows unwitnessed"
    if must:
        return inconclusive(f"no witness saw {_ends(must[0])} and {len(must) - 1} more stage and handoff rows; {tail}")
    return passed(f"{len(case.rows)} rows as predicted; {tail}")


def _more(n_rows: int, n_sums: int) -> str:
    rest = max(0, n_rows - 4) + max(0, n_sums - 4)
    return f"; and {rest} more" if rest else ""


def _ends(row: Document) -> str:
    return f"{row['phase']} {row['tensor']} {row['src']} -> {row['dst']}"


def row_words(row: Document) -> str:
    figures = []
    for unit, suffix in (("bytes", " B"), ("copies", " copies")):
        told = [
            f"{who} {row[f'{who}_{unit}']:,}{suffix}"
            for who in ("predicted", "counted", "observed")
            if row[f"{who}_{unit}"] is not None
        ]
        figures.append(", ".join(told))
    return f"{_ends(row)} {row['verdict']} ({'; '.join(figures)})"


def handoff_bytes_match(case: Case) -> Finding:
    """Fails when one traversal of k and v moved other bytes, or in other copies, than the plan's handoff."""
    if finding := no_decode(case):
        return finding
    planned = case.a.get("handoff") or {}
    nbytes, copies = planned.get("bytes"), planned.get("copies")
    if nbytes is None or copies is None:
        return failed("the plan states no handoff, but decode passes were planned")
    rows = _traversal(case.b)
    counted = (sum(row["bytes"] for row in rows), sum(row["copies"] for row in rows))
    # A staged row is cut to the pinned pool leg by leg: more copies than rows state, and each leg says how many.
    staged = any(len(row.get("legs") or ()) > 1 for row in _traversal(case.a))
    if counted[0] != nbytes or (counted[1] != copies and not staged):
        return failed(f"counted {counted[0]:,} B in {counted[1]:,} copies; planned {nbytes:,} B in {copies:,}")
    legs = [row for row in case.rows if row["phase"] == "handoff"]
    unlike = [
        row
        for row in legs
        if row["verdict"] in ("missing", "unplanned")
        or row["counted_copies"] != row["predicted_copies"]
        or row["observed_bytes"] not in (None, row["predicted_bytes"])
    ]
    if unlike:
        return failed("; ".join(row_words(row) for row in unlike[:4]))
    seen = sum(1 for row in legs if row["observed_bytes"] is not None)
    if not seen:
        return inconclusive(f"counted {nbytes:,} B in {copies:,} copies as planned, but no witness saw them")
    return passed(f"{nbytes:,} B in {copies:,} copies; a witness saw {seen} of {len(legs)} legs")


def _traversal(document: Document) -> list[Document]:
    """The rows that carry k and v from device to device: one traversal, also when it is staged."""
    return [row for row in document["waybill"] if row["phase"] == "handoff" and row["kind"] in ("p2p", "d2d")]


def sums_disagree(document: Document) -> list[str]:
    """Where a document contradicts itself: rows beside their legs, edges beside the sum of legs, handoff beside rows.

    Without this an edited `edges` or `handoff` would pass, since rows are compared leg by leg.
    """
    faults = []
    for row in document["waybill"]:
        faults += _row_beside_legs(row, row.get("legs"))
    # Where a row's physical way is unknown its edges are unknown too, and nothing can be added up.
    if all(row.get("legs") for row in document["waybill"]):
        legs = [leg for row in document["waybill"] for leg in row["legs"]]
        faults += _beside_sums("edge", document["edges"], legs)
    return faults + _handoff_beside_rows(document)


def _row_beside_legs(row: Document, legs: list[Document] | None) -> list[str]:
    arriving = [leg for leg in legs or () if leg["dst"] == row["dst"]]
    if not arriving:
        return []
    return [
        f"{_ends(row)} states {_told(row[unit])} {unit}, its legs {_told(_total(arriving, unit))}"
        for unit in ("bytes", "copies")
        if row[unit] != _total(arriving, unit) and not (unit == "copies" and _is_cut(row, _total(arriving, unit)))
    ]


def _is_cut(row: Document, copies: int | None) -> bool:
    """Whether the legs of a staged row take more copies than the row: each was cut to the pinned pool."""
    return len(row["legs"]) > 1 and row["copies"] is not None and copies is not None and copies > row["copies"]


def _beside_sums(what: str, stated: list[Document], legs: list[Document]) -> list[str]:
    """Where the stated figures of an edge are not the sum of its legs."""
    first, second = _sums(stated), _sums(legs)
    return [
        f"{what} {key[0]} -> {key[1]} ({key[2]}) states {first[key]:,} {key[3]}, its legs {second[key]:,}"
        for key in sorted(first.keys() | second.keys())
        if first[key] != second[key]
    ]


def _sums(parts: list[Document]) -> Counter[tuple[str, str, str, str]]:
    sums: Counter[tuple[str, str, str, str]] = Counter()
    for part in parts:
        for unit in ("bytes", "copies"):
            sums[part["src"], part["dst"], part["kind"], unit] += part[unit] or 0
    return sums


def _handoff_beside_rows(document: Document) -> list[str]:
    handoff: dict[str, Any] | None = document.get("handoff")
    rows = _traversal(document)
    if not handoff:
        return []
    faults = [
        f"handoff states {_told(handoff.get(unit))} {unit}, its rows {_told(_total(rows, unit))}"
        for unit in ("payload_bytes", "bytes", "copies")
        if unit in handoff and handoff[unit] != _total(rows, unit)
    ]
    if handoff.get("legs") is not None:
        faults += _beside_sums("handoff leg", handoff["legs"], [leg for row in rows for leg in row.get("legs") or ()])
    return faults


def memory_disagrees(plan: Document) -> list[str]:
    """Where a plan's memory table contradicts itself: total, slack, and the fences that its orders set."""
    fences = {fence["arena"]: fence["bytes"] for fence in plan["orders"]["fences"]}
    faults = []
    for entry in plan["memory"]:
        lines, total = entry["resident"], entry["total_bytes"]
        budget, runtime = entry.get("budget_bytes"), lines.get("runtime") or 0
        held = _total([{"figure": figure} for figure in lines.values()], "figure")
        for what, stated, right in (
            ("total", total, None if held is None else held + (entry.get("rounding_bytes") or 0)),
            ("slack", entry.get("slack_bytes"), None if budget is None or total is None else budget - total),
            ("fence", fences.get(entry["device"]), None if total is None else total - runtime),
        ):
            if right is not None and stated != right:
                faults.append(f"{entry['device']} {what} states {_told(stated)} B, its lines {right:,}")
    return faults + lines_disagree(plan) + ledger_disagrees(plan)


def _total(parts: list[Document], unit: str) -> int | None:
    figures = [part.get(unit) for part in parts]
    return None if None in figures else sum(figure for figure in figures if figure is not None)


def _told(figure: int | None) -> str:
    return "unknown" if figure is None else f"{figure:,}"
