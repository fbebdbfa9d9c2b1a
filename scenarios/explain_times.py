"""How the times of a plan came about, the handoff as a whole, and what flows share.

A time is latency x copies + bytes / bandwidth a leg, summed over the legs. It is computed anew from the figures that
stand beside it; what does not follow is told so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from fleet.units import format_rate
from scenarios.derivation import Derivation, Document
from scenarios.explain_phases import explain_phases
from scenarios.words import scored_time, seconds_of, time_words

_SAME = 1e-9
"""Relative: seconds are exact fractions, rounded once to a float each."""


def explain_times(plan: Document) -> list[Derivation]:
    """The derivations of the seconds of rows, of the handoff, of shared segments, and of TTFT and TPOT."""
    rows = [row for row in plan.get("waybill") or [] if "seconds" in row]
    return [*(_row(row) for row in rows), *_handoff(plan), *_shared(plan), *explain_phases(plan)]


def _row(row: Document) -> Derivation:
    legs = row.get("legs")
    edges = {f"{part['src']}->{part['dst']}" for part in (row, *(legs or ()))}
    told = [_leg(leg) for leg in legs or ()]
    follows = all(fine for _, fine in told) and (legs is None or _is_sum(row["seconds"], part_times(row)))
    return Derivation(
        subject=f"{row['phase']} {row['tensor']} {row['src']}->{row['dst']} time",
        terms=tuple(words for words, _ in told) + _overlap(row) or ("unpriced: the physical way is unknown",),
        bytes=None,
        follows=follows and (legs is not None or row["seconds"] is None),
        about=frozenset((row["phase"], row["tensor"], "time", *edges)),
        figure=scored_time(row),
    )


def _overlap(row: Document) -> tuple[str, ...]:
    """How pipelined legs overlap, where they do."""
    legs = row.get("legs") or []
    if row.get("staging") != "pipelined" or not legs:
        return ()
    chunks = max(leg["copies"] or 1 for leg in legs) or 1
    return (f"pipelined: one chunk of {chunks:,} over all legs, and {chunks - 1:,} more of the longest",)


def _leg(leg: Document) -> tuple[str, bool]:
    """(formula with numbers, whether the leg's seconds follow from it)."""
    way = f"{leg['src']}->{leg['dst']}"
    rate, latency, stated = _number(leg.get("bandwidth_bytes_per_s")), _number(leg.get("latency_s")), leg.get("seconds")
    if rate is None or rate <= 0 or leg["bytes"] is None or leg["copies"] is None:
        why = "no link, and no rate of one" if leg.get("link") is None else "a rate on the way is unknown"
        if leg.get("link") is not None and "bandwidth_bytes_per_s" not in leg and stated is None:
            return f"{way} no time: the plan is refused", True
        return f"{way} unpriced: {why}", stated is None or "bandwidth_bytes_per_s" not in leg
    alpha = "" if latency is None else f"{leg['copies']:,} copies x {time_words(latency)} + "
    words = f"{way} {alpha}{leg['bytes']:,} B / {format_rate(int(rate))}{_origin(leg)} = {seconds_of(leg)}"
    worked = (latency or 0.0) * leg["copies"] + leg["bytes"] / rate
    return words, stated is not None and math.isclose(stated, worked, rel_tol=_SAME)


def _origin(leg: Document) -> str:
    """Where the rate of a leg comes from, and whether anybody verified it."""
    origin = leg.get("provenance")
    if not isinstance(origin, str):
        return ""
    return f" ({origin}{'' if leg.get('verified') is not False else ', unverified'})"


def _number(value: Any) -> int | float | None:
    """The number, None for anything else: another's document may hold anything here."""
    return value if type(value) in (int, float) else None


def part_times(row: Document) -> list[float | None]:
    """Seconds that a row's are the sum of: its legs'; pipelined, those of one chunk and of the longest leg."""
    legs = row.get("legs") or []
    times = _times(legs)
    if row.get("staging") != "pipelined" or not legs or None in times:
        return times
    chunks = max(leg["copies"] or 1 for leg in legs) or 1
    known = [time for time in times if time is not None]
    return [*(time / chunks for time in known), (chunks - 1) * max(known) / chunks]


def _times(parts: Iterable[Document]) -> list[float | None]:
    return [part.get("seconds") for part in parts]


def _is_sum(stated: float | None, parts: list[float | None]) -> bool:
    """Null parts make a null sum."""
    total = None if None in parts else sum(part for part in parts if part is not None)
    if stated is None or total is None:
        return stated is None and total is None
    return math.isclose(stated, total, rel_tol=_SAME)


def _handoff(plan: Document) -> list[Derivation]:
    """Bytes, copies, payload, kind, legs and time of the handoff beside those of its rows."""
    handoff = plan.get("handoff")
    rows = [r for r in plan.get("waybill") or [] if r["phase"] == "handoff" and r["kind"] in ("p2p", "d2d")]
    if not handoff or not rows:
        return []
    out = []
    for unit in ("payload_bytes", "copies"):
        if unit in handoff and all(unit in row for row in rows):
            figures = [row[unit] for row in rows]
            terms = tuple(f"{row['tensor']} {_count(row[unit])}" for row in rows)
            whole = None if None in figures else sum(figures)
            out.append(_of_handoff(unit.removesuffix("_bytes"), terms, handoff[unit], whole == handoff[unit], unit))
    if "seconds" in handoff:
        terms = tuple(f"{row['tensor']} {seconds_of(row)}" for row in rows)
        known = all(row.get("legs") is not None for row in rows)
        follows = _is_sum(handoff["seconds"], _times(rows) if known else [None])
        out.append(_of_handoff("time", terms, None, follows, "", scored_time(handoff)))
    if handoff.get("legs") is not None:
        follows = _legs(handoff["legs"]) == _legs([leg for row in rows for leg in row.get("legs") or ()])
        ways = tuple(f"{leg['src']}->{leg['dst']} {_count(leg['bytes'])} B" for leg in handoff["legs"])
        out.append(_of_handoff("legs", ways, None, follows, ""))
    return out


def _of_handoff(
    what: str, terms: tuple[str, ...], figure: int | None, follows: bool, unit: str, told: str | None = None
) -> Derivation:
    nbytes = figure if unit.endswith("bytes") else None
    count = _count(figure) if unit and nbytes is None else told
    about = frozenset(("handoff", what))
    return Derivation(subject=f"handoff {what}", terms=terms, bytes=nbytes, follows=follows, about=about, figure=count)


def _legs(legs: Iterable[Document]) -> dict[tuple[str, str, str], tuple[int, int]]:
    sums: dict[tuple[str, str, str], tuple[int, int]] = {}
    for leg in legs:
        key = (leg["src"], leg["dst"], leg["kind"])
        held = sums.get(key, (0, 0))
        sums[key] = (held[0] + (leg["bytes"] or 0), held[1] + (leg["copies"] or 0))
    return sums


def _flow(flow: Document) -> str:
    of = f" of {flow['name']}" if flow.get("name") else ""
    return f"{flow['src']}->{flow['dst']}{of} {flow['bytes']:,} B"


def _count(figure: int | None) -> str:
    return "unknown" if figure is None else f"{figure:,}"


def _shared(plan: Document) -> list[Derivation]:
    return explain_shared(plan.get("contention") or [])


def explain_shared(parts: Iterable[Document]) -> list[Derivation]:
    """Flows that share a segment: their bytes, and the least time that they take together."""
    out = []
    for part in parts:
        way = f"{part['src']}->{part['dst']}"
        flows = part["flows"]
        rate, alone, together = part["bandwidth_bytes_per_s"], part["alone_s"], part["together_s"]
        sums = sum(flow["bytes"] for flow in flows) == part["bytes"]
        if None in (rate, alone, together) or not rate:
            bound, fine = "unpriced: the segment's rate is unknown", together is None
        else:
            least = max(alone, part["bytes"] / rate)
            bound = f"at the same time at least {time_words(together)}; the longest alone {time_words(alone)}; unscored"
            fine = together >= least * (1 - _SAME)
        edges = {f"{flow['src']}->{flow['dst']}" for flow in flows}
        out.append(
            Derivation(
                subject=f"{part['phase']} shared {way}",
                terms=(*(_flow(flow) for flow in flows), bound),
                bytes=part["bytes"],
                follows=sums and fine,
                about=frozenset(("shared", part["phase"], way, *edges)),
            )
        )
    return out
