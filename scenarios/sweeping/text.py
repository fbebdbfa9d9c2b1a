"""The result of a sweep for people: the front, the best, the rows, a picture of two objectives."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from fleet.yaml_source import printable
from scenarios.sweeping.merge import FILES
from scenarios.sweeping.ranking import figure
from scenarios.sweeping.spec import METRICS, Json, Metric
from scenarios.table import Paint, Table, safe
from scenarios.words import defaults_block, joined, limits_block, listing, plural, time_words, verdict_word

MOST_ROWS = 40
MOST_REASONS = 10
MOST_FIELD = 60
WIDE, HIGH = 56, 12
"""Characters of the picture."""


def sweep_text(
    document: Json, *, best: bool = False, only_front: bool = False, color: bool = False, width: int | None = None
) -> str:
    """A `kvwaybill/sweep-result/1` in words. `best`: the smallest fleets first; `only_front`: no other rows."""
    paint = Paint(color, width)
    blocks = [_head(document, paint), _best(document, paint)]
    if not best:
        rows = [row for row in document["rows"] if row["pareto"] or not only_front]
        blocks += [_table(document, rows, paint), _picture(document, document["rows"]), _why_not(rows, paint)]
    blocks += [
        listing("Warnings", document["warnings"], paint), defaults_block(document, paint),
        limits_block(document, paint),
    ]  # fmt: skip
    return joined(blocks)


def cases_text(document: Json, *, color: bool = False, width: int | None = None) -> str:
    """What `--dry-run` lists."""
    paint = Paint(color, width)
    table = Table("Cases", "key", "in the journal", "sets")
    for row in document["cases"]:
        table.add(str(row["case"]), row["key"][:12], "yes" if row["finished"] else "no", _fields(row["fields"]))
    done = sum(row["finished"] for row in document["cases"])
    count = len(document["cases"])
    words = f"{count:,} {plural(count, 'case')}, {done:,} finished, {count - done:,} to run; nothing was run"
    return joined([[words], table.lines(paint)])


def _head(document: Json, paint: Paint) -> list[str]:
    verdicts = ", ".join(f"{count:,} {name}" for name, count in document["verdicts"].items() if count)
    name = document["name"] or "sweep"
    lines = [
        paint(
            safe(f"{name}: {document['cases']:,} cases of {document['base']}, question {document['question']}"), "bold"
        ),
        verdicts,
    ]
    if document["slo"]:
        bounds = (f"{_slo_words(bound, document)}" for bound in document["slo"])
        lines += paint.fold("SLOs  " + ", ".join(bounds), 6)
    if common := _common(document):
        lines += paint.fold(f"All   {_fields(common)}", 6)
    return lines


def _metrics(document: Json) -> list[Metric]:
    known = METRICS[document["question"]]
    return [known[one["metric"]] for one in document["objectives"]]


def _slo_words(bound: Json, document: Json) -> str:
    metric = METRICS[document["question"]][bound["metric"]]
    return f"{metric.name} {'>=' if metric.more else '<='} {_value(bound['bound'], metric)}"


def _value(value: float | None, metric: Metric) -> str:
    if value is None:
        return "-"
    if metric.kind == "time":
        return time_words(value)
    if metric.kind == "share":
        return f"{100 * value:.2f} %"
    return format_bytes(int(value)) if metric.name.endswith("_bytes") else f"{value:,.6g}"


def _told(row: Json, metric: Metric) -> str:
    return (">= " if metric.key in row["lower_bounds"] else "") + _value(figure(row, metric), metric)


def _fields(fields: dict[str, Any]) -> str:
    words = []
    for name, value in fields.items():
        text = "left out" if value is None else value if isinstance(value, str) else _flow(value)
        if name in FILES and len(text) > MOST_FIELD:
            text = f"...{text[3 - MOST_FIELD :]}"  # paths differ at their ends
        words.append(f"{name}: {printable(text, MOST_FIELD)}")
    return ", ".join(words) or "the base as it is"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else str(value)


def _common(document: Json) -> Json:
    """What all cases set alike."""
    rows = document["rows"]
    return {name: v for name, v in rows[0]["fields"].items() if all(row["fields"].get(name, row) == v for row in rows)}


def _own(fields: Json, common: Json) -> str:
    return _fields({name: value for name, value in fields.items() if name not in common})


def _best(document: Json, paint: Paint) -> list[str]:
    """The smallest fleet of each demand."""
    if not document["slo"]:
        return []
    rows, common = {row["case"]: row for row in document["rows"]}, _common(document)
    lines = [paint("Smallest fleet that keeps the SLOs", "bold")]
    for group in document["groups"][:MOST_ROWS]:
        asked = f"{_own(group['asked'], common)}: " if len(document["groups"]) > 1 else ""
        lines += paint.fold(safe(f"  {asked}{_best_words(document, group['best'], rows, common)}"), 4)
    more = len(document["groups"]) - MOST_ROWS
    return [*lines, f"  ... and {more:,} more; -o json has all"] if more > 0 else lines


def _best_words(document: Json, found: Json, rows: dict[int, Json], common: Json) -> str:
    unknown = found["smaller_unknown"]
    if found["case"] is None:
        return f"none is known to; {unknown} {plural(unknown, 'case')} cannot be told" if unknown else "none"
    row = rows[found["case"]]
    cost = "" if row["cost_per_hour"] is None else f", {row['cost_per_hour']:,.6g} an hour"
    figures = ", ".join(f"{m.name} {_told(row, m)}" for m in _metrics(document) if m.name != "devices")
    smaller = f"; {unknown} smaller {plural(unknown, 'case')} cannot be told" if unknown else ""
    words = f"case {row['case']}, {row['devices']} {plural(row['devices'], 'device')}{cost}"
    return f"{words} ({_own(row['fields'], common)}); {figures}{smaller}"


def _table(document: Json, rows: list[Json], paint: Paint) -> list[str]:
    metrics, common = _metrics(document), _common(document)
    bounded = bool(document["slo"])
    heads = [f">{metric.name}" for metric in metrics]
    table = Table("Cases", "", "verdict", *(["SLOs"] if bounded else []), *heads, "sets")
    for row in rows[:MOST_ROWS]:
        slo = [_kept(row["slo"]["met"])] if bounded else []
        cells = [_told(row, metric) for metric in metrics]
        verdict = verdict_word(row["verdict"], Paint(False))
        why = f"  ({row['reasons'][0]['code']})" if row["reasons"] else ""
        table.add(
            str(row["case"]), "*" if row["pareto"] else "", verdict, *slo, *cells, _own(row["fields"], common) + why
        )  # fmt: skip
    lines = table.lines(paint)
    if len(rows) > MOST_ROWS:
        lines.append(f"  ... and {len(rows) - MOST_ROWS:,} more; -o json has all")
    return [*lines, "  * on the Pareto front"] if any(row["pareto"] for row in rows) else lines


def _why_not(rows: list[Json], paint: Paint) -> list[str]:
    """The first reason of each case that is not admitted."""
    words = [
        f"case {row['case']}: {row['reasons'][0]['code']}: {row['reasons'][0]['message']}"
        for row in rows
        if row["reasons"]
    ]
    more = [f"... and {len(words) - MOST_REASONS:,} more; -o json has all"] if len(words) > MOST_REASONS else []
    return listing("Not admitted", [*words[:MOST_REASONS], *more], paint)


def _kept(met: bool | None) -> str:
    return "?" if met is None else "kept" if met else "missed"


def _picture(document: Json, rows: list[Json]) -> list[str]:
    """The first two objectives: `*` on the front, `.` else. Nothing where fewer than three cases have both figures."""
    metrics = _metrics(document)[:2]
    if len(metrics) < 2 or len(document["groups"]) > 1:
        return []  # cases of unlike demands do not belong into one picture
    across, up = metrics
    points = []
    for row in rows:
        x, y = figure(row, across), figure(row, up)
        if row["verdict"] == "admitted" and x is not None and y is not None:
            points.append((float(x), float(y), bool(row["pareto"])))
    if len({(x, y) for x, y, _ in points}) < 3:
        return []
    left, right = min(p[0] for p in points), max(p[0] for p in points)
    low, top = min(p[1] for p in points), max(p[1] for p in points)
    field = [[" "] * WIDE for _ in range(HIGH)]
    for x, y, on_front in sorted(points, key=lambda point: point[2]):
        column, line = _step(x, left, right, WIDE), HIGH - 1 - _step(y, low, top, HIGH)
        field[line][column] = "*" if on_front else "."
    foot = f"{_value(left, across)}  {across.name}  {_value(right, across)}"
    return [
        f"{up.name}, {_value(top, up)} at the top", *("  |" + "".join(line).rstrip() for line in field),
        "  +" + "-" * WIDE, f"   {foot}; {_value(low, up)} at the bottom",
    ]  # fmt: skip


def _step(value: float, low: float, high: float, steps: int) -> int:
    return 0 if high == low else round((value - low) / (high - low) * (steps - 1))
