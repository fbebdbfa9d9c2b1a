"""hwloc XML (`lstopo topology.xml`, versions 1 to 3) -> one node: GPUs below their bridges, NVLink or XGMI distances.

A GPU shows once for each library that knew it (cuda0, opencl0d0, nvml0); it is one PCI device. The document type that
hwloc writes names a file, which is never opened.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fleet.identity import MAX_INDEX
from fleet.machine import UNKNOWN, Figure, Quantity
from fleet.readers import Reading
from fleet.readers.bridges import share_bridges
from fleet.readers.building import HOST, Faults, Gpu, Pair, build_fleet, device_id
from fleet.readers.pcie import Slot, between, is_card, rate_figure, slowest
from fleet.readers.xml_source import Element, parse_xml, root_tag
from fleet.units import MAX_FIGURE
from fleet.yaml_source import printable

NAME = "hwloc-xml"
MAX_OBJECTS = 1024
"""Objects of one matrix of distances."""
MEGABYTE = 10**6
SPEED = "hwloc pci_link_speed, slowest hop up to the CPU"

_LIBRARIES = ("nvml", "rsmi", "ze", "cuda", "opencl")
"""What numbers a GPU, best first: the management libraries, then the runtimes."""
_OS_DEVICE = re.compile(r"(nvml|rsmi|ze|cuda|opencl)([0-9]{1,4})(?:d([0-9]{1,4}))?(\.[0-9]+)?", re.ASCII)
_KIND = re.compile(r"([0-9a-f]{4}) \[([0-9a-f]{4}):([0-9a-f]{4})?", re.ASCII | re.I)
"""Class, vendor and, where it is written whole, device."""
_PCI_IDS = re.compile(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", re.ASCII | re.I)
_MEMORY_SIZES = ("CUDAGlobalMemorySize", "RSMIVRAMSize", "LevelZeroHBMSize", "OpenCLGlobalMemorySize")
_UUIDS = ("NVIDIAUUID", "AMDUUID", "LevelZeroUUID")
_SIZE = re.compile(r"([0-9]{1,16}) ?(?:KiB)?", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,12})?", re.ASCII)


@dataclass(slots=True)
class _Card:
    """A GPU: its PCI object, names by library, facts by name, its way up, the NUMA node."""

    pci: Element
    names: dict[str, str]
    facts: dict[str, str]
    ids: set[str]
    slot: Slot
    numa: int | None
    index: int = -1


@dataclass(slots=True)
class _Machine:
    cards: list[_Card] = field(default_factory=list)
    numa_nodes: list[Element] = field(default_factory=list)
    packages: dict[str, Element] = field(default_factory=dict)
    """By gp_index."""


@dataclass(frozen=True, slots=True)
class _Distances:
    """One matrix: names of its objects (`OSDev:332`), values row by row."""

    name: str
    objects: tuple[str, ...]
    values: tuple[int, ...]
    line: int

    def at(self, i: int, j: int) -> int:
        return self.values[i * len(self.objects) + j]


def matches(text: str) -> bool:
    """Whether the root element is `<topology>`."""
    return root_tag(text) == "topology"


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The node of an XML text. Raises DescriptionError: no XML, no GPU, distances that do not fit."""
    faults = Faults(source)
    root = parse_xml(text, faults.source, "topology", doctype="topology")
    found = _Machine()
    for element in root.all("object"):
        _walk(element, (), found)
    if not found.cards:
        faults.tell(root.line, "topology", "holds no GPU: no PCI device with nvml, rsmi, ze, cuda or opencl inside")
    distances = [_distances(e, faults) for e in root.children if e.tag in ("distances2", "distances2hetero")]
    _number(found, faults)
    faults.stop()
    tables = [table for table in distances if table is not None]
    links = _Fabric(found, tables)
    gpus = [_gpu(card, faults) for card in found.cards]
    faults.stop()
    own = sum(node.get("subtype") != "GPUMemory" for node in found.numa_nodes)
    fleet, told = build_fleet(NAME, source, gpus, links.pairs(), sku=sku, numa_nodes=own or None)
    fleet = share_bridges(fleet, {device_id(card.index): card.slot for card in found.cards}, HOST, SPEED)
    warnings = [*links.warnings, *told]
    if not all(card.names for card in found.cards):
        warnings.insert(0, "no library named some GPU: known by its PCI class and numbered in the order of the file")
    return Reading(fleet=fleet, warnings=tuple(warnings), notes=_notes(found, links, tables))


