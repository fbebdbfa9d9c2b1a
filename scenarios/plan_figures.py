"""Whether a plan's figures agree with each other: what no comparison of rows with a run looks at.

Payload, bytes a pass, seconds and the kind of the handoff are stated beside the bytes that a run counts; the lines of
the memory table beside buffers. A plan in which they differ is one that a comparison calls `different`.
"""

from __future__ import annotations

import math
from typing import Any

from fleet.model import DTYPE_BYTES
from scenarios.explain_times import part_times

Document = dict[str, Any]

_LINE_OF = {
    "weights": "weights", "kv": "kv_cache", "cache": "kv_cache", "act": "activations", "work": "workspace",
    "bounce": "workspace",
}  # fmt: skip
_SAME_TIME = 1e-9
"""Relative: seconds are exact fractions, rounded once to a float each."""


def figures_disagree(plan: Document) -> list[str]:
    """Where payload, bytes a pass, seconds or the handoff's kind do not follow from the rest of the plan."""
    passes = plan.get("passes") or {}
    of_cache = kv_payload(plan)
    faults = []
    for row in plan["waybill"]:
        ends = f"{row['phase']} {row['tensor']} {row['src']} -> {row['dst']}"
        wanted = of_cache if row["phase"] == "handoff" else row["bytes"]
        if None not in (wanted, row.get("payload_bytes")) and row["payload_bytes"] != wanted:
            faults.append(f"{ends} states a payload of {row['payload_bytes']:,} B, it follows {wanted:,}")
        for unit, figure in (row.get("per_pass") or {}).items():
            total = row.get(unit)
            if None not in (figure, total) and figure * passes.get(row["phase"], 0) != total:
                faults.append(f"{ends} states {figure:,} {unit} a pass, in all {total:,}")
        faults += _seconds_beside(ends, row, row.get("legs"))
    return faults + _handoff_beside(plan)


def kv_payload(plan: Document) -> int | None:
    """L * P * KD elements, times the batch: one traversal of k, and equally of v."""
    inputs = plan.get("inputs") or {}
    model, work = inputs.get("model") or {}, (plan.get("orders") or {}).get("workload") or inputs.get("workload")
    sizes: list[Any] = [model.get(name) for name in ("n_layers", "n_kv_heads", "head_dim")]
    if work is None or None in sizes:
        return None
    return int(math.prod(sizes) * work["prompt_tokens"] * DTYPE_BYTES[work["kv_dtype"]] * work["batch"])


def _seconds_beside(what: str, whole: Document, parts: list[Document] | None) -> list[str]:
    """Where stated seconds are not the sum over the parts; null parts make a null sum."""
    if "seconds" not in whole or parts is None or any("seconds" not in part for part in parts):
        return []
    times = part_times(whole) if whole.get("legs") is parts else [part["seconds"] for part in parts]
    total = None if None in times else sum(time for time in times if time is not None)
    stated = whole["seconds"]
    if (total is None) == (stated is None) and (total is None or math.isclose(stated, total, rel_tol=_SAME_TIME)):
        return []
    told = ["unpriced" if time is None else f"{time:g} s" for time in (stated, total)]
    return [f"{what} states {told[0]}, its parts {told[1]}"]


def _handoff_beside(plan: Document) -> list[str]:
    handoff = plan.get("handoff")
    rows = [row for row in plan["waybill"] if row["phase"] == "handoff" and row["kind"] in ("p2p", "d2d")]
    if not handoff or not rows:
        return []
    faults = _seconds_beside("handoff", handoff, rows)
    kinds = {row["kind"] for row in rows}
    if "kind" in handoff and kinds != {handoff["kind"]}:
        faults.append(f"handoff states the kind {handoff['kind']}, its rows {', '.join(sorted(kinds))}")
    return faults


def ledger_disagrees(plan: Document) -> list[str]:
    """Where a line of the memory ledger is not the figure of the memory table, or not the sum of its terms."""
    faults = []
    for entry in plan["memory"]:
        total, capacity = entry["total_bytes"], entry.get("capacity_bytes")
        used = entry.get("in_use_bytes", 0)
        known = None not in (total, capacity, used)
        stated = entry["resident"] | {name.removesuffix("_bytes"): entry.get(name) for name in _OF_ENTRY}
        stated |= {"in use": used, "slack of the device": capacity - used - total if known else None}
        stated |= {"reserve": (plan.get("inputs") or {}).get("reserve_bytes"), "in flight": _in_flight(plan, entry)}
        for line in entry.get("ledger", ()):
            name, terms = line["line"], [term["bytes"] for term in line.get("terms", ())]
            if (name in stated and line["bytes"] != stated[name]) or (terms and sum(terms) != line["bytes"]):
                faults.append(f"{entry['device']} {name}: the ledger states another figure than the memory table")
    return faults


_OF_ENTRY = ("rounding_bytes", "total_bytes", "capacity_bytes", "budget_bytes", "slack_bytes")


def _in_flight(plan: Document, entry: Document) -> int:
    """Bytes of the rows of a handoff, device to device, that begin or end here."""
    rows = [row for row in plan["waybill"] if row["phase"] == "handoff" and row["kind"] in ("p2p", "d2d")]
    return sum(row["bytes"] or 0 for row in rows if entry["device"] in (row["src"], row["dst"]))


def lines_disagree(plan: Document) -> list[str]:
    """Where a line of the memory table is not the sum of the buffers of its kind that the orders list."""
    buffers = {arena["arena"]: arena["buffers"] for arena in (plan.get("orders") or {}).get("arenas", ())}
    faults = []
    for entry in plan["memory"]:
        held = dict.fromkeys(entry["resident"], 0)
        for buffer in buffers.get(entry["device"], ()):
            line = _LINE_OF.get(buffer["name"].split("/", 1)[0], "workspace")
            held[line] = held.get(line, 0) + math.prod(buffer["shape"]) * DTYPE_BYTES[buffer["dtype"]]
        for line in ("weights", "kv_cache", "activations", "workspace"):
            stated = entry["resident"].get(line, 0)
            if entry["device"] in buffers and stated is not None and stated != held.get(line, 0):
                faults.append(f"{entry['device']} {line} states {stated:,} B, its buffers {held.get(line, 0):,}")
    return faults
