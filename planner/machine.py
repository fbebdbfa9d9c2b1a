"""Fleet -> the machine graph: memories, switches and NICs as nodes, one-way links as edges, and the ways over them.

How the graph is kept stays inside: callers see a `Way`, which is copies between memories, each a chain of links.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from fleet.machine import Device, Fleet, Link
from planner.compiled import PICOSECONDS as PICOSECONDS
from planner.compiled import UNPRICED, CompiledGraph

Reading = Literal["direct", "staged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hop:
    """One physical copy between two memories. `links` has more than one entry where switches or NICs pass it on."""

    src: str
    dst: str
    links: tuple[Link, ...]

    @property
    def kind(self) -> str:
        """The kinds of its links, each once: `nvlink`, `pcie+net`."""
        if len(self.links) == 1:
            return self.links[0].kind
        return "+".join(dict.fromkeys(link.kind for link in self.links))

    def seconds(self, nbytes: int, copies: int) -> Fraction | None:
        """Latencies * copies + bytes / the slowest rate: what is passed on flows through; None without every rate."""
        if len(self.links) == 1:
            return link_time(self.links[0], nbytes, copies)
        rates = [link.bandwidth.value for link in self.links]
        slowest = min((rate for rate in rates if rate is not None), default=None)
        if slowest is None or None in rates:
            return None
        latency = sum(link.latency.value or 0 for link in self.links)
        return Fraction(latency * copies * slowest + nbytes * PICOSECONDS, PICOSECONDS * slowest)

    @property
    def lower_bound(self) -> bool:
        """Whether a latency is missing from its time."""
        return any(link.latency.value is None for link in self.links)


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The copies from src to dst, in order. None: src is dst. `staged` where host memory lies between two devices."""

    src: str
    dst: str
    hops: tuple[Hop, ...]
    staged: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class NoWay:
    """No way over the declared links. `reachable` are the spaces that src does reach."""

    src: str
    dst: str
    reachable: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnknownWay:
    """The pair is linked, but whether a peer copy goes direct is unknown: both readings."""

    src: str
    dst: str
    direct: Way
    staged: Way | NoWay


def link_time(link: Link, nbytes: int, copies: int) -> Fraction | None:
    """alpha * copies + bytes / beta in seconds (Hockney's model); None without a rate."""
    if link.bandwidth.value is None:
        return None
    rate = link.bandwidth.value
    return Fraction((link.latency.value or 0) * copies * rate + nbytes * PICOSECONDS, PICOSECONDS * rate)


