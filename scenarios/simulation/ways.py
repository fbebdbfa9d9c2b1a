"""How caches get from any prefill to any decode worker: the planner's rows, as legs over numbered physical links.

A row's bytes, copies and time grow evenly with the positions (or blocks) that are handed over; three sizes are asked of
the planner, and a handoff that grows otherwise is not simulated. Pairs whose ends have equal links are asked once: a
way passes its own two ends and nobody else's, so it is the same way with other ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fleet.errors import InconclusiveError
from fleet.machine import Fleet, Link
from planner.contention import resource
from planner.predict import Prediction
from planner.roofline import Rates, chosen
from planner.rows import Leg
from planner.times import leg_time

PS = 10**12
Resource = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class WayLeg:
    """One leg of a way. `fixed` ps and `each` ps a unit of transfer; bytes and copies a unit; the links it passes."""

    src: str
    dst: str
    kind: str
    fixed: Fraction
    each: Fraction
    bytes_each: int
    copies_fixed: int
    copies_each: int
    links: tuple[Link, ...]


@dataclass(slots=True)
class Ways:
    """All ways of a fleet's pools. `pair[p][d]` is the number of a way; a way is a tuple of legs."""

    ways: list[tuple[WayLeg, ...]] = field(default_factory=list)
    resources: dict[Resource, int] = field(default_factory=dict)
    pair: dict[tuple[str, str], int] = field(default_factory=dict)

    def number(self, link: Link) -> int:
        """The number of what copies over this link share."""
        return self.resources.setdefault(resource(link), len(self.resources))


Ask = Callable[[str, str, int], Prediction]
"""(prefill, decode, units of transfer) -> the prediction of handing so much over."""


def all_ways(fleet: Fleet, prefill: Sequence[str], decode: Sequence[str], ask: Ask, rates: Rates) -> Ways:
    """The way of each pair. Raises InconclusiveError in words: unpriced, unknown, or not even."""
    out_of, into = _ends(fleet)
    devices, hosts = (frozenset(one.id for one in many) for many in (fleet.devices, fleet.hosts))
    # A direct way is looked for first, and passes no host: only where there is none do links to hosts count.
    sources = {p: _signatures(out_of.get(p, ()), devices, hosts, out=True) for p in prefill}
    targets = {d: _signatures(into.get(d, ()), devices, hosts, out=False) for d in decode}
    found, moving = Ways(), _Moving(out_of, into)
    known: dict[Any, tuple[str, str, tuple[WayLeg, ...]]] = {}
    for p in prefill:
        straight = [link for link in out_of.get(p, ()) if link.dst in devices]
        for d in decode:
            between = tuple(_figures(link) for link in straight if link.dst == d) if straight else ()
            direct, full = ((sources[p][i], targets[d][i], between) for i in (0, 1))
            if direct not in known and full not in known:
                legs = _legs(p, d, ask, rates)
                over_hosts = any(leg.src in hosts or leg.dst in hosts for leg in legs)
                known[full if over_hosts else direct] = (p, d, legs)
            old_p, old_d, legs = known[direct] if direct in known else known[full]
            moved = legs if (p, d) == (old_p, old_d) else moving.legs(legs, (old_p, p), (old_d, d))
            for leg in moved:
                for link in leg.links:
                    found.number(link)
            found.pair[p, d] = len(found.ways)
            found.ways.append(moved)
    return found


def _ends(fleet: Fleet) -> tuple[dict[str, list[Link]], dict[str, list[Link]]]:
    out_of: dict[str, list[Link]] = {}
    into: dict[str, list[Link]] = {}
    for link in fleet.links:
        out_of.setdefault(link.src, []).append(link)
        into.setdefault(link.dst, []).append(link)
    return out_of, into


def _figures(link: Link) -> str:
    told = (link.kind, link.bandwidth, link.latency, link.peer_access, link.duplex, link.copy_engines)
    return " ".join(str(one) for one in told)


def _signatures(links: Sequence[Link], devices: frozenset[str], hosts: frozenset[str], *, out: bool) -> tuple[str, str]:
    """What the links at one end are, whatever the end is called: without those to hosts, and with them.

    Devices are passed through by nobody: links to them count only where they are the other end.
    """
    far = [(link.dst if out else link.src, _figures(link)) for link in links]
    with_hosts = [f"{name} {figures}" for name, figures in far if name not in devices]
    return str([f"{n} {f}" for n, f in far if n not in devices and n not in hosts]), str(with_hosts)


