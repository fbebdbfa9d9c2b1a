"""A machine read from /proc and /sys alone: servers, virtual machines, containers, ARM."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.discovery.cards import cards_of_pci
from fleet.discovery.discover import Discovered, discover
from fleet.discovery.pci import read_pci
from fleet.discovery.processor import machine_hash, read_memory, read_processor, socket_of
from fleet.discovery.tree import Tree, list_text, numbers_of
from fleet.load import load_fleet
from fleet.machine import Fleet, Link
from fleet.render import fleet_document
from tests.fleet.machines import GIB, Machine, uuid

XEON = "Intel(R) Xeon(R) Platinum 8480+"
GEN5 = 32 * 10**9 * 16 * 128 // 130 // 8


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def seen(machine: Machine, *, with_serials: bool = False) -> Discovered:
    """What is discovered; its text must load to the same fleet without a fault, and so must its JSON."""
    found = discover(str(machine.root), with_serials=with_serials)
    assert load_fleet("d.yaml", text=found.text()).digest == found.fleet.digest
    assert load_fleet("d.json", text=json.dumps(fleet_document(found.fleet))).digest == found.fleet.digest
    return found


def link(fleet: Fleet, src: str, dst: str) -> Link:
    (found,) = [link for link in fleet.links if (link.src, link.dst) == (src, dst)]
    return found


def server(machine: Machine) -> None:
    """Two sockets; two GPUs and a NIC behind a PCIe switch on the first, one GPU on a root port of the second."""
    machine.processors(XEON, sockets=2, cpus=4)
    switch = ("pci0000:10", "0000:10:01.0", "0000:11:00.0")
    machine.bridge(*switch[:2])
    machine.bridge(*switch, speed="16.0 GT/s PCIe")
    for port, bus in ((0, 13), (1, 14)):
        machine.bridge(*switch, f"0000:12:0{port}.0")
        machine.card(*switch, f"0000:12:0{port}.0", f"0000:{bus}:00.0", device="0x26b9")
    machine.bridge(*switch, "0000:12:02.0")
    machine.nic(*switch, "0000:12:02.0", "0000:15:00.0")
    machine.bridge("pci0000:80", "0000:80:01.0")
    machine.card("pci0000:80", "0000:80:01.0", "0000:81:00.0", device="0x26b9", numa=1, current_link_width="8")
    machine.pci("pci0000:00", "0000:00:1f.0", **{"class": "0x030000", "vendor": "0x1a03", "device": "0x2000"})


def test_a_server_of_two_sockets_is_told_with_its_cards_by_class_and_its_switch(machine: Machine) -> None:
    server(machine)
    found = seen(machine)
    fleet = found.fleet
    assert fleet.hosts[0].numa_nodes == 2
    assert fleet.devices[0].arch == "x86_64"
    assert fleet.hosts[0].label == f"2 x {XEON}"
    assert [(d.id, d.sku, d.pci, d.numa) for d in fleet.devices] == [
        ("cpu:0", None, None, None),
        ("gpu:0", "l40s", "0000:13:00.0", 0),
        ("gpu:1", "l40s", "0000:14:00.0", 0),
        ("gpu:2", "l40s", "0000:81:00.0", 1),
    ]
    assert [(s.id, s.kind) for s in fleet.switches] == [("pcie-switch:0", "pcie")]
    assert [(n.pci, n.label) for n in fleet.nics] == [
        ("0000:15:00.0", "mlx5_0, ens1, 400 Gb/sec (4X NDR), 400000 Mbit/s")
    ]
    memory = fleet.devices[0].memory.capacity.declared
    assert memory is not None
    assert (memory.value, memory.provenance) == (512 * GIB, "measured")


def test_cards_behind_one_switch_share_the_link_above_it(machine: Machine) -> None:
    server(machine)
    fleet = seen(machine).fleet
    assert link(fleet, "host", "pcie-switch:0").bandwidth.value == GEN5 // 2  # 16 GT/s
    assert link(fleet, "pcie-switch:0", "gpu:0").bandwidth.value == GEN5
    assert link(fleet, "pcie-switch:0", "nic:0").bandwidth.value == GEN5
    assert not [row for row in fleet.links if (row.src, row.dst) == ("host", "gpu:0")]
    assert link(fleet, "host", "gpu:2").bandwidth.value == GEN5 // 2  # x8 of x16
    assert link(fleet, "gpu:0", "gpu:2").peer_access == "unknown"
    far = link(fleet, "gpu:0", "gpu:2").bandwidth.declared
    assert far is not None
    assert (far.value, far.verified) == (GEN5 // 2, False)


def test_a_picture_of_a_management_chip_is_no_gpu_and_virtual_functions_are_left_out(machine: Machine) -> None:
    server(machine)
    machine.nic("pci0000:00", "0000:00:05.1", name="mlx5_9", net="ens9")
    (machine.root / "sys/devices/pci0000:00/0000:00:05.1/physfn").symlink_to(machine.root)
    found = seen(machine)
    assert len(found.fleet.nics) == 1
    assert "1 virtual function of network cards left out" in found.notes


def test_nothing_that_names_the_machine_is_told_unless_asked(machine: Machine) -> None:
    server(machine)
    machine.write("proc/sys/kernel/hostname", "cellar-17")
    machine.write("etc/machine-id", "0123456789abcdef0123456789abcdef")
    machine.write("sys/class/dmi/id/product_serial", "SN-998877")
    machine.nic("pci0000:80", "0000:80:02.0", name="mlx5_1", net="enxaabbccddeeff")
    secrets = ("cellar-17", "0123456789abcdef0123456789abcdef", "SN-998877", "aa:bb:cc", "aabbccddeeff")
    found = seen(machine)
    shown = found.text() + json.dumps(fleet_document(found.fleet)) + " ".join(found.notes)
    assert not [secret for secret in secrets if secret in shown]
    assert found.serials is None
    asked = seen(machine, with_serials=True)
    assert asked.serials is not None
    assert asked.serials["host name"] == "cellar-17"
    assert asked.serials["product serial"] == "SN-998877"
    assert "aa:bb:cc:dd:ee:ff" in asked.serials.values()
    assert "cellar-17" in asked.text()
    assert asked.fleet.digest == found.fleet.digest


def test_a_driver_file_names_card_and_uuid_where_no_library_answers(machine: Machine) -> None:
    machine.processors(XEON, sockets=1, cpus=2)
    machine.card("pci0000:00", "0000:00:06.0", device="0x2335")
    machine.write(
        "proc/driver/nvidia/gpus/0000:00:06.0/information",
        f"Model: \t\t NVIDIA H200\nIRQ:   \t\t 16\nGPU UUID: \t {uuid(3)}\nBus Location: \t 0000:00:06.0",
    )
    found = seen(machine)
    card = found.fleet.devices[1]
    assert (card.sku, card.uuid, card.label) == ("h200-sxm-141", uuid(3), "NVIDIA H200")
    assert card.memory.capacity.declared is None
    assert any("its memory is not told" in note for note in found.notes)


def test_an_unknown_card_is_named_by_its_pci_ids_and_nothing_is_made_up(machine: Machine) -> None:
    machine.processors(XEON, sockets=1, cpus=2)
    machine.card("pci0000:00", "0000:00:06.0", device="0xffff", max_link_speed="Unknown")
    found = seen(machine)
    card = found.fleet.devices[1]
    assert (card.sku, card.label, card.memory.bandwidth.value) == (None, "PCI 10de:ffff", None)
    assert link(found.fleet, "host", "gpu:0").bandwidth.value is None
    assert any("no card of the catalog" in note for note in found.notes)


def test_an_amd_card_tells_its_memory_and_its_serial_only_when_asked(machine: Machine) -> None:
    machine.processors(XEON, sockets=1, cpus=2)
    machine.card("pci0000:00", "0000:00:06.0", device="0x74a1", vendor="0x1002", code="0x120000",
                 mem_info_vram_total=str(191 * GIB), unique_id="a1b2c3")  # fmt: skip
    found = seen(machine)
    assert (found.fleet.devices[1].sku, found.fleet.devices[1].memory.capacity.value) == ("mi300x", 191 * GIB)
    assert "a1b2c3" not in found.text()
    asked = seen(machine, with_serials=True)
    assert asked.serials == {"gpu:0 serial": "a1b2c3"}


def test_a_virtual_machine_without_firmware_tables_still_gives_a_fleet(machine: Machine) -> None:
    machine.write("proc/cpuinfo", "processor\t: 0\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\nmodel name\t: AMD EPYC")
    machine.write("proc/meminfo", "MemTotal:        8388608 kB")
    machine.pci("pci0000:00", "0000:00:03.0", **{"class": "0x020000", "vendor": "0x1af4", "device": "0x1000"})
    found = seen(machine)
    assert (found.fleet.hosts[0].label, found.fleet.hosts[0].numa_nodes) == ("AMD EPYC", None)
    assert any("sockets not told" in note for note in found.notes)
    assert "the system does not tell its NUMA nodes: unknown" in found.notes
    assert found.fleet.devices[0].memory.capacity.value == 8 * GIB
    assert link(found.fleet, "host", "nic:0").bandwidth.value is None


def test_a_container_with_a_limit_and_without_sys_is_told_what_it_may_use(machine: Machine) -> None:
    machine.write("proc/cpuinfo", "processor\t: 0")
    machine.write("proc/meminfo", "MemTotal:        8388608 kB")
    machine.write("proc/self/cgroup", "0::/outer/inner")
    machine.write("sys/fs/cgroup/outer/memory.max", str(2 * GIB))
    machine.write("sys/fs/cgroup/outer/inner/memory.max", "max")
    found = seen(machine)
    assert found.fleet.devices[0].memory.capacity.value == 2 * GIB
    assert any("a control group limits programs here to 2,147,483,648 B" in note for note in found.notes)
    assert "/sys shows no PCI tree: slots, bridges and network cards are unknown" in found.notes
    assert "no GPU: none can be seen" in found.notes


def test_a_limit_of_the_first_version_counts_and_no_limit_does_not(machine: Machine) -> None:
    machine.write("proc/meminfo", "MemTotal:        8388608 kB")
    machine.write("proc/self/cgroup", "4:cpu,memory:/box\n0::/")
    machine.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712")
    assert read_memory(str(machine.root))[0].nbytes == 8 * GIB  # type: ignore[union-attr]
    machine.write("sys/fs/cgroup/memory/box/memory.limit_in_bytes", str(GIB))
    assert read_memory(str(machine.root))[0].nbytes == GIB  # type: ignore[union-attr]


def test_memory_of_a_gpu_that_shows_as_a_numa_node_is_not_the_hosts(machine: Machine) -> None:
    """Grace Hopper: no model name in cpuinfo, and the card's HBM is online as a node without processors."""
    rows = "processor\t: {}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n"
    machine.write("proc/cpuinfo", "\n".join(rows.format(cpu) for cpu in range(4)))
    machine.write("sys/devices/system/cpu/online", "0-3")
    for cpu in range(4):
        machine.write(f"sys/devices/system/cpu/cpu{cpu}/topology/physical_package_id", "0")
    machine.write("proc/meminfo", f"MemTotal:       {(480 + 96) * 2**20} kB")
    machine.node(0, "0-3", 480 * 2**20)
    machine.node(1, "", 96 * 2**20)
    found = seen(machine)
    first = found.fleet.devices[0]
    assert (first.arch, first.label, first.memory.capacity.value) == ("aarch64", "Arm Neoverse V2", 480 * GIB)
    assert found.fleet.hosts[0].numa_nodes == 1
    assert any("NUMA node 1, which has no processor, is not counted" in note for note in found.notes)


