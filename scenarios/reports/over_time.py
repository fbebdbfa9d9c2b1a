"""The numbers of pictures of simulations and sweeps."""

from __future__ import annotations

from typing import Any

from fleet.units import format_rate, parse_seconds
from scenarios.reports.read import dumped, figure_of, is_time, kept
from scenarios.reports.shape import Figure, Row, axis_unit, distinct, edge_words, several
from scenarios.words import time_words

Document = dict[str, Any]
MOST_EDGES = 24
MOST_WORKERS = 48
MOST_GROUPS = 6
MOST_BINS = 200
ECDF_POINTS = 200
_SHARES = (("p50_s", "P50"), ("p90_s", "P90"), ("p99_s", "P99"), ("mean_s", "mean"))
_ORDER = ("ttft", "tpot", "itl", "e2e")


def latency_figures(document: Document) -> Figure | None:
    """Percentiles of a summary with its SLOs as rules, or of records the share of requests below each time."""
    if "records" in document:
        return _distribution(document["records"])
    rows: list[Row] = []
    for name in sorted(document["latency"], key=lambda name: (_ORDER.index(name) if name in _ORDER else 9, name)):
        spread = document["latency"][name]
        for key, share in _SHARES:
            if spread[key] is not None:
                rows.append(
                    {"metric": name.upper(), "share": share, "ms": _ms(spread[key]), "told": time_words(spread[key])}
                )
    slo = document["inputs"]["slo"]
    marks: list[Row] = [
        {"metric": name.upper(), "ms": _ms(bound), "told": f"SLO {time_words(bound)}"}
        for name, bound in slo.items()
        if bound is not None and name in document["latency"]
    ]
    shown = {row["metric"] for row in rows}
    return Figure(name="latency", title="Latency", unit="ms, log scale", rows=[row for row in rows if row["ms"] > 0],
                  marks=[row for row in marks if row["metric"] in shown and row["ms"] > 0],
                  notes=["nearest-rank percentiles of the finished requests"])  # fmt: skip


def _ms(seconds: float) -> float:
    return seconds * 1000


