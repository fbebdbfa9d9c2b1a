"""The search over compiled lists against a plain one: the same least time, whatever is linked with whatever."""

from __future__ import annotations

import itertools
from fractions import Fraction

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.load import load_fleet
from fleet.machine import Link, Quantity
from planner.compiled import PICOSECONDS, UNPRICED, CompiledGraph
from planner.machine import UnknownWay, Way, machine_graph
from tests.planner.fleets import known
from tests.work import counted

HOSTS, RELAYS, DEVICES = ("h0", "h1", "h2"), ("r0", "r1", "r2", "r3"), ("d0", "d1", "d2")
NAMES = (*DEVICES, *HOSTS, *RELAYS)
ACCESSES = (None, frozenset({"direct"}), frozenset({"direct", "unknown", None}))


@st.composite
def links(draw: st.DrawFn) -> list[Link]:
    """Up to thirty one-way links between anything and anything, parallel ones as well."""
    ends = draw(st.lists(st.permutations(NAMES).map(lambda p: tuple(p[:2])), min_size=1, max_size=30))
    rate = st.sampled_from([None, 1, 3, 7, 10**9, 450 * 10**9, 2**61 - 1])
    made = []
    for src, dst in ends:
        value = draw(rate)
        made.append(Link(
            src=src, dst=dst, kind="pcie", bandwidth=Quantity() if value is None else known(value),
            latency=known(draw(st.sampled_from([0, 1, 10**6]))),
            peer_access=draw(st.sampled_from([None, "direct", "staged", "unknown"])),
        ))  # fmt: skip
    return made


def seconds(link: Link, size: tuple[int, int]) -> Fraction:
    """The time of one link, by the formula of the machine graph."""
    if link.bandwidth.value is None:
        return Fraction(UNPRICED)
    return Fraction((link.latency.value or 0) * size[1], PICOSECONDS) + Fraction(size[0], link.bandwidth.value)


def plain(held: list[Link], src: str, dst: str, size, access, inner) -> dict[str, Fraction]:
    """Least times from src over `inner`, by networkx."""
    graph = nx.DiGraph()
    graph.add_nodes_from(NAMES)
    for link in held:
        usable = access is None or link.peer_access in access
        if usable and link.src in {*inner, src, dst} and link.dst in {*inner, src, dst}:
            cost = seconds(link, size)
            known_cost = graph.get_edge_data(link.src, link.dst, {}).get("weight")
            graph.add_edge(link.src, link.dst, weight=cost if known_cost is None else min(cost, known_cost))
    return dict(nx.single_source_dijkstra_path_length(graph, src, weight="weight"))


def time_of(path: list[str], held: list[Link], size, access) -> Fraction:
    """The time of a found path; fails where it takes a link that there is not."""
    total = Fraction(0)
    for a, b in itertools.pairwise(path):
        usable = [k for k in held if (k.src, k.dst) == (a, b) and (access is None or k.peer_access in access)]
        assert usable, f"no link {a} -> {b}"
        total += min(seconds(link, size) for link in usable)
    return total


@given(
    held=links(), ends=st.permutations((*DEVICES, *HOSTS)), nbytes=st.integers(0, 2**40), copies=st.integers(1, 9),
    access=st.sampled_from(ACCESSES), over_hosts=st.booleans(),
)  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_finds_a_path_of_the_least_time_or_none_where_there_is_none(held, ends, nbytes, copies, access, over_hosts):
    src, dst = ends[:2]
    size = (nbytes, copies)
    graph = CompiledGraph(NAMES, held, HOSTS, RELAYS)
    found = graph.path(src, dst, size, access, over_hosts=over_hosts)
    inner = (*HOSTS, *RELAYS) if over_hosts else RELAYS
    wanted = plain(held, src, dst, size, access, inner).get(dst)
    assert (found is None) == (wanted is None)
    if found is not None:
        assert (found[0], found[-1]) == (src, dst)
        assert set(found[1:-1]) <= set(inner)
        assert time_of(found, held, size, access) == wanted
        assert found == graph.path(src, dst, size, access, over_hosts=over_hosts), "equal input, another path"


@given(held=links(), ends=st.permutations(DEVICES), nbytes=st.integers(0, 2**40), copies=st.integers(1, 9))
@settings(max_examples=300, deadline=None)
def test_a_way_by_a_host_is_the_least_sum_of_down_and_up_over_all_hosts(held, ends, nbytes, copies):
    src, dst = ends[:2]
    size = (nbytes, copies)
    found = CompiledGraph(NAMES, held, HOSTS, RELAYS).path(src, dst, size, None, over_hosts=True, by_a_host=True)
    inner = (*HOSTS, *RELAYS)
    down = plain(held, src, src, size, None, inner)
    up = {host: plain(held, host, dst, size, None, inner).get(dst) for host in HOSTS}
    sums = [down[host] + up[host] for host in HOSTS if host in down and up[host] is not None]  # type: ignore[operator]  # known
    assert (found is None) == (not sums)
    if found is not None:
        assert set(found) & set(HOSTS)
        assert not set(found[1:-1]) & set(DEVICES)
        assert time_of(found, held, size, None) == min(sums)


