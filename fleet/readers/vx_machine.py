"""What a Vx machine file says, as frozen values: spaces in a containment forest, topologies, directed edges.

A Fleet cannot hold all of it (on-die spaces, clocks, replicas, crossing, weights, relaxed edges); costs, routes and
verdicts (`vx_costs`, `vx_verdicts`) are worked out on these values, exactly as written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fleet.machine import Provenance

U64 = 2**64 - 1
U32 = 2**32 - 1

SCOPES = ("device", "sm", "cta", "thread")
"""From broad to narrow."""
BUILT_IN_SPACES = {"CPU_DRAM": 0, "NPU_HBM": 100, "GPU_HBM": 500, "NIC_RAM": 800, "Remote_HBM": 900}
"""The spaces that Vx knows without a declaration, and their dispatch ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where a figure comes from, as the comment above it says (docs/memory_algebra.md section 8)."""

    provenance: Provenance = "spec"
    source: str = ""
    verified: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """A bandwidth: `value` bytes per second, or bytes per cycle with `per_cycle`."""

    value: int
    per_cycle: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class VxSpace:
    """One `Memory` block. capacity and granule in bytes, clock in hertz; None = not written."""

    name: str
    line: int
    capacity: int | None = None
    granule: int | None = None
    bandwidth: Rate | None = None
    clock: int | None = None
    replicas: int | None = None
    within: str | None = None
    scope: str | None = None
    managed: str = "explicit"
    crossing: str = "sequenced"
    overcommit: bool = False
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, kw_only=True, slots=True)
class VxEdge:
    """One `transfer src -> dst`. At most one of `rate` (the link's own) and `weight` (no time) is there."""

    src: str
    dst: str
    line: int
    rate: Rate | None = None
    weight: int | None = None
    relaxed: bool = False
    sync: bool = False
    copy_engine: bool = False
    origin: Origin = field(default_factory=Origin)


@dataclass(frozen=True, kw_only=True, slots=True)
class VxTopology:
    """One `Topology` block. `visible` None = only its own memory; `dtypes` None = no constraint."""

    name: str
    line: int
    memory: str
    visible: tuple[str, ...] | None = None
    arch: str | None = None
    dtypes: tuple[str, ...] | None = None
    edges: tuple[VxEdge, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class VxMachine:
    """A whole machine file, in the order of the file."""

    source: str
    spaces: tuple[VxSpace, ...] = ()
    topologies: tuple[VxTopology, ...] = ()

    @property
    def edges(self) -> tuple[VxEdge, ...]:
        """The edges of all topologies."""
        return tuple(edge for topology in self.topologies for edge in topology.edges)

    def space(self, name: str) -> VxSpace | None:
        """The declared space of this name, or None."""
        return next((space for space in self.spaces if space.name == name), None)

    @property
    def is_host(self) -> bool:
        """Whether this is a host file: host memory and nothing else."""
        return not self.topologies and [space.name for space in self.spaces] == ["CPU_DRAM"]

    @property
    def mentioned(self) -> tuple[str, ...]:
        """Every space that is declared or named, sorted."""
        names = {space.name for space in self.spaces} | {space.within for space in self.spaces if space.within}
        for topology in self.topologies:
            names |= {topology.memory, *(topology.visible or ())}
        return tuple(sorted(names | {end for edge in self.edges for end in (edge.src, edge.dst)}))