def _walk(element: Element, above: tuple[Element, ...], found: _Machine) -> None:
    """Keeps what matters of one object and goes on below it. Depth is bounded by the parser."""
    kind = element.get("type")
    if kind == "NUMANode":
        found.numa_nodes.append(element)
    elif kind in ("Package", "Socket"):
        found.packages[element.get("gp_index")] = element
    elif kind == "PCIDev":
        card = _card(element, above)
        if card is not None:
            found.cards.append(card)
    for child in element.all("object"):
        _walk(child, (*above, element), found)


def _card(element: Element, above: tuple[Element, ...]) -> _Card | None:
    names: dict[str, str] = {}
    facts: dict[str, str] = {}
    ids: set[str] = set()
    for device in element.all("object"):
        match = _OS_DEVICE.fullmatch(device.get("name"))
        if device.get("type") != "OSDev" or match is None or match[4]:
            continue
        if match[1] == "opencl" and any(i.get("value") in ("CPU", "Accelerator") for i in device.all("info")):
            continue
        names.setdefault(match[1], device.get("name"))
        ids.add(device.get("gp_index"))
        for info in device.all("info"):
            facts.setdefault(info.get("name"), info.get("value"))
    kind = _KIND.match(element.get("pci_type").lower())
    if not names and (kind is None or not is_card(kind[1], kind[2], kind[3] or "")):
        return None
    bridges = [e for e in reversed(above) if e.get("type") == "Bridge" and e.get("bridge_type").startswith("1")]
    hosts = [e for e in above if e.get("type") == "Bridge" and e.get("bridge_type").startswith("0")]
    hops = tuple((e.get("pci_busid") or f"line {e.line}", _speed(e)) for e in (element, *bridges))
    numa = _numa(above)
    root = hosts[0].line if hosts else None
    return _Card(element, names, facts, ids - {""}, Slot(hops=hops, root=root, near=numa), numa)


def _numa(above: tuple[Element, ...]) -> int | None:
    """The NUMA node of the nearest object around that has one of its own; None when it has several or no number."""
    for element in reversed(above):
        inside = [e for e in element.all("object") if e.get("type") == "NUMANode" and e.get("subtype") != "GPUMemory"]
        nodes = [element] if element.get("type") == "NUMANode" else inside
        if nodes:
            number = nodes[0].get("os_index")
            return int(number) if len(nodes) == 1 and re.fullmatch(r"[0-9]{1,4}", number, re.ASCII) else None
    return None


def _speed(element: Element) -> int | None:
    """Bytes per second of a link; hwloc writes GB/s, and 0 or nothing where it does not know."""
    text = element.get("pci_link_speed")
    return int(Fraction(text) * 10**9) or None if _DECIMAL.fullmatch(text) else None


def _distances(element: Element, faults: Faults) -> _Distances | None:
    """A matrix of distances; its lists may be cut into several elements."""
    kind = element.get("type")
    words = [word for part in element.all("indexes") for word in part.text.split()]
    numbers = [word for part in element.all("u64values") for word in part.text.split()]
    name = element.get("name")
    if len(words) > MAX_OBJECTS or len(numbers) != len(words) ** 2:
        message = f"{printable(name)} has {len(words)} objects and {len(numbers)} values; it needs {len(words) ** 2}"
        faults.tell(element.line, element.tag, message, element.column)
        return None
    odd = next((word for word in numbers if not re.fullmatch(r"[0-9]{1,19}", word, re.ASCII)), None)
    if odd is not None:
        faults.tell(element.line, element.tag, f"{printable(odd)} is no whole number", element.column)
        return None
    objects = tuple(word if ":" in word else f"{kind}:{word}" for word in words)
    return _Distances(name, objects, tuple(int(word) for word in numbers), element.line)


