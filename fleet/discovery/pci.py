"""The PCI tree of `/sys/bus/pci/devices`: GPUs and network cards by class code, bridges above them, link speeds."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fleet.discovery.tree import Tree
from fleet.readers.pcie import Slot, is_card, pcie_rate

__all__ = ["PciDevice", "PciTree", "read_pci"]

NVIDIA, AMD, INTEL = "10de", "1002", "8086"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", re.ASCII)
_MAC_NAME = re.compile(r"(enx|wlx|wwx|ibx)[0-9a-f]{12,}", re.ASCII)
_PLACE = ("sys", "bus", "pci", "devices")


@dataclass(frozen=True, kw_only=True, slots=True)
class PciDevice:
    """A card of the tree. `bridges` are the addresses above it, nearest first; `root` is its host bridge.

    `link` is (speed in GT/s, lanes) of its own slot, `names` what the kernel calls it (mlx5_0, eth0).
    """

    address: str
    vendor: str
    device: str
    class_code: str
    numa: int | None
    bridges: tuple[str, ...]
    root: str | None
    link: tuple[str, int] | None
    names: tuple[str, ...] = ()
    speeds: tuple[str, ...] = ()
    memory: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PciTree:
    """GPUs and network cards in the order of their addresses. `rates` is bytes per second of the slot of an address.

    `virtual` counts the virtual functions of network cards, which are left out.
    """

    gpus: tuple[PciDevice, ...]
    nics: tuple[PciDevice, ...]
    rates: dict[str, int | None]
    present: bool
    virtual: int = 0

    def slot(self, card: PciDevice, own: int | None = None) -> Slot:
        """The way from the card up to the processor. `own` is the rate of its own slot where somebody else told it."""
        first = own if own is not None else self.rates.get(card.address)
        # A bridge without a link of its own (a host bridge of a virtual machine) slows nothing down.
        above = tuple((bridge, self.rates[bridge]) for bridge in card.bridges if self.rates.get(bridge) is not None)
        return Slot(hops=((card.address, first), *above), root=card.root, near=card.numa)


def read_pci(root: str = "/") -> PciTree:
    """The tree; empty, with `present` False, where `/sys` shows none."""
    tree = Tree(root)
    addresses = [name for name in tree.names(*_PLACE) if _ADDRESS.fullmatch(name)]
    gpus, nics, rates, virtual = [], [], {}, 0
    for address in addresses:
        code = (tree.text(*_PLACE, address, "class") or "").lower().removeprefix("0x")[:6]
        vendor = (tree.text(*_PLACE, address, "vendor") or "").lower().removeprefix("0x")
        rates[address] = _rate(tree, address)
        device = (tree.text(*_PLACE, address, "device") or "").lower().removeprefix("0x")
        if _is_gpu(code, vendor, device):
            gpus.append(_device(tree, address, vendor, code))
        elif code.startswith("02"):
            if tree.holds(*_PLACE, address, "physfn"):
                virtual += 1
            else:
                nics.append(_device(tree, address, vendor, code))
    present = bool(addresses)
    return PciTree(gpus=tuple(gpus), nics=tuple(nics), rates=rates, present=present, virtual=virtual)


def _is_gpu(code: str, vendor: str, device: str) -> bool:
    """3D and display controllers and accelerators of those who make cards with memory of their own.

    The picture of a server's management chip (class 0300 of others) and that of a processor (Intel 0300) are none.
    """
    if vendor in (NVIDIA, AMD):
        return is_card(code[:4], vendor, device)
    return vendor == INTEL and code[:4] in ("0302", "0380")


def _device(tree: Tree, address: str, vendor: str, code: str) -> PciDevice:
    numa = tree.number(*_PLACE, address, "numa_node")
    bridges, root = _above(tree, address)
    names, speeds = _names(tree, address)
    return PciDevice(
        address=address,
        vendor=vendor,
        device=(tree.text(*_PLACE, address, "device") or "").lower().removeprefix("0x"),
        class_code=code,
        numa=numa if numa is not None and numa >= 0 else None,
        bridges=bridges,
        root=root,
        link=_link(tree, address),
        names=names,
        speeds=speeds,
        memory=tree.number(*_PLACE, address, "mem_info_vram_total"),
    )


def _above(tree: Tree, address: str) -> tuple[tuple[str, ...], str | None]:
    """(bridges, nearest first; host bridge) out of the path that the entry links to."""
    steps = (tree.target(*_PLACE, address) or "").split("/")
    roots = [step for step in steps if _ROOT.fullmatch(step)]
    bridges = [step for step in steps if _ADDRESS.fullmatch(step) and step != address]
    return tuple(reversed(bridges)), roots[-1] if roots else None


def _link(tree: Tree, address: str) -> tuple[str, int] | None:
    """(GT/s, lanes): the speed that the slot can reach, since it falls when idle, and the lanes that it runs on."""
    speed = _SPEED.search(tree.text(*_PLACE, address, "max_link_speed") or "")
    lanes = [
        number
        for name in ("current_link_width", "max_link_width")
        if (number := tree.number(*_PLACE, address, name)) is not None and 1 <= number <= 32
    ]
    return (speed[1].removesuffix(".0"), min(lanes)) if speed and lanes else None


def _rate(tree: Tree, address: str) -> int | None:
    link = _link(tree, address)
    return None if link is None else pcie_rate(*link)


def _names(tree: Tree, address: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(names of the card's interfaces, what they say of their speed). A name that spells a hardware address is cut."""
    names, speeds = [], []
    for name in tree.names(*_PLACE, address, "infiniband"):
        names.append(name)
        for port in tree.names("sys", "class", "infiniband", name, "ports"):
            rate = tree.text("sys", "class", "infiniband", name, "ports", port, "rate")
            speeds += [rate[:40]] if rate else []
    for name in tree.names(*_PLACE, address, "net"):
        spelled = _MAC_NAME.match(name)
        names.append(f"{spelled[1]}..." if spelled else name)
        megabits = tree.number("sys", "class", "net", name, "speed")
        speeds += [f"{megabits} Mbit/s"] if megabits is not None and megabits > 0 else []
    return tuple(names), tuple(dict.fromkeys(speeds))
