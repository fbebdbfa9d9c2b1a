"""This machine as a fleet: the one function behind `kvwaybill fleet discover`.

Identity stays in (UUID and PCI address: without them a run could not be held against its plan). Serial numbers, the
name of the host and hardware addresses of its network cards are left out unless asked for, and then stand beside the
fleet, not in it.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, replace

from fleet.build import NO_RUNTIME
from fleet.discovery.cards import Card, Cards, cards_of_driver, cards_of_pci
from fleet.discovery.links import HOST, Wiring, sku_of
from fleet.discovery.nvml import Driver, Reported, Slice, open_nvml
from fleet.discovery.pci import PciTree, read_pci
from fleet.discovery.processor import Processor, read_memory, read_processor
from fleet.discovery.tree import Tree, list_text
from fleet.dump import fleet_yaml
from fleet.identity import natural_order, topology_id
from fleet.load import load_fleet
from fleet.machine import UNKNOWN, Device, Domain, Figure, Fleet, Host, Link, Memory, Nic, Quantity
from fleet.yaml_source import printable

__all__ = ["Discovered", "discover"]

NAME = "discovered"
_CPU = "cpu:0"
_ODD_SHARE = 32
"""A card whose memory differs from its SKU's by more than 1/32 is told: another card of that name, or a part of one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discovered:
    """The fleet, and what is to be said of it. `serials` is None unless asked for."""

    fleet: Fleet
    notes: tuple[str, ...]
    serials: dict[str, str] | None = field(default=None)

    def text(self) -> str:
        """The fleet file, the notes above it as comments."""
        lines = ["# What this machine says of itself. Unknown stays unknown; each note says what was not told."]
        lines += [f"# - {printable(note, 400)}" for note in self.notes]
        if self.serials is not None:
            lines += ["# Asked for with --with-serials:"]
            lines += [f"#   {printable(name, 80)}: {printable(value, 80)}" for name, value in self.serials.items()]
        return "\n".join([*lines, fleet_yaml(self.fleet)])


def discover(root: str = "/", *, driver: Driver | None = None, with_serials: bool = False) -> Discovered:
    """The machine below `root` (`/proc`, `/sys`). `driver` answers for its GPUs; left out, NVML is asked on `/` only.

    Never fails for what a machine does not tell: that is unknown, and a note.
    """
    close = None
    why = "the machine is read from files alone"
    if driver is None and root == "/":
        driver, close, why = open_nvml()
    try:
        return _read(root, driver, why, with_serials)
    finally:
        if close is not None:
            close()


def _read(root: str, driver: Driver | None, why: str, with_serials: bool) -> Discovered:
    files, tree = Tree(root), read_pci(root)
    found = cards_of_pci(tree, files) if driver is None else cards_of_driver(driver, tree)
    processor = read_processor(root)
    memory, told = read_memory(root)
    wiring = Wiring(found, tree)
    capacity = UNKNOWN if memory is None else Quantity(declared=_measured(memory.nbytes, memory.source))
    cpu = _processor_device(processor, capacity)
    devices = [device for card in found.cards for device in _devices(card)] + [cpu]
    _join_processor(wiring, found, cpu)
    fleet = _fleet(devices, wiring, processor, tree)
    notes = [
        *_about_processor(processor),
        *told,
        *_about_gpus(found, tree, driver is None, why),
        *found.notes,
        *wiring.notes,
        *(note for card in found.cards for note in _about_card(card)),
        *_about_nics(tree),
    ]
    serials = _serials(files, found, tree) if with_serials else None
    return Discovered(fleet=fleet, notes=tuple(dict.fromkeys(notes)), serials=serials)


def _measured(value: int, source: str, note: str | None = None) -> Figure:
    return Figure(value=value, provenance="measured", source=source, note=note)


def _processor_device(processor: Processor, capacity: Quantity) -> Device:
    """Host memory as the device cpu:0: all sockets together, as the processor's backend uses them."""
    runtime = Figure(value=0, provenance="policy", source="no driver context on a CPU")
    return Device(
        id=_CPU,
        kind="cpu",
        index=0,
        topology_id=topology_id(_CPU, "cpu", 0, one_node=True),
        host=HOST,
        memories=(Memory(name="dram", capacity=capacity),),
        default_memory="dram",
        runtime=Quantity(declared=runtime),
        arch=processor.arch,
        label=None if processor.model is None else printable(processor.model, 120),
        capacity_field="devices.cpu:0.memories[0].capacity",
    )


