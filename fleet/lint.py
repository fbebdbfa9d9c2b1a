"""What is legal in a fleet but probably not meant: warnings, each one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache

from fleet.errors import Fault
from fleet.laws import total_capacity
from fleet.machine import Fleet, Link, Quantity
from fleet.units import MAX_FIGURE, format_bytes, format_rate, format_seconds, parse_bytes, parse_rate

# Per lane and direction: stas00/ml-engineering network/README.md. The generation of an arch is its data sheet's.
_NVLINK_LANE = {
    "pascal": "20 GB/s",
    "volta": "25 GB/s",
    "ampere": "25 GB/s",
    "hopper": "25 GB/s",
    "blackwell": "50 GB/s",
}
_NEWEST_NVLINK_LANE = "50 GB/s"
_NVLINK_LANES = 18
# PCIe generation 6 x16, one direction: arithmetic, flit overhead not modelled.
_PCIE_SLOT = "126 GB/s"

# What the data sheet sells and what the device reports: public nvidia-smi prints of each card.
_SOLD_AND_REPORTED = {
    "h100-sxm-80": ("80 GiB", "81559 MiB"),
    "h200-sxm-141": ("141 GiB", "143771 MiB"),
    "b200-sxm-180": ("180 GiB", "183359 MiB"),
    "rtx-4090": ("24 GiB", "24564 MiB"),
    "l40s": ("48 GiB", "46068 MiB"),
}
_LISTED = 4
_TOLD = 50
"""Warnings of one kind; a fleet of thousands would repeat them for each device."""


def warnings_of(fleet: Fleet, arches: Mapping[str, str | None], undeclared_runtime: list[str]) -> tuple[str, ...]:
    """The warnings of a fleet, in a fixed order. `arches` gives the arch of a device id, where the file says it."""
    return (
        *_runtime(undeclared_runtime),
        *_total(fleet),
        *_like_ids(fleet),
        *_some_of(_capacities(fleet)),
        *_some_of(_rates(fleet, arches)),
        *_some_of(_observed(fleet)),
        *_one_way(fleet),
        *_islands(fleet),
    )


def _some_of(told: list[str]) -> list[str]:
    return told if len(told) <= _TOLD else [*told[:_TOLD], f"... and {len(told) - _TOLD} more of this kind"]


def _some(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _runtime(devices: list[str]) -> list[str]:
    if not devices:
        return []
    return [f"runtime is not declared and taken as 0 B (policy) on {_some(devices)}: a driver's context takes more"]


def _total(fleet: Fleet) -> list[str]:
    total = total_capacity(fleet.devices)
    return [] if total <= MAX_FIGURE else [f"the capacities together are {total} B, which passes 63 bits (2^63-1)"]


def _ids(fleet: Fleet) -> list[str]:
    names = [host.id for host in fleet.hosts] + [device.id for device in fleet.devices]
    return names + [switch.id for switch in fleet.switches] + [nic.id for nic in fleet.nics]


def _like_ids(fleet: Fleet) -> list[str]:
    groups: dict[str, list[str]] = defaultdict(list)
    for name in _ids(fleet):
        groups[name.casefold()].append(name)
    return [f"ids differ in case only: {', '.join(names)}" for _, names in sorted(groups.items()) if len(names) > 1]


def _capacities(fleet: Fleet) -> list[str]:
    told = []
    for device in fleet.devices:
        sold, reported = _SOLD_AND_REPORTED.get(device.sku or "", (None, None))
        declared = device.memory.capacity.value
        if sold is not None and reported is not None and declared == parse_bytes(sold) > parse_bytes(reported):
            told.append(
                f"{device.id}: capacity {sold} is the marketing figure of {device.sku}; "
                f"the device reports {reported}: {format_bytes(parse_bytes(reported))}"
            )
    return told


def _rates(fleet: Fleet, arches: Mapping[str, str | None]) -> list[str]:
    """One sentence for all links of one kind, lanes, rate and bound: eight cards would repeat it sixteen times."""
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for link, words in _impossible(fleet, arches):
        groups[link.kind, words.partition(": ")[2]].append(f"{link.src} -> {link.dst}")
    return [f"{_some(ways)} ({kind}): {words}" for (kind, words), ways in groups.items()]


def rate_faults(fleet: Fleet) -> list[Fault]:
    """The links that declare more than their kind carries one way, as faults: what a strict reading refuses."""
    faults = []
    for link, words in _impossible(fleet, {device.id: device.arch for device in fleet.devices}):
        source, _, line = link.where.rpartition(":")
        known = line.isdecimal()
        faults.append(
            Fault(
                source=source if known else fleet.source or fleet.name, field="links", message=words,
                line=int(line) if known else 0, column=1 if known else 0,
            )
        )  # fmt: skip
    return faults


def _impossible(fleet: Fleet, arches: Mapping[str, str | None]) -> list[tuple[Link, str]]:
    told = []
    for link in fleet.links:
        bound = _physical_rate(link, arches)
        rate = link.bandwidth.value
        if bound is not None and rate is not None and rate > bound:
            words = (
                f"{link.src} -> {link.dst} ({link.kind}): {format_rate(rate)} is above the {format_rate(bound)} of its "
                "kind in one direction: it looks like a both-directions figure"
            )
            told.append((link, words))
    return told


def _physical_rate(link: Link, arches: Mapping[str, str | None]) -> int | None:
    """The most that a link of its kind, lanes and ends carries one way; None where nothing is known."""
    if link.kind == "pcie":
        return _lane(_PCIE_SLOT) * link.count
    if link.kind != "nvlink":
        return None
    words = {word for end in (link.src, link.dst) for word in (arches.get(end) or "").casefold().split()}
    lanes = [_NVLINK_LANE[word] for word in sorted(words & set(_NVLINK_LANE))] or [_NEWEST_NVLINK_LANE]
    return min(_lane(lane) for lane in lanes) * (link.count if link.count > 1 else _NVLINK_LANES)


@lru_cache(maxsize=16)
def _lane(rate: str) -> int:
    return parse_rate(rate)


def _observed(fleet: Fleet) -> list[str]:
    told = []
    for device in fleet.devices:
        for memory in device.memories:
            name = f"{device.id} {memory.name}"
            told += _above(f"{name} capacity", memory.capacity, format_bytes)
            told += _above(f"{name} bandwidth", memory.bandwidth, format_rate)
    for link in fleet.links:
        if link.bandwidth.observed is not None or link.latency.observed is not None:
            told += _above(f"{link.src} -> {link.dst} bandwidth", link.bandwidth, format_rate)
            told += _above(f"{link.src} -> {link.dst} latency", link.latency, format_seconds)
    return told


def _above(what: str, quantity: Quantity, show: Callable[[int], str]) -> list[str]:
    declared, observed = quantity.declared, quantity.observed
    if declared is None or observed is None or observed.value <= declared.value:
        return []
    return [
        f"{what}: observed {show(observed.value)} is above the declared {show(declared.value)}; plans use the declared"
    ]


def _one_way(fleet: Fleet) -> list[str]:
    hosts = {host.id for host in fleet.hosts} | {nic.id for nic in fleet.nics}
    ways = {(link.src, link.dst) for link in fleet.links}
    lone = [(s, d) for s, d in sorted(ways) if (d, s) not in ways and not {s, d} & hosts]
    told = [f"{s} -> {d} has no link back" for s, d in lone[:_TOLD]]
    return told + ([f"... and {len(lone) - _TOLD} more links without a way back"] if len(lone) > _TOLD else [])


def _islands(fleet: Fleet) -> list[str]:
    """Groups of hosts and devices without any link between them."""
    parent = {name: name for name in _ids(fleet)}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for link in fleet.links:
        parent[root(link.src)] = root(link.dst)
    groups: dict[str, list[str]] = defaultdict(list)
    for device in fleet.devices:
        groups[root(device.id)].append(device.id)
    if len(groups) < 2:
        return []
    shown = " | ".join(_some(names) for names in list(groups.values())[:_LISTED])
    return [f"the devices fall into {len(groups)} groups without links between them: {shown}"]
