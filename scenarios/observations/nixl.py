"""NIXL's own telemetry: Prometheus text of an agent, its trace lines, and the events that its reader prints.

A read counts as rx at the reader, a write as tx at the writer: the two are kept apart. A transfer is traced when it is
posted and when it is completed: only completed ones count. Times are whole microseconds: of a transfer, the rest of the
last one is not told.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from fleet.errors import DescriptionError, Fault
from scenarios.observations.lines import Line, without_repeats
from scenarios.observations.observation import Interval, Observation, Reading, exactly
from scenarios.observations.samples import (
    Labels,
    Scrapes,
    has_mark,
    name_of,
    rank_of,
    scrapes_of,
    without_prefix,
)

NAME = "NIXL telemetry"
ENGINE = "nixl"
_WAYS = {"rx": "read", "tx": "write"}
_TRACE = re.compile(
    r"From backend (\S{1,64}?)\s*(Posted and Completed|Completed|Posted)?\s*(?:[^ ]{0,64} )?"
    r"Xfer with ([0-9]{1,15}) descriptors of total size ([0-9]{1,20})B in ([0-9]{1,15})us"
)
_EVENT = re.compile(r"Event(?: Name)?: (agent_[a-z_]{1,60})\b")
_VALUE = re.compile(r"(?:^|\s)Value: ([0-9]{1,20})(?: \([0-9.]{1,20} [KMGT]?B\))?\s*$")
_SAMPLES = re.compile(
    r"agent_(?:(?:tx|rx)_(?:bytes|requests_num)|xfer_time|xfer_post_time|errors)(?:_total)?|agent_xfer_time_us_(?:sum|count)"
)
_CUT = re.compile(r"Xfer with [0-9]{1,15} descriptors of total size")
_DROPPED = "agent_telemetry_events_dropped"
_SAMPLED = ("agent_",)
MARKS = ("descriptors of total size", "agent_", "Value: ")
ENDS = ("_total", "")
_US = Fraction(1, 10**6)


def knows(text: str) -> bool:
    """Whether the line is a trace, an event or a sample of an agent."""
    return bool(_CUT.search(text) or _EVENT.search(text) or _is_sample(text))


def _is_sample(text: str) -> bool:
    """Whether it is a sample of an agent, behind the prefix of a pod or of grep, too."""
    name = name_of(without_prefix(Line(0, text), _SAMPLED)[0].text) if has_mark(text, _SAMPLED) else None
    return name is not None and _SAMPLES.fullmatch(name) is not None


def is_piece(text: str) -> bool:
    """The value below an event's name."""
    return _VALUE.search(text) is not None


def read(lines: Sequence[Line], source: str, version: str | None) -> Reading:
    """One observation a direction of an agent; of traces one in all. Two kinds in one file would count twice."""
    warnings: list[str] = []
    traces = _traces(lines, source, warnings)
    events = [line for line in lines if _EVENT.search(line.text) or is_piece(line.text)]
    samples = [line for line in lines if _is_sample(line.text)]
    named = {"trace lines": traces, "events": [e for e in events if _EVENT.search(e.text)], "samples": samples}
    kinds = [name for name, found in named.items() if found]
    if len(kinds) > 1:
        message = f"{' and '.join(kinds)} of NIXL in one file say the same bytes twice: keep one kind"
        raise DescriptionError.at(source, "", message, lines[0].number, 1)
    unknown: list[str] = []
    if traces:
        seen = [_traced(traces, source, version, warnings)]
    elif samples:
        scrapes = scrapes_of(samples, source, _SAMPLED, ("category",))
        seen = _sampled(scrapes, source, version, warnings)
        unknown = scrapes.unknown
    else:
        seen = _evented(events, source, version, unknown)
        warnings += unknown
    blind = ("which transfers carry a cache: an agent counts all of its own",)
    return Reading(
        format=NAME, engine=ENGINE, observations=tuple(seen), blind=blind, warnings=tuple(warnings),
        unknown=tuple(unknown),
    )  # fmt: skip


def _traces(lines: Sequence[Line], source: str, warnings: list[str]) -> list[tuple[int, re.Match[str]]]:
    """Every whole trace line, once. DescriptionError for those that are cut."""
    found = without_repeats(((line.number, line.text) for line in lines if _CUT.search(line.text)), warnings)
    whole = [(number, match) for number, text in found if (match := _TRACE.search(text))]
    cut = [number for number, text in found if not _TRACE.search(text)]
    if cut:
        message = "the line is cut: its bytes or its time are unknown; take the line out, or give all of it"
        raise DescriptionError(Fault(source=source, field="", message=message, line=at, column=1) for at in cut)
    return whole


