"""Vx machine files (`.vx`): the reader, and the way from a VxMachine to a Fleet.

A device is a root space of scope device that a topology owns or that a transfer joins to such a one; what lies within
it (L2, SMEM) becomes further memories of its owner, without clock and replicas. Edges are kept as written: a way home
that the file lacks is not invented. The medium of a link is not in the file: `host` to host memory, between devices a
kind that carries the declared rate.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fleet.digest import fleet_digest
from fleet.errors import DescriptionError, Fault
from fleet.host_return import assume_host_return
from fleet.identity import ID_PATTERN, MAX_INDEX, natural_order, topology_id
from fleet.lint import warnings_of
from fleet.machine import UNKNOWN, Device, Figure, Fleet, Host, Link, Memory, Quantity
from fleet.readers import Reading
from fleet.readers.vx_costs import (
    HOST_SPACE,
    by_name,
    cost_ps,
    derived_cost,
    edge_cost,
    edge_key,
    route,
    space_dispatch_id,
    topology_dispatch_id,
)
from fleet.readers.vx_grammar import parse_machine
from fleet.readers.vx_machine import Origin, Rate, VxEdge, VxMachine, VxSpace, VxTopology
from fleet.readers.vx_verdicts import Finding, TileVerdict, admission, admit_tiles, check, combine, tile_bytes
from fleet.units import MAX_FIGURE, format_bytes
from fleet.yaml_source import printable

__all__ = [
    "Finding",
    "TileVerdict",
    "VxMachine",
    "admission",
    "admit_tiles",
    "assume_host_return",
    "check",
    "combine",
    "cost_ps",
    "derived_cost",
    "edge_cost",
    "parse_machine",
    "route",
    "space_dispatch_id",
    "tile_bytes",
    "to_fleet",
    "topology_dispatch_id",
]

NAME = "vx"
HOST = "host"
MAX_TOLD = 50

_BLOCK = re.compile(r"^[^\S\n]*(?:Memory|Topology)[^\S\n]+[^\W\d]\w*\s*\{", re.MULTILINE)
_PROGRAM = re.compile(r"^[^\S\n]*(?:pub[^\S\n]+)?fn[^\S\n]+\w+[^\n]*\(", re.MULTILINE)
_CPU_ARCH = re.compile(r"x86|i[3-6]86|aarch64|arm|thumb|riscv|ppc|powerpc|s390|loongarch", re.ASCII)
_PCIE_SLOT = 126 * 10**9
"""PCIe generation 6 x16, one direction: more than this is no PCIe link."""
_ON_DIE = ("L2", "SMEM")
"""The roles of the shared vocabulary (fleet/README.md) that are never a device."""
_NO_RUNTIME = Quantity(
    declared=Figure(value=0, provenance="policy", source="default: no runtime declared", verified=False)
)


def matches(text: str) -> bool:
    """Whether Memory or Topology blocks are in the text, or it is a Vx program (which `read` refuses)."""
    return _BLOCK.search(text) is not None or ("Memory::" in text and _PROGRAM.search(text) is not None)


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The fleet of a machine file; `notes["vx"]` is the VxMachine. A host file has no fleet.

    Raises DescriptionError: a program, faults of the text, and every verdict of Vx that refuses (E....).
    """
    machine = parse_machine(text, source)
    findings = check(machine)
    refused = [finding for finding in findings if finding.code.startswith("E")]
    if refused:
        raise DescriptionError(
            replace(_fault(machine, line, f"{code}: {words}"), vx_code=code) for code, words, line in refused
        )
    told = [f"{finding.code}: line {finding.line}: {finding.message}" for finding in findings]
    if sku is not None:
        told.append(f"--sku {printable(sku)} is not used: a machine file states its own figures")
    notes: dict[str, Any] = {"vx": machine, "kind": "host" if machine.is_host else "machine"}
    notes["topology_ids"] = {topology.name: topology_dispatch_id(topology.name) for topology in machine.topologies}
    notes["space_ids"] = {name: space_dispatch_id(name) for name in machine.mentioned}
    if machine.is_host:
        told.append("is a host file: it describes no device; name a machine file beside it")
        return Reading(fleet=None, warnings=tuple(told), notes=notes)
    fleet = to_fleet(machine)
    notes["spaces"] = {device.id: row.space.name for device, row in zip(fleet.devices, _rows(machine), strict=True)}
    fleet = replace(fleet, warnings=(*told, *fleet.warnings))
    return Reading(fleet=fleet, warnings=fleet.warnings, notes=notes)


