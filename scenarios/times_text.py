"""The times of a plan for people: none without its stated error, or `unscored`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from scenarios.table import Paint, safe
from scenarios.words import scored_time, seconds_of, standing_of, time_words

Document = dict[str, Any]

ONE_A_CALL = "prefill reads the weights once a position: one position a call; --prefill-chunk N computes N a call"
"""Said where the default of one position a call is what the time rests on: engines compute thousands in one."""


def time_heading(rows: Iterable[Document], word: str = "time") -> str:
    """`time, unscored` where no row has a stated error; else `time`, and each cell says its own."""
    return f"{word}, unscored" if all(standing_of(row) == "unscored" for row in rows) else word


def time_cell(part: Document, heading: str) -> str:
    """The time of a row or leg under that heading."""
    return seconds_of(part) if heading.endswith("unscored") else scored_time(part)


def times_block(time: Document, paint: Paint) -> list[str]:
    """TTFT and TPOT with their parts, and what they rest on; nothing for a plan without them."""
    if not {"prefill", "handoff", "decode"} <= time.keys():
        return []
    parts = (("TTFT", "ttft_s", ("prefill", "handoff")), ("TPOT", "tpot_s", ("decode",)))
    lines = [line for name, field, of in parts for line in _figure(time, name, field, of, paint)]
    if time.get("ttft_s") is not None and time["prefill"].get("chunk") == 1 and time["prefill"].get("calls", 0) > 1:
        lines += paint.fold(f"            {ONE_A_CALL}", 12)
    shares = {(u["what"], u["share"], u["share_provenance"]) for u in time.get("used") or []}
    if shares:
        told = ", ".join(f"{share:.3g} of {what} ({origin})" for what, share, origin in sorted(shares))
        rates = " and ".join(sorted({u.get("rates", "declared") for u in time["used"]}))
        lines += paint.fold(safe(f"            roofline of {rates} rates: {told}"), 12)
    return [*lines, *paint.fold(safe(f"            not in it: {time.get('left_out', '')}"), 12)]


def _figure(time: Document, name: str, field: str, of: tuple[str, ...], paint: Paint) -> list[str]:
    seconds = time.get(field)
    if seconds is None:
        missing = "; ".join(time.get("unpriced") or ()) or "no pass of it"
        return paint.fold(safe(f"{name:<12}unpriced: {missing}"), 12)
    whole = {
        "seconds": seconds,
        "lower_bound": time.get(field.replace("_s", "_lower_bound")),
        "error": time.get("error"),
    }
    told = [_part(word, time[word]) for word in of if time[word].get("seconds")]
    return paint.fold(f"{name:<12}{scored_time(whole)}{': ' if told else ''}{' + '.join(told)}", 12)


def _part(word: str, part: Document) -> str:
    """`prefill 15.8 ms (compute 15.2 ms, rows 0.6 ms)`; of decode, all passes together."""
    inner = [("rows", part.get("rows_s")), ("sums of ranks", part.get("sums_s"))]
    told = [f"{name} {time_words(seconds)}" for name, seconds in inner if seconds]
    compute = [one["seconds"] for one in part.get("compute") or () if one["seconds"] is not None]
    head = [f"compute {time_words(max(compute))} a device at most"] if compute else []
    if word == "prefill" and part.get("calls", 0) > 1:
        head = [f"{part['calls']:,} calls of {part['chunk']:,}", *head]
    staged = [part["staging"]] if part.get("staging") else []
    staged += ["read and written in one memory"] if part.get("within_memory") is True else []
    for staging in ("pipelined", "sequential"):
        other = part.get(f"{staging}_s")
        staged += [f"{time_words(other)} if {staging}"] if other is not None else []
    inside = ", ".join([*head, *told, *staged])
    whole = "all of decode" if word == "decode" else word
    return f"{whole} {time_words(part['seconds'])}" + (f" ({inside})" if inside else "")
