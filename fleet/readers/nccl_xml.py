"""The topology XML of NCCL and RCCL (what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads) -> one node.

A GPU is a `<pci>` with a `<gpu>` inside or of a display class. Links are written at both ends and counted once; a
target may be a GPU, an NVSwitch, a CPU or the GPU itself. The rate of a slot is the slowest hop up to the CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fleet.identity import MAX_INDEX
from fleet.readers import Reading
from fleet.readers.bridges import share_bridges
from fleet.readers.building import HOST, NVSWITCH, Faults, Gpu, Pair, build_fleet, device_id
from fleet.readers.pcie import NEARNESS, Slot, between, is_card, pcie_rate, rate_figure, slowest
from fleet.readers.xml_source import Element, parse_xml, root_tag
from fleet.yaml_source import printable

NAME = "nccl-xml"
MAX_LANES = 1000
MAX_SPEED = 10**9
SPEED = "NCCL topology XML: link_speed and link_width, slowest hop up to the CPU"

_BRIDGE = "0x0604"
_SWITCH, _CPU_BRIDGE, _NIC_CLASS = "0x0680", "0x068001", "0x02"
"""NCCL src/graph/topo.cc gives 0x068001 to NVLink into a CPU and the rest of 0x0680 to NVSwitch."""
_LINKS = {"nvlink": "nvlink", "xgmi": "xgmi"}
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3})?) ?GT/s", re.ASCII)


@dataclass(slots=True)
class _Card:
    """A GPU: its `<pci>`, the `<gpu>` inside or None, its way up, the NUMA node."""

    pci: Element
    gpu: Element | None
    slot: Slot
    numa: int | None
    index: int = -1


@dataclass(slots=True)
class _System:
    """What the tree holds, in its order."""

    cards: list[_Card] = field(default_factory=list)
    nics: list[dict[str, Any]] = field(default_factory=list)
    nic_slots: list[Slot] = field(default_factory=list)
    by_bus: dict[str, Element] = field(default_factory=dict)
    under: dict[int | None, list[str]] = field(default_factory=dict)
    """Bus ids of the outermost devices of each NUMA node."""
    affinity: dict[int, str] = field(default_factory=dict)
    classes: set[str] = field(default_factory=set)
    doubled: list[tuple[str, int, int]] = field(default_factory=list)
    """Bus ids that bridges share with something else, with both lines."""


def matches(text: str) -> bool:
    """Whether the root element is `<system>`."""
    return root_tag(text) == "system"


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The node of an XML text. Raises DescriptionError. `fleet` is None where no device says what it is."""
    faults = Faults(source)
    root = parse_xml(text, faults.source, "system")
    found = _walk(root, faults)
    if not found.by_bus:
        faults.tell(root.line, "system", "holds no <pci> with a busid: no device is described")
    elif not found.cards and found.classes:
        faults.tell(root.line, "system", "holds no GPU: no <gpu>, and no <pci> of class 0x0302, 0x0300 or 0x0380")
    faults.stop()
    if not found.cards:
        told = "no class on any <pci>: the kind of a device is unknown, no GPU can be identified"
        notes = {"n_gpus": None, "n_devices": len(found.by_bus), "numa": _under(found)}
        return Reading(fleet=None, warnings=(told,), notes=notes)
    _number(found, faults)
    links = _Links(found, faults)
    faults.stop()
    gpus = [_gpu(card) for card in found.cards]
    fleet, told_of_fleet = build_fleet(NAME, source, gpus, links.pairs(), sku=sku)
    slots = {device_id(card.index): card.slot for card in found.cards}
    fleet = share_bridges(fleet, slots, HOST, SPEED)
    warnings = (*links.warnings, *_warnings(found), *told_of_fleet)
    return Reading(fleet=fleet, warnings=warnings, notes=_notes(found, links))


def _under(found: _System) -> dict[str, list[str]]:
    return {"unknown" if numa is None else str(numa): buses for numa, buses in found.under.items()}


