"""The rows of a waybill and the physical legs they are carried on. Values only; integers of bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from fleet.machine import Link
from planner.caches import CachePart


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
    of the cache, where that is not a part of it whole.
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

    @property
    def seconds(self) -> Fraction | None:
        """alpha * copies + bytes / beta, summed over the legs; None when any leg is unpriced."""
        if self.legs is None:
            return None
        total = Fraction(0)
        for leg in self.legs:
            if leg.seconds is None:
                return None
            total += leg.seconds
        return total


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
