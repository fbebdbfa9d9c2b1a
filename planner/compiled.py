"""The machine graph as plain lists, and the cheapest path over them: for fleets of thousands, where a search over every
memory would take seconds.

Times are whole numbers in a unit that all rates of the fleet divide: sums are exact and compare fast. The search
goes from both ends at once. A relay with a single neighbour that passes bytes on can only be the first or the last of a
path: such dead ends, the network cards of other nodes above all, are looked at for the two ends alone. Nothing is kept
for pairs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count

from fleet.machine import Link

PICOSECONDS = 10**12
UNPRICED = 10**30
"""Seconds that a link without a rate counts: taken only where no priced way exists."""

WIDEST = 4096
"""Bits of the common multiple of all rates, at most; beyond, times are fractions, slower and exact as well."""

Cost = int | Fraction
Access = frozenset[str | None] | None
Edge = tuple[int, tuple[tuple[str | None, int], ...]]
"""The other end, and peer access and class of each parallel link."""
Lists = list[list[Edge]]


@dataclass(frozen=True, slots=True)
class _Passing:
    """Nodes that may lie within a path, with lists of those of the `core`; the others only lie next to an end."""

    allowed: bytearray
    core: bytearray
    out: Lists
    into: Lists


class CompiledGraph:
    """Nodes as numbers, links as lists by node, and the distinct figures of links as classes.

    `names` in the order that decides between equal paths; `hosts` and `relays` are the names that a path may pass.
    """

    def __init__(
        self, names: Sequence[str], links: Sequence[Link], hosts: Collection[str], relays: Collection[str]
    ) -> None:
        self.names = list(names)
        self.number = {name: at for at, name in enumerate(self.names)}
        self.classes: list[tuple[int | None, int]] = []
        self.out, self.into = self._lists(links)
        self.hosts = self._marks(hosts)
        self._relays = self._marks(relays)
        self._kept: dict[bool, _Passing] = {}
        self._scale = _common(sorted({rate for rate, _ in self.classes if rate is not None}))

    def _lists(self, links: Sequence[Link]) -> tuple[Lists, Lists]:
        classes: dict[tuple[int | None, int], int] = {}
        joined: dict[tuple[int, int], list[tuple[str | None, int]]] = {}
        for link in links:
            figures = (link.bandwidth.value, link.latency.value or 0)
            number = classes.setdefault(figures, len(classes))
            ends = (self.number[link.src], self.number[link.dst])
            joined.setdefault(ends, []).append((link.peer_access, number))
        self.classes = list(classes)
        out: Lists = [[] for _ in self.names]
        into: Lists = [[] for _ in self.names]
        shared: dict[tuple[tuple[str | None, int], ...], tuple[tuple[str | None, int], ...]] = {}
        for (src, dst), kinds in joined.items():
            kept = shared.setdefault(tuple(kinds), tuple(kinds))
            out[src].append((dst, kept))
            into[dst].append((src, kept))
        return out, into

    def successors(self, name: str) -> tuple[str, ...]:
        """What one link leads to from here, by name."""
        return tuple(sorted(self.names[at] for at, _ in self.out[self.number[name]]))

    def _marks(self, names: Collection[str]) -> bytearray:
        marks = bytearray(len(self.names))
        for name in names:
            marks[self.number[name]] = 1
        return marks

    def _passing(self, over_hosts: bool) -> _Passing:
        """What a path may pass, made once: relays, or relays and hosts."""
        if over_hosts not in self._kept:
            allowed = bytearray(a | b for a, b in zip(self._relays, self.hosts, strict=True))
            allowed = allowed if over_hosts else self._relays
            core = bytearray(len(allowed))
            for at, able in enumerate(allowed):
                if able:
                    near = {other for side in (self.out, self.into) for other, _ in side[at] if allowed[other]}
                    core[at] = len(near) > 1 or (over_hosts and self.hosts[at])
            out = [[edge for edge in edges if core[edge[0]]] if core[at] else [] for at, edges in enumerate(self.out)]
            into = [[edge for edge in edges if core[edge[0]]] if core[at] else [] for at, edges in enumerate(self.into)]
            self._kept[over_hosts] = _Passing(allowed, core, out, into)
        return self._kept[over_hosts]

    def _costs(self, nbytes: int, copies: int) -> list[Cost]:
        """The time of each class of links in units of 1 / (10^12 * scale) seconds, and 1 more for the link itself.

        The unit is multiplied by a number no path has as many links as, so that of equal times the fewest links win.
        """
        scale, links = self._scale, len(self.names) * 2 + 2
        costs: list[Cost] = []
        for rate, latency in self.classes:
            time: Cost
            if rate is None:
                time = UNPRICED * PICOSECONDS * scale
            elif scale % rate:  # too many rates for a common unit
                time = latency * copies + Fraction(nbytes * PICOSECONDS, rate)
            else:
                time = latency * copies * scale + nbytes * PICOSECONDS * (scale // rate)
            costs.append(time * links + 1)
        return costs

    def path(
        self, src: str, dst: str, size: tuple[int, int], access: Access, *, over_hosts: bool, by_a_host: bool = False
    ) -> list[str] | None:
        """The cheapest path for (bytes, copies) over links of this peer access (None: any), or None.

        Between its ends lie relays, with `over_hosts` hosts as well; with `by_a_host` at least one host does.
        """
        search = _Search(self, self._passing(over_hosts), self._costs(*size), access, by_a_host)
        found = search.run(self.number[src], self.number[dst])
        return None if found is None else [self.names[at] for at in found]


class _Search:
    """One search from both ends. A state is twice a node, plus one once a host was passed (where one must be)."""

    def __init__(
        self, graph: CompiledGraph, passing: _Passing, costs: list[Cost], access: Access, by_a_host: bool
    ) -> None:
        self.graph = graph
        self.passing = passing
        self.costs = costs
        self.access = access
        self.by_a_host = by_a_host
        self.cheapest: dict[int, Cost | None] = {}
        """By the number of a tuple of parallel links: the graph keeps one tuple of each kind."""

    def run(self, src: int, dst: int) -> list[int] | None:
        """The nodes of the cheapest path, ends included."""
        self._begin(src, dst)
        start, goal = 2 * src, 2 * dst + self.by_a_host
        ticket = count()
        seen: tuple[dict[int, Cost], dict[int, Cost]] = ({start: 0}, {goal: 0})
        back: tuple[dict[int, int], dict[int, int]] = ({}, {})
        done: tuple[set[int], set[int]] = (set(), set())
        heaps: tuple[list[tuple[Cost, int, int]], list[tuple[Cost, int, int]]] = ([(0, 0, start)], [(0, 0, goal)])
        best: Cost | float = math.inf
        meet = -1
        while heaps[0] and heaps[1] and heaps[0][0][0] + heaps[1][0][0] < best:
            side = 0 if heaps[0][0][0] <= heaps[1][0][0] else 1
            cost, _, state = heappop(heaps[side])
            if state in done[side]:
                continue
            done[side].add(state)
            for other, step in self._steps(state, side):
                total = cost + step
                if total >= best or total >= seen[side].get(other, math.inf):
                    continue
                seen[side][other], back[side][other] = total, state
                heappush(heaps[side], (total, next(ticket), other))
                rest = seen[1 - side].get(other)
                if rest is not None and total + rest < best:  # never rest = inf: huge integers are no floats
                    best, meet = total + rest, other
        return None if meet < 0 else _joined(meet, back)

    def _begin(self, src: int, dst: int) -> None:
        graph, allowed = self.graph, self.passing.allowed
        self.src, self.dst = src, dst
        self.near = {at for side in (graph.out[src], graph.into[dst]) for at, _ in side if allowed[at]}
        self.extra = (self._extra(graph.into), self._extra(graph.out))
        self.ends: tuple[dict[int, Edge], dict[int, Edge]] = (
            {at: (dst, kinds) for at, kinds in graph.into[dst]},
            {at: (src, kinds) for at, kinds in graph.out[src]},
        )

    def _extra(self, lists: Lists) -> dict[int, list[Edge]]:
        """Edges between the core and the dead ends next to src and dst, by their core end."""
        found: dict[int, list[Edge]] = {}
        for at in sorted(self.near):
            if not self.passing.core[at]:
                for other, kinds in lists[at]:
                    found.setdefault(other, []).append((at, kinds))
        return found

    def _edges(self, node: int, side: int) -> list[Edge]:
        """The edges of a node that a path may take, forwards (0) or backwards (1)."""
        lists, target = (self.graph.out, self.dst) if side == 0 else (self.graph.into, self.src)
        passing = self.passing
        if node == target:  # nothing passes through an end
            return []
        if passing.core[node] and node not in (self.src, self.dst):
            kept = passing.out[node] if side == 0 else passing.into[node]
            end = self.ends[side].get(node)
            return [*kept, *self.extra[side].get(node, ()), *(() if end is None else (end,))]
        return [edge for edge in lists[node] if edge[0] == target or passing.core[edge[0]] or edge[0] in self.near]

    def _steps(self, state: int, side: int) -> list[tuple[int, Cost]]:
        """(state, cost) of what lies one link further."""
        node, passed = state >> 1, state & 1
        hosts = self.graph.hosts
        if not self.by_a_host:
            reached = ((2 * other, self._cheapest(kinds)) for other, kinds in self._edges(node, side))
            return [(other, cost) for other, cost in reached if cost is not None]
        steps: list[tuple[int, Cost]] = []
        for other, kinds in self._edges(node, side):
            cost = self._cheapest(kinds)
            if cost is None:
                continue
            if side == 0:
                steps.append((2 * other + (passed or (hosts[other] and other != self.dst)), cost))
            elif passed and hosts[node] and node != self.dst:
                steps += [(2 * other, cost)] if not self._is_inner_host(other) else []
                steps.append((2 * other + 1, cost))
            elif not (passed == 0 and self._is_inner_host(other)):
                steps.append((2 * other + passed, cost))
        return steps

    def _is_inner_host(self, node: int) -> bool:
        return bool(self.graph.hosts[node]) and node not in (self.src, self.dst)

    def _cheapest(self, kinds: tuple[tuple[str | None, int], ...]) -> Cost | None:
        """The least time of parallel links of the wanted peer access; None where there is none."""
        key = id(kinds)
        if key not in self.cheapest:
            held = [self.costs[number] for access, number in kinds if self.access is None or access in self.access]
            self.cheapest[key] = min(held, default=None)
        return self.cheapest[key]


def _common(rates: list[int]) -> int:
    """The least common multiple of all rates; 1 where it would be too large."""
    scale = 1
    for rate in rates:
        scale = math.lcm(scale, rate)
        if scale.bit_length() > WIDEST:
            return 1
    return scale


def _joined(meet: int, back: tuple[dict[int, int], dict[int, int]]) -> list[int]:
    before = [meet]
    while before[-1] in back[0]:
        before.append(back[0][before[-1]])
    after = [meet]
    while after[-1] in back[1]:
        after.append(back[1][after[-1]])
    return [state >> 1 for state in (*reversed(before), *after[1:])]
