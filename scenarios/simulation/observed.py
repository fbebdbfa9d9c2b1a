"""Simulated latencies beside observed ones: MAPE and Pearson, a factor fitted on one half, scored on the other.

Observations are JSONL, one object a request: `request` (its number in the order of arrival, from 0) and any of
`ttft_s`, `tpot_s`, `e2e_s`. Requests of even number fit the factor (the median of observed / simulated),
those of odd number score it: no figure is scored on what it was fitted with.
"""

from __future__ import annotations

import json
import math
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.yaml_source import printable, shown_path
from scenarios.simulation import columns as col
from scenarios.simulation.engine import Outcome
from scenarios.simulation.traces import MAX_FAULTS, file_lines
from scenarios.simulation.traffic import PICOSECONDS, Traffic

Document = dict[str, Any]
METRICS = ("ttft_s", "tpot_s", "e2e_s")
MAX_SECONDS = 1_000_000_000
"""Thirty years: a time beyond it is none that a request took."""
LEAST = 4
"""Pairs that a score is made of, at least: two in each half."""


def read_observed(path: str, n: int) -> dict[str, dict[int, float]]:
    """Observed seconds by metric and request, of n requests. Raises DescriptionError with every fault."""
    source, faults = shown_path(path), []
    out: dict[str, dict[int, float]] = {name: {} for name in METRICS}
    for line, text in file_lines(path, source):
        if not text.strip():
            continue
        words = _observation(text, n, out)
        if words:
            faults.append(Fault(source=source, field="", message=words, line=line, column=1))
            if len(faults) >= MAX_FAULTS:
                break
    if faults:
        raise DescriptionError(faults)
    if not any(out.values()):
        raise DescriptionError.at(source, "", f"holds no observation; wanted request and any of {', '.join(METRICS)}")
    return out


def _observation(text: str, n: int, out: dict[str, dict[int, float]]) -> str:
    """Books one line; what is wrong with it, in words, or nothing."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        return "is no JSON object"
    number = row.get("request")
    if type(number) is not int or not 0 <= number < n:
        return f"request {printable(repr(number))} is no number of a simulated request, 0 to {n - 1:,}"
    for name in METRICS:
        value = row.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not 0 < value < MAX_SECONDS:
            return f"{name} {printable(repr(value))} is no time above 0 and below {MAX_SECONDS:,} s"
        if number in out[name]:
            return f"{name} of request {number} is given twice"
        out[name][number] = float(value)
    return ""


def comparison(observed: dict[str, dict[int, float]], traffic: Traffic, outcome: Outcome) -> Document:
    """MAPE and Pearson by metric; null where fewer than `LEAST` requests have both figures, or nothing varies."""
    simulated = _simulated(traffic, outcome)
    return {name: _score(observed[name], simulated[name]) for name in METRICS if observed[name]}


def _simulated(traffic: Traffic, outcome: Outcome) -> dict[str, dict[int, float]]:
    r = outcome.requests
    out: dict[str, dict[int, float]] = {name: {} for name in METRICS}
    rows = zip(
        traffic.arrival.tolist(), traffic.out.tolist(), r[:, [col.ST, col.TFIRST, col.TDONE]].tolist(), strict=True
    )
    for number, (arrival, new, (state, first, end)) in enumerate(rows):
        if state == col.FINISHED:
            out["ttft_s"][number] = (first - arrival) / PICOSECONDS
            out["e2e_s"][number] = (end - arrival) / PICOSECONDS
            if new > 1:
                out["tpot_s"][number] = (end - first) / (new - 1) / PICOSECONDS
    return out


def _score(observed: dict[int, float], simulated: dict[int, float]) -> Document:
    both = sorted(set(observed) & set(simulated))
    pairs = [(simulated[number], observed[number]) for number in both]
    halves = [[pair for number, pair in zip(both, pairs, strict=True) if number % 2 == odd] for odd in (0, 1)]
    enough = len(pairs) >= LEAST and all(halves)
    factor = _median([seen / told for told, seen in halves[0] if told > 0]) if enough else None
    return {
        "observed": len(observed), "compared": len(pairs), "mape": _mape(pairs, 1.0) if enough else None,
        "pearson": _pearson(pairs) if enough else None, "factor": factor,
        "factor_fitted_on": len(halves[0]) if factor else None,
        "mape_with_factor": _mape(halves[1], factor) if factor else None,
        "scored_on": len(halves[1]) if factor else None,
    }  # fmt: skip


def _mape(pairs: list[tuple[float, float]], factor: float) -> float:
    return math.fsum(abs(told * factor - seen) / seen for told, seen in pairs) / len(pairs)


def _median(values: list[float]) -> float | None:
    if not values:
        return None
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _pearson(pairs: list[tuple[float, float]]) -> float | None:
    n = len(pairs)
    means = [math.fsum(pair[i] for pair in pairs) / n for i in (0, 1)]
    away = [(told - means[0], seen - means[1]) for told, seen in pairs]
    squares = [math.fsum(pair[i] ** 2 for pair in away) for i in (0, 1)]
    if min(squares) == 0:
        return None
    return math.fsum(a * b for a, b in away) / math.sqrt(squares[0] * squares[1])
