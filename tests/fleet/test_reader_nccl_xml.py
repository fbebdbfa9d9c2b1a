"""The topology XML of NCCL and RCCL: who is a GPU, links counted once, rates of slots, hostile XML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet
from fleet.readers import Reading
from fleet.readers.nccl_xml import matches, read
from fleet.readers.xml_source import MAX_DEPTH, root_tag
from tests.work import counted

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topology"


def card(bus: str, inside: str, speed: str = "16.0 GT/s PCIe", width: str = "16") -> str:
    return f'<pci busid="{bus}" class="0x030200" link_speed="{speed}" link_width="{width}">\n{inside}\n</pci>\n'


def system(*cpus: str) -> str:
    inside = "".join(f'<cpu numaid="{i}" affinity="0000000f">\n{cpu}</cpu>\n' for i, cpu in enumerate(cpus))
    return f'<system version="1">\n{inside}</system>\n'


def nvlink(target: str, count: str = "4", tclass: str = "0x030200") -> str:
    return f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'


A, B, C = "0000:0a:00.0", "0000:0b:00.0", "0000:0c:00.0"
PAIR = system(
    card(A, f'<gpu dev="1" sm="80">{nvlink(B)}</gpu>'),
    card(B, f'<gpu dev="0" sm="80">{nvlink(A)}</gpu>', "8 GT/s", "8"),
)


def reading_of(text: str) -> Reading:
    return read(text, "topo.xml")


def fleet_of(text: str) -> Fleet:
    fleet = reading_of(text).fleet
    assert fleet is not None
    return fleet


def ways(fleet: Fleet) -> dict[tuple[str, str], tuple[str, int, int | None]]:
    return {(k.src, k.dst): (k.kind, k.count, k.bandwidth.value) for k in fleet.links}


def faults_of(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        reading_of(text)
    return [str(fault) for fault in caught.value.faults]


def shared(name: str) -> tuple[Reading, dict[str, Any]]:
    if not SHARED.is_dir():
        pytest.skip("shared/data/topology is not beside the project")
    text = (SHARED / f"{name}.xml").read_text(encoding="utf-8")
    assert matches(text)
    expected = json.loads((SHARED / f"{name}.json").read_text(encoding="utf-8"))["expected"]
    assert expected.pop("status") == "ok"
    return read(text, name), expected


def joined(fleet: Fleet, kind: str) -> dict[str, int]:
    rows = [k for k in fleet.links if k.kind == kind and k.src < k.dst and k.src != "host" != k.dst]
    return {f"{k.src[4:]}-{k.dst[4:]}": k.count for k in rows}


@pytest.mark.shared
def test_bridges_without_a_class_are_not_taken_for_gpus() -> None:
    reading, expected = shared("nccl_aws_g5_48xl_bridges_only")
    assert reading.fleet is None
    (told,) = reading.warnings
    assert expected.pop("error_or_warning").startswith("no class on any <pci>: the kind of a device is unknown")
    assert told.startswith("no class on any <pci>: the kind of a device is unknown")
    assert expected == reading.notes


@pytest.mark.shared
def test_a_link_to_itself_is_dropped_and_an_empty_speed_is_unknown() -> None:
    reading, expected = shared("nccl_azure_ncv4_4gpu_self_nvlink")
    assert reading.fleet is not None
    assert expected.pop("nvlink_pairs") == list(joined(reading.fleet, "nvlink"))
    for said in expected.pop("warnings"):
        assert any(said.split(", must")[0] in told for told in reading.warnings), said
    assert [d.numa for d in reading.fleet.devices] == expected["numa"]
    assert expected.items() <= reading.notes.items()
    assert {k.bandwidth.value for k in reading.fleet.links} == {None}


@pytest.mark.shared
def test_gpus_are_known_by_class_and_find_their_nic() -> None:
    reading, expected = shared("nccl_azure_ndv5_8gpu")
    assert expected.pop("gpus_by") == "pci class 0x030200 (no <gpu> element)"
    assert "(unknown, not zero)" in expected.pop("nvlinks")
    assert "(PIX)" in expected.pop("same_switch")
    assert set(reading.notes["pcie"]) == {expected.pop("pcie")}
    assert expected.items() <= reading.notes.items()
    assert reading.notes["nvlink_stated"] is False
    assert any("unknown, not absent" in told for told in reading.warnings)
    near = reading.notes["gpu_nic_links"]
    for at, bus in enumerate(expected["gpu_busids"]):
        assert near[bus][at] == "PIX"
        assert "PIX" not in near[bus][:at] + near[bus][at + 1 :]
    assert reading.fleet is not None
    assert [d.pci for d in reading.fleet.devices] == expected["gpu_busids"]
    assert {k.bandwidth.value for k in reading.fleet.links} == {63_015_384_615}


@pytest.mark.shared
def test_an_odd_number_of_amd_cards_over_pcie() -> None:
    reading, expected = shared("rccl_3gpu_pcie")
    assert reading.fleet is not None
    assert expected.pop("xgmi") == list(joined(reading.fleet, "xgmi"))
    assert [expected.pop("nic")] == reading.notes["nics"]
    assert expected.items() <= reading.notes.items()
    assert ways(reading.fleet)["host", "gpu:0"] == ("pcie", 1, 31_507_692_307)


@pytest.mark.shared
def test_a_partial_mesh_counts_each_link_once() -> None:
    reading, expected = shared("rccl_8gpu_xgmi_partial_mesh")
    assert reading.fleet is not None
    assert joined(reading.fleet, "xgmi") == expected["xgmi_undirected"]
    assert len(joined(reading.fleet, "xgmi")) == expected.pop("n_xgmi_undirected")
    assert expected.pop("nic").items() <= reading.notes["nics"][0].items()
    assert expected.items() <= reading.notes.items()


def test_a_link_written_at_both_ends_is_counted_once() -> None:
    found = ways(fleet_of(PAIR))
    assert found["gpu:0", "gpu:1"] == found["gpu:1", "gpu:0"] == ("nvlink", 4, None)
    assert [d.pci for d in fleet_of(PAIR).devices] == [B, A]
    assert [d.numa for d in fleet_of(PAIR).devices] == [1, 0]


def test_the_rate_of_a_slot_is_the_slowest_hop() -> None:
    bridge = (
        f'<pci busid="0000:01:00.0" class="0x060400" link_speed="8.0 GT/s PCIe" link_width="16">{card(A, "")}</pci>'
    )
    assert ways(fleet_of(system(bridge)))["gpu:0", "host"][2] == 15_753_846_153
    assert ways(fleet_of(PAIR))["host", "gpu:0"][2] == 7_876_923_076
    for speed, width in (("", "16"), ("Unknown", "16"), ("16 GT/s", "0"), ("16 GT/s", "x"), ("17 GT/s", "16")):
        text = system(card(A, "", speed, width))
        assert ways(fleet_of(text))["host", "gpu:0"][2] is None
        assert any("PCIe rate unknown" in told for told in reading_of(text).warnings)


def test_lanes_to_switches_are_links_with_a_switch_that_all_copies_of_a_card_share() -> None:
    """They were once a mesh, in which a card could receive from every other at the full rate at once."""
    lanes = "".join(nvlink(f"0000:c{i}:00.0", "2", "0x068000") for i in range(6))
    text = system("".join(card(bus, f'<gpu dev="{i}">{lanes}</gpu>') for i, bus in enumerate((A, B, C))))
    reading = reading_of(text)
    assert reading.notes["nvswitch_lanes"] == {0: 12, 1: 12, 2: 12}
    fleet = fleet_of(text)
    assert [(s.id, s.kind, s.host) for s in fleet.switches] == [("nvswitch", "nvlink", "host")]
    links = {(k.src, k.dst): k for k in fleet.links if k.kind == "nvlink"}
    assert set(links) == {way for i in range(3) for way in ((f"gpu:{i}", "nvswitch"), ("nvswitch", f"gpu:{i}"))}
    assert {(k.count, k.peer_access, k.bandwidth.value) for k in links.values()} == {(12, "direct", None)}
    assert not [k for k in fleet.links if k.src.startswith("gpu") and k.dst.startswith("gpu")]
    known = read(text, "t", sku="a100-sxm-80").fleet
    assert known is not None
    assert {k.bandwidth.value for k in known.links if k.kind == "nvlink"} == {300 * 10**9}


def test_one_card_with_lanes_to_a_switch_reaches_no_other_by_them() -> None:
    text = system(card(A, f'<gpu dev="0">{nvlink("0000:c0:00.0", "2", "0x068000")}</gpu>') + card(B, "<gpu dev='1'/>"))
    assert fleet_of(text).switches == ()
    assert ways(fleet_of(text))["gpu:0", "gpu:1"][0] == "pcie"


def test_lanes_to_a_cpu_are_a_link_with_the_host() -> None:
    text = system(card(A, f'<gpu dev="0">{nvlink("0004:05:00.0", "3", "0x068001")}</gpu>'))
    kinds = {(k.kind, k.count) for k in fleet_of(text).links if k.src == "host"}
    assert kinds == {("nvlink", 3), ("pcie", 1)}


def test_the_display_chip_of_a_board_is_no_gpu() -> None:
    chip = '<pci busid="0000:02:00.0" class="0x030000" vendor="0x1a03"/>'
    assert len(fleet_of(system(chip + card(A, ""))).devices) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (system(card(A, f'<gpu dev="0">{nvlink(C)}</gpu>')), "is nothing that this file describes"),
        (system(card(A, f'<gpu dev="0">{nvlink(A, "")}</gpu>')), "has no count of lanes"),
        (system(card(A, f'<gpu dev="0">{nvlink(A, "-2")}</gpu>')), "count='-2' must be a whole number"),
        (
            system(card(A, f'<gpu dev="0">{nvlink(B)}</gpu>'), card(B, f'<gpu dev="1">{nvlink(A, "5")}</gpu>')),
            "5 lanes back",
        ),
        (system(card(A, '<gpu dev="0"/>'), card(B, '<gpu dev="0"/>')), "dev 0 is also the GPU of line 3"),
        (system(card(A, '<gpu dev="100"/>')), "from 0 to 99"),
        (system(card(A, f'<gpu dev="0">{nvlink(C, "600", "0x068000") * 2}</gpu>')), "1200 lanes"),
        (system(card(A, "") + card(A, "")), "stands twice, first in line 3"),
        (system(card("", "")), "has no busid"),
        (system('<pci busid="0000:01:00.0" class="0x020700"/>'), "holds no GPU"),
        (system(), "no device is described"),
        (system(card(A, "")).replace("0000000f", "xyz"), "no list of hex words"),
        (system(card(A, "")).replace('numaid="0"', 'numaid="zero"'), "numaid='zero'"),
        (system(card(A, "")).replace("<cpu", '<cpu host_hash="0x1"') + "", None),
        ('<system><cpu host_hash="1"/><cpu host_hash="2"/></system>', "describes 2 hosts"),
        ("<system><cpu></system>", "mismatched tag"),
        ("<sistem/>", "where <system> was looked for"),
        ("no xml", "syntax error"),
        ("<system>&b;</system>", "undefined entity"),
        ('<!DOCTYPE system SYSTEM "x.dtd"><system/>', "document type"),
        ('<!DOCTYPE s [<!ENTITY a "aa">]><system>&a;</system>', "document type"),
        ("<a>" * (MAX_DEPTH + 1), "nested deeper"),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str | None) -> None:
    if said is None:
        assert fleet_of(text).devices
        return
    told = faults_of(text)
    assert any(said in fault for fault in told), told


def test_nested_entities_are_refused_before_they_grow() -> None:
    levels = "".join(f'<!ENTITY e{i + 1} "{f"&e{i};" * 10}">' for i in range(12))
    text = f'<!DOCTYPE system [<!ENTITY e0 "ha">{levels}]><system>&e12;</system>'
    faults, calls = counted(lambda: faults_of(text))
    assert "document type" in faults[0]
    assert calls < 1_000


@pytest.mark.parametrize(
    "text", ["<!-- x -->" * 5000, "<?a?><!-- " * 5000, "<!DOCTYPE a [" * 999, " " * 99, "<", "x<system/>"]
)
def test_a_root_is_looked_for_in_linear_time(text: str) -> None:
    assert root_tag(text) is None
    assert (
        root_tag("\ufeff<?xml version='1.0'?>\n<!-- <a> -->\n<!DOCTYPE b [<!ENTITY c 'd'>]>\n<system version='1'>")
        == "system"
    )


def reads_or_tells(text: str) -> None:
    matches(text)
    faults: tuple[Fault, ...] | None = None
    try:
        reading_of(text)
    except DescriptionError as error:
        faults = error.faults
    assert faults is None or faults
    assert all(fault.message and str(fault).isprintable() for fault in faults or ())


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60), st.text('<>="/&; pcigunvlk0x3:.', max_size=60))
def test_any_text_is_read_or_told(text: str, markup: str) -> None:
    for given_text in (text, markup, f"<system>{markup}</system>", system(card(A, markup))):
        reads_or_tells(given_text)


@settings(max_examples=250, deadline=None)
@given(st.integers(0, 700), st.integers(0, 12), st.text('<>="/ 0123456789abcx:.\ud800\x00', max_size=6))
def test_a_mutated_file_is_read_or_told(at: int, cut: int, put: str) -> None:
    reads_or_tells(PAIR[:at] + put + PAIR[at + cut :])


def bridge(bus: str, inside: str) -> str:
    return f'<pci busid="{bus}" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">\n{inside}</pci>\n'


def test_bridges_that_share_a_bus_id_are_bridges_of_their_own() -> None:
    """RCCL's files of hosts with hidden downstream ports hold them; a device that stands twice stays a fault."""
    port = "0000:c5:00.0"
    text = system(
        bridge(port, card(A, "<gpu dev='0'/>") + card(B, "<gpu dev='1'/>")) + bridge(port, card(C, "<gpu dev='2'/>"))
    )
    reading = reading_of(text)
    assert reading.fleet is not None
    assert [d.pci for d in reading.fleet.devices] == [A, B, C]
    assert [s.id for s in reading.fleet.switches] == [f"pcie:{port}"]
    assert ("pcie:" + port, "gpu:2") not in ways(reading.fleet)
    assert any(f"busid {port} is a bridge's and stands in line 3 too" in told for told in reading.warnings)
    nic = f'<pci busid="{port}" class="0x020700"><nic><net name="mlx5_0" speed="1"/></nic></pci>'
    assert fleet_of(system(bridge(port, card(A, "<gpu dev='0'/>") + nic))).devices[0].pci == A


def test_display_chips_are_no_gpus_and_accelerators_of_amd_are() -> None:
    chip = '<pci busid="0000:01:00.0" class="0x030000" vendor="0x{vendor}" device="0x{device}"/>\n'
    chips = "".join(
        chip.format(vendor=vendor, device=device).replace(":01:", f":{n:02}:")
        for n, (vendor, device) in enumerate(
            (("1a03", "2000"), ("102b", "0538"), ("1002", "515e"), ("1234", "1111")), 1
        )
    )
    accelerator = '<pci busid="0000:75:00.0" class="0x120000" vendor="0x1002" device="0x74a1"/>\n'
    assert [d.pci for d in fleet_of(system(chips + accelerator)).devices] == ["0000:75:00.0"]
