"""Timelines as Chrome trace events, which https://ui.perfetto.dev and chrome://tracing open.

Format: the "Trace Event Format" document of the Chromium project. A document is a process, a device or an edge a
thread. Where requests overlap on a device, each takes the first free slot of it, so that no two events of a thread
cross. `ts` and `dur` are microseconds, exact to the picosecond.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Sequence
from typing import Any

from fleet.errors import DescriptionError
from fleet.units import parse_seconds
from scenarios.reports.figures import plan_timeline, run_timeline
from scenarios.reports.shape import Figure

Document = dict[str, Any]
Event = dict[str, Any]
_TIMED = ("plan", "run", "records")
_STAGES = (
    ("prefill", "prefill_start_ps", "prefill_end_ps"),
    ("handoff", "handoff_start_ps", "handoff_end_ps"),
    ("decode", "first_token_ps", "end_ps"),
)
"""What a record says of a request: its name here, when it began, when it ended."""


def trace_text(documents: Sequence[tuple[str, Document, str]]) -> str:
    """The trace of (kind, document, source) each: plans as predicted, runs and records as they were.

    DescriptionError for a kind that has no times, such as a proof.
    """
    events: list[Event] = []
    notes: list[str] = []
    for process, (kind, document, source) in enumerate(documents, start=1):
        if kind not in _TIMED:
            raise DescriptionError.at(
                source, "", f"a {kind} has no timeline; a trace is made of plans, runs and records"
            )
        if kind == "records":
            found = _of_records(document["records"], process)
        else:
            found = _of_figure(plan_timeline(document) if kind == "plan" else run_timeline(document), process, notes)
        what = {"plan": "predicted", "run": "observed", "records": "simulated"}[kind]
        events += [_named("process_name", process, 0, f"{what}: {source}"), *found]
    lines = ",\n".join(json.dumps(event) for event in events)
    other = json.dumps({"generator": "kvwaybill", "notes": list(dict.fromkeys(notes))})
    return f'{{"displayTimeUnit": "ns", "otherData": {other}, "traceEvents": [\n{lines}\n]}}\n'


def _of_figure(figure: Figure | None, process: int, notes: list[str]) -> list[Event]:
    if figure is None:
        notes.append("no time of the document is known")
        return []
    notes += figure.notes
    lanes = list(dict.fromkeys(row["lane"] for row in figure.rows))
    threads = {lane: thread for thread, lane in enumerate(lanes, start=1)}
    named = [_named("thread_name", process, thread, lane) for lane, thread in threads.items()]
    return named + [
        _event(row["phase"], process, threads[row["lane"]], row["start_ps"], row["picoseconds"], {})
        for row in figure.rows
    ]


def _of_records(records: Iterable[Document], process: int) -> list[Event]:
    """Spans by device and edge. A stage that never came, or never ended, has no event."""
    spans: dict[str, list[tuple[int, int, str, Document]]] = {}
    for record in records:
        ways = {"prefill": record["prefill"], "handoff": None, "decode": record["decode"]}
        if record["prefill"] and record["decode"]:
            ways["handoff"] = f"{record['prefill']} -> {record['decode']}"
        for name, start, end in _STAGES:
            lane, began, ended = ways[name], record[start], record[end]
            if lane is not None and began is not None and ended is not None and began <= ended:
                told = {key: record[key] for key in ("request", "prompt_tokens", "new_tokens")}
                spans.setdefault(f"{name} {lane}", []).append((began, ended, f"{name} {record['request']}", told))
    events: list[Event] = []
    thread = 0
    for lane in sorted(spans):
        slots = _slots(spans[lane])
        count = 1 + max(slot for slot, _ in slots)
        for slot in range(count):
            name = lane if count == 1 else f"{lane} slot {slot}"
            events.append(_named("thread_name", process, thread + 1 + slot, name))
        events += [
            _event(name, process, thread + 1 + slot, began, ended - began, told)
            for slot, (began, ended, name, told) in slots
        ]
        thread += count
    return events


def _slots(spans: list[tuple[int, int, str, Document]]) -> list[tuple[int, tuple[int, int, str, Document]]]:
    """Each span with the least slot that is free at its start."""
    placed = []
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    count = 0
    for span in sorted(spans, key=lambda span: (span[0], span[1], span[2])):
        while busy and busy[0][0] <= span[0]:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(count)
            count += 1
        slot = heapq.heappop(free)
        heapq.heappush(busy, (span[1], slot))
        placed.append((slot, span))
    return placed


def _named(what: str, process: int, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _event(name: str, process: int, thread: int, start: int, length: int, told: Document) -> Event:
    """A complete event. Times are divided once, so that a picosecond is six decimals of a microsecond."""
    one = parse_seconds("1 us")
    return {
        "ph": "X",
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start / one,
        "dur": length / one,
        "args": told,
    }
