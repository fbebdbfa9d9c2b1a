"""`rocm-smi --showtopo`: the tables, missing sections, and what is told of a bad paste."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError, Fault
from fleet.readers import nvidia_smi
from fleet.readers.rocm_smi import matches, read

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topology"

TYPES = "=== Link Type between two GPUs ===\n     GPU0 GPU1\nGPU0 0    XGMI\nGPU1 XGMI 0\n"
HOPS = "=== Hops between two GPUs ===\n     GPU0 GPU1\nGPU0 0    1\nGPU1 1    0\n"
ACCESS = "=== Link accessibility between two GPUs ===\n     GPU0 GPU1\nGPU0 True False\nGPU1 False True\n"
NUMA = "=== Numa Nodes ===\nGPU[0]\t\t: (Topology) Numa Node: 1\nGPU[0]\t\t: (Topology) Numa Affinity: -1\n"
END = "=== End of ROCm SMI Log ===\n"


def faults_of(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        read(text, "topo.txt")
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.shared
def test_reads_the_shared_tables_as_the_sidecar_says() -> None:
    if not SHARED.is_dir():
        pytest.skip("shared/data/topology is not beside the project")
    text = (SHARED / "rocm_showtopo_4gpu_xgmi.txt").read_text(encoding="utf-8")
    expected = json.loads((SHARED / "rocm_showtopo_4gpu_xgmi.json").read_text(encoding="utf-8"))["expected"]
    assert matches(text)
    assert not nvidia_smi.matches(text)
    reading = read(text, "shared")
    assert expected.pop("status") == "ok"
    assert expected.items() <= reading.notes.items()
    fleet = reading.fleet
    assert fleet is not None
    assert [device.numa for device in fleet.devices] == expected["numa_node"]
    joined = {(k.src, k.dst): k for k in fleet.links if "host" not in (k.src, k.dst)}
    for pair, row in expected["links"].items():
        a, b = (f"gpu:{number}" for number in pair.split("-"))
        assert {joined[a, b].kind, joined[b, a].kind} == {row["type"].lower()}
        assert joined[a, b].peer_access == "direct"


def test_every_section_may_be_missing() -> None:
    for text in (
        TYPES,
        HOPS,
        ACCESS,
        NUMA,
        TYPES + NUMA.replace("GPU[0]", "GPU 0"),
        HOPS + TYPES + ACCESS + NUMA + END,
    ):
        assert matches(text)
        assert read(text, "t").fleet is not None
    assert read(NUMA, "t").notes["numa_node"] == [1]
    assert read(NUMA, "t").notes["numa_affinity"] == [None]
    links = read(HOPS, "t").fleet.links  # type: ignore[union-attr]
    between = [k for k in links if "host" not in (k.src, k.dst)]
    assert [(k.kind, k.peer_access, k.bandwidth.value) for k in between] == [("pcie", "unknown", None)] * 2


def test_accessibility_decides_peer_access() -> None:
    for text, kind, peer in (
        (TYPES + ACCESS, "xgmi", "staged"),
        (TYPES, "xgmi", "direct"),
        (TYPES.replace("XGMI", "PCIE"), "pcie", "unknown"),
        (ACCESS.replace("False", "True"), "pcie", "direct"),
    ):
        fleet = read(text, "t").fleet
        assert fleet is not None
        found = [(k.kind, k.peer_access) for k in fleet.links if "host" not in (k.src, k.dst)]
        assert found == [(kind, peer)] * 2


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (TYPES.replace("GPU1 XGMI 0", "GPU1 PCIE 0"), 4, "is XGMI in line 3 but PCIE in line 4"),
        (TYPES.replace("GPU1 XGMI 0", "GPU1 XGMI"), 4, "has 1 cells, the header names 2"),
        (TYPES.replace("GPU1 XGMI 0\n", ""), 3, "without the row of GPU1"),
        (TYPES.replace("XGMI\n", "NVL\n"), 3, "NVL is not XGMI or PCIE"),
        (HOPS.replace("0    1", "0    x"), 3, "x is not a whole number"),
        (TYPES.replace("GPU0 0    XGMI", "GPU0 XGMI 0"), 3, "on the diagonal"),
        (TYPES.replace("GPU1 XGMI 0\n", "") + HOPS, 3, "without the row of GPU1"),
        (TYPES + TYPES, 5, "stands twice, first in line 1"),
        (TYPES.replace("GPU1", "GPU100"), 2, "lies outside GPU0..GPU99"),
        (TYPES + HOPS.replace("GPU1", "GPU3"), 5, "names other GPUs"),
        (TYPES + NUMA.replace("[0]", "[4]"), 6, "is named here and in no table"),
        (NUMA.replace("Node: 1", "Node: one"), 2, "is no number of a node"),
        ("=== Hops between two GPUs ===\n", 1, "no table below it"),
        ("ROCm", 0, "looked for a table"),
    ],
)
def test_a_bad_paste_is_told_with_its_line(text: str, line: int, said: str) -> None:
    told = faults_of(text)
    assert any(said in fault and (f"topo.txt:{line}:" in fault or not line) for fault in told), told


def reads_or_tells(text: str) -> None:
    matches(text)
    faults: tuple[Fault, ...] | None = None
    try:
        read(text, "fuzz.txt")
    except DescriptionError as error:
        faults = error.faults
    assert faults is None or faults
    assert all(fault.message and str(fault).isprintable() for fault in faults or ())


@settings(max_examples=100, deadline=None)
@given(st.one_of(st.text(max_size=100), st.text("GPU01 XGMIhops[]:\n", max_size=100)))
def test_any_text_is_read_or_told(text: str) -> None:
    reads_or_tells(text)
    reads_or_tells("Link Type between two GPUs\n" + text)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(0, 30), st.text(max_size=8))
def test_mutated_tables_are_read_or_told(at: int, cut: int, put: str) -> None:
    text = HOPS + TYPES + ACCESS + NUMA + END
    reads_or_tells(text[:at] + put + text[at + cut :])
