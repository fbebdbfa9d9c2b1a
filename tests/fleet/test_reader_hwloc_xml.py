"""hwloc XML: a GPU counted once, rates of distances, capacity only where it is stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet
from fleet.readers.hwloc_xml import matches, read

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topology"


def os_device(name: str, gp: int, **infos: str) -> str:
    rows = "".join(f'<info name="{key}" value="{value}"/>' for key, value in infos.items())
    return f'<object type="OSDev" gp_index="{gp}" name="{name}">{rows}</object>'


def pci(bus: str, inside: str, speed: str = "31.5", pci_type: str = "0302 [10de:20b0] [0:0] a1 00") -> str:
    return f'<object type="PCIDev" pci_busid="{bus}" pci_type="{pci_type}" pci_link_speed="{speed}">{inside}</object>'


def package(number: int, inside: str) -> str:
    numa = f'<object type="NUMANode" os_index="{number}" gp_index="{90 + number}"/>'
    bridge = f'<object type="Bridge" bridge_type="0-1">{inside}</object>'
    return f'<object type="Package" os_index="{number}" gp_index="{80 + number}">{numa}{bridge}</object>\n'


def distances(objects: str, *values: str, name: str = "NVLinkBandwidth") -> str:
    rows = "".join(f"<u64values>{row} </u64values>" for row in values)
    return f'<distances2hetero name="{name}"><indexes>{objects}</indexes>{rows}</distances2hetero>\n'


def topology(*inside: str, after: str = "") -> str:
    head = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n'
    return f'{head}<topology version="2.0">\n<object type="Machine">\n{"".join(inside)}</object>\n{after}</topology>\n'


FIRST = pci(
    "0000:01:00.0", os_device("cuda1", 10, CUDAGlobalMemorySize="1024KiB") + os_device("nvml0", 11, NVIDIAUUID="GPU-1")
)
SECOND = pci("0000:02:00.0", os_device("cuda0", 20) + os_device("nvml1", 21))
TWO = topology(
    package(0, FIRST),
    package(1, SECOND),
    after=distances("OSDev:11 OSDev:21 Package:81", "0 50000 0", "50000 0 25000", "0 25000 0"),
)


def fleet_of(text: str) -> Fleet:
    fleet = read(text, "topo.xml").fleet
    assert fleet is not None
    return fleet


def faults_of(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        read(text, "topo.xml")
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.shared
def test_reads_the_shared_file_as_its_sidecar_says() -> None:
    if not SHARED.is_dir():
        pytest.skip("shared/data/topology is not beside the project")
    text = (SHARED / "hwloc_power8_4xp100.xml").read_text(encoding="utf-8")
    expected = json.loads((SHARED / "hwloc_power8_4xp100.json").read_text(encoding="utf-8"))["expected"]
    assert matches(text)
    reading = read(text, "shared")
    assert expected.pop("status") == "ok"
    assert expected.items() <= reading.notes.items()
    fleet = reading.fleet
    assert fleet is not None
    assert len(fleet.devices) == expected["n_gpus"]
    rates = {(k.src, k.dst): k.bandwidth.value for k in fleet.links if k.kind == "nvlink"}
    for pair, rate in expected["nvlink_MBps_per_direction"].items():
        a, b = (f"gpu:{number}" for number in pair.split("-"))
        assert rates[a, b] == rates[b, a] == rate * 10**6
    for pair in expected["no_nvlink"]:
        a, b = (f"gpu:{number}" for number in pair.split("-"))
        assert (a, b) not in rates
    for named in expected["cpu_nvlink_MBps"].values():
        for name, rate in named.items():
            assert rates["host", f"gpu:{name.removeprefix('nvml')}"] == rate * 10**6
    assert [(d.numa, d.memory.capacity.value) for d in fleet.devices] == [(n, 16671616 * 1024) for n in (0, 0, 1, 1)]


def test_a_card_known_by_several_libraries_is_one() -> None:
    fleet = fleet_of(TWO)
    assert [(d.id, d.pci, d.numa, d.uuid) for d in fleet.devices] == [
        ("gpu:0", "0000:01:00.0", 0, "GPU-1"),
        ("gpu:1", "0000:02:00.0", 1, None),
    ]
    assert [d.memory.capacity.value for d in fleet.devices] == [2**20, None]
    assert fleet.hosts[0].numa_nodes == 2
    found = {(k.src, k.dst, k.kind): k.bandwidth.value for k in fleet.links}
    assert found["gpu:0", "gpu:1", "nvlink"] == found["gpu:1", "gpu:0", "nvlink"] == 50 * 10**9
    assert found["host", "gpu:1", "nvlink"] == 25 * 10**9
    assert ("host", "gpu:0", "nvlink") not in found
    assert found["host", "gpu:0", "pcie"] == 31_500_000_000


def test_cards_without_a_library_are_known_by_class_and_order() -> None:
    text = topology(package(0, pci("0000:05:00.0", "") + pci("0000:06:00.0", "", "0", "0380 [1002:740f] x")))
    reading = read(text, "t")
    assert reading.fleet is not None
    assert [d.pci for d in reading.fleet.devices] == ["0000:05:00.0", "0000:06:00.0"]
    assert any("no library named" in told for told in reading.warnings)
    assert {k.bandwidth.value for k in reading.fleet.links if "gpu:1" in (k.src, k.dst)} == {None}
    assert reading.notes["gpu_paths"] == {"0-1": "PHB"}
    assert reading.notes["nvlink_stated"] is False


def test_amd_cards_count_by_rsmi_and_the_cpu_of_opencl_is_no_gpu() -> None:
    inside = os_device("rsmi3", 7, RSMIVRAMSize="2048") + os_device("opencl0d0", 8)
    text = topology(package(0, pci("0000:05:00.0", inside)), os_device("opencl1d0", 9, OpenCLDeviceType="CPU"))
    assert [(d.id, d.memory.capacity.value) for d in fleet_of(text).devices] == [("gpu:3", 2**21)]


def test_a_memory_of_a_gpu_is_no_numa_node_of_the_host() -> None:
    own = '<object type="NUMANode" os_index="255" subtype="GPUMemory"/>'
    assert fleet_of(TWO.replace('<object type="Machine">', f'<object type="Machine">{own}')).hosts[0].numa_nodes == 2


def test_rates_that_differ_by_direction_are_told() -> None:
    text = TWO.replace("0 50000 0", "0 40000 0")
    assert any("50000 the other" in told for told in read(text, "t").warnings)
    assert {k.bandwidth.value for k in fleet_of(text).links if k.kind == "nvlink" and "host" not in (k.src, k.dst)} == {
        40 * 10**9
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (topology(), "holds no GPU"),
        (TWO.replace("0 25000 0", "0 25000"), "has 3 objects and 8 values; it needs 9"),
        (TWO.replace("0 25000 0", "0 fast 0"), "fast is no whole number"),
        (TWO.replace("1024KiB", "lots"), "is no size in KiB"),
        (TWO.replace("1024KiB", "9" * 16), "is no size in KiB"),
        (topology(package(0, pci("0000:01:00.0", os_device("nvml100", 1)))), "is GPU 100"),
        (TWO.replace('"hwloc2.dtd"', '"hwloc2.dtd" [<!ENTITY a "b">]'), "document type"),
        (TWO.replace("DOCTYPE topology", "DOCTYPE other"), "document type"),
        (TWO.replace("</topology>", ""), "no element found"),
    ],
)
def test_what_is_wrong_is_told(text: str, said: str) -> None:
    told = faults_of(text)
    assert any(said in fault for fault in told), told


def reads_or_tells(text: str) -> None:
    matches(text)
    faults: tuple[Fault, ...] | None = None
    try:
        read(text, "fuzz.xml")
    except DescriptionError as error:
        faults = error.faults
    assert faults is None or faults
    assert all(fault.message and str(fault).isprintable() for fault in faults or ())


@settings(max_examples=250, deadline=None)
@given(st.integers(0, len(TWO)), st.integers(0, 12), st.text('<>="/ 0123456789abcx:.[]\ud800\x00', max_size=6))
def test_a_mutated_file_is_read_or_told(at: int, cut: int, put: str) -> None:
    reads_or_tells(TWO[:at] + put + TWO[at + cut :])


def test_a_card_that_no_library_names_comes_after_those_that_one_does() -> None:
    """It once made the numbers of all others those of the file, and display chips of boards counted as GPUs."""
    unnamed = pci("0000:00:02.0", "", pci_type="0380 [1002:164e] [0:0] c1 00")
    chip = pci("0000:00:03.0", "", pci_type="0300 [1002:515e] [0:0] 02 00")
    accelerator = pci("0000:75:00.0", "", pci_type="1200 [1002:74a1] [0:0] 00 00")
    text = topology(package(0, chip + unnamed + SECOND), package(1, FIRST + accelerator))
    assert [(d.id, d.pci) for d in fleet_of(text).devices] == [
        ("gpu:0", "0000:01:00.0"),
        ("gpu:1", "0000:02:00.0"),
        ("gpu:2", "0000:00:02.0"),
        ("gpu:3", "0000:75:00.0"),
    ]
    assert any("no library named some GPU" in told for told in read(text, "t").warnings)
