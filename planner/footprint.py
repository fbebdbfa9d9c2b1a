"""What lies in each arena: the buffers that the orders list, and the lines of the memory ledger.

The lines are sums over these very buffers, so the plan cannot list one thing and count another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from fleet.machine import Fleet
from fleet.model import DTYPE_BYTES, Model
from fleet.placement import Placement
from fleet.same import Same
from fleet.workload import Attention, Workload
from planner.activations import is_bound, scores_heads, widest_layer
from planner.caches import bounce_buffer, cache_buffers
from planner.layouts import PACKED16, PLAIN, arena_bytes, layout_of
from planner.orders import ArenaOrder, BufferOrder

NamedShape = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype of a buffer to come."""
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
        return self.fence_bytes + self.lines["runtime"]

    @property
    def fence_bytes(self) -> int:
        """total - runtime."""
        return -(-self.resident_bytes // self.granule) * self.granule


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
    out = [*_weight_buffers(Same(model), workload.attention, workload.weights_dtype, workload.layout)]
    for phase in phases:
        out.extend(_kv_buffers(model, workload, phase))
    if workload.attention == "host":
        widest_in = max(model.dim, model.q_dim, model.hidden_dim)
        widest_out = max(model.dim, model.q_dim, model.kv_dim, model.hidden_dim, model.vocab_size)
        out.append(BufferOrder(name="act/in", shape=(workload.batch * widest_in,), dtype="fp32"))
        out.append(BufferOrder(name="act/out", shape=(workload.batch * widest_out,), dtype="fp32"))
        return tuple(out)
    rows = (workload.prefill_chunk if "prefill" in phases else 1) * workload.batch
    return (*out, *_activation_buffers(Same(model), Same(workload), rows))


@lru_cache(maxsize=64)
def _weight_buffers(same: Same[Model], attention: Attention, dtype: str, layout: str) -> tuple[BufferOrder, ...]:
    model = same.value
    converted = dtype != model.weights_dtype
    return tuple(
        BufferOrder(
            name=f"weights/{t.line}", shape=t.shape if t.repeat == 1 else (t.repeat, *t.shape),
            dtype=dtype if converted else t.dtype, layout=layout_of(layout, t),
        )
        for t in model.staged_tensors(attention)
    )  # fmt: skip


@lru_cache(maxsize=16)
def _activation_buffers(same: Same[Model], asked: Same[Workload], rows: int) -> tuple[BufferOrder, ...]:
    """Activations and tables of `rows` tokens a call: the devices of a request have the same, made once."""
    model, workload = same.value, asked.value
    listed = _bounded_rows(model, workload, rows) if is_bound(model) else _program_rows(model, workload, rows)
    return tuple(BufferOrder(name=name, shape=shape, dtype=dtype) for name, shape, dtype in listed)


def _program_rows(model: Model, workload: Workload, rows: int) -> tuple[NamedShape, ...]:
    """What the executor's program allocates."""
    return (
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
    )


def _bounded_rows(model: Model, workload: Workload, rows: int) -> tuple[NamedShape, ...]:
    """Activations and tables of a model that no program of ours computes: see `planner.activations`."""
    latent = max((layer.rope_dim for layer in model.caches), default=0)
    return (
        ("act/tokens", (rows,), "int32"),
        ("act/x", (rows, model.dim), "fp32"),
        ("act/xb", (rows, model.dim), "fp32"),
        ("act/layer", (rows, widest_layer(model)), "fp32"),
        ("act/att", (scores_heads(model), workload.cache_positions), "fp32"),
        ("act/logits", (workload.batch * model.vocab_size,), "fp32"),
        ("act/next", (workload.batch,), "int32"),
        ("work/rope_cos", (workload.positions, (latent or model.head_dim) // 2), "fp32"),
        ("work/rope_sin", (workload.positions, (latent or model.head_dim) // 2), "fp32"),
    )


def _staging_rows(model: Model, workload: Workload, rows: int) -> tuple[NamedShape, ...]:
    """Rows of k and v, where they are computed before they go into a paged cache; a plain cache is their own place."""
    if workload.layout != PACKED16:
        return ()
    return (("act/k", (rows, model.kv_dim), "fp32"), ("act/v", (rows, model.kv_dim), "fp32"))


def line_of(buffer: BufferOrder) -> str:
    """The line of the ledger that a buffer belongs to."""
    return _LINE_OF_PREFIX.get(buffer.name.partition("/")[0], "workspace")


def buffer_bytes(buffer: BufferOrder) -> int:
    """Bytes of a buffer on the wire: product of the shape times the element size."""
    return math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype]


def footprint(fleet: Fleet, arena: ArenaOrder, model: Model) -> ArenaFootprint:
    """The lines of one arena. Undeclared runtime counts 0 (the fleet's warnings say so); undeclared granule is 1.

    Every line but `layout_padding` is in wire bytes; padding is all that the arena's layout takes beyond them.
    """
    lines = dict.fromkeys(LINES, 0)
    for line, nbytes in zip(map(line_of, arena.buffers), map(buffer_bytes, arena.buffers), strict=True):
        lines[line] += nbytes
    if any(buffer.layout != PLAIN for buffer in arena.buffers):
        lines["layout_padding"] = arena_bytes(arena, model) - sum(lines.values())
    device = None if arena.device is None else fleet.device(arena.device)
    granule = 1
    if device is not None:
        lines["runtime"] = device.runtime.value or 0
        granule = device.memory.granule.value or 1
    return ArenaFootprint(arena=arena.arena, device=arena.device, lines=lines, granule=granule)
