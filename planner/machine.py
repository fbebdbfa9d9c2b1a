"""Fleet -> the machine graph: memory spaces as nodes, one-way links as edges, and the ways between two of them.

The graph library stays inside: callers see `Way`, a chain of links.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

import networkx as nx

from fleet.machine import Fleet, Link

PICOSECONDS = 10**12
UNPRICED = 10**30
"""Weight of a link without a rate: taken only where no priced way exists."""

Reading = Literal["direct", "staged"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The links from src to dst, in order. No links: src is dst."""

    src: str
    dst: str
    links: tuple[Link, ...]
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
    alpha = Fraction(link.latency.value or 0, PICOSECONDS)
    return alpha * copies + Fraction(nbytes, link.bandwidth.value)


class MachineGraph:
    """The memory spaces of a fleet (hosts and devices) and its one-way links, as a networkx multigraph."""

    def __init__(self, fleet: Fleet) -> None:
        self.graph: Any = nx.MultiDiGraph()
        self.hosts = frozenset(host.id for host in fleet.hosts)
        self.graph.add_nodes_from(sorted(self.hosts), space="host")
        self.graph.add_nodes_from(sorted(device.id for device in fleet.devices), space="device")
        for number, link in enumerate(fleet.links):
            self.graph.add_edge(link.src, link.dst, key=number, link=link)

    def links(self, src: str, dst: str) -> list[Link]:
        """The declared links from src to dst, in the order of the fleet."""
        edges = self.graph.get_edge_data(src, dst) or {}
        return [edges[number]["link"] for number in sorted(edges)]

    def way(self, src: str, dst: str, nbytes: int, copies: int) -> Way | NoWay | UnknownWay:
        """How bytes get from src to dst. The best of several ways depends on the size, so it is asked per transfer."""
        if src == dst:
            return Way(src=src, dst=dst, links=(), staged=False)
        declared = self.links(src, dst)
        if src in self.hosts or dst in self.hosts:
            return self._over_hosts(src, dst, nbytes, copies)
        direct = [link for link in declared if link.peer_access == "direct"]
        if direct:
            return Way(src=src, dst=dst, links=(_fastest(direct, nbytes, copies),), staged=False)
        unknown = [link for link in declared if link.peer_access in ("unknown", None)]
        staged = self._over_hosts(src, dst, nbytes, copies)
        if unknown:
            way = Way(src=src, dst=dst, links=(_fastest(unknown, nbytes, copies),), staged=False)
            return UnknownWay(src=src, dst=dst, direct=way, staged=staged)
        return staged

    def _over_hosts(self, src: str, dst: str, nbytes: int, copies: int) -> Way | NoWay:
        """The fastest way whose inner nodes are hosts: nothing is relayed through another device's memory."""
        inner = self.hosts | {src, dst}
        two_devices = src not in self.hosts and dst not in self.hosts
        view = nx.subgraph_view(self.graph, filter_node=lambda node: node in inner)
        try:
            nodes = nx.dijkstra_path(
                view, src, dst, weight=_weight(nbytes, copies, (src, dst) if two_devices else None)
            )
        except nx.NetworkXNoPath:
            return NoWay(src=src, dst=dst, reachable=tuple(sorted(set(self.graph.successors(src)))))
        chain = tuple(_fastest(self.links(a, b), nbytes, copies) for a, b in itertools.pairwise(nodes))
        return Way(src=src, dst=dst, links=chain, staged=two_devices)


def _fastest(links: list[Link], nbytes: int, copies: int) -> Link:
    def cost(link: Link) -> Fraction:
        time = link_time(link, nbytes, copies)
        return Fraction(UNPRICED) if time is None else time

    return min(links, key=cost)


def _weight(nbytes: int, copies: int, banned: tuple[str, str] | None) -> Callable[[str, str, Any], Fraction | None]:
    """Edge weight for networkx; `banned` is the direct device pair, which a staged way does not use."""

    def weight(src: str, dst: str, edges: Any) -> Fraction | None:
        if (src, dst) == banned:
            return None
        times = [link_time(data["link"], nbytes, copies) for data in edges.values()]
        priced = [time for time in times if time is not None]
        return min(priced) if priced else Fraction(UNPRICED)

    return weight


@lru_cache(maxsize=32)
def _graph_of(digest: str, fleet: _ByDigest) -> MachineGraph:
    return MachineGraph(fleet.fleet)


class _ByDigest:
    """A fleet that compares by digest, so that the cache never hashes thousands of devices."""

    __slots__ = ("fleet",)

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def __hash__(self) -> int:
        return hash(self.fleet.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByDigest) and self.fleet.digest == other.fleet.digest


def machine_graph(fleet: Fleet) -> MachineGraph:
    """The machine graph of a fleet; made once for each digest. A fleet without a digest is not cached."""
    return _graph_of(fleet.digest, _ByDigest(fleet)) if fleet.digest else MachineGraph(fleet)
