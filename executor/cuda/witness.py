"""Which copies of the driver's trace belong to which leg of the waybill, and which belong to none.

A number is pushed around every call of the run; the table here says what that number was pushed for. What a copy was is
read from the record alone: its bytes, and its ends by CUDA ordinal. Where the ends are not those of the leg that the
number stands for, the copy is entered under the ends that it really had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from executor.observers.arrival import LegKey
from executor.observers.cupti import LOOK, CopyRecord, TraceReport

__all__ = ["DriverSight", "Tags", "sort_copies"]

_FIRST = 16
UNATTRIBUTED = "unattributed"


class Tags:
    """Numbers for legs, and the trace that they are pushed to (None: nobody looks).

    `outer`: a trace of the whole process that somebody else reads; it is told of looks alone.
    """

    def __init__(self, trace: Any = None, outer: Any = None) -> None:
        self.trace, self._outer = trace, outer
        self._numbers: dict[LegKey, int] = {}
        self._legs: dict[int, LegKey] = {}

    def leg(self, key: LegKey) -> contextlib.AbstractContextManager[None]:
        """What is called inside is for this leg."""
        if self.trace is None:
            return _NOTHING
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = _FIRST + len(self._numbers)
            self._legs[number] = key
        tagged: contextlib.AbstractContextManager[None] = self.trace.tag(number)
        return tagged

    def looking(self) -> contextlib.AbstractContextManager[None]:
        """What is called inside is a look of the witnesses."""
        told = self.trace or self._outer
        if told is None:
            return _NOTHING
        tagged: contextlib.AbstractContextManager[None] = told.tag(LOOK)
        return tagged

    def of(self, number: int | None) -> LegKey | None:
        """The leg that a number stands for."""
        return None if number is None else self._legs.get(number)


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


@dataclass(kw_only=True, slots=True)
class DriverSight:
    """What the driver saw: (bytes, copies) by leg, the witnesses' own looks, and every kind of copy that there was.

    `copies` are the records by (leg or None, kind, ends): what a report shows. `spans`: first start and last
    end of a leg's copies, in the driver's nanoseconds since the trace's first copy.
    """

    witness: str
    seen: dict[LegKey, tuple[int, int]] = field(default_factory=dict)
    looks: tuple[int, int] = (0, 0)
    memsets: tuple[int, int] = (0, 0)
    copies: dict[tuple[LegKey | None, str, int | None, int | None], list[int]] = field(default_factory=dict)
    spans: dict[LegKey, tuple[int, int]] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Plain values for a run's document."""
        rows = [_shown(key, figures, self.spans) for key, figures in self.copies.items()]
        return {
            "witness": self.witness,
            "copies": rows,
            "looks": {"copies": self.looks[1], "bytes": self.looks[0]},
            "memsets": {"count": self.memsets[0], "bytes": self.memsets[1]},
        }


def _shown(
    key: tuple[LegKey | None, str, int | None, int | None], figures: list[int], spans: Mapping[LegKey, tuple[int, int]]
) -> dict[str, Any]:
    leg, kind, src, dst = key
    row: dict[str, Any] = {"phase": UNATTRIBUTED, "tensor": UNATTRIBUTED} if leg is None else {}
    if leg is not None:
        first, last = spans[leg]
        row |= {"phase": leg[0], "tensor": leg[1], "first_ns": first, "last_ns": last}
    row |= {"kind": kind, "src_ordinal": src, "dst_ordinal": dst}
    return row | {"copies": figures[1], "bytes": figures[0], "busy_ns": figures[2], "peer_calls": figures[3]}


def sort_copies(report: TraceReport, tags: Tags, ordinals: Mapping[str, int | None]) -> DriverSight:
    """Every record of a trace by the leg that it was made for. `ordinals`: of each device; None for processors."""
    sight = DriverSight(witness=report.witness, memsets=report.memsets)
    began = min((record.start_ns for record in report.records), default=0)
    for record in report.records:
        if record.tag == LOOK:
            sight.looks = (sight.looks[0] + record.nbytes, sight.looks[1] + 1)
            continue
        claimed = tags.of(record.tag)
        key = _leg_of(record, claimed, ordinals)
        nbytes, copies = sight.seen.get(key, (0, 0))
        sight.seen[key] = (nbytes + record.nbytes, copies + 1)
        figures = sight.copies.setdefault((claimed, record.kind, record.src, record.dst), [0, 0, 0, 0])
        for column, more in enumerate((record.nbytes, 1, record.end_ns - record.start_ns, int(record.peer_call))):
            figures[column] += more
        if claimed is not None:
            start, end = record.start_ns - began, record.end_ns - began
            first, last = sight.spans.get(claimed, (start, end))
            sight.spans[claimed] = (min(first, start), max(last, end))
    return sight


def _leg_of(record: CopyRecord, claimed: LegKey | None, ordinals: Mapping[str, int | None]) -> LegKey:
    ends = (record.src, record.dst)
    if claimed is not None and ends == tuple(ordinals.get(name) for name in claimed[4:]):
        return claimed
    src, dst = (_named(ordinal, ordinals) for ordinal in ends)
    if claimed is None:
        return (UNATTRIBUTED, UNATTRIBUTED, src, dst, src, dst)
    return (claimed[0], claimed[1], src, dst, src, dst)


def _named(ordinal: int | None, ordinals: Mapping[str, int | None]) -> str:
    if ordinal is None:
        return "host"
    names: Iterator[str] = (name for name, its in ordinals.items() if its == ordinal)
    return next(names, f"cuda:{ordinal}")