def _bus(text: str) -> str:
    """Lower case, and the domain without the four zeros that some tools put before it."""
    bus = text.strip().lower()
    return bus[4:] if re.fullmatch(r"0000[0-9a-f]{4}:.*", bus) else bus


def _walk(root: Element, faults: Faults) -> _System:
    found = _System()
    hosts = {cpu.get("host_hash") for cpu in root.all("cpu")} - {""}
    if len(hosts) > 1:
        faults.tell(root.line, "system", f"describes {len(hosts)} hosts in one file; give the file of one host")
    for cpu in root.children:
        numa = _whole(cpu, "numaid", faults, -1, 10**4) if cpu.tag == "cpu" else None
        numa = None if numa is None or numa < 0 else numa
        affinity = cpu.get("affinity") if cpu.tag == "cpu" else ""
        if affinity and numa is not None:
            found.affinity[numa] = _cpus(affinity, cpu, faults)
        inside = cpu.children if cpu.tag == "cpu" else [cpu]
        for child in inside:
            if child.tag == "pci" and child.get("busid"):
                found.under.setdefault(numa, []).append(_bus(child.get("busid")))
            _device(child, (), cpu.line, numa, found, faults)
    return found


def _device(
    element: Element,
    above: tuple[tuple[str, int | None], ...],
    cpu: int,
    numa: int | None,
    found: _System,
    faults: Faults,
) -> None:
    """One `<pci>`, `<nic>` or `<net>` and what is below it. Depth is bounded by the parser."""
    if element.tag == "net":
        found.nics.append(_net(element, above, numa, faults))
        found.nic_slots.append(Slot(hops=above, root=cpu, near=numa))
        return
    hops = above
    if element.tag == "pci":
        bus = _bus(element.get("busid"))
        if not bus:
            faults.tell(element.line, "pci", "has no busid", element.column)
        hops = ((_unlike(bus, element, found, faults), _hop_rate(element)), *above)
        _kind(element, Slot(hops=hops, root=cpu, near=numa), numa, found)
    for child in element.children:
        if child.tag in ("pci", "nic", "net"):
            _device(child, hops, cpu, numa, found, faults)


def _unlike(bus: str, element: Element, found: _System, faults: Faults) -> str:
    """The name of a device on its way up. A bus id that two devices have is a fault, unless one is a bridge.

    Files of hosts with bridges that hide their downstream ports give several bridges one id, or that of a device.
    """
    held = found.by_bus.get(bus)
    if held is None:
        found.by_bus[bus] = element
        return bus
    bridges = [one.get("class").lower().startswith(_BRIDGE) for one in (held, element)]
    if bus and not any(bridges):
        message = f"busid {printable(bus)} stands twice, first in line {held.line}"
        faults.tell(element.line, "pci", message, element.column)
    elif bus:
        found.doubled.append((bus, held.line, element.line))
    if bridges[0] and not bridges[1]:
        found.by_bus[bus] = element
    return bus if not bridges[1] else f"{bus}.line{element.line}"


def _kind(element: Element, slot: Slot, numa: int | None, found: _System) -> None:
    """Keeps the element when it is a GPU, or a NIC without a `<net>`."""
    pci_class = element.get("class").lower()
    found.classes |= {pci_class} if pci_class else set()
    gpu = next(iter(element.all("gpu")), None)
    vendor, device = (element.get(name).lower().removeprefix("0x") for name in ("vendor", "device"))
    kind = pci_class.removeprefix("0x")[:4]
    display = is_card(kind, vendor, device) or (not vendor and kind in ("0300", "0302", "0380"))
    if gpu is not None or display:
        found.cards.append(_Card(element, gpu, slot, numa))
    elif pci_class.startswith(_NIC_CLASS) and not any(True for _ in _nets(element)):
        found.nics.append({"name": None, "speed_mbps": None, "numa": numa, "busid": slot.hops[0][0]})
        found.nic_slots.append(slot)


