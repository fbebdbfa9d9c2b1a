"""The result of a sweep for people: the front, the best, the rows, a picture of two objectives."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from fleet.yaml_source import printable
from scenarios.sweeping.ranking import figure
from scenarios.sweeping.spec import METRICS, Json, Metric
from scenarios.table import Paint, Table, safe
from scenarios.words import defaults_block, joined, limits_block, listing, plural, time_words, verdict_word

MOST_ROWS = 40
WIDE, HIGH = 56, 12
"""Characters of the picture."""


def sweep_text(
    document: Json, *, best: bool = False, only_front: bool = False, color: bool = False, width: int | None = None
) -> str:
    """A `kvwaybill/sweep-result/1` in words. `best`: the smallest fleets first; `only_front`: no other rows."""
    paint = Paint(color, width)
    rows = {row["case"]: row for row in document["rows"]}
    blocks = [_head(document, paint)]
    for group in document["groups"]:
        blocks += _group(document, group, rows, paint, best=best, only_front=only_front)
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


def _fields(fields: dict[str, Any]) -> str:
    words = []
    for name, value in fields.items():
        text = "left out" if value is None else value if isinstance(value, str) else _flow(value)
        words.append(f"{name}: {printable(text, 60)}")
    return ", ".join(words) or "the base as it is"


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(one)}" for name, one in value.items()) + "}"
    return f"[{', '.join(map(_flow, value))}]" if isinstance(value, list) else str(value)


def _group(
    document: Json, group: Json, rows: dict[int, Json], paint: Paint, *, best: bool, only_front: bool
) -> list[list[str]]:
    held = [row for row in rows.values() if row["case"] in set(group["members"])]
    blocks = []
    if len(document["groups"]) > 1:
        blocks.append(paint.fold(paint(f"Asked  {_fields(group['asked'])}", "bold")))
    if "best" in group:
        blocks.append(_best(document, group["best"], rows, paint))
    if best:
        return blocks
    shown = [row for row in held if row["pareto"]] if only_front else held
    blocks.append(_table(document, shown, paint))
    blocks.append(_picture(document, held))
    return blocks


def _best(document: Json, found: Json, rows: dict[int, Json], paint: Paint) -> list[str]:
    unknown = found["smaller_unknown"]
    if found["case"] is None:
        words = "cannot be told: no case keeps the SLOs" if unknown else "none: no case keeps the SLOs"
        more = f", and {unknown} {plural(unknown, 'case')} cannot be told" if unknown else ""
        return paint.fold(f"Smallest fleet  {words}{more}", 4)
    row = rows[found["case"]]
    cost = "" if row["cost_per_hour"] is None else f", {row['cost_per_hour']:,.6g} an hour"
    figures = ", ".join(f"{m.name} {_value(figure(row, m), m)}" for m in _metrics(document) if m.name != "devices")
    lines = paint.fold(
        safe(f"Smallest fleet  case {row['case']}: {row['devices']} devices{cost}; {_fields(row['fields'])}"), 4
    )
    lines += paint.fold(safe(f"    {figures}"), 4)
    return lines + ([f"    {unknown} smaller {plural(unknown, 'case')} cannot be told"] if unknown else [])


def _table(document: Json, rows: list[Json], paint: Paint) -> list[str]:
    metrics = _metrics(document)
    bounded = bool(document["slo"])
    heads = [f">{metric.name}" for metric in metrics]
    table = Table("Cases", "", "verdict", *(["SLOs"] if bounded else []), *heads, "sets")
    for row in rows[:MOST_ROWS]:
        slo = [_kept(row["slo"]["met"])] if bounded else []
        cells = [_value(figure(row, metric), metric) for metric in metrics]
        verdict = verdict_word(row["verdict"], Paint(False))
        why = f"  ({row['reasons'][0]['code']})" if row["reasons"] else ""
        table.add(
            str(row["case"]), "*" if row["pareto"] else "", verdict, *slo, *cells, _fields(row["fields"]) + why
        )  # fmt: skip
    lines = table.lines(paint)
    if len(rows) > MOST_ROWS:
        lines.append(f"  ... and {len(rows) - MOST_ROWS:,} more; -o json has all")
    return [*lines, "  * on the Pareto front"] if any(row["pareto"] for row in rows) else lines


def _kept(met: bool | None) -> str:
    return "?" if met is None else "kept" if met else "missed"


def _picture(document: Json, rows: list[Json]) -> list[str]:
    """The first two objectives: `*` on the front, `.` else. Nothing where fewer than three cases have both figures."""
    metrics = _metrics(document)[:2]
    if len(metrics) < 2:
        return []
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
