"""A system YAML of aiconfigurator (ai-dynamo/aiconfigurator systems/*.yaml) -> a node of equal GPUs.

`gpu` describes one card, `node` how many there are and how fast they reach each other and the host; both rates are
bytes per second of one direction and one GPU. All numbers are bare: bytes, bytes per second, seconds. Capacities in
these files are sometimes the size as sold, written as GiB, sometimes what the device reports; a warning tells which.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from fleet.digest import fleet_digest
from fleet.errors import DescriptionError, Fault, raise_in_order
from fleet.identity import MAX_INDEX
from fleet.lint import warnings_of
from fleet.machine import UNKNOWN, Device, Figure, Fleet, Provenance, Quantity
from fleet.readers import Reading
from fleet.readers.building import Gpu, Pair, build_fleet, device_id
from fleet.units import MAX_FIGURE, PS_PER_SECOND, format_bytes
from fleet.yaml_source import Document, Path, parse_text, printable

NAME = "aiconfigurator"
MAX_TEXT = 256 * 1024

_SECTION = r"^[ ]*{}:[ \t]*(?:#[^\n]*)?\r?$"
_GPU, _NODE = re.compile(_SECTION.format("gpu"), re.MULTILINE), re.compile(_SECTION.format("node"), re.MULTILINE)
_COMPUTE = {
    "float16_tc_flops": "fp16", "bfloat16_tc_flops": "bf16", "int8_tc_flops": "int8", "fp8_tc_flops": "fp8",
    "fp4_tc_flops": "fp4",
}  # fmt: skip
_KEYS = re.compile(r"^[ \t]+(?:mem_bw|mem_capacity|num_gpus_per_node|intra_node_bw)[ \t]*:", re.MULTILINE)
_NUMBER = re.compile(r"(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_ARCHES = {"80": "Ampere", "86": "Ampere", "90": "Hopper", "100": "Blackwell", "103": "Blackwell"}
_GIB = 2**30
_TEXTS = ("nccl_version", "oneccl_version", "data_dir")
_MAX_LATENCY = 1000 * PS_PER_SECOND


def matches(text: str) -> bool:
    """Whether the sections `gpu` and `node` and one of their fields are there."""
    return all(pattern.search(text) is not None for pattern in (_GPU, _NODE, _KEYS))


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The node: `num_gpus_per_node` GPUs, each joined to every other and to the host.

    `notes` hold what a Fleet cannot: compute rates, power, rates between nodes and racks, memory of NCCL and others.
    Raises DescriptionError with every fault.
    """
    if len(text) > MAX_TEXT:
        raise DescriptionError.at(
            printable(source, 200), "", f"is larger than {MAX_TEXT // 1024} KiB; one system a file"
        )
    document = parse_text(text, printable(source, 200))
    system = _System(document)
    count = system.count()
    capacity = system.figure(("gpu", "mem_capacity"), "spec")
    memory_rate = system.figure(("gpu", "mem_bw"), "spec")
    between = system.figure(("node", "intra_node_bw"), "spec")
    slot = system.figure(("node", "pcie_bw"), "spec")
    latency = system.figure(("node", "p2p_latency"), "policy", PS_PER_SECOND)
    compute = system.compute()
    system.stop()
    line = document.at(("gpu",))[0]
    kind = "nvlink" if _value(between) > _value(slot) else "pcie"
    gpus = [Gpu(index=i, line=line, capacity=capacity, rate=slot) for i in range(count)]
    pairs = [
        Pair(
            a=device_id(a), b=device_id(b), kind=kind, line=document.at(("node",))[0], bandwidth=between,
            peer="direct" if kind == "nvlink" else "unknown",
        )
        for a, b in combinations(range(count), 2)
    ]  # fmt: skip
    fleet, told = build_fleet("node", source, gpus, pairs, sku=sku)
    fleet = _finished(fleet, document, memory_rate, latency, system.arch(), compute)
    told = tuple(dict.fromkeys((*told, *_doubts(fleet, capacity), *fleet.warnings)))
    fleet = replace(fleet, warnings=told)
    return Reading(fleet=fleet, warnings=told, notes=system.notes())


def _value(quantity: Quantity) -> int:
    return quantity.value or 0