def _nets(element: Element) -> Iterator[Element]:
    for child in element.children:
        if child.tag == "net":
            yield child
        elif child.tag == "nic":
            yield from _nets(child)


def _net(
    element: Element, above: tuple[tuple[str, int | None], ...], numa: int | None, faults: Faults
) -> dict[str, Any]:
    speed = _whole(element, "speed", faults, 0, MAX_SPEED)
    return {
        "name": printable(element.get("name"), 64) or None,
        "speed_mbps": speed or None,
        "numa": numa,
        "busid": above[0][0] if above else None,
    }


def _hop_rate(element: Element) -> int | None:
    speed = _SPEED.match(element.get("link_speed"))
    width = element.get("link_width")
    return pcie_rate(speed[1], int(width)) if speed and re.fullmatch(r"[0-9]{1,2}", width, re.ASCII) else None


def _whole(element: Element, name: str, faults: Faults, least: int, most: int) -> int | None:
    """A whole number of an attribute, None where it is not there or, with a fault, not one in the range."""
    text = element.get(name)
    if not text:
        return None
    if not re.fullmatch(r"-?[0-9]{1,10}", text, re.ASCII) or not least <= int(text) <= most:
        message = f"{name}={printable(text)!r} must be a whole number from {least} to {most}"
        faults.tell(element.line, element.tag, message, element.column)
        return None
    return int(text)


def _cpus(affinity: str, cpu: Element, faults: Faults) -> str:
    """`00000000,00ffffff` (32-bit words, most significant first) -> `0-23`."""
    words = affinity.split(",")
    if len(words) > 512 or not all(re.fullmatch(r"[0-9A-Fa-f]{1,8}", word, re.ASCII) for word in words):
        faults.tell(cpu.line, "cpu", f"affinity {printable(affinity)} is no list of hex words of 32 bits", cpu.column)
        return ""
    mask = int("".join(word.rjust(8, "0") for word in words), 16)
    runs: list[list[int]] = []
    for bit in range(mask.bit_length()):
        if mask >> bit & 1:
            if runs and runs[-1][1] == bit - 1:
                runs[-1][1] = bit
            else:
                runs.append([bit, bit])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def _number(found: _System, faults: Faults) -> None:
    """The ordinal of each GPU: its `dev`, or for GPUs without one the next free number in the order of the file."""
    taken: dict[int, _Card] = {}
    for card in found.cards:
        dev = None if card.gpu is None else _whole(card.gpu, "dev", faults, 0, MAX_INDEX)
        if dev is None:
            continue
        if dev in taken:
            faults.tell(card.pci.line, "gpu", f"dev {dev} is also the GPU of line {taken[dev].pci.line}")
        taken[dev], card.index = card, dev
    free = (number for number in range(MAX_INDEX + 1) if number not in taken)
    for card in found.cards:
        if card.index < 0 and (number := next(free, None)) is not None:
            card.index = number
    if len(found.cards) > MAX_INDEX + 1:
        faults.tell(0, "", f"holds {len(found.cards)} GPUs; one node has at most {MAX_INDEX + 1}")
    found.cards.sort(key=lambda card: card.index)


def _gpu(card: _Card) -> Gpu:
    return Gpu(
        index=card.index, line=card.pci.line, numa=card.numa, pci=card.slot.hops[0][0],
        rate=rate_figure(slowest(card.slot.hops), SPEED), vendor=_pci_id(card.pci, "vendor"),
        pci_device=_pci_id(card.pci, "device"),
    )  # fmt: skip


def _pci_id(element: Element, name: str) -> str | None:
    """The four digits of a PCI vendor or device; None where they are left out, or zero as in virtual machines."""
    text = element.get(name).lower().removeprefix("0x")
    return text if re.fullmatch("[0-9a-f]{4}", text, re.ASCII) and text != "0000" else None


