"""What was observed, as intervals: a printed figure is rounded, and stands for every value that prints like it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

__all__ = ["Interval", "Observation", "Reading", "counted", "decimals", "ends", "exactly", "printed", "summed"]

MIB = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Interval:
    """All values from `low` to `high`, both included. Exact figures have equal ends."""

    low: Fraction
    high: Fraction

    @classmethod
    def exact(cls, value: int | Fraction) -> Interval:
        """A figure that is not rounded."""
        return cls(Fraction(value), Fraction(value))

    def __contains__(self, value: int | Fraction) -> bool:
        return self.low <= value <= self.high

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        """The widest difference: of a counter at two moments."""
        return Interval(self.low - other.high, self.high - other.low)

    def times(self, factor: int | Fraction) -> Interval:
        """Scaled by an exact factor of at least 0."""
        return Interval(self.low * factor, self.high * factor)

    @property
    def is_exact(self) -> bool:
        return self.low == self.high

    def whole(self) -> tuple[int, int] | None:
        """The least and the largest whole number in it (bytes, counts); None where no whole number lies in it."""
        low, high = -((-self.low.numerator) // self.low.denominator), self.high.numerator // self.high.denominator
        return (low, high) if low <= high else None


def counted(text: str, unit: int | Fraction = 1) -> Interval:
    """A number that a program wrote out in full (repr of a float, an integer), in `unit`s: exact as that float.

    Sums of whole numbers are exact below 2^53; from there on half a last place either way. Raises ValueError.
    """
    if not _NUMBER.fullmatch(text):
        raise ValueError(f"no plain number: {text[:40]!r}")
    value = Fraction(int(text)) if text.isdigit() else Fraction(float(text))
    slack = value / 2**53 if value >= 2**53 and not text.isdigit() else Fraction(0)
    return Interval((value - slack) * unit, (value + slack) * unit)


def printed(text: str, unit: int | Fraction = 1) -> Interval:
    """What a decimal text of at most 40 digits may stand for, in `unit`s: half a unit of its last place either way.

    `2.25` in MiB: 2.245 to 2.255 times 2^20. A text without a point is exact where it is a count: the caller says so by
    `Interval.exact(int(text))`. Never below 0. Raises ValueError for what is no plain decimal number.
    """
    if len(text) > 40 or not text.replace(".", "", 1).isascii() or not text.replace(".", "", 1).isdigit():
        raise ValueError(f"no plain decimal number: {text[:40]!r}")
    value = Fraction(text)
    half = Fraction(1, 2 * 10 ** len(text.partition(".")[2]))
    return Interval(max(value - half, Fraction(0)) * unit, (value + half) * unit)


def exactly(value: float | None, unit: int | Fraction = 1) -> Interval | None:
    """A figure that is not rounded, in `unit`s; None = not said."""
    return None if value is None else Interval.exact(Fraction(value) * unit)


def ends(value: Interval | None) -> list[int] | None:
    """[least, most] whole number; the nearest whole ones outside where none lies in the interval; None = not said."""
    return None if value is None else list(value.whole() or (int(value.low), int(value.high) + 1))


def decimals(value: Interval | None) -> list[float] | None:
    """[least, most] as floats, for documents; None = not said."""
    return None if value is None else [float(value.low), float(value.high)]


def summed(parts: Iterable[Interval | None]) -> Interval | None:
    """The sum; None where a part is unknown, or where there is none."""
    total: Interval | None = None
    for part in parts:
        if part is None:
            return None
        total = part if total is None else total + part
    return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One source's word on the transfers of one rank and side, or of all of them together where it does not tell apart.

    `None` = the source does not say. `bytes`, `descriptors` and `seconds` are sums over `transfers`. `bytes` are those
    really moved (never the payload of exact tokens), in integers of bytes once `whole()` is asked.
    """

    source: str
    """The file, as messages name it."""
    engine: str
    """The name that `admit --engine` has for it, or the tool's: vllm-nixl, sglang, trtllm, mooncake, nixl, nsight."""
    version: str | None = None
    side: str | None = None
    """prefill or decode: who recorded it."""
    rank: str | None = None
    kind: str | None = None
    """h2d, d2h, p2p, d2d where the source tells kinds."""
    src: str | None = None
    dst: str | None = None
    direction: str | None = None
    """read or write, where the source tells them apart."""
    transfers: Interval | None = None
    bytes: Interval | None = None
    descriptors: Interval | None = None
    seconds: Interval | None = None
    """Summed time of transfers; overlapping transfers count each."""
    model: str | None = None
    """The model's name, where the source says it."""
    rates: Interval | None = None
    """Bytes per second of the slowest and the fastest transfer, where the source prints rates; never a way to bytes."""
    requests_unknown: bool = False
    """The source counts other things than transfers of a request (Mooncake's tasks), or none."""
    failed: int | None = None
    lines: tuple[int, ...] = ()
    """The first lines (from 1) that it was read from."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """All that a file says. `blind` names in words the ways that this source cannot see (RDMA, kernels): a zero there
    proves nothing. `sizing` holds what an engine printed of its memory: name to interval (tokens, bytes, requests).
    """

    format: str
    engine: str
    observations: tuple[Observation, ...]
    blind: tuple[str, ...] = ()
    sizing: dict[str, Interval] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    """Why figures that it has are unknown: a counter that fell, a series that misses in a scrape."""
