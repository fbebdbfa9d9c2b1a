"""Traces of requests as others publish them, recognised by their first line; every fault is told with its line.

Azure LLM inference traces (TIMESTAMP, ContextTokens, GeneratedTokens), Mooncake (timestamp in ms, input_length,
output_length, hash_ids of 512 tokens), the CSV of Vidur (arrived_at, num_prefill_tokens, num_decode_tokens) and of
splitwise-sim (arrival_timestamp, prompt_size, token_size; seconds), and our own JSONL: {"arrival_s", "prompt_tokens",
"new_tokens", "hash_ids" (optional)}.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.yaml_source import printable, shown_path
from scenarios.simulation.traffic import MAX_REQUESTS, MAX_TIME, MAX_TOKENS, PICOSECONDS, Traffic

MAX_TRACE_BYTES = 2 * 2**30
MAX_LINE = 1 << 20
MAX_FAULTS = 50
MOONCAKE_BLOCK = 512
_COUNT = re.compile(r"[0-9]{1,12}")
_SECONDS = re.compile(r"[0-9]{1,12}(\.[0-9]{0,30})?([eE][+-]?[0-9]{1,2})?")
"""As Python and pandas write a float: 0.30000000000000004, 1e-05."""
_ZONE = re.compile(r"(Z|[+-][0-9]{2}:[0-9]{2})$")
_MOST_HASHES = 50_000_000

Record = tuple[int, int, int, Sequence[Any]]
"""(ps, prompt tokens, new tokens, hashes)."""


@dataclass(slots=True)
class _Trace:
    source: str
    faults: list[Fault] = field(default_factory=list)
    rows: list[Record] = field(default_factory=list)
    last: int = 0
    n_hashes: int = 0

    def fault(self, line: int, name: str, message: str) -> None:
        self.faults.append(Fault(source=self.source, field=name, message=message, line=line, column=1))
        if len(self.faults) >= MAX_FAULTS:
            raise DescriptionError(self.faults)

    def add(self, line: int, time: int, counts: tuple[int, int], hashes: Sequence[Any]) -> None:
        if time < self.last:
            self.fault(line, "time", "is earlier than the line before; sort the trace by time of arrival")
        elif time > MAX_TIME:
            self.fault(line, "time", "is more than 26 days after the first request; cut the trace")
        self.last = max(self.last, min(time, MAX_TIME))
        self.n_hashes += len(hashes)
        if len(self.rows) >= MAX_REQUESTS or self.n_hashes > _MOST_HASHES:
            raise DescriptionError.at(self.source, "", f"holds more than {MAX_REQUESTS:,} requests; cut it", line, 1)
        self.rows.append((time, *counts, hashes))

    def count(self, line: int, name: str, value: Any) -> int:
        text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
        if not _COUNT.fullmatch(text):
            self.fault(line, name, f"{printable(repr(value))} is no whole number of tokens")
            return 1
        if not 1 <= int(text) <= MAX_TOKENS:
            self.fault(line, name, f"{text} is no count of tokens; 1 to {MAX_TOKENS:,} can be simulated")
            return 1
        return int(text)

    def seconds(self, line: int, name: str, value: Any, each: int = PICOSECONDS) -> int:
        """ps of a time in units of `each` ps."""
        text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
        if not _SECONDS.fullmatch(text.strip()):
            self.fault(line, name, f"{printable(repr(value))} is no time from 0 up, e.g. 12.5")
            return self.last
        return round(Fraction(text.strip()) * each)


def read_trace(path: str) -> Traffic:
    """The requests of a trace file. Raises DescriptionError: unreadable, no known format, or any fault of a line."""
    trace = _Trace(shown_path(path))
    kind = ""
    for line, text in file_lines(path, trace.source):
        if line == 1:
            kind, reader = _recognised(trace, text)
            if kind != "jsonl":
                continue
        if text.strip():
            reader(line, text)
    if trace.faults:
        raise DescriptionError(trace.faults)
    if not trace.rows:
        raise DescriptionError.at(trace.source, "", "holds no requests")
    return _traffic(trace)


def file_lines(path: str, source: str) -> Iterator[tuple[int, str]]:
    """(number, text) of the lines of a file, within limits. Raises DescriptionError."""
    read = 0
    try:
        with open(path, "rb") as file:
            for number, raw in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
                read += len(raw)
                if len(raw) > MAX_LINE or read > MAX_TRACE_BYTES:
                    raise DescriptionError.at(source, "", "has a line or a size beyond all traces", number, 1)
                try:
                    yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as error:
                    raise DescriptionError.at(source, "", "is not UTF-8", number, 1) from error
    except (OSError, ValueError) as error:
        if isinstance(error, DescriptionError):
            raise
        reason = getattr(error, "strerror", None) or "is no file name"
        raise DescriptionError.at(source, "", f"cannot be read: {reason}") from error


_CSV = {
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "vidur": ("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
    "splitwise": ("arrival_timestamp", "prompt_size", "token_size"),
}


def _recognised(trace: _Trace, first: str) -> tuple[str, Callable[[int, str], None]]:
    if first.lstrip().startswith("{"):
        return "jsonl", lambda line, text: _json_line(trace, line, text)
    names = [name.strip() for name in _cells(first)]
    for kind, columns in _CSV.items():
        if columns[0] in names:
            missing = [name for name in columns if name not in names]
            if missing:
                raise DescriptionError.at(
                    trace.source, ", ".join(missing), f"is missing in the first line of a trace like {kind}'s", 1, 1
                )
            return kind, _csv_reader(trace, kind, [names.index(name) for name in columns])
    known = "; ".join(",".join(columns) for columns in _CSV.values())
    words = f"is no trace that is known: CSV with the columns {known}; or one JSON object a line"
    raise DescriptionError.at(trace.source, "", words, 1, 1)


def _cells(text: str) -> list[str]:
    """The cells of a line; none where it is no CSV (a carriage return in its midst, a cell beyond all traces)."""
    try:
        return next(csv.reader([text]), [])
    except csv.Error:
        return []


def _csv_reader(trace: _Trace, kind: str, places: list[int]) -> Callable[[int, str], None]:
    zero: list[int] = []
    return lambda line, text: _csv_line(trace, kind, places, zero, line, text)


def _csv_line(trace: _Trace, kind: str, places: list[int], zero: list[int], line: int, text: str) -> None:
    cells = _cells(text)
    if len(cells) <= max(places):
        trace.fault(line, "", f"has {len(cells)} cells, fewer than the first line names")
        return
    when, prompt, out = (cells[place].strip() for place in places)
    names = _CSV[kind]
    time = _wall_clock(trace, line, when) if kind == "azure" else trace.seconds(line, names[0], when)
    if not zero:
        zero.append(time)
    counts = (trace.count(line, names[1], prompt), trace.count(line, names[2], out))
    trace.add(line, time - zero[0], counts, ())


def _wall_clock(trace: _Trace, line: int, text: str) -> int:
    """ps since year 1, UTC, of `2023-11-16 18:17:03.9799600` (seven digits, which datetime does not read), with or
    without a zone (`+00:00`, as the traces of 2024 have it).
    """
    zone = _ZONE.search(text)
    stamp, _, fraction = (text[: zone.start()] if zone else text).partition(".")
    try:
        if not (fraction == "" or (fraction.isascii() and fraction.isdigit() and len(fraction) <= 12)):
            raise ValueError
        moment = datetime.strptime(f"{stamp}{zone[0] if zone else 'Z'}", "%Y-%m-%d %H:%M:%S%z").astimezone(UTC)
    except (ValueError, OverflowError):
        trace.fault(line, "TIMESTAMP", f"{printable(repr(text))} is no time like 2023-11-16 18:17:03.9799600")
        return trace.last
    seconds = moment.toordinal() * 86_400 + moment.hour * 3600 + moment.minute * 60 + moment.second
    return seconds * PICOSECONDS + int(fraction.ljust(12, "0") or "0")


def _json_line(trace: _Trace, line: int, text: str) -> None:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        trace.fault(line, "", "is no JSON object")
        return
    ours = "arrival_s" in row
    names = ("arrival_s", "prompt_tokens", "new_tokens") if ours else ("timestamp", "input_length", "output_length")
    missing = [name for name in names if name not in row]
    if missing:
        trace.fault(line, ", ".join(missing), "is missing")
        return
    time = trace.seconds(line, names[0], row[names[0]], PICOSECONDS if ours else PICOSECONDS // 1000)
    counts = (trace.count(line, names[1], row[names[1]]), trace.count(line, names[2], row[names[2]]))
    hashes = row.get("hash_ids", [])
    if not isinstance(hashes, list) or not all(type(one) in (int, str) for one in hashes):
        trace.fault(line, "hash_ids", "is no list of block hashes")
        hashes = []
    trace.add(line, time, counts, hashes)


def _traffic(trace: _Trace) -> Traffic:
    """The rows as arrays; hashes are numbered in the order of their first use and cut where one repeats in a prompt."""
    import numpy as np

    numbers: dict[Any, int] = {}
    offsets, ids = [0], []
    for _, _, _, hashes in trace.rows:
        seen = dict.fromkeys(hashes)
        kept = list(seen) if len(seen) == len(hashes) else _until_repeat(hashes)
        ids += [numbers.setdefault(one, len(numbers)) for one in kept]
        offsets.append(len(ids))
    arrival, prompt, out = (np.array([row[i] for row in trace.rows], np.int64) for i in range(3))
    return Traffic(
        arrival=arrival, prompt=prompt, out=out, hash_at=np.array(offsets, np.int64), hashes=np.array(ids, np.int64),
        hash_tokens=MOONCAKE_BLOCK if ids else 0, source=f"{len(trace.rows):,} requests of {trace.source}",
    )  # fmt: skip


def _until_repeat(hashes: Sequence[Any]) -> list[Any]:
    seen: set[Any] = set()
    for at, one in enumerate(hashes):
        if one in seen:
            return list(hashes[:at])
        seen.add(one)
    return list(hashes)
