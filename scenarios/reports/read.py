"""Reads the documents that a report is made of: those of `scenarios.documents`, simulations, sweeps and records.

Whatever a report reads of a document from anybody is checked here, so that a builder never meets a missing field.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from fleet.errors import DescriptionError
from scenarios.documents import Document, checked_document, parse_document, read_bytes
from scenarios.schemas import COMPARISON, RUN
from scenarios.shapes import Shape, Sink, choice, flag, integer, listing, number, record, table, text

MOST_RECORDS = 200_000
_name = text(4096, null=True)
_words = listing(text(100_000), most=10_000)
_named = record({"name": _name})
_seconds = number(null=True)
_spread = record({"count": integer(), "mean_s": _seconds, "p50_s": _seconds, "p90_s": _seconds, "p99_s": _seconds})
_edge = record(
    {"src": text(64), "dst": text(64), "kind": text(64), "bytes": integer(0, 2**100), "copies": integer(0, 2**100)}
    | {"utilisation": number(), "bytes_per_s_over_time": listing(number(), most=10_000)}
)
_worker = record(
    {"device": text(1 << 16), "phase": text(64), "busy": number(), "steps": integer(), "preemptions": integer()},
    dict.fromkeys(("kv_blocks", "kv_blocks_peak", "kv_bytes", "kv_bytes_peak"), integer()),
)
_held = record({"device": text(1 << 16), "phase": text(64)}, {"kv_share": listing(number(), most=100_000, null=True)})


def kept(worker: Mapping[str, Any]) -> tuple[str, int | None, int | None]:
    """(unit, KV memory of a worker, the most of it that was taken): blocks, or bytes of windows and states."""
    unit = "bytes" if "kv_bytes" in worker else "blocks"
    return unit, worker.get(f"kv_{unit}"), worker.get(f"kv_{unit}_peak")


SIMULATION = record(
    {
        "name": _name,
        "inputs": record(
            {"fleet": _named, "model": _named, "traffic": record({"source": text()}), "slo": table(_seconds)}
        ),
        "requests": record(dict.fromkeys(("all", "finished", "refused", "unfinished"), integer())),
        "duration_s": number(),
        "latency": table(_spread, most=64),
        "goodput": record({"met": integer(), "of_all": number()}, null=True),
        "edges": listing(_edge, most=1_000_000),
        "workers": listing(_worker, most=100_000),
        "unfinished": _words,
        "limits": _words,
    },
    {"series": record({}, {"bin_s": number(), "workers": listing(_held, most=100_000)}, null=True)},
)  # fmt: skip


def _signed(value: Any, path: str, sink: Sink) -> None:
    """A finite number of either sign, or null."""
    if value is not None and type(value) in (int, float):
        number()(abs(value), path, sink)
    elif value is not None:
        sink.wanted(path, "a number", value)


_row = record(
    {
        "case": integer(1),
        "fields": table(lambda value, path, sink: None, most=1000),
        "devices": integer(),
        "verdict": choice("admitted", "refused", "unverified"),
        "reasons": listing(lambda value, path, sink: None, most=10_000),
        "figures": table(_signed, most=1000, null=True),
        "pareto": flag(null=True),
    },
    {"slo": record({"met": lambda value, path, sink: None}, null=True), "lower_bounds": _words}
    | {"cost_per_hour": number(null=True)},
)
_group = record(
    {"asked": table(lambda value, path, sink: None), "members": listing(integer(1)), "front": listing(integer(1))},
    {"best": record({"verdict": choice("found", "none", "unknown")}, {"case": integer(null=True)}, null=True)},
)
SWEEP = record(
    {
        "name": _name,
        "question": text(64),
        "objectives": listing(
            record({"metric": text(64), "figure": text(64), "better": choice("less", "more")}), most=64
        ),
        "slo": listing(record({"metric": text(64), "figure": text(64), "bound": number(), "at": text(16)}), most=64),
        "groups": listing(_group),
        "rows": listing(_row),
        "limits": _words,
    }
)  # fmt: skip
_time = integer(null=True)
_record = record(
    {"request": integer(), "state": text(32), "arrival_ps": integer(), "prompt_tokens": integer()}
    | {"new_tokens": integer(), "prefill": text(1 << 16, null=True), "decode": text(1 << 16, null=True)}
    | dict.fromkeys(("prefill_start_ps", "prefill_end_ps", "handoff_start_ps", "handoff_end_ps"), _time)
    | dict.fromkeys(("first_token_ps", "end_ps"), _time)
)
_COMPARED = record(
    {},
    {
        "compared": listing(text(64), most=2),
        "changes": listing(
            record(
                {"group": text(64), "sign": choice("~", "+", "-"), "what": text(), "why": text(100_000)}
                | dict.fromkeys(("before", "after"), _name)
            ),
            null=True,
        ),
        "documents": listing(record({}, dict.fromkeys(("path", "kind", "plan_id", "verdict", "about"), _name)), most=2),
    },
)
"""What a comparison says of itself beside what `scenarios.schemas` checks."""


_class = record(
    {"class": text(256), "figure": choice("bytes", "seconds"), "runs": integer(), "unwitnessed": integer()}
    | dict.fromkeys(("median", "q1", "q3", "min", "max", "slope_per_run", "p"), _signed)
    | {"drift": choice("up", "down", "none", "too few"), "errors": listing(_signed, most=1000)}
)
HISTORY = record(
    {
        "by": choice("plan", "fleet"),
        "groups": listing(
            record({"key": text(128), "fleet": _name, "runs": listing(text(), most=1000), "classes": listing(_class)})
        ),
        "limits": _words,
    }
)
OTHERS: dict[str, Shape] = {"simulation": SIMULATION, "sweep-result": SWEEP, "history": HISTORY}
KINDS = ("plan", "admissions", "run", "comparison", "proof", "simulation", "sweep-result", "history")
RECORDS = "records"


def read_report_document(path: str) -> tuple[str, Document]:
    """(kind, document) of any document that a report can be made of; records (JSONL) are `{"records": [...]}`.

    DescriptionError tells every fault, as `scenarios.documents.read_document` does.
    """
    return report_document(read_bytes(path), "<stdin>" if path == "-" else path)


def report_document(data: bytes, source: str) -> tuple[str, Document]:
    """The same of bytes that were read already."""
    if data.startswith(b'{"request":'):
        return RECORDS, {"schema": RECORDS, "records": _records(data, source)}
    document = parse_document(data, source)
    kind = kind_of(document)
    if kind not in OTHERS:
        document = checked_document(data, source, tuple(name for name in KINDS if name not in OTHERS))
    sink = Sink(source)
    if kind in OTHERS:
        OTHERS[kind](document, "", sink)
    elif kind == "proof":
        _check_proof(document, sink)
    elif kind == "comparison":
        _COMPARED(document, "", sink)
    sink.raise_if_any()
    if kind == "sweep-result":
        _check_cases(document, sink)
        sink.raise_if_any()
    return kind, document


def kind_of(document: Document) -> str:
    """`plan`, `run` ... of a document that names its schema; an empty word for one that does not."""
    parts = str(document.get("schema")).split("/")
    return parts[1] if len(parts) == 3 and parts[0] == "kvwaybill" else ""


def _check_proof(document: Document, sink: Sink) -> None:
    """What `scenarios.schemas` leaves open: the runs and comparisons inside, which a report shows."""
    entry = record({"name": text(128), "comparison": COMPARISON})
    inside = {"comparisons": listing(entry, most=100), "runs": table(RUN, most=100)}
    record({}, inside | dict.fromkeys(("never_failed", "limits"), _words))(document, "", sink)
    listing(record({}, {"detail": text(100_000)}), most=1000)(document.get("matrix"), "matrix", sink)


def _check_cases(document: Document, sink: Sink) -> None:
    """Groups name rows that are there, each case once."""
    cases = [row["case"] for row in document["rows"]]
    if len(set(cases)) != len(cases):
        sink.add("rows", "one case stands twice")
    known = set(cases)
    for at, group in enumerate(document["groups"]):
        best = (group.get("best") or {}).get("case")
        named = [*group["members"], *group["front"], *([] if best is None else [best])]
        if lost := [case for case in named if case not in known]:
            sink.add(f"groups[{at}]", f"names the case {lost[0]}, which is no row")


def records_of(lines: Iterable[str]) -> Document:
    """The records of a simulation that was made here, as `read_report_document` gives those of a file."""
    found = list(islice(lines, MOST_RECORDS + 1))
    if len(found) > MOST_RECORDS:
        raise DescriptionError.at(
            "simulate", "", f"more than {MOST_RECORDS:,} requests; a trace of so many is not made"
        )
    return {"schema": RECORDS, "records": [json.loads(line) for line in found]}


def _records(data: bytes, source: str) -> list[Document]:
    lines = data.split(b"\n")
    if len(lines) > MOST_RECORDS + 1:
        raise DescriptionError.at(source, "", f"more than {MOST_RECORDS:,} records; cut the file, e.g. with head")
    sink = Sink(source)
    found = []
    for number_, line in enumerate(lines, start=1):
        if line.strip():
            value = parse_document(line, f"{source} line {number_}")
            _record(value, f"line {number_}", sink)
            found.append(value)
    sink.raise_if_any()
    return found


def figure_of(row: Document, figure: str) -> float | None:
    """A figure of a sweep's case; None where it is unknown, or where the case was not admitted."""
    held = row if figure in ("devices", "cost_per_hour") else row["figures"] or {}
    found: float | None = held.get(figure)
    return found


def is_time(figure: str) -> bool:
    """Whether a figure of a sweep is in seconds, by its name."""
    return figure.endswith("_s") and not figure.endswith("per_s")


def dumped(value: Any) -> str:
    """A value of a field that may hold anything, on one line."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)[:400]