def _number(found: _Machine, faults: Faults) -> None:
    """The ordinal of each GPU is that of the best library that names all of those that any names.

    Cards that none names come after them, and all of them where there is no such library, in the order of the file.
    """
    named = [card for card in found.cards if card.names]
    for library in _LIBRARIES if named else ():
        numbers = [_ordinal(card.names.get(library, "")) for card in named]
        if None not in numbers and len(set(numbers)) == len(numbers):
            for card, number in zip(named, numbers, strict=True):
                card.index = number if number is not None else -1
            break
    first = max((card.index for card in found.cards), default=-1) + 1
    for place, card in enumerate((card for card in found.cards if card.index < 0), start=first):
        card.index = place
    for card in found.cards:
        if card.index > MAX_INDEX:
            faults.tell(card.pci.line, "PCIDev", f"is GPU {card.index}; one node has GPUs 0 to {MAX_INDEX}")
    found.cards.sort(key=lambda card: card.index)


def _ordinal(name: str) -> int | None:
    match = _OS_DEVICE.fullmatch(name)
    return None if match is None else int(match[3] or match[2])


def _gpu(card: _Card, faults: Faults) -> Gpu:
    ids = _PCI_IDS.search(card.pci.get("pci_type"))
    uuid = next((card.facts[name] for name in _UUIDS if card.facts.get(name)), None)
    return Gpu(
        index=card.index, line=card.pci.line, numa=card.numa, pci=printable(card.pci.get("pci_busid"), 64) or None,
        uuid=None if uuid is None else printable(uuid, 64), capacity=_capacity(card, faults),
        rate=rate_figure(slowest(card.slot.hops), SPEED), product=card.facts.get("GPUModel") or None,
        vendor=ids[1].lower() if ids else None, pci_device=ids[2].lower() if ids else None,
    )  # fmt: skip


def _capacity(card: _Card, faults: Faults) -> Quantity:
    """What a library reported as the memory of the card, in KiB; UNKNOWN where none did."""
    for name in _MEMORY_SIZES:
        text = card.facts.get(name)
        if not text:
            continue
        match = _SIZE.fullmatch(text)
        value = int(match[1]) * 1024 if match else 0
        if not 0 < value <= MAX_FIGURE:
            faults.tell(card.pci.line, name, f"{printable(text)} is no size in KiB")
            return UNKNOWN
        return Quantity(declared=Figure(value=value, provenance="measured", source=f"hwloc {name}"))
    return UNKNOWN


