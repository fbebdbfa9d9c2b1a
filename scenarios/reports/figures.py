"""The numbers of each picture, out of the documents: plain rows, without a drawing library, for tests to read.

A figure holds exact bytes and the words that stand beside them; the axis carries the same number in a round unit. What
is unknown has no bar and says so in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

from fleet.units import format_bytes, parse_seconds, seconds_number
from scenarios.report_proof import mark
from scenarios.reports.edge_figures import WHO, closely_figure, edges_figure
from scenarios.reports.history_figures import history_figures
from scenarios.reports.over_time import (
    latency_figures,
    links_figures,
    occupancy_figures,
    pareto_figures,
    workers_figures,
)
from scenarios.reports.shape import Figure, Row, axis_unit, cut, distinct, edge_words, named_alike, several
from scenarios.words import mapping, time_words

Document = dict[str, Any]
MOST_DEVICES = 12
MOST_PLANS = 8
MOST_SPANS = 2000
FEW_LANES, MOST_LANES = 16, 32
Span = tuple[str, str, int, int]
"""Lane, phase, start and end in picoseconds."""
MOST_CHECKS, MOST_SABOTAGES = 80, 60
PHASES = ("stage", "prefill", "handoff", "decode")
__all__ = ["PHASES", "WHO", "Figure", "figures_of"]


def figures_of(kind: str, document: Document) -> list[Figure]:
    """The pictures of a document of `scenarios.reports.read`, in its page's order. What holds no number has none."""
    if kind == "admissions":
        found = [_named(memory_figure(plan), plan) for plan in document["plans"][:MOST_PLANS]]
    else:
        found = [make(document) for make in _MAKERS.get(kind, ())]
    return [figure for figure in found if figure is not None and figure.rows]


def _named(figure: Figure | None, plan: Document) -> Figure | None:
    """The figure of one of several plans, with the name of its fleet."""
    name = mapping(mapping(plan.get("inputs")).get("fleet")).get("name")
    return None if figure is None else replace(figure, title=cut(f"{figure.title}: {name}", 60))


def memory_figure(plan: Document) -> Figure | None:
    """Each line of each device from where the one before ended, with capacity and budget. Alike devices stand once."""
    alike: dict[tuple[Any, ...], list[Document]] = {}
    for entry in plan.get("memory") or []:
        figures = (*entry["resident"].items(), *(entry[f"{name}_bytes"] for name in ("rounding", "budget", "capacity")))
        alike.setdefault(figures, []).append(entry)
    groups = sorted(alike.values(), key=lambda entries: _fullness(entries[0]))
    rows: list[Row] = []
    bounds: list[Row] = []
    shown = groups[:MOST_DEVICES]
    names = distinct({at: named_alike([entry["device"] for entry in shown[at]]) for at in range(len(shown))}, 60)
    for at, entries in enumerate(shown):
        device = names[at]
        needed = _known_sum(entries[0])
        unit, factor = axis_unit("bytes", needed)
        rows += [row | {"unit": unit} for row in _waterfall(entries[0], device, factor)]
        bounds += _bounds(entries[0], device, factor, needed)
    left = sum(map(len, groups[MOST_DEVICES:]))
    notes = [f"{left:,} more that are less full"] if left > 0 else []
    return Figure(name="memory", title="Memory by device", unit="bytes", rows=rows, marks=bounds, notes=notes)


def _fullness(entry: Document) -> tuple[int, Fraction]:
    """The fullest first; what has no slack to tell comes last."""
    if entry["slack_bytes"] is None or not entry["budget_bytes"]:
        return 1, Fraction(0)
    return 0, Fraction(entry["slack_bytes"], entry["budget_bytes"])


def _lines(entry: Document) -> Iterable[tuple[str, int | None]]:
    yield from entry["resident"].items()
    yield "rounding", entry["rounding_bytes"]


def _known_sum(entry: Document) -> int:
    return sum(nbytes or 0 for _, nbytes in _lines(entry))


