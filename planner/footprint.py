"""What lies in each arena: the buffers that the orders list, and the lines of the memory ledger.

The lines are sums over these very buffers, so the plan cannot list one thing and count another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fleet.machine import Fleet
from fleet.model import DTYPE_BYTES, Model
from fleet.placement import Placement
from fleet.workload import Workload
from planner.activations import is_bound, scores_heads, widest_layer
from planner.caches import bounce_buffer, cache_buffers
from planner.layouts import PACKED16, arena_bytes, layout_of
from planner.orders import ArenaOrder, BufferOrder

LINES = ("weights", "kv_cache", "layout_padding", "activations", "workspace", "runtime")
_LINE_OF_PREFIX = {
    "weights": "weights", "kv": "kv_cache", "cache": "kv_cache", "act": "activations", "work": "workspace",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ArenaFootprint:
    """Bytes of one arena by line, before rounding; `runtime` is what the driver takes beside the arena."""

    arena: str
    device: str | None
    lines: dict[str, int]
    granule: int

    @property
    def resident_bytes(self) -> int:
        """All lines but runtime: what the high-water mark must equal."""
        return sum(nbytes for line, nbytes in self.lines.items() if line != "runtime")

    @property
    def rounding_bytes(self) -> int:
        """ceil(resident / granule) * granule - resident, once per arena."""
        return -self.resident_bytes % self.granule

    @property
    def total_bytes(self) -> int:
        return self.resident_bytes + self.rounding_bytes + self.lines["runtime"]

    @property
    def fence_bytes(self) -> int:
        """total - runtime."""
        return self.resident_bytes + self.rounding_bytes


def arenas(model: Model, workload: Workload, placement: Placement, chunk: int | None) -> tuple[ArenaOrder, ...]:
    """The arenas of a placement: one a device, host:prefill and host:decode in host mode, host:bounce when staged."""
    out = []
    for device in placement.devices:
        phases = [p for p, d in (("prefill", placement.prefill), ("decode", placement.decode)) if d == device]
        out.append(ArenaOrder(arena=device, device=device, buffers=device_buffers(model, workload, phases)))
    if workload.attention == "host":
        for phase in ("prefill", "decode"):
            out.append(ArenaOrder(arena=f"host:{phase}", device=None, buffers=_kv_buffers(model, workload, phase)))
    if chunk is not None:
        bounce = bounce_buffer(model, workload, chunk)
        out.append(ArenaOrder(arena="host:bounce", device=None, buffers=(bounce,)))
    return tuple(out)


def _kv_buffers(model: Model, workload: Workload, phase: str) -> tuple[BufferOrder, ...]:
    return cache_buffers(model, workload, phase, layout_of(workload.layout, None))


def device_buffers(model: Model, workload: Workload, phases: list[str]) -> tuple[BufferOrder, ...]:
    """Weights, caches of the phases, activations and tables of one device."""
    converted = workload.weights_dtype != model.weights_dtype
    out = [
        BufferOrder(
            name=f"weights/{t.line}", shape=t.shape if t.repeat == 1 else (t.repeat, *t.shape),
            dtype=workload.weights_dtype if converted else t.dtype,
            layout=layout_of(workload.layout, t),
        )
        for t in model.staged_tensors(workload.attention)
    ]  # fmt: skip
    for phase in phases:
        out.extend(_kv_buffers(model, workload, phase))
    if workload.attention == "host":
        widest_in = max(model.dim, model.q_dim, model.hidden_dim)
        widest_out = max(model.dim, model.q_dim, model.kv_dim, model.hidden_dim, model.vocab_size)
        out.append(BufferOrder(name="act/in", shape=(workload.batch * widest_in,), dtype="fp32"))
        out.append(BufferOrder(name="act/out", shape=(workload.batch * widest_out,), dtype="fp32"))
        return tuple(out)
    rows = (workload.prefill_chunk if "prefill" in phases else 1) * workload.batch
    if is_bound(model):
        return (*out, *_bounded_rows(model, workload, rows))
    for name, shape, dtype in (
        ("act/tokens", (rows,), "int32"),
        ("act/x", (rows, model.dim), "fp32"),
        ("act/xb", (rows, max(model.dim, model.q_dim)), "fp32"),
        ("act/xb2", (rows, model.dim), "fp32"),
        ("act/q", (rows, model.q_dim), "fp32"),
        *_staging_rows(model, workload, rows),
        ("act/hb", (rows, model.hidden_dim), "fp32"),
        ("act/hb2", (rows, model.hidden_dim), "fp32"),
        ("act/att", (model.n_heads, workload.cache_positions), "fp32"),
        ("act/logits", (workload.batch * model.vocab_size,), "fp32"),
        ("act/next", (workload.batch,), "int32"),
        ("work/rope_cos", (workload.positions, model.head_dim // 2), "fp32"),
        ("work/rope_sin", (workload.positions, model.head_dim // 2), "fp32"),
    ):
        out.append(BufferOrder(name=name, shape=shape, dtype=dtype))
    return tuple(out)


def _bounded_rows(model: Model, workload: Workload, rows: int) -> Iterator[BufferOrder]:
    """Activations and tables of a model that no program of ours computes: see `planner.activations`."""
    latent = max((layer.rope_dim for layer in model.caches), default=0)
    for name, shape, dtype in (
        ("act/tokens", (rows,), "int32"),
        ("act/x", (rows, model.dim), "fp32"),
        ("act/xb", (rows, model.dim), "fp32"),
        ("act/layer", (rows, widest_layer(model)), "fp32"),
        ("act/att", (scores_heads(model), workload.cache_positions), "fp32"),
        ("act/logits", (workload.batch * model.vocab_size,), "fp32"),
        ("act/next", (workload.batch,), "int32"),
        ("work/rope_cos", (workload.positions, (latent or model.head_dim) // 2), "fp32"),
        ("work/rope_sin", (workload.positions, (latent or model.head_dim) // 2), "fp32"),
    ):
        yield BufferOrder(name=name, shape=shape, dtype=dtype)


def _staging_rows(model: Model, workload: Workload, rows: int) -> tuple[tuple[str, tuple[int, ...], str], ...]:
    """Rows of k and v, where they are computed before they go into a paged cache; a plain cache is their own place."""
    if workload.layout != PACKED16:
        return ()
    return (("act/k", (rows, model.kv_dim), "fp32"), ("act/v", (rows, model.kv_dim), "fp32"))


def line_of(buffer: BufferOrder) -> str:
    """The line of the ledger that a buffer belongs to."""
    return _LINE_OF_PREFIX.get(buffer.name.split("/", 1)[0], "workspace")


def buffer_bytes(buffer: BufferOrder) -> int:
    """Bytes of a buffer on the wire: product of the shape times the element size."""
    return math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype]


def footprint(fleet: Fleet, arena: ArenaOrder, model: Model) -> ArenaFootprint:
    """The lines of one arena. Undeclared runtime counts 0 (the fleet's warnings say so); undeclared granule is 1.

    Every line but `layout_padding` is in wire bytes; padding is all that the arena's layout takes beyond them.
    """
    lines = dict.fromkeys(LINES, 0)
    for buffer in arena.buffers:
        lines[line_of(buffer)] += buffer_bytes(buffer)
    lines["layout_padding"] = arena_bytes(arena, model) - sum(lines.values())
    device = None if arena.device is None else fleet.device(arena.device)
    granule = 1
    if device is not None:
        lines["runtime"] = device.runtime.value or 0
        granule = device.memory.granule.value or 1
    return ArenaFootprint(arena=arena.arena, device=arena.device, lines=lines, granule=granule)
