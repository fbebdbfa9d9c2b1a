"""`nvidia-smi topo`: every era of the matrix, what stays unknown, and what is told of a bad paste."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalog.skus import sku_names
from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet, Link
from fleet.readers.nvidia_smi import matches, read
from fleet.readers.skus import find_sku
from tests.work import counted

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topology"
NAMES = (
    "smi_2gpu_nv2_numa_na", "smi_2gpu_phb_numa_na", "smi_5gpu_mixed_workstation", "smi_a100_8gpu_4nic",
    "smi_a100_8gpu_compact_spaces", "smi_h100_8gpu_spaces", "smi_l40s_4gpu_2nic_legend", "smi_p2p_2xl4_cns",
    "smi_p2p_8gpu_ok", "smi_rtx4090_8gpu_sys_2nic", "smi_v100_4gpu_nv_and_sys", "smi_v100_8gpu_hybrid_cube_vm",
)  # fmt: skip

TABS = (
    "\tGPU0\tGPU1\tmlx5_0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV4\tPXB\t0-15,32\t0\t\tN/A\n"
    "GPU1\tNV4\t X \tSYS\t\t0-1\t\tN/A\n"
    "mlx5_0\tPXB\tSYS\t X \n"
)
BLANKS = """\
        GPU0    GPU1    GPU2    CPU Affinity    NUMA Affinity
