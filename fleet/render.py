"""Fleet <-> the JSON of `kvwaybill fleet show`.

File and document are two forms of one schema: fields of the document carry the unit in their names (`capacity_bytes`),
those of a file write it. `is_document` tells them apart. Reading a document goes through the same checks as a file:
`native_form` gives it a file's words. Only the fields of the contract need be there, so that others may write one too.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

from fleet.identity import kind_in_id
from fleet.machine import Device, Figure, Fleet, Host, Link, Memory, Quantity
from fleet.units import UnitError, format_utilization, parse_plain_seconds, seconds_number

_SMALL_NUMBER = re.compile(r"[0-9](\.[0-9]{1,20})?e-[0-9]{1,2}", re.ASCII)
"""How JSON writes a number below 0.0001."""

SCHEMA = "kvwaybill/fleet/1"

NATIVE_NAMES = {
    "hosts": "nodes",
    "from": "src",
    "to": "dst",
    "capacity": "capacity_bytes",
    "bandwidth": "bandwidth_bytes_per_s",
    "granule": "granule_bytes",
    "latency": "latency_s",
    "runtime": "runtime_bytes",
    "pinned_pool": "pinned_pool_bytes",
    "reserve": "reserve_bytes",
}
"""The fields of fleet.yaml that the document names otherwise."""


_SWITCH = ("id", "kind", "host", "tier", "label")
_NIC = ("id", "host", "pci", "numa", "label")
_DEVICE = (
    "id", "kind", "index", "host", "sku", "uuid", "pci", "numa", "default_memory", "arch", "label", "parent", "profile",
)  # fmt: skip
_MEMORY = ("name", "role", "within", "scope", "managed", "shared", "physical")


def fleet_document(fleet: Fleet) -> dict[str, Any]:
    """The `fleet` document. `null` is unknown. `provenance` and `observed` are mappings by the figure's field name."""
    share = fleet.budget.utilization
    inside: dict[str, list[str]] = {}
    for device in fleet.devices:
        inside.setdefault(device.host, []).append(device.id)
    return {
        "schema": SCHEMA,
        "name": fleet.name,
        "label": fleet.label,
        "source": fleet.source,
        "digest": fleet.digest,
        "nodes": [_host(host, inside) for host in fleet.hosts],
        "devices": [_device(device) for device in fleet.devices],
        "switches": [_stated(s, "id", "kind", "host", "tier", "label") for s in fleet.switches],
        "nics": [_stated(n, "id", "host", "pci", "numa", "label") for n in fleet.nics],
        "links": [_link(link) for link in fleet.links],
        **({"fabric": _fabric(fleet)} if fleet.domains or fleet.tiers else {}),
        "budget": {"utilization": None if share is None else float(share), "reserve_bytes": fleet.budget.reserve},
        "warnings": list(fleet.warnings),
    }


def _stated(row: Any, *names: str) -> dict[str, Any]:
    """The fields of a row that are stated; the others do not apply, or nobody knows them."""
    return {name: getattr(row, name) for name in names if getattr(row, name) is not None}


def _fabric(fleet: Fleet) -> dict[str, Any]:
    domains = {domain.id: {"kind": domain.kind, "members": list(domain.members)} for domain in fleet.domains}
    return {"domains": domains, "tiers": list(fleet.tiers)}


def _host(host: Host, inside: dict[str, list[str]]) -> dict[str, Any]:
    return {
        "id": host.id,
        "numa_nodes": host.numa_nodes,
        "devices": inside.get(host.id, []),
        **_stated(host, "label", "node"),
        **_figures(pinned_pool_bytes=host.pinned_pool),
    }


