"""Many runs of one plan, or of one fleet: how far predictions were off by class of edge, how that spreads and drifts.

An error is (observed - predicted) / predicted. Bytes are those of a comparison's rows, seconds those of a plan's legs
beside the spans of its runs; times of emulated devices say nothing of a fleet and are not set against it. Spread:
median and quartiles (linear between ranks). Drift: the median of all pairwise slopes (Theil 1950, Sen 1968), called a
drift where the Mann-Kendall test (Mann 1945, Kendall 1975; normal approximation with ties) gives p < 0.05.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

from fleet.errors import DescriptionError
from fleet.units import parse_seconds
from scenarios.words import mapping

Document = dict[str, Any]
LEAST_FOR_DRIFT = 8
"""With fewer runs the normal approximation of the test says little, so nothing is called a drift."""
LEVEL = 0.05
MOST_RUNS = 1000
LIMITS = (
    "Runs are in the order given; documents hold no date, so a drift is one over that order.",
    "An edge that no witness saw has no error of bytes: it is counted as unwitnessed and never as 0.",
    "Errors of seconds are those of devices that are there; an emulated run has none.",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """One run: how it was named, its document (a run or a comparison), and its plan where one was given."""

    source: str
    document: Document
    plan: Document | None = None


def history_document(seen: Sequence[Seen], by: str = "plan") -> Document:
    """`kvwaybill/history/1`: a group a plan or a fleet, a class a phase, kind of edge and figure.

    DescriptionError where a document holds no comparison, or names no plan or fleet to group it by.
    """
    if len(seen) > MOST_RUNS:
        raise DescriptionError.at("history", "", f"{len(seen)} runs; at most {MOST_RUNS:,} are set side by side")
    groups: dict[str, list[Seen]] = {}
    for each in seen:
        groups.setdefault(_group_of(each, by), []).append(each)
    made = [_group(key, members) for key, members in groups.items()]
    return {"schema": "kvwaybill/history/1", "by": by, "groups": made, "limits": list(LIMITS)}


def _group_of(each: Seen, by: str) -> str:
    document = each.document
    if by == "fleet":
        found = mapping(mapping(document.get("inputs")).get("fleet"))
        told = found.get("digest")
    else:
        named = [entry.get("plan_id") for entry in document.get("documents") or [] if entry.get("kind") == "plan"]
        told = document.get("plan_id") or next(iter(named), None)
    if not told:
        raise DescriptionError.at(each.source, "", f"names no {by}, so it belongs to no group")
    return str(told)


def _group(key: str, members: Sequence[Seen]) -> Document:
    errors: dict[tuple[str, str], list[float | None]] = {}
    for at, each in enumerate(members):
        for name, error in _errors(each).items():
            errors.setdefault(name, [None] * len(members))[at] = error
    inputs = mapping(members[0].document.get("inputs"))
    return {
        "key": key,
        "fleet": mapping(inputs.get("fleet")).get("name"),
        "runs": [each.source for each in members],
        "classes": [_class(name, found) for name, found in sorted(errors.items())],
    }


def _errors(each: Seen) -> dict[tuple[str, str], float | None]:
    """(class, figure) -> error of this run; None where it was not witnessed or cannot be set against."""
    comparison = each.document if "rows" in each.document else each.document.get("comparison")
    if not comparison:
        raise DescriptionError.at(each.source, "comparison", "missing: this run was set beside no plan")
    found: dict[tuple[str, str], float | None] = {}
    pairs: dict[str, list[tuple[int | None, int | None]]] = {}
    for row in comparison["rows"]:
        pairs.setdefault(f"{row['phase']} {row['kind']}", []).append((row["predicted_bytes"], row["observed_bytes"]))
    for name, figures in pairs.items():
        found[name, "bytes"] = _error(*(_sum(side) for side in zip(*figures, strict=True)))
    if each.plan is not None:
        found |= {(name, "seconds"): error for name, error in _seconds(each.document, each.plan).items()}
    return found


def _sum(figures: Iterable[int | None]) -> int | None:
    known = list(figures)
    return None if None in known else sum(count or 0 for count in known)


def _error(predicted: float | Fraction | None, observed: float | Fraction | None) -> float | None:
    """None without either, or where nothing was predicted: there is no share of nothing."""
    if predicted is None or observed is None or not predicted:
        return None
    return float((Fraction(observed) - Fraction(predicted)) / Fraction(predicted))


def _seconds(run: Document, plan: Document) -> dict[str, float | None]:
    """Errors of the seconds of copies by class, and of the phases; None each for an emulated run."""
    predicted: dict[str, list[float | None]] = {}
    for row in plan.get("waybill") or []:
        if row["phase"] in ("stage", "handoff"):
            predicted.setdefault(f"{row['phase']} {row['kind']}", []).append(row.get("seconds"))
    for phase in ("prefill", "decode"):
        predicted[phase] = [mapping(mapping(plan.get("time")).get(phase)).get("seconds")]
    kinds = {(row["phase"], row["src"], row["dst"]): row["kind"] for row in plan.get("waybill") or []}
    observed: dict[str, Fraction] = {}
    for span in run.get("spans") or []:
        kind = kinds.get((span["phase"], span.get("src"), span["dst"]))
        name = f"{span['phase']} {kind}" if kind else span["phase"]
        took = Fraction(span["end_ns"] - span["start_ns"], parse_seconds("1 s") // parse_seconds("1 ns"))
        observed[name] = observed.get(name, Fraction(0)) + took
    here = run.get("tier") == "on-device"
    return {
        name: _error(None if None in figures else sum(map(Fraction, figures)), observed.get(name) if here else None)  # type: ignore[arg-type]
        for name, figures in predicted.items()
    }


def _class(name: tuple[str, str], errors: Sequence[float | None]) -> Document:
    known = [(at, error) for at, error in enumerate(errors) if error is not None]
    values = sorted(error for _, error in known)
    quartiles = [quantile(values, share) for share in (Fraction(1, 4), Fraction(1, 2), Fraction(3, 4))]
    slope, p = theil_sen(known), mann_kendall([error for _, error in known])
    return {
        "class": name[0], "figure": name[1], "runs": len(known), "unwitnessed": len(errors) - len(known),
        "median": quartiles[1], "q1": quartiles[0], "q3": quartiles[2],
        "min": values[0] if values else None, "max": values[-1] if values else None,
        "slope_per_run": slope, "p": p, "drift": _drift(len(known), slope, p), "errors": list(errors),
    }  # fmt: skip


def _drift(count: int, slope: float | None, p: float | None) -> str:
    if count < LEAST_FOR_DRIFT or p is None or slope is None:
        return "too few"
    return "none" if p >= LEVEL else "up" if slope > 0 else "down" if slope < 0 else "none"


def quantile(values: Sequence[float], share: Fraction) -> float | None:
    """Of sorted values, linear between the two ranks around (n - 1) x share. None of no values."""
    if not values:
        return None
    at = (len(values) - 1) * share
    low = int(at)
    rest = float(at - low)
    return values[low] if not rest else values[low] + (values[low + 1] - values[low]) * rest


def theil_sen(points: Sequence[tuple[int, float]]) -> float | None:
    """The median slope over all pairs; None with fewer than two points."""
    slopes = sorted((b - a) / (j - i) for (i, a), (j, b) in combinations(points, 2))
    return quantile(slopes, Fraction(1, 2))


def mann_kendall(values: Sequence[float]) -> float | None:
    """Two-sided p of no trend, by the normal approximation with ties; 1 where all are equal, None of fewer than two."""
    n = len(values)
    if n < 2:
        return None
    s = sum((b > a) - (b < a) for a, b in combinations(values, 2))
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = Fraction(n * (n - 1) * (2 * n + 5) - ties, 18)
    if not variance or not s:
        return 1.0
    z = (abs(s) - 1) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))
