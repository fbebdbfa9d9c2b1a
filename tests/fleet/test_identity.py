"""UUIDs and PCI addresses in any spelling are one identity, in files, plans and runs alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.identity import pci_key, uuid_key
from fleet.load import load_fleet

UUID = "GPU-0c1f5a2e-9b7d-4e60-8a11-3f2e4d5c6b7a"
FILE = """schema: kvwaybill/fleet/1
name: pair
devices:
  - {{id: gpu:0, sku: l40s, {one}}}
  - {{id: gpu:1, sku: l40s, {other}}}
"""


@pytest.mark.parametrize("text", [UUID.lower(), UUID.upper(), UUID[4:], UUID[4:].replace("-", ""), f" {UUID} "])
def test_spellings_of_a_uuid_are_one(text: str) -> None:
    assert uuid_key(text) == uuid_key(UUID)


def test_another_digit_is_another_card_and_nothing_is_unknown() -> None:
    assert uuid_key(UUID[:-1] + "b") != uuid_key(UUID)
    assert (uuid_key(None), uuid_key(""), uuid_key("  ")) == (None, None, None)
    assert uuid_key("MIG-GPU-1/1/0") == "mig-gpu-1/1/0"


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7))
def test_spellings_of_an_address_are_one(domain: int, bus: int, device: int, function: int) -> None:
    long = f"{domain:08X}:{bus:02X}:{device:02X}.{function}"
    assert pci_key(long) == pci_key(f"{domain:04x}:{bus:02x}:{device:02x}.{function}")
    assert pci_key(long) == pci_key(f"{domain:x}:{bus:x}:{device:x}.{function}")
    assert pci_key(long) != pci_key(f"{domain:08X}:{bus:02X}:{device:02X}.{(function + 1) % 8}")
    if domain == 0:
        assert pci_key(long) == pci_key(f"{bus:02x}:{device:02x}.{function}")


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (f"uuid: {UUID}", f"uuid: {UUID[4:].replace('-', '').upper()}", "is the uuid of devices[0].uuid too"),
        ('pci: "0000:3b:00.0"', 'pci: "00000000:3B:00.0"', "is the pci address of devices[0].pci too"),
    ],
)
def test_a_file_with_one_card_in_two_spellings_is_refused(one: str, other: str, what: str) -> None:
    with pytest.raises(DescriptionError) as told:
        load_fleet("f.yaml", text=FILE.format(one=one, other=other))
    assert what in str(told.value)


def test_two_cards_are_two() -> None:
    fleet = load_fleet("f.yaml", text=FILE.format(one=f"uuid: {UUID}", other=f"uuid: {UUID[:-1]}b"))
    assert [device.uuid for device in fleet.devices] == [UUID, UUID[:-1] + "b"]
