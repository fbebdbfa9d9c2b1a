"""nvbandwidth and p2pBandwidthLatencyTest: what was measured between which two, and what is no rate of one link."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.readers import Observation, nvbandwidth, p2p_bandwidth, read_foreign, recognise

SHARED = Path(__file__).parents[3] / "shared" / "data" / "topology"

READ = """nvbandwidth Version: v0.8
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     26.34
 1     26.33       N/A

SUM device_to_device_memcpy_read_ce 52.67
COEFFICIENT_OF_VARIATION device_to_device_memcpy_read_ce 0.00
"""
WRITE = READ.replace("->", "<-").replace("read", "write").replace("N/A", "0.00")
HOST = """Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.37     55.36

SUM host_to_device_memcpy_ce 110.73

Running device_to_host_memcpy_ce.
memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0     57.40     57.41

SUM device_to_host_memcpy_ce 114.81

Running host_to_device_bidirectional_memcpy_ce.
memcpy CE CPU(row) <-> GPU(column) bandwidth (GB/s)
           0         1
 0     18.56     18.37

SUM host_to_device_bidirectional_memcpy_ce 36.93

Running all_to_host_memcpy_ce.
memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0     12.00     12.01

SUM all_to_host_memcpy_ce 24.01
"""
BOTH_WAYS = """Running device_to_device_bidirectional_memcpy_read_ce.
memcpy CE GPU(row) <-> GPU(column) Read1 bandwidth (GB/s)
           0         1
 0       N/A    160.10
 1    160.10       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_read1 320.20

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    320.10
 1    320.10       N/A

