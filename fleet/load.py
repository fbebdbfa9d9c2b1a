"""A fleet file, the name of a shipped fleet, or the JSON of `fleet show` -> Fleet.

Every fault of one pass is told at once, in the order of the file, each with file:line:column, field and how to mend it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fleet.catalog import catalog_names, catalog_text
from fleet.digest import fleet_digest
from fleet.errors import DescriptionError, Fault
from fleet.identity import index_in_id, kind_in_id, natural_order, topology_id
from fleet.lint import warnings_of
from fleet.machine import UNKNOWN, Budget, Device, Figure, Fleet, Host, Link, Memory, Quantity
from fleet.references import DEFAULT_HOST, check, is_one_node
from fleet.render import NATIVE_NAMES, is_document, native_form
from fleet.yaml_source import Document, Path, nearest, parse_text, printable, read_text

if TYPE_CHECKING:
    from fleet.schema import DeviceFile, FleetFile, LinkFile, MemoryFile, SkuFile

NO_RUNTIME = Quantity(
    declared=Figure(value=0, provenance="policy", source="default: no runtime declared", verified=False)
)
"""What a device takes before the first buffer when its description does not say."""


def load_fleet(path_or_catalog_name: str, *, text: str | None = None) -> Fleet:
    """The fleet of a file, of a shipped name, of `-` (standard input), or of `text` when that is given.

    Raises DescriptionError holding every fault found.
    """
    name, text = path_or_catalog_name, text
    shown = printable(name, 200)
    if text is None:
        text, shown = _find(name)
    document = parse_text(text, shown)
    if not isinstance(document.data, dict):
        fault = document.fault((), "must be a mapping that begins with schema: kvwaybill/fleet/1")
        raise DescriptionError([*document.faults, fault])
    return _read(_Input(document, document.data, name))


def _find(name: str) -> tuple[str, str]:
    """(text, name for messages) of a file, or of a shipped fleet when there is no such file."""
    shipped = name in catalog_names()
    if name != "-" and not os.path.isfile(name) and shipped:
        return catalog_text(name), f"{name}.yaml"
    try:
        return read_text(name), printable(name, 200)
    except DescriptionError as error:
        if os.path.lexists(name) if "\0" not in name else False:
            raise
        told = str(error.faults[0].message)
        names = catalog_names()
        hint = f"{told}, and no shipped fleet has this name{nearest(name, names)} (shipped: {', '.join(names)})"
        raise DescriptionError.at(printable(name, 200), "", hint) from error


@dataclass(frozen=True, slots=True)
class _Input:
    """A parsed text, what it says in the words of fleet.yaml, and the name it was asked for by."""

    document: Document
    raw: dict[str, Any]
    name: str

    @property
    def is_report(self) -> bool:
        return is_document(self.raw)

    @property
    def source(self) -> str:
        """What a figure without a source of its own is said to come from."""
        return os.path.basename(self.document.source) or self.document.source

    def native(self) -> dict[str, Any]:
        return native_form(self.raw) if self.is_report else self.raw

    def path(self, path: Path) -> Path:
        """A path of fleet.yaml as a path of the text itself."""
        if not self.is_report:
            return path
        figure = path.index("declared") if "declared" in path else len(path)
        return tuple(NATIVE_NAMES.get(step, step) if isinstance(step, str) else step for step in path[:figure])

    def line(self, path: Path) -> int:
        return self.document.at(self.path(path))[0]

    def where(self, path: Path) -> str:
        return f"{self.document.source}:{self.line(path)}"

    def fault(self, told: tuple[Path, str, bool]) -> Fault:
        path, message, key = told
        return self.document.fault(self.path(path), message, key=key)


def _read(given: _Input) -> Fleet:
    from fleet.schema import validate

    native = given.native()
    model, shape = validate(native, given.source)
    told = [given.fault(row) for row in (*shape, *check(native, given.line))]
    faults = sorted((*given.document.faults, *told), key=lambda fault: (fault.line, fault.column))
    if faults or model is None:
        raise DescriptionError(faults)
    return _build(model, given)


def _build(model: FleetFile, given: _Input) -> Fleet:
    hosts = [
        Host(id=h.id, pinned_pool=h.pinned_pool, numa_nodes=h.numa_nodes, where=given.where(("hosts", i)))
        for i, h in enumerate(model.hosts)
    ] or [Host(id=DEFAULT_HOST, where=given.where(()))]
    only = hosts[0].id
    one_node = is_one_node(device.host or only for device in model.devices)
    devices = [_device(d, i, model.skus, only, one_node, given) for i, d in enumerate(model.devices)]
    devices.sort(key=lambda device: natural_order(device.id))
    host_ids = {host.id for host in hosts}
    links = [link for i, row in enumerate(model.links) for link in _links(row, host_ids, given.where(("links", i)))]
    fleet = Fleet(
        name=model.name,
        label=model.label,
        hosts=tuple(sorted(hosts, key=lambda host: natural_order(host.id))),
        devices=tuple(devices),
        links=tuple(sorted(links, key=lambda k: (natural_order(k.src), natural_order(k.dst), k.kind))),
        budget=Budget(utilization=model.budget.utilization, reserve=model.budget.reserve),
        source=given.name,
    )
    return replace(fleet, digest=fleet_digest(fleet), warnings=_warnings(fleet, model, given))


def _warnings(fleet: Fleet, model: FleetFile, given: _Input) -> tuple[str, ...]:
    arches = {d.id: d.arch or (model.skus[d.sku].arch if d.sku else None) for d in model.devices}
    undeclared = [device.id for device in fleet.devices if device.runtime == NO_RUNTIME]
    found = warnings_of(fleet, arches, undeclared)
    stated = given.raw.get("warnings") if given.is_report else None
    kept = [text for text in stated if isinstance(text, str)] if isinstance(stated, list) else []
    return (*kept, *(text for text in found if text not in kept))


def _device(
    row: DeviceFile, position: int, skus: dict[str, SkuFile], only: str, one_node: bool, given: _Input
) -> Device:
    sku = skus[row.sku] if row.sku else None
    kind = row.kind or (sku.kind if sku else kind_in_id(row.id))
    assert kind in ("gpu", "cpu", "npu"), "fleet.references tells a device without a kind"
    index = row.index if row.index is not None else index_in_id(row.id)
    files = row.memories if row.memories is not None else (sku.memories if sku else ())
    place: Path = ("devices", position) if row.memories is not None or row.sku is None else ("skus", row.sku)
    default = _default_memory(files, (row.default_memory, sku.default_memory if sku else None))
    at = [memory.name for memory in files].index(default)
    runtime = row.runtime if row.runtime is not None else (sku.runtime if sku else None)
    return Device(
        id=row.id,
        kind=kind,  # type: ignore[arg-type]  # one of the three, asserted above
        index=index,
        topology_id=topology_id(row.id, kind, index, one_node=one_node),
        host=row.host or only,
        sku=row.sku,
        memories=tuple(_memory(memory) for memory in files),
        default_memory=default,
        runtime=NO_RUNTIME if runtime is None or runtime == UNKNOWN else runtime,
        uuid=row.uuid,
        pci=row.pci,
        numa=row.numa,
        where=given.where(("devices", position)),
        capacity_field=given.document.fault(given.path((*place, "memories", at, "capacity")), "").field,
    )


def _default_memory(memories: Sequence[MemoryFile], wanted: tuple[str | None, str | None]) -> str:
    """The first of `wanted` that is one of the memories; the only memory otherwise."""
    names = [memory.name for memory in memories]
    return next((name for name in wanted if name in names and name is not None), names[0])


def _memory(row: MemoryFile) -> Memory:
    return Memory(name=row.name, role=row.role, capacity=row.capacity, bandwidth=row.bandwidth, granule=row.granule)


def _links(row: LinkFile, host_ids: set[str], where: str) -> list[Link]:
    ways = [(row.src, row.dst), (row.dst, row.src)] if row.bidirectional else [(row.src, row.dst)]
    between_devices = not {row.src, row.dst} & host_ids
    return [
        Link(
            src=src,
            dst=dst,
            kind=row.kind,
            count=row.count,
            bandwidth=row.bandwidth,
            latency=row.latency,
            peer_access=(row.peer_access or "unknown") if between_devices else None,
            where=where,
        )
        for src, dst in ways
    ]
