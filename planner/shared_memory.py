"""Devices of one plan that lie in the same bytes: memories of one `physical` name, and a card beside its slice.

Each device has an arena and a total of its own; the memory behind them is there once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fleet.machine import Device, Fleet
from planner.footprint import ArenaFootprint


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedMemory:
    """A physical memory in which several arenas of a plan lie: `devices` in plan order, `total_bytes` of them all."""

    physical: str
    devices: tuple[str, ...]
    total_bytes: int


def shared_memories(fleet: Fleet, footprints: Iterable[ArenaFootprint]) -> tuple[SharedMemory, ...]:
    """The memories that more than one arena of these footprints lies in."""
    lying: dict[str, list[ArenaFootprint]] = {}
    for footprint in footprints:
        device = None if footprint.device is None else fleet.device(footprint.device)
        if device is not None and device.memory.physical is not None:
            lying.setdefault(device.memory.physical, []).append(footprint)
    return tuple(
        SharedMemory(physical=name, devices=tuple(f.arena for f in held), total_bytes=sum(f.total_bytes for f in held))
        for name, held in lying.items()
        if len(held) > 1
    )


def cards_beside_slices(fleet: Fleet, names: Sequence[str]) -> list[tuple[Device, Device]]:
    """(card, slice) of the named devices of which one is a slice of another."""
    placed = {name: device for name in names if (device := fleet.device(name)) is not None}
    return [(placed[d.parent], d) for d in placed.values() if d.parent is not None and d.parent in placed]