class _Fabric:
    """NVLink and XGMI between GPUs and into CPUs, from the matrices of rates (MB/s, one direction)."""

    def __init__(self, found: _Machine, tables: list[_Distances]) -> None:
        self.found = found
        self.rates: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(MB/s, line) by kind and GPUs, the lower number first."""
        self.to_cpu: dict[str, dict[int, int]] = {}
        """MB/s by package (`Package:3`) and GPU."""
        self.lines: dict[str, int] = {}
        self.warnings: list[str] = []
        self.kinds = {"NVLinkBandwidth": "nvlink", "XGMIBandwidth": "xgmi"}
        owners = {f"OSDev:{number}": card.index for card in found.cards for number in card.ids}
        for table in tables:
            if table.name in self.kinds:
                self._read(table, self.kinds[table.name], owners)

    def _read(self, table: _Distances, kind: str, owners: dict[str, int]) -> None:
        self.lines[kind] = table.line
        for i, a in enumerate(table.objects):
            for j, b in enumerate(table.objects):
                if i == j or a not in owners:
                    continue
                rate = table.at(i, j)
                if b in owners and owners[a] < owners[b]:
                    self._pair(kind, (owners[a], owners[b]), rate, table.at(j, i), table.line)
                elif b.startswith("Package:") and rate:
                    self.to_cpu.setdefault(b, {})[owners[a]] = rate

    def _pair(self, kind: str, pair: tuple[int, int], there: int, back: int, line: int) -> None:
        if there != back:
            told = f"GPU {pair[0]} and {pair[1]}: {there} MB/s one way and {back} the other; the smaller is taken"
            self.warnings.append(f"line {line}: {told}")
        if min(there, back):
            self.rates[(kind, *pair)] = (min(there, back), line)

    def pairs(self) -> list[Pair]:
        """All links of the node but the slots."""
        made = [
            Pair(
                a=device_id(a), b=device_id(b), kind=kind, line=line, peer="direct",
                bandwidth=_megabytes(rate, f"hwloc {kind} distances"),
            )
            for (kind, a, b), (rate, line) in self.rates.items()
        ]  # fmt: skip
        for gpu in sorted({gpu for rates in self.to_cpu.values() for gpu in rates}):
            rate = max(rates.get(gpu, 0) for rates in self.to_cpu.values())
            source = "hwloc NVLinkBandwidth to the nearest CPU package"
            made.append(
                Pair(
                    a=HOST,
                    b=device_id(gpu),
                    kind="nvlink",
                    line=self.lines["nvlink"],
                    bandwidth=_megabytes(rate, source),
                )
            )
        joined = {(a, b) for _, a, b in self.rates}
        for at, a in enumerate(self.found.cards):
            for b in self.found.cards[at + 1 :]:
                if (a.index, b.index) not in joined:
                    rate_figured = rate_figure(between(a.slot, b.slot)[1], SPEED)
                    made.append(
                        Pair(
                            a=device_id(a.index), b=device_id(b.index), kind="pcie", line=a.pci.line, peer="unknown",
                            bandwidth=rate_figured,
                        )
                    )  # fmt: skip
        return made


def _megabytes(rate: int, source: str) -> Quantity:
    return rate_figure(min(rate * MEGABYTE, MAX_FIGURE), source)


def _notes(found: _Machine, links: _Fabric, tables: list[_Distances]) -> dict[str, Any]:
    cards = found.cards
    models = {card.facts["GPUModel"] for card in cards if "GPUModel" in card.facts}
    numa = next((t for t in tables if t.name == "NUMALatency"), None)
    n = 0 if numa is None else len(numa.objects)
    joined = {(a, b) for _, a, b in links.rates}
    pairs = [(a.index, b.index) for at, a in enumerate(cards) for b in cards[at + 1 :]]
    by_index = {card.index: card for card in cards}

    def rates(kind: str) -> dict[str, int]:
        return {f"{a}-{b}": rate for (k, a, b), (rate, _) in sorted(links.rates.items()) if k == kind}

    def name(gpu: int) -> str:
        return next(iter(sorted(by_index[gpu].names.values(), key=_best)), f"GPU{gpu}")

    return {
        "n_gpus": len(cards),
        "gpu_model": models.pop() if len(models) == 1 else sorted(models) or None,
        "nvml_names": [card.names["nvml"] for card in cards if "nvml" in card.names],
        "gpu_names": {device_id(card.index): dict(sorted(card.names.items())) for card in cards},
        "nvlink_MBps_per_direction": rates("nvlink"),
        "xgmi_MBps_per_direction": rates("xgmi"),
        "no_nvlink": [f"{a}-{b}" for a, b in pairs if (a, b) not in joined],
        "nvlink_stated": "nvlink" in links.lines,
        "cpu_nvlink_MBps": {p: {name(gpu): rate for gpu, rate in sorted(r.items())} for p, r in links.to_cpu.items()},
        "numa_latency": None if numa is None else [[numa.at(i, j) for j in range(n)] for i in range(n)],
        "gpu_paths": {f"{a}-{b}": between(by_index[a].slot, by_index[b].slot)[0] for a, b in pairs},
    }


def _best(name: str) -> int:
    return next((at for at, library in enumerate(_LIBRARIES) if name.startswith(library)), len(_LIBRARIES))