GPU0     X      NV2     SYS     0-7             0
GPU1    NV2      X      PHB     8-15            1
GPU2    SYS     PHB      X                      N/A
"""
P2P = " \tGPU0\tGPU1\tGPU2\n GPU0\tX\tOK\tCNS\n GPU1\tOK\tX\tU\n GPU2\tCNS\tU\tX\n"


def fleet_of(text: str, sku: str | None = None) -> Fleet:
    fleet = read(text, "topo.txt", sku=sku).fleet
    assert fleet is not None
    return fleet


def faults_of(text: str) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        read(text, "topo.txt")
    return [str(fault) for fault in caught.value.faults]


def link(fleet: Fleet, src: str, dst: str) -> Link:
    (found,) = [row for row in fleet.links if (row.src, row.dst) == (src, dst)]
    return found


def shared(name: str) -> tuple[str, dict[str, Any]]:
    if not SHARED.is_dir():
        pytest.skip("shared/data/topology is not beside the project")
    text = (SHARED / f"{name}.txt").read_bytes().decode("utf-8")
    return text, json.loads((SHARED / f"{name}.json").read_text(encoding="utf-8"))["expected"]


def number(name: str) -> str:
    return f"gpu:{name.removeprefix('GPU')}"


@pytest.mark.shared
@pytest.mark.parametrize("name", NAMES)
def test_reads_a_shared_matrix_as_its_sidecar_says(name: str) -> None:
    text, expected = shared(name)
    assert matches(text)
    reading = read(text, name)
    fleet = reading.fleet
    assert fleet is not None
    assert expected.pop("status") == "ok"
    assert len(fleet.devices) == expected["n_gpus"]
    for row in expected.pop("gpu_links", []):
        for src, dst in ((row["a"], row["b"]), (row["b"], row["a"])):
            found = link(fleet, number(src), number(dst))
            nvlink = row["type"] == "NVLINK"
            assert found.kind == ("nvlink" if nvlink else "pcie")
            assert found.count == (row["nvlinks"] or 1)
            assert found.peer_access == ("direct" if nvlink else "unknown")
            assert found.bandwidth.value is None
        assert row in reading.notes["gpu_links"]
    for name_of_gpu, nodes in (expected.get("numa_affinity") or {}).items():
        device = fleet.device(number(name_of_gpu))
        assert device is not None
        assert device.numa == (nodes[0] if nodes and len(nodes) == 1 else None)
    every = expected.pop("p2p_all", None)
    if every is not None:
        n = expected["n_gpus"]
        assert f"{n * (n - 1)} pairs" in expected.pop("p2p")
        pairs = {f"GPU{a}-GPU{b}": every for a in range(n) for b in range(n) if a != b}
        assert reading.notes["p2p"] == pairs
    assert expected.items() <= reading.notes.items()


@pytest.mark.shared
def test_a_shared_p2p_matrix_decides_peer_access() -> None:
    staged, _ = shared("smi_p2p_2xl4_cns")
    direct, _ = shared("smi_p2p_8gpu_ok")
    assert {row.peer_access for row in fleet_of(staged).links if "host" not in (row.src, row.dst)} == {"staged"}
    assert {row.peer_access for row in fleet_of(direct).links if "host" not in (row.src, row.dst)} == {"direct"}


@pytest.mark.shared
def test_reads_all_the_matrices_of_one_shared_session() -> None:
    if not SHARED.is_dir():
        pytest.skip("shared/data/topology is not beside the project")
    text = (SHARED / "h200x1" / "nvidia-smi-topo.txt").read_text(encoding="utf-8")
    fleet = fleet_of(text)
    assert [(d.id, d.numa) for d in fleet.devices] == [("gpu:0", 0)]
    assert [(k.src, k.dst) for k in fleet.links] == [("gpu:0", "host"), ("host", "gpu:0")]


def test_tabs_keep_empty_cells_and_the_extra_tab_before_n_a() -> None:
    reading = read(TABS, "t")
    assert reading.notes["cpu_affinity"] == {"GPU0": "0-15,32", "GPU1": None}
    assert reading.notes["numa_affinity"] == {"GPU0": [0], "GPU1": [0, 1]}
    assert reading.notes["gpu_numa_id"] == {"GPU0": None, "GPU1": None}
    assert reading.notes["nic_names"] == ["mlx5_0"]
    assert reading.notes["gpu_nic_links"] == {"GPU0": {"mlx5_0": "PXB"}, "GPU1": {"mlx5_0": "SYS"}}
    assert link(fleet_of(TABS), "gpu:1", "gpu:0").count == 4
    assert [d.numa for d in fleet_of(TABS).devices] == [0, None]


def test_an_affinity_cell_left_blank_is_found_by_its_place() -> None:
    reading = read(BLANKS, "t")
    assert reading.notes["cpu_affinity"] == {"GPU0": "0-7", "GPU1": "8-15", "GPU2": None}
    assert reading.notes["numa_affinity"] == {"GPU0": [0], "GPU1": [1], "GPU2": None}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\x1b[4m" + text.replace("\n", "\x1b[0m\n", 1),
        lambda text: "user@box:~$ nvidia-smi topo -m\n" + text + "\nLegend:\n\n  X    = Self\nuser@box:~$ \n",
        lambda text: "".join(f"> {line}\n" for line in text.splitlines()),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: "".join(f"{' '.join(line.split())}\n" for line in text.splitlines()),
        lambda text: text.splitlines()[0] + "\n" + text,
        lambda text: text + text,
        lambda text: "GPU0 is hot today\n" + text,
        lambda text: text.rstrip("\n"),
    ],
)
@pytest.mark.parametrize(
    "text", [TABS.replace("\t\t0-1", "\t3\t0-1"), BLANKS.replace("              N/A", "16-17         N/A")]
)
def test_the_paste_does_not_matter(text: str, change: Any) -> None:
    assert fleet_of(change(text)).digest == fleet_of(text).digest


def test_hidden_cards_keep_their_numbers() -> None:
    text = "\tGPU1\tGPU5\nGPU1\t X \tPIX\nGPU5\tPIX\t X \n"
    assert [(d.id, d.index, d.topology_id) for d in fleet_of(text).devices] == [("gpu:1", 1, 501), ("gpu:5", 5, 505)]


def test_old_words_and_columns_are_read() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSOC\t0-7\nGPU1\tSOC\t X \t8-15\n"
    reading = read(text, "t")
    assert reading.notes["gpu_links"] == [{"a": "GPU0", "b": "GPU1", "type": "SYS", "raw": "SOC", "nvlinks": None}]
    assert reading.notes["numa_affinity"] is None


def test_p2p_in_the_same_text_says_which_copies_go_direct() -> None:
    text = BLANKS + "\n$ nvidia-smi topo -p2p r\n" + P2P
    fleet = fleet_of(text)
    assert link(fleet, "gpu:0", "gpu:1").peer_access == "direct"
    assert link(fleet, "gpu:0", "gpu:2").peer_access == "staged"
    assert link(fleet, "gpu:1", "gpu:2").peer_access == "unknown"
    assert link(fleet, "gpu:0", "gpu:1").kind == "nvlink"
    assert read(text, "t").notes["direct_peer"] is False


def test_writing_must_be_granted_as_well_as_reading() -> None:
    granted = P2P.replace("CNS", "OK").replace("\tU", "\tOK")
    text = f"topo -p2p r\n{granted}topo -p2p w\n{P2P}"
    assert link(fleet_of(text), "gpu:0", "gpu:2").peer_access == "staged"


@pytest.mark.parametrize("letter", ["n", "a", "p"])
def test_the_p2p_matrices_of_nvlink_and_atomics_do_not_decide(letter: str) -> None:
    assert link(fleet_of(f"{BLANKS}\nnvidia-smi topo -p2p {letter}\n{P2P}"), "gpu:0", "gpu:2").peer_access == "unknown"


def test_topo_mp_tells_the_path_below_nvlink() -> None:
    below = BLANKS.replace("NV2", "PIX")
    for text in (f"nvidia-smi topo -m\n{BLANKS}\nnvidia-smi topo -mp\n{below}", below + "\n$\n" + BLANKS):
        reading = read(text, "t")
        assert reading.fleet is not None
        assert link(reading.fleet, "gpu:0", "gpu:1").count == 2
        assert reading.notes["pcie_path"]["GPU0-GPU1"] == "PIX"
    assert any("topo -mp shows the PCIe path only" in told for told in read(f"topo -mp\n{below}", "t").warnings)


def test_a_legend_may_be_wrapped_or_cut() -> None:
    head = "\tGPU0\tNIC0\tNIC1\tNIC2\nGPU0\t X \tPIX\tSYS\tSYS\n"
    rows = "NIC0\tPIX\t X \tSYS\tSYS\nNIC1\tSYS\tSYS\t X \tPIX\nNIC2\tSYS\tSYS\tPIX\t X \n"
    reading = read(f"{head}{rows}\nNIC Legend:\n\n  NIC0: mlx5_0   NIC1:\n   mlx5_bond_0\n  NIC2:", "t")
    assert reading.notes["nic_legend"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_bond_0"}


def test_a_list_of_cards_gives_uuids_and_tells_of_mig() -> None:
    listed = "GPU 1: NVIDIA A100 (UUID: GPU-12ab)\n  MIG 1g.5gb     Device  0: (UUID: MIG-77)\n"
    reading = read(listed + BLANKS, "t")
    assert reading.fleet is not None
    assert [d.uuid for d in reading.fleet.devices] == [None, "GPU-12ab", None]
    assert any("MIG" in told for told in reading.warnings)


def test_what_the_text_does_not_say_stays_unknown() -> None:
    fleet = fleet_of(TABS)
    assert all(d.memory.capacity.value is None and d.sku is None for d in fleet.devices)
    assert all(row.bandwidth.value is None and row.latency.value is None for row in fleet.links)
    assert link(fleet, "host", "gpu:0").kind == "pcie"
    assert link(fleet, "gpu:0", "host").peer_access is None
    assert any("--sku" in told for told in fleet.warnings)


def test_a_sku_fills_memory_lanes_and_slots_as_spec() -> None:
    card = find_sku("H100-SXM-80")
    fleet = fleet_of(BLANKS, "h100_sxm_80")
    memory = fleet.devices[0].memory.capacity.declared
    assert memory is not None
    assert (memory.value, memory.provenance) == (81559 * 2**20, "spec")
    assert "H100" in memory.source
    lanes = card.lanes["nvlink"].value
    assert lanes == 25 * 10**9
    assert link(fleet, "gpu:0", "gpu:1").bandwidth.value == 2 * lanes
    assert link(fleet, "host", "gpu:0").bandwidth == card.slot
    assert link(fleet, "gpu:0", "gpu:1").latency.value is None


def test_every_card_of_the_catalog_can_be_named_and_has_a_memory() -> None:
    cards = [name for name in sku_names() if name not in ("host-x86-2s", "gaudi3", "mi300x")]
    for name in cards:
        fleet = fleet_of(BLANKS.replace("NV2", "NV1"), name)
        assert fleet.devices[0].sku == name
        assert fleet.devices[0].memory.capacity.value
        known = find_sku(name).lanes.get("nvlink")
        rate = link(fleet, "gpu:0", "gpu:1").bandwidth
        assert (rate.value is None) == (known is None)
    assert "l40s" in cards


def test_a_card_of_another_maker_is_refused_with_both() -> None:
    with pytest.raises(DescriptionError, match="gpu:0 is a card of NVIDIA in this text, but --sku names AMD Instinct"):
        fleet_of(BLANKS, "mi300x")


def test_a_rate_is_not_guessed_where_only_p2p_is_shown() -> None:
    fleet = fleet_of(P2P, "h100-sxm-80")
    assert link(fleet, "gpu:0", "gpu:1").bandwidth.value is None
    assert link(fleet, "gpu:0", "gpu:1").peer_access == "direct"


@pytest.mark.parametrize(
    ("sku", "said"),
    [
        ("h100", "could be any of"),
        ("h100-sxm-81", "did you mean h100-sxm-80"),
        ("", "known:"),
        ("host-x86-2s", "is a cpu"),
    ],
)
def test_an_unknown_sku_is_told_with_the_known_ones(sku: str, said: str) -> None:
    with pytest.raises(DescriptionError, match=said):
        read(BLANKS, "t", sku=sku)


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (BLANKS.replace("GPU1    NV2      X      PHB     8-15            1", "GPU1    NV2"), 3, "cut or wrapped"),
        ("\n".join(BLANKS.splitlines()[:3]), 3, "rows of GPU2 are missing"),
        (BLANKS.replace("GPU1    NV2 ", "GPU1    NV3 "), 3, "GPU0-GPU1 is NV2 in line 2 but NV3 in line 3"),
        (BLANKS.replace("PHB", "PHX"), 3, "PHX is no word"),
        (BLANKS.replace("NV2", "NV0"), 2, "NV0 is no word"),
        (BLANKS.replace("GPU0     X      NV2 ", "GPU0    NV2      X  "), 2, "X stands outside its own column"),
        (BLANKS.replace("GPU2    CPU", "GPU1    CPU"), 1, "names two columns"),
        (BLANKS.replace("0-7  ", "7-0  "), 2, "is no list of numbers"),
        (BLANKS.replace("0-7  ", "0-7 9"), 2, "more cells than the header"),
        (BLANKS + "GPU0     X      NV2     SYS     0-7             0\n", 5, "stands twice, first in line 2"),
        (BLANKS + "GPU3    SYS     SYS     SYS     0-7             0\n", 5, "is no column of the header"),
        (BLANKS.replace("GPU2", "GPU100"), 1, "lies outside GPU0..GPU99"),
        (BLANKS.replace("GPU2", "MIG0"), 1, "is a MIG slice"),
        (BLANKS.splitlines()[0], 1, "no row follows"),
        (BLANKS + "\n" + P2P.replace("GPU2", "GPU7"), 6, "give matrices of one machine"),
        (BLANKS + "\n\n$\n" + BLANKS.replace("NV2", "NV3"), 9, "is NV2 in line 2 but NV3 in line 9"),
        (BLANKS.replace("PHB", "OK "), 1, "mixes words of -p2p and of -m"),
        ("GPU usage: 12 %\n", 0, "looked for a line that names GPU0"),
    ],
)
def test_a_bad_paste_is_told_with_its_line(text: str, line: int, said: str) -> None:
    told = faults_of(text)
    assert any(said in fault and (f"topo.txt:{line}:" in fault or not line) for fault in told), told


def test_all_faults_are_told_at_once() -> None:
    assert len(faults_of(BLANKS.replace("PHB", "PHX").replace("NV2", "NVX"))) == 4


@pytest.mark.parametrize(
    "text", ["", "GPU0", "GPU0 is hot", "schema: kvwaybill/fleet/1", "Hops between two GPUs\n GPU0 GPU1\nGPU0 0 1\n"]
)
def test_other_texts_are_not_taken_for_a_matrix(text: str) -> None:
    assert not matches(text)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(0, 3), st.booleans(), st.randoms(use_true_random=False))
def test_any_matrix_comes_back_as_it_was_printed(n: int, nics: int, tabs: bool, chance: random.Random) -> None:
    names = [f"GPU{i}" for i in range(n)] + [f"NIC{i}" for i in range(nics)]
    words = {}
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            lanes = b.startswith("GPU") and chance.random() < 0.4
            words[a, b] = words[b, a] = (
                f"NV{chance.randint(1, 18)}" if lanes else chance.choice(["PIX", "PXB", "PHB", "NODE", "SYS"])
            )
    rows = [["", *names]] + [[a, *(" X " if a == b else words[a, b] for b in names)] for a in names]
    text = "\n".join("\t".join(row) if tabs else "".join(cell.ljust(8) for cell in row) for row in rows)
    reading = read(text, "t")
    assert {(row["a"], row["b"]): row["raw"] for row in reading.notes["gpu_links"]} == {
        (a, b): words[a, b] for i, a in enumerate(names[:n]) for b in names[i + 1 : n]
    }
    assert reading.fleet is not None
    assert len(reading.fleet.links) == n * (n - 1) + 2 * n


def reads_or_tells(text: str) -> None:
    """Whatever the text: a reading, or faults that can be printed. `matches` never raises."""
    matches(text)
    faults: tuple[Fault, ...] | None = None
    try:
        read(text, "fuzz.txt")
    except DescriptionError as error:
        faults = error.faults
    assert faults is None or faults
    assert all(fault.message and str(fault).isprintable() for fault in faults or ())


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text("GPUXNV0129-,/A \t\n", max_size=200)))
def test_any_text_is_read_or_told(text: str) -> None:
    reads_or_tells(text)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([TABS, BLANKS, P2P, BLANKS + P2P]), st.integers(0, 400), st.integers(0, 30), st.text(max_size=8))
def test_a_mutated_matrix_is_read_or_told(text: str, at: int, cut: int, put: str) -> None:
    reads_or_tells(text[:at] + put + text[at + cut :])


@pytest.mark.parametrize(
    "text", ["GPU0\n" * 10_000, "GPU0 GPU1\n" * 5_000, "GPU0 " * 10_000, "\tGPU0\n\n" * 5_000 + "x\n"]
)
def test_a_large_text_without_a_matrix_takes_work_in_proportion(text: str) -> None:
    calls = [counted(lambda text=text: reads_or_tells(text))[1] for text in (text, text * 2)]
    assert calls[1] < 2.1 * calls[0]


GRACE = (
    "\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tNV18\tNODE\t0-71\t0,2-9\t\t2\n"
    "GPU1\tNV18\t X \tSYS\t72-143\t1\t\tN/A\n"
    "NIC0\tNODE\tSYS\t X \t\t\t\t\n"
)


def test_a_card_with_a_numa_id_of_its_own_is_read() -> None:
    reading = read(GRACE, "t")
    assert reading.notes["gpu_numa_id"] == {"GPU0": 2, "GPU1": None}
    assert reading.notes["numa_affinity"] == {"GPU0": [0, 2, 3, 4, 5, 6, 7, 8, 9], "GPU1": [1]}
    blanks = read(GRACE.replace("\x1b[4m", "").expandtabs(8), "t")
    assert blanks.notes["gpu_numa_id"] == {"GPU0": 2, "GPU1": None}
    assert blanks.notes["numa_affinity"] == reading.notes["numa_affinity"]


def test_columns_that_lost_their_blanks_are_taken_apart() -> None:
    wide = (
        "        GPU0    GPU1    NIC0    NIC1NIC2    CPU Affinity    NUMA Affinity   GPU NUMA ID\n"
        "GPU0     X      NV18    PIX     NODENODE    0-55,112-167    0               N/A\n"
        "GPU1    NV18     X      NODE    NODEPIX     0-55,112-167    0               N/A\n"
        "NIC0    PIX     NODE     X      PIXSYS\n"
        "NIC1    NODE    NODE    PIX      XSYS\n"
        "NIC2    NODE    PIX     SYS     SYSX\n"
    )
    reading = read(wide, "t")
    assert reading.notes["nic_names"] == ["NIC0", "NIC1", "NIC2"]
    assert reading.notes["gpu_nic_links"]["GPU1"] == {"NIC0": "NODE", "NIC1": "NODE", "NIC2": "PIX"}
    assert reading.notes["cpu_affinity"]["GPU0"] == "0-55,112-167"
    told = faults_of(wide.replace("NODEPIX", "PIXNV18X"))
    assert any("more cells than the header" in fault for fault in told)


def test_a_pair_that_is_not_shown_is_unknown_and_not_staged() -> None:
    reading = read("\tGPU0\tGPU1\nGPU0\tX\tN/A\nGPU1\tN/A\tX\n", "t", sku="h100-pcie-80")
    assert reading.fleet is not None
    found = link(reading.fleet, "gpu:0", "gpu:1")
    assert (found.kind, found.peer_access, found.bandwidth.value) == ("pcie", "unknown", None)
    assert any("GPU0-GPU1 is not shown" in told for told in reading.warnings)


def test_how_to_learn_of_peer_access_is_told_until_it_is_known() -> None:
    both = BLANKS + "\n" + P2P
    assert any("topo -p2p r" in told for told in read(BLANKS, "t").warnings)
    assert not any("topo -p2p r" in told for told in read(both, "t").warnings)
