"""What exists: hosts, devices with their memories, and one-way links, each figure with its source.

Plain frozen values. Files become these in `fleet.load`; graphs over them belong to the planner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

Provenance = Literal["spec", "measured", "policy"]
PeerAccess = Literal["direct", "staged", "unknown"]
Duplex = Literal["independent", "shared"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One number and where it came from. `value` is bytes, bytes per second, operations per second, or picoseconds."""

    value: int
    provenance: Provenance
    source: str
    verified: bool = True
    note: str | None = None
    error: Fraction | None = None
    """The relative error stated of a measured figure, None where nobody states one."""


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
    """A memory of a device. capacity and granule in bytes, bandwidth in bytes per second.

    `within` names the memory of the same device that contains it, `scope` who can address it (device, sm, cta, thread).
    `shared` says that others address the same bytes: the host (UMA), or every memory of the same `physical` name.
    """

    name: str
    role: str = "main"
    capacity: Quantity = UNKNOWN
    bandwidth: Quantity = UNKNOWN
    granule: Quantity = UNKNOWN
    within: str | None = None
    scope: str | None = None
    managed: str = "explicit"
    shared: bool = False
    physical: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """A device with memory of its own. `host` is the id of the host end of its copies.

    `parent` is the card of which the device is a slice (MIG), `profile` the name of the slice (`1g.10gb`).

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
    arch: str | None = None
    label: str | None = None
    parent: str | None = None
    profile: str | None = None
    compute: tuple[tuple[str, Quantity], ...] = ()
    """Dense operations (multiplications and additions) per second by type of number, sorted by type."""
    in_use: int | None = 0
    """Bytes of its default memory that others hold now (`fleet.in_use`); None = unknown. No part of a description."""

    @property
    def memory(self) -> Memory:
        """The default memory."""
        return next(m for m in self.memories if m.name == self.default_memory)

    def flops(self, number: str) -> Quantity:
        """Dense operations per second with numbers of this type (`fp32`, `bf16`, ...); UNKNOWN where nobody says."""
        return next((rate for name, rate in self.compute if name == number), UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """The host end of copies. No hard capacity; `pinned_pool` limits what a staged copy may bounce through.

    `node` is the machine with one operating system that it is part of, where that has several hosts; else its own id.
    """

    id: str
    pinned_pool: Quantity = UNKNOWN
    numa_nodes: int | None = None
    where: str = ""
    label: str | None = None
    node: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """A node that passes bytes on and keeps none: an NVSwitch, a PCIe switch or root port, a switch of the network.

    `tier` counts from the devices outwards, 1 = leaf. `host` is the node in whose case it sits, None for a fabric's.
    """

    id: str
    kind: str
    host: str | None = None
    tier: int | None = None
    label: str | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """A network card of a host: it passes bytes on and keeps none."""

    id: str
    host: str
    pci: str | None = None
    numa: int | None = None
    label: str | None = None
    where: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Domain:
    """Devices that reach each other over one fabric (an NVLink partition). `members` are ids, sorted."""

    id: str
    kind: str
    members: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """A one-way link between two ids. bandwidth in bytes per second, latency in picoseconds.

    `peer_access` concerns links between devices and switches: whether a peer copy goes direct, is staged through the
    host, or nobody knows. It is None on links with a host or a NIC at an end. A way over switches is direct when each
    of its links is. `duplex` says whether the two directions share their rate, `copy_engines` how many drive it.
    `assumed` marks a link that no description has and somebody asked to assume (policy).
    """

    src: str
    dst: str
    kind: str
    count: int = 1
    bandwidth: Quantity = UNKNOWN
    latency: Quantity = UNKNOWN
    peer_access: PeerAccess | None = None
    where: str = ""
    duplex: Duplex | None = None
    copy_engines: int | None = None
    assumed: bool = False


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
    format: str = field(default="", compare=False)
    """Name of the foreign format that it was read from; empty for a fleet file."""
    switches: tuple[Switch, ...] = ()
    nics: tuple[Nic, ...] = ()
    domains: tuple[Domain, ...] = ()
    tiers: tuple[str, ...] = ()
    """Names of the tiers of switches, the leaf tier first."""

    def device(self, device_id: str) -> Device | None:
        """The device of this id, or None."""
        return next((d for d in self.devices if d.id == device_id), None)

    def host(self, host_id: str) -> Host | None:
        """The host of this id, or None."""
        return next((h for h in self.hosts if h.id == host_id), None)
