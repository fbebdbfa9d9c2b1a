"""What exists: hosts, devices with their memories, and one-way links, each figure with its source.

Plain frozen values. Files become these in `fleet.load`; graphs over them belong to the planner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

Provenance = Literal["spec", "measured", "policy"]
PeerAccess = Literal["direct", "staged", "unknown"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number and where it came from. `value` is bytes, bytes per second, or picoseconds."""

    value: int
    provenance: Provenance
    source: str
    verified: bool = True
    note: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """What the fleet file declares and, beside it, what was observed. Neither edits the other."""

    declared: Figure | None = None
    observed: Figure | None = None

    @property
    def value(self) -> int | None:
        """The declared value: what plans are made with. None = unknown."""
        return None if self.declared is None else self.declared.value


UNKNOWN = Quantity()


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """A memory of a device. capacity and granule in bytes, bandwidth in bytes per second."""

    name: str
    role: str = "main"
    capacity: Quantity = UNKNOWN
    bandwidth: Quantity = UNKNOWN
    granule: Quantity = UNKNOWN


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device with memory of its own. `host` is the id of the host end of its copies.

    `runtime` is what the driver takes before the first buffer (context, handles, modules); bytes.
    `where` is `file:line` of its description, for messages.
    """

    id: str
    kind: Literal["gpu", "cpu", "npu"]
    index: int | None
    topology_id: int
    host: str = "host"
    sku: str | None = None
    memories: tuple[Memory, ...] = ()
    default_memory: str = ""
    runtime: Quantity = UNKNOWN
    uuid: str | None = None
    pci: str | None = None
    numa: int | None = None
    where: str = ""
    capacity_field: str = ""
    """Path in the fleet file of the capacity of the default memory: what a fix would change."""

    @property
    def memory(self) -> Memory:
        """The default memory."""
        return next(m for m in self.memories if m.name == self.default_memory)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The host end of copies. No hard capacity; `pinned_pool` limits what a staged copy may bounce through."""

    id: str
    pinned_pool: Quantity = UNKNOWN
    numa_nodes: int | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A one-way link between two ids. bandwidth in bytes per second, latency in picoseconds.

    `peer_access` concerns device-to-device links only: whether a peer copy goes direct, is staged through the host,
    or nobody knows. It is None on links with a host at an end.
    """

    src: str
    dst: str
    kind: str
    count: int = 1
    bandwidth: Quantity = UNKNOWN
    latency: Quantity = UNKNOWN
    peer_access: PeerAccess | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """How much of a capacity a plan may use: floor(capacity * utilization) - reserve bytes."""

    utilization: Fraction | None = None
    reserve: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """A described fleet. `digest` is the sha256 of its canonical form; `source` is the path or name as given."""

    name: str
    hosts: tuple[Host, ...]
    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    budget: Budget = field(default_factory=Budget)
    label: str | None = None
    source: str = ""
    digest: str = ""
    warnings: tuple[str, ...] = ()

    def device(self, device_id: str) -> Device | None:
        """The device of this id, or None."""
        return next((d for d in self.devices if d.id == device_id), None)

    def host(self, host_id: str) -> Host | None:
        """The host of this id, or None."""
        return next((h for h in self.hosts if h.id == host_id), None)