def _devices(card: Card) -> list[Device]:
    """The card and its MIG slices."""
    sku = sku_of(card)
    memories = sku.memories if sku is not None and sku.memories else (Memory(name="memory"),)
    default = sku.default_memory if sku is not None and sku.memories else "memory"
    capacity = _capacity(card.memory, card.source)
    main = next(m for m in memories if m.name == default)
    main = replace(main, capacity=capacity)
    whole = Device(
        id=card.id,
        kind="gpu",
        index=card.index,
        topology_id=topology_id(card.id, "gpu", card.index, one_node=True),
        host=HOST,
        sku=card.sku,
        memories=tuple(main if m.name == default else m for m in memories),
        default_memory=default,
        runtime=_runtime(card, None if sku is None else sku.runtime),
        uuid=card.uuid,
        pci=card.pci,
        numa=card.numa,
        arch=None if sku is None else sku.arch,
        label=card.name,
        capacity_field=f"devices.{card.id}.memories[0].capacity",
        compute=() if sku is None else sku.compute,
    )
    rows = card.slices or ()
    if _too_much(card):
        rows = tuple(replace(row, memory=None) for row in rows)
    return [whole, *(_slice(whole, main, card, number, row) for number, row in enumerate(rows))]


def _too_much(card: Card) -> bool:
    """Whether the slices together have more than the card: then neither figure can be believed of a slice."""
    held = sum(row.memory.total for row in card.slices or () if row.memory is not None)
    return card.memory is not None and held > card.memory.total


def _slice(whole: Device, main: Memory, card: Card, number: int, row: Slice) -> Device:
    """A MIG slice: its own capacity; what it has of the card's rate is not told, so it is unknown."""
    name = f"{whole.id}/mig:{number}"
    memory = Memory(name=main.name, capacity=_capacity(row.memory, card.source), granule=main.granule)
    return Device(
        id=name,
        kind="gpu",
        index=None,
        topology_id=topology_id(name, "gpu", None, one_node=True),
        host=HOST,
        sku=whole.sku,
        memories=(memory,),
        default_memory=memory.name,
        runtime=whole.runtime,
        uuid=row.uuid,
        numa=whole.numa,
        arch=whole.arch,
        label=None if row.profile is None else printable(row.profile, 40),
        capacity_field=f"devices.{name}.memories[0].capacity",
        parent=whole.id,
        profile=None if row.profile is None else printable(row.profile, 40),
    )


def _capacity(reported: Reported | None, source: str) -> Quantity:
    """All the bytes that the driver counts; what it keeps of them is part of the runtime."""
    if reported is None or reported.total <= 0:
        return UNKNOWN
    note = None if reported.reserved is None else f"of which the driver keeps {reported.reserved} B"
    return Quantity(declared=_measured(reported.total, f"total memory, {source}", note))


def _runtime(card: Card, of_sku: Quantity | None) -> Quantity:
    """The catalog's figure; without one, or where the driver keeps more, what the driver keeps: a lower bound."""
    reserved = None if card.memory is None else card.memory.reserved
    known = None if of_sku is None else of_sku.value
    if reserved is not None and reserved > (known or 0):
        note = "the driver's own reserve; the context of a program takes more"
        figure = Figure(
            value=reserved, provenance="measured", source=f"reserved memory, {card.source}", verified=False, note=note
        )
        return Quantity(declared=figure)
    return NO_RUNTIME if of_sku is None else of_sku


def _join_processor(wiring: Wiring, found: Cards, cpu: Device) -> None:
    """cpu:0 is host memory: a card reaches it over its own slot, directly; within the host no rate is known."""
    up = {(link.src, link.dst): link for link in wiring.links}
    wiring.add(HOST, cpu.id, "host", UNKNOWN)
    for card in found.cards:
        slot = up.get((HOST, card.id))
        if slot is not None:
            wiring.add(card.id, cpu.id, "host", slot.bandwidth, 1, "direct", latency=slot.latency)


def _fleet(devices: list[Device], wiring: Wiring, processor: Processor, tree: PciTree) -> Fleet:
    nodes = None if processor.nodes is None else sum(bool(node.cpus) for node in processor.nodes) or None
    wiring_domain = Domain(id="nvlink", kind="nvlink", members=tuple(sorted(wiring.switched)))
    fleet = Fleet(
        name=NAME,
        hosts=(Host(id=HOST, numa_nodes=nodes, label=_host_label(processor)),),
        devices=tuple(sorted(devices, key=lambda device: natural_order(device.id))),
        links=tuple(sorted(wiring.links, key=_link_order)),
        switches=tuple(sorted(wiring.switches, key=lambda switch: natural_order(switch.id))),
        nics=tuple(
            Nic(id=f"nic:{number}", host=HOST, pci=nic.address, numa=nic.numa, label=_nic_label(nic.names, nic.speeds))
            for number, nic in enumerate(tree.nics)
        ),
        domains=(wiring_domain,) if wiring.switched else (),
        source=NAME,
    )
    # Read back: whatever a fleet file goes through, this went through (slices get the links of their cards there).
    return load_fleet(NAME, text=fleet_yaml(fleet))


