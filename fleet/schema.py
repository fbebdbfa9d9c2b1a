"""The shape of `fleet.yaml` version 1 as pydantic models: which fields there are.

How each value is written is in `fleet.fields`; what joins fields (ids, link ends, indices) in `fleet.references`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fleet.fields import (
    Amount,
    Count,
    Duplex,
    Each,
    End,
    Flag,
    Flops,
    Id,
    Kind,
    LinkKind,
    Managed,
    Number,
    PeerAccess,
    Prose,
    Rate,
    Scope,
    Share,
    Size,
    SizeOrNone,
    Time,
    Whole,
    one_of,
)  # fmt: skip
from fleet.machine import UNKNOWN
from fleet.yaml_source import Path, nearest, printable

SCHEMA = "kvwaybill/fleet/1"
DIALECT = "https://json-schema.org/draft/2020-12/schema"


class FilePart(BaseModel):
    """A mapping of a fleet file: unknown fields are refused, `x-` fields are notes."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, defer_build=True,
        json_schema_extra={"patternProperties": {"^x-": {}}},
    )  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _nothing_is_left_out(cls, data: Any) -> Any:
        """A known field with nothing behind it counts as left out."""
        if not isinstance(data, dict) or None not in data.values():
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


class MemoryFile(FilePart):
    """One memory of a device or of a SKU. `shared`: others address the same bytes, those of one `physical` name."""

    name: Id
    role: Prose = "main"
    capacity: Size = UNKNOWN
    bandwidth: Rate = UNKNOWN
    granule: Size = UNKNOWN
    within: Id | None = None
    scope: Scope | None = None
    managed: Managed = "explicit"
    shared: Flag = False
    physical: Id | None = None


class PortFile(FilePart):
    """What a card can be joined by: how many lanes it has, and what one of them carries one way."""

    count: Count = 1
    bandwidth: Rate = UNKNOWN
    latency: Time = UNKNOWN


class SkuFile(FilePart):
    """What every device of one kind has in common. `extends` names a SKU of the catalog to begin with.

    `compute`: dense multiplications and additions a second, by the type of the numbers.
    """

    extends: Id | None = None
    kind: Kind | None = None
    arch: Prose | None = None
    label: Prose | None = None
    memories: tuple[MemoryFile, ...] = ()
    default_memory: Id | None = None
    runtime: SizeOrNone | None = None
    ports: dict[LinkKind, PortFile] = Field(default_factory=dict)
    compute: dict[Number, Flops] = Field(default_factory=dict)


class DeviceFile(FilePart):
    """One device, or `count` of them (id:0, id:1 ...). A field given here stands in place of its SKU's."""

    id: Id
    count: Count | None = None
    sku: Id | None = None
    kind: Kind | None = None
    arch: Prose | None = None
    label: Prose | None = None
    host: Id | None = None
    index: Whole | None = None
    memories: tuple[MemoryFile, ...] | None = None
    default_memory: Id | None = None
    runtime: SizeOrNone | None = None
    compute: dict[Number, Flops] | None = None
    uuid: Prose | None = None
    pci: Prose | None = None
    numa: Whole | None = None
    parent: Id | None = None
    profile: Prose | None = None


class HostFile(FilePart):
    """One host: no hard capacity; `pinned_pool` bounds what a staged copy may bounce through. Hosts under one operating
    system name one `node`.
    """

    id: Id
    label: Prose | None = None
    pinned_pool: SizeOrNone = UNKNOWN
    numa_nodes: Count | None = None
    node: Id | None = None


class SwitchFile(FilePart):
    """A node that passes bytes on: an NVSwitch, a PCIe switch or root port, a switch of the network."""

    id: Id
    count: Count | None = None
    kind: LinkKind
    host: Id | None = None
    tier: Whole | None = None
    label: Prose | None = None


class NicFile(FilePart):
    """A network card of a host."""

    id: Id
    count: Count | None = None
    host: Id | None = None
    pci: Prose | None = None
    numa: Whole | None = None
    label: Prose | None = None


class LinkFile(FilePart):
    """One one-way link, or both directions with `bidirectional`. bandwidth: all `count` lanes, one direction.

    An end with `*` stands for every id that it matches; with two such ends `each` says which go together.
    """

    src: End = Field(alias="from")
    dst: End = Field(alias="to")
    each: Each | None = None
    kind: LinkKind
    count: Count = 1
    bandwidth: Rate = UNKNOWN
    latency: Time = UNKNOWN
    peer_access: PeerAccess | None = None
    bidirectional: Flag = False
    duplex: Duplex | None = None
    copy_engines: Count | None = None


class NodeFile(FilePart):
    """A template, or a shipped fleet, stamped once as `id/...`, or `count` times as `id0/...`, `id1/...`."""

    id: Id
    template: Id
    count: Count | None = None


