"""Amounts that grow with the units of a handoff: fixed, a unit, and a unit up to a knot, where a window is full.

bytes, copies and time of a leg are sums over the parts of a cache: a state gives a fixed amount, a layer without a
window as much each unit, a layer with one no more from its window on. The planner is asked at few sizes, and what it
says there is the curve or there is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

Number = TypeVar("Number", int, Fraction, float)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve(Generic[Number]):
    """`fixed` + `each` n + the sum of value * min(n, knot) over `bends` (knot, value), n units from 1 on."""

    fixed: Number
    each: Number
    bends: tuple[tuple[int, Number], ...] = ()

    def at(self, units: int) -> Number:
        """The amount of one handoff."""
        return self.fixed + self.each * units + sum(value * min(units, knot) for knot, value in self.bends)

    def total(self, units: Any) -> Number:
        """The exact sum over handoffs of so many units each (an array)."""
        bent = sum(value * int(units.clip(max=knot).sum()) for knot, value in self.bends)
        return self.fixed * len(units) + self.each * int(units.sum()) + bent

    def over(self, units: Any) -> Any:
        """The amount of each handoff of an array of units."""
        out = self.fixed + self.each * units
        for knot, value in self.bends:
            out = out + value * units.clip(max=knot)
        return out


def floats(curve: Curve[Fraction]) -> Curve[float]:
    """The same in floats, for arrays."""
    bends = tuple((knot, float(value)) for knot, value in curve.bends)
    return Curve(fixed=float(curve.fixed), each=float(curve.each), bends=bends)


def whole(curve: Curve[Fraction] | None) -> Curve[int] | None:
    """The same in whole numbers; None where one is broken."""
    if curve is None or any(v.denominator > 1 for v in (curve.fixed, curve.each, *(v for _, v in curve.bends))):
        return None
    bends = tuple((knot, int(value)) for knot, value in curve.bends)
    return Curve(fixed=int(curve.fixed), each=int(curve.each), bends=bends)


@dataclass(frozen=True, slots=True)
class Knots:
    """Units from which on a part of a cache moves no more, and the most that are ever handed over."""

    at: tuple[int, ...] = ()
    longest: int = 3

    @property
    def asked(self) -> tuple[int, ...]:
        """The sizes that a curve is taken from and held against: few units, those about each knot, and the most."""
        near = {units for knot in self.at for units in (knot - 1, knot, knot + 1)}
        return tuple(sorted({1, 2, 3} | {units for units in near | {self.longest} if 3 < units <= self.longest}))


def through(amounts: Mapping[int, Fraction], knots: Knots) -> Curve[Fraction] | None:
    """The curve through amounts at the sizes asked, straight between knots; None where there is none."""
    sizes = sorted(amounts)
    ends = [1, *(knot for knot in knots.at if 1 < knot < sizes[-1]), sizes[-1]]
    slopes = [(amounts[b] - amounts[a]) / (b - a) for a, b in itertools.pairwise(ends)]
    bends = tuple(
        (knot, before - after)
        for knot, before, after in zip(ends[1:], slopes, slopes[1:], strict=False)
        if before != after
    )
    bare = Curve(fixed=Fraction(0), each=slopes[-1], bends=bends)
    found = Curve(fixed=amounts[1] - bare.at(1), each=slopes[-1], bends=bends)
    return found if all(found.at(units) == amount for units, amount in amounts.items()) else None
