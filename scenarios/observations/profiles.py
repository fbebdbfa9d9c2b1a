"""A profile of copies (Nsight Systems) beside a plan: bytes and copies by kind, exact, of a whole profiled run.

A profiler tells kinds of copies, not what they carry: the plan's edges are summed by kind. A kind with nothing recorded
is unwitnessed, since RDMA and stores of kernels leave no record of a copy.
"""

from __future__ import annotations

from typing import Any

from fleet.errors import DescriptionError
from scenarios.compare import verdict_of
from scenarios.observations.observation import Reading, summed

Document = dict[str, Any]
_KINDS = ("h2d", "d2h", "p2p", "d2d")


def compare_profile(plan: Document, reading: Reading) -> Document:
    """`kvwaybill/comparison/1`. DescriptionError for a plan that was not admitted."""
    from scenarios.observations.comparing import described, limits_of

    if plan["verdict"] != "admitted":
        raise DescriptionError.at(
            "compare", "verdict", f"the plan was {plan['verdict']}; only an admitted plan is compared"
        )
    rows = [row for kind in _KINDS if (row := _row(plan, reading, kind)) is not None]
    wrong = [row["kind"] for row in rows if row["verdict"] in ("mismatch", "missing", "unplanned")]
    unseen = [row["kind"] for row in rows if row["verdict"] == "unwitnessed"]
    detail = (
        f"{len(rows)} kinds of copies; differ: {', '.join(wrong) or 'none'}; unwitnessed: {', '.join(unseen) or 'none'}"
    )
    result = "failed" if wrong else "inconclusive" if unseen or not rows else "passed"
    checks = [{"name": "edges_match", "required": True, "result": result, "detail": detail}]
    return {
        "schema": "kvwaybill/comparison/1",
        "compared": ["plan", "observation"],
        "verdict": verdict_of(checks),
        "rows": rows,
        "checks": checks,
        "observation": described(reading) | {"requests": None},
        "warnings": list(reading.warnings),
        "limits": limits_of(reading),
    }


def _row(plan: Document, reading: Reading, kind: str) -> Document | None:
    """None where neither has a copy of the kind. What the plan does not know stays unknown and unwitnessed."""
    edges = [edge for edge in plan["edges"] if edge["kind"] == kind]
    told = [one for one in reading.observations if one.kind == kind]
    size, count = summed(one.bytes for one in told), summed(one.transfers for one in told)
    found = int(size.low) if size is not None and size.is_exact else None
    copies = int(count.low) if count is not None and count.is_exact else None
    if not edges and not found:
        return None
    known = all(edge["bytes"] is not None for edge in edges)
    planned = sum(edge["bytes"] for edge in edges) if known else None
    counted = sum(edge["copies"] for edge in edges) if all(edge["copies"] is not None for edge in edges) else None
    if not edges:
        verdict = "unplanned"
    elif planned is None or not found:
        verdict = "match" if planned == found == 0 else "unwitnessed"
    else:
        verdict = "match" if planned == found and counted in (None, copies) else "mismatch"
    ends = edges[0] if edges else {"src": told[0].src or "host", "dst": told[0].dst or "host"}
    phase = "handoff" if kind in ("p2p", "d2d") else "stage"
    return {
        "phase": phase, "tensor": "all", "src": ends["src"], "dst": ends["dst"], "kind": kind,
        "predicted_bytes": planned, "counted_bytes": None, "observed_bytes": found,
        "difference": None if planned is None or found is None else found - planned,
        "predicted_copies": counted, "counted_copies": None, "observed_copies": copies,
        "witness": "none" if verdict == "unwitnessed" else "import", "verdict": verdict,
        "pairs": [[edge["src"], edge["dst"]] for edge in edges],
    }  # fmt: skip
