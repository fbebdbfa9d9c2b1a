"""`kvwaybill/sweep-result/1`: every case in the order of the file, and what they say together.

It holds no time, host, engine or number of workers: the same sweep gives the same bytes however it was run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scenarios.sweeping.cases import Case
from scenarios.sweeping.ranking import front, kept, smallest
from scenarios.sweeping.spec import METRICS, Bound, Json, Sweep

SCHEMA = "kvwaybill/sweep-result/1"
VERDICTS = ("admitted", "refused", "unverified")
LIMITS = {
    "simulate": (
        "Step times are the planner's roofline with its shares of stated rates: unscored until they are calibrated."
        " What is not simulated stands with each simulation (kvwaybill simulate).",
        "goodput and finished are shares of all requests that came; latencies are of finished requests only.",
    ),
    "admit": (
        "A plan's times are of one request alone, without queues or contention, unscored; its bytes are exact.",
    ),
}  # fmt: skip
COMMON_LIMITS = (
    "Cases are compared with those that are asked the same (model and requests), never across.",
    "devices, and their cost_per_hour, are those of the pools or the placement: idle devices of a node cost nothing.",
)


def result_document(sweep: Sweep, cases: Sequence[Case], answers: Mapping[str, Json]) -> Json:
    """The result of a sweep whose cases are all answered."""
    rows = [_row(case, answers[case.key], sweep) for case in cases]
    slo, defaults = _slo(sweep)
    if slo:
        rows = [row | {"slo": kept(row, slo)} for row in rows]
    groups = _groups(sweep, cases, rows, bool(slo))
    marks = {case: mark for group in groups for case, mark in group.pop("marks").items()}
    counts = Counter(row["verdict"] for row in rows)
    return {
        "schema": SCHEMA, "name": sweep.name, "question": sweep.question, "base": sweep.base.label,
        "fields": list(sweep.fields), "cases": len(rows), "verdicts": {name: counts[name] for name in VERDICTS},
        "objectives": [{"metric": m.name, "figure": m.key, "better": "more" if m.more else "less"}
                       for m in sweep.objectives],
        "slo": [{"metric": b.metric.name, "figure": b.metric.key, "bound": b.limit,
                 "at": "least" if b.metric.more else "most"} for b in slo],
        "prices": {name: float(price) for name, price in sorted(sweep.prices.items())},
        "groups": groups, "rows": [row | {"pareto": marks[row["case"]]} for row in rows],
        "defaults": [*sweep.defaults, *defaults],
        "warnings": [*_warnings(sweep, cases), *_bounds_compared(sweep, rows)],
        "limits": [*LIMITS[sweep.question], *COMMON_LIMITS],
    }  # fmt: skip


def _row(case: Case, answer: Json, sweep: Sweep) -> Json:
    return {
        "case": case.index + 1, "key": case.key, "fields": case.fields,
        "fleet": {"name": case.fleet.name, "digest": case.fleet.digest},
        "model": {"name": case.model.name, "digest": case.model.digest},
        "devices": len(case.devices), "skus": case.skus, "cost_per_hour": case.cost(sweep.prices),
        "verdict": answer["verdict"], "reasons": answer["reasons"], "figures": answer["figures"],
        "lower_bounds": answer["lower_bounds"],
    }  # fmt: skip


def _slo(sweep: Sweep) -> tuple[tuple[Bound, ...], list[str]]:
    """The bounds with what goes without saying; where the file has none, the cases' own SLOs."""
    if sweep.question == "admit":
        return sweep.slo, []
    metrics = METRICS["simulate"]
    slo, told = sweep.slo, []
    if not slo:
        if not sweep.bounded:
            return (), []
        slo = (Bound(metric=metrics["goodput"], limit=0.99, text="0.99"),)
        told = ["slo: goodput 0.99: as many requests keep the SLOs of their own case"]
    if "finished" not in {bound.metric.name for bound in slo}:
        slo = (*slo, Bound(metric=metrics["finished"], limit=1.0, text="1"))
        told.append("slo: finished 1: every request is answered")
    return slo, told


def _groups(sweep: Sweep, cases: Sequence[Case], rows: Sequence[Json], bounded: bool) -> list[Json]:
    """Cases of one demand each, in the order of their first: `front` and, under SLOs, `best`."""
    members: dict[str, list[int]] = {}
    for place, case in enumerate(cases):
        members.setdefault(case.demand, []).append(place)
    groups = []
    for places in members.values():
        held = [rows[place] for place in places]
        marks = front(held, sweep.objectives)
        group: Json = {
            "asked": cases[places[0]].demanded(sweep.question), "members": [row["case"] for row in held],
            "front": [row["case"] for row, mark in zip(held, marks, strict=True) if mark],
            "marks": {row["case"]: mark for row, mark in zip(held, marks, strict=True)},
        }  # fmt: skip
        groups.append(group | ({"best": smallest(held, sweep.objectives)} if bounded else {}))
    return groups


def _warnings(sweep: Sweep, cases: Sequence[Case]) -> list[str]:
    used = {name for case in cases for name in case.skus}
    unused = sorted(sweep.prices.keys() - used)
    out = [f"prices: no case uses {', '.join(unused)}"] if unused else []
    unpriced = sorted((used - sweep.prices.keys()) - {""}) if sweep.prices else []
    return out + ([f"prices: none for {', '.join(unpriced)}; such cases cost null"] if unpriced else [])


def _bounds_compared(sweep: Sweep, rows: Sequence[Json]) -> list[str]:
    """Which objectives are ranked by what is known least of them."""
    names = [m.name for m in sweep.objectives if any(m.key in row["lower_bounds"] for row in rows)]
    if not names:
        return []
    words = "of some cases only a lower bound (>=) is known; it beats no known figure, and others by their bounds"
    return [f"{', '.join(names)}: {words}"]
