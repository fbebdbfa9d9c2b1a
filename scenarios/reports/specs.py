"""Figures as Vega-Lite specifications, made and checked by Altair. The only file that knows how a picture looks.

Predicted stands before counted before observed, and a colour means the same in every picture. Numbers are put into the
specification as they are in the figure; words beside bars are written by us, so that bytes stay exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from scenarios.reports.figures import PHASES, WHO, figures_of
from scenarios.reports.render import altair
from scenarios.reports.shape import Figure, cut

if TYPE_CHECKING:
    from scenarios.reports.making import Given

Spec = dict[str, Any]
COLORS = {
    "predicted": "#4c78a8", "counted": "#9ecae9", "observed": "#f58518",
    "stage": "#8c959f", "prefill": "#d9a400", "handoff": "#d1006c", "decode": "#0b7a6b",
    "budget": "#b3261e", "capacity": "#1f2328",
    "weights": "#4c78a8", "kv_cache": "#d1006c", "activations": "#72b7b2", "workspace": "#54a24b",
    "layout_padding": "#bab0ac", "runtime": "#8c959f", "rounding": "#d8d5d2", "total": "#1f2328",
    "SLO kept": "#0b7a6b", "SLO missed": "#b3261e", "no SLO judged": "#8c959f",
    "busy": "#4c78a8", "KV blocks at most": "#d1006c", "KV bytes at most": "#d1006c",
    "TTFT": "#d9a400", "TPOT": "#0b7a6b", "E2E": "#4c78a8", "ITL": "#72b7b2",
}  # fmt: skip
_MARKS = {
    "F": "#0b7a6b",
    "f": "#8fd0c5",
    "p": "#eef0f2",
    ".": "#ffffff",
    "-": "#ffffff",
    "!": "#b3261e",
    "?": "#b3261e",
}
_OWN = ("color", "shape", "x", "y", "yOffset")
"""What each of several pictures below one another scales for itself."""
WIDTH = 560
FONT = "DejaVu Sans, Liberation Sans, Arial, sans-serif"
_CONFIG = {
    "font": FONT, "background": "#ffffff", "view": {"stroke": None},
    "axis": {"labelLimit": 560, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": "normal"},
    "legend": {"orient": "bottom", "labelFontSize": 11, "title": None, "symbolLimit": 0, "labelLimit": 300,
               "symbolOpacity": 1},
    "header": {"labelFontSize": 12, "labelFontWeight": "bold", "labelLimit": 560, "title": None},
    "title": {"anchor": "start", "fontSize": 15, "subtitleFontSize": 11, "subtitleColor": "#57606a", "offset": 12},
}  # fmt: skip


def spec_of(figure: Figure) -> Spec:
    """The specification of one figure. InconclusiveError without Altair."""
    return _finished(_CHARTS[figure.name](figure))


def joined_spec(given: Sequence[Given]) -> Spec:
    """All figures of the documents, one below the other. InconclusiveError without Altair."""
    from scenarios.reports.render import nothing_to_draw

    figures = [figure for each in given for figure in figures_of(each.kind, each.document)]
    if not figures:
        raise nothing_to_draw([each.source for each in given])
    charts = [_CHARTS[figure.name](figure) for figure in figures]
    # Shared offsets would make room in every picture for the bars of any; a shared legend would stand below the last.
    joined = altair().vconcat(*charts, spacing=36).resolve_scale(**dict.fromkeys(_OWN, "independent"))
    return _finished(joined)


def _finished(chart: Any) -> Spec:
    spec: Spec = chart.configure(**_CONFIG).to_dict()
    return spec


def _title(figure: Figure) -> Any:
    wrapped = [line for note in figure.notes for line in _wrapped(note)]
    return altair().TitleParams(text=figure.title, subtitle=wrapped) if wrapped else altair().TitleParams(figure.title)


def _wrapped(note: str, longest: int = 100) -> list[str]:
    lines = [""]
    for word in note.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > longest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _data(rows: list[dict[str, Any]]) -> Any:
    return altair().Data(values=rows)


def _colored(field: str, names: Sequence[str], legend: bool = True) -> Any:
    """A colour for each name, the same in every picture; names that have none of their own share grey."""
    alt = altair()
    scale = alt.Scale(domain=list(names), range=[COLORS.get(name, "#8c959f") for name in names])
    more = {} if legend else {"legend": None}
    return alt.Color(f"{field}:N", scale=scale, sort=list(names), **more)


def _seen(rows: list[dict[str, Any]], field: str) -> list[str]:
    return list(dict.fromkeys(row[field] for row in rows))


def _beside(base: Any, field: str, *, crossed: bool = False) -> list[Any]:
    """The words `told` right of a bar's end; with a white edge where a rule crosses them."""
    encoded = {"x": altair().X(field), "text": "told:N"}
    words = base.mark_text(align="left", dx=4, fontSize=10).encode(**encoded)
    halo = base.mark_text(align="left", dx=4, fontSize=10, stroke="white", strokeWidth=6, strokeJoin="round")
    return [halo.encode(**encoded), words] if crossed else [words]