def test_rates_without_a_small_common_multiple_are_compared_exactly_all_the_same():
    primes = [2**61 - 1, 2**31 - 1, *(p for p in range(10**6, 10**6 + 4000) if all(p % d for d in range(2, 1001)))]
    held = [Link(src="d0", dst="r0", kind="net", bandwidth=known(rate)) for rate in primes]
    held.append(Link(src="r0", dst="d1", kind="net", bandwidth=known(1)))
    graph = CompiledGraph(NAMES, held, HOSTS, RELAYS)
    assert graph.path("d0", "d1", (10**6, 1), None, over_hosts=False) == ["d0", "r0", "d1"]
    assert graph._scale == 1


def test_times_beyond_the_largest_float_are_compared_as_integers():
    primes = [p for p in range(10**6, 10**6 + 1000) if all(p % d for d in range(2, 1001))]
    held = [Link(src="d0", dst="r0", kind="net", bandwidth=known(rate)) for rate in primes]
    held += [Link(src=a, dst=b, kind="net", bandwidth=known(7)) for a, b in (("r0", "r1"), ("r1", "d1"))]
    graph = CompiledGraph(NAMES, held, HOSTS, RELAYS)
    assert graph._scale > 10**308
    assert graph.path("d0", "d1", (10**6, 1), None, over_hosts=False) == ["d0", "r0", "r1", "d1"]


def test_of_equal_times_the_fewest_links_win():
    ends = (("d0", "r0"), ("r0", "r1"), ("r1", "r2"), ("r2", "d1"), ("r0", "d1"))
    held = [Link(src=a, dst=b, kind="net", bandwidth=known(10**9)) for a, b in ends]
    assert CompiledGraph(NAMES, held, HOSTS, RELAYS).path("d0", "d1", (0, 1), None, over_hosts=False) == [
        "d0", "r0", "d1",
    ]  # fmt: skip


LARGE = """schema: kvwaybill/fleet/1
name: large
templates:
  box:
    devices: [{id: gpu, count: 8, sku: h100-sxm-80}]
    switches: [{id: nvswitch, kind: nvlink}]
    nics: [{id: nic, count: 8}]
    links:
      - {from: "gpu:*", to: nvswitch, kind: nvlink, bandwidth: 450 GB/s, peer_access: direct, bidirectional: true}
      - {from: host, to: "gpu:*", kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
      - {from: "gpu:*", to: "nic:*", each: pair, kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
  rack:
    nodes: [{id: n, template: box, count: 25}]
    switches: [{id: leaf, kind: net, tier: 1}]
    links: [{from: "n*/nic:*", to: leaf, kind: net, bandwidth: 400 Gb/s, bidirectional: true}]
nodes: [{id: rack, template: rack, count: 10}]
switches: [{id: spine, count: 4, kind: net, tier: 2}]
links: [{from: "rack*/leaf", to: "spine:*", each: all, kind: net, bandwidth: 400 Gb/s, peer_access: unknown, bidirectional: true}]
"""  # noqa: E501 - a row a line


def test_a_way_across_racks_of_two_thousand_gpus_looks_at_few_of_them():
    graph = machine_graph(load_fleet("large.yaml", text=LARGE))
    way = graph.way("rack0/n0/gpu:0", "rack9/n24/gpu:7", 2**20, 1)
    assert isinstance(way, UnknownWay)
    assert [link.dst for link in way.direct.hops[0].links] == [
        "rack0/n0/nic:0", "rack0/leaf", "spine:0", "rack9/leaf", "rack9/n24/nic:7", "rack9/n24/gpu:7",
    ]  # fmt: skip
    for node in range(24):
        _, calls = counted(lambda node=node: graph.way("rack0/n0/gpu:0", f"rack9/n{node}/gpu:7", 2**20, 1))
        assert calls < 10_000, "searching every memory took millions"
    inside = graph.way("rack0/n0/gpu:0", "rack0/n0/gpu:5", 2**20, 1)
    assert isinstance(inside, Way)
    assert not inside.staged


@pytest.mark.parametrize("over_hosts", [False, True])
def test_two_dead_ends_in_a_row_are_still_a_path(over_hosts):
    held = [
        Link(src=a, dst=b, kind="net", bandwidth=known(10**9)) for a, b in (("d0", "r0"), ("r0", "r1"), ("r1", "d1"))
    ]
    graph = CompiledGraph(NAMES, held, HOSTS, RELAYS)
    assert graph.path("d0", "d1", (1, 1), None, over_hosts=over_hosts) == ["d0", "r0", "r1", "d1"]