class _Links:
    """The `<nvlink>`, `<xgmi>` and `<c2c>` of all GPUs: pairs, lanes to switches and to the CPU."""

    def __init__(self, found: _System, faults: Faults) -> None:
        self.found = found
        self.faults = faults
        self.by_bus = {card.slot.hops[0][0]: card for card in found.cards}
        self.ends: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(lanes, line) by kind, from, to."""
        self.switched: dict[int, int] = {}
        self.to_cpu: dict[tuple[str, int], tuple[int, int]] = {}
        self.self_links = 0
        self.stated = False
        self.warnings: list[str] = []
        for card in found.cards:
            for element in card.gpu.children if card.gpu is not None else ():
                self._one(card, element)
        for lanes, line in (*self.ends.values(), *self.to_cpu.values(), *((n, 0) for n in self.switched.values())):
            if lanes > MAX_LANES:
                faults.tell(line, "count", f"{lanes} lanes of one GPU in one place; at most {MAX_LANES} are believed")
        self.direct = self._joined()

    def _one(self, card: _Card, element: Element) -> None:
        if element.tag not in (*_LINKS, "c2c"):
            return
        self.stated = True
        count = _whole(element, "count", self.faults, 1, MAX_LANES)
        if count is None:
            if not element.get("count"):
                self.faults.tell(element.line, element.tag, "has no count of lanes", element.column)
            return
        if element.tag == "c2c":
            self._add(self.to_cpu, ("c2c", card.index), count, element.line)
            return
        target, target_class = _bus(element.get("target")), element.get("tclass").lower()
        other = self.by_bus.get(target)
        known = self.found.by_bus.get(target)
        target_class = target_class if known is None else known.get("class").lower() or target_class
        if other is card:
            self.self_links += 1
            told = (
                f"<{element.tag}> whose target is the GPU itself (count {count}): not a link between two GPUs, dropped"
            )
            self.warnings.append(f"line {element.line}: {told}")
        elif other is not None:
            self._add(self.ends, (_LINKS[element.tag], card.index, other.index), count, element.line)
        elif target_class.startswith(_CPU_BRIDGE):
            self._add(self.to_cpu, ("nvlink", card.index), count, element.line)
        elif target_class.startswith(_SWITCH):
            self.switched[card.index] = self.switched.get(card.index, 0) + count
        else:
            what = "is neither a GPU nor a switch of this file" if known else "is nothing that this file describes"
            message = f"target {printable(target) or '(none)'} {what}"
            self.faults.tell(element.line, element.tag, message, element.column)

    @staticmethod
    def _add(table: dict[Any, tuple[int, int]], key: Any, count: int, line: int) -> None:
        held = table.get(key)
        table[key] = (count, line) if held is None else (held[0] + count, held[1])

    def _joined(self) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Lanes of each unordered pair: what both ends say, never their sum."""
        joined: dict[tuple[str, int, int], tuple[int, int]] = {}
        lone = 0
        for (kind, a, b), (count, line) in self.ends.items():
            back = self.ends.get((kind, b, a))
            lone += back is None
            if back is not None and back[0] != count and a < b:
                message = f"{count} lanes to GPU {b} here, but {back[0]} lanes back in line {back[1]}"
                self.faults.tell(line, kind, message)
            joined.setdefault((kind, min(a, b), max(a, b)), (count, line))
        if lone:
            self.warnings.append(f"{lone} links between GPUs are written at one end only; taken as links both ways")
        return joined

    def pairs(self) -> list[Pair]:
        """All links of the node but the slots."""
        made = [
            Pair(a=device_id(a), b=device_id(b), kind=kind, count=count, line=line, peer="direct")
            for (kind, a, b), (count, line) in self.direct.items()
        ]
        made += [
            Pair(a=HOST, b=device_id(gpu), kind=kind, count=count, line=line)
            for (kind, gpu), (count, line) in self.to_cpu.items()
        ]
        joined = {frozenset((pair.a, pair.b)) for pair in made}
        switched = self.switched if len(self.switched) > 1 else {}
        made += [
            Pair(
                a=device_id(card.index), b=NVSWITCH, kind="nvlink", count=switched[card.index], line=card.pci.line,
                peer="direct",
            )
            for card in self.found.cards
            if card.index in switched
        ]  # fmt: skip
        for at, a in enumerate(self.found.cards):
            for b in self.found.cards[at + 1 :]:
                over_switch = a.index in switched and b.index in switched
                if frozenset((device_id(a.index), device_id(b.index))) not in joined and not over_switch:
                    made.append(self._other(a, b))
        return made

    def _other(self, a: _Card, b: _Card) -> Pair:
        """Over PCIe: no lanes join the two, directly or by a switch."""
        rate = rate_figure(between(a.slot, b.slot)[1], SPEED)
        return Pair(
            a=device_id(a.index), b=device_id(b.index), kind="pcie", line=a.pci.line, bandwidth=rate, peer="unknown"
        )


