"""What the answers say together: who keeps the SLOs, the Pareto front, the smallest fleet. All by demand.

Cases that are asked other things (another model, other requests) are not compared: a lower rate is no better fleet.
"""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.sweeping.spec import Bound, Json, Metric

Point = tuple[float, ...]
MANY = 1000


def kept(row: Json, slo: Sequence[Bound]) -> Json:
    """`met`: true, false, or null where it cannot be told; `misses`: each bound that is not kept, with both figures.

    A refused case keeps nothing. Requests that were refused or never ended keep nothing either: `finished` is 1 unless
    the file says otherwise. TPOT of answers of one token is kept: there is nothing to wait for. A time of which only a
    lower bound is known can miss a bound, and not keep it.
    """
    if row["verdict"] == "refused":
        return {"met": False, "misses": []}
    if row["verdict"] != "admitted":
        return {"met": None, "misses": []}
    misses, unknown = [], []
    for bound in slo:
        value = figure(row, bound.metric)
        if value is None and _nothing_to_wait_for(bound.metric, row["figures"]):
            continue
        if value is None or (bound.metric.key in row["lower_bounds"] and bound.holds(value)):
            unknown.append(bound.metric.name)
        elif not bound.holds(value):
            misses.append({"metric": bound.metric.name, "bound": bound.limit, "found": value})
    met = False if misses else None if unknown else True
    return {"met": met, "misses": misses} | ({"unknown": unknown} if unknown else {})


def figure(row: Json, metric: Metric) -> float | None:
    """A figure of a row; None where it is unknown, or the case was not admitted."""
    held = row if metric.name in ("devices", "cost_per_hour") else row["figures"] or {}
    value: float | None = held.get(metric.key)
    return value


def _nothing_to_wait_for(metric: Metric, figures: Json) -> bool:
    return metric.name.startswith(("tpot_", "itl_")) and figures.get("tpot_requests") == 0 and bool(figures["finished"])


def front(rows: Sequence[Json], objectives: Sequence[Metric]) -> list[bool | None]:
    """By row: whether no other is at least as good in all objectives and better in one.

    null: not admitted, or one of its figures is unknown. Where requests did not finish, that counts as an objective.
    A figure of which only a lower bound is known beats no known one; two such are compared by their bounds.
    """
    points = [_point(row, objectives) for row in rows]
    known = sorted({point for point in points if point is not None})
    members = set(_unbeaten(known) if len(known) < MANY else _unbeaten_of_many(known))
    return [None if point is None else point in members for point in points]


def _unbeaten(points: list[Point]) -> list[Point]:
    """Of sorted points: whoever beats one stands before it."""
    best: list[Point] = []
    for point in points:
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in best):
            best.append(point)
    return best


def _unbeaten_of_many(points: list[Point]) -> list[Point]:
    """The same over arrays, of ranks instead of values: 100,000 points may all be on the front."""
    import numpy as np

    columns = [column for column in zip(*points, strict=True) if len(set(column)) > 1]
    ranks = [{value: rank for rank, value in enumerate(sorted(set(column)))} for column in columns]
    rows = [[rank[value] for value in column] for rank, column in zip(ranks, columns, strict=True)]
    table = np.array(rows, dtype=np.int32)
    best, held = np.empty_like(table), 0
    found = []
    for place, point in enumerate(points):
        beaten = np.ones(held, dtype=bool)
        for column, value in zip(best[1:, :held], table[1:, place], strict=True):  # the first is in order already
            beaten &= column <= value
        if not beaten.any():
            best[:, held] = table[:, place]
            held += 1
            found.append(point)
    return found


def _point(row: Json, objectives: Sequence[Metric]) -> Point | None:
    """The figures as numbers of which less is better, each with whether it is a lower bound: less is better, too."""
    if row["verdict"] != "admitted":
        return None
    signed: list[float] = []
    for metric in objectives:
        value = figure(row, metric)
        if value is None:
            return None
        signed += (-value if metric.more else value, metric.key in row["lower_bounds"])
    return (*signed, -row["figures"].get("finished", 1))


def smallest(rows: Sequence[Json], objectives: Sequence[Metric]) -> Json:
    """The fewest devices that keep the SLOs, then the lowest price of an hour (unknown: last), then the objectives.

    `verdict`: found, none, or unknown: none is found, and some case cannot be told. `smaller_unknown`: cases of fewer
    devices than the best that cannot be told.
    """
    good = [row for row in rows if row["slo"]["met"]]
    unknown = [row for row in rows if row["slo"]["met"] is None]
    best = min(good, key=lambda row: (*_size(row), *_ordered(row, objectives), row["case"]), default=None)
    if best is None:
        return {"verdict": "unknown" if unknown else "none", "case": None, "smaller_unknown": len(unknown)}
    smaller = [row for row in unknown if row["devices"] < best["devices"]]
    return {"verdict": "found", "case": best["case"], "smaller_unknown": len(smaller)}


def _size(row: Json) -> tuple[int, bool, float]:
    cost = row["cost_per_hour"]
    return row["devices"], cost is None, cost or 0.0


def _ordered(row: Json, objectives: Sequence[Metric]) -> list[tuple[int, float]]:
    """The objectives one after another; lower bounds come after what is known, what is unknown comes last."""
    ordered = []
    for metric in objectives:
        value = figure(row, metric)
        rank = 2 if value is None else int(metric.key in row["lower_bounds"])
        ordered.append((rank, 0.0 if value is None else -value if metric.more else value))
    return ordered
