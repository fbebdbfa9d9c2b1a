"""Amounts that grow with the units of a handoff: fixed, a unit, a unit up to a knot where a window is full, a chunk.

bytes, copies and time of a leg are sums over the parts of a cache: a state gives a fixed amount, a layer without a
window as much each unit, a layer with one no more from its window on. What is staged through a small pinned pool goes
in chunks, a copy each. The planner is asked at few sizes, and what it
says there is the curve or there is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Generic, TypeVar

Number = TypeVar("Number", int, Fraction, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve(Generic[Number]):
    """`fixed` + `each` n + the sum of value * min(n, knot) over `bends` (knot, value), n units from 1 on.

    `steps` (knot, chunk, value) add value * ceil(min(n, knot) / chunk).
    """

    fixed: Number
    each: Number
    bends: tuple[tuple[int, Number], ...] = ()
    steps: tuple[tuple[int, int, Number], ...] = ()

    def at(self, units: int) -> Number:
        """The amount of one handoff."""
        bent = sum(value * min(units, knot) for knot, value in self.bends)
        cut = sum(value * -(-min(units, knot) // chunk) for knot, chunk, value in self.steps)
        return self.fixed + self.each * units + bent + cut

    def total(self, units: Any) -> Number:
        """The exact sum over handoffs of so many units each (an array)."""
        bent = sum(value * int(units.clip(max=knot).sum()) for knot, value in self.bends)
        cut = sum(value * int((-(-units.clip(max=knot) // chunk)).sum()) for knot, chunk, value in self.steps)
        return self.fixed * len(units) + self.each * int(units.sum()) + bent + cut

    def over(self, units: Any) -> Any:
        """The amount of each handoff of an array of units."""
        out = self.fixed + self.each * units
        for knot, value in self.bends:
            out = out + value * units.clip(max=knot)
        for knot, chunk, value in self.steps:
            out = out + value * -(-units.clip(max=knot) // chunk)
        return out

    @property
    def values(self) -> tuple[Number, ...]:
        """Its coefficients."""
        out = [self.fixed, self.each]
        out += [value for _, value in self.bends]
        out += [value for _, _, value in self.steps]
        return tuple(out)


Other = TypeVar("Other", int, Fraction, float)


def mapped(curve: Curve[Number], to: Callable[[Number], Other]) -> Curve[Other]:
    """The curve with other coefficients."""
    return Curve(
        fixed=to(curve.fixed), each=to(curve.each), bends=tuple((knot, to(v)) for knot, v in curve.bends),
        steps=tuple((knot, chunk, to(v)) for knot, chunk, v in curve.steps),
    )  # fmt: skip


def floats(curve: Curve[Fraction]) -> Curve[float]:
    """The same in floats, for arrays."""
    return mapped(curve, float)


def whole(curve: Curve[Fraction] | None) -> Curve[int] | None:
    """The same in whole numbers; None where one is broken."""
    if curve is None or any(value.denominator > 1 for value in curve.values):
        return None
    return mapped(curve, int)


@dataclass(frozen=True, slots=True)
class Knots:
    """Units from which on a part of a cache moves no more, and the most that are ever handed over."""

    at: tuple[int, ...] = ()
    longest: int = 3

    @property
    def asked(self) -> tuple[int, ...]:
        """The sizes that a curve is taken from and held against: few units, those about each knot, and the most."""
        near = {units for knot in self.at for units in (knot - 1, knot, knot + 1)}
        return tuple(sorted(units for units in {1, 2, 3, self.longest} | near if 1 <= units <= self.longest))


def through(amounts: Mapping[int, Fraction], knots: Knots) -> Curve[Fraction] | None:
    """The curve through amounts at the sizes asked, straight between knots; None where there is none."""
    sizes = sorted(amounts)
    ends = sorted({1, sizes[-1], *(knot for knot in knots.at if 1 < knot < sizes[-1])})
    slopes = [(amounts[b] - amounts[a]) / (b - a) for a, b in itertools.pairwise(ends)]
    bends = tuple(
        (knot, before - after)
        for knot, before, after in zip(ends[1:], slopes, slopes[1:], strict=False)
        if before != after
    )
    each = slopes[-1] if slopes else Fraction(0)
    bare = Curve(fixed=Fraction(0), each=each, bends=bends)
    found = replace(bare, fixed=amounts[1] - bare.at(1))
    return found if all(found.at(units) == amount for units, amount in amounts.items()) else None


def chunked(copies: Callable[[int], int], knots: Knots) -> Curve[int] | None:
    """The curve of copies made chunk by chunk, as many each, of no more units than a knot; None where they are not."""
    each, low, high = copies(1), 1, knots.longest
    if copies(high) <= each:
        return None
    while high - low > 1:  # the last size that is one chunk
        middle = (low + high) // 2
        low, high = (low, middle) if copies(middle) > each else (middle, high)
    asked = {units for n in (1, 2, 3) for units in (n * low, n * low + 1) if units <= knots.longest} | {*knots.asked}
    for knot in (*knots.at, knots.longest):
        found: Curve[int] = Curve(fixed=0, each=0, steps=((knot, low, each),))
        if all(found.at(units) == copies(units) for units in sorted(asked)):
            return found
    return None