def _edges(figure: Figure) -> Any:
    """Horizontal bars, a band an edge; the exact bytes stand right of every bar."""
    alt = altair()
    edges, who = _seen(figure.rows, "edge"), [name for name in WHO if name in _seen(figure.rows, "who")]
    most = max((row["value"] or 1 for row in figure.rows), default=1)
    x = alt.X(
        "value:Q", title=figure.unit, axis=alt.Axis(format="~s", tickCount=6),
        scale=alt.Scale(type="log", domainMin=1, domainMax=max(10, most * 300), nice=False),
    )  # fmt: skip
    base = alt.Chart().encode(
        y=alt.Y("edge:N", sort=edges, title=None, scale=alt.Scale(paddingInner=0.25)),
        yOffset=alt.YOffset("who:N", sort=who, scale=alt.Scale(domain=who)),
    )
    bars = base.mark_bar().encode(x=x, x2=alt.datum(1), color=_colored("who", who)).transform_filter("datum.value > 0")
    ranged = [row for row in figure.rows if "low" in row]
    words = _beside(base, "at:Q")
    rows = [row | {"at": row.get("high") or row["value"] or 1} for row in figure.rows]
    height = len(edges) * (8 + 17 * len(who))
    marks = _range_marks(base.transform_filter("isValid(datum.high)"), "low:Q", "high:Q") if ranged else []
    layers = alt.layer(bars, *marks, *words, data=_data(rows))
    return layers.properties(title=_title(figure), width=WIDTH, height=height)


def _range_marks(base: Any, low: str, high: str, band: float = 1) -> list[Any]:
    """A lighter bar between the two ends, and a tick at each: one where the range is narrower than a line."""
    size = {"band": band}
    between = base.mark_bar(color=COLORS["observed"], opacity=0.35, height=size).encode(x=low, x2=high)
    ticks = base.mark_tick(color=COLORS["total"], thickness=2, height=size)
    return [between, *(ticks.encode(x=end) for end in (low, high))]


def _closely(figure: Figure) -> Any:
    """Ranges beside the prediction, which is the rule at 0; the words stand below each range."""
    alt = altair()
    ends = [row[end] for row in figure.rows for end in ("low", "high")]
    room = (max([*ends, 0]) - min([*ends, 0])) * 0.1 or 1
    domain = [min([*ends, 0]) - room, max([*ends, 0]) + room]
    x = alt.X(
        "low:Q", title=figure.unit, scale=alt.Scale(domain=domain, nice=False), axis=alt.Axis(format="~s", tickCount=5)
    )
    base = alt.Chart(_data(figure.rows)).encode(y=alt.Y("edge:N", sort=_seen(figure.rows, "edge"), title=None))
    between, *ticks = _range_marks(base, "low:Q", "high:Q", 0.4)
    rule = alt.Chart(_data([{"at": 0}])).mark_rule(color=COLORS["predicted"], strokeWidth=2).encode(x="at:Q")
    words = base.mark_text(align="center", dy=19, fontSize=10).encode(x=alt.value(WIDTH / 2), text="told:N")
    chart = alt.layer(between.encode(x=x, x2="high:Q"), rule, *ticks, words)
    return chart.properties(title=_title(figure), width=WIDTH, height=54 * len(_seen(figure.rows, "edge")))


