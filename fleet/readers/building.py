"""From what a reader found to a Fleet: ids, links both ways, what a SKU fills. Shared by the readers of one node.

Every such node has one host `host`; GPU number i is `gpu:i`. Rates that neither the text nor the SKU gives are unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleet.digest import fleet_digest
from fleet.errors import Fault, raise_in_order
from fleet.identity import natural_order, topology_id
from fleet.lint import warnings_of
from fleet.machine import UNKNOWN, Device, Figure, Fleet, Host, Link, Memory, PeerAccess, Quantity, Switch
from fleet.readers.named import check_card, doubts
from fleet.readers.skus import Sku, find_sku
from fleet.yaml_source import printable

HOST = "host"
NVSWITCH = "nvswitch"
"""All NVSwitches of a node as one: a text may say that cards reach them, never which of them a copy takes."""
MAX_FAULTS = 100
"""More are not collected: a text of another kind would give one a line."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU that a text names. `capacity` and the slot's `rate` are what the text itself says.

    So are `product`, its name, and `vendor` and `pci_device`, four hexadecimal digits each: None = not said.
    """

    index: int
    line: int
    numa: int | None = None
    pci: str | None = None
    uuid: str | None = None
    capacity: Quantity = UNKNOWN
    rate: Quantity = UNKNOWN
    product: str | None = None
    vendor: str | None = None
    pci_device: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """What joins two ends (`gpu:0`, `host`, as `b` also NVSWITCH), both ways alike but for `peer` and `peer_back`.

    `rated` is False where the kind is a guess: then no rate is taken from the SKU.
    """

    a: str
    b: str
    kind: str
    line: int
    count: int = 1
    bandwidth: Quantity = UNKNOWN
    rated: bool = True
    peer: PeerAccess | None = None
    peer_back: PeerAccess | None = None


class Faults:
    """The faults of one pass over a text."""

    def __init__(self, source: str) -> None:
        self.source = printable(source, 200)
        self.found: list[Fault] = []

    def tell(self, line: int, field: str, message: str, column: int = 0) -> None:
        """One more fault; beyond MAX_FAULTS the pass ends."""
        self.found.append(
            Fault(
                source=self.source,
                field=printable(field),
                message=message,
                line=line,
                column=column or (1 if line else 0),
            )
        )
        if len(self.found) >= MAX_FAULTS:
            self.stop()

    def stop(self) -> None:
        """Raises DescriptionError when there are faults."""
        raise_in_order(self.found)


def lines_of(text: str) -> list[str]:
    """The lines without terminal escapes; CRLF and lone CR end lines too. Line numbers are kept."""
    return [_ESCAPES.sub("", line) for line in re.split(r"\r\n|\n|\r", text)]


def device_id(index: int) -> str:
    """`gpu:3`."""
    return f"gpu:{index}"


def build_fleet(
    name: str,
    source: str,
    gpus: Sequence[Gpu],
    pairs: Iterable[Pair],
    *,
    sku: str | None,
    numa_nodes: int | None = None,
) -> tuple[Fleet, tuple[str, ...]]:
    """(the fleet, warnings of this step, which the fleet carries too).

    Raises DescriptionError: there is no such SKU, or the text names another card.
    """
    card = None if sku is None else find_sku(sku)
    shown = printable(source, 200)
    if card is not None:
        check_card(gpus, card, shown)
    devices = tuple(_device(gpu, card, shown) for gpu in sorted(gpus, key=lambda gpu: gpu.index))
    pairs = list(pairs)
    links = [link for pair in pairs for link in _both_ways(pair, card, shown)]
    linked = {frozenset((pair.a, pair.b)) for pair in pairs if pair.kind == "pcie"}
    for gpu in gpus:
        if frozenset((HOST, device_id(gpu.index))) not in linked:
            links += _slot(gpu, card, shown)
    switched = min((pair.line for pair in pairs if pair.b == NVSWITCH), default=None)
    switch = Switch(id=NVSWITCH, kind="nvlink", host=HOST, label="the NVSwitches of the node as one")
    fleet = Fleet(
        name=name,
        hosts=(Host(id=HOST, numa_nodes=numa_nodes, where=f"{shown}:1"),),
        devices=devices,
        switches=() if switched is None else (replace(switch, where=f"{shown}:{switched}"),),
        links=tuple(sorted(links, key=lambda k: (natural_order(k.src), natural_order(k.dst), k.kind))),
        source=source,
    )
    undeclared = [d.id for d in devices if d.runtime.declared is not None and d.runtime.declared.source == _NO_RUNTIME]
    doubted = () if card is None else doubts(gpus, pairs, card)
    told = (*doubted, *_gaps(fleet, card), *warnings_of(fleet, {d.id: d.arch for d in devices}, undeclared))
    return replace(fleet, digest=fleet_digest(fleet), warnings=told), told


_NO_RUNTIME = "default: no runtime declared"


def _device(gpu: Gpu, card: Sku | None, source: str) -> Device:
    memories = card.memories if card is not None and card.memories else (Memory(name="memory"),)
    default = card.default_memory if card is not None and card.memories else "memory"
    if gpu.capacity != UNKNOWN:
        memories = tuple(replace(m, capacity=gpu.capacity) if m.name == default else m for m in memories)
    policy = Figure(value=0, provenance="policy", source=_NO_RUNTIME, verified=False)
    runtime = card.runtime if card is not None and card.runtime is not None else UNKNOWN
    return Device(
        id=device_id(gpu.index),
        kind="gpu",
        index=gpu.index,
        topology_id=topology_id(device_id(gpu.index), "gpu", gpu.index, one_node=True),
        host=HOST,
        sku=None if card is None else card.name,
        memories=memories,
        default_memory=default,
        runtime=Quantity(declared=policy) if runtime == UNKNOWN else runtime,
        uuid=gpu.uuid,
        pci=gpu.pci,
        numa=gpu.numa,
        arch=None if card is None else card.arch,
        where=f"{source}:{gpu.line}",
        capacity_field=_capacity_field(gpu, card),
        compute=() if card is None else card.compute,
    )


def _capacity_field(gpu: Gpu, card: Sku | None) -> str:
    """Where a size would be stated: a size that the text states is in no card, and one that nobody does is --sku's."""
    if gpu.capacity != UNKNOWN:
        return f"devices.{device_id(gpu.index)}.memories[0].capacity"
    return "--sku" if card is None else f"skus.{card.name}.memories[0].capacity"


