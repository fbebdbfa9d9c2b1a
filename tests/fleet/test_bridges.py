"""Bridges that several cards hang below become switches, so that a plan knows what its copies share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.dump import fleet_yaml
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.readers import read_foreign
from fleet.readers.bridges import share_bridges
from fleet.readers.pcie import Slot
from planner.machine import MachineGraph, Way
from tests.command_line import Ask, asker

FAST, SLOW = 31_507_692_307, 15_753_846_153
"""PCIe 4.0 x16 and x8: 16 GT/s x lanes x 128/130 / 8."""


def pci(bus: str, inside: str, kind: str, width: int = 16) -> str:
    return f'<pci busid="{bus}" class="{kind}" link_speed="16 GT/s" link_width="{width}">{inside}</pci>\n'


def gpu(bus: str, number: int) -> str:
    return pci(bus, f'<gpu dev="{number}" sm="80"/>', "0x030200")


SWITCHED = (
    '<system version="1"><cpu numaid="0" affinity="0000000f">\n'
    + pci("0000:01:00.0", gpu("0000:02:00.0", 0) + gpu("0000:03:00.0", 1), "0x060400", width=8)
    + pci("0000:08:00.0", gpu("0000:09:00.0", 2), "0x060400")
    + "</cpu></system>"
)


def read(text: str = SWITCHED) -> Fleet:
    fleet = read_foreign(text, "topo.xml").fleet
    assert fleet is not None
    return fleet


def test_a_bridge_of_two_cards_is_a_switch_and_that_of_one_is_not() -> None:
    fleet = read()
    assert [switch.id for switch in fleet.switches] == ["pcie:0000:01:00.0"]
    ways = {(k.src, k.dst): k.bandwidth.value for k in fleet.links if not {k.src, k.dst} <= {"gpu:0", "gpu:1", "gpu:2"}}
    bridge = "pcie:0000:01:00.0"
    assert ways == {
        ("gpu:0", bridge): FAST, (bridge, "gpu:0"): FAST, ("gpu:1", bridge): FAST, (bridge, "gpu:1"): FAST,
        ("host", bridge): SLOW, (bridge, "host"): SLOW, ("host", "gpu:2"): FAST, ("gpu:2", "host"): FAST,
    }  # fmt: skip


def test_the_way_to_the_host_is_as_fast_as_without_the_switch() -> None:
    way = MachineGraph(read()).way("host", "gpu:0", SLOW, 1)
    assert isinstance(way, Way)
    [hop] = way.hops
    assert hop.seconds(SLOW, 1) == 1
    assert len(hop.links) == 2


def test_the_import_reads_back_as_the_same_fleet() -> None:
    fleet = read()
    assert load_fleet("again.yaml", text=fleet_yaml(fleet)).digest == fleet.digest


def test_a_latency_of_the_card_is_counted_once() -> None:
    fleet = read_foreign(SWITCHED, "topo.xml", sku="a100-sxm-40").fleet
    assert fleet is not None
    way = MachineGraph(fleet).way("host", "gpu:0", SLOW, 1)
    alone = MachineGraph(fleet).way("host", "gpu:2", FAST, 1)
    assert isinstance(way, Way)
    assert isinstance(alone, Way)
    assert way.hops[0].seconds(SLOW, 1) == alone.hops[0].seconds(FAST, 1)
    assert not way.hops[0].lower_bound


@pytest.mark.parametrize("change", ['link_speed="16 GT/s" link_width="8"', 'busid="0000:01:00.0"'])
def test_bridges_without_a_rate_or_a_fit_name_are_left_alone(change: str) -> None:
    text = SWITCHED.replace(change, 'busid="a b"' if "busid" in change else 'link_speed="" link_width="8"')
    fleet = read(text)
    assert fleet.switches == ()
    assert {(link.src, link.dst) for link in fleet.links if "host" in (link.src, link.dst)} >= {("host", "gpu:0")}


@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=3, unique=True), min_size=1, max_size=5))
@settings(max_examples=80, deadline=None)
def test_any_tree_leaves_each_card_its_way_to_the_host_and_back(ways: list[list[str]]) -> None:
    cards = "".join(gpu(f"0000:0{number}:00.0", number) for number in range(len(ways)))
    flat = read(f'<system version="1"><cpu numaid="0" affinity="0000000f">\n{cards}</cpu></system>')
    # The bridges above a bridge are the same for all that is below it: ways are suffixes of one order.
    slots = {
        f"gpu:{number}": Slot(hops=((f"card{number}", FAST), *((name, SLOW) for name in sorted(way))), root=0)
        for number, way in enumerate(ways)
    }
    graph = MachineGraph(share_bridges(flat, slots, "host", "test"))
    for card, slot in slots.items():
        slowest = min(rate for _, rate in slot.hops if rate is not None)
        for src, dst in (("host", card), (card, "host")):
            way = graph.way(src, dst, slowest, 1)
            assert isinstance(way, Way)
            seconds = way.hops[0].seconds(slowest, 1)
            assert seconds is not None
            assert seconds <= 1


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def test_a_plan_on_such_an_import_is_told_what_its_weights_share(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "topo.xml"
    path.write_text(SWITCHED)
    asked = ("--sku", "a100-sxm-40", "--prompt-tokens", "6", "--steps", "12", "-o", "json")
    plan = ask("admit", "--fleet", path, "--prefill", "gpu:0", "--decode", "gpu:1", *asked).document
    stage = [entry for entry in plan["contention"] if entry["phase"] == "stage"]
    assert [(entry["src"], entry["dst"]) for entry in stage] == [("host", "pcie:0000:01:00.0")]
    assert stage[0]["together_s"] >= stage[0]["bytes"] / SLOW
    apart = ask("admit", "--fleet", path, "--prefill", "gpu:0", "--decode", "gpu:2", *asked).document
    assert not [entry for entry in apart.get("contention", []) if entry["phase"] == "stage"]