def _warnings(found: _System) -> list[str]:
    told = []
    without = [card for card in found.cards if slowest(card.slot.hops) is None]
    if without:
        first = without[0].pci
        speed, width = first.get("link_speed") or "empty", first.get("link_width") or "empty"
        what = f"link_speed is {printable(speed)} and link_width is {printable(width)}: PCIe rate unknown"
        told.append(f"line {first.line}: {what} ({len(without)} GPUs)")
    if found.doubled:
        bus, other, line = found.doubled[0]
        more = f" ({len(found.doubled)} such bridges)" if len(found.doubled) > 1 else ""
        what = (
            f"busid {printable(bus)} is a bridge's and stands in line {other} too{more}: taken as bridges of their own"
        )
        told.append(f"line {line}: {what}, so what copies share there is not known")
    if any(card.gpu is None for card in found.cards):
        told.append("no <gpu> element: GPUs are known by their PCI class and numbered in the order of the file")
    if all(card.gpu is None for card in found.cards):
        told.append("NVLink or XGMI is not stated in this file: unknown, not absent")
    return told


def _notes(found: _System, links: _Links) -> dict[str, Any]:
    cards = found.cards
    sms = {
        int(card.gpu.get("sm"))
        for card in cards
        if card.gpu is not None and re.fullmatch("[0-9]{1,4}", card.gpu.get("sm"))
    }
    joined = {
        kind: {f"{a}-{b}": n for (k, a, b), (n, _) in sorted(links.direct.items()) if k == kind} for kind in _LINKS
    }
    near = {card.slot.hops[0][0]: [between(card.slot, nic)[0] for nic in found.nic_slots] for card in cards}
    return {
        "n_gpus": len(cards),
        "n_nics": len(found.nics),
        "n_devices": len(found.by_bus),
        "gpu_busids": [card.slot.hops[0][0] for card in cards],
        "dev_to_busid": {str(card.index): card.slot.hops[0][0] for card in cards},
        "numa": [card.numa for card in cards],
        "sm": sms.pop() if len(sms) == 1 else sorted(sms) or None,
        "pcie": [f"{c.pci.get('link_speed').removesuffix(' PCIe')} x{c.pci.get('link_width')}" for c in cards],
        "nics": found.nics,
        "nic_busids": [nic["busid"] for nic in found.nics if nic["busid"] is not None],
        "gpu_nic_links": near,
        "nearest_nic": {bus: _nearest(words, found.nics) for bus, words in near.items()},
        "nvlink_stated": links.stated,
        "nvlink_undirected": joined["nvlink"],
        "xgmi_undirected": joined["xgmi"],
        "nvswitch_lanes": links.switched,
        "self_links": links.self_links,
        "cpu_affinity": found.affinity,
    }


def _nearest(words: list[str], nics: list[dict[str, Any]]) -> str | None:
    """The bus id or name of the one nearest NIC below a bridge of the GPU; None when there is none or several."""
    best = min(words, key=NEARNESS.index, default="SYS")
    if best not in ("PIX", "PXB") or words.count(best) != 1:
        return None
    nic = nics[words.index(best)]
    name = nic["busid"] or nic["name"]
    return None if name is None else str(name)
