"""Plans of several fleets set side by side: one row a fleet, the same in the table and in the JSON."""

from __future__ import annotations

from typing import Any

from scenarios.words import mapping

Document = dict[str, Any]


def admissions_document(plans: list[Document]) -> Document:
    """`kvwaybill/admissions/1`: the rows, then each plan."""
    return {"schema": "kvwaybill/admissions/1", "fleets": [admission_row(plan) for plan in plans], "plans": plans}


def admission_row(plan: Document) -> Document:
    """What decides over one fleet.

    `device` is the one with the least margin; its `required_bytes`, `available_bytes` and `margin_bytes` are null where
    unknown. `handoff` is null where nothing is handed over, its `seconds` null where unpriced.
    """
    told = _tightest(plan)
    handoff = plan.get("handoff")
    time = None
    if handoff:
        time = {"bytes": handoff.get("bytes"), "copies": handoff.get("copies"), "seconds": handoff.get("seconds")}
        time |= {"lower_bound": True} if handoff.get("lower_bound") else {}
    return {
        "fleet": mapping(mapping(plan.get("inputs")).get("fleet")).get("name"),
        "verdict": plan["verdict"],
        "binding": _binding(plan, told),
        "device": told.get("device"),
        "required_bytes": told.get("total_bytes"),
        "available_bytes": told.get("budget_bytes"),
        "margin_bytes": told.get("slack_bytes"),
        "handoff": time,
    }


def _tightest(plan: Document) -> Document:
    """The device with the least slack; one whose slack is unknown comes first. {} where no device is told."""
    entries = [entry for entry in plan.get("memory") or [] if not str(entry["device"]).startswith("host")]
    unknown = [entry for entry in entries if entry.get("slack_bytes") is None]
    # Of a memory that two devices lie in, both totals are gone.
    joint = [entry | mapping(entry.get("shared")) for entry in entries]
    ranked: list[Document] = unknown or sorted(joint, key=lambda entry: entry["slack_bytes"])
    return ranked[0] if ranked else {}


def _binding(plan: Document, told: Document) -> str | None:
    """What decides, of the told device if it can be: the line that no longer fits, another reason, else its total."""
    reasons = plan.get("reasons") or []
    for reason in [r for r in reasons if r.get("device") == told.get("device")][:1] or reasons[:1]:
        if reason.get("line"):
            return f"{reason.get('device', '?')} {reason['line']}"
        where = reason.get("device") or reason.get("edge") or ""
        where = "->".join(where) if isinstance(where, list) else where
        return f"{reason['code']} {where}".rstrip()
    return f"{told['device']} total" if told else None