def _device(device: Device) -> dict[str, Any]:
    return {
        "id": device.id,
        "kind": device.kind,
        "index": device.index,
        "topology_id": device.topology_id,
        "host": device.host,
        "sku": device.sku,
        "uuid": device.uuid,
        "pci": device.pci,
        "numa": device.numa,
        "memories": [_memory(memory) for memory in device.memories],
        "default_memory": device.default_memory,
        **_stated(device, "arch", "label", "parent", "profile"),
        **({"compute": {n: _figures(flops_per_s=rate) for n, rate in device.compute}} if device.compute else {}),
        **_figures(runtime_bytes=device.runtime),
    }


def _memory(memory: Memory) -> dict[str, Any]:
    figures = _figures(
        capacity_bytes=memory.capacity, bandwidth_bytes_per_s=memory.bandwidth, granule_bytes=memory.granule
    )
    more = _stated(memory, "within", "scope", "physical") | ({"shared": True} if memory.shared else {})
    managed = {} if memory.managed == "explicit" else {"managed": memory.managed}
    return {"name": memory.name, "role": memory.role, **more, **managed, **figures}


def _link(link: Link) -> dict[str, Any]:
    figures = _figures(bandwidth_bytes_per_s=link.bandwidth, latency_s=link.latency)
    ends = {"src": link.src, "dst": link.dst, "kind": link.kind, "count": link.count}
    return {**ends, **figures, "peer_access": link.peer_access, **_stated(link, "duplex", "copy_engines")}


def _figures(**quantities: Quantity) -> dict[str, Any]:
    """The declared values by field name, and beside them where each came from and what was observed."""
    row: dict[str, Any] = {name: _number(name, quantity.declared) for name, quantity in quantities.items()}
    row["provenance"] = {name: _origin(q.declared) for name, q in quantities.items() if q.declared is not None}
    row["observed"] = {
        name: {"value": _number(name, q.observed), **_origin(q.observed)}
        for name, q in quantities.items()
        if q.observed is not None
    }
    return row


def _number(name: str, figure: Figure | None) -> int | float | None:
    if figure is None:
        return None
    return seconds_number(figure.value) if name.endswith("_s") and "per" not in name else figure.value


def _origin(figure: Figure) -> dict[str, Any]:
    origin = {"provenance": figure.provenance, "source": figure.source, "verified": figure.verified}
    origin |= {} if figure.note is None else {"note": figure.note}
    return origin if figure.error is None else origin | {"error": float(figure.error)}


def native_form(document: dict[str, Any]) -> dict[str, Any]:
    """A parsed document (scalars as text) in the words of fleet.yaml. Fields that a fleet has no use for are dropped.

    Anything misshapen is handed on as it is: the checks of the file then tell it.
    """
    native = {"schema": SCHEMA, "name": "fleet", **_pick(document, "name", "label")}
    nodes = document.get("nodes")
    native["hosts"] = _each([_named(row) for row in nodes] if isinstance(nodes, list) else nodes, _native_host)
    native["devices"] = _each(document.get("devices"), _native_device)
    native["switches"] = _each(document.get("switches"), lambda row: _pick(row, *_SWITCH))
    native["nics"] = _each(document.get("nics"), lambda row: _pick(row, *_NIC))
    native["fabric"] = document.get("fabric")
    native["links"] = _each(document.get("links"), _native_link)
    budget = document.get("budget")
    native["budget"] = _native_budget(budget) if isinstance(budget, dict) else budget
    native["skus"] = {
        row["sku"]: _pick(row, "kind")
        for row in native["devices"] or ()
        if isinstance(row, dict) and isinstance(row.get("sku"), str)
    }
    return native