@dataclass(slots=True)
class _Moving:
    """Legs of one pair between other ends. A link of the way that touches an end is looked up once an end."""

    out_of: dict[str, list[Link]]
    into: dict[str, list[Link]]
    known: dict[tuple[int, str, str], Link] = field(default_factory=dict)

    def legs(self, legs: tuple[WayLeg, ...], p: tuple[str, str], d: tuple[str, str]) -> tuple[WayLeg, ...]:
        """The same legs, whose ends `p` and `d` (old, new) are others."""
        names = dict((p, d))
        return tuple(
            WayLeg(
                src=names.get(leg.src, leg.src), dst=names.get(leg.dst, leg.dst), kind=leg.kind, fixed=leg.fixed,
                each=leg.each, bytes_each=leg.bytes_each, copies_fixed=leg.copies_fixed, copies_each=leg.copies_each,
                links=tuple([self._link(link, names) for link in leg.links]),
            )
            for leg in legs
        )  # fmt: skip

    def _link(self, link: Link, names: dict[str, str]) -> Link:
        src, dst = names.get(link.src, link.src), names.get(link.dst, link.dst)
        key = (id(link), src, dst)
        if key not in self.known:
            self.known[key] = self._found(link, src, dst)
        return self.known[key]

    def _found(self, link: Link, src: str, dst: str) -> Link:
        """The link from `src` to `dst` of the same rank among those that join its ends."""
        if (src, dst) == (link.src, link.dst):
            return link
        here = self.out_of[link.src] if src != link.src else self.into[link.dst]
        there = self.out_of[src] if src != link.src else self.into[dst]
        rank = [one for one in here if (one.src, one.dst) == (link.src, link.dst)].index(link)
        return [one for one in there if (one.src, one.dst) == (src, dst)][rank]


def _legs(p: str, d: str, ask: Ask, rates: Rates) -> tuple[WayLeg, ...]:
    """The legs of one pair, rows one after another; rows that follow each other over one leg are one leg."""
    sizes = [_merged(ask(p, d, units)) for units in (1, 2, 3)]
    out = []
    for one, two, three in zip(*sizes, strict=True):
        times = [leg_time(leg, rates) for leg in (one, two, three)]
        if any(time.seconds is None for time in times):
            words = dict.fromkeys(words for time in times for words in time.unpriced)
            raise InconclusiveError(f"the handoff from {p} to {d} has no time: {'; '.join(words)}")
        first, second, third = (time.seconds * PS for time in times if time.seconds is not None)
        even = third - second == second - first and three.bytes - two.bytes == two.bytes - one.bytes == one.bytes
        if not even or three.copies - two.copies != two.copies - one.copies:
            raise InconclusiveError(
                f"the handoff from {p} to {d} does not grow evenly with the positions: not simulated"
            )
        each = two.copies - one.copies
        out.append(WayLeg(
            src=one.src, dst=one.dst, kind=one.kind, fixed=first - (second - first), each=second - first,
            bytes_each=one.bytes, copies_fixed=one.copies - each, copies_each=each, links=one.through,
        ))  # fmt: skip
    return tuple(out)


def _merged(prediction: Prediction) -> list[Leg]:
    from dataclasses import replace

    out: list[Leg] = []
    if not prediction.handoff_rows or any(row.legs is None for row in prediction.handoff_rows):
        raise InconclusiveError("a handoff has no way, or nobody knows which: state links and peer_access in the fleet")
    for row in prediction.handoff_rows:
        for leg in row.legs or ():
            last = out[-1] if out else None
            if last is not None and (last.src, last.dst, last.through) == (leg.src, leg.dst, leg.through):
                out[-1] = replace(last, bytes=last.bytes + leg.bytes, copies=last.copies + leg.copies)
            else:
                out.append(leg)
    return out


def ratios(leg: WayLeg, rates: Rates) -> list[int]:
    """Rate of the leg (its slowest link) over the rate of each link, in 1/1024, rounded up."""
    figures = [chosen(link.bandwidth, rates)[0] for link in leg.links]
    values = [1 if figure is None else figure.value for figure in figures]
    slowest = min(values)
    return [-(-slowest * 1024 // value) for value in values]


def leg_units(leg: WayLeg, most_units: int) -> tuple[int, int, int]:
    """(units of a ps, fixed, each) of a leg's time, exact where 64 bits allow it."""
    common = math.lcm(leg.fixed.denominator, leg.each.denominator)
    most = max(1, int(2**61 // (leg.fixed + leg.each * most_units + 1)))
    q = common if common <= most else 1 << (min(most, 2**20).bit_length() - 1)
    return q, round(leg.fixed * q), round(leg.each * q)
