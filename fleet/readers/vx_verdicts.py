"""Vx's verdicts: on the declarations of a machine file, on a placement of tiles, on several inputs together.

Sources of the rules: vx-lang/Vx src/hir/decl_check, src/hir/check/transfer.rs and src/hir/memory.rs. The codes are
Vx's; E refuses, W warns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fleet.errors import DescriptionError, Fault
from fleet.identity import collisions
from fleet.readers.vx_costs import (
    BUILT_IN_TOPOLOGIES,
    HOST_SPACE,
    INDEXED_TOPOLOGIES,
    by_name,
    chain_of,
    derived,
    reachable,
    route,
    space_dispatch_id,
    topology_dispatch_id,
)
from fleet.readers.vx_machine import BUILT_IN_SPACES, SCOPES, U64, VxMachine, VxSpace, VxTopology
from fleet.units import format_bytes
from fleet.yaml_source import printable


class Finding(NamedTuple):
    """One verdict: Vx's code (E refuses, W warns), what is wrong, and the line of the file (0 = no line of it)."""

    code: str
    message: str
    line: int


# ---- verdicts on the file


def check(machine: VxMachine, *, transfers: Iterable[tuple[str, str]] = ()) -> list[Finding]:
    """Every verdict on the declarations, and on the `transfers` that a program asks for, in the order of the file.

    E6005-E6008, E6011, E6013, E6016, W1026, W1027 concern the file; E6002 and E6014 a transfer, so a machine file
    alone never has them.
    """
    spaces = by_name(machine)
    found = [*_cycles(machine, spaces), *_figures(machine), *_nesting(machine, spaces), *_identities(machine)]
    reached = reachable(machine, HOST_SPACE)
    for topology in machine.topologies:
        found += _visibility(topology, reached)
        found += _cost_sources(topology, spaces)
    return [*sorted(found, key=lambda finding: finding.line), *_transfers(machine, transfers)]


def _cycles(machine: VxMachine, spaces: Mapping[str, VxSpace]) -> list[Finding]:
    told = []
    seen: set[str] = set()
    for space in machine.spaces:
        ring = _ring(spaces, space.name)
        if ring and not seen & set(ring):
            shown = " -> ".join(printable(name) for name in [*ring, ring[0]])
            told.append(Finding("E6006", f"within goes round: {shown}; a space cannot hold itself", space.line))
        seen |= set(ring)
    return told


def _ring(spaces: Mapping[str, VxSpace], name: str) -> list[str]:
    """The cycle of `within` that a space is part of, beginning with it; empty when it is in none."""
    chain = chain_of(spaces, name)
    last = spaces.get(chain[-1])
    return chain if last is not None and last.within == name else []


def _figures(machine: VxMachine) -> list[Finding]:
    told = []
    for space in machine.spaces:
        rate = None if space.bandwidth is None else space.bandwidth.value
        for field, value in (("capacity", space.capacity), ("bandwidth", rate), ("granule", space.granule)):
            if value == 0:
                told.append(
                    Finding("E6008", f"Memory {space.name}: {field} is 0; leave it out when unknown", space.line)
                )
    return told


def _nesting(machine: VxMachine, spaces: Mapping[str, VxSpace]) -> list[Finding]:
    told = []
    for space in machine.spaces:
        parent = spaces.get(space.within or "")
        if parent is None or _ring(spaces, space.name):
            continue
        if space.capacity is not None and parent.capacity is not None and space.capacity > parent.capacity:
            sizes = f"{format_bytes(space.capacity)} within {parent.name} of {format_bytes(parent.capacity)}"
            told.append(Finding("E6007", f"Memory {space.name} is larger than what holds it: {sizes}", space.line))
        if space.scope and parent.scope and SCOPES.index(space.scope) < SCOPES.index(parent.scope):
            scopes = f"{space.scope} within {parent.name} of scope {parent.scope}"
            told.append(Finding("E6011", f"Memory {space.name} widens the scope: {scopes}", space.line))
    return told


def _identities(machine: VxMachine) -> list[Finding]:
    told = []
    lines = {topology.name: topology.line for topology in machine.topologies}
    for name, line in lines.items():
        if name in BUILT_IN_TOPOLOGIES or name in INDEXED_TOPOLOGIES:
            told.append(Finding("E6016", f"Topology {name} shadows the built-in one of that name; rename it", line))
    for first, second, number in collisions((name, topology_dispatch_id(name)) for name in lines):
        if not {first, second} & {*BUILT_IN_TOPOLOGIES, *INDEXED_TOPOLOGIES}:
            told.append(
                Finding("E6016", f"Topology {first} and {second} share the id {number}; rename one", lines[second])
            )
    at = {space.name: space.line for space in machine.spaces}
    for first, second, number in collisions((name, space_dispatch_id(name)) for name in at):
        told.append(Finding("E6016", f"Memory {first} and {second} share the id {number}; rename one", at[second]))
    return told


def _visibility(topology: VxTopology, reached: set[str]) -> list[Finding]:
    told = []
    seen = (topology.memory,) if topology.visible is None else topology.visible
    if topology.memory not in seen:
        message = f"Topology {topology.name}: its own memory {topology.memory} is missing from visible; add it"
        told.append(Finding("E6005", message, topology.line))
    if topology.memory not in reached and HOST_SPACE not in seen:
        message = (
            f"Topology {topology.name}: {topology.memory} cannot be reached from the host; declare a transfer to it"
        )
        told.append(Finding("W1026", message, topology.line))
    return told