def test_two_figures_of_one_memory_that_contradict_are_both_told(machine: Machine) -> None:
    machine.write("proc/meminfo", f"MemTotal:       {24 * 2**20} kB")
    machine.node(0, "0-1", 8 * 2**20)
    _, told = read_memory(str(machine.root))
    assert told == [f"/proc/meminfo tells {24 * GIB:,} B, the NUMA nodes {8 * GIB:,} B together; the former is taken"]


def test_a_machine_that_tells_nothing_is_a_fleet_of_unknowns(machine: Machine) -> None:
    found = seen(machine)
    assert found.fleet.devices[0].arch is None
    assert [device.id for device in found.fleet.devices] == ["cpu:0"]
    assert found.fleet.devices[0].memory.capacity.value is None
    assert "/proc/meminfo does not tell the memory of the host: unknown" in found.notes
    assert any(note.startswith("processor: model not told, sockets not told") for note in found.notes)


def test_more_cards_than_ids_are_cut_and_told(machine: Machine) -> None:
    for number in range(101):
        machine.card("pci0000:00", f"0000:{number:02x}:00.0")
    found = cards_of_pci(read_pci(str(machine.root)), Tree(str(machine.root)))
    assert [card.index for card in found.cards] == list(range(100))
    assert "only the first 100 of 101 GPUs are described" in found.notes


