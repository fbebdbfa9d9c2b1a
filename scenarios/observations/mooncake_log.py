"""Mooncake's lines of `MC_TE_METRIC=1`: bytes of all requests together, an interval of N seconds a line.

Its MB/s is 2^20 B, the bytes of the interval over N: so X x N x 2^20 is what was moved, X rounded to 2 places. `count`
is tasks of the engine, never requests of a model. An interval without transfers prints no line, or no throughput.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fleet.errors import DescriptionError, Fault
from scenarios.observations.lines import Line, without_repeats
from scenarios.observations.observation import MIB, Interval, Observation, Reading, printed, summed

NAME = "Mooncake metrics lines"
ENGINE = "mooncake"
MARKS = ("Transfer Engine Stats (over last",)
_LINE = re.compile(
    r"Transfer Engine Stats \(over last ([0-9]{1,9})s\):(?:\s*Throughput: ([0-9.]{1,40}) MB/s)?"
    r"(?:\s*\|?\s*Latency Distribution \(count=([0-9]{1,15})\))?"
)


def knows(text: str) -> bool:
    """Whether it is such a line, whole or cut."""
    return MARKS[0] in text


def read(lines: Sequence[Line], source: str, version: str | None) -> Reading:
    """The sum of all lines."""
    sizes: list[Interval] = []
    tasks = 0
    faults: list[Fault] = []
    warnings: list[str] = []
    for number, text in without_repeats(lines, warnings):
        found = _LINE.search(text)
        try:
            if found is None or (found[2] is None and found[3] is None):
                raise ValueError("neither Throughput in MB/s nor a count of tasks: the line is cut, take it out")
            seconds = int(found[1])
            if seconds == 0:
                raise ValueError("an interval of 0 s: its bytes are unknown, take the line out")
            sizes.append(Interval.exact(0) if found[2] is None else printed(found[2], MIB * seconds))
            tasks += int(found[3] or 0)
        except ValueError as error:
            faults.append(Fault(source=source, field="", message=str(error), line=number, column=1))
    if faults:
        raise DescriptionError(faults)
    one = Observation(
        source=source, engine=ENGINE, version=version, transfers=Interval.exact(tasks), bytes=summed(sizes),
        requests_unknown=True, lines=tuple(line.number for line in lines[:20]),
    )  # fmt: skip
    blind = ("requests: its tasks are pieces of them", "descriptors", "times: its latencies are a distribution")
    return Reading(format=NAME, engine=ENGINE, observations=(one,), blind=blind, warnings=tuple(warnings))
