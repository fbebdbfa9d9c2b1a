"""The residency witness: how far each arena was ever filled, as the arena itself remembers it."""

from __future__ import annotations

from collections.abc import Mapping

from executor.arena import Arena


def high_water_marks(arenas: Mapping[str, Arena]) -> dict[str, int]:
    """Bytes by arena: the largest end of a block so far, from the start of the arena."""
    return {name: arena.high_water for name, arena in arenas.items()}