def _traced(
    traces: list[tuple[int, re.Match[str]]], source: str, version: str | None, warnings: list[str]
) -> Observation:
    done = [(number, found) for number, found in traces if found[2] != "Posted"]
    posted = sum(found[2] == "Posted" for _, found in traces)
    completed = sum(found[2] == "Completed" for _, found in done)
    if posted > completed:
        warnings.append(f"{posted - completed} transfers are posted and never completed: not counted")
    if any(found[2] is None for _, found in done):
        warnings.append("trace lines without Posted or Completed (an older version): each is counted as a transfer")
    pieces, size, time = (sum(int(found[place]) for _, found in done) for place in (3, 4, 5))
    return Observation(
        source=source, engine=ENGINE, version=version, transfers=Interval.exact(len(done)), bytes=Interval.exact(size),
        descriptors=Interval.exact(pieces), seconds=Interval(time * _US, (time + len(done)) * _US),
        lines=tuple(number for number, _ in done[:20]),
    )  # fmt: skip


def _sampled(scrapes: Scrapes, source: str, version: str | None, warnings: list[str]) -> list[Observation]:
    """Each agent: reads and writes apart. Its time is of both, so it stands where only one of them moved anything."""
    names = [f"agent_{way}_bytes{end}" for way in _WAYS for end in ENDS]
    found: list[Observation] = []
    for number, labels in enumerate(scrapes.label_sets(names), 1):
        there = [way for way in _WAYS if any((f"agent_{way}_bytes{end}", labels) in scrapes.series for end in ENDS)]
        sizes = {way: _rise(scrapes, f"agent_{way}_bytes", labels) for way in there}
        busy = [way for way, size in sizes.items() if size is None or size.high > 0] or there[:1]
        for way in busy:
            time = _time(scrapes, labels) if len(busy) == 1 else None
            found.append(
                Observation(
                    source=source, engine=ENGINE, version=version, direction=_WAYS[way],
                    rank=rank_of(labels) or f"agent {number}", bytes=sizes[way],
                    transfers=_rise(scrapes, f"agent_{way}_requests_num", labels),
                    seconds=None if time is None else time.times(_US),
                    lines=scrapes.first_line(names, labels),
                )
            )  # fmt: skip
    if not any(name.startswith(("agent_xfer", "agent_tx_requests", "agent_rx_requests")) for name, _ in scrapes.series):
        message = "agent_*_bytes without requests or times of transfers: another product's agent, or a cut scrape"
        raise DescriptionError.at(source, "", message)
    warnings += scrapes.warnings
    return found


def _time(scrapes: Scrapes, labels: Labels) -> Interval | None:
    """Microseconds of all transfers: a counter, or the sum of a histogram."""
    summed_up = ("agent_xfer_time_us_sum", labels)
    return scrapes.rise(*summed_up) if summed_up in scrapes.series else _rise(scrapes, "agent_xfer_time", labels)


def _rise(scrapes: Scrapes, name: str, labels: Labels) -> Interval | None:
    total = f"{name}_total"
    return scrapes.rise(total if (total, labels) in scrapes.series else name, labels)


def _event_sums(lines: Sequence[Line], source: str) -> tuple[dict[str, int], dict[str, int]]:
    """(sum, first line) of each event by its name. DescriptionError for events without their values."""
    sums: dict[str, int] = {}
    first: dict[str, int] = {}
    faults: list[Fault] = []
    name, at = None, 0
    for line in [*lines, Line(0, "")]:
        event, value = _EVENT.search(line.text), _VALUE.search(line.text)
        if event is None and value is not None and name is not None:
            sums[name] = sums.get(name, 0) + int(value[1])
            first.setdefault(name, at)
            name = None
        if (event is not None or not line.text) and name is not None:
            faults.append(
                Fault(source=source, field="", message=f"{name}: an event without its value", line=at, column=1)
            )
        if event is not None:
            name, at = event[1], line.number
            inline = re.search(r"Value: ([0-9]{1,20})", line.text)
            if inline is not None:
                sums[name] = sums.get(name, 0) + int(inline[1])
                first.setdefault(name, at)
                name = None
    if faults:
        raise DescriptionError(faults)
    return sums, first


def _evented(lines: Sequence[Line], source: str, version: str | None, unknown: list[str]) -> list[Observation]:
    """Events of both directions; what was dropped leaves sums unknown."""
    sums, first = _event_sums(lines, source)
    ways = [way for way in _WAYS if f"agent_{way}_bytes" in sums]
    if lost := sums.get(_DROPPED, 0):
        unknown.append(
            f"NIXL dropped {lost:,} events (line {first[_DROPPED]}): what they told is unknown; read its buffer more "
            "often, or enlarge it"
        )
        return [
            Observation(source=source, engine=ENGINE, version=version, direction=_WAYS[way], lines=(first[_DROPPED],))
            for way in ways
        ]
    return [
        Observation(
            source=source, engine=ENGINE, version=version, direction=_WAYS[way],
            bytes=Interval.exact(sums[f"agent_{way}_bytes"]),
            transfers=exactly(sums.get(f"agent_{way}_requests_num")),
            seconds=exactly(sums.get("agent_xfer_time"), _US) if len(ways) == 1 else None,
            lines=(first[f"agent_{way}_bytes"],),
        )
        for way in ways
    ]  # fmt: skip