def _fault(machine: VxMachine, line: int, message: str) -> Fault:
    return Fault(source=machine.source, field="", message=message, line=line, column=1 if line else 0)


# ---- which spaces are devices


@dataclass(slots=True)
class _Row:
    """A space that is a device: who owns it, or (a peer) which device a transfer joins it to."""

    space: VxSpace
    kind: Literal["gpu", "cpu", "npu"]
    owned: bool
    arch: str | None
    ids: list[str] = field(default_factory=list)
    share: int = 1
    """Of how many devices its capacity is the sum."""


def _rows(machine: VxMachine) -> list[_Row]:
    """The devices: owners in the order of the file, then their peers. The ids of each are filled in."""
    spaces = {space.name: space for space in machine.spaces}
    rows: dict[str, _Row] = {}
    for topology in machine.topologies:
        space = spaces.get(_root(spaces, topology.memory))
        if space is None and topology.memory not in spaces and topology.memory != HOST_SPACE:
            space = VxSpace(name=topology.memory, line=topology.line)
        if space is not None and space.name != HOST_SPACE and space.scope in (None, "device"):
            rows.setdefault(space.name, _Row(space, _kind(topology, space.name), True, topology.arch))
    for topology in machine.topologies:
        for src, dst in ((end, other) for e in topology.edges for end, other in ((e.src, e.dst), (e.dst, e.src))):
            peer = spaces.get(dst)
            if src in rows and peer is not None and _is_peer(peer):
                rows.setdefault(
                    dst, _Row(peer, rows[src].kind, False, rows[src].arch, share=_share(peer, rows[src].space))
                )
    return _numbered(list(rows.values()))


def _root(spaces: dict[str, VxSpace], name: str) -> str:
    """The outermost declared space around `name`."""
    seen = {name}
    parent = spaces[name].within if name in spaces else None
    while parent in spaces and parent not in seen:
        name = str(parent)
        seen.add(name)
        parent = spaces[name].within
    return name


def _is_peer(space: VxSpace) -> bool:
    return space.scope == "device" and space.within is None and space.name not in (HOST_SPACE, *_ON_DIE)


def _kind(topology: VxTopology, memory: str) -> Literal["gpu", "cpu", "npu"]:
    if memory == "NPU_HBM":
        return "npu"
    return "cpu" if topology.arch and _CPU_ARCH.match(topology.arch) else "gpu"


def _share(peer: VxSpace, owner: VxSpace) -> int:
    """7 where a peer space holds exactly what seven of its owner hold: it stands for so many devices."""
    if not peer.capacity or not owner.capacity or peer.capacity % owner.capacity:
        return 1
    return peer.capacity // owner.capacity


def _numbered(rows: list[_Row], split: bool = False) -> list[_Row]:
    counts: dict[str, int] = {}
    for row in rows:
        first = counts.get(row.kind, 0)
        counts[row.kind] = first + (row.share if split else 1)
        row.ids = [f"{row.kind}:{number}" for number in range(first, min(counts[row.kind], first + MAX_INDEX + 2))]
    return sorted(rows, key=lambda row: natural_order(row.ids[0]))


# ---- the fleet


