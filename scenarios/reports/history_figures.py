"""The numbers of the picture of a history."""

from __future__ import annotations

from typing import Any

from scenarios.reports.shape import Figure, Row, distinct

Document = dict[str, Any]
MOST_POINTS = 200


def history_figures(document: Document) -> Figure | None:
    """Every known error over the order of runs, a panel a class; classes without one are named in a note."""
    rows: list[Row] = []
    lost = []
    named = {
        (at, place): (f"{row['class']}, {row['figure']}" if len(document["groups"]) == 1
                      else f"{group['key'][:8]}: {row['class']}, {row['figure']}")
        for at, group in enumerate(document["groups"])
        for place, row in enumerate(group["classes"])
    }  # fmt: skip
    labels = distinct(named, 60)
    for number, group in enumerate(document["groups"]):
        for place, row in enumerate(group["classes"]):
            panel = labels[number, place]
            known = [(at, error) for at, error in enumerate(row["errors"], start=1) if error is not None]
            if not known:
                lost.append(panel)
            for at, error in known[-MOST_POINTS:]:
                rows.append(
                    {"panel": panel, "run": at, "percent": 100 * error, "median": 100 * row["median"],
                     "q1": 100 * row["q1"], "q3": 100 * row["q3"]}
                )  # fmt: skip
    notes = ["one point a run, in the order given; the line is the median, the band the quartiles"]
    notes += [f"no error is known of {', '.join(lost[:12])}"] if lost else []
    return Figure(name="history", title="Prediction error over runs", unit="error, %", rows=rows, notes=notes)
