"""Fleet -> fleet.yaml: one canonical text for a fleet, byte for byte, that reads back to an equal fleet.

Everything is written out: no templates, patterns or catalog names are left. Rows stand in natural order of their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from fleet.build import NO_RUNTIME
from fleet.identity import index_in_id, kind_in_id
from fleet.machine import UNKNOWN, Device, Figure, Fleet, Host, Link, Memory, Quantity
from fleet.units import format_flops, format_rate, format_seconds, format_utilization, write_bytes

_PLAIN = re.compile(r"[A-Za-z0-9_./](?:[A-Za-z0-9_./@+()=%'\x20-]|:(?=[A-Za-z0-9_./-]))*", re.ASCII)
_WORDS = frozenset({"null", "Null", "NULL"})
_FORMS: dict[str, Callable[[int], str]] = {
    "capacity": write_bytes,
    "granule": write_bytes,
    "runtime": write_bytes,
    "pinned_pool": write_bytes,
    "bandwidth": format_rate,
    "latency": format_seconds,
    "compute": format_flops,
}

Row = dict[str, Any]


def fleet_yaml(fleet: Fleet) -> str:
    """The canonical text. `load_fleet` makes an equal fleet of it, but for `source` and the places in the file."""
    lines = ["schema: kvwaybill/fleet/1", f"name: {_scalar(fleet.name)}"]
    if fleet.label is not None:
        lines.append(f"label: {_scalar(fleet.label)}")
    skus = _skus(fleet)
    lines += _section("skus", [f"  {_scalar(name)}: {_flow(row)}" for name, row in sorted(skus.items())])
    lines += _section("hosts", _rows(_host(host) for host in fleet.hosts))
    one_host = len(fleet.hosts) == 1
    lines += _section("devices", _rows(_device(device, skus, one_host) for device in fleet.devices))
    lines += _section("switches", _rows(_stated(s, "id", "kind", "host", "tier", "label") for s in fleet.switches))
    lines += _section("nics", _rows(_stated(n, "id", "host", "pci", "numa", "label") for n in fleet.nics))
    lines += _section("links", _rows(_links(fleet.links)))
    lines += _fabric(fleet)
    return "\n".join([*lines, *_budget(fleet), ""])


def _section(name: str, lines: list[str]) -> list[str]:
    return [f"{name}:", *lines] if lines else []


def _rows(rows: Iterable[Row]) -> list[str]:
    return [f"  - {_flow(row)}" for row in rows]


def _stated(row: Any, *names: str) -> Row:
    return {name: str(getattr(row, name)) for name in names if getattr(row, name) is not None}


def _skus(fleet: Fleet) -> dict[str, Row]:
    """What the first device of each SKU says of it; devices that differ write the difference."""
    skus: dict[str, Row] = {}
    for device in fleet.devices:
        if device.sku is not None and device.sku not in skus:
            row = {"kind": device.kind, **_stated(device, "arch"), "memories": _memories(device)}
            skus[device.sku] = row | {"default_memory": device.default_memory} | _runtime(device) | _compute(device)
    return skus


def _memories(device: Device) -> list[Row]:
    return [_memory(memory) for memory in sorted(device.memories, key=lambda memory: memory.name)]


def _memory(memory: Memory) -> Row:
    row: Row = {"name": memory.name} | ({} if memory.role == "main" else {"role": memory.role})
    row |= _figures(capacity=memory.capacity, bandwidth=memory.bandwidth, granule=memory.granule)
    row |= _stated(memory, "within", "scope", "physical")
    row |= {} if memory.managed == "explicit" else {"managed": memory.managed}
    return row | ({"shared": "true"} if memory.shared else {})


def _runtime(device: Device) -> Row:
    return {} if device.runtime in (NO_RUNTIME, UNKNOWN) else _figures(runtime=device.runtime)


def _compute(device: Device) -> Row:
    return {"compute": {name: figure_row("compute", rate) for name, rate in device.compute}} if device.compute else {}


def _host(host: Host) -> Row:
    return {"id": host.id, **_stated(host, "label", "numa_nodes", "node"), **_figures(pinned_pool=host.pinned_pool)}


def _device(device: Device, skus: dict[str, Row], one_host: bool) -> Row:
    row: Row = {"id": device.id}
    own: Row = {"kind": device.kind, **_stated(device, "arch"), "memories": _memories(device)}
    own |= {"default_memory": device.default_memory} | _runtime(device) | _compute(device)
    if device.sku is not None:
        shared = skus[device.sku]
        row["sku"] = device.sku
        missing: Row = {"runtime": "unknown"} if "runtime" in shared and "runtime" not in own else {}
        if "compute" in shared and "compute" not in own and device.parent is None:
            missing["compute"] = {}
        own = {name: value for name, value in own.items() if shared.get(name) != value} | missing
        if device.parent is not None:
            own |= {"memories": _memories(device)} | _compute(device)  # a slice states its share
    elif kind_in_id(device.id) == device.kind:
        del own["kind"]
    row |= own
    row |= {} if one_host and device.parent is None else {"host": device.host}
    if device.index is not None and (device.parent is not None or index_in_id(device.id) != device.index):
        row["index"] = str(device.index)
    return row | _stated(device, "uuid", "pci", "numa", "parent", "profile", "label")


def _links(links: tuple[Link, ...]) -> list[Row]:
    """Two ways that are equal but for their ends are one row with `bidirectional`."""
    back = {(link.src, link.dst, link.kind): link for link in links}
    rows = []
    done: set[tuple[str, str, str]] = set()
    for link in links:
        if (link.src, link.dst, link.kind) in done:
            continue
        other = back.get((link.dst, link.src, link.kind))
        both = other is not None and _carried(other) == _carried(link)
        if both:
            done.add((link.dst, link.src, link.kind))
        row: Row = {"from": link.src, "to": link.dst, **_carried(link)}
        rows.append(row | ({"bidirectional": "true"} if both else {}))
    return rows


def _carried(link: Link) -> Row:
    row: Row = {"kind": link.kind} | ({} if link.count == 1 else {"count": str(link.count)})
    row |= _figures(bandwidth=link.bandwidth, latency=link.latency)
    return row | _stated(link, "peer_access", "duplex", "copy_engines")


def _fabric(fleet: Fleet) -> list[str]:
    lines = []
    if fleet.domains:
        lines.append("  domains:")
        for domain in fleet.domains:
            lines.append(f"    {_scalar(domain.id)}: {_flow({'kind': domain.kind, 'members': list(domain.members)})}")
    if fleet.tiers:
        lines.append(f"  tiers: {_flow(list(fleet.tiers))}")
    return _section("fabric", lines)


def _budget(fleet: Fleet) -> list[str]:
    share, reserve = fleet.budget.utilization, fleet.budget.reserve
    row: Row = {} if share is None else {"utilization": format_utilization(share)}
    row |= {"reserve": write_bytes(reserve)} if reserve else {}
    return [f"budget: {_flow(row)}"] if row else []


def _figures(**quantities: Quantity) -> Row:
    return {name: figure_row(name, quantity) for name, quantity in quantities.items() if quantity != UNKNOWN}


def figure_row(name: str, quantity: Quantity) -> Row:
    """A figure as a fleet file writes it; `name` is its field, which says the unit."""
    declared = None if quantity.declared is None else _declared(name, quantity.declared)
    if quantity.observed is None:
        return declared or {}
    row: Row = {} if declared is None else {"declared": declared}
    return row | {"observed": observed_row(name, quantity.observed)}


def _declared(name: str, figure: Figure) -> Row:
    return {"value": _FORMS[name](figure.value), "provenance": figure.provenance, **_origin(figure)}


def observed_row(name: str, figure: Figure) -> Row:
    """An observed figure as a fleet file writes it."""
    row = {"value": _FORMS[name](figure.value), **_origin(figure)}
    return row if figure.error is None else row | {"error": format_utilization(figure.error)}


def _origin(figure: Figure) -> Row:
    row: Row = {"source": figure.source} | ({} if figure.note is None else {"note": figure.note})
    return row if figure.verified else row | {"verified": "false"}


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_flow(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(inner) for inner in value) + "]"
    return _scalar(value)


def _scalar(text: str) -> str:
    """Plain where YAML takes it for nothing else; otherwise in double quotes, with escapes for what does not print."""
    if _PLAIN.fullmatch(text) and not text.endswith(" ") and text not in _WORDS:
        return text
    shown = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escaped(char) for char in shown)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"
