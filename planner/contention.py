"""What copies share on their way, and how long a shared segment takes when they run at the same time.

Rows are priced one by one. Flows over one segment (a root port, the uplink of a switch, a socket's link) at the same
time divide its rate: queued or shared evenly, the last byte leaves no sooner than bytes / rate after the first. That
lower bound is a figure of its own beside the times of rows and never replaces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fleet.machine import Link
from planner.machine import link_time
from planner.rows import Leg, Row

PHASES = ("stage", "prefill", "handoff", "decode")


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """Copies between two memories over one chain of links. `name` tells flows of several requests apart."""

    src: str
    dst: str
    kind: str
    bytes: int
    copies: int
    links: tuple[Link, ...]
    name: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedSegment:
    """A link that several flows pass, or both directions of one whose duplex is shared.

    `bandwidth` in bytes per second, None = unknown. `alone` is the longest that one of the flows takes on it by itself,
    `together` the least that all of them take at the same time; both None where the rate is unknown.
    `copy_engines` None = unknown, and then no bound on how many copies it drives at once is taken.
    """

    src: str
    dst: str
    kind: str
    both_ways: bool
    bandwidth: int | None
    copy_engines: int | None
    flows: tuple[Flow, ...]
    alone: Fraction | None
    together: Fraction | None

    @property
    def bytes(self) -> int:
        """Of all flows."""
        return sum(flow.bytes for flow in self.flows)


def flows_of(rows: Iterable[Row], name: str = "") -> tuple[Flow, ...]:
    """The flows of rows: one for each pair of memories and chain of links, in the order of the rows."""
    sums: dict[tuple[str, str, str, tuple[Link, ...]], list[int]] = {}
    for row in rows:
        for leg in row.legs or ():
            if leg.through:
                held = sums.setdefault(_key(leg), [0, 0])
                held[0] += leg.bytes
                held[1] += leg.copies
    return tuple(
        Flow(src=src, dst=dst, kind=kind, bytes=held[0], copies=held[1], links=links, name=name)
        for (src, dst, kind, links), held in sums.items()
    )


def _key(leg: Leg) -> tuple[str, str, str, tuple[Link, ...]]:
    return leg.src, leg.dst, leg.kind, leg.through


def phase_contention(rows: Sequence[Row]) -> dict[str, tuple[SharedSegment, ...]]:
    """The shared segments of each phase of a plan that has any: phases follow each other, rows within one need not."""
    found = {phase: shared_segments(flows_of(row for row in rows if row.phase == phase)) for phase in PHASES}
    return {phase: segments for phase, segments in found.items() if segments}


def handoff_contention(plans: Iterable[tuple[str, Sequence[Row]]]) -> tuple[SharedSegment, ...]:
    """The segments that the handoffs of several plans (name, rows) share when they run at the same time."""
    return shared_segments(
        flow for name, rows in plans for flow in flows_of((row for row in rows if row.phase == "handoff"), name)
    )


def shared_segments(flows: Iterable[Flow]) -> tuple[SharedSegment, ...]:
    """Segments that two flows or more pass, in natural order of their ends."""
    passing: dict[tuple[str, str, str, str], list[tuple[Flow, Link]]] = {}
    for flow in flows:
        for link in flow.links:
            passing.setdefault(resource(link), []).append((flow, link))
    return tuple(_segment(held) for _, held in sorted(passing.items()) if len(held) > 1)


def resource(link: Link) -> tuple[str, str, str, str]:
    """What two copies must have in common to stand in each other's way: the link, whatever the way on it if shared."""
    src, dst = sorted((link.src, link.dst)) if link.duplex == "shared" else (link.src, link.dst)
    # Two links of one kind between the same ends are two rows of the description.
    return src, dst, link.kind, "" if link.duplex == "shared" else link.where


def _segment(held: Sequence[tuple[Flow, Link]]) -> SharedSegment:
    links = [link for _, link in held]
    rates = [link.bandwidth.value for link in links]
    # Each direction states a rate of its own; the larger one leaves the bound a lower one.
    rate = None if None in rates else max(rate for rate in rates if rate is not None)
    engines = [link.copy_engines for link in links]
    driven = None if None in engines else max(count for count in engines if count is not None)
    times = [link_time(link, flow.bytes, flow.copies) for flow, link in held]
    known = [time for time in times if time is not None]
    alone = max(known) if rate is not None else None
    together = None
    if rate is not None and alone is not None:
        together = max(alone, Fraction(sum(flow.bytes for flow, _ in held), rate))
        if driven is not None:
            together = max(together, sum(known, Fraction(0)) / driven)
    return SharedSegment(
        src=links[0].src, dst=links[0].dst, kind=links[0].kind, both_ways=len({link.src for link in links}) > 1,
        bandwidth=rate, copy_engines=driven, flows=tuple(flow for flow, _ in held), alone=alone, together=together,
    )  # fmt: skip


def contention_document(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The plan's `contention`: one entry a phase and shared segment; seconds are lower bounds, null = unpriced."""
    found = phase_contention(rows).items()
    return [segment_document(phase, segment) for phase, segments in found for segment in segments]


def segment_document(phase: str, segment: SharedSegment) -> dict[str, object]:
    """One shared segment; flows of several requests have a `name`."""
    flows = [
        {"src": f.src, "dst": f.dst, "kind": f.kind, "bytes": f.bytes, "copies": f.copies}
        | ({"name": f.name} if f.name else {})
        for f in segment.flows
    ]
    return {
        "phase": phase,
        "src": segment.src,
        "dst": segment.dst,
        "kind": segment.kind,
        "both_ways": segment.both_ways,
        "bandwidth_bytes_per_s": segment.bandwidth,
        "copy_engines": segment.copy_engines,
        "flows": flows,
        "bytes": segment.bytes,
        "alone_s": None if segment.alone is None else float(segment.alone),
        "together_s": None if segment.together is None else float(segment.together),
    }
