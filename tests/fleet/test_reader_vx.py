"""Vx machine files: the grammar, the shared files and their right readings, and the way to a Fleet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.digest import fleet_digest
from fleet.errors import DescriptionError
from fleet.readers import Reading, read_foreign, recognise, vx
from fleet.readers.vx_costs import cost_ps, route
from fleet.readers.vx_grammar import parse_machine, scaled
from fleet.readers.vx_machine import BUILT_IN_SPACES, Rate
from fleet.readers.vx_verdicts import check
from fleet.units import UnitError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "vx_fleet"
FILES = ("a100-40", "h100-sxm", "host-x86-e5-2666v3", "mi300x", "node-2gpu-a100", "node-2gpu-h100", "node-8gpu")

PAIR = """
// spec: a data sheet (verified 2026-08-03) -- 80 GB
Memory HBM { capacity: 80 GiB, bandwidth: 3.35 TB/s, managed: explicit, scope: device }
Memory L2 { within: Memory::HBM, capacity: 50 MiB, bandwidth: 12 TB/s, managed: cached, scope: device }
// policy: chosen
Memory PEER_HBM { capacity: 80 GiB bandwidth: 3.35 TB/s scope: device granule: 2 MiB }
Topology Node {
  arch: nvptx64,
  memory: Memory::HBM,
  visible: [Memory::HBM, Memory::L2, Memory::PEER_HBM,],
  dtypes: [f32, bf16],
  // measured: a probe, UNVERIFIED elsewhere
  transfer Memory::CPU_DRAM -> Memory::HBM : 63 GB/s,
  transfer Memory::HBM -> Memory::L2
  transfer Memory::HBM -> Memory::PEER_HBM : 450 GB/s copy_engine,
  transfer Memory::PEER_HBM -> Memory::HBM : 300 relaxed sync
}
"""


def shared(name: str) -> tuple[str, dict[str, Any]]:
    if not SHARED.is_dir():
        pytest.skip("shared/data/vx_fleet is not beside the project")
    expected = json.loads((SHARED / "expected.json").read_text(encoding="utf-8"))["files"]
    return (SHARED / f"{name}.vx").read_text(encoding="utf-8"), expected[f"{name}.vx"]


def faults(text: str) -> str:
    with pytest.raises(DescriptionError) as told:
        vx.read(text, "m.vx")
    return str(told.value)


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_every_expectation_of_a_shared_machine_file_is_met(name: str) -> None:
    text, expected = shared(name)
    assert set(expected) <= {
        "errors", "capacity_bytes", "edges", "no_route", "builtin_spaces", "kind", "bandwidth_Bps",
    }  # fmt: skip
    machine = parse_machine(text, f"{name}.vx")
    assert [f.code for f in check(machine) if f.code[0] == "E"] == expected["errors"]
    assert {space.name: space.capacity for space in machine.spaces} == expected["capacity_bytes"]
    for space, rate in expected.get("bandwidth_Bps", {}).items():
        found = machine.space(space)
        assert found is not None
        assert found.bandwidth == Rate(value=rate)
    if "builtin_spaces" in expected:
        assert [name for name in machine.mentioned if machine.space(name) is None] == expected["builtin_spaces"]
        assert set(expected["builtin_spaces"]) <= set(BUILT_IN_SPACES)
    assert machine.is_host == (expected.get("kind") == "host")
    for way in expected.get("no_route", ()):
        assert route(machine, *way.split("->")) is None


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_every_edge_of_a_shared_machine_file_has_the_expected_rate_cost_and_route(name: str) -> None:
    text, expected = shared(name)
    machine = parse_machine(text, f"{name}.vx")
    for way, facts in expected.get("edges", {}).items():
        src, dst = way.split("->")
        assert set(facts) <= {"rate", "ps_for_1GiB", "why", "copy_engine", "route", "note"}
        edges = [edge for edge in machine.edges if (edge.src, edge.dst) == (src, dst)]
        assert len(edges) == (0 if "route" in facts else 1)
        if "rate" in facts:
            assert edges[0].rate == Rate(value=facts["rate"])
        if "copy_engine" in facts:
            assert edges[0].copy_engine is facts["copy_engine"]
        if "ps_for_1GiB" in facts:
            assert cost_ps(machine, src, dst, 2**30) == facts["ps_for_1GiB"]
        if "route" in facts:
            assert route(machine, src, dst) == tuple(facts["route"])
            hops = [cost_ps(machine, a, b, 2**30) for a, b in zip(facts["route"], facts["route"][1:], strict=False)]
            assert cost_ps(machine, src, dst, 2**30) == sum(hop or 0 for hop in hops)


@pytest.mark.shared
@pytest.mark.parametrize("name", FILES)
def test_a_shared_machine_file_is_recognised_and_becomes_a_fleet_of_the_same_figures(name: str) -> None:
    text, expected = shared(name)
    assert recognise(text) == "vx"
    reading = read_foreign(text, f"{name}.vx")
    if expected.get("kind") == "host":
        assert reading.fleet is None
        assert any("host file" in told for told in reading.warnings)
        return
    fleet = reading.fleet
    assert fleet is not None
    for device in fleet.devices:
        assert device.memory.capacity.value == expected["capacity_bytes"][reading.notes["spaces"][device.id]]
    assert [device.topology_id for device in fleet.devices] == [500, 501][: len(fleet.devices)]
    assert len(fleet.devices) == (2 if name.startswith("node") else 1)
    assert not [link for link in fleet.links if link.dst == "host"], "no way home is declared, so none may appear"
    assert fleet.digest == fleet_digest(fleet)


@pytest.mark.shared
def test_a_peer_space_of_seven_is_warned_about_and_can_be_split() -> None:
    text, _ = shared("node-8gpu")
    reading = vx.read(text, "node-8gpu.vx")
    assert any("gpu:1" in told and "7 devices" in told and "80 GiB" in told for told in reading.warnings)
    assert any("HBM -> NIC_RAM is left out" in told for told in reading.warnings)
    split = vx.to_fleet(reading.notes["vx"], split_peers=True)
    assert [device.memory.capacity.value for device in split.devices] == [80 * 2**30] * 8
    assert [device.topology_id for device in split.devices] == list(range(500, 508))
    assert len([link for link in split.links if link.src == "gpu:0"]) == 7
    assert not any("stands for" in told for told in split.warnings)


def pair() -> Reading:
    return vx.read(PAIR, "pair.vx")


def test_a_machine_becomes_devices_with_inner_memories_and_its_own_edges_only() -> None:
    fleet = pair().fleet
    assert fleet is not None
    assert fleet.name == "pair"
    first, second = fleet.devices
    assert [(m.name, m.role, m.within) for m in first.memories] == [("HBM", "main", None), ("L2", "cache", "HBM")]
    assert [m.name for m in second.memories] == ["PEER_HBM"]
    assert first.arch == second.arch == "nvptx64"
    assert second.memory.granule.value == 2 * 2**20
    assert (first.where, first.capacity_field) == ("pair.vx:3", "Memory HBM.capacity")
    links = {(link.src, link.dst): link for link in fleet.links}
    assert set(links) == {("host", "gpu:0"), ("gpu:0", "gpu:1"), ("gpu:1", "gpu:0")}
    assert (links["gpu:0", "gpu:1"].kind, links["gpu:0", "gpu:1"].peer_access) == ("nvlink", "direct")
    assert links["gpu:1", "gpu:0"].bandwidth.value is None, "a plain weight is no rate"
    assert links["host", "gpu:0"].peer_access is None


def test_origin_comes_from_the_comment_right_above_a_figure() -> None:
    fleet = pair().fleet
    assert fleet is not None
    capacity = fleet.devices[0].memory.capacity.declared
    chosen = fleet.devices[1].memory.capacity.declared
    probe = next(link for link in fleet.links if link.src == "host").bandwidth.declared
    assert capacity is not None
    assert chosen is not None
    assert probe is not None
    assert (capacity.provenance, capacity.verified) == ("spec", True)
    assert "a data sheet" in capacity.source
    assert (chosen.provenance, chosen.verified) == ("policy", False)
    assert (probe.provenance, probe.verified) == ("measured", False)


def test_dispatch_ids_of_topologies_and_spaces_are_in_the_notes() -> None:
    notes = pair().notes
    assert notes["topology_ids"] == {"Node": 879234789}
    assert notes["space_ids"]["HBM"] == 1855308478
    assert notes["space_ids"]["PEER_HBM"] == 489426827
    assert notes["space_ids"]["CPU_DRAM"] == 0
    assert notes["spaces"] == {"gpu:0": "HBM", "gpu:1": "PEER_HBM"}


def test_assumed_host_links_are_unpriced_marked_policy_and_change_the_digest() -> None:
    fleet = pair().fleet
    assert fleet is not None
    more = vx.assume_host_return(fleet)
    added = {(k.src, k.dst): k for k in more.links if k not in fleet.links}
    assert set(added) == {("gpu:0", "host"), ("gpu:1", "host"), ("host", "gpu:1")}
    assert all(link.bandwidth.value is None and "policy" in link.where for link in added.values())
    assert more.digest != fleet.digest
    assert sum("policy" in told and "without a rate" in told for told in more.warnings) == 3
    assert vx.assume_host_return(more).digest == more.digest


def test_a_cpu_machine_gets_cpu_devices() -> None:
    text = PAIR.replace("nvptx64", "x86_64")
    fleet = vx.read(text, "xeon.vx").fleet
    assert fleet is not None
    assert [(d.id, d.kind) for d in fleet.devices] == [("cpu:0", "cpu"), ("cpu:1", "cpu")]
    assert fleet.devices[0].topology_id == 0
    assert fleet.devices[1].topology_id > 3000


def test_the_order_of_blocks_and_fields_does_not_matter() -> None:
    blocks = PAIR.strip().split("Topology Node")
    turned = "Topology Node" + blocks[1] + "\n\n" + blocks[0]
    ours, theirs = vx.read(PAIR, "p.vx").fleet, vx.read(turned.replace("\n", "\r\n"), "p.vx").fleet
    assert ours is not None
    assert theirs is not None
    assert ours.digest == theirs.digest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.35 TB", 3_350_000_000_000),
        ("2039 GB", 2_039_000_000_000),
        ("80 GiB", 85_899_345_920),
        ("228 KiB", 233_472),
        ("1.5 KiB", 1536),
        ("7.7 TB", 7_700_000_000_000),
        ("18446744073709551615 B", 2**64 - 1),
    ],
)
def test_sizes_are_exact(text: str, value: int) -> None:
    machine = parse_machine(f"Memory HBM {{ capacity: {text} }}", "m.vx")
    assert machine.spaces[0].capacity == value


def test_clocks_are_exact() -> None:
    machine = parse_machine("Memory S { clock: 1.98 GHz } Memory T { clock: 480 MHz }", "m.vx")
    assert [space.clock for space in machine.spaces] == [1_980_000_000, 480_000_000]


@pytest.mark.parametrize(
    "text",
    ["1.1 KiB", "3.3.5 TB", "1e9 B", "-4 B", "+4 B", "GiB", "80", "80 Gb", "80 gb", "80 KIB", "99999999 PiB", "1_0 B",
     "80 GB/s", "", "9" * 100 + " B"],
)  # fmt: skip
def test_refuses_a_size_that_vx_refuses(text: str) -> None:
    assert "m.vx:1:" in faults(f"Memory HBM {{ capacity: {text} }}")


@pytest.mark.parametrize(
    "field",
    ["clock: 1 KHz", "clock: 1.5 Hz", "clock: 0 Hz", "bandwidth: 3 TB", "bandwidth: 3 TB/m", "bandwidth: 3 Mb/s"],
)
def test_refuses_a_clock_or_rate_that_vx_refuses(field: str) -> None:
    assert "m.vx:1:" in faults(f"Memory HBM {{ {field} }}")


@given(st.integers(0, 2**64 - 1), st.integers(0, 12))
def test_a_mantissa_is_scaled_exactly_or_refused(value: int, places: int) -> None:
    text = f"{value:0{places + 1}d}"
    text = text[: len(text) - places] + ("." + text[len(text) - places :] if places else "")
    if value % 10**places:
        with pytest.raises(UnitError):
            scaled(text, 1)
    else:
        assert scaled(text, 1) == value // 10**places


@pytest.mark.parametrize("head", ["fn main() {}", "import std", "let x = 3", "#![a]", "Memory {", "struct A {}"])
def test_refuses_a_program_file(head: str) -> None:
    assert "is a Vx program" in faults(f"{PAIR}\n{head}\n")


def test_a_program_is_recognised_so_that_it_can_be_refused() -> None:
    text = "fn main(x: Tensor<f32, Memory::HBM>) {\n}\n"
    assert recognise(text) == "vx"
    assert "is a Vx program" in faults(text)


def test_refuses_repeated_names_and_fields_with_both_lines() -> None:
    told = faults("Memory HBM { capacity: 1 GiB,\n capacity: 2 GiB }\nMemory HBM { overcommit overcommit }\n")
    assert "m.vx:2:2 capacity is given twice in Memory HBM, first at line 1" in told
    assert "m.vx:3:8 Memory HBM is given twice, first at line 1" in told
    assert "overcommit is given twice" in told


def test_refuses_a_transfer_that_is_declared_twice() -> None:
    edge = "transfer Memory::A -> Memory::B : 1 GB/s"
    assert "given twice in Topology T, first at line 1" in faults(f"Topology T {{ memory: Memory::A, {edge}\n{edge} }}")


def test_tells_all_faults_at_once_with_hints() -> None:
    told = faults(
        "Memory HBM { capcity: 80 GiB, bandwith: 3 TB/s, scope: devise, managed: cash, replicas: 0, within: HBM }\n"
        "Topology T { arch: 3, visible: [Memory::HBM Memory::L2], transfer Memory::A > Memory::B, "
        "transfer Memory::A -> Memory::B : 4294967296, transfer Memory::B -> Memory::A : 5 GB }\n"
    ).splitlines()
    assert len(told) == 12
    for word in ("did you mean capacity?", "did you mean bandwidth?", "did you mean device?", "did you mean cached?",
                 "0 replicas", "names no memory", "4294967295", "no unit of a rate"):  # fmt: skip
        assert any(word in line for line in told), word


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Memory HBM { capacity: 1 GiB", "is not closed"),
        ("Memory HBM capacity", "{ expected"),
        ("// nothing\n", "declares neither"),
        ("Topology T { }", "names no memory"),
        ("Topology T { memory: Memory::HBM transfer Memory::A -> Memory::B : 0 GB/s }", "carries nothing"),
        ("".join(f"Memory A{i} {{}}\n" for i in range(600)), "more than 500"),
        ("a " * 1000, "is a Vx program"),
        ("Memory HBM {" + "capacity " * 300_000, "more than 200,000 words"),
    ],
)
def test_refuses_what_is_no_machine_file(text: str, word: str) -> None:
    with pytest.raises(DescriptionError, match=word.replace("{", r"\{")):
        parse_machine(text, "m.vx")


def test_refuses_a_machine_without_a_device_and_figures_beyond_63_bits() -> None:
    assert "describes no device" in faults("Memory HBM { capacity: 1 GiB, scope: device }")
    big = PAIR.replace("80 GiB bandwidth", "9223372036854775808 B bandwidth")
    assert "beyond 2^63-1" in faults(big)


def test_an_owner_that_is_not_declared_has_an_unknown_capacity() -> None:
    reading = vx.read("Topology T { memory: Memory::HBM, transfer Memory::CPU_DRAM -> Memory::HBM : 1 GB/s }", "m.vx")
    assert reading.fleet is not None
    assert reading.fleet.devices[0].memory.capacity.value is None
    assert any("not declared" in told for told in reading.warnings)


def test_scratchpads_of_the_vocabulary_are_no_devices() -> None:
    text = PAIR.replace("Topology Node {", "Memory SMEM { capacity: 1 KiB, scope: device }\nTopology Node {\n"
                        " transfer Memory::HBM -> Memory::SMEM,")  # fmt: skip
    fleet = vx.read(text, "m.vx").fleet
    assert fleet is not None
    assert [device.id for device in fleet.devices] == ["gpu:0", "gpu:1"]


def test_a_sku_is_told_to_be_of_no_use() -> None:
    assert any("--sku" in told for told in vx.read(PAIR, "m.vx", sku="l40s").warnings)


_PIECES = st.sampled_from(
    ["Memory", "Topology", "HBM", "{", "}", "[", "]", ":", "::", "->", ",", "/", "capacity", "bandwidth", "transfer",
     "80", "3.5", "GiB", "TB", "s", "cyc", "within", "scope", "device", "memory", "visible", "relaxed", "\n", "//"]
)  # fmt: skip


def _never_breaks(text: str) -> None:
    vx.matches(text)
    try:
        reading = vx.read(text, "m.vx")
    except DescriptionError as error:
        assert error.faults  # noqa: PT017 - a refusal is one of the two good ends
    else:
        assert reading.fleet is None or reading.fleet.devices


@given(st.lists(_PIECES, max_size=60).map(" ".join) | st.text(max_size=80))
@settings(max_examples=150, deadline=None)
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    _never_breaks(text)


@given(st.integers(0, len(PAIR)), st.integers(0, 30), _PIECES | st.text(max_size=5))
@settings(max_examples=200, deadline=None)
def test_a_damaged_machine_file_is_read_or_refused_in_words(at: int, cut: int, put: str) -> None:
    _never_breaks(PAIR[:at] + put + PAIR[at + cut :])


def test_a_machine_of_thousands_of_edges_is_read_and_a_larger_one_refused() -> None:
    spaces = "".join(f"Memory M{i} {{ scope: device, capacity: 1 GiB }}\n" for i in range(60))
    ways = [f"transfer Memory::M{i} -> Memory::M{j} : 1 GB/s\n" for i in range(60) for j in range(60) if i != j]
    fleet = vx.read(f"{spaces}Topology T {{ memory: Memory::M0 {''.join(ways)} }}", "m.vx").fleet
    assert fleet is not None
    assert len(fleet.links) == len(ways)
    more = "".join(f"transfer Memory::N{i} -> Memory::N{i + 1} : 1\n" for i in range(6000))
    assert "more than 5,000 transfers" in faults(f"Topology T {{ memory: Memory::M0 {more} }}")