LINES = ("weights", "kv_cache", "layout_padding", "activations", "workspace", "runtime", "rounding", "total")
"""Lines of a memory table in the order of a plan; a line of another name stands before the total."""


def _memory(figure: Figure) -> Any:
    """A waterfall a device, each in a scale of its own, the fullest first."""
    lines = [name for name in LINES[:-1] if name in _seen(figure.rows, "line")]
    lines += [name for name in _seen(figure.rows, "line") if name not in LINES] + ["total"]
    charts = [_waterfall(figure, device, lines) for device in _seen(figure.rows, "device")]
    return altair().vconcat(*charts, spacing=18, title=_title(figure)).resolve_scale(color="independent")


def _waterfall(figure: Figure, device: str, lines: list[str]) -> Any:
    """Each line begins where the former ended; capacity and budget are rules, or words where they lie far beyond."""
    alt = altair()
    rows = [row for row in figure.rows if row["device"] == device]
    bounds = [mark for mark in figure.marks if mark["device"] == device]
    shown = [mark for mark in bounds if not mark["beyond"]]
    most = max([row["to"] for row in rows] + [mark["at"] for mark in shown])
    scale = alt.Scale(domain=[0, most * 1.4 or 1], nice=False)
    base = alt.Chart(_data(rows)).encode(y=alt.Y("line:N", sort=lines, title=None))
    x = alt.X("from:Q", title=rows[0]["unit"], scale=scale, axis=alt.Axis(tickCount=8))
    bars = base.mark_bar(height={"band": 0.7}).encode(x=x, x2="to:Q", color=_colored("line", lines, legend=False))
    names = ["budget", "capacity"]
    rules = alt.Chart(_data(shown)).mark_rule(strokeWidth=2, strokeDash=[5, 3])
    drawn = [rules.encode(x=alt.X("at:Q"), color=_colored("what", names))] if shown else []
    told = [mark["told"] + (", beyond the axis" if mark["beyond"] else "") for mark in bounds]
    told += [row["slack"] for row in rows if row["line"] == "total"]
    title = alt.TitleParams(text=device, subtitle=told, fontSize=12, offset=6)
    chart = alt.layer(bars, *drawn, *_beside(base, "to:Q", crossed=True)).resolve_scale(color="independent")
    return chart.properties(title=title, width=WIDTH, height=20 * len(_seen(rows, "line")))


def _timeline(figure: Figure) -> Any:
    """Bars of phases on lanes of devices and links."""
    alt = altair()
    lanes = _seen(figure.rows, "lane")
    phases = [phase for phase in PHASES if phase in _seen(figure.rows, "phase")]
    last = max(row["to"] for row in figure.rows)
    base = alt.Chart(_data(figure.rows)).encode(y=alt.Y("lane:N", sort=lanes, title=None))
    # A span of nothing still shows where it lies.
    bars = base.mark_bar(height={"band": 0.6}, stroke="white", strokeWidth=0.5, minBandSize=2).encode(
        x=alt.X("from:Q", title=figure.unit, scale=alt.Scale(domain=[0, last or 1], nice=False)), x2="to:Q",
        color=_colored("phase", phases),
    )  # fmt: skip
    ticks = base.mark_tick(thickness=2, height={"band": 0.6}, opacity=1).encode(
        x="from:Q", color=_colored("phase", phases)
    )
    return alt.layer(bars, ticks).properties(title=_title(figure), width=WIDTH, height=26 * len(lanes))


