"""A machine whose driver answers: HGX, two PCIe cards, slices, a virtual machine; and NVML behind a stand-in."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.catalog.products import card_of_name, card_of_pci, claimed_card
from fleet.discovery.discover import Discovered, discover
from fleet.discovery.nvml import Driver, NotTold, NvLink, NvmlDriver, Pcie, Reported, Slice
from fleet.load import load_fleet
from fleet.machine import Fleet, Link
from fleet.readers.skus import find_sku
from fleet.render import fleet_document
from tests.fleet.machines import GIB, HBM3, MIB, FakeDriver, Machine, hgx, uuid

GEN5 = 32 * 10**9 * 16 * 128 // 130 // 8
VM_TOTAL, VM_RESERVED = 150_754_820_096, 644_939_776


def seen(root: Path, driver: Driver, *, with_serials: bool = False) -> Discovered:
    found = discover(str(root), driver=driver, with_serials=with_serials)
    assert load_fleet("d.yaml", text=found.text()).digest == found.fleet.digest
    assert load_fleet("d.json", text=json.dumps(fleet_document(found.fleet))).digest == found.fleet.digest
    return found


def link(fleet: Fleet, src: str, dst: str) -> Link:
    (found,) = [link for link in fleet.links if (link.src, link.dst) == (src, dst)]
    return found


class TestHgx:
    def test_eight_cards_hang_on_one_switch_with_all_their_lanes(self, tmp_path: Path) -> None:
        fleet = seen(tmp_path, hgx()).fleet
        gpus = [device for device in fleet.devices if device.kind == "gpu"]
        assert [device.uuid for device in gpus] == [uuid(i) for i in range(8)]
        assert [switch.id for switch in fleet.switches] == ["nvswitch"]
        up = link(fleet, "gpu:3", "nvswitch")
        assert (up.count, up.bandwidth.value, up.peer_access) == (18, 450 * 10**9, "direct")
        assert fleet.domains[0].members == tuple(f"gpu:{i}" for i in range(8))
        assert not [row for row in fleet.links if row.src.startswith("gpu") and row.dst.startswith("gpu")]

    def test_what_was_measured_is_measured_and_what_is_of_the_catalog_is_spec(self, tmp_path: Path) -> None:
        card = load_fleet("d", text=seen(tmp_path, hgx()).text()).devices[1]
        memory = card.memory
        assert memory.capacity.declared is not None
        assert memory.bandwidth.declared is not None
        assert card.runtime.declared is not None
        assert (memory.capacity.declared.value, memory.capacity.declared.provenance) == (HBM3, "measured")
        assert "NVML (driver 580.0)" in memory.capacity.declared.source
        assert memory.bandwidth.declared.provenance == "spec"
        assert card.runtime.declared.provenance == "policy"
        assert card.sku == "h100-sxm-80"

    def test_the_fastest_generation_counts_not_that_of_an_idle_card(self, tmp_path: Path) -> None:
        assert link(seen(tmp_path, hgx()).fleet, "host", "gpu:0").bandwidth.value == GEN5

    def test_peer_access_that_nobody_tells_leaves_the_switch_unknown(self, tmp_path: Path) -> None:
        found = seen(tmp_path, hgx(peers=lambda src, dst: None))
        assert link(found.fleet, "gpu:0", "nvswitch").peer_access == "unknown"
        assert any("the driver does not tell peer access (Not Supported)" in note for note in found.notes)

    def test_peer_access_that_differs_is_left_unknown_and_told(self, tmp_path: Path) -> None:
        found = seen(tmp_path, hgx(peers=lambda src, dst: "staged" if {src, dst} == {0, 7} else "direct"))
        accesses = [link(found.fleet, f"gpu:{i}", "nvswitch").peer_access for i in range(8)]
        assert accesses == ["unknown", *["direct"] * 6, "unknown"]
        assert any(note.startswith("gpu:7: peer access differs") for note in found.notes)


def two(**changes: Any) -> FakeDriver:
    known: dict[str, Any] = {
        "names": ["NVIDIA L40S"] * 2,
        "uuids": [uuid(0), uuid(1)],
        "addresses": ["00000000:13:00.0", "00000000:14:00.0"],
        "memories": dict.fromkeys(range(2), Reported(total=46068 * MIB, reserved=450 * MIB)),
        "lanes": {0: [], 1: []},
        "peers": lambda src, dst: "staged",
        "distances": lambda one, other: "NODE",
        "slot": Pcie(max_generation=4, max_lanes=16, generation=4, lanes=8),
    }
    return FakeDriver(**(known | changes))


class TestTwoCards:
    def test_without_peer_access_their_link_is_staged_and_of_the_lesser_lanes(self, tmp_path: Path) -> None:
        found = seen(tmp_path, two())
        pair = link(found.fleet, "gpu:0", "gpu:1")
        assert (pair.kind, pair.peer_access) == ("pcie", "staged")
        assert pair.bandwidth.value == GEN5 // 4  # generation 4, 8 lanes
        assert "gpu:0 runs on 8 of 16 PCIe lanes: the lesser is counted" in found.notes

    def test_access_of_one_direction_is_that_of_its_link(self, tmp_path: Path) -> None:
        fleet = seen(tmp_path, two(peers=lambda src, dst: "direct" if src == 0 else "staged")).fleet
        assert link(fleet, "gpu:0", "gpu:1").peer_access == "direct"
        assert link(fleet, "gpu:1", "gpu:0").peer_access == "staged"

    def test_below_one_pcie_switch_both_hang_on_it(self, tmp_path: Path) -> None:
        machine = Machine(tmp_path)
        top = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
        machine.bridge(*top[:2])
        machine.bridge(*top)
        for bus in (13, 14):
            machine.bridge(*top, f"0000:12:{bus}.0")
            machine.card(*top, f"0000:12:{bus}.0", f"0000:{bus}:00.0", device="0x26b9", numa=1)
        fleet = seen(tmp_path, two(peers=lambda src, dst: "direct")).fleet
        assert link(fleet, "pcie-switch:0", "gpu:0").peer_access == "direct"
        assert not [row for row in fleet.links if (row.src, row.dst) == ("gpu:0", "gpu:1")]
        assert [device.numa for device in fleet.devices] == [None, 1, 1]

    def test_bridged_by_nvlink_in_pairs_of_lanes(self, tmp_path: Path) -> None:
        names = ["NVIDIA H100 NVL"] * 2
        lanes = {i: [NvLink(end="gpu", pci=f"00000000:{14 - i}:00.0")] * 18 for i in range(2)}
        fleet = seen(tmp_path, two(names=names, lanes=lanes, peers=lambda src, dst: "direct")).fleet
        pair = link(fleet, "gpu:0", "gpu:1")
        assert (pair.kind, pair.count, pair.peer_access) == ("nvlink", 18, "direct")

    def test_ends_that_contradict_each_other_are_both_told(self, tmp_path: Path) -> None:
        lanes = {0: [NvLink(end="gpu", pci="0000:14:00.0")] * 4, 1: [NvLink(end="gpu", pci="0000:13:00.0")] * 2}
        found = seen(tmp_path, two(lanes=lanes))
        assert link(found.fleet, "gpu:0", "gpu:1").count == 2
        told = "gpu:0 tells 4 NVLinks to gpu:1, gpu:1 tells 2 back; the lesser number is taken"
        assert told in found.notes

    def test_a_card_out_of_the_catalog_has_the_drivers_rate_unverified(self, tmp_path: Path) -> None:
        lanes = {i: [NvLink(end="gpu", pci=f"0000:{14 - i}:00.0", megabytes_per_s=14062)] * 4 for i in range(2)}
        found = seen(tmp_path, two(names=["NVIDIA RTX A6000"] * 2, lanes=lanes))
        rate = link(found.fleet, "gpu:0", "gpu:1").bandwidth.declared
        assert rate is not None
        assert (rate.value, rate.verified) == (4 * 14_062 * 10**6, False)
        runtime = found.fleet.devices[1].runtime.declared
        assert runtime is not None
        assert (runtime.value, runtime.verified) == (450 * MIB, False)
        assert any("gpu:0 (NVIDIA RTX A6000) is no card of the catalog" in note for note in found.notes)

    def test_one_uuid_for_two_cards_is_the_uuid_of_neither(self, tmp_path: Path) -> None:
        found = seen(tmp_path, two(uuids=[uuid(0), uuid(0).upper()]))
        assert [device.uuid for device in found.fleet.devices] == [None, None, None]
        assert "the driver gives one uuid to gpu:0, gpu:1: left out" in found.notes

    def test_a_name_with_another_cards_memory_is_told(self, tmp_path: Path) -> None:
        found = seen(tmp_path, two(memories=dict.fromkeys(range(2), Reported(total=24 * GIB))))
        assert any("its figures may be another card's" in note for note in found.notes)
        assert found.fleet.devices[1].memory.capacity.value == 24 * GIB


def test_a_virtual_machine_with_one_card_tells_little_and_the_rest_is_unknown(tmp_path: Path) -> None:
    driver = FakeDriver(
        names=["NVIDIA H200"],
        uuids=[uuid(5)],
        addresses=["00000000:00:06.0"],
        memories={0: Reported(total=VM_TOTAL, reserved=VM_RESERVED)},
        slot=Pcie(max_generation=5, max_lanes=16, generation=5, lanes=16),
    )
    found = seen(tmp_path, driver)
    card = found.fleet.devices[1]
    assert (card.sku, card.memory.capacity.value, card.pci) == ("h200-sxm-141", VM_TOTAL, "00000000:00:06.0")
    assert card.runtime.value == 1_201_537_024
    assert not found.fleet.switches
    assert "the driver does not tell the NVLinks (Not Supported): gpu:0; unknown, not absent" in found.notes


def test_a_virtual_machine_with_two_cards_shows_their_switch_without_an_address(tmp_path: Path) -> None:
    """As read on two H200 of one host: 18 lanes each to a switch that the guest does not see, peer access allowed."""
    driver = FakeDriver(
        names=["NVIDIA H200"] * 2,
        uuids=[uuid(7), uuid(4)],
        addresses=["00000000:00:06.0", "00000000:00:07.0"],
        memories=dict.fromkeys(range(2), Reported(total=VM_TOTAL, reserved=VM_RESERVED)),
        lanes=dict.fromkeys(range(2), [NvLink(end="switch", megabytes_per_s=26562)] * 18),
        peers=lambda src, dst: "direct",
        distances=lambda one, other: "PHB",
        slot=Pcie(max_generation=5, max_lanes=16, generation=5, lanes=16),
    )
    fleet = seen(tmp_path, driver).fleet
    up = link(fleet, "gpu:1", "nvswitch")
    assert (up.count, up.bandwidth.value, up.peer_access) == (18, 450 * 10**9, "direct")
    assert link(fleet, "host", "gpu:1").bandwidth.value == GEN5
    assert link(fleet, "gpu:1", "host").latency.value == 6_600_000  # ps, of the catalog
    assert up.latency.value is None


def test_slices_are_devices_with_memory_and_identity_of_their_own(tmp_path: Path) -> None:
    rows = [Slice(uuid=f"MIG-{i}", memory=Reported(total=10 * GIB), profile="1g.10gb") for i in range(7)]
    found = seen(tmp_path, hgx(parts={2: rows}))
    slices = [device for device in found.fleet.devices if device.parent == "gpu:2"]
    assert [(s.id, s.uuid, s.profile, s.memory.capacity.value) for s in slices[:2]] == [
        ("gpu:2/mig:0", "MIG-0", "1g.10gb", 10 * GIB),
        ("gpu:2/mig:1", "MIG-1", "1g.10gb", 10 * GIB),
    ]
    assert slices[0].memory.bandwidth.value is None
    assert len({device.topology_id for device in found.fleet.devices}) == len(found.fleet.devices)
    assert "gpu:2 is partitioned: programs run on its slices, not on the card" in found.notes


def test_slices_that_tell_more_than_their_card_are_of_unknown_memory(tmp_path: Path) -> None:
    rows = [Slice(uuid=f"MIG-{i}", memory=Reported(total=60 * GIB)) for i in range(2)]
    found = seen(tmp_path, hgx(parts={0: rows}))
    assert [d.memory.capacity.value for d in found.fleet.devices if d.parent] == [None, None]
    assert any("tell more memory together than the card" in note for note in found.notes)


def test_a_slice_is_reached_as_its_card_is_and_its_peers_are_unknown(tmp_path: Path) -> None:
    rows = [Slice(uuid="MIG-0", memory=Reported(total=10 * GIB))]
    fleet = seen(tmp_path, two(parts={0: rows})).fleet
    assert link(fleet, "host", "gpu:0/mig:0").kind == "pcie"


def test_a_superchip_hangs_on_its_processor_over_c2c(tmp_path: Path) -> None:
    driver = FakeDriver(names=["NVIDIA GB200"], uuids=[uuid(1)], memories={0: Reported(total=189471 * MIB)}, chip=True)
    fleet = seen(tmp_path, driver).fleet
    assert (link(fleet, "host", "gpu:0").kind, link(fleet, "host", "gpu:0").bandwidth.value) == ("c2c", 450 * 10**9)


def test_a_driver_that_answers_nothing_at_all_gives_a_fleet_of_unknowns(tmp_path: Path) -> None:
    found = seen(tmp_path, FakeDriver(names=["?", "?"]))
    gpus = [device for device in found.fleet.devices if device.kind == "gpu"]
    assert [(d.uuid, d.pci, d.sku, d.memory.capacity.value) for d in gpus] == [(None, None, None, None)] * 2
    assert link(found.fleet, "gpu:0", "gpu:1").bandwidth.value is None
    assert any("gpu:1: no uuid" in note for note in found.notes)


def test_the_drivers_order_is_kept_whatever_pci_says(tmp_path: Path) -> None:
    turned = hgx(addresses=[f"00000000:{16 + i:02X}:00.0" for i in range(7, -1, -1)])
    fleet = seen(tmp_path, turned).fleet
    assert next(device.pci for device in fleet.devices if device.kind == "gpu") == "00000000:17:00.0"


@given(st.text(max_size=40), st.text(max_size=40))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_text_a_driver_gives_the_fleet_loads(tmp_path: Path, name: str, identity: str) -> None:
    rows = [Slice(uuid=identity, memory=None, profile=name)]
    driver = two(names=[name] * 2, uuids=[identity, uuid(1)], addresses=[identity, "0000:14:00.0"], parts={1: rows})
    seen(tmp_path, driver)


def test_a_uuid_that_the_driver_does_not_know_yet_is_none(tmp_path: Path) -> None:
    found = seen(tmp_path, two(uuids=["GPU-????????-????-????-????-????????????", uuid(1)]))
    assert [device.uuid for device in found.fleet.devices] == [None, None, uuid(1)]


def test_a_card_on_pci_that_the_driver_does_not_list_is_told(tmp_path: Path) -> None:
    Machine(tmp_path).card("pci0000:00", "0000:77:00.0")
    found = seen(tmp_path, two())
    assert "on PCI, but not listed by the driver and left out: 0000:77:00.0" in found.notes


def test_serials_of_cards_stand_beside_the_fleet_only_when_asked(tmp_path: Path) -> None:
    assert "SERIAL" not in seen(tmp_path, two()).text()
    asked = seen(tmp_path, two(), with_serials=True)
    assert asked.serials == {"gpu:0 serial": "SERIAL-OF-0", "gpu:1 serial": "SERIAL-OF-1"}


def test_what_is_discovered_is_admitted_against(tmp_path: Path) -> None:
    from planner.machine import UnknownWay, Way, machine_graph

    graph = machine_graph(seen(tmp_path, hgx()).fleet)
    way = graph.way("gpu:0", "gpu:5", 2**20, 1)
    assert isinstance(way, Way)
    assert ([hop.kind for hop in way.hops], way.staged) == (["nvlink"], False)
    assert isinstance(machine_graph(seen(tmp_path, two()).fleet).way("gpu:0", "gpu:1", 2**20, 1), Way)
    unknown = machine_graph(seen(tmp_path, two(peers=lambda src, dst: None)).fleet)
    assert isinstance(unknown.way("gpu:0", "gpu:1", 2**20, 1), UnknownWay)


class Refused(Exception):  # noqa: N818 - stands for the library's own name
    """What the stand-in raises."""


class Library:
    """A stand-in for the module pynvml: one card, everything else refused as NVML refuses it."""

    NVMLError = Refused
    nvmlMemory_v2 = 0x2000028  # noqa: N815 - the library's name

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name not in self.answers:
                raise Refused("Not Supported")
            answer = self.answers[name]
            return answer(*arguments) if callable(answer) else answer

        return call


class TestNvml:
    def test_text_comes_as_bytes_or_as_text(self) -> None:
        for name in (b"NVIDIA H200\0", "NVIDIA H200"):
            assert NvmlDriver(Library(nvmlDeviceGetHandleByIndex="h", nvmlDeviceGetName=name)).name(0) == "NVIDIA H200"

    def test_a_refusal_is_not_told_in_the_drivers_words(self) -> None:
        driver = NvmlDriver(Library(nvmlDeviceGetHandleByIndex="h"))
        for question in (driver.name, driver.uuid, driver.pci, driver.memory, driver.pcie, driver.numa, driver.nvlinks):
            with pytest.raises(NotTold, match="Not Supported"):
                question(0)
        with pytest.raises(NotTold):
            driver.peer(0, 1)
        assert driver.slices(0) is None

    def test_a_card_that_is_lost_is_not_told(self) -> None:
        with pytest.raises(NotTold, match="Not Supported"):
            NvmlDriver(Library()).name(0)

    def test_the_first_version_of_memory_is_asked_where_the_second_is_refused(self) -> None:
        def memory(handle: str, version: int | None = None) -> Any:
            if version is not None:
                raise Refused("Function Not Found")
            return SimpleNamespace(total=5)

        driver = NvmlDriver(Library(nvmlDeviceGetHandleByIndex="h", nvmlDeviceGetMemoryInfo=memory))
        assert driver.memory(0) == Reported(total=5, reserved=None)

    def test_both_reading_and_writing_must_be_allowed(self) -> None:
        def status(words: dict[int, int]) -> str:
            library = Library(nvmlDeviceGetHandleByIndex="h", nvmlDeviceGetP2PStatus=lambda a, b, index: words[index])
            return NvmlDriver(library).peer(0, 1)

        assert status({0: 0, 1: 0}) == "direct"
        assert status({0: 0, 1: 1}) == status({0: 5, 1: 6}) == "staged"
        assert status({0: 0, 1: 6}) == "unknown"

    def test_active_links_are_counted_with_their_ends(self) -> None:
        def state(handle: str, number: int) -> int:
            if number >= 18:
                raise Refused("Invalid Argument")
            return number < 4

        library = Library(
            nvmlDeviceGetHandleByIndex="h",
            nvmlDeviceGetNvLinkState=state,
            nvmlDeviceGetNvLinkRemoteDeviceType=2,
            nvmlDeviceGetNvLinkRemotePciInfo=SimpleNamespace(busId="FFFFFFFF:FF:FF.0"),
            nvmlDeviceGetFieldValues=[SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=26562))],
        )
        assert NvmlDriver(library).nvlinks(0) == [NvLink(end="switch", pci=None, megabytes_per_s=26562)] * 4

    def test_a_field_that_the_driver_does_not_fill_is_unknown(self) -> None:
        library = Library(
            nvmlDeviceGetHandleByIndex="h",
            nvmlDeviceGetNvLinkState=1,
            nvmlDeviceGetFieldValues=[SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=0))],
        )
        assert NvmlDriver(library).nvlinks(0)[0] == NvLink(end="unknown")

    def test_masks_are_numbers_of_processors_and_nodes(self) -> None:
        library = Library(
            nvmlDeviceGetHandleByIndex="h", nvmlDeviceGetCpuAffinity=[3, 1], nvmlDeviceGetMemoryAffinity=[2, 0]
        )
        assert NvmlDriver(library).cpus(0) == [0, 1, 64]
        assert NvmlDriver(library).numa(0) == 1
        library.answers["nvmlDeviceGetMemoryAffinity"] = [3, 0]
        with pytest.raises(NotTold, match="near to 2 NUMA nodes"):
            NvmlDriver(library).numa(0)

    def test_slices_are_read_by_their_places(self) -> None:
        def place(handle: str, number: int) -> str:
            if number == 1:
                raise Refused("Not Found")
            return f"slice {number}"

        library = Library(
            nvmlDeviceGetHandleByIndex="h",
            nvmlDeviceGetMigMode=[1, 1],
            nvmlDeviceGetMaxMigDeviceCount=3,
            nvmlDeviceGetMigDeviceHandleByIndex=place,
            nvmlDeviceGetUUID=lambda handle: f"MIG-{handle[-1]}",
            nvmlDeviceGetName="NVIDIA H100 80GB HBM3 MIG 1g.10gb",
            nvmlDeviceGetMemoryInfo=lambda handle, version=None: SimpleNamespace(total=7, reserved=1),
        )
        memory = Reported(total=7, reserved=1)
        assert NvmlDriver(library).slices(0) == [
            Slice(uuid="MIG-0", memory=memory, profile="1g.10gb"),
            Slice(uuid="MIG-2", memory=memory, profile="1g.10gb"),
        ]

    def test_a_version_of_the_library_without_a_call_is_told_so(self) -> None:
        driver = NvmlDriver(SimpleNamespace(NVMLError=Refused, nvmlDeviceGetHandleByIndex=lambda number: "h"))
        with pytest.raises(NotTold, match="is not in this version"):
            driver.c2c(0)

    def test_the_real_library_has_the_calls_that_are_asked(self) -> None:
        pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
        asked = [
            "DeviceGetHandleByIndex", "DeviceGetName", "DeviceGetUUID", "DeviceGetPciInfo", "DeviceGetSerial",
            "DeviceGetMemoryInfo", "DeviceGetMaxPcieLinkGeneration", "DeviceGetMaxPcieLinkWidth",
            "DeviceGetCurrPcieLinkGeneration", "DeviceGetCurrPcieLinkWidth", "DeviceGetMemoryAffinity",
            "DeviceGetCpuAffinity", "DeviceGetNvLinkState", "DeviceGetNvLinkRemoteDeviceType",
            "DeviceGetNvLinkRemotePciInfo", "DeviceGetFieldValues", "DeviceGetMigMode", "DeviceGetMaxMigDeviceCount",
            "DeviceGetMigDeviceHandleByIndex", "DeviceGetP2PStatus", "DeviceGetTopologyCommonAncestor",
            "SystemGetDriverVersion", "DeviceGetCount",
        ]  # fmt: skip
        assert [name for name in asked if not hasattr(pynvml, f"nvml{name}")] == []


class TestNames:
    def test_every_name_and_pci_id_leads_to_a_card_that_is_shipped(self) -> None:
        for name in ("NVIDIA H200", "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X OAM", "NVIDIA GeForce RTX 4090"):
            sku = card_of_name(name)
            assert sku is not None
            assert find_sku(sku).name == sku
        assert card_of_pci("10DE", "2330") == "h100-sxm-80"
        assert card_of_name("NVIDIA H200 NVL") is None
        assert card_of_name("NVIDIA L20X") is None

    def test_a_name_claims_a_card_or_another_or_may_be_it(self) -> None:
        assert claimed_card("NVIDIA L40S", "l40s") is True
        assert claimed_card("NVIDIA L40", "l40s") is False
        assert claimed_card("NVIDIA A100-SXM4-40GB", "a100-sxm-80") is False
        assert claimed_card("NVIDIA RTX 6000 Ada Generation", "l40s") is False
        assert claimed_card("NVIDIA H100 80GB HBM2e", "h100-pcie-80") is None
        assert claimed_card("NVIDIA GeForce RTX 4090 D", "rtx-4090") is None
