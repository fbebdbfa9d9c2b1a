"""A profile of copies (Nsight Systems) beside a plan: bytes and copies by kind, exact, of a whole profiled run.

A profiler tells kinds of copies, not what they carry: the plan's edges are summed by kind. A kind with nothing recorded
is unwitnessed, since RDMA and stores of kernels leave no record of a copy. Of a plan that prices an engine only the
handoff between devices is judged, by bytes: an engine's other copies, and how it cuts them, are its own affair.
"""

from __future__ import annotations

from typing import Any

from fleet.errors import DescriptionError
from scenarios.compare import verdict_of
from scenarios.observations.observation import Interval, Reading, summed

Document = dict[str, Any]
_KINDS = ("h2d", "d2h", "p2p", "d2d")


def compare_profile(plan: Document, reading: Reading, requests: int | None = None) -> Document:
    """`kvwaybill/comparison/1` of `requests` (1 where nobody says). DescriptionError for a plan not admitted."""
    from scenarios.observations.comparing import check_size, described, limits_of

    if plan["verdict"] != "admitted":
        raise DescriptionError.at(
            "compare", "verdict", f"the plan was {plan['verdict']}; only an admitted plan is compared"
        )
    rows = [row for kind in _KINDS if (row := _row(plan, reading, kind, requests or 1)) is not None]
    for row in rows:
        check_size(row, reading)
    wrong = [row["kind"] for row in rows if row["verdict"] in ("mismatch", "missing", "unplanned")]
    unseen = [row["kind"] for row in rows if row["verdict"] == "unwitnessed" and not row["aside"]]
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
        "observation": described(reading) | {"requests": requests or 1},
        "warnings": list(reading.warnings),
        "limits": limits_of(reading),
    }


def _row(plan: Document, reading: Reading, kind: str, requests: int) -> Document | None:
    """None where neither has a copy of the kind. What the plan does not know stays unknown and unwitnessed."""
    edges = [edge for edge in plan["edges"] if edge["kind"] == kind]
    told = [one for one in reading.observations if one.kind == kind]
    found, copies = _exact(summed(one.bytes for one in told)), _exact(summed(one.transfers for one in told))
    if not edges and not found:
        return None
    planned, counted = (_times(requests, [edge[name] for edge in edges]) for name in ("bytes", "copies"))
    engine = (plan.get("transfer") or {}).get("engine") is not None
    handed = {leg["kind"] for leg in plan["handoff"].get("legs") or [plan["handoff"]]}
    judged = not engine or kind in ("p2p", "d2d")
    verdict = _verdict((planned, counted), (found, None if engine else copies), planned=bool(edges)) if judged else None
    ends = edges[0] if edges else {"src": told[0].src or "host", "dst": told[0].dst or "host"}
    gap = None if planned is None or found is None or not judged else found - planned
    return {
        "phase": "handoff" if kind in ("p2p", "d2d") else "stage", "tensor": "all",
        "src": ends["src"], "dst": ends["dst"], "kind": kind,
        "predicted_bytes": planned, "counted_bytes": None, "observed_bytes": found, "difference": gap,
        "predicted_copies": counted, "counted_copies": None, "observed_copies": copies,
        "witness": "none" if verdict in (None, "unwitnessed") else "import", "verdict": verdict or "unwitnessed",
        "aside": not judged and kind not in handed, "pairs": [[edge["src"], edge["dst"]] for edge in edges],
    }  # fmt: skip


def _exact(value: Interval | None) -> int | None:
    return int(value.low) if value is not None and value.is_exact else None


def _times(requests: int, figures: list[int | None]) -> int | None:
    known = [figure for figure in figures if figure is not None]
    return requests * sum(known) if len(known) == len(figures) else None


def _verdict(want: tuple[int | None, int | None], got: tuple[int | None, int | None], *, planned: bool) -> str:
    """Of (bytes, copies). Nothing recorded proves nothing; copies count where both sides have them."""
    if not planned:
        return "unplanned"
    if want[0] is None or not got[0]:
        return "match" if want[0] == got[0] == 0 else "unwitnessed"
    return "match" if want[0] == got[0] and (None in (want[1], got[1]) or want[1] == got[1]) else "mismatch"
