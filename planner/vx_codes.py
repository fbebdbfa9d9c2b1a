"""Vx's verdict codes beside ours: the correspondence, and the codes that nothing here can lead to.

Vx places tiles: each line of the memory ledger is one tile in the device's space, rounded up to the granule by itself
(here the buffers of an arena are rounded once, together). Its capacity is a hard wall without a share for others, so
what passes our budget alone has no code of Vx.
"""

from __future__ import annotations

from collections.abc import Iterable

from planner.footprint import ArenaFootprint

U64 = 2**64 - 1
"""Vx counts bytes in 64 bits; beyond them a size is unknown to it."""

OF_REASONS = {
    "NO_ROUTE": "E6002; W1026 too where the way from the host is missing",
    "EXCEEDS_CAPACITY": "E6009 where one line alone is larger than the memory, E6010 where several are together",
    "EXCEEDS_BUDGET": "none: Vx admits up to the capacity; E6010 where the lines, each rounded, pass it",
    "MODEL_UNKNOWN": "W1029",
    "DIVISION_UNKNOWN": "W1029",
    "SIZE_OVERFLOW": "W1029 where a line passes 64 bits",
}
"""Reason codes of plans that have a counterpart."""

OF_FILES = ("E6005", "E6006", "E6007", "E6008", "E6011", "E6012", "E6013", "E6016", "W1026", "W1027")
"""Codes on the declarations of a machine file: E as faults of the file (code 2), W among the fleet's warnings."""

NEVER = {
    "E6001": "a device is not a type of an argument here: the placement names it",
    "E6003": "what a phase reads is laid in its own device's memory by the orders",
    "E6004": "no copy of the orders is relaxed; a relaxed edge of a file is told as W1027",
    "E6014": "a fleet always has a host, also where its machine file declares no CPU_DRAM",
    "E6015": "a matter of Vx's compiler: transfer lowerings",
    "E6025": "a placement of a device that is not described is wrong use (code 2)",
    "E6026": "element types of hardware are not modelled; `dtypes` of a file is read and not used",
    "E6027": "a plan has one function, so nothing overflows only across calls",
    "E6028": "a plan has no recursion",
    "W1028": "overcommit is not modelled: what exceeds a capacity is refused",
    "W1030": "a device is named by its id, never by an index that is not constant",
}
"""Codes that no plan and no fleet file here can have, and why."""


def tile_codes(footprint: ArenaFootprint, capacity: int | None) -> tuple[str, ...]:
    """E6009 and E6010, as Vx would have them for the lines of an arena in a space of this capacity; () = it fits."""
    if capacity is None:
        return ()
    granule = max(footprint.granule, 1)
    tiles = [-(-nbytes // granule) * granule for nbytes in footprint.lines.values() if nbytes]
    codes = ["E6009"] if any(tile > capacity for tile in tiles) else []
    return (*codes, *(["E6010"] if len(tiles) > 1 and sum(tiles) > capacity else []))


def overflow_codes(footprints: Iterable[ArenaFootprint]) -> tuple[str, ...]:
    """W1029 where a line passes 64 bits: Vx knows no such size and verifies nothing."""
    return ("W1029",) if any(nbytes > U64 for f in footprints for nbytes in f.lines.values()) else ()


def route_codes(src: str, hosts: Iterable[str]) -> tuple[str, ...]:
    """E6002, and W1026 where the missing way begins at a host."""
    return ("E6002", "W1026") if src in hosts else ("E6002",)
