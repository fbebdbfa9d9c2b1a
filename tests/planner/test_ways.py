"""Ways over switches and NICs: one copy through what only passes bytes on, host memory where a copy must rest."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from fleet.machine import Fleet, Host, Link, Nic, Switch
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.machine import MachineGraph, NoWay, UnknownWay, Way
from planner.request import Request
from tests.planner.fleets import GB, device, host_links, known, llama2c, pair

US = 10**6


def both(a: str, b: str, kind: str, rate: int, access: str | None, latency: int | None = US) -> list[Link]:
    """Links in both directions."""
    held = {"bandwidth": known(rate * GB), "peer_access": access}
    if latency is not None:
        held["latency"] = known(latency)
    return [Link(src=s, dst=d, kind=kind, **held) for s, d in ((a, b), (b, a))]  # type: ignore[arg-type]  # table


def switched(access: str | None = "direct", second: str | None = "direct") -> Fleet:
    """Two GPUs that meet at an NVSwitch, each with host links."""
    links = [*host_links("gpu:0"), *host_links("gpu:1")]
    links += both("gpu:0", "nvswitch:0", "nvlink", 450, access) + both("gpu:1", "nvswitch:0", "nvlink", 400, second)
    devices = (device("gpu:0", topology_id=500), device("gpu:1", topology_id=501))
    switch = Switch(id="nvswitch:0", kind="nvswitch")
    return Fleet(name="switched", hosts=(Host(id="host"),), devices=devices, links=tuple(links), switches=(switch,))


def test_a_copy_through_a_switch_is_one_copy_at_the_slowest_rate() -> None:
    way = MachineGraph(switched()).way("gpu:0", "gpu:1", 400 * GB, 3)
    assert isinstance(way, Way)
    [hop] = way.hops
    assert [(link.src, link.dst) for link in hop.links] == [("gpu:0", "nvswitch:0"), ("nvswitch:0", "gpu:1")]
    assert hop.kind == "nvlink"
    assert hop.seconds(400 * GB, 3) == 1 + Fraction(3 * 2, 10**6)


@pytest.mark.parametrize(("access", "second"), [("direct", "unknown"), ("unknown", "unknown"), (None, "direct")])
def test_a_way_over_switches_is_unknown_when_one_of_its_links_is(access: str | None, second: str) -> None:
    assert isinstance(MachineGraph(switched(access, second)).way("gpu:0", "gpu:1", 1, 1), UnknownWay)


def test_a_way_over_switches_is_staged_when_one_of_its_links_is() -> None:
    way = MachineGraph(switched("direct", "staged")).way("gpu:0", "gpu:1", 1, 1)
    assert isinstance(way, Way)
    assert [(hop.src, hop.dst) for hop in way.hops] == [("gpu:0", "host"), ("host", "gpu:1")]
    assert way.staged


def test_a_plan_over_a_switch_has_one_leg_and_names_its_segments() -> None:
    asked = Request(prompt_tokens=14, steps=40)
    placement = Placement(prefill="gpu:0", decode="gpu:1")
    prediction = admit(Ask(fleet=switched(), model=llama2c(), request=asked, placement=placement)).prediction
    assert prediction is not None
    [leg] = prediction.handoff_rows[0].legs or ()
    assert (leg.src, leg.dst, leg.kind, leg.bytes, leg.copies) == ("gpu:0", "gpu:1", "p2p", 8_960, 5)
    assert leg.segments == (("gpu:0", "nvswitch:0"), ("nvswitch:0", "gpu:1"))


def two_nodes() -> Fleet:
    """A GPU a node; the hosts are joined by NICs and a leaf switch."""
    links: list[Link] = []
    for node in ("node0", "node1"):
        links += both(f"{node}/gpu:0", f"{node}/host", "pcie", 50, None)
        links += both(f"{node}/host", f"{node}/nic0", "pcie", 60, None) + both(f"{node}/nic0", "leaf", "net", 25, None)
    devices = tuple(
        replace(device(f"{node}/gpu:0", topology_id=3000 + i), host=f"{node}/host")
        for i, node in enumerate(("node0", "node1"))
    )
    nics = tuple(Nic(id=f"{node}/nic0", host=f"{node}/host") for node in ("node0", "node1"))
    hosts = tuple(Host(id=f"{node}/host") for node in ("node0", "node1"))
    return Fleet(
        name="nodes",
        hosts=hosts,
        devices=devices,
        links=tuple(links),
        nics=nics,
        switches=(Switch(id="leaf", kind="net"),),
    )


def test_between_nodes_a_copy_rests_in_both_hosts() -> None:
    way = MachineGraph(two_nodes()).way("node0/gpu:0", "node1/gpu:0", 10**6, 1)
    assert isinstance(way, Way)
    assert [(hop.src, hop.dst, hop.kind) for hop in way.hops] == [
        ("node0/gpu:0", "node0/host", "pcie"),
        ("node0/host", "node1/host", "pcie+net"),
        ("node1/host", "node1/gpu:0", "pcie"),
    ]


def test_nothing_is_relayed_through_another_device() -> None:
    fleet = pair()
    chain = [*host_links("gpu:0"), *both("gpu:0", "gpu:1", "nvlink", 450, "direct")]
    way = MachineGraph(replace(fleet, links=tuple(chain))).way("host", "gpu:1", 1, 1)
    assert isinstance(way, NoWay)


def test_of_two_direct_ways_the_size_decides() -> None:
    links = [*both("gpu:0", "gpu:1", "pcie", 1, "direct", 1), *both("gpu:0", "gpu:1", "nvlink", 400, "direct", 50 * US)]
    graph = MachineGraph(replace(pair(), links=tuple(links)))

    def kind(nbytes: int) -> str:
        way = graph.way("gpu:0", "gpu:1", nbytes, 1)
        assert isinstance(way, Way)
        return way.hops[0].kind

    assert (kind(100), kind(10**9)) == ("pcie", "nvlink")