def _cost_sources(topology: VxTopology, spaces: Mapping[str, VxSpace]) -> list[Finding]:
    told = []
    for edge in topology.edges:
        way = f"transfer {edge.src} -> {edge.dst}"
        if (edge.rate is not None or edge.weight is not None) and derived(spaces, edge.src, edge.dst, 1) is not None:
            message = f"{way} has two costs: its own, and what the bandwidth of nested spaces gives; drop one"
            told.append(Finding("E6013", message, edge.line))
        target = spaces.get(edge.dst)
        if edge.relaxed and not (target is not None and target.managed == "cached"):
            told.append(Finding("W1027", f"{way} is relaxed: a reader behind it may see stale data", edge.line))
    return told


def _transfers(machine: VxMachine, transfers: Iterable[tuple[str, str]]) -> list[Finding]:
    told = []
    on_device = any(space.scope == "device" for space in machine.spaces)
    hosted = machine.space(HOST_SPACE) is not None
    for src, dst in transfers:
        if route(machine, src, dst) is None:
            told.append(Finding("E6002", f"no route from {printable(src)} to {printable(dst)}", 0))
        if HOST_SPACE in (src, dst) and src != dst and on_device and not hosted:
            message = (
                f"{src} -> {dst} stages through host memory and no host is declared; add a file with Memory CPU_DRAM"
            )
            told.append(Finding("E6014", message, 0))
    return told


# ---- verdicts on a placement


@dataclass(frozen=True, kw_only=True, slots=True)
class SpaceUse:
    """What a placement puts into one space: `total` bytes, rounded tile by tile; None = a tile's size is unknown."""

    space: str
    tiles: int
    total: int | None
    capacity: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TileVerdict:
    """The findings on a placement and what each space would hold. Admitted: no finding's code begins with E."""

    findings: tuple[Finding, ...]
    uses: tuple[SpaceUse, ...]

    @property
    def admitted(self) -> bool:
        return not any(finding.code.startswith("E") for finding in self.findings)


def tile_bytes(element_bits: int, dims: Sequence[int]) -> int | None:
    """ceil(element_bits * product(dims) / 8); None without dims or where an unsigned 64-bit number overflows."""
    if not dims:
        return None
    count = 1
    for dim in dims:
        count *= dim
        if count > U64:
            return None
    return -(-element_bits * count // 8) if element_bits * count <= U64 else None


def occupied(nbytes: int, granule: int | None) -> int:
    """What a tile takes in a space that is handed out by the granule."""
    return -(-nbytes // granule) * granule if granule else nbytes


def admit_tiles(
    machine: VxMachine, tiles: Mapping[str, Sequence[int | None]], *, transfers: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """The codes of `admission`, in its order."""
    return [finding.code for finding in admission(machine, tiles, transfers=transfers).findings]


def admission(
    machine: VxMachine, tiles: Mapping[str, Sequence[int | None]], *, transfers: Iterable[tuple[str, str]] = ()
) -> TileVerdict:
    """Whether tiles fit: {space: bytes of each tile, None = not known}, and whether each transfer has a route.

    E6009 one tile is too large, E6010 (W1028 with overcommit) several are together, W1029 a size is unknown and was
    not checked, E6025 no such space, E6002 and E6014 as in `check`.
    """
    mentioned = {*machine.mentioned, *BUILT_IN_SPACES}
    findings: list[Finding] = []
    uses = []
    for name in tiles:
        space = machine.space(name) or VxSpace(name=name, line=0)
        if name not in mentioned:
            findings.append(Finding("E6025", f"{printable(name)} is no space of this machine", 0))
        use = _use(space, tiles[name])
        findings += _fit(space, tiles[name])
        uses.append(use)
    return TileVerdict(findings=(*findings, *_transfers(machine, transfers)), uses=tuple(uses))


def _use(space: VxSpace, sizes: Sequence[int | None]) -> SpaceUse:
    known = [occupied(size, space.granule) for size in sizes if size is not None]
    total = sum(known) if len(known) == len(sizes) else None
    return SpaceUse(space=space.name, tiles=len(sizes), total=total, capacity=space.capacity)


def _fit(space: VxSpace, sizes: Sequence[int | None]) -> list[Finding]:
    if space.capacity is None:
        return []
    known = [occupied(size, space.granule) for size in sizes if size is not None]
    room = f"{space.name} holds {format_bytes(space.capacity)}"
    told = [
        Finding("E6009", f"one tile of {format_bytes(size)} exceeds its space: {room}", space.line)
        for size in known
        if size > space.capacity
    ]
    if len(known) > 1 and sum(known) > space.capacity:
        message = f"{len(known)} tiles of together {format_bytes(sum(known))} exceed their space: {room}"
        told.append(Finding("W1028" if space.overcommit else "E6010", message, space.line))
    unknown = len(sizes) - len(known)
    return told + [Finding("W1029", f"a tile of unknown size: {space.name} was NOT verified", space.line)] * unknown


# ---- several inputs


def combine(machine: VxMachine, host: VxMachine) -> VxMachine:
    """A machine file and a host file as one machine. Raises DescriptionError (E6012): a name that both declare."""
    faults = []
    for kind, ours, theirs in (
        ("Memory", machine.spaces, host.spaces),
        ("Topology", machine.topologies, host.topologies),
    ):
        first = {block.name: block.line for block in ours}
        for block in theirs:
            if block.name in first:
                place = f"{machine.source}:{first[block.name]}"
                message = f"E6012: {kind} {block.name} is declared in two inputs, first at {place}; give one of them"
                faults.append(
                    Fault(source=host.source, field="", message=message, line=block.line, column=1, vx_code="E6012")
                )
    if faults:
        raise DescriptionError(faults)
    return VxMachine(
        source=machine.source,
        spaces=(*machine.spaces, *host.spaces),
        topologies=(*machine.topologies, *host.topologies),
    )
