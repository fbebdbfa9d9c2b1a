"""Why a candidate is not the first: the first thing in the order of deciders by which it is worse, in words."""

from __future__ import annotations

from fractions import Fraction

from fleet.units import format_bytes, format_seconds
from planner.machine import PICOSECONDS
from planner.place.candidate import Candidate, Objective, deciders, value_of

_NAMES = {
    "handoff": "handoff", "ttft": "time to the first token", "throughput": "throughput", "devices": "devices",
    "cost": "cost an hour",
}  # fmt: skip


def why_lost(first: Candidate, other: Candidate, objective: Objective) -> str:
    """What the first candidate has that the other has not. Both are admitted, the first ranks before the other."""
    if len(other.broken) > len(first.broken):
        more = [words for words in other.broken if words not in first.broken] or list(other.broken)
        return f"breaks what is preferred: {', '.join(more)}"
    for name in deciders(objective):
        mine, best = value_of(other, name), value_of(first, name)
        if mine != best:
            before = "" if name == objective else f"as good in {_NAMES[objective]}, but "
            return before + _worse(name, other, mine, first, best)
    mine, best = other.figures.slack_bytes, first.figures.slack_bytes
    if mine is not None and best is not None and mine < best:
        return f"as good in all of that, with {format_bytes(best - mine)} less room in memory"
    return "as good in every figure; later in the order of the fleet"


def _worse(
    name: str, other: Candidate, mine: Fraction | int | None, first: Candidate, best: Fraction | int | None
) -> str:  # fmt: skip
    if mine is None or best is None:
        return f"its {_NAMES[name]} is unpriced"
    if name == "devices":
        return f"{mine} devices against {best}"
    if name == "cost":
        return f"costs {float(mine):.4g} an hour against {float(best):.4g}"
    if name == "throughput":
        return f"{float(-mine):.4g} tokens a second and device against {float(-best):.4g}, unscored"
    times = f"{_seconds(mine)} against {_seconds(best)}"
    ratio = "" if not best else f"{float(mine / best):.3g} times as long: "
    over = ", over host memory" if other.staged and not first.staged else ""
    return f"{_NAMES[name]} {ratio}{times}{over}, {_standing(name, other, first)}"


def _standing(name: str, other: Candidate, first: Candidate) -> str:
    """The stated error of both times; `unscored` where either has none."""
    held = [getattr(each.figures, name) for each in (other, first)]
    errors = [None if time is None else time.error for time in held]
    known = [error for error in errors if error is not None]
    return f"within {float(max(known) * 100):g} %" if len(known) == len(errors) else "unscored"


def _seconds(value: Fraction | int) -> str:
    return format_seconds(round(value * PICOSECONDS), digits=4)
