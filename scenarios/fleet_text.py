"""`fleet show` for people: tree, devices with their memories, link matrix, links, and where each figure comes from."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from fleet.units import format_bytes, format_rate, format_seconds
from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block, listing

if TYPE_CHECKING:
    from scenarios.fleet_matrix import Shown

Document = dict[str, Any]
PS_PER_SECOND = 10**12
MOST_LINKS = 24
"""More links than these are told by what they have in common."""


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


def fleet_text(
    document: Document,
    shown: Shown,
    notes_of_plan: tuple[str, ...] = (),
    *,
    color: bool = False,
    width: int | None = None,
) -> str:
    """The fleet document as text, with its limits. `shown` is what is written out of a large fleet."""
    from scenarios.fleet_matrix import matrix_lines, tree_lines

    paint, notes = Paint(color, width), _Notes()
    head = safe(f"{document['name']}  {document.get('label') or ''}".rstrip())
    blocks = [
        [*paint.fold(head), f"digest {document['digest'][:12]}"],
        tree_lines(shown, paint),
        _devices(document, shown, paint, notes),
        matrix_lines(shown, paint),
        _links(document, paint, notes),
        listing("Handoff of the plan", list(notes_of_plan), paint),
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


def _devices(document: Document, shown: Shown, paint: Paint, notes: _Notes) -> list[str]:
    headings = ("Devices", "topology id", "sku", "memory", ">capacity", "", ">granule", ">bandwidth")
    rows = [(device, memory) for device in _drawn(document, shown) for memory in device["memories"]]
    seen = [(memory.get("observed") or {}).get("capacity_bytes") for _, memory in rows]
    observed = any(figure is not None for figure in seen)
    alike = (f">{shown.word}",) if shown.collapsed else ()
    table = Table(*headings, *((">observed capacity", "") if observed else ()), *alike)
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
            *([f"{shown.alike[device['id']]:,}"] if alike else []),
        )
    legend = ["  * the memory that plans use of a device with several"] if several else []
    return table.lines(paint) + legend


def _drawn(document: Document, shown: Shown) -> list[Document]:
    return [device for device in document["devices"] if device["id"] in shown.alike]


def _seen(figure: Document, notes: _Notes) -> list[str]:
    return [format_bytes(figure["value"]), notes.number(_told(figure))]


def _links(document: Document, paint: Paint, notes: _Notes) -> list[str]:
    headings = ("Links", "kind", ">count", ">bandwidth", "", ">latency", "peer access", ">observed", "")
    table = Table(*headings)
    bundles = _bundles(document)
    for ends, link in bundles:
        latency = link["latency_s"]
        seen = (link.get("observed") or {}).get("bandwidth_bytes_per_s")
        table.add(
            ends,
            link["kind"],
            str(link["count"]),
            format_rate(link["bandwidth_bytes_per_s"]),
            notes.number(_origin(link, "bandwidth_bytes_per_s")),
            format_seconds(None if latency is None else round(latency * PS_PER_SECOND), digits=4),
            link["peer_access"] or "-",
            "-" if seen is None else format_rate(seen["value"]),
            "" if seen is None else notes.number(_told(seen)),
        )
    told = "  links of equal figures stand in one row; each one by itself: -o json"
    return table.lines(paint) + (paint.fold(told, 4) if len(bundles) < len(document["links"]) else [])


def _bundles(document: Document) -> list[tuple[str, Document]]:
    """(ends in words, the first link) of each row: every link of a small fleet, else those of equal figures as one."""
    links = document["links"]
    if len(links) <= MOST_LINKS:
        return [(f"{link['src']} -> {link['dst']}", link) for link in links]
    kind_of = {row["id"]: kind for kind in ("nodes", "devices", "switches", "nics") for row in document[kind]}
    alike: dict[str, list[Document]] = defaultdict(list)
    for link in links:
        figures = {name: value for name, value in link.items() if name not in ("src", "dst")}
        alike[repr((kind_of[link["src"]], kind_of[link["dst"]], figures))].append(link)
    rows = []
    for held in alike.values():
        more = "" if len(held) == 1 else f" and {len(held) - 1:,} more"
        rows.append((f"{held[0]['src']} -> {held[0]['dst']}{more}", held[0]))
    return rows


def _origin(row: Document, field: str) -> str | None:
    """`spec: source` of a declared figure; None where it is unknown."""
    origin = row["provenance"].get(field)
    return None if origin is None else _told(origin)


def _told(origin: Document) -> str:
    """`spec: source`, with a word where nobody has looked it up."""
    unverified = "" if origin["verified"] else " (unverified)"
    return f"{origin['provenance']}{unverified}: {origin['source']}"
