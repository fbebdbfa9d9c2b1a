"""`fleet show` for people: devices with their memories, the links as a list, and where each figure comes from."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes, format_rate, format_seconds
from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block, listing

Document = dict[str, Any]
PS_PER_SECOND = 10**12


class _Notes:
    """Sources by number, in the order in which they are first named."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def number(self, words: str | None) -> str:
        """`[2]` for a source; nothing where there is none."""
        if words is None:
            return ""
        if words not in self.words:
            self.words.append(words)
        return f"[{self.words.index(words) + 1}]"

    def lines(self, paint: Paint) -> list[str]:
        told = [(f"  [{number}] {safe(words)}", number) for number, words in enumerate(self.words, start=1)]
        lines = [line for text, number in told for line in paint.fold(text, 5 + len(str(number)))]
        return [paint("Sources", "bold"), *lines] if lines else []


def fleet_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The fleet document as text, with its limits."""
    paint, notes = Paint(color, width), _Notes()
    head = safe(f"{document['name']}  {document.get('label') or ''}".rstrip())
    blocks = [
        [*paint.fold(head), f"digest {document['digest'][:12]}"],
        _devices(document, paint, notes),
        _links(document, paint, notes),
        notes.lines(paint),
        listing("Warnings", document["warnings"], paint),
        limits_block(document, paint),
    ]
    return joined(blocks)


def catalog_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The shipped fleets and SKUs, one a line."""
    paint = Paint(color, width)
    table = Table("Fleets", "")
    for row in document["fleets"]:
        table.add(row["name"], row["label"] or "")
    skus = Table("SKUs", "", ">capacity", "")
    for row in document.get("skus") or ():
        unverified = "" if row["verified"] or row["capacity_bytes"] is None else "(unverified)"
        skus.add(row["name"], row["label"] or "", format_bytes(row["capacity_bytes"]), unverified)
    blocks = [table.lines(paint) if document["fleets"] else [], skus.lines(paint) if document.get("skus") else []]
    return joined([*(block for block in blocks if block), limits_block(document, paint)])


def _devices(document: Document, paint: Paint, notes: _Notes) -> list[str]:
    headings = ("Devices", "topology id", "sku", "memory", ">capacity", "", ">granule", ">bandwidth")
    rows = [(device, memory) for device in document["devices"] for memory in device["memories"]]
    seen = [(memory.get("observed") or {}).get("capacity_bytes") for _, memory in rows]
    observed = any(figure is not None for figure in seen)
    table = Table(*headings, *((">observed capacity", "") if observed else ()))
    several = False
    for (device, memory), figure in zip(rows, seen, strict=True):
        main = memory["name"] == device["default_memory"] and len(device["memories"]) > 1
        several = several or main
        more = [] if not observed else ["-", ""] if figure is None else _seen(figure, notes)
        table.add(
            device["id"],
            str(device["topology_id"]),
            device["sku"] or "-",
            memory["name"] + ("*" if main else ""),
            format_bytes(memory["capacity_bytes"]),
            notes.number(_origin(memory, "capacity_bytes")),
            format_bytes(memory["granule_bytes"]),
            format_rate(memory["bandwidth_bytes_per_s"]),
            *more,
        )
    legend = ["  * the memory that plans use of a device with several"] if several else []
    return table.lines(paint) + legend


def _seen(figure: Document, notes: _Notes) -> list[str]:
    return [format_bytes(figure["value"]), notes.number(_told(figure))]


def _links(document: Document, paint: Paint, notes: _Notes) -> list[str]:
    headings = ("Links", "kind", ">count", ">bandwidth", "", ">latency", "peer access", ">observed", "")
    table = Table(*headings)
    for link in document["links"]:
        latency = link["latency_s"]
        seen = (link.get("observed") or {}).get("bandwidth_bytes_per_s")
        table.add(
            f"{link['src']} -> {link['dst']}",
            link["kind"],
            str(link["count"]),
            format_rate(link["bandwidth_bytes_per_s"]),
            notes.number(_origin(link, "bandwidth_bytes_per_s")),
            format_seconds(None if latency is None else round(latency * PS_PER_SECOND), digits=4),
            link["peer_access"] or "-",
            "-" if seen is None else format_rate(seen["value"]),
            "" if seen is None else notes.number(_told(seen)),
        )
    return table.lines(paint)


def _origin(row: Document, field: str) -> str | None:
    """`spec: source` of a declared figure; None where it is unknown."""
    origin = row["provenance"].get(field)
    return None if origin is None else _told(origin)


def _told(origin: Document) -> str:
    """`spec: source`, with a word where nobody has looked it up."""
    unverified = "" if origin["verified"] else " (unverified)"
    return f"{origin['provenance']}{unverified}: {origin['source']}"