class _System:
    """The mapping of a system file; numbers are read on demand, faults are collected."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.faults: list[Fault] = list(document.faults)
        self.data: dict[str, Any] = document.data if isinstance(document.data, dict) else {}
        for name in ("gpu", "node"):
            if not isinstance(self.data.get(name), dict):
                self.faults.append(document.fault((name,), "must be a mapping of fields", key=True))
        if "misc" in self.data and not isinstance(self.data["misc"], dict | None):
            self.faults.append(document.fault(("misc",), "must be a mapping of fields", key=True))

    def stop(self) -> None:
        raise_in_order(self.faults)

    def _raw(self, path: Path) -> Any:
        section = self.data.get(str(path[0]))
        return section.get(path[1]) if isinstance(section, dict) else None

    def figure(self, path: Path, provenance: Provenance, scale: int = 1) -> Quantity:
        """The number at `path` times `scale` as a figure; UNKNOWN where it is left out."""
        raw = self._raw(path)
        if raw is None:
            return UNKNOWN
        number = Fraction(raw) * scale if isinstance(raw, str) and _NUMBER.fullmatch(raw) else None
        if number is None:
            message = f"{printable(str(raw))} is no plain number; write bytes, bytes per second or seconds"
        elif number.denominator != 1:
            message = f"{printable(str(raw))} is not a whole number of {'bytes' if scale == 1 else 'picoseconds'}"
        elif scale == 1 and not 0 < number <= MAX_FIGURE:
            message = f"{printable(str(raw))} lies outside 1..2^63-1; leave the line out when it is not known"
        elif scale > 1 and number >= _MAX_LATENCY:
            message = f"{printable(str(raw))} s is no latency of a link; it must lie below 1000 s"
        else:
            place = f"{self.document.source}:{self.document.at(path)[0]}"
            figure = Figure(value=int(number), provenance=provenance, source=place, verified=False)
            return Quantity(declared=figure)
        self.faults.append(self.document.fault(path, message))
        return UNKNOWN

    def compute(self) -> dict[str, Quantity]:
        """Operations per second by type of number."""
        rates = {name: self.figure(("gpu", field), "spec") for field, name in _COMPUTE.items()}
        return {name: rate for name, rate in rates.items() if rate != UNKNOWN}

    def count(self) -> int:
        path = ("node", "num_gpus_per_node")
        raw = self._raw(path)
        if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,4}", raw, re.ASCII) and 1 <= int(raw) <= MAX_INDEX + 1:
            return int(raw)
        if isinstance(self.data.get("node"), dict):
            told = "is missing" if raw is None else f"{printable(str(raw))} is no count"
            self.faults.append(self.document.fault(path, f"{told}; write a whole number from 1 to {MAX_INDEX + 1}"))
        return 1

    def arch(self) -> str | None:
        raw = self._raw(("gpu", "sm_version"))
        return _ARCHES.get(raw) if isinstance(raw, str) else None

    def notes(self) -> dict[str, Any]:
        """The sections as they are, numbers as numbers, extra fields too."""
        return {name: _plain(self.data[name]) for name in ("gpu", "node", "misc", "data_dir") if name in self.data}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: below if key in _TEXTS else _plain(below) for key, below in value.items()}
    if isinstance(value, list):
        return [_plain(below) for below in value]
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.isdigit() else float(value)


def _finished(
    fleet: Fleet, document: Document, memory_rate: Quantity, latency: Quantity, arch: str | None,
    compute: dict[str, Quantity],
) -> Fleet:  # fmt: skip
    """The fleet with what `build_fleet` does not take: rates of the memory and of compute, latency between GPUs."""
    field = document.fault(("gpu", "mem_capacity"), "").field
    devices = tuple(
        replace(_with_rate(device, memory_rate, field), arch=arch, compute=_over(device, compute))
        for device in fleet.devices
    )
    ids = {device.id for device in devices}
    links = tuple(replace(k, latency=latency) if {k.src, k.dst} <= ids else k for k in fleet.links)
    fleet = replace(fleet, devices=devices, links=links)
    told = warnings_of(fleet, {device.id: arch for device in devices}, [])
    return replace(fleet, digest=fleet_digest(fleet), warnings=tuple(dict.fromkeys((*fleet.warnings, *told))))


def _over(device: Device, compute: dict[str, Quantity]) -> tuple[tuple[str, Quantity], ...]:
    """What the file states in place of what a `--sku` brought."""
    return tuple(sorted((dict(device.compute) | compute).items()))


def _with_rate(device: Device, rate: Quantity, field: str) -> Device:
    memories = tuple(
        replace(memory, bandwidth=rate) if memory.name == device.default_memory and rate != UNKNOWN else memory
        for memory in device.memories
    )
    return replace(device, memories=memories, capacity_field=field)


def _doubts(fleet: Fleet, capacity: Quantity) -> list[str]:
    size = capacity.value
    if size is None or size % _GIB:
        return []
    return [
        f"gpu.mem_capacity {format_bytes(size)} is a round size, as sold: what the device reports is less; "
        "state the reported size before trusting a plan that barely fits"
    ]
