"""The plan's `time`: TTFT and TPOT with what they are sums of, the rates they rest on, their error, and in words."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from planner.admit import Admission
from planner.placement_time import PlacementTime, placement_time, used_rates
from planner.roofline import PhaseTime, Used
from planner.rows import Row
from planner.times import Time, handoff_time
from planner.work import LEFT_OUT

Document = dict[str, Any]


def time_document(admission: Admission, rows: Sequence[Row]) -> Document:
    """`time` of a plan. Seconds only of what is admitted; null is unpriced, and `unpriced` says why.

    `error` null is unscored: no run was compared with this model of times.
    """
    rates = admission.ask.pricing.rates
    if admission.verdict != "admitted" or admission.workload is None:
        words = f"{row_basis(rows, rates)}; ttft_s and tpot_s: not admitted, so no time"
        if admission.verdict == "refused":
            words = "refused: what is not admitted has no time"
        return {"ttft_s": None, "tpot_s": None, "basis": words, "rates": rates, "error": None}
    ask = admission.ask
    found = placement_time(ask.fleet, ask.model, admission.workload, ask.placement, rows, ask.pricing)
    parts = (found.ttft, found.tpot)
    return {
        "ttft_s": _seconds(found.ttft), "tpot_s": _seconds(found.tpot),
        "basis": f"{row_basis(rows, rates)}; {_phase_basis(found)}", "rates": rates, "error": _error(parts),
        "ttft_lower_bound": found.ttft is not None and found.ttft.lower_bound,
        "tpot_lower_bound": found.tpot is not None and found.tpot.lower_bound,
        "policy": any(part is not None and part.policy for part in parts),
        "unpriced": list(dict.fromkeys(words for part in parts if part is not None for words in part.unpriced)),
        "prefill": _phase(found, "prefill", found.prefill), "handoff": _handoff(found, rows),
        "decode": _phase(found, "decode", found.decode), "used": [_used(used) for used in used_rates(found)],
        "left_out": LEFT_OUT,
    }  # fmt: skip


_OF_TIME = ("bandwidth_bytes_per_s", "latency_s", "provenance", "verified", "basis", "error", "lower_bound", "staging")


def untimed(document: Document) -> Document:
    """`waybill`, `handoff` and `contention` of a refused plan: what would move, and no time of what will not."""
    handoff = document.get("handoff")
    return {
        "waybill": [_untimed(row) for row in document["waybill"]],
        "handoff": None if handoff is None else _untimed(handoff),
        **({"contention": []} if "contention" in document else {}),
    }


def _untimed(part: Document) -> Document:
    """A row, a leg or the handoff, legs included."""
    kept = {name: value for name, value in part.items() if name not in _OF_TIME}
    if "seconds" in kept:
        kept["seconds"] = None
    if kept.get("legs"):
        kept["legs"] = [_untimed(leg) for leg in kept["legs"]]
    return kept


def _seconds(time: Time | None) -> float | None:
    return None if time is None else _float(time.seconds)


def _float(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def _error(parts: tuple[Time | None, Time | None]) -> float | None:
    errors = [part.error for part in parts if part is not None]
    known = [error for error in errors if error is not None]
    return float(max(known)) if known and len(known) == len(errors) else None


def row_basis(rows: Sequence[Row], rates: str = "declared") -> str:
    """In words, what the times of rows rest on."""
    legs = [leg for row in rows for leg in row.legs or ()]
    which = "declared figures" if rates == "declared" else "observed figures where there are any, else declared ones"
    follow = "legs one after another"
    if any(row.is_pipelined for row in rows):
        follow = "staged legs of the handoff overlapped chunk by chunk (which takes a second buffer), others in turn"
    words = [f"rows: {which}, alpha * copies + bytes / beta a leg, {follow}, unscored"]
    if any(leg.lower_bound for leg in legs):
        words.append("a link without latency gives a lower bound (bandwidth only)")
    if any(leg.seconds is None for leg in legs) or any(row.legs is None for row in rows):
        words.append("null = unpriced: a rate or the way is unknown")
    return "; ".join(words)


def _phase_basis(found: PlacementTime) -> str:
    words = [
        "ttft_s: prompt up, prefill, first token down and the handoff, one after another",
        "tpot_s: decode passes and their rows over the passes",
        "roofline of stated rates times a share of each (used), unscored",
    ]
    if any(one.lower_bound for phases in found.compute.values() for one in phases):
        words.append("a pass reads less than 1 GB of weights, so launches decide, which are not priced: a lower bound")
    if len(found.compute["prefill"]) > 1 or len(found.compute["decode"]) > 1:
        words.append("ranks work side by side and exchange two sums a layer in a ring, stages follow each other")
    return "; ".join(words)


def _phase(found: PlacementTime, phase: str, whole: Time) -> Document:
    return {
        "seconds": _float(whole.seconds),
        "calls": found.calls[phase].count,
        "chunk": found.calls[phase].chunk,
        "compute": [_computed(one) for one in found.compute[phase]],
        "rows_s": _float(found.moved[phase].seconds),
        "sums_s": _float(found.sums[phase].seconds),
    }


def _computed(one: PhaseTime) -> Document:
    return {
        "device": one.device,
        "seconds": _float(one.seconds),
        "pieces": [
            {
                "name": piece.work.name, "numbers": piece.work.numbers, "flops": piece.work.flops,
                "bytes": piece.work.bytes, "times": piece.work.times, "seconds": float(piece.seconds),
                "bound": piece.bound,
            }
            for piece in one.pieces
        ],
    }  # fmt: skip


def _handoff(found: PlacementTime, rows: Sequence[Row]) -> Document:
    """`staging`: how the legs of a staged copy follow each other; `pipelined_s`: what overlapping them would take.

    `within_memory` (true) where it is read and written in one memory, which the rows leave unpriced: no link is in it.
    """
    document: Document = {"seconds": _float(found.handoff.seconds), "lower_bound": found.handoff.lower_bound}
    across = [row for row in rows if row.phase == "handoff"]
    if any(row.kind == "d2d" for row in across):
        document["within_memory"] = True
    if any(row.legs is not None and len(row.legs) > 1 for row in across):
        for staging in ("sequential", "pipelined"):
            other = handoff_time(across, found.pricing.rates, staging)
            document |= {} if staging == found.pricing.staging else {f"{staging}_s": _float(other.seconds)}
        document["staging"] = found.pricing.staging
    return document


def _used(used: Used) -> Document:
    share = used.efficiency
    return {
        "device": used.device, "what": used.what, "per_second": used.figure.value, "rates": used.origin,
        "provenance": used.figure.provenance, "source": used.figure.source, "verified": used.figure.verified,
        "share": float(share.value), "share_provenance": share.provenance, "share_source": share.source,
    }  # fmt: skip
