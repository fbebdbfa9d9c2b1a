"""What a plan says of the transfer of a prompt's cache: payload, moved, descriptors; what both sides hold of it."""

from __future__ import annotations

from typing import Any

from fleet.model import Model
from fleet.placement import PHASES, Placement
from fleet.workload import Workload
from planner.caches import CachePart, held_parts
from planner.engines.table import ENGINES, Engine
from planner.rows import Row
from planner.workers import rank_model, ranks_of


def transfer_document(
    model: Model, workload: Workload, placement: Placement, rows: tuple[Row, ...], version: str | None
) -> dict[str, Any]:
    """`transfer` of a plan that names an engine, several ranks, a prefix hit or a host buffer.

    `rows` are those between devices. `descriptors` is null where the engine merges copies: their number is unknown.
    """
    engine = ENGINES[workload.engine or "exact"]
    prompt, block = workload.prompt_tokens, workload.block_tokens
    document: dict[str, Any] = {
        "engine": workload.engine,
        "version": version,
        "direction": engine.direction,
        "prompt_tokens": prompt,
        "prefix_hit_tokens": workload.prefix_hit,
        "asked_tokens": prompt - workload.prefix_hit,
        "unit": engine.unit if workload.engine else "block" if block else "token",
        "unit_tokens": block or 1,
        "units_of_prompt": -(-prompt // (block or 1)),
        "payload_bytes": sum(row.payload_bytes for row in rows),
        "moved_bytes": sum(row.bytes for row in rows),
        "descriptors": sum(row.copies for row in rows) if engine.descriptors else None,
        "host_buffer": workload.host_buffer,
        "in_flight": in_flight(model, workload, placement) if rows else [],
    }
    return document | {"notes": _notes(engine, workload, version)}


def _notes(engine: Engine, workload: Workload, version: str | None) -> list[str]:
    if workload.engine is None:
        return []
    notes = [f"read: {engine.read}"]
    if version is not None:
        notes.append(f"version {version} was not compared with what was read; the figures follow what was read")
    if workload.block_tokens == engine.unit_tokens and engine.unit != "token":
        notes.append(f"{engine.unit}s of {engine.unit_tokens} tokens: {engine.unit_status}")
    if not engine.descriptors:
        notes.append("descriptors: unknown; the engine merges neighbouring copies, or batches them")
    return [*notes, *engine.notes]


def in_flight(model: Model, workload: Workload, placement: Placement) -> list[dict[str, Any]]:
    """Bytes of the prompt's cache that each device holds while it is handed over: on prefill until it is read, on
    decode from before it comes. They are part of `kv_cache`, where the plan has room for them, not added to it.
    """
    found = []
    for phase in PHASES:
        for rank in ranks_of(model, placement, phase):
            parts = held_parts(rank_model(model, rank.cut) if placement.is_split else model, workload)
            nbytes = sum(prompt_bytes(part, workload) for part in parts)
            found.append({"device": rank.device, "phase": phase, "bytes": nbytes})
    return found


def prompt_bytes(part: CachePart, workload: Workload) -> int:
    """Bytes of the prompt in one part: whole blocks where blocks are kept, the whole array where it is moved whole."""
    held = part.held(workload.cache_positions if workload.kv_extent == "allocated" else workload.prompt_tokens)
    block = None if part.is_state else workload.block_tokens
    positions = held if block is None else -(-held // block) * block
    return part.layers * positions * part.position_bytes * workload.batch
