"""What a transfer moves, and what both sides hold of it in flight, as text. Takes a finished plan."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from scenarios.table import Paint, Table, safe
from scenarios.words import count_of

Document = dict[str, Any]


def transfer_block(transfer: Document, paint: Paint) -> list[str]:
    """Payload, moved, descriptors and the notes of an engine; nothing for plans without a `transfer`."""
    if not transfer:
        return []
    named = transfer["engine"] or "no engine named"
    version = f" {transfer['version']}" if transfer.get("version") else ""
    unit, size = transfer["unit"], transfer["unit_tokens"]
    whole = f" in {unit}s of {size:,} tokens" if size > 1 or unit == "page" else ""
    hit = transfer["prefix_hit_tokens"]
    left_out = f", {hit:,} of {transfer['prompt_tokens']:,} on decode already" if hit else ""
    descriptors = transfer["descriptors"]
    count = "descriptors unknown" if descriptors is None else f"{count_of(descriptors)} descriptors"
    words = (
        f"Transfer    {named}{version}, {transfer['direction']}: {transfer['asked_tokens']:,} tokens{whole}{left_out};"
        f" payload {format_bytes(transfer['payload_bytes'])}, moved {format_bytes(transfer['moved_bytes'])}, {count}"
        + (", by host buffers" if transfer["host_buffer"] else "")
    )
    lines = paint.fold(safe(words), 12)
    return [*lines, *(line for note in transfer["notes"] for line in paint.fold(safe(f"  - {note}"), 4))]


def in_flight_block(transfer: Document, paint: Paint) -> list[str]:
    """The bytes that each side holds while the cache is handed over: part of its kv_cache line."""
    if not transfer or not transfer["in_flight"]:
        return []
    table = Table("In flight", "device", ">held, part of kv_cache")
    for held in transfer["in_flight"]:
        table.add(held["phase"], held["device"], format_bytes(held["bytes"]))
    return table.lines(paint)