def to_fleet(machine: VxMachine, *, split_peers: bool = False) -> Fleet:
    """The fleet of a machine. `split_peers` makes a peer space that holds n times its owner n devices of equal size.

    Raises DescriptionError: no device, more than 100 of a kind, a figure beyond 2^63-1.
    """
    rows = _numbered(_rows(machine), split_peers)
    faults = _unfit(machine, rows)
    if faults:
        raise DescriptionError(faults)
    ends = {HOST_SPACE: [HOST]} | {row.space.name: row.ids for row in rows}
    devices = tuple(device for row in rows for device in _devices(machine, row))
    kept = _kept_edges(machine, ends)
    kinds = {device.id: device.kind for device in devices}
    links = [link for edge in kept for link in _links(edge, ends, kinds, machine)]
    fleet = Fleet(
        name=_name(machine.source),
        hosts=(Host(id=HOST, where=f"{machine.source}:1"),),
        devices=tuple(sorted(devices, key=lambda device: natural_order(device.id))),
        links=tuple(sorted(links, key=lambda k: (natural_order(k.src), natural_order(k.dst), k.kind))),
        source=machine.source,
    )
    told = (*_odd(machine, rows, kept), *warnings_of(fleet, {}, [device.id for device in fleet.devices]))
    return replace(fleet, digest=fleet_digest(fleet), warnings=told)