SUM device_to_device_bidirectional_memcpy_read_ce_total 640.20
"""
P2P = r"""[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, Some Card, pciBusID: c1, pciDeviceID: 0, pciDomainID:0
Device: 1, Some Card, pciBusID: c2, pciDeviceID: 0, pciDomainID:0
Device=0 CAN Access Peer Device=1
Device=1 CANNOT Access Peer Device=0

P2P Connectivity Matrix
     D\D     0     1
     0       1     1
     1       0     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\D     0      1
     0 801.28  22.23
     1  22.32 813.80
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\D     0      1
     0 800.15  26.32
     1  22.31 831.12
Bidirectional P2P=Enabled Bandwidth Matrix (GB/s)
   D\D     0      1
     0 802.94  52.11
     1  52.10 806.22
P2P=Enabled Latency (P2P Writes) Matrix (us)
   GPU     0      1
     0   1.39   1.12
     1   1.14   1.42

   CPU     0      1
     0   1.64   1.32
     1   1.32   1.58

NOTE: The CUDA Samples are not meant for performance measurements.
"""


def sidecar(name: str) -> tuple[str, dict[str, Any]]:
    if not SHARED.is_dir():
        pytest.skip("shared/data/topology is not beside the project")
    expected = json.loads((SHARED / f"{name}.json").read_text(encoding="utf-8"))["expected"]
    assert expected.pop("status") == "ok"
    return (SHARED / f"{name}.txt").read_text(encoding="utf-8"), expected


def ways(overlay: tuple[Observation, ...], quantity: str = "bandwidth") -> dict[tuple[str, str], int]:
    found = {(row.src, row.dst): row.value for row in overlay if row.quantity == quantity}
    assert len(found) == len([row for row in overlay if row.quantity == quantity])
    return found


def refusal(reader: ModuleType, text: str) -> str:
    with pytest.raises(DescriptionError) as told:
        reader.read(text, "m.txt")
    return str(told.value)


@pytest.mark.shared
@pytest.mark.parametrize("name", ["nvbandwidth_6xa6000_d2d_read", "nvbandwidth_8gpu_d2d_write"])
def test_every_field_of_a_shared_nvbandwidth_sidecar_is_met(name: str) -> None:
    text, expected = sidecar(name)
    assert recognise(text) == "nvbandwidth"
    reading = read_foreign(text, f"{name}.txt")
    assert reading.fleet is None
    assert reading.notes["n_gpus"] == expected.pop("n_gpus")
    tests = expected.pop("tests")
    assert not expected
    assert set(reading.notes["tests"]) == set(tests)
    for test, facts in tests.items():
        found = reading.notes["tests"][test]
        assert {key: found[key] for key in facts} == facts
        cells = {
            (f"gpu:{i}", f"gpu:{j}"): round(cell * 10**9)
            for i, row in enumerate(facts["matrix"])
            for j, cell in enumerate(row)
            if cell is not None
        }
        swap = "write" in test
        assert ways(reading.overlay) == {(b, a) if swap else (a, b): value for (a, b), value in cells.items()}
        if "printed_sum" in facts:
            assert abs(sum(cells.values()) / 10**9 - facts["printed_sum"]) <= 0.005 * len(cells)


@pytest.mark.shared
def test_every_field_of_the_shared_p2p_sidecar_is_met() -> None:
    text, expected = sidecar("p2pbw_rtx6000ada_2gpu")
    assert recognise(text) == "p2pBandwidthLatencyTest"
    reading = read_foreign(text, "p2p.txt")
    assert {key: reading.notes[key] for key in expected} == expected
    rates = expected["unidirectional_p2p_enabled_GBps"]
    times = expected["latency_us_p2p_enabled_gpu"]
    assert ways(reading.overlay) == {("gpu:0", "gpu:1"): round(rates["0-1"] * 10**9),
                                     ("gpu:1", "gpu:0"): round(rates["1-0"] * 10**9)}  # fmt: skip
    assert ways(reading.overlay, "latency") == {("gpu:0", "gpu:1"): round(times["0-1"] * 10**6),
                                                ("gpu:1", "gpu:0"): round(times["1-0"] * 10**6)}  # fmt: skip


def test_the_arrow_says_which_way_the_bytes_go() -> None:
    forward = ways(nvbandwidth.read(READ, "r").overlay)
    assert forward == {("gpu:0", "gpu:1"): 26_340_000_000, ("gpu:1", "gpu:0"): 26_330_000_000}
    backward = ways(nvbandwidth.read(WRITE, "w").overlay)
    assert backward == {(dst, src): value for (src, dst), value in forward.items()}


def test_a_diagonal_of_zero_is_not_measured() -> None:
    notes = nvbandwidth.read(WRITE, "w").notes["tests"]["device_to_device_memcpy_write_ce"]
    assert notes["matrix"] == [[None, 26.34], [26.33, None]]


def test_host_copies_go_by_the_arrow_and_loaded_tests_stay_notes() -> None:
    reading = nvbandwidth.read(HOST, "h")
    assert ways(reading.overlay) == {
        ("host", "gpu:0"): 55_370_000_000, ("host", "gpu:1"): 55_360_000_000,
        ("gpu:0", "host"): 57_400_000_000, ("gpu:1", "host"): 57_410_000_000,
    }  # fmt: skip
    assert reading.notes["tests"]["all_to_host_memcpy_ce"]["matrix"] == [[12.0, 12.01]]
    assert any("host_to_device_bidirectional_memcpy_ce" in told for told in reading.warnings)


def test_bidirectional_matrices_are_named_by_their_sum_and_are_no_observation() -> None:
    reading = nvbandwidth.read(BOTH_WAYS, "b")
    assert reading.overlay == ()
    tests = reading.notes["tests"]
    assert {name.rsplit("_", 1)[-1] for name in tests} == {"read1", "total"}
    assert tests["device_to_device_bidirectional_memcpy_read_ce_total"]["printed_sum"] == 640.2


def test_a_latency_matrix_becomes_picoseconds() -> None:
    text = ("Running device_to_device_latency_sm.\nDevice to Device Latency SM GPU(row) <-> GPU(column) (ns)\n"
            "   0   1\n0 N/A 612.5\n1 613.5 N/A\n\nSUM device_to_device_latency_sm 1226.0\n")  # fmt: skip
    overlay = nvbandwidth.read(text, "l").overlay
    assert ways(overlay, "latency") == {("gpu:0", "gpu:1"): 612_500, ("gpu:1", "gpu:0"): 613_500}


def test_processes_and_several_host_rows_are_no_devices() -> None:
    nodes = READ.replace("GPU(row)", "Process(row)").replace("GPU(column)", "Process(column)")
    assert nvbandwidth.read(nodes, "n").overlay == ()
    numa = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n 0 1\n0 10.00 11.00\n1 11.00 10.00\n"
    assert nvbandwidth.read(numa, "n").overlay == ()


def test_shell_noise_crlf_and_colours_do_not_matter() -> None:
    noisy = "user$ ./nvbandwidth\r\n\x1b[32m" + READ.replace("\n", "\r\n") + "user$ \r\n"
    assert nvbandwidth.read(noisy, "n").overlay == nvbandwidth.read(READ, "r").overlay


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        (" 1     26.33       N/A\n", "", "m.txt:3:1 rows are missing: 1"),
        (" 1     26.33       N/A\n", " 1     26.33\n", "m.txt:6:1 row 1 has 1 cells for 2 columns"),
        ("26.33", "2.6e1", "2.6e1 is no number"),
        ("26.33", "-26.33", "is no number"),
        ("26.33", "nan", "nan is no number"),
        (" 1     26.33", " 0     26.33", "row 0 is given twice, first at line 5"),
        ("           0         1\n", "", "has"),
        ("           0         1\n", "           0         0\n", "a column is given twice"),
    ],
)
def test_refuses_a_damaged_matrix_with_its_line(old: str, new: str, word: str) -> None:
    assert old in READ
    told = refusal(nvbandwidth, READ.replace(old, new))
    assert told.startswith("m.txt:")
    assert word in told or "must stand below the title" in told


def test_refuses_text_without_a_matrix_and_says_what_was_looked_for() -> None:
    assert "looked for" in refusal(nvbandwidth, "nvbandwidth Version: v0.8\nWaived: \n")
    assert "looked for" in refusal(p2p_bandwidth, "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n")


def test_peer_rates_and_gpu_latencies_are_observed_and_marked_staged_without_access() -> None:
    reading = p2p_bandwidth.read(P2P, "p")
    assert ways(reading.overlay) == {("gpu:0", "gpu:1"): 26_320_000_000, ("gpu:1", "gpu:0"): 22_310_000_000}
    assert ways(reading.overlay, "latency") == {("gpu:0", "gpu:1"): 1_120_000, ("gpu:1", "gpu:0"): 1_140_000}
    staged = {(row.src, row.dst) for row in reading.overlay if "staged" in (row.note or "")}
    assert staged == {("gpu:1", "gpu:0")}
    assert reading.notes["p2p_access"] == [[True, True], [False, True]]
    assert reading.notes["local_copy_GBps"] == {"0": 800.15, "1": 831.12}
    assert reading.notes["bidirectional_p2p_enabled_GBps"] == {"0-1": 52.11, "1-0": 52.1}
    assert any("bidirectional" in told for told in reading.warnings)


def test_only_staged_copies_are_observed_where_no_peer_matrix_is_printed() -> None:
    start, end = P2P.index("Unidirectional P2P=Enabled"), P2P.index("Bidirectional")
    reading = p2p_bandwidth.read(P2P[:start] + P2P[end:], "p")
    rates = [row for row in reading.overlay if row.quantity == "bandwidth"]
    assert {row.value for row in rates} == {22_230_000_000, 22_320_000_000}
    assert all("staged" in (row.note or "") for row in rates)


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("     1  22.31 831.12\n", "", "rows are missing: 1"),
        ("     1  22.31 831.12", "     1  22.31", "row 1 has 1 cells for 2 columns"),
        ("22.31", "x", "x is no number"),
        ("     1  22.31", "     7  22.31", "row 7 has no column of its own"),
        ("Bidirectional P2P=Enabled", "Unidirectional P2P=Enabled", "is given twice, first at line"),
    ],
)
def test_refuses_a_damaged_p2p_text_with_its_line(old: str, new: str, word: str) -> None:
    told = refusal(p2p_bandwidth, P2P.replace(old, new))
    assert told.startswith("m.txt:")
    assert word in told


@pytest.mark.parametrize(("reader", "text"), [(nvbandwidth, READ), (p2p_bandwidth, P2P)])
def test_a_sku_is_told_to_be_of_no_use(reader: ModuleType, text: str) -> None:
    assert any("--sku" in told for told in reader.read(text, "m", sku="l40s").warnings)


_TEXTS = st.sampled_from([(nvbandwidth, READ + HOST + BOTH_WAYS), (p2p_bandwidth, P2P)])


@given(_TEXTS, st.integers(0, 1500), st.integers(0, 60), st.text(max_size=6) | st.sampled_from(["\n", "9" * 30, "N/A"]))
@settings(max_examples=200, deadline=None)
def test_a_damaged_text_is_read_or_refused_in_words(case: tuple[ModuleType, str], at: int, cut: int, put: str) -> None:
    reader, text = case
    damaged = text[:at] + put + text[at + cut :]
    reader.matches(damaged)
    try:
        overlay = reader.read(damaged, "m.txt").overlay
    except DescriptionError as error:
        assert error.faults  # noqa: PT017 - a refusal is one of the two good ends
    else:
        assert all(row.value > 0 and row.src != row.dst for row in overlay)


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_text_is_refused_in_words(text: str) -> None:
    for reader in (nvbandwidth, p2p_bandwidth):
        if not reader.matches(text):
            assert refusal(reader, text)


def test_refuses_more_cells_than_any_machine_has() -> None:
    head = "GPU(row) -> GPU(column) bandwidth (GB/s)\n " + " ".join(str(i) for i in range(700)) + "\n"
    rows = "".join(f"{i} " + "1 " * 700 + "\n" for i in range(700))
    assert "more than 200,000 cells" in refusal(nvbandwidth, head + rows)
