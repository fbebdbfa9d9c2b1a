"""Measurements land on the links that they describe, of the cards that were measured, or are refused with both."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from fleet.importing import Imported, import_fleet
from fleet.machine import Link
from tests.command_line import Ask, asker

GB = 10**9
P2P = """[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]
Device: 0, {name}, pciBusID: c1, pciDeviceID: 0, pciDomainID:0
Device: 1, {name}, pciBusID: c2, pciDeviceID: 0, pciDomainID:0
Device=0 {can} Access Peer Device=1
Device=1 {can} Access Peer Device=0

P2P Connectivity Matrix
     D\\D     0     1
     0       1     {bit}
     1       {bit}     1
Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)
   D\\D     0      1
     0 801.28  12.00
     1  13.00 813.80
Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
   D\\D     0      1
     0 800.15  26.00
     1  22.00 831.12
"""
FLEET = """schema: kvwaybill/fleet/1
name: pair
devices:
  - {{id: gpu:0, sku: l40s{first}}}
  - {{id: gpu:1, sku: l40s{second}}}
links:
  - {{from: gpu:0, to: gpu:1, kind: pcie, bandwidth: 31 GB/s, peer_access: {peer}, bidirectional: true}}
  - {{from: host, to: "gpu:*", kind: pcie, bandwidth: 31 GB/s, bidirectional: true}}
"""
NVB = """nvbandwidth Version: v0.8
{devices}
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     26.00
 1     22.00       N/A