def _slot(gpu: Gpu, card: Sku | None, source: str) -> list[Link]:
    """PCIe to the host both ways: every card that these tools print has it."""
    rate = gpu.rate if gpu.rate != UNKNOWN or card is None else card.slot
    place = device_id(gpu.index)
    where = f"{source}:{gpu.line}"
    latency = UNKNOWN if card is None else card.latencies.get("pcie", UNKNOWN)
    return [
        Link(src=src, dst=dst, kind="pcie", bandwidth=rate, latency=latency, where=where)
        for src, dst in ((HOST, place), (place, HOST))
    ]


def _both_ways(pair: Pair, card: Sku | None, source: str) -> list[Link]:
    rate = pair.bandwidth if pair.bandwidth != UNKNOWN else _rate(pair, card)
    back = pair.peer if pair.peer_back is None else pair.peer_back
    # The latency of a card's slot is that of a copy to its host, not of one to another card.
    # That of lanes is one from card to card: a way over a switch would count it twice.
    whole = pair.b != NVSWITCH and (pair.kind != "pcie" or HOST in (pair.a, pair.b))
    known = card is not None and pair.rated and whole
    latency = card.latencies.get(pair.kind, UNKNOWN) if card is not None and known else UNKNOWN
    return [
        Link(
            src=src, dst=dst, kind=pair.kind, count=pair.count, bandwidth=rate, latency=latency, peer_access=peer,
            where=f"{source}:{pair.line}",
        )
        for src, dst, peer in ((pair.a, pair.b, pair.peer), (pair.b, pair.a, back))
    ]  # fmt: skip


def _rate(pair: Pair, card: Sku | None) -> Quantity:
    """Lanes times the lane of the SKU; for PCIe between two cards, the rate of a slot."""
    if card is None or not pair.rated:
        return UNKNOWN
    if pair.kind == "pcie":
        return card.slot
    lane = card.lanes.get(pair.kind, UNKNOWN).declared
    if lane is None:
        return UNKNOWN
    source = f"{pair.count} lanes of {lane.value} B/s each: {lane.source}"
    return Quantity(
        declared=Figure(
            value=pair.count * lane.value, provenance=lane.provenance, source=source, verified=lane.verified
        )
    )


def _gaps(fleet: Fleet, card: Sku | None) -> list[str]:
    """What stays unknown and how to state it."""
    told = []
    if any(device.memory.capacity.value is None for device in fleet.devices):
        told.append("the text says nothing of the memory of a card: name it with --sku, or nothing can be admitted")
    kinds = sorted({link.kind for link in fleet.links if link.bandwidth.value is None})
    if kinds:
        why = (
            "no card is named (--sku)" if card is None else f"neither the text nor the catalog ({card.name}) gives one"
        )
        told.append(f"no rate is known for links of kind {', '.join(kinds)}: {why}")
    return told