def _waterfall(entry: Document, device: str, factor: int) -> list[Row]:
    rows: list[Row] = []
    at = 0
    for line, nbytes in _lines(entry):
        if nbytes == 0:
            continue
        told = format_bytes(nbytes)
        rows.append(
            {"device": device, "line": line, "bytes": nbytes, "from": at / factor, "to": (at + (nbytes or 0)) / factor,
             "told": told}
        )  # fmt: skip
        at += nbytes or 0
    total = entry["total_bytes"]
    told = format_bytes(total) if total is not None else "unknown: a line is not known"
    rows.append({"device": device, "line": "total", "bytes": total, "from": 0, "to": at / factor, "told": told,
                 "slack": _slack(entry)})  # fmt: skip
    return rows


def _slack(entry: Document) -> str:
    slack = entry["slack_bytes"]
    if slack is None:
        return "no budget stated"
    return f"{format_bytes(slack)} left" if slack >= 0 else f"short by {format_bytes(-slack)}"


BEYOND = 8
"""A bound that lies more than this many times beyond what is needed would leave no room to see what is needed."""


def _bounds(entry: Document, device: str, factor: int, needed: int) -> list[Row]:
    return [
        {"device": device, "what": what, "bytes": nbytes, "at": nbytes / factor,
         "told": f"{what} {format_bytes(nbytes)}", "beyond": nbytes > BEYOND * max(needed, 1)}
        for what in ("budget", "capacity")
        if (nbytes := entry[f"{what}_bytes"]) is not None
    ]  # fmt: skip


def plan_timeline(plan: Document) -> Figure | None:
    """The predicted phases one after another, each on its device and on the links of its rows.

    Rows of a phase are drawn from its start, the sums of a link together: a plan does not say when in it they move.
    """
    time = mapping(plan.get("time"))
    at = 0
    spans: list[Span] = []
    notes = []
    for phase in ("prefill", "handoff", "decode"):
        told = mapping(time.get(phase))
        if not told:
            continue
        if told.get("seconds") is None:
            notes.append(f"{phase} is unpriced, and what follows it is not drawn")
            break
        length = _picoseconds(told["seconds"])
        if phase != "handoff":
            spans.append((str(mapping(plan.get("placement")).get(phase)), phase, at, at + length))
        ordered = _in_sequence(plan, at, length) if phase == "handoff" else None
        spans += ordered or [(lane, phase, at, at + taken) for lane, taken in _links(plan, phase)]
        at += length
    if notes and not spans:
        return None
    return _timeline(spans, "Predicted timeline", [*notes, "rows of a phase are drawn from its start, summed by link"])


def _picoseconds(seconds: float) -> int:
    return round(Fraction(seconds) * parse_seconds("1 s"))


def _in_sequence(plan: Document, at: int, length: int) -> list[Span] | None:
    """The legs of the handoff one after another, where that is how its time came about; else None."""
    spans = []
    start = at
    for row in plan.get("waybill") or []:
        for leg in (row.get("legs") or []) if row["phase"] == "handoff" else []:
            if leg.get("seconds") is None or row.get("staging") == "pipelined":
                return None
            end = at + _picoseconds(leg["seconds"])
            spans.append((f"{leg['src']} -> {leg['dst']}", "handoff", at, end))
            at = end
    return spans if abs((at - start) - length) <= len(spans) + 1 else None


def _links(plan: Document, phase: str) -> list[tuple[str, int]]:
    """(lane, ps) of the links that the rows of a phase keep busy; rows without a time have no bar."""
    busy: dict[str, int] = {}
    for row in plan.get("waybill") or []:
        if row["phase"] == phase:
            for leg in row.get("legs") or []:
                if leg.get("seconds") is not None:
                    lane = f"{leg['src']} -> {leg['dst']}"
                    busy[lane] = busy.get(lane, 0) + _picoseconds(leg["seconds"])
    return list(busy.items())


def run_timeline(run: Document) -> Figure | None:
    """When each order was carried out, by the clock of the host."""
    thousand = parse_seconds("1 ns")
    spans = [
        (span["dst"] if not span.get("src") else f"{span['src']} -> {span['dst']}", span["phase"],
         span["start_ns"] * thousand, span["end_ns"] * thousand)
        for span in run.get("spans") or []
    ]  # fmt: skip
    notes = ["by the clock of the host, from call to return"]
    if run["tier"] == "emulated":
        notes.append("emulated: times of one processor, not of the fleet's devices")
    return _timeline(spans, "Observed timeline", notes)