"""


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


class Desk:
    """A fleet file and a text of measurements."""

    def __init__(self, folder: Path) -> None:
        self.fleet, self.text = folder / "fleet.yaml", folder / "measured.txt"
        self.onto()
        self.p2p()

    def onto(self, peer: str = "direct", first: str = "", second: str = "") -> None:
        self.fleet.write_text(FLEET.format(peer=peer, first=first, second=second))

    def p2p(self, name: str = "NVIDIA L40S", peer: bool = True) -> None:
        self.text.write_text(P2P.format(name=name, can="CAN" if peer else "CANNOT", bit=int(peer)))

    def laid(self) -> Imported:
        return import_fleet(str(self.text), onto=str(self.fleet))

    def refusal(self) -> str:
        with pytest.raises(DescriptionError) as told:
            self.laid()
        return str(told.value)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def observed(imported: Imported) -> dict[tuple[str, str], int | None]:
    def value(link: Link) -> int | None:
        return None if link.bandwidth.observed is None else link.bandwidth.observed.value

    return {(link.src, link.dst): value(link) for link in imported.fleet.links}


def test_peer_copies_are_the_rate_of_a_link_with_peer_access(desk: Desk) -> None:
    for peer in ("direct", "unknown"):
        desk.onto(peer=peer)
        seen = observed(desk.laid())
        assert (seen["gpu:0", "gpu:1"], seen["gpu:1", "gpu:0"]) == (26 * GB, 22 * GB)
        assert seen["host", "gpu:0"] is None


def test_peer_copies_laid_on_a_staged_link_fit_nothing_and_both_are_told(desk: Desk) -> None:
    desk.onto(peer="staged")
    told = desk.refusal()
    assert "none of its 2 measurements is of a link of fleet pair" in told
    assert "p2pBandwidthLatencyTest found peer access where the fleet says staged: gpu:0 -> gpu:1" in told


def test_staged_copies_are_the_rate_of_no_link(desk: Desk) -> None:
    desk.p2p(peer=False)
    for peer in ("staged", "unknown"):
        desk.onto(peer=peer)
        assert "a copy staged over host memory and so the rate of no single link" in desk.refusal()
    desk.onto(peer="direct")
    assert "found no peer access where the fleet says direct" in desk.refusal()


def test_one_direction_that_contradicts_is_told_and_the_other_kept(desk: Desk) -> None:
    text = desk.text.read_text()
    desk.text.write_text(
        text.replace("Device=1 CAN ", "Device=1 CANNOT ").replace("     1       1     1", "     1       0     1")
    )
    laid = desk.laid()
    assert observed(laid)["gpu:0", "gpu:1"] == 26 * GB
    assert observed(laid)["gpu:1", "gpu:0"] is None
    assert any(
        "found no peer access where the fleet says direct, so it is not kept: gpu:1 -> gpu:0" in w
        for w in laid.warnings
    )


def test_measurements_of_another_card_are_refused_with_both_names(desk: Desk) -> None:
    desk.p2p(name="NVIDIA RTX 6000 Ada Generation")
    told = desk.refusal()
    assert "gpu:0 was measured on NVIDIA RTX 6000 Ada Generation; gpu:0 of the fleet is l40s" in told
    assert "gpu:1 was measured on" in told


def test_a_label_names_the_card_where_the_sku_is_the_fleets_own(desk: Desk) -> None:
    skus = "skus: {own: {kind: gpu, memories: [{name: m}]}}\n"
    text = FLEET.format(peer="direct", first=", label: NVIDIA L4", second="").replace("sku: l40s", "sku: own")
    desk.fleet.write_text(skus + text)
    assert "gpu:0 was measured on NVIDIA L40S; gpu:0 of the fleet is NVIDIA L4" in desk.refusal()
    desk.fleet.write_text(skus + text.replace("NVIDIA L4", "my card"))
    assert observed(desk.laid())["gpu:0", "gpu:1"] == 26 * GB


def test_cards_are_found_by_pci_address_whatever_their_order(desk: Desk) -> None:
    desk.onto(first=', pci: "0000:c2:00.0"', second=', pci: "00000000:C1:00.0"')
    laid = desk.laid()
    assert observed(laid)["gpu:1", "gpu:0"] == 26 * GB
    assert observed(laid)["gpu:0", "gpu:1"] == 22 * GB
    assert any(
        "gpu:0 of the measurements is gpu:1 of the fleet, by its PCI address 0000:c1:00.0" in w for w in laid.warnings
    )


def test_measurements_of_a_card_in_another_slot_are_refused(desk: Desk) -> None:
    desk.onto(first=', pci: "0000:01:00.0"', second=', pci: "0000:02:00.0"')
    assert "gpu:0 was measured at PCI 0000:c1:00.0; the fleet has gpu:0 at 0000:01:00.0" in desk.refusal()


def test_two_measured_cards_are_never_one_of_the_fleet(desk: Desk) -> None:
    desk.onto(first=', pci: "0000:c1:00.0"', second=', pci: "0000:c2:00.0"')
    desk.text.write_text(desk.text.read_text().replace("pciBusID: c2", "pciBusID: c1"))
    assert "gpu:1 is gpu:0 of the fleet, as another card is" in desk.refusal()


def test_cards_listed_twice_alike_are_no_contradiction(desk: Desk) -> None:
    listed = "Device 0: NVIDIA L40S (00000000:c1:00)\nDevice 1: NVIDIA L40S (00000000:c2:00)\n"
    desk.text.write_text(NVB.format(devices=listed + listed))
    assert observed(desk.laid())["gpu:0", "gpu:1"] == 26 * GB


def test_nvbandwidth_names_its_cards_too(desk: Desk) -> None:
    listed = "Device 0: NVIDIA L4 (00000000:c1:00)\nDevice 1: NVIDIA L4 (00000000:c2:00)"
    desk.text.write_text(NVB.format(devices=listed))
    assert "gpu:0 was measured on NVIDIA L4; gpu:0 of the fleet is l40s" in desk.refusal()
    desk.text.write_text(NVB.format(devices=listed.replace("L4 ", "L40S ")))
    assert observed(desk.laid())["gpu:0", "gpu:1"] == 26 * GB
    desk.onto(peer="staged")
    assert "found peer access where the fleet says staged" in desk.refusal()


def test_on_a_switched_box_nothing_fits_and_that_is_code_2(desk: Desk, ask: Ask, tmp_path: Path) -> None:
    desk.text.write_text(NVB.format(devices=""))
    out = tmp_path / "out.yaml"
    answer = ask("fleet", "import", desk.text, "--onto", "hgx-h100", "--out", out)
    assert (answer.code, answer.out) == (2, "")
    assert not out.exists()
    assert "none of its 2 measurements is of a link of fleet hgx-h100" in answer.err
    assert "the fleet has no such link: gpu:0 -> gpu:1 (bandwidth), gpu:1 -> gpu:0 (bandwidth)" in answer.err
    assert "its devices are joined over nvswitch" in answer.err
    assert "its links: " in answer.err


def test_what_fits_is_kept_beside_what_does_not(desk: Desk) -> None:
    three = NVB.format(devices="").replace(
        "           0         1\n 0       N/A     26.00\n 1     22.00       N/A\n",
        "      0     1     2\n 0  N/A 26.00 20.00\n 1 22.00  N/A 20.00\n 2 20.00 20.00 N/A\n",
    )
    desk.text.write_text(three)
    laid = desk.laid()
    assert observed(laid)["gpu:0", "gpu:1"] == 26 * GB
    assert any("the fleet has no such link, so it is not kept: gpu:0 -> gpu:2" in told for told in laid.warnings)


def test_two_sources_that_contradict_are_both_told(desk: Desk, tmp_path: Path) -> None:
    once = tmp_path / "once.yaml"
    once.write_text(desk.laid().text)
    desk.text.write_text(NVB.format(devices="").replace("26.00", "25.00"))
    told = import_fleet(str(desk.text), onto=str(once)).warnings
    said = "gpu:0 -> gpu:1 bandwidth: nvbandwidth says 25 GB/s, p2pBandwidthLatencyTest said 26 GB/s; 25 GB/s is kept"
    assert said in told


def test_several_tests_of_one_text_are_told_in_one_sentence_with_what_is_kept(desk: Desk) -> None:
    """Reads and writes of each pair once filled the screen with `the former is kept`."""
    write = "Running device_to_device_memcpy_write_ce.\nmemcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)\n"
    rows = "           0         1\n 0       N/A     21.00\n 1     25.00       N/A\n"
    desk.text.write_text(NVB.format(devices="") + "\n" + write + rows)
    laid = desk.laid()
    assert (observed(laid)["gpu:0", "gpu:1"], observed(laid)["gpu:1", "gpu:0"]) == (25 * GB, 21 * GB)
    told = [text for text in laid.warnings if "is kept" in text]
    assert told == [
        "measured by several tests (device_to_device_memcpy_read_ce, then device_to_device_memcpy_write_ce), "
        "the last is kept: gpu:1 -> gpu:0 21 GB/s, not 22 GB/s, gpu:0 -> gpu:1 25 GB/s, not 26 GB/s"
    ]
