"""What a layout makes of a buffer: bytes in memory beside bytes on the wire, and where buffers may start.

Closed formulas, on purpose not shared with the executor, which derives the same sizes from its own arrays; a test holds
the two together. The wire never carries a layout: rows of the waybill do not ask here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from fleet.model import DTYPE_BYTES, Model, TensorSpec
from fleet.workload import Workload
from planner.orders import ArenaOrder, BufferOrder

PLAIN, PACKED16 = "plain", "packed16"
LAYOUTS = (PLAIN, PACKED16)
_RUNNABLE = ("llama2c-v0", "llama2c-v1", "seeded")
_LANES = 16
_CACHE_LINE = 64
"""packed16: a block column of sixteen f32 is one cache line, and every buffer of the arena starts on one."""


def layout_of(layout: str, tensor: TensorSpec | None) -> str:
    """The layout of a weight tensor, or (None) of a cache. Norms and vectors have no rows to pack: they stay plain."""
    packs = tensor is None or (tensor.role != "norm" and len(tensor.shape) >= 2)
    return layout if packs else PLAIN


def held_bytes(buffer: BufferOrder, model: Model) -> int:
    """Bytes that a buffer takes in its layout, its wire shape given.

    packed16: rows are padded to sixteen; a row is a row of a weight, a position of K, a head dimension of V.
    """
    element, shape = DTYPE_BYTES[buffer.dtype], buffer.shape
    if buffer.layout != PACKED16:
        return math.prod(shape) * element
    if buffer.name.startswith("weights/"):
        return math.prod(shape[:-2]) * _padded(shape[-2]) * shape[-1] * element
    layers, positions, _ = shape
    heads = layers * model.n_kv_heads
    if buffer.name.endswith("/k"):
        return heads * _padded(positions) * model.head_dim * element
    return heads * _padded(model.head_dim) * positions * element


def _padded(rows: int) -> int:
    return -(-rows // _LANES) * _LANES


def arena_bytes(arena: ArenaOrder, model: Model) -> int:
    """From the start of an arena to the end of its last buffer, gaps between buffers included."""
    packed = any(buffer.layout == PACKED16 for buffer in arena.buffers)
    end = 0
    for buffer in arena.buffers:
        end = (-(-end // _CACHE_LINE) * _CACHE_LINE if packed else end) + held_bytes(buffer, model)
    return end


def layout_faults(layout: str, model: Model, workload: Workload) -> Iterator[str]:
    """In words, why a layout cannot hold this request; nothing where it can."""
    if layout != PACKED16:
        return
    if model.format not in _RUNNABLE:
        yield f"{layout} packs llama2.c checkpoints only; {model.name} is {model.format}; use plain"
    if workload.attention != "device":
        yield f"{layout} needs attention: device; with attention: host use plain"
    if workload.batch != 1:
        yield f"{layout} holds one sequence, not {workload.batch}; use --batch 1 or plain"
    for what, dtype in (("weights", workload.weights_dtype), ("kv", workload.kv_dtype)):
        if dtype != "fp32":
            yield f"{layout} packs fp32, not {what} in {dtype}; use --{what}-dtype fp32 or plain"
