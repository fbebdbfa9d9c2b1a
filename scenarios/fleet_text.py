"""`fleet show` for people: devices with their memories, the links as a list, and where each figure comes from."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes, format_rate, format_seconds
from scenarios.table import Paint, Table

Document = dict[str, Any]
PS_PER_SECOND = 10**12


def fleet_text(document: Document, *, color: bool = False) -> str:
    """The fleet document as text."""
    paint = Paint(color)
    head = f"{document['name']}  {document.get('label') or ''}".rstrip()
    blocks = [[head, f"digest {document['digest'][:12]}"], _devices(document, paint), _links(document, paint)]
    if document["warnings"]:
        blocks.append(["Warnings", *(f"  - {words}" for words in document["warnings"])])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _devices(document: Document, paint: Paint) -> list[str]:
    table = Table(
        "Devices", "topology id", "sku", "memory", ">capacity", ">granule", ">bandwidth", "source of capacity"
    )
    for device in document["devices"]:
        for memory in device["memories"]:
            main = "*" if memory["name"] == device["default_memory"] and len(device["memories"]) > 1 else ""
            table.add(
                device["id"],
                str(device["topology_id"]),
                device["sku"] or "-",
                memory["name"] + main,
                format_bytes(memory["capacity_bytes"]),
                format_bytes(memory["granule_bytes"]),
                format_rate(memory["bandwidth_bytes_per_s"]),
                _origin(memory, "capacity_bytes"),
            )
    return table.lines(paint)


def _links(document: Document, paint: Paint) -> list[str]:
    table = Table("Links", "kind", ">count", ">bandwidth", ">latency", "peer access", "source of bandwidth", "observed")
    for link in document["links"]:
        latency = link["latency_s"]
        seen = (link.get("observed") or {}).get("bandwidth_bytes_per_s")
        table.add(
            f"{link['src']} -> {link['dst']}",
            link["kind"],
            str(link["count"]),
            format_rate(link["bandwidth_bytes_per_s"]),
            format_seconds(None if latency is None else round(latency * PS_PER_SECOND), digits=4),
            link["peer_access"] or "-",
            _origin(link, "bandwidth_bytes_per_s"),
            "-" if seen is None else format_rate(seen["value"]),
        )
    return table.lines(paint)


def _origin(row: Document, field: str) -> str:
    """`spec: source`, with a word where nobody has looked it up."""
    origin = row["provenance"].get(field)
    if origin is None:
        return "unknown"
    unverified = "" if origin["verified"] else " (unverified)"
    return f"{origin['provenance']}{unverified}: {origin['source']}"