def _latency(figure: Figure) -> Any:
    """Percentiles as points, with their times; SLOs as rules."""
    alt = altair()
    metrics = _seen(figure.rows, "metric")
    shapes = alt.Scale(domain=["P50", "P90", "P99", "mean"], range=["circle", "square", "triangle-up", "cross"])
    times = [row["ms"] for row in (*figure.rows, *figure.marks)]
    scale = alt.Scale(type="log", domain=[min(times) / 1.3, max(times) * 1.3], nice=False)
    x = alt.X("ms:Q", title=figure.unit, scale=scale, axis=_log_axis())
    y = alt.Y("metric:N", sort=metrics, title=None)
    base = alt.Chart(_data(figure.rows)).encode(y=y)
    lines = base.mark_line(color="#8c959f", strokeWidth=1).encode(x=x, detail="metric:N")
    points = base.mark_point(filled=False, size=80, opacity=1, strokeWidth=2).encode(
        x=x, shape=alt.Shape("share:N", scale=shapes), color=_colored("metric", metrics, legend=False)
    )
    parts = [lines, points]
    if figure.marks:
        marks = alt.Chart(_data(figure.marks)).encode(x=x, y=y)
        parts.append(marks.mark_tick(color=COLORS["budget"], thickness=2.5, height={"band": 0.9}))
        parts.append(
            marks.mark_text(color=COLORS["budget"], align="left", dx=5, dy=-14, fontSize=10).encode(text="told:N")
        )
    return alt.layer(*parts).properties(title=_title(figure), width=WIDTH, height=52 * len(metrics))


def _log_axis() -> Any:
    return altair().Axis(format="~g", tickCount=8)


