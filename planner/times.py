"""Seconds of legs, rows, handoffs and whole placements, each with what it rests on and its stated error.

A leg takes alpha * copies + bytes / beta (Hockney's model): the latencies of the links it passes, and the slowest of
their rates. Figures are the declared ones, or the observed ones where those are asked for and there. Exact fractions.
`seconds` None is unpriced, and `unpriced` says what is missing; `error` None is unscored: no run was compared with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fleet.machine import Figure
from planner.machine import PICOSECONDS
from planner.roofline import Rates, chosen
from planner.rows import Leg, Row, Staging, chunks_of, overlapped

Basis = Literal["declared", "observed", "declared and observed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Time:
    """A time in seconds and its standing.

    `basis`: which figures it rests on; None where it rests on none. `lower_bound`: a latency was missing, or flows
    share what they pass. `policy`: a figure in it was chosen and not looked up or measured. `error`: the largest
    relative error stated of its figures, None (unscored) unless every one of them states one.
    """

    seconds: Fraction | None
    basis: Basis | None = None
    lower_bound: bool = False
    policy: bool = False
    error: Fraction | None = None
    unpriced: tuple[str, ...] = ()

    @property
    def told_error(self) -> str:
        """`8 %`, or `unscored`."""
        return "unscored" if self.error is None else f"{float(self.error * 100):g} %"


NOTHING = Time(seconds=Fraction(0))
"""What takes no time: nothing is moved or computed."""


def time_from(seconds: Fraction, figures: Sequence[tuple[Figure, Rates]], *, lower_bound: bool = False) -> Time:
    """A time that rests on these figures."""
    origins = {origin for _, origin in figures}
    errors = [figure.error for figure, _ in figures]
    known = [error for error in errors if error is not None]
    policy = any(figure.provenance == "policy" for figure, _ in figures)
    scored = bool(figures) and len(known) == len(errors) and not policy and not lower_bound
    return Time(
        seconds=seconds, basis=_basis(origins), lower_bound=lower_bound, policy=policy,
        error=max(known) if scored else None,
    )  # fmt: skip


def _basis(origins: Iterable[str]) -> Basis | None:
    found = set(origins)
    if len(found) > 1 or "declared and observed" in found:
        return "declared and observed"
    return "observed" if "observed" in found else "declared" if found else None


def unpriced(*words: str) -> Time:
    """No time, and why."""
    return Time(seconds=None, unpriced=tuple(dict.fromkeys(words)))


def time_at(times: Sequence[Time], seconds: Fraction) -> Time:
    """Times as one that takes so many seconds in all. A part that rests on no figure says nothing of the whole."""
    missing = [words for time in times for words in time.unpriced]
    if any(time.seconds is None for time in times):
        return unpriced(*missing)
    resting = [time for time in times if time.basis is not None]
    errors = [time.error for time in resting]
    return Time(
        seconds=seconds, basis=_basis(time.basis for time in resting if time.basis),
        lower_bound=any(time.lower_bound for time in times), policy=any(time.policy for time in times),
        error=None if None in errors else max((e for e in errors if e is not None), default=None),
    )  # fmt: skip


def total(times: Iterable[Time]) -> Time:
    """One after another. Unpriced as soon as one is; no times at all take none."""
    held = tuple(times)
    if len(held) == 1:
        return held[0]
    return time_at(held, sum((t.seconds for t in held if t.seconds is not None), Fraction(0)))


def longest(times: Iterable[Time]) -> Time:
    """All at the same time, each as if alone."""
    held = tuple(times)
    if len(held) == 1:
        return held[0]
    return time_at(held, max((t.seconds for t in held if t.seconds is not None), default=Fraction(0)))


def scaled(time: Time, factor: Fraction) -> Time:
    """The same standing, `factor` times the seconds."""
    return time_at((time,), time.seconds * factor) if time.seconds is not None else time


def leg_time(leg: Leg, rates: Rates = "declared") -> Time:
    """alpha * copies + bytes / beta of one leg; `rates` observed takes what was observed, link by link."""
    if not leg.through:
        return unpriced(f"{leg.src} -> {leg.dst} passes no link, and has no rate of one")
    slow: tuple[Figure, Rates] | None = None
    figures: list[tuple[Figure, Rates]] = []
    alpha, bound = 0, False
    for link in leg.through:
        rate, origin = chosen(link.bandwidth, rates)
        if rate is None:
            return unpriced(f"the rate of {link.src} -> {link.dst} is unknown")
        if slow is None or rate.value < slow[0].value:
            slow = (rate, origin)
        latency, of_latency = chosen(link.latency, rates)
        if latency is None:
            bound = True
        else:
            figures.append((latency, of_latency))
            alpha += latency.value
    assert slow is not None
    seconds = Fraction(alpha * leg.copies, PICOSECONDS) + Fraction(leg.bytes, slow[0].value)
    return time_from(seconds, [slow, *figures], lower_bound=bound)


def row_time(row: Row, rates: Rates = "declared", staging: Staging = "sequential") -> Time:
    """The legs of a row one after another, or pipelined chunk by chunk; unpriced where its way is unknown."""
    if row.legs is None:
        return unpriced(f"the way of {row.tensor} from {row.src} to {row.dst} is unknown")
    if staging == "pipelined" and len(row.legs) > 1:
        return pipelined(row.legs, rates)
    return total(leg_time(leg, rates) for leg in row.legs)


def pipelined(legs: Sequence[Leg], rates: Rates = "declared") -> Time:
    """Legs that overlap: while one chunk goes on, the next is fetched, which takes a second bounce buffer.

    sum of the legs' times for one chunk + (chunks - 1) * the longest of them: exact for n equal chunks (a flow shop of
    equal jobs); of unequal ones, for n of the mean size. Never more than the sequential time, never less than one leg.
    """
    times = [leg_time(leg, rates) for leg in legs]
    return time_at(times, overlapped([t.seconds for t in times if t.seconds is not None], chunks_of(legs)))


def handoff_time(rows: Iterable[Row], rates: Rates = "declared", staging: Staging = "sequential") -> Time:
    """The rows of a handoff. Rows between the same two ends follow each other; rows between others run beside them.

    Beside each other no link carries more than its rate: the longest of the pairs, and of bytes / rate over each link
    that several pairs pass, is then a lower bound.
    """
    pairs: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        pairs.setdefault((row.src, row.dst), []).append(row)
    alone = [total(row_time(row, rates, staging) for row in held) for held in pairs.values()]
    if not _beside(pairs):
        return total(alone)
    found = longest(alone)
    if found.seconds is None:
        return found
    least = max([found.seconds, *_shared(pairs.values(), rates)])
    return Time(
        seconds=least, basis=found.basis, lower_bound=True, policy=found.policy, unpriced=(),
    )  # fmt: skip


def _beside(pairs: Iterable[tuple[str, str]]) -> bool:
    """Whether rows run beside each other: two of them begin, or end, at different ranks and none begins where one ends.

    In host mode the rows are a chain (up, across, down), which is walked link by link.
    """
    held = list(pairs)
    return len(held) > 1 and not {src for src, _ in held} & {dst for _, dst in held}


def _shared(groups: Iterable[Sequence[Row]], rates: Rates) -> list[Fraction]:
    """bytes / rate of each link over all groups."""
    held: dict[tuple[str, str, str, str], tuple[int, int]] = {}
    for rows in groups:
        for leg in (leg for row in rows for leg in row.legs or ()):
            for link in leg.through:
                rate, _ = chosen(link.bandwidth, rates)
                if rate is not None:
                    key = (link.src, link.dst, link.kind, link.where)
                    held[key] = (held.get(key, (0, 0))[0] + leg.bytes, rate.value)
    return [Fraction(nbytes, rate) for nbytes, rate in held.values()]
