"""System files of aiconfigurator: one card and one node, bare numbers, fields that vary from card to card."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from fleet.readers import aiconfigurator, read_foreign, recognise

SYSTEM = """# a header
data_dir: data/some_sxm # relative
gpu:
  mem_bw: 3350000000000 # 3.35TB/s
  mem_bw_empirical_scaling_factor: 0.8 # by observation
  mem_empirical_constant_latency: 0.000003
  mem_capacity: 85520809984 # what the device reports
  bfloat16_tc_flops: 989000000000000
  power: 700 # Watt
  sm_version: 90
  a_field_of_this_card_only: 7

node:
  num_gpus_per_node: 4
  inter_node_bw: 50000000000
  intra_node_bw: 450000000000
  pcie_bw: 64000000000
  p2p_latency: 0.00001

misc:
  nccl_mem:
    1: 0
    2: 358612992
  other_mem: 3758096384
  nccl_version: '2.26.20'"""


def fleet_of(text: str, sku: str | None = None) -> Fleet:
    fleet = read_foreign(text, "sys.yaml", sku=sku).fleet
    assert fleet is not None
    return fleet


def refusal(text: str) -> str:
    with pytest.raises(DescriptionError) as told:
        aiconfigurator.read(text, "sys.yaml")
    return str(told.value)


def test_is_recognised_without_a_final_newline() -> None:
    assert recognise(SYSTEM) == "aiconfigurator"
    assert recognise(SYSTEM.replace("\n", "\r\n")) == "aiconfigurator"
    assert recognise("schema: kvwaybill/fleet/1\nname: x\ndevices: []\n") is None


def test_one_node_of_equal_cards_each_joined_to_every_other_and_to_the_host() -> None:
    fleet = fleet_of(SYSTEM)
    assert [device.id for device in fleet.devices] == ["gpu:0", "gpu:1", "gpu:2", "gpu:3"]
    assert {device.memory.capacity.value for device in fleet.devices} == {85520809984}
    assert {device.memory.bandwidth.value for device in fleet.devices} == {3350 * 10**9}
    assert fleet.devices[0].arch == "Hopper"
    assert fleet.devices[0].capacity_field == "gpu.mem_capacity"
    between = [link for link in fleet.links if "host" not in (link.src, link.dst)]
    slots = [link for link in fleet.links if "host" in (link.src, link.dst)]
    assert len(between) == 12
    assert len(slots) == 8
    assert {(k.kind, k.bandwidth.value, k.latency.value, k.peer_access) for k in between} == {
        ("nvlink", 450 * 10**9, 10_000_000, "direct")
    }
    assert {(k.kind, k.bandwidth.value, k.peer_access) for k in slots} == {("pcie", 64 * 10**9, None)}


def test_figures_name_their_line_and_count_as_unverified_and_the_latency_as_a_policy() -> None:
    fleet = fleet_of(SYSTEM)
    capacity = fleet.devices[0].memory.capacity.declared
    latency = next(k for k in fleet.links if k.dst == "gpu:1" and k.src == "gpu:0").latency.declared
    assert capacity is not None
    assert latency is not None
    assert (capacity.provenance, capacity.verified, capacity.source) == ("spec", False, "sys.yaml:7")
    assert latency.provenance == "policy"


def test_what_a_fleet_cannot_hold_is_in_the_notes_extra_fields_too() -> None:
    notes = aiconfigurator.read(SYSTEM, "s").notes
    assert notes["gpu"]["a_field_of_this_card_only"] == 7
    assert notes["gpu"]["mem_bw_empirical_scaling_factor"] == 0.8
    assert notes["misc"]["nccl_mem"] == {"1": 0, "2": 358612992}
    assert notes["misc"]["other_mem"] == 3758096384
    assert notes["misc"]["nccl_version"] == "2.26.20"
    assert notes["node"]["inter_node_bw"] == 50 * 10**9


def test_a_capacity_as_sold_is_warned_about_and_a_reported_one_is_not() -> None:
    assert not any("as sold" in told for told in fleet_of(SYSTEM).warnings)
    sold = fleet_of(SYSTEM.replace("85520809984", "85899345920"))
    assert any("as sold" in told and "80 GiB" in told for told in sold.warnings)


def test_rates_no_faster_than_the_slot_are_pcie_and_peer_access_stays_unknown() -> None:
    fleet = fleet_of(SYSTEM.replace("450000000000", "28400000000"))
    assert {(k.kind, k.peer_access) for k in fleet.links if "host" not in (k.src, k.dst)} == {("pcie", "unknown")}


def test_a_rate_that_sums_both_directions_is_warned_about() -> None:
    fleet = fleet_of(SYSTEM.replace("450000000000", "900000000000"))
    assert any("both-directions" in told for told in fleet.warnings)


def test_what_is_left_out_stays_unknown() -> None:
    lines = [row for row in SYSTEM.splitlines() if not row.strip().startswith(("mem_capacity", "pcie_bw", "p2p_lat"))]
    fleet = fleet_of("\n".join(lines))
    assert fleet.devices[0].memory.capacity.value is None
    assert all(k.bandwidth.value is None for k in fleet.links if "host" in (k.src, k.dst))
    assert all(k.latency.value is None for k in fleet.links)


def test_all_faults_are_told_at_once_with_line_column_and_field() -> None:
    text = (SYSTEM.replace("85520809984", "80 GiB").replace("per_node: 4", "per_node: 0")
            .replace("0.00001\n", "-1\n").replace("3350000000000", "0").replace("64000000000", "1e30"))  # fmt: skip
    told = refusal(text).splitlines()
    assert [row.split()[0:2] for row in told] == [
        ["sys.yaml:4:11", "gpu.mem_bw"], ["sys.yaml:7:17", "gpu.mem_capacity"],
        ["sys.yaml:14:22", "node.num_gpus_per_node"], ["sys.yaml:17:12", "node.pcie_bw"],
        ["sys.yaml:18:16", "node.p2p_latency"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("num_gpus_per_node: 4", "num_gpus_per_node: 101", "from 1 to 100"),
        ("  num_gpus_per_node: 4\n", "", "is missing"),
        ("0.00001", "2000", "below 1000 s"),
        ("0.00001", "0.0000000000001", "picoseconds"),
        ("85520809984", "1.5", "not a whole number of bytes"),
        ("85520809984", "9223372036854775808", "outside 1..2^63-1"),
        ("85520809984", "1e99999", "no plain number"),
        ("85520809984", ".nan", "no plain number"),
        ("85520809984", "[1]", "no plain number"),
        ("  power: 700", "  mem_bw: 700", "given twice"),
        ("node:\n", "node: 3\nother:\n", "must be a mapping"),
        ("data/some_sxm", "&a data/some_sxm", "anchors are not allowed"),
    ],
)
def test_refuses_a_wrong_field(old: str, new: str, word: str) -> None:
    assert old in SYSTEM
    assert word in refusal(SYSTEM.replace(old, new, 1))


def test_refuses_an_unknown_sku() -> None:
    with pytest.raises(DescriptionError, match="no card of the catalog"):
        aiconfigurator.read(SYSTEM, "s", sku="no-such-card")


@given(
    st.integers(0, len(SYSTEM)), st.integers(0, 40), st.text(max_size=5) | st.sampled_from(["\n", "  ", "{", "9" * 25])
)
@settings(max_examples=120, deadline=None)
def test_a_damaged_file_is_read_or_refused_in_words(at: int, cut: int, put: str) -> None:
    damaged = SYSTEM[:at] + put + SYSTEM[at + cut :]
    aiconfigurator.matches(damaged)
    try:
        fleet = aiconfigurator.read(damaged, "sys.yaml").fleet
    except DescriptionError as error:
        assert error.faults  # noqa: PT017 - a refusal is one of the two good ends
    else:
        assert fleet is not None
        assert 1 <= len(fleet.devices) <= 100


def test_rates_of_tensor_cores_are_compute_rates_and_stand_in_place_of_a_cards() -> None:
    (rate,) = {device.compute for device in fleet_of(SYSTEM).devices}
    assert [(name, figure.value) for name, figure in rate] == [("bf16", 989 * 10**12)]
    more = SYSTEM.replace("  power:", "  fp8_tc_flops: 1978000000000000\n  power:")
    held = fleet_of(more, sku="h100-sxm-80").devices[0]
    assert (held.flops("fp8").value, held.flops("fp32").value) == (1978 * 10**12, 67 * 10**12)
    assert "gpu.fp8_tc_flops" in refusal(more.replace("1978000000000000", "-1"))


def test_a_rate_that_all_slots_pass_is_told_in_one_sentence() -> None:
    system = "gpu:\n  mem_capacity: 85899345920\n  mem_bw: 3350000000000\n"
    node = "node:\n  num_gpus_per_node: 8\n  intra_node_bw: 450000000000\n  pcie_bw: 128000000000\n"
    told = [text for text in read_foreign(system + node, "t.yaml").warnings if "both-directions" in text]
    assert told == [
        "gpu:0 -> host, gpu:1 -> host, gpu:2 -> host, gpu:3 -> host and 12 more (pcie): 128 GB/s is above the 126 GB/s "
        "of its kind in one direction: it looks like a both-directions figure"
    ]
