"""Whether the buffers of each arena fit below its fence, and buffers that are read together have one extent.

Both would show in the middle of a run, as a broken device; here they are faults of the orders, told before anything is
allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from executor.packed.layout import ALIGNMENT, LAYOUT, WORD_BYTES
from executor.packing import packing_of
from fleet.errors import CopyError
from fleet.model import DTYPE_BYTES, Model
from planner.orders import ArenaOrder, BufferOrder, Orders

Faults = Iterator[tuple[str, str]]


def check_room(orders: Orders, model: Model) -> Faults:
    """(field, message) of each arena whose buffers end beyond its fence, and of each extent that stands alone."""
    yield from _fences(orders, model)
    yield from _extents(orders)


def _fences(orders: Orders, model: Model) -> Faults:
    alignment = ALIGNMENT if orders.workload.layout == LAYOUT else WORD_BYTES
    for arena in orders.arenas:
        end = 0
        for buffer in arena.buffers:
            try:
                nbytes = _held_bytes(buffer, arena, model)
            except CopyError as error:
                yield f"arenas[{arena.arena}].{buffer.name}", str(error)
                continue
            step = WORD_BYTES if arena.device is None else alignment
            end = -(-end // step) * step + nbytes
        fence = orders.fence(arena.arena)
        if end > fence:
            yield (
                "fences",
                (
                    f"arena {arena.arena}: its buffers take {end:,} B, the fence is {fence:,} B"
                    f" ({end - fence:,} B short); admit again"
                ),
            )


def _held_bytes(buffer: BufferOrder, arena: ArenaOrder, model: Model) -> int:
    """Bytes that a buffer takes in its arena, padding included."""
    packing = None if arena.device is None else packing_of(buffer, model)
    return prod(buffer.shape) * DTYPE_BYTES[buffer.dtype] if packing is None else packing.packed.nbytes


def _extents(orders: Orders) -> Faults:
    """Caches, scratch rows and tables of an arena: one number of positions each, K as V on both ends of a copy."""
    caches: dict[tuple[int, ...], str] = {}
    for arena in orders.arenas:
        shapes = {buffer.name: buffer.shape for buffer in arena.buffers}
        for name, shape in shapes.items():
            if name.startswith("kv/"):
                caches.setdefault(shape, f"{name} in {arena.arena}")
        positions = {shape[-2] for name, shape in shapes.items() if name.startswith("kv/") and len(shape) > 1}
        scratch = shapes.get("act/att", (0,))[-1]
        if "act/att" in shapes and positions and positions != {scratch}:
            yield f"arenas[{arena.arena}].act/att", f"has {scratch} positions, its caches {_listed(positions)}"
        tables = {shapes[name][0] for name in ("work/rope_cos", "work/rope_sin") if name in shapes}
        if len(tables) > 1:
            yield f"arenas[{arena.arena}].work/rope_sin", f"and rope_cos have {_listed(tables)} positions; wanted one"
    if len(caches) > 1:
        told = ", ".join(f"{where} {list(shape)}" for shape, where in caches.items())
        yield "arenas", f"the caches have several shapes: {told}; one is copied to the other; admit again"


def _listed(numbers: set[int]) -> str:
    return " and ".join(str(number) for number in sorted(numbers))