class MachineGraph:
    """The memory spaces of a fleet (hosts and devices), the switches and NICs between them, and its one-way links.

    `devices` are the fleet's by id. A switch or NIC passes bytes on and holds none, so a way through it is one copy.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.devices: dict[str, Device] = {device.id: device for device in fleet.devices}
        self.hosts = frozenset(host.id for host in fleet.hosts)
        self.relays = frozenset([switch.id for switch in fleet.switches] + [nic.id for nic in fleet.nics])
        joined: dict[tuple[str, str], list[Link]] = {}
        for link in fleet.links:
            joined.setdefault((link.src, link.dst), []).append(link)
        self._links = {ends: tuple(links) for ends, links in joined.items()}
        self._only: dict[tuple[str, str], Way | None] = {}
        ends = (end for pair in self._links for end in pair)
        names = dict.fromkeys((*sorted(self.hosts), *sorted(self.devices), *sorted(self.relays), *ends))
        self.compiled = CompiledGraph(list(names), fleet.links, self.hosts, self.relays)

    def links(self, src: str, dst: str) -> tuple[Link, ...]:
        """The declared links from src to dst, in the order of the fleet."""
        return self._links.get((src, dst), ())

    def way(self, src: str, dst: str, nbytes: int, copies: int, *, by_host: bool = False) -> Way | NoWay | UnknownWay:
        """How bytes get from src to dst. The best of several ways depends on the size, so it is asked per transfer.

        `by_host`: over host memory, also where a peer copy could go direct.
        """
        if src == dst:
            return Way(src=src, dst=dst, hops=(), staged=False)
        ended = src in self.hosts or dst in self.hosts
        only = self._only_way(src, dst, ended) if ended or not by_host else None
        if only is not None:
            return only
        size = (nbytes, copies)
        if by_host or ended:
            return self._over_hosts(src, dst, size)
        direct = self._chain(src, dst, size, frozenset({"direct"}))
        if direct is not None:
            return Way(src=src, dst=dst, hops=(direct,), staged=False)
        maybe = self._chain(src, dst, size, frozenset({"direct", "unknown", None}))
        staged = self._over_hosts(src, dst, size)
        if maybe is not None:
            way = Way(src=src, dst=dst, hops=(maybe,), staged=False)
            return UnknownWay(src=src, dst=dst, direct=way, staged=staged)
        return staged

    def _only_way(self, src: str, dst: str, ended: bool) -> Way | None:
        """The way over the only link of two memories, where no size makes it another: made once for each such pair.

        Between devices the link must be direct, and nothing pass bytes on beside it.
        """
        if (src, dst) not in self._only:
            links = self.links(src, dst)
            alone = len(links) == 1 and (ended or (not self.relays and links[0].peer_access == "direct"))
            way = Way(src=src, dst=dst, hops=(Hop(src=src, dst=dst, links=links),), staged=False) if alone else None
            if not links:  # only declared pairs are kept: a fleet has many more that are not
                return way
            self._only[src, dst] = way
        return self._only[src, dst]

    def _chain(self, src: str, dst: str, size: tuple[int, int], access: frozenset[str | None]) -> Hop | None:
        """The fastest single copy from device to device over links of this peer access, through relays only."""
        if self.links(src, dst) and not self.relays:
            links = [link for link in self.links(src, dst) if link.peer_access in access]
            return Hop(src=src, dst=dst, links=(_fastest(links, *size),)) if links else None
        nodes = self._path(src, dst, size, access, over_hosts=False)
        return None if nodes is None else self._hop(nodes, size, access)

    def _hop(self, nodes: list[str], size: tuple[int, int], access: frozenset[str | None] | None) -> Hop:
        chain = []
        for a, b in itertools.pairwise(nodes):
            links = [link for link in self.links(a, b) if access is None or link.peer_access in access]
            chain.append(_fastest(links, *size))
        return Hop(src=nodes[0], dst=nodes[-1], links=tuple(chain))

    def _over_hosts(self, src: str, dst: str, size: tuple[int, int]) -> Way | NoWay:
        """The fastest way whose memories between the ends are hosts: nothing passes through another device's memory."""
        if src in self.hosts or dst in self.hosts:
            nodes = [src, dst] if self.links(src, dst) else self._path(src, dst, size, None, over_hosts=True)
        else:
            nodes = self._path_by_a_host(src, dst, size)
        if nodes is None:
            return NoWay(src=src, dst=dst, reachable=self.compiled.successors(src))
        staged = src not in self.hosts and dst not in self.hosts
        return Way(src=src, dst=dst, hops=tuple(self._hops(nodes, size)), staged=staged)

    def _hops(self, nodes: list[str], size: tuple[int, int]) -> Iterator[Hop]:
        """A path cut at every memory that it passes."""
        first = 0
        for last in range(1, len(nodes)):
            if nodes[last] not in self.relays:
                yield self._hop(nodes[first : last + 1], size, None)
                first = last

    def _path(
        self, src: str, dst: str, size: tuple[int, int], access: frozenset[str | None] | None, *, over_hosts: bool
    ) -> list[str] | None:
        return self.compiled.path(src, dst, size, access, over_hosts=over_hosts)

    def _path_by_a_host(self, src: str, dst: str, size: tuple[int, int]) -> list[str] | None:
        """The fastest path from device to device that passes host memory: down to some host, and up from it."""
        return self.compiled.path(src, dst, size, None, over_hosts=True, by_a_host=True)


def _fastest(links: list[Link], nbytes: int, copies: int) -> Link:
    def cost(link: Link) -> Fraction:
        time = link_time(link, nbytes, copies)
        return Fraction(UNPRICED) if time is None else time

    return links[0] if len(links) == 1 else min(links, key=cost)


@lru_cache(maxsize=32)
def _graph_of(digest: str, fleet: _ByDigest) -> MachineGraph:
    return MachineGraph(fleet.fleet)


class _ByDigest:
    """A fleet that hashes by its digest: the cache never hashes thousands of devices.

    A digest leaves out prose, which plans tell (sources of rates, places in a file): fleets of one digest are the same
    only with equal links and devices, what is in use of these apart.
    """

    __slots__ = ("fleet",)

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __hash__(self) -> int:
        return hash(self.fleet.digest)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByDigest) or self.fleet.digest != other.fleet.digest:
            return False
        mine, others = self.fleet, other.fleet
        if mine.links is not others.links and mine.links != others.links:
            return False
        return mine.devices is others.devices or (
            len(mine.devices) == len(others.devices) and all(map(_alike, mine.devices, others.devices))
        )


def _alike(one: Device, other: Device) -> bool:
    return one is other or replace(one, in_use=0) == replace(other, in_use=0)


def machine_graph(fleet: Fleet) -> MachineGraph:
    """The machine graph of a fleet, made once for equal fleets. A fleet without a digest is not cached."""
    return _graph_of(fleet.digest, _ByDigest(fleet)) if fleet.digest else MachineGraph(fleet)