def _link_order(link: Link) -> tuple[object, ...]:
    return natural_order(link.src), natural_order(link.dst), link.kind


def _host_label(processor: Processor) -> str | None:
    if processor.model is None:
        return None
    times = "" if processor.sockets is None else f"{processor.sockets} x "
    return printable(f"{times}{processor.model}", 120)


def _nic_label(names: tuple[str, ...], speeds: tuple[str, ...]) -> str | None:
    shown = ", ".join((*names, *speeds))
    return printable(shown, 120) if shown else None


def _about_processor(processor: Processor) -> list[str]:
    notes = []
    known = [
        processor.model or "model not told",
        "sockets not told"
        if processor.sockets is None
        else f"{processor.sockets} sockets"
        if processor.sockets > 1
        else "1 socket",
        "logical processors not told" if processor.cpus is None else f"{processor.cpus} logical processors",
    ]
    notes.append(f"processor: {', '.join(known)}")
    for node in processor.nodes or ():
        cpus = f"processors {list_text(list(node.cpus))}" if node.cpus else "no processor"
        size = "memory not told" if node.nbytes is None else f"{node.nbytes:,} B"
        notes.append(f"NUMA node {node.number}: {cpus}, {size}")
    if processor.nodes is None:
        notes.append("the system does not tell its NUMA nodes: unknown")
    notes.append("cpu:0 is host memory of all sockets together; its bandwidth and that of copies within it are unknown")
    return notes


def _times(count: int | None, what: str) -> str:
    return f"{what}s not told" if count is None else f"{count} {what}{'' if count == 1 else 's'}"


def _about_gpus(found: Cards, tree: PciTree, without_driver: bool, why: str) -> list[str]:
    notes = [why] if without_driver else []
    if not tree.present:
        notes.append("/sys shows no PCI tree: slots, bridges and network cards are unknown")
    if not found.cards:
        where = (
            "the driver lists none" if not without_driver else "PCI shows none" if tree.present else "none can be seen"
        )
        notes.append(f"no GPU: {where}")
    return notes


def _about_card(card: Card) -> list[str]:
    notes = []
    sku = sku_of(card)
    if sku is None:
        name = "a card without a name" if card.name is None else card.name
        notes.append(f"{card.id} ({name}) is no card of the catalog: bandwidth and lane rates are unknown")
    elif card.memory is not None:
        sold = next((m.capacity.value for m in sku.memories if m.name == sku.default_memory), None)
        if sold is not None and abs(sold - card.memory.total) * _ODD_SHARE > sold:
            notes.append(
                f"{card.id} is named {card.name}, as {sku.name} is, but has {card.memory.total:,} B where the catalog "
                f"has {sold:,} B: its figures may be another card's"
            )
    if card.memory is None:
        notes.append(f"{card.id}: its memory is not told, so nothing can be admitted on it")
    if card.uuid is None:
        notes.append(f"{card.id}: no uuid, so a run cannot be held against this card by it")
    if card.cpus:
        notes.append(f"{card.id} is near to processors {list_text(list(card.cpus))}")
    if _too_much(card):
        notes.append(f"the slices of {card.id} tell more memory together than the card: theirs is left unknown")
    if card.slices:
        notes.append(f"{card.id} is partitioned: programs run on its slices, not on the card")
    elif card.slices is not None:
        notes.append(f"{card.id} is in MIG mode without a slice: no program can run on it")
    return notes


def _about_nics(tree: PciTree) -> list[str]:
    if not tree.virtual:
        return []
    return [f"{_times(tree.virtual, 'virtual function')} of network cards left out"]


def _serials(files: Tree, found: Cards, tree: PciTree) -> dict[str, str]:
    """What names this very machine: host name, serial numbers, hardware addresses."""
    here = platform.node() if files.root == "/" else ""
    told: dict[str, str | None] = {"host name": files.text("proc", "sys", "kernel", "hostname") or here}
    dmi = ("sys", "class", "dmi", "id")
    for name in ("product_serial", "board_serial", "chassis_serial", "product_uuid"):
        told[name.replace("_", " ")] = files.text(*dmi, name)
    for card in found.cards:
        told[f"{card.id} serial"] = card.serial
    for number, nic in enumerate(tree.nics):
        place = ("sys", "bus", "pci", "devices", nic.address, "net")
        for name in files.names(*place):
            told[f"nic:{number} {name} address"] = files.text(*place, name, "address")
    return {name: value for name, value in told.items() if value}
