"""Handoffs of several requests at once: first come, first served on every link that they have in common.

A copy holds the links of its leg from its first byte to its last; the next one over any of them waits: a link does not
become slower for everybody, it is taken. `planner.contention` gives the least that any sharing could take; this is what
one at a time takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fleet.machine import Link
from planner.contention import resource
from planner.roofline import Rates
from planner.rows import Row
from planner.times import Time, leg_time, time_at


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrival:
    """A handoff that is ready to go at `at` seconds; `rows` are those of its plan's handoff."""

    name: str
    rows: tuple[Row, ...]
    at: Fraction = Fraction(0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Queued:
    """When a handoff begins, ends, and how long it stood still for others; `behind` names them, first come first.

    `time` is from its arrival to its end; unpriced, with all three None, where one of its legs is.
    """

    name: str
    at: Fraction
    start: Fraction | None
    end: Fraction | None
    waited: Fraction | None
    behind: tuple[str, ...]
    time: Time


def queued(arrivals: Iterable[Arrival], rates: Rates = "declared") -> tuple[Queued, ...]:
    """The handoffs in the order in which they come (ties: as given), each leg after leg, row after row.

    What is unpriced holds no link, and is told so. Legs between two devices of one memory pass no link and never wait.
    """
    free: dict[tuple[str, str, str, str], tuple[Fraction, str]] = {}
    return tuple(_served(arrival, free, rates) for arrival in sorted(arrivals, key=lambda one: one.at))


def _served(arrival: Arrival, free: dict[tuple[str, str, str, str], tuple[Fraction, str]], rates: Rates) -> Queued:
    legs = [leg for row in arrival.rows for leg in row.legs or ()]
    times = [leg_time(leg, rates) for leg in legs]
    missing = tuple(dict.fromkeys(words for time in times for words in time.unpriced))
    missing += tuple(
        f"the way of {row.tensor} from {row.src} to {row.dst} is unknown" for row in arrival.rows if row.legs is None
    )
    if missing:
        return Queued(
            name=arrival.name, at=arrival.at, start=None, end=None, waited=None, behind=(),
            time=Time(seconds=None, unpriced=missing),
        )  # fmt: skip
    now, start, waited, behind = arrival.at, None, Fraction(0), []
    for leg, time in zip(legs, times, strict=True):
        begin = now
        for until, name in _holders(leg.through, free):
            if until > now and name != arrival.name:
                behind.append(name)
            begin = max(begin, until)
        waited += begin - now
        start = begin if start is None else start
        assert time.seconds is not None
        now = begin + time.seconds
        free |= {resource(link): (now, arrival.name) for link in leg.through}
    return Queued(
        name=arrival.name, at=arrival.at, start=arrival.at if start is None else start, end=now, waited=waited,
        behind=tuple(dict.fromkeys(behind)), time=time_at(times, now - arrival.at),
    )  # fmt: skip


def _holders(
    links: Sequence[Link], free: dict[tuple[str, str, str, str], tuple[Fraction, str]]
) -> list[tuple[Fraction, str]]:
    return [free[key] for key in dict.fromkeys(resource(link) for link in links) if key in free]