class TestMachineHash:
    def test_it_is_equal_on_one_machine_and_not_the_machine_id(self, machine: Machine) -> None:
        machine.write("etc/machine-id", "0123456789abcdef0123456789abcdef")
        told = machine_hash(str(machine.root))
        assert told == machine_hash(str(machine.root))
        assert told is not None
        assert len(told) == 32
        assert told != "0123456789abcdef0123456789abcdef"
        machine.write("etc/machine-id", "1123456789abcdef0123456789abcdef")
        assert machine_hash(str(machine.root)) != told

    @pytest.mark.parametrize("text", ["", "uninitialized", "0" * 32, "xyz", "0123"])
    def test_no_machine_id_is_unknown_and_never_a_hash_that_others_share(self, machine: Machine, text: str) -> None:
        machine.write("etc/machine-id", text)
        assert machine_hash(str(machine.root)) is None

    def test_the_older_place_is_read_too(self, machine: Machine) -> None:
        machine.write("var/lib/dbus/machine-id", "0123456789abcdef0123456789abcdef")
        assert machine_hash(str(machine.root)) is not None


def test_a_socket_is_known_where_all_processors_lie_on_one(machine: Machine) -> None:
    machine.processors(XEON, sockets=2, cpus=4)
    root = str(machine.root)
    assert (socket_of([0, 3], root), socket_of([4, 7], root), socket_of([3, 4], root)) == (0, 1, None)
    assert socket_of([99], root) is None
    assert read_processor(root).sockets == 2


