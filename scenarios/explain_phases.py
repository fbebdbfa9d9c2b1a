"""How TTFT and TPOT of a plan came about: every piece of work over the rates and shares that stand beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from scenarios.derivation import Derivation, Document
from scenarios.words import scored_time, time_words

_SAME = 1e-9
"""Relative: seconds are exact fractions, rounded once to a float each."""


_PARTS = {"ttft_s", "tpot_s", "prefill", "handoff", "decode"}


def explain_phases(plan: Document) -> list[Derivation]:
    """The derivations of a plan's `time`: why there is none of a plan that is not admitted."""
    time = plan.get("time") or {}
    if not time.keys() >= _PARTS:
        verdict = plan.get("verdict")
        return [] if verdict in (None, "admitted") else _none((f"the plan is {verdict}, so it has none",))
    used = {(row["device"], row["what"]): row for row in time.get("used") or []}
    out = [
        _device(phase, one, used)
        for phase in ("prefill", "decode")
        for one in time[phase]["compute"]
        if one["seconds"] is not None
    ]
    passes = (plan.get("passes") or {}).get("decode")
    return [*out, *_phases(time), *_whole(time, passes)]


def _none(why: tuple[str, ...], names: tuple[str, ...] = ("ttft", "tpot")) -> list[Derivation]:
    return [
        Derivation(
            subject=name.upper(), terms=why, bytes=None, about=frozenset(("time", name)),
            figure=scored_time({"seconds": None}),
        )
        for name in names
    ]  # fmt: skip


def _device(phase: str, one: Document, used: dict[tuple[str, str], Document]) -> Derivation:
    device = one["device"]
    terms, follows, total = [], True, 0.0
    for piece in one["pieces"]:
        memory, compute = used.get((device, "memory")), used.get((device, piece["numbers"]))
        seconds = [] if memory is None else [piece["bytes"] / _rate(memory)]
        seconds += [] if compute is None else [piece["flops"] / _rate(compute)]
        known = memory is not None and (compute is not None or not piece["flops"])
        follows = (
            follows
            and known
            and math.isclose(max(seconds, default=0.0) * piece["times"], piece["seconds"], rel_tol=_SAME, abs_tol=1e-30)
        )
        total += piece["seconds"]
        rated = compute if piece["bound"] == "compute" else memory
        terms.append(_words(piece, rated))
    follows &= math.isclose(total, one["seconds"], rel_tol=_SAME, abs_tol=1e-30)
    return Derivation(
        subject=f"{phase} compute {device}", terms=tuple(terms), bytes=None, follows=follows,
        about=frozenset((phase, device, "time", "compute")), figure=scored_time(one),
    )  # fmt: skip


def _rate(row: Document) -> float:
    return float(row["per_second"]) * float(row["share"])


def _words(piece: Document, used: Document | None) -> str:
    times = f"{piece['times']:,} x " if piece["times"] != 1 else ""
    is_compute = piece["bound"] == "compute"
    amount = f"{piece['flops']:,} FLOP" if is_compute else f"{piece['bytes']:,} B"
    if used is None:
        return f"{piece['name']} {times}{amount} = {time_words(piece['seconds'])}"
    unit = "FLOP/s" if is_compute else "B/s"
    rate = f"{used['per_second']:,} {unit} ({used['rates']}) x {used['share']:.4g} ({used['share_provenance']})"
    return f"{piece['name']} {times}{amount} / ({rate}) = {time_words(piece['seconds'])}, {piece['bound']} bound"


def _phases(time: Document) -> Iterator[Derivation]:
    """Each phase as compute + rows + sums; only the sums over one device can be redone from the document."""
    for phase in ("prefill", "decode"):
        part = time[phase]
        compute = [one["seconds"] for one in part["compute"]]
        if part["seconds"] is None or None in compute:
            continue
        parts = {"rows": part["rows_s"], "sums of ranks": part["sums_s"]}
        told = [f"{name} {time_words(value)}" for name, value in parts.items() if value]
        held = sum(value or 0 for value in parts.values())
        least, most = held + max(compute, default=0), held + sum(compute)
        fine = least * (1 - _SAME) <= part["seconds"] <= most * (1 + _SAME)
        yield Derivation(
            subject=f"{phase} time", terms=(f"compute {time_words(part['seconds'] - held)}", *told), bytes=None,
            follows=fine, about=frozenset((phase, "time")), figure=scored_time(part),
        )  # fmt: skip


def _whole(time: Document, passes: Any) -> Iterator[Derivation]:
    ttft, tpot = time["ttft_s"], time["tpot_s"]
    ttft_standing, tpot_standing = (
        {"lower_bound": time.get(f"{name}_lower_bound"), "error": time.get("error")} for name in ("ttft", "tpot")
    )
    why = ("; ".join(time.get("unpriced") or ("no pass of it",)),)
    yield from _none(why, tuple(name for name, value in (("ttft", ttft), ("tpot", tpot)) if value is None))
    if ttft is not None:
        terms = [(name, time[name]["seconds"] or 0) for name in ("prefill", "handoff")]
        yield Derivation(
            subject="TTFT", terms=tuple(f"{name} {time_words(value)}" for name, value in terms), bytes=None,
            follows=math.isclose(ttft, sum(value for _, value in terms), rel_tol=_SAME),
            about=frozenset(("time", "ttft")), figure=scored_time({"seconds": ttft, **ttft_standing}),
        )  # fmt: skip
    if tpot is not None and passes:
        whole = time["decode"]["seconds"] or 0
        yield Derivation(
            subject="TPOT", terms=(f"decode {time_words(whole)} / {passes:,} passes",), bytes=None,
            follows=math.isclose(tpot, whole / passes, rel_tol=_SAME), about=frozenset(("time", "tpot")),
            figure=scored_time({"seconds": tpot, **tpot_standing}),
        )  # fmt: skip
