"""What joins the memories of a device: default, containment, scope, and bytes that several devices claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet.units import UnitError, format_bytes, parse_bytes
from fleet.yaml_source import Path, nearest, printable

if TYPE_CHECKING:
    from fleet.references import Part

SCOPES = ("device", "sm", "cta", "thread")
"""From broad to narrow."""


def check_skus(state: Part) -> None:
    """The memories of each SKU of the file."""
    for name, sku in state.skus.items():
        if isinstance(sku, dict):
            path: Path = ("skus", name)
            if sku.get("kind") is None:
                state.tell((*path, "kind"), "is missing; write e.g. kind: gpu for a sku, kind: nvlink for a link")
            check_memories(state, sku, path)
            check_default(state, sku.get("memories"), sku.get("default_memory"), path)


def check_memories(state: Part, owner: dict[str, Any], path: Path) -> None:
    """Names, and the forest that `within` makes of them."""
    seen: dict[Any, Path] = {}
    held: dict[str, tuple[Path, dict[str, Any]]] = {}
    memories = owner.get("memories")
    for position, memory in enumerate(memories if isinstance(memories, list) else ()):
        name = memory.get("name") if isinstance(memory, dict) else None
        if isinstance(name, str):
            place = (*path, "memories", position)
            state.claim(seen, name, (*place, "name"), f"{printable(name)} is the name")
            held.setdefault(name, (place, memory))
    for name, (place, memory) in held.items():
        _within(state, held, name, place, memory)


def _within(
    state: Part, held: dict[str, tuple[Path, dict[str, Any]]], name: str, place: Path, memory: dict[str, Any]
) -> None:
    outer = memory.get("within")
    if not isinstance(outer, str):
        return
    if outer not in held:
        hint = nearest(outer, [other for other in held if other != name])
        state.tell((*place, "within"), f"{printable(outer)} is no memory of this device{hint}")
        return
    chain = [name]
    while isinstance(outer, str) and outer in held and outer not in chain:
        chain.append(outer)
        outer = held[outer][1].get("within")
    if outer == name:
        if name == min(chain):  # one fault a cycle
            state.tell((*place, "within"), f"goes round: {' -> '.join(map(printable, [*chain, name]))}; break it")
        return
    parent = held[memory["within"]][1]
    ours, theirs = memory.get("scope"), parent.get("scope")
    if ours in SCOPES and theirs in SCOPES and SCOPES.index(ours) < SCOPES.index(theirs):
        state.tell((*place, "scope"), f"{ours} is broader than {theirs}, the scope of {memory['within']} around it")
    inner, around = _bytes(memory.get("capacity")), _bytes(parent.get("capacity"))
    if inner is not None and around is not None and inner > around:
        told = f"{format_bytes(inner)} is more than {memory['within']} around it has: {format_bytes(around)}"
        state.tell((*place, "capacity"), told)


def _bytes(raw: Any) -> int | None:
    """The declared bytes of a raw figure; None where there are none, or none that can be read."""
    if isinstance(raw, dict):
        raw = raw.get("declared", raw.get("value"))
        if isinstance(raw, dict) or raw is None:
            return _bytes(raw) if raw is not None else None
    try:
        return parse_bytes(raw) if isinstance(raw, str) else None
    except UnitError:
        return None


def check_default(state: Part, memories: Any, default: Any, path: Path) -> None:
    """Several memories need a named default; a named default must exist."""
    if not isinstance(memories, list):
        return
    names = [m["name"] for m in memories if isinstance(m, dict) and isinstance(m.get("name"), str)]
    if isinstance(default, str) and names and default not in names:
        state.tell((*path, "default_memory"), f"{printable(default)} is no memory here{state.hint(default, names)}")
    if default is None and len(memories) > 1:
        example = f"default_memory: {printable(names[0])}" if names else "default_memory:"
        state.tell(path, f"has {len(memories)} memories and no default_memory; add e.g. {example}")


def check_claims(state: Part) -> None:
    """Two devices that claim one physical memory must both say that it is shared, and agree on its size."""
    owners: dict[str, tuple[Path, str, dict[str, Any]]] = {}
    for path, row in state.rows("devices"):
        for memory in _effective(state, row):
            name = memory.get("physical")
            if not isinstance(name, str):
                continue
            first = owners.setdefault(name, (path, str(row.get("id")), memory))
            if first[0] == path:
                continue
            if not memory.get("shared") == first[2].get("shared") == "true":
                told = f"claims the memory {printable(name)}, as {printable(first[1])} does; write shared: true on both"
                state.tell(path, f"{told}, or give each its own")
            sizes = [_bytes(memory.get("capacity")), _bytes(first[2].get("capacity"))]
            if None not in sizes and sizes[0] != sizes[1]:
                shown = " here and ".join(format_bytes(size) for size in sizes)
                state.tell(path, f"the memory {printable(name)} has {shown} on {printable(first[1])}; keep one size")


def _effective(state: Part, row: dict[str, Any]) -> list[dict[str, Any]]:
    memories = row.get("memories")
    sku = state.skus.get(row["sku"]) if isinstance(row.get("sku"), str) else None
    if memories is None and isinstance(sku, dict):
        memories = sku.get("memories")
    return [memory for memory in memories if isinstance(memory, dict)] if isinstance(memories, list) else []