def _distribution(records: list[Document]) -> Figure | None:
    """TTFT, TPOT and E2E of finished requests at evenly spaced ranks, the last one included."""
    times: dict[str, list[int]] = {"TTFT": [], "TPOT": [], "E2E": []}
    for record in records:
        first, end = record["first_token_ps"], record["end_ps"]
        if record["state"] != "finished" or first is None or end is None:
            continue
        times["TTFT"].append(first - record["arrival_ps"])
        times["E2E"].append(end - record["arrival_ps"])
        if record["new_tokens"] > 1:
            times["TPOT"].append((end - first) // (record["new_tokens"] - 1))
    one = parse_seconds("1 ms")
    rows: list[Row] = []
    for name, values in times.items():
        values.sort()
        for step in range(1, ECDF_POINTS + 1):
            if values:
                rank = -(-len(values) * step // ECDF_POINTS)
                rows.append({"metric": name, "ms": values[rank - 1] / one, "share": rank / len(values)})
    rows = [row for row in rows if row["ms"] > 0]
    done = len(times["TTFT"])
    return Figure(name="ecdf", title="Latency of requests", unit="ms, log scale", rows=rows,
                  notes=[f"{done:,} finished requests; the share of them that took no longer"])  # fmt: skip


def links_figures(document: Document) -> Figure | None:
    """Bytes per second of each edge over time, as a heat map of the edges that carry most."""
    edges = sorted(document["edges"], key=lambda row: (-row["bytes"], row["src"], row["dst"]))
    shown = [edge for edge in edges[:MOST_EDGES] if edge["bytes_per_s_over_time"]]
    labels = distinct({at: edge_words(edge["src"], edge["dst"]) for at, edge in enumerate(shown)}, 70)
    most = max((max(edge["bytes_per_s_over_time"][:MOST_BINS]) for edge in shown), default=0)
    unit, factor = axis_unit("rate", int(most))
    rows: list[Row] = []
    for number, edge in enumerate(shown):
        rates = edge["bytes_per_s_over_time"]
        width = document["duration_s"] / len(rates)
        for at, rate in enumerate(rates[:MOST_BINS]):
            rows.append(
                {"edge": labels[number], "from": at * width, "to": (at + 1) * width,
                 "rate": rate / factor, "told": format_rate(int(rate), digits=4)}
            )  # fmt: skip
    left = len(edges) - len(shown)
    notes = [f"{left:,} more edges, none of which carries more"] if left > 0 else []
    return Figure(name="links", title="KV handoffs by link over time", unit=unit, rows=rows, notes=notes)


def occupancy_figures(document: Document) -> Figure | None:
    """The share of its KV memory that each worker holds, over time: means over the bins of the summary's series."""
    series = document.get("series") or {}
    workers = [worker for worker in series.get("workers") or [] if worker.get("kv_share")]
    if "bin_s" not in series or not workers:
        return None
    width, unit = series["bin_s"], kept(workers[0])[0]
    labels = _worker_labels(workers[:MOST_EDGES])
    rows: list[Row] = [
        {"edge": labels[number], "from": at * width, "to": (at + 1) * width,
         "rate": 100 * share, "told": f"{100 * share:.2f} %"}
        for number, worker in enumerate(workers[:MOST_EDGES])
        for at, share in enumerate(worker["kv_share"][:MOST_BINS])
    ]  # fmt: skip
    left = len(document["workers"]) - min(len(workers), MOST_EDGES)
    notes = ["means over each bin", *([f"{left} more workers"] if left > 0 else [])]
    return Figure(name="occupancy", title=f"KV {unit} held over time", unit=f"% of {unit}", rows=rows, notes=notes)


def _worker_labels(workers: list[Document]) -> dict[int, str]:
    """Phase and devices of each worker, no two alike."""
    told = {at: f"{worker['phase']} {several(worker['device'].split(','))}" for at, worker in enumerate(workers)}
    return distinct(told, 60)


def workers_figures(document: Document) -> Figure | None:
    """How much of the time each worker computed, and how much of its KV memory was taken at most."""
    found = document["workers"]
    rows: list[Row] = []
    labels = _worker_labels(found[:MOST_WORKERS])
    for number, worker in enumerate(found[:MOST_WORKERS]):
        unit, room, held = kept(worker)
        peak = held / room if room and held is not None else None
        for what, share in (("busy", worker["busy"]), (f"KV {unit} at most", peak)):
            if share is not None:
                rows.append({"worker": labels[number], "what": what,
                             "percent": 100 * share, "told": f"{100 * share:.1f} %"})  # fmt: skip
    left = len(found) - MOST_WORKERS
    return Figure(name="workers", title="Workers", unit="%", rows=rows,
                  notes=[f"{left} more workers"] if left > 0 else [])  # fmt: skip


def pareto_figures(document: Document) -> Figure | None:
    """The cases over the first two objectives, a panel a demand. Cases without both figures are counted in a note."""
    objectives = [entry["figure"] for entry in document["objectives"]][:2]
    if len(objectives) < 2:
        return None
    cases = {row["case"]: row for row in document["rows"]}
    rows: list[Row] = []
    without = 0
    groups = document["groups"][:MOST_GROUPS]
    labels = distinct({at: _asked(group) or "all cases" for at, group in enumerate(groups)}, 60)
    for number, group in enumerate(groups):
        for case in group["members"]:
            x, y = (_value(cases[case], figure) for figure in objectives)
            if x is None or y is None:
                without += 1
                continue
            met = (cases[case].get("slo") or {}).get("met")
            rows.append(
                {"demand": labels[number], "case": case, "x": x, "y": y,
                 "front": bool(cases[case]["pareto"]),
                 "slo": "no SLO judged" if met is None else "SLO kept" if met else "SLO missed"}
            )  # fmt: skip
    notes = ["numbers are cases; filled: on the Pareto front over all objectives"]
    notes += [f"{without} cases have no such figures (refused or unknown)"] if without else []
    bounded = sum(not set(objectives).isdisjoint(row.get("lower_bounds") or ()) for row in document["rows"])
    notes += [f"of {bounded} cases a figure is a lower bound"] if bounded else []
    left = len(document["groups"]) - MOST_GROUPS
    notes += [f"{left} more demands"] if left > 0 else []
    told = [_heading(entry) for entry in document["objectives"][:2]]
    return Figure(name="pareto", title="Cases over two objectives", unit="\n".join(told), rows=rows, notes=notes)


def _asked(group: Document) -> str:
    return ", ".join(f"{name.split('.')[-1]} {dumped(value)}" for name, value in group["asked"].items())


def _value(row: Document, figure: str) -> float | None:
    found = figure_of(row, figure)
    return None if found is None else float(found) * (1000 if is_time(figure) else 1)


def _heading(objective: Document) -> str:
    unit = " in ms" if is_time(objective["figure"]) else ""
    return f"{objective['metric']}{unit} ({objective['better']} is better)"
