"""How far two devices of a PCIe tree lie apart, in the words of a topology matrix, and the rate of the way between."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction

from fleet.machine import UNKNOWN, Figure, Quantity

_ENCODED = {"2.5": Fraction(8, 10), "5": Fraction(8, 10)} | dict.fromkeys(("8", "16", "32", "64"), Fraction(128, 130))
"""Share of the bits on the wire that is data, by GT/s. From 64 GT/s on flit overhead is not modelled."""

NEARNESS = ("PIX", "PXB", "PHB", "NODE", "SYS")


_NVIDIA, _AMD = "10de", "1002"
_BOARD_CHIPS = ("4752", "4754", "5159", "515e", "5960", "5969")
"""AMD's display chips of server boards (Rage XL, RN50, ES1000), by the public list pci.ids."""


def is_card(pci_class: str, vendor: str, device: str) -> bool:
    """Whether class, vendor and device (four hexadecimal digits each) are those of a card that can compute.

    For devices that no library named. Management chips of server boards and adapters of virtual machines draw pictures.
    """
    if vendor == _NVIDIA:
        return pci_class in ("0300", "0302", "0380")
    return vendor == _AMD and pci_class in ("0300", "0302", "0380", "1200") and device not in _BOARD_CHIPS


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """A device's way up to the CPU: its own link first, then that of each bridge above it.

    A hop is (name of the device or bridge at its lower end, bytes per second one way or None). `root` is the host
    bridge, `near` what host bridges on one NUMA node share; None where it is not known.
    """

    hops: tuple[tuple[str, int | None], ...]
    root: Hashable
    near: Hashable = None


def pcie_rate(giga_transfers: str, width: int) -> int | None:
    """Bytes per second, one direction, of a link of `width` lanes at that many GT/s; None for no PCIe speed."""
    speed = giga_transfers.rstrip("0").rstrip(".") if "." in giga_transfers else giga_transfers
    share = _ENCODED.get(speed)
    if share is None or not 1 <= width <= 32:
        return None
    return int(Fraction(speed) * 10**9 * width * share / 8)


def slowest(hops: tuple[tuple[str, int | None], ...]) -> int | None:
    """The rate of the slowest hop; None when one of them is not known."""
    rates = [rate for _, rate in hops if rate is not None]
    return min(rates) if rates and len(rates) == len(hops) else None


def between(a: Slot, b: Slot) -> tuple[str, int | None]:
    """(PIX, PXB, PHB, NODE or SYS, bytes per second of the slowest hop or None) from one device to the other."""
    places = {name: at for at, (name, _) in enumerate(b.hops)}
    for at, (name, _) in enumerate(a.hops):
        if at and places.get(name, 0):
            word = "PIX" if at == 1 and places[name] == 1 else "PXB"
            return word, slowest(a.hops[:at] + b.hops[: places[name]])
    word = "PHB" if a.root == b.root else "NODE" if a.near is not None and a.near == b.near else "SYS"
    return word, slowest(a.hops + b.hops)


def rate_figure(rate: int | None, source: str) -> Quantity:
    """The rate as a declared figure, UNKNOWN for None or 0."""
    return Quantity(declared=Figure(value=rate, provenance="spec", source=source)) if rate else UNKNOWN
