"""How caches get from any prefill to any decode worker: the planner's rows, as legs over numbered physical links.

A row's bytes, copies and time grow with the positions (or blocks) that are handed over, evenly but for where a window
is full; few sizes are asked of the planner, and a handoff that grows otherwise is not simulated. Pairs whose ends have
equal links are asked once: a way passes its own two ends and nobody else's, so it is the same way with other ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
from scenarios.simulation.curves import Curve, Knots, chunked, mapped, through, whole

PS = 10**12
Resource = tuple[str, str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one copy of a leg moves from rank to rank: bytes and copies over units of transfer."""

    src: str
    dst: str
    kind: str
    bytes: Curve[int]
    copies: Curve[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class WayLeg:
    """One leg of a way. `time` in ps over units of transfer; the links it passes; what its ranks move."""

    time: Curve[Fraction]
    parts: tuple[Part, ...]
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

    def add(self, p: str, d: str, legs: tuple[WayLeg, ...]) -> None:
        """The way from one worker to another."""
        for leg in legs:
            for link in leg.links:
                self.number(link)
        self.pair[p, d] = len(self.ways)
        self.ways.append(legs)


EVEN = Knots()
"""Nothing that is handed over has a window."""
Ask = Callable[[str, str, int], Prediction]
"""(prefill, decode, units of transfer) -> the prediction of handing so much over."""


def all_ways(
    fleet: Fleet, prefill: Sequence[str], decode: Sequence[str], ask: Ask, rates: Rates, knots: Knots = EVEN
) -> Ways:
    """The way of each pair. Raises InconclusiveError in words: unpriced, unknown, or not even."""
    out_of, into = _ends(fleet)
    devices, hosts = (frozenset(one.id for one in many) for many in (fleet.devices, fleet.hosts))
    # A direct way is looked for first, and passes no host: only where there is none do links to hosts count.
    seen: dict[tuple[tuple[str, str], ...], int] = {}

    def ends(worker: str, links: dict[str, list[Link]], *, out: bool) -> tuple[int, int]:
        pairs = [_signatures(links.get(rank, ()), devices, hosts, out=out) for rank in worker.split(",")]
        told = [tuple((str(i), pair[i]) for pair in pairs) for i in (0, 1)]
        direct, full = (seen.setdefault(one, len(seen)) for one in told)
        return direct, full

    sources = {p: ends(p, out_of, out=True) for p in prefill}
    targets = {d: (ends(d, into, out=False), {rank: i for i, rank in enumerate(d.split(","))}) for d in decode}
    found, moving = Ways(), _Moving(out_of, into)
    known: dict[Any, tuple[str, str, tuple[WayLeg, ...]]] = {}
    for p in prefill:
        straight = [
            (i, link.dst, _figures(link))
            for i, rank in enumerate(p.split(",")) for link in out_of.get(rank, ()) if link.dst in devices
        ]  # fmt: skip
        for d, (target, ranks) in targets.items():
            between = tuple((i, ranks[dst], told) for i, dst, told in straight if dst in ranks) if straight else ()
            direct, full = ((sources[p][i], target[i], between) for i in (0, 1))
            if direct not in known and full not in known:
                legs = _legs(p, d, ask, rates, knots)
                over_hosts = any(part.src in hosts or part.dst in hosts for leg in legs for part in leg.parts)
                known[full if over_hosts else direct] = (p, d, legs)
            old_p, old_d, legs = known[direct] if direct in known else known[full]
            moved = legs if (p, d) == (old_p, old_d) else moving.legs(legs, (old_p, p), (old_d, d))
            found.add(p, d, moved)
    return found


def links_within(fleet: Fleet, workers: Sequence[str]) -> dict[str, Any]:
    """By worker of several devices, what its own links and their far ends are, whatever its devices are called: what
    its ranks exchange takes equally long where this is equal.
    """
    out_of, into = _ends(fleet)
    devices: frozenset[str] = frozenset(device.id for device in fleet.devices)
    found: dict[str, Any] = {}
    for worker in workers:
        ranks = {rank: i for i, rank in enumerate(worker.split(","))}
        told = []
        for rank in ranks if len(ranks) > 1 else ():
            told += [
                _signatures(links.get(rank, ()), devices, frozenset(), out=links is out_of)[1]
                for links in (out_of, into)
            ]
            told += [f"{ranks[link.dst]} {_figures(link)}" for link in out_of.get(rank, ()) if link.dst in ranks]
        found[worker] = tuple(told)
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
        """The same legs, whose ends `p` and `d` (old, new) are others, rank by rank."""
        names = {old: new for ends in (p, d) for old, new in zip(*(end.split(",") for end in ends), strict=True)}
        return tuple(
            WayLeg(
                time=leg.time, parts=tuple([_with_names(part, names) for part in leg.parts]),
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
        # Ways are kept by a fleet's digest: the same fleet may have been read from another file before.
        rank = [_plain(one) for one in here if (one.src, one.dst) == (link.src, link.dst)].index(_plain(link))
        return [one for one in there if (one.src, one.dst) == (src, dst)][rank]


def _plain(link: Link) -> tuple[Any, ...]:
    """What a link is, wherever it stands."""
    rates = (link.bandwidth, link.latency)
    stated = tuple((f.value, f.provenance, f.error) if f else None for q in rates for f in (q.declared, q.observed))
    return link.kind, link.count, link.peer_access, link.duplex, link.copy_engines, stated


def _with_names(part: Part, names: dict[str, str]) -> Part:
    return Part(
        src=names.get(part.src, part.src), dst=names.get(part.dst, part.dst), kind=part.kind,
        bytes=part.bytes, copies=part.copies,
    )  # fmt: skip


def _legs(p: str, d: str, ask: Ask, rates: Rates, knots: Knots = EVEN) -> tuple[WayLeg, ...]:
    """The legs between two workers, rows one after another; rows that follow each other over one leg are one leg.

    Rows between unlike ranks run beside each other, and follow each other where they pass a link in common. Chains of
    rows that take equally long are one chain, a leg of which is the copies of all its ranks; where they do not, all
    rows follow each other, as `planner.queueing` has it.
    """
    sizes = {units: _by_ranks(ask(p, d, units)) for units in knots.asked}
    first = sizes[1]
    if any([(ends, len(legs)) for ends, legs in size.items()] != [(ends, len(legs)) for ends, legs in first.items()]
           for size in sizes.values()):  # fmt: skip
        raise _uneven(p, d)
    sizes_asked = _Sizes(ask=ask, p=p, d=d, known=sizes)
    of_ranks = [
        tuple(_leg(sizes_asked, ends, i, rates, knots) for i in range(len(legs))) for ends, legs in first.items()
    ]
    chains = _chains(of_ranks)
    if len({tuple(leg.time for leg in chain) for chain in chains}) == 1:
        return tuple(_together(legs) for legs in zip(*chains, strict=True))
    return tuple(leg for legs in of_ranks for leg in legs)


def _chains(of_ranks: Sequence[tuple[WayLeg, ...]]) -> list[list[WayLeg]]:
    """Legs that must follow each other, since they are of one pair of ranks or pass a link in common."""
    chains: list[tuple[list[WayLeg], set[Resource]]] = []
    for legs in of_ranks:
        passed = {resource(link) for leg in legs for link in leg.links}
        joined = [chain for chain in chains if chain[1] & passed]
        chains = [chain for chain in chains if not chain[1] & passed]
        before = [leg for chain in joined for leg in chain[0]]
        chains.append(([*before, *legs], passed.union(*(chain[1] for chain in joined))))
    return [chain[0] for chain in chains]


def _uneven(p: str, d: str) -> InconclusiveError:
    return InconclusiveError(
        f"the handoff from {p} to {d} does not grow evenly with the positions (and windows): not simulated"
    )


@dataclass(slots=True)
class _Sizes:
    """What the planner says of one pair by units: rank to rank, legs in order. Other sizes are asked when needed."""

    ask: Ask
    p: str
    d: str
    known: dict[int, dict[tuple[str, str], list[Leg]]]

    def leg(self, ends: tuple[str, str], number: int, units: int) -> Leg:
        """A leg of a handoff of so many units."""
        if units not in self.known:
            self.known[units] = _by_ranks(self.ask(self.p, self.d, units))
        found = self.known[units].get(ends, [])
        if number >= len(found):
            raise _uneven(self.p, self.d)
        return found[number]


def _time_of_chunks(legs: Mapping[int, Leg], copies: Curve[int], rates: Rates, knots: Knots) -> Curve[Fraction] | None:
    """ps of a leg whose copies are those of chunks: of its bytes, and what each copy takes to start."""
    from dataclasses import replace

    def ps(leg: Leg) -> Fraction:
        return (leg_time(leg, rates).seconds or Fraction(0)) * PS

    moving = through({units: ps(replace(leg, copies=0)) for units, leg in legs.items()}, knots)
    start = ps(replace(legs[1], copies=1, bytes=0))
    if moving is None:
        return None
    return replace(moving, steps=tuple((knot, chunk, start * each) for knot, chunk, each in copies.steps))


def _leg(asked: _Sizes, ends: tuple[str, str], number: int, rates: Rates, knots: Knots) -> WayLeg:
    """A leg from what it is for few sizes, by units."""
    p, d = asked.p, asked.d
    legs = {units: asked.leg(ends, number, units) for units in knots.asked}
    times = {units: leg_time(leg, rates) for units, leg in legs.items()}
    if any(time.seconds is None for time in times.values()):
        words = dict.fromkeys(words for time in times.values() for words in time.unpriced)
        raise InconclusiveError(f"the handoff from {p} to {d} has no time: {'; '.join(words)}")
    one = legs[1]
    way = (one.src, one.dst, one.through)
    time = through({n: told.seconds * PS for n, told in times.items() if told.seconds is not None}, knots)
    nbytes = whole(through({n: Fraction(leg.bytes) for n, leg in legs.items()}, knots))
    copies = whole(through({n: Fraction(leg.copies) for n, leg in legs.items()}, knots))
    alike = all((leg.src, leg.dst, leg.through) == way for leg in legs.values())
    if copies is None and nbytes is not None:
        copies = chunked(lambda units: asked.leg(ends, number, units).copies, knots)
        time = None if copies is None else _time_of_chunks(legs, copies, rates, knots)
    if time is None or nbytes is None or copies is None or not alike:
        raise _uneven(p, d)
    part = Part(src=one.src, dst=one.dst, kind=one.kind, bytes=nbytes, copies=copies)
    return WayLeg(time=time, parts=(part,), links=one.through)


def _together(legs: Sequence[WayLeg]) -> WayLeg:
    return WayLeg(
        time=legs[0].time, parts=tuple(part for leg in legs for part in leg.parts),
        links=tuple(link for leg in legs for link in leg.links),
    )  # fmt: skip


def _by_ranks(prediction: Prediction) -> dict[tuple[str, str], list[Leg]]:
    """The legs of the rows between each two ranks."""
    from dataclasses import replace

    found: dict[tuple[str, str], list[Leg]] = {}
    if not prediction.handoff_rows or any(row.legs is None for row in prediction.handoff_rows):
        raise InconclusiveError("a handoff has no way, or nobody knows which: state links and peer_access in the fleet")
    for row in prediction.handoff_rows:
        out = found.setdefault((row.src, row.dst), [])
        for leg in row.legs or ():
            last = out[-1] if out else None
            if last is not None and (last.src, last.dst, last.through) == (leg.src, leg.dst, leg.through):
                out[-1] = replace(last, bytes=last.bytes + leg.bytes, copies=last.copies + leg.copies)
            else:
                out.append(leg)
    return found


def ratios(leg: WayLeg, rates: Rates) -> list[int]:
    """Rate of the leg (its slowest link) over the rate of each link, in 1/1024, rounded up."""
    figures = [chosen(link.bandwidth, rates)[0] for link in leg.links]
    values = [1 if figure is None else figure.value for figure in figures]
    slowest = min(values)
    return [-(-slowest * 1024 // value) for value in values]


def leg_units(leg: WayLeg, most_units: int) -> tuple[int, Curve[int]]:
    """(units of a ps, the leg's time in them), exact where 64 bits allow it. InconclusiveError: never so."""
    time = leg.time
    common = math.lcm(*(value.denominator for value in time.values))
    longest = time.at(most_units)
    most = int(2**61 // (longest + 1))
    if most == 0:
        words = (
            f"the longest handoff from {leg.parts[0].src} to {leg.parts[0].dst} would take {int(longest / PS / 86400)}"
        )
        raise InconclusiveError(f"{words} days at the stated rates: not simulated")
    q = common if common <= most else 1 << (min(most, 2**20).bit_length() - 1)
    return q, mapped(time, lambda value: round(value * q))
