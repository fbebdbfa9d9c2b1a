"""Checks for two documents of one kind: a gate that any changed byte, copy, count, token or verdict fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scenarios.case import Case, Document
from scenarios.checks_edges import BAD_ROWS
from scenarios.checks_inputs import inputs_unchanged
from scenarios.checks_orders import orders_unchanged
from scenarios.checks_run import runs_agree_with_themselves
from scenarios.checks_settings import kv_content_unchanged, settings_unchanged
from scenarios.finding import Finding, failed, passed, waived

_PLAN = "kvwaybill/plan/"


def _is_plan(case: Case) -> bool:
    return str(case.a["schema"]).startswith(_PLAN)


def _listed(changes: list[str], same: str) -> Finding:
    """Passed when nothing changed, else failed with the first changes."""
    if not changes:
        return passed(same)
    more = f"; and {len(changes) - 6} more" if len(changes) > 6 else ""
    return failed("; ".join(changes[:6]) + more)


def _told(value: Any) -> str:
    if value is None:
        return "unknown"
    return f"{value:,}" if isinstance(value, int) else str(value)


def edges_match(case: Case) -> Finding:
    """Fails when a row of one document has other bytes or copies in the other, or is not there at all."""
    wrong = [row for row in case.rows if row["verdict"] in BAD_ROWS]
    # Payload, bytes a pass and edges are figures of their own that the compared rows do not show.
    first, second = (_figures_of(document) for document in (case.a, case.b))
    if not wrong:
        return _listed(_changed(first, second), f"{len(case.rows)} rows have the same bytes and copies")
    # Each row that differs is told with the rows; what is left are figures of both that do not follow from it.
    both = {name for name in first.keys() & second.keys() if name.endswith((" payload_bytes", " a pass"))}
    others = _changed(*({name: held[name] for name in held if name in both} for held in (first, second)))
    return _listed([f"{len(wrong)} of {len(case.rows)} rows differ", *others], "")


def _figures_of(document: Document) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for index, row in enumerate(document["waybill"]):
        name = f"{row['phase']} {row['tensor']} {row['src']} -> {row['dst']} {row['kind']}"
        if name in figures:
            name = f"{name} ({index})"
        figures[name] = ""
        for unit in ("payload_bytes", "bytes", "copies"):
            figures[f"{name} {unit}"] = row.get(unit)
        for unit, figure in (row.get("per_pass") or {}).items():
            figures[f"{name} {unit} a pass"] = figure
    for edge in document["edges"]:
        for unit in ("bytes", "copies"):
            figures[f"edge {edge['src']} -> {edge['dst']} {edge['kind']} {unit}"] = edge[unit]
    return figures


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    absent = object()
    changes = []
    for name in [*first, *(name for name in second if name not in first)]:
        old, new = first.get(name, absent), second.get(name, absent)
        if old != new:
            words = ["absent" if value is absent else _told(value) for value in (old, new)]
            changes.append(f"{name}: {words[0]} -> {words[1]}")
    return changes


def handoff_bytes_match(case: Case) -> Finding:
    """Fails when one traversal of k and v has another payload, other bytes or other copies."""
    first, second = (_handoff(document) for document in (case.a, case.b))
    if not first and not second:
        return waived("neither document states a handoff")
    changes = _changed(first, second)
    whole = [words for words in changes if not words.startswith("leg ")]
    return _listed(whole or changes, f"handoff of {_told(first.get('bytes'))} B in both")


def _handoff(document: Document) -> dict[str, Any]:
    units = ("payload_bytes", "bytes", "copies")
    if "handoff" in document:
        handoff = document["handoff"] or {}
        figures = {unit: handoff[unit] for unit in (*units, "kind") if unit in handoff}
        for leg in handoff.get("legs") or ():
            for unit in ("bytes", "copies"):
                figures[f"leg {leg['src']} -> {leg['dst']} {leg['kind']} {unit}"] = leg[unit]
        return figures
    rows = [row for row in document["waybill"] if row["phase"] == "handoff" and row["kind"] in ("p2p", "d2d")]
    return {unit: sum(row.get(unit) or 0 for row in rows) for unit in units} if rows else {}


def resident_match(case: Case) -> Finding:
    """Fails when any byte of the memory table (plans) or any high-water mark (runs) changed."""
    first, second = (_memory(document) for document in (case.a, case.b))
    ledgers = [_ledgers(document) for document in (case.a, case.b)]
    if all(ledgers):  # plans of older versions have none
        first, second = first | ledgers[0], second | ledgers[1]
    return _listed(_changed(first, second), f"{len(first)} memory figures are the same")


def _memory(document: Document) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for entry in document.get("memory", ()):
        for line, figure in entry["resident"].items():
            figures[f"{entry['device']} {line}"] = figure
        for field, figure in entry.items():
            if field.endswith("_bytes"):
                figures[f"{entry['device']} {field}"] = figure
    for entry in document.get("resident", ()):
        figures[f"{entry['device']} high_water_bytes"] = entry["high_water_bytes"]
    return figures


def _ledgers(document: Document) -> dict[str, Any]:
    """Every line and term of the memory ledger."""
    figures: dict[str, Any] = {}
    for entry in document.get("memory", ()):
        for line in entry.get("ledger", ()):
            name = f"{entry['device']} ledger {line['line']}"
            figures[name] = line["bytes"]
            figures |= {f"{name} {number}": term["bytes"] for number, term in enumerate(line.get("terms", ()))}
    return figures


def dispatches_unchanged(case: Case) -> Finding:
    """Fails when passes or dispatches of a phase changed in number, or (runs) in their order over devices."""
    first, second = (_work(document) for document in (case.a, case.b))
    return _listed(_changed(first, second), "passes and dispatches are the same")


def _work(document: Document) -> dict[str, Any]:
    figures = {f"{phase} passes": count for phase, count in (document.get("passes") or {}).items()}
    dispatches = document.get("dispatches") or {}
    if isinstance(dispatches, dict):
        return figures | {f"{phase} dispatches": count for phase, count in dispatches.items()}
    for index, entry in enumerate(dispatches):
        figures[f"dispatches[{index}]"] = f"{entry['count']:,} {entry['phase']} on {entry['device']}"
    return figures


def tokens_unchanged(case: Case) -> Finding:
    """Fails when two runs walked other ids, or a largest logit differs in a bit."""
    if _is_plan(case):
        return waived("plans hold no chosen tokens")
    changes = []
    for field in ("tokens", "logits_top1_bits"):
        first, second = case.a[field], case.b[field]
        differ = [index for index, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]]
        n_changed = len(differ) + abs(len(first) - len(second))
        if n_changed:
            at = differ[0] if differ else min(len(first), len(second))
            changes.append(f"{n_changed} of {max(len(first), len(second))} {field} differ, from index {at} on")
    return _listed(
        changes, f"{len(case.a['tokens'])} ids and {len(case.a['logits_top1_bits'])} top logits are the same"
    )


def verdict_unchanged(case: Case) -> Finding:
    """Fails when the verdict, or (plans) the code of a reason for it, changed."""
    if not _is_plan(case):
        verdicts = [(document.get("comparison") or {}).get("verdict", "not compared") for document in (case.a, case.b)]
        return _listed([] if verdicts[0] == verdicts[1] else [" -> ".join(verdicts)], f"verdict {verdicts[0]} in both")
    changes = [] if case.a["verdict"] == case.b["verdict"] else [f"{case.a['verdict']} -> {case.b['verdict']}"]
    codes = [sorted(reason["code"] for reason in document["reasons"]) for document in (case.a, case.b)]
    if codes[0] != codes[1]:
        changes.append(f"reasons {', '.join(codes[0]) or 'none'} -> {', '.join(codes[1]) or 'none'}")
    return _listed(changes, f"verdict {case.a['verdict']} in both")


CHANGES: dict[str, Callable[[Case], Finding]] = {
    "verdict_unchanged": verdict_unchanged,
    "inputs_unchanged": inputs_unchanged,
    "settings_unchanged": settings_unchanged,
    "run_agrees_with_itself": runs_agree_with_themselves,
    "orders_unchanged": orders_unchanged,
    "edges_match": edges_match,
    "handoff_bytes_match": handoff_bytes_match,
    "resident_match": resident_match,
    "dispatches_unchanged": dispatches_unchanged,
    "tokens_unchanged": tokens_unchanged,
    "kv_content_unchanged": kv_content_unchanged,
}
"""Plan beside plan, run beside run."""
