"""What must hold of a whole fleet once its figures are known: slices fit their card, ids differ; and its total."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.identity import collisions, topology_id
from fleet.machine import Device, Fleet, Memory
from fleet.units import format_bytes


def distinct_memories(devices: Iterable[Device]) -> list[tuple[Device, Memory]]:
    """Each memory once: one that several devices share under a physical name counts for the first of them,
    and the memory of a slice counts in its card's."""
    seen: set[str] = set()
    found = []
    for device in devices:
        for memory in device.memories if device.parent is None else ():
            if memory.physical is None or memory.physical not in seen:
                found.append((device, memory))
            if memory.physical is not None:
                seen.add(memory.physical)
    return found


def total_capacity(devices: Iterable[Device]) -> int:
    """Bytes of all memories whose capacity is known, each counted once. A Python integer: it may pass 63 bits."""
    return sum(memory.capacity.value or 0 for _, memory in distinct_memories(devices) if memory.within is None)


def slice_faults(devices: Sequence[Device]) -> list[tuple[str, str]]:
    """(`file:line` of a slice, message) of each card whose slices together hold more than it does."""
    cards = {device.id: device for device in devices}
    held: dict[str, list[Device]] = defaultdict(list)
    for device in devices:
        if device.parent is not None:
            held[device.parent].append(device)
    told = []
    for name, slices in held.items():
        whole = cards[name].memory.capacity.value
        parts = [device.memory.capacity.value for device in slices]
        known = sum(part for part in parts if part is not None)
        if whole is not None and known > whole:
            message = (
                f"is a slice of {name}, whose {len(slices)} slices have {format_bytes(known)} together, "
                f"more than the card's {format_bytes(whole)}"
            )
            told.append((slices[-1].where, message))
    return told


def island_of(fleet: Fleet, name: str) -> frozenset[str]:
    """The ids that links join with `name`, directions aside, itself included: what can be on any way from or to it."""
    joined: dict[str, list[str]] = defaultdict(list)
    for link in fleet.links:
        joined[link.src].append(link.dst)
        joined[link.dst].append(link.src)
    seen, ready = {name}, [name]
    while ready:
        more = [end for end in joined[ready.pop()] if end not in seen]
        seen.update(more)
        ready += more
    return frozenset(seen)


def numbered(devices: Sequence[Device]) -> tuple[list[Device], list[tuple[str, str, int]]]:
    """The devices with their topology ids, and (first, second, id) for each id that two of them would have."""
    one_node = len({device.host for device in devices}) <= 1
    known = [
        replace(d, topology_id=topology_id(d.id, d.kind, d.index, one_node=one_node and d.parent is None))
        for d in devices
    ]
    return known, collisions((device.id, device.topology_id) for device in known)