def _ecdf(figure: Figure) -> Any:
    alt = altair()
    metrics = _seen(figure.rows, "metric")
    chart = alt.Chart(_data(figure.rows)).mark_line(interpolate="step-after", strokeWidth=2)
    return chart.encode(
        x=alt.X("ms:Q", title=figure.unit, scale=alt.Scale(type="log", nice=False), axis=_log_axis()),
        y=alt.Y("share:Q", title="share of requests", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
        color=_colored("metric", metrics),
    ).properties(title=_title(figure), width=WIDTH, height=260)  # fmt: skip


def _links(figure: Figure) -> Any:
    alt = altair()
    edges = _seen(figure.rows, "edge")
    chart = alt.Chart(_data(figure.rows)).mark_rect()
    return chart.encode(
        x=alt.X("from:Q", title="seconds of the simulation", scale=alt.Scale(nice=False)), x2="to:Q",
        y=alt.Y("edge:N", sort=edges, title=None),
        color=alt.Color("rate:Q", scale=alt.Scale(scheme="purplered", domainMin=0),
                        legend=alt.Legend(title=figure.unit, orient="right")),
    ).properties(title=_title(figure), width=WIDTH - 60, height=max(60, 17 * len(edges)))  # fmt: skip


def _workers(figure: Figure) -> Any:
    alt = altair()
    workers, what = _seen(figure.rows, "worker"), _seen(figure.rows, "what")
    base = alt.Chart(_data(figure.rows)).encode(
        y=alt.Y("worker:N", sort=workers, title=None), yOffset=alt.YOffset("what:N", sort=what)
    )
    x = alt.X("percent:Q", title=figure.unit, scale=alt.Scale(domain=[0, 112], nice=False))
    bars = base.mark_bar().encode(x=x, color=_colored("what", what))
    words = _beside(base, "percent:Q")
    height = len(workers) * (8 + 16 * len(what))
    return alt.layer(bars, *words).properties(title=_title(figure), width=WIDTH - 60, height=height)


def _pareto(figure: Figure) -> Any:
    alt = altair()
    heads = figure.unit.split("\n")
    told = [name for name in ("SLO kept", "SLO missed", "no SLO judged") if name in _seen(figure.rows, "slo")]
    panels = []
    for demand in _seen(figure.rows, "demand"):
        rows = [row for row in figure.rows if row["demand"] == demand]
        scale, axis = alt.Scale(zero=False, padding=24, nice=False), alt.Axis(tickCount=5)
        x, y = (
            alt.X("x:Q", title=heads[0], scale=scale, axis=axis),
            alt.Y("y:Q", title=heads[1], scale=scale, axis=axis),
        )
        base = alt.Chart().encode(x=x, y=y)
        color = _colored("slo", told)
        rest = base.transform_filter("!datum.front").mark_point(size=160, opacity=1, strokeWidth=2).encode(color=color)
        front = base.transform_filter("datum.front").mark_point(filled=True, size=100, opacity=1).encode(color=color)
        words = (
            alt.Chart(_data(_labels(rows)))
            .mark_text(dx=8, dy=-9, align="left", fontSize=11)
            .encode(x=x, y=y, text="cases:N")
        )
        panels.append(
            alt.layer(front.properties(data=_data(rows)), rest.properties(data=_data(rows)), words).properties(
                title=alt.TitleParams(demand, fontSize=12), width=255, height=210
            )
        )
    return alt.concat(*panels, columns=2, title=_title(figure), spacing=28)


def _history(figure: Figure) -> Any:
    """Errors over runs: points, the median as a line, the quartiles as a band; a panel a class."""
    alt = altair()
    panels = []
    for name in _seen(figure.rows, "panel"):
        rows = [row for row in figure.rows if row["panel"] == name]
        least, most = (of([row["percent"] for row in rows]) for of in (min, max))
        room = (most - least) * 0.1 or max(abs(most) * 0.1, 1)
        scale = alt.Scale(domain=[least - room, most + room], nice=False)
        x = alt.X(
            "run:Q",
            title="run",
            scale=alt.Scale(padding=12, nice=False, zero=False),
            axis=alt.Axis(tickMinStep=1, format="d"),
        )
        y = alt.Y("percent:Q", title=figure.unit, scale=scale, axis=alt.Axis(tickCount=5))
        base = alt.Chart().encode(x=x)
        band = base.mark_rect(color=COLORS["counted"], opacity=0.35).encode(
            x=alt.value(0), x2=alt.value("width"), y=alt.Y("q1:Q", scale=scale), y2="q3:Q"
        )
        line = base.mark_rule(color=COLORS["predicted"], strokeWidth=1.5).encode(
            x=alt.value(0), x2=alt.value("width"), y=alt.Y("median:Q", scale=scale)
        )
        points = base.mark_circle(color=COLORS["observed"], size=45, opacity=1).encode(y=y)
        one = _data(rows[:1])
        chart = alt.layer(band.properties(data=one), line.properties(data=one), points.properties(data=_data(rows)))
        panels.append(chart.properties(title=alt.TitleParams(name, fontSize=12), width=255, height=130))
    return alt.concat(*panels, columns=2, title=_title(figure), spacing=24)


def _labels(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One label for cases whose points lie on one another, where each would cover the others."""
    spans = [max(row[axis] for row in rows) - min(row[axis] for row in rows) or 1 for axis in "xy"]
    found: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((round(row["x"] / spans[0] * 30), round(row["y"] / spans[1] * 30)), []).append(row)
    return [
        {"x": near[0]["x"], "y": near[0]["y"], "cases": cut(", ".join(str(row["case"]) for row in near), 24)}
        for near in found.values()
    ]


def _matrix(figure: Figure) -> Any:
    alt = altair()
    checks, numbers = _seen(figure.rows, "check"), _seen(figure.rows, "number")
    meanings = _seen(sorted(figure.rows, key=lambda row: "Ffp.-!?".index(row["mark"])), "meaning")
    scale = alt.Scale(domain=meanings, range=[_MARKS[meaning[0]] for meaning in meanings])
    base = alt.Chart(_data(figure.rows)).encode(
        x=alt.X("number:O", sort=numbers, title=figure.unit, axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("check:N", sort=checks, title=None),
    )
    cells = base.mark_rect(stroke="#d0d7de").encode(
        color=alt.Color(
            "meaning:N", scale=scale, sort=meanings, legend=alt.Legend(columns=3, symbolStrokeColor="#8c959f")
        )
    )
    loud = "datum.mark == 'F' || datum.mark == '!' || datum.mark == '?'"
    ink = alt.condition(loud, alt.value("white"), alt.value("#1f2328"))
    words = base.mark_text(fontSize=11).encode(text="mark:N", color=ink)
    return alt.layer(cells, words).properties(
        title=_title(figure), width=max(240, 23 * len(numbers)), height=22 * len(checks)
    )


_CHARTS: dict[str, Callable[[Figure], Any]] = {
    "edges": _edges, "closely": _closely, "memory": _memory, "timeline": _timeline, "latency": _latency, "ecdf": _ecdf,
    "links": _links, "occupancy": _links,
    "workers": _workers, "pareto": _pareto, "matrix": _matrix, "history": _history,
}  # fmt: skip