def _pick(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def _each(rows: Any, turn: Any) -> Any:
    return [turn(row) if isinstance(row, dict) else row for row in rows] if isinstance(rows, list) else rows


def _has(rows: Any, *names: str) -> bool:
    return isinstance(rows, list) and any(isinstance(row, dict) and not row.keys().isdisjoint(names) for row in rows)


def is_document(data: dict[str, Any]) -> bool:
    """Whether parsed data is the JSON of `fleet show`, known by the fields that a file does not have."""
    devices = data.get("devices")
    memories = [row.get("memories") for row in devices if isinstance(row, dict)] if isinstance(devices, list) else []
    return (
        not data.keys().isdisjoint(("warnings", "digest"))
        or _has(data.get("links"), "src", "dst")
        or _has(devices, "topology_id")
        or any(_has(held, "capacity_bytes") for held in memories)
    )


def _native_budget(row: dict[str, Any]) -> dict[str, Any]:
    native = _pick(row, "utilization")
    share = native.get("utilization")
    if isinstance(share, str) and _SMALL_NUMBER.fullmatch(share):
        native["utilization"] = format_utilization(Fraction(share))
    if row.get("reserve_bytes") is not None:
        native["reserve"] = f"{row['reserve_bytes']} B"
    return native


def _named(row: Any) -> Any:
    return {"id": row} if isinstance(row, str) else row


def _native_host(row: dict[str, Any]) -> dict[str, Any]:
    return _pick(row, "id", "numa_nodes", "label", "node") | _native_figures(row, "pinned_pool")


def _native_device(row: dict[str, Any]) -> dict[str, Any]:
    native = _pick(row, *_DEVICE)
    if "kind" not in row and isinstance(row.get("id"), str):
        native["kind"] = kind_in_id(row["id"]) or "gpu"
    native["memories"] = _each(row.get("memories"), _native_memory)
    rates = row.get("compute")
    if isinstance(rates, dict):
        native["compute"] = {
            name: _native_figure(rate, "flops_per_s") if isinstance(rate, dict) else rate
            for name, rate in rates.items()
        }
    elif rates is not None:
        native["compute"] = rates
    return native | _native_figures(row, "runtime")


def _native_memory(row: dict[str, Any]) -> dict[str, Any]:
    return _pick(row, *_MEMORY) | _native_figures(row, "capacity", "bandwidth", "granule")


def _native_link(row: dict[str, Any]) -> dict[str, Any]:
    native = _pick(row, "kind", "count", "peer_access", "duplex", "copy_engines") | {
        "from": row.get("src"),
        "to": row.get("dst"),
    }
    return native | _native_figures(row, "bandwidth", "latency")


def _native_figures(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: _native_figure(row, NATIVE_NAMES[name]) for name in names}


def _native_figure(row: dict[str, Any], field: str) -> Any:
    value = row.get(field)
    if value is not None and not isinstance(value, str):
        return value
    provenance, observed = row.get("provenance"), row.get("observed")
    origin = provenance.get(field) if isinstance(provenance, dict) else None
    if isinstance(provenance, str):
        origin = {"provenance": provenance}
    seen = observed.get(field) if isinstance(observed, dict) else None
    figure: dict[str, Any] = {"declared": None, "observed": None}
    if value is not None:
        origin = _pick(origin, "provenance", "source", "verified", "note") if isinstance(origin, dict) else {}
        figure["declared"] = {"value": _written(value, field), **origin}
    if isinstance(seen, dict):
        number = seen.get("value")
        written = _written(number, field) if isinstance(number, str) else number
        figure["observed"] = {"value": written, **_pick(seen, "source", "verified", "note"), **_native_error(seen)}
    return figure


def _native_error(seen: dict[str, Any]) -> dict[str, Any]:
    error = seen.get("error")
    if isinstance(error, str) and _SMALL_NUMBER.fullmatch(error):
        return {"error": format_utilization(Fraction(error))}
    return {} if error is None else {"error": error}


def _written(number: str, field: str) -> str:
    """A number of the document with the unit that its field's name carries."""
    if field == "latency_s":
        try:
            return f"{parse_plain_seconds(number)} ps"
        except UnitError:
            return f"{number} s"
    if field == "flops_per_s":
        return f"{number} FLOP/s"
    return f"{number} B/s" if field.endswith("_per_s") else f"{number} B"