def test_firmware_that_gives_minus_one_tells_no_socket(machine: Machine) -> None:
    machine.write("sys/devices/system/cpu/online", "0")
    machine.write("sys/devices/system/cpu/cpu0/topology/physical_package_id", "-1")
    assert read_processor(str(machine.root)).sockets is None
    assert socket_of([0], str(machine.root)) is None


def test_folders_in_place_of_files_and_loops_are_unknown(machine: Machine) -> None:
    (machine.root / "proc/meminfo").mkdir()
    (machine.root / "sys/devices").symlink_to(machine.root / "sys/devices")
    entry = machine.root / "sys/bus/pci/devices"
    entry.mkdir(parents=True)
    (entry / "0000:00:01.0").symlink_to(entry / "0000:00:01.0")
    assert seen(machine).fleet.devices[0].memory.capacity.value is None


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60))
def test_lists_of_numbers_round_trip(numbers: list[int]) -> None:
    assert numbers_of(list_text(numbers)) == sorted(set(numbers))


_FILES = (
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/self/cgroup",
    "etc/machine-id",
    "sys/devices/system/node/node0/cpulist",
    "sys/devices/system/cpu/online",
    "sys/bus/pci/devices/0000:00:01.0/class",
)


@given(st.binary(max_size=300), st.sampled_from(_FILES))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_in_a_file_give_a_fleet_that_loads(tmp_path: Path, raw: bytes, path: str) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(raw)
    found = discover(str(tmp_path))
    assert load_fleet("d.yaml", text=found.text()).digest == found.fleet.digest
    machine_hash(str(tmp_path))


def test_a_file_that_is_not_there_is_none() -> None:
    tree = Tree("/nonexistent")
    assert (tree.text("a"), tree.number("a"), tree.names("a"), tree.target("a")) == (None, None, [], None)


def test_a_pipe_or_a_way_out_of_the_copy_is_not_read(
    machine: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A pipe once waited for ever; a link out of a copied tree told of the machine that reads it."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "meminfo").write_text("MemTotal: 77 kB\n", encoding="utf-8")
    server(machine)
    online = machine.root / "sys/devices/system/cpu/online"
    online.unlink()
    os.mkfifo(online)
    told = machine.root / "proc/meminfo"
    told.unlink()
    told.symlink_to(outside / "meminfo")
    (machine.root / "sys/outside").symlink_to(outside)
    fleet = seen(machine).fleet
    assert [d.id for d in fleet.devices] == ["cpu:0", "gpu:0", "gpu:1", "gpu:2"]
    assert fleet.devices[0].memory.capacity.value != 77 * 1024
    tree = Tree(str(machine.root))
    assert tree.text("proc", "meminfo") is None
    assert tree.names("sys", "outside") == []
    assert tree.target("sys", "outside") is None


def test_a_figure_that_no_card_has_is_unknown(machine: Machine) -> None:
    """It once went into the fleet, which was then refused as a faulty file that nobody had written."""
    machine.processors(XEON, sockets=1, cpus=2)
    machine.card("pci0000:00", "0000:01:00.0", vendor="0x1002", device="0x74a1", code="0x120000",
                 mem_info_vram_total="9" * 30)  # fmt: skip
    assert seen(machine).fleet.devices[1].memory.capacity.value is None


def test_the_display_chip_of_a_server_board_is_no_gpu_though_a_maker_of_gpus_made_it(machine: Machine) -> None:
    server(machine)
    machine.pci("pci0000:00", "0000:00:1e.0", **{"class": "0x030000", "vendor": "0x1002", "device": "0x515e"})
    assert [d.id for d in seen(machine).fleet.devices] == ["cpu:0", "gpu:0", "gpu:1", "gpu:2"]