class DomainFile(FilePart):
    """Devices that reach each other over one fabric."""

    kind: LinkKind
    members: tuple[End, ...]


class FabricFile(FilePart):
    """How nodes are joined: domains by name, and the names of the tiers of switches, the leaf tier first."""

    domains: dict[Id, DomainFile] = Field(default_factory=dict)
    tiers: tuple[Prose, ...] = ()


class PartFile(FilePart):
    """What a fleet and a template have in common: the rows of one machine, or of several."""

    label: Prose | None = None
    hosts: tuple[HostFile, ...] = ()
    devices: tuple[DeviceFile, ...] = ()
    switches: tuple[SwitchFile, ...] = ()
    nics: tuple[NicFile, ...] = ()
    nodes: tuple[NodeFile, ...] = ()
    links: tuple[LinkFile, ...] = ()


class BudgetFile(FilePart):
    """How much of a capacity plans may use."""

    utilization: Share | None = None
    reserve: Amount = 0


class FleetFile(PartFile):
    """A whole fleet.yaml."""

    schema_name: Annotated[Literal["kvwaybill/fleet/1"], one_of(SCHEMA)] = Field(alias="schema")
    name: Id
    extends: Id | None = None
    include: tuple[Id, ...] = ()
    skus: dict[Id, SkuFile] = Field(default_factory=dict)
    templates: dict[Id, PartFile] = Field(default_factory=dict)
    fabric: FabricFile = Field(default_factory=FabricFile)
    budget: BudgetFile = Field(default_factory=BudgetFile)


def fleet_schema() -> dict[str, Any]:
    """The JSON Schema of fleet.yaml version 1; `schemas/fleet.schema.json` holds the same."""
    return {"$schema": DIALECT} | FleetFile.model_json_schema(by_alias=True)


def validate(data: Any, source: str) -> tuple[FleetFile | None, list[tuple[Path, str, bool]]]:
    """The file's model, or None and every fault of shape as (path, message, at the key rather than at the value).

    `source` is what figures without a source of their own are said to come from.
    """
    try:
        return FleetFile.model_validate(data, context={"source": source}), []
    except ValidationError as error:
        found: list[tuple[Path, str, bool]] = []
        for row in error.errors(include_url=False):
            found.extend(_told(row["loc"], row["type"], row.get("ctx", {}), row["input"]))
        return None, found


def _told(loc: Path, kind: str, ctx: dict[str, Any], value: Any) -> list[tuple[Path, str, bool]]:
    loc = tuple(step for step in loc if step != "[key]")
    if kind == "figure":
        return [((*loc, *path), message, "no such field" in message) for path, message in ctx["faults"]]
    if kind == "fleet":
        return [(loc, ctx["reason"], False)]
    if kind == "extra_forbidden":
        known = _fields(loc[:-1])
        return [(loc, f"no such field{nearest(str(loc[-1]), known)} (fields: {', '.join(known)})", True)]
    if kind == "missing":
        return [(loc, f"is missing{_EXAMPLES.get(str(loc[-1]), '')}", False)]
    if kind == "tuple_type":
        return [(loc, "must be a list: lines that begin with -", False)]
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return [(loc, "must be a mapping: lines of the form field: value", False)]
    return [(loc, f"cannot be read ({printable(kind)})", False)]


_EXAMPLES = {
    "schema": f"; begin the file with schema: {SCHEMA}",
    "name": "; write one word, e.g. name: main",
    "kind": "; write e.g. kind: gpu for a sku, kind: nvlink for a link",
    "id": "; write e.g. id: gpu:0",
    "from": "; write the id at which the link begins, e.g. from: gpu:0",
    "to": "; write the id at which the link ends, e.g. to: gpu:1",
    "template": "; write the name of a template of this file, or of a shipped fleet",
}


_SECTIONS: dict[str, type[FilePart]] = {
    "skus": SkuFile,
    "hosts": HostFile,
    "devices": DeviceFile,
    "switches": SwitchFile,
    "nics": NicFile,
    "nodes": NodeFile,
    "links": LinkFile,
    "budget": BudgetFile,
    "fabric": FabricFile,
}


def _fields(path: Path) -> list[str]:
    """The fields of the mapping at `path`."""
    model: type[FilePart] = FleetFile
    if path and path[0] == "templates":
        model, path = PartFile, path[2:]
    if path:
        model = _SECTIONS.get(str(path[0]), model)
    inner: dict[str, type[FilePart]] = {"memories": MemoryFile, "ports": PortFile, "domains": DomainFile}
    model = next((inner[str(step)] for step in path[1:] if step in inner), model)
    return [field.alias or name for name, field in model.model_fields.items()]