def _name(source: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", os.path.basename(source).removesuffix(".vx"))
    return plain[:64].strip("-") or NAME


def _unfit(machine: VxMachine, rows: list[_Row]) -> list[Fault]:
    if not rows:
        message = "describes no device: no Memory of scope device is the memory of a Topology or has a transfer to one"
        return [_fault(machine, 0, message)]
    faults = []
    for space in machine.spaces:
        rate = None if space.bandwidth is None else space.bandwidth.value
        for name, value in (("capacity", space.capacity), ("bandwidth", rate)):
            if value is not None and value > MAX_FIGURE:
                faults.append(_fault(machine, space.line, f"{name} of Memory {space.name} is beyond 2^63-1"))
    for row in rows:
        if int(row.ids[-1].rpartition(":")[2]) > MAX_INDEX:
            faults.append(_fault(machine, row.space.line, f"more than {MAX_INDEX + 1} devices of kind {row.kind}"))
    for edge in machine.edges:
        if edge.rate is not None and edge.rate.value > MAX_FIGURE:
            faults.append(_fault(machine, edge.line, f"the rate of {edge.src} -> {edge.dst} is beyond 2^63-1"))
    return faults


def _quantity(value: int | None, origin: Origin) -> Quantity:
    if value is None:
        return UNKNOWN
    figure = Figure(value=value, provenance=origin.provenance, source=origin.source, verified=origin.verified)
    return Quantity(declared=figure)


def _per_second(rate: Rate | None, space: VxSpace | None = None) -> int | None:
    """Bytes per second; of B/cyc only where a clock is known and the rate is not one instance's of several."""
    if rate is None or not rate.per_cycle:
        return None if rate is None else rate.value
    whole = space is not None and space.clock is not None and space.replicas in (None, 1)
    value = rate.value * (space.clock or 0) if space is not None and whole else None
    return value if value is not None and value <= MAX_FIGURE else None


def _memory(space: VxSpace, name: str, share: int, within: str | None) -> Memory:
    granule = space.granule if space.granule and space.granule <= MAX_FIGURE else None
    return Memory(
        name=name,
        role="main" if within is None else "cache" if space.managed == "cached" else "scratchpad",
        capacity=_quantity(None if space.capacity is None else space.capacity // share, space.origin),
        bandwidth=_quantity(_per_second(space.bandwidth, space), space.origin),
        granule=_quantity(granule, space.origin),
        within=within,
        scope=space.scope,
        managed=space.managed,
    )


def _memories(machine: VxMachine, row: _Row) -> tuple[Memory, ...]:
    """The device's memory and, of an owner, what is declared within it, outermost first."""
    name = row.space.name
    names = {name: name if re.fullmatch(ID_PATTERN, name, re.ASCII) else "memory"}
    memories = [_memory(row.space, names[name], len(row.ids), None)]
    inner = [space for space in machine.spaces if space.within is not None] if row.owned else []
    while ready := [space for space in inner if space.within in names]:
        inner = [space for space in inner if space not in ready]
        for space in ready:
            if re.fullmatch(ID_PATTERN, space.name, re.ASCII) and space.name != names[name]:
                names[space.name] = space.name
                memories.append(_memory(space, space.name, 1, names[str(space.within)]))
    return tuple(memories)


def _devices(machine: VxMachine, row: _Row) -> list[Device]:
    memories = _memories(machine, row)
    return [
        Device(
            id=device,
            kind=row.kind,
            index=index,
            topology_id=topology_id(device, row.kind, index, one_node=True),
            host=HOST,
            memories=memories,
            default_memory=memories[0].name,
            runtime=_NO_RUNTIME,
            where=f"{machine.source}:{row.space.line}",
            capacity_field=f"Memory {row.space.name}.capacity",
            arch=row.arch,
        )
        for device, index in ((device, int(device.rpartition(":")[2])) for device in row.ids)
    ]


def _kept_edges(machine: VxMachine, ends: dict[str, list[str]]) -> list[VxEdge]:
    """The edges between hosts and devices; of several between the same two the one that Vx routes over."""
    best: dict[tuple[str, str], VxEdge] = {}
    spaces = by_name(machine)
    for edge in machine.edges:
        way = (edge.src, edge.dst)
        if edge.src in ends and edge.dst in ends and edge.src != edge.dst:
            best[way] = min(best.get(way, edge), edge, key=lambda e: edge_key(spaces, e))
    return list(best.values())


def _links(edge: VxEdge, ends: dict[str, list[str]], kinds: Mapping[str, str], machine: VxMachine) -> Iterable[Link]:
    rate = _per_second(edge.rate)
    for src in ends[edge.src]:
        for dst in ends[edge.dst]:
            between = HOST not in (src, dst)
            yield Link(
                src=src,
                dst=dst,
                kind=_medium(kinds[src], rate, machine) if between else HOST,
                bandwidth=_quantity(rate, edge.origin),
                peer_access="direct" if between else None,
                where=f"{machine.source}:{edge.line}",
            )


def _medium(kind: str, rate: int | None, machine: VxMachine) -> str:
    """A kind of link that carries the rate: the file does not name the medium."""
    if kind == "cpu":
        return "c2c"
    if rate is None or rate <= _PCIE_SLOT:
        return "pcie"
    return "xgmi" if any(topology.arch == "amdgcn" for topology in machine.topologies) else "nvlink"


def _odd(machine: VxMachine, rows: list[_Row], kept: list[VxEdge]) -> list[str]:
    """What a Fleet cannot hold of the file, and what it holds otherwise than written."""
    told = []
    spaces = {space.name: space for space in machine.spaces}
    for row in rows:
        if row.share > 1 and len(row.ids) == 1:
            each = format_bytes((row.space.capacity or 0) // row.share)
            told.append(
                f"{row.ids[0]} (Memory {row.space.name}) stands for {row.share} devices of {each}: it admits a tensor "
                "that none of them holds; ask for the split into single devices"
            )
        if row.space.name not in spaces:
            told.append(f"Memory {row.space.name} is not declared: the capacity of {row.ids[0]} is unknown")
    devices = {row.space.name for row in rows}
    for space in machine.spaces:
        if _is_peer(space) and space.name not in devices:
            told.append(f"Memory {space.name} is left out: no topology owns it and no transfer joins it to a device")
        if space.within is not None and space.within not in spaces:
            told.append(f"Memory {space.name} lies within {space.within}, which is not declared")
    lines = {(edge.line, edge.src, edge.dst) for edge in kept}
    told += [
        f"line {edge.line}: transfer {edge.src} -> {edge.dst} is left out: not both ends are a device or the host"
        for edge in machine.edges
        if (edge.line, edge.src, edge.dst) not in lines and not _on_die(edge, spaces, devices)
    ][:MAX_TOLD]
    if any(edge.weight is not None for edge in kept):
        told.append("edges with a plain weight have no rate: their time is unknown")
    return told


def _on_die(edge: VxEdge, spaces: dict[str, VxSpace], devices: set[str]) -> bool:
    roots = {_root(spaces, edge.src), _root(spaces, edge.dst)}
    inner = {edge.src, edge.dst} & set(_ON_DIE)
    return len(roots & devices) == 1 and (len(roots) == 1 or bool(inner))
