"""The rows of a waybill and the physical legs they are carried on. Values only; integers of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from fleet.machine import Link
from planner.caches import CachePart

Staging = Literal["sequential", "pipelined"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Leg:
    """One physical traversal. `link` is the link's kind, None inside one device. `seconds` None = unpriced.

    `lower_bound` is True when the link declares a bandwidth but no latency. `segments` are the links that it passes
    where switches or NICs lie between its ends: what it shares with other copies. `through` are all the links that it
    passes; `assumed` is True when one of them is policy and in no description.
    """

    src: str
    dst: str
    kind: str
    link: str | None
    bytes: int
    copies: int
    seconds: Fraction | None = None
    lower_bound: bool = False
    through: tuple[Link, ...] = ()

    @property
    def segments(self) -> tuple[tuple[str, str], ...]:
        """(src, dst) of the links passed; empty for a single link."""
        return tuple((link.src, link.dst) for link in self.through) if len(self.through) > 1 else ()

    @property
    def assumed(self) -> bool:
        """Whether a link on the way was assumed."""
        return any(link.assumed for link in self.through)


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the waybill, end to end; `bytes` is one traversal.

    `legs` is None when nobody knows which physical way the copy takes (peer access unknown).
    `per_pass` is (bytes, copies) of one forward pass where every pass moves the same. `part` is what a handoff carries
    of the cache, where that is not a part of it whole. `staging`: how its legs follow each other; bytes are the same.
    """

    phase: str
    tensor: str
    src: str
    dst: str
    kind: str
    payload_bytes: int
    bytes: int
    copies: int
    legs: tuple[Leg, ...] | None
    per_pass: tuple[int, int] | None = None
    part: CachePart | None = None
    staging: Staging = "sequential"

    @property
    def seconds(self) -> Fraction | None:
        """alpha * copies + bytes / beta, summed over the legs or overlapped; None when any leg is unpriced."""
        if self.legs is None:
            return None
        times = []
        for leg in self.legs:
            if leg.seconds is None:
                return None
            times.append(leg.seconds)
        if self.is_pipelined:
            return overlapped(times, chunks_of(self.legs))
        return sum(times, Fraction(0))

    @property
    def is_pipelined(self) -> bool:
        """Whether its time is that of legs that overlap: asked for, and there are several."""
        return self.staging == "pipelined" and self.legs is not None and len(self.legs) > 1


def chunks_of(legs: Sequence[Leg]) -> int:
    """Chunks that staged legs pass one after another: the most copies of a leg."""
    return max((leg.copies for leg in legs), default=1) or 1


def overlapped(times: Sequence[Fraction], chunks: int) -> Fraction:
    """Seconds of legs that take `times` in all, each chunk going on while the next is fetched.

    sum of the legs' times for one chunk + (chunks - 1) * the longest of them (a flow shop of equal jobs).
    """
    return (sum(times, Fraction(0)) + (chunks - 1) * max(times, default=Fraction(0))) / chunks


def staged_as(rows: Iterable[Row], staging: Staging) -> tuple[Row, ...]:
    """The rows, those of the handoff staged this way."""
    if staging == "sequential":
        return tuple(rows)
    return tuple(replace(row, staging=staging) if row.phase == "handoff" else row for row in rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class Edge:
    """The sum of all legs from src to dst of one kind; None where the way of a row is unknown."""

    src: str
    dst: str
    kind: str
    bytes: int | None
    copies: int | None


def sum_edges(rows: Iterable[Row]) -> tuple[Edge, ...]:
    """Edges of the rows, sorted by src, dst and kind. Rows of unknown way are left out."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        for leg in row.legs or ():
            held = sums.setdefault((leg.src, leg.dst, leg.kind), [0, 0])
            held[0] += leg.bytes
            held[1] += leg.copies
    return tuple(
        Edge(src=src, dst=dst, kind=kind, bytes=held[0], copies=held[1])
        for (src, dst, kind), held in sorted(sums.items())
    )