def _timeline(spans: list[Span], title: str, notes: list[str]) -> Figure:
    if left := len(spans) - MOST_SPANS:
        notes = [*notes, f"{left:,} later spans are not drawn"] if left > 0 else notes
        spans = spans[:MOST_SPANS]
    last = max((end for *_, end in spans), default=0)
    unit, factor = axis_unit("seconds", last)
    spans, words, told = _lanes(spans)
    notes = [*notes, *told]
    labels = distinct(words, 80)
    rows: list[Row] = [
        {"lane": labels[lane], "phase": phase, "from": start / factor, "to": end / factor,
         "start_ps": start, "picoseconds": end - start, "told": f"{phase} {time_words(seconds_number(end - start))}"}
        for lane, phase, start, end in spans
    ]  # fmt: skip
    return Figure(name="timeline", title=title, unit=unit, rows=rows, notes=notes)


def _lanes(spans: list[Span]) -> tuple[list[Span], dict[str, str], list[str]]:
    """(spans, words of their lanes, what is left out): lanes with the same spans are one where they are many, and those
    that are busy longest stay, in their order.
    """
    by_lane: dict[str, list[tuple[str, int, int]]] = {}
    for lane, phase, start, end in spans:
        by_lane.setdefault(lane, []).append((phase, start, end))
    if len(by_lane) <= FEW_LANES:
        return spans, {lane: _lane_words(lane) for lane in by_lane}, []
    alike: dict[tuple[tuple[str, int, int], ...], list[str]] = {}
    for lane, found in by_lane.items():
        alike.setdefault(tuple(found), []).append(lane)
    busiest = set(sorted(alike, key=lambda found: -sum(end - start for _, start, end in found))[:MOST_LANES])
    kept = [(lanes, found) for found, lanes in alike.items() if found in busiest]
    drawn = [(lanes[0], *span) for lanes, found in kept for span in found]
    words = {
        lanes[0]: _lane_words(lanes[0]) + (f" and {len(lanes) - 1:,} alike" if len(lanes) > 1 else "")
        for lanes, _ in kept
    }
    left = len(by_lane) - sum(len(lanes) for lanes, _ in kept)
    return drawn, words, [f"{left:,} more lanes that are busy no longer"] if left else []


def _lane_words(lane: str) -> str:
    """An edge with each end cut by itself, or the devices of a worker."""
    src, arrow, dst = lane.partition(" -> ")
    return edge_words(src, dst) if arrow else several(lane.split(","))


def matrix_figure(proof: Document) -> Figure | None:
    """Checks x sabotages, with the marks of the text."""
    matrix = proof["matrix"]
    names = list(dict.fromkeys(n for row in matrix for key in ("must_fail", "must_pass", "failed") for n in row[key]))
    shown = list(enumerate(matrix, start=1))[:MOST_SABOTAGES]
    labels = distinct({name: name for name in names[:MOST_CHECKS]}, 60)
    left = len(names) > MOST_CHECKS or len(matrix) > MOST_SABOTAGES
    notes = (
        [f"the first {MOST_CHECKS} checks and {MOST_SABOTAGES} sabotages; the document has them all"] if left else []
    )
    rows: list[Row] = [
        {"check": labels[name], "number": number, "sabotage": row["sabotage"], "mark": (sign := mark(name, row)[0]),
         "meaning": MEANINGS[sign]}
        for name in names[:MOST_CHECKS]
        for number, row in shown
    ]  # fmt: skip
    return Figure(name="matrix", title="Checks x sabotages", unit="number of the sabotage", rows=rows, notes=notes)


MEANINGS = {
    "F": "F failed, as it must", "f": "f failed beside that", "p": "p passed, as it must",
    ".": ". free to fail or pass", "-": "- does not apply", "!": "! failed, must pass", "?": "? passed, must fail",
}  # fmt: skip


def _of_comparison(run: Document) -> Figure | None:
    return edges_figure(run["comparison"]) if run.get("comparison") else None


_MAKERS: dict[str, tuple[Callable[[Document], Figure | None], ...]] = {
    "plan": (memory_figure, edges_figure, plan_timeline),
    "run": (_of_comparison, run_timeline),
    "comparison": (edges_figure, closely_figure),
    "proof": (matrix_figure,),
    "simulation": (latency_figures, links_figures, occupancy_figures, workers_figures),
    "records": (latency_figures,),
    "sweep-result": (pareto_figures,),
    "history": (history_figures,),
}
