"""The memory ledger of a device: each line with its formula, the numbers put in, and where they come from.

The figures are those of `planner.footprint` and `planner.ledger_bounds`; nothing is decided here. The terms of a line
sum to it, and the lines that are held sum to the total.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from fleet.machine import Device, Quantity
from fleet.model import DTYPE_BYTES
from fleet.units import format_utilization
from planner.activations import SOURCE, is_bound
from planner.admit import Admission, terms_of, utilization_of
from planner.footprint import ArenaFootprint, line_of
from planner.layouts import held_bytes
from planner.orders import ArenaOrder, BufferOrder

MOST_TERMS = 24
"""More terms of one line are summed up in a last one."""
_LAYER = re.compile(r"(?<=[./])[0-9]+(?=[./])")


@dataclass(frozen=True, kw_only=True, slots=True)
class Term:
    """One addend: `formula` in numbers, and the bytes that it gives."""

    what: str
    formula: str
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerLine:
    """One line. `held` lines sum to the total; the others are bounds. `bytes` None = unknown."""

    line: str
    bytes: int | None
    formula: str
    source: str
    held: bool = True
    terms: tuple[Term, ...] = ()


def device_ledger(admission: Admission, footprint: ArenaFootprint) -> tuple[LedgerLine, ...]:
    """The lines of one arena: what is held, its sum, and (of devices) the bounds that it is set against."""
    prediction = admission.prediction
    assert prediction is not None
    arena = next(each for each in prediction.arenas if each.arena == footprint.arena)
    device = None if footprint.device is None else admission.ask.fleet.device(footprint.device)
    shown = [line for line, nbytes in footprint.lines.items() if line != "runtime" and (device is not None or nbytes)]
    lines = [_of_buffers(admission, footprint, arena, line) for line in shown]
    if device is not None:
        lines.append(_runtime(device, footprint))
    granule = None if device is None else device.memory.granule
    lines.append(LedgerLine(
        line="rounding", bytes=footprint.rounding_bytes,
        formula=f"buffers of {footprint.resident_bytes:,} B up to whole granules of {footprint.granule:,} B, once",
        source="no device, so no granule" if granule is None else _source(granule, "undeclared: bytes count singly"),
    ))  # fmt: skip
    told = " + ".join(line.line for line in lines if line.bytes)
    lines.append(LedgerLine(
        line="total", bytes=footprint.total_bytes, formula=told or "nothing", source="the lines above", held=False,
    ))  # fmt: skip
    if device is None:
        return tuple(lines)
    return (*lines, _in_flight(admission, footprint), *_bounds(admission, footprint, device))


def _of_buffers(admission: Admission, footprint: ArenaFootprint, arena: ArenaOrder, line: str) -> LedgerLine:
    nbytes = footprint.lines[line]
    if line == "layout_padding":
        return _padding(admission, arena, nbytes)
    terms = _terms([buffer for buffer in arena.buffers if line_of(buffer) == line])
    formula = " + ".join(term.what for term in terms) or "nothing of this kind"
    return LedgerLine(
        line=line, bytes=nbytes, formula=formula, source=_SOURCES.get(line, _workspace)(admission, arena), terms=terms
    )


def _terms(buffers: list[BufferOrder]) -> tuple[Term, ...]:
    """A term a buffer; buffers of one shape that differ in the number of their layer only are one term."""
    alike: dict[tuple[str, tuple[int, ...], str], int] = {}
    for buffer in buffers:
        name = _LAYER.sub("*", buffer.name.partition("/")[2] or buffer.name)
        key = (name, buffer.shape, buffer.dtype)
        alike[key] = alike.get(key, 0) + 1
    terms = []
    for (name, shape, dtype), count in alike.items():
        element = DTYPE_BYTES[dtype]
        formula = f"[{' x '.join(str(size) for size in shape)}] x {element} B"
        terms.append(Term(
            what=name, formula=formula if count == 1 else f"{count} x {formula}",
            bytes=count * math.prod(shape) * element,
        ))  # fmt: skip
    if len(terms) <= MOST_TERMS:
        return tuple(terms)
    rest = terms[MOST_TERMS - 1 :]
    more = Term(what=f"{len(rest)} more", formula="their sum", bytes=sum(term.bytes for term in rest))
    return (*terms[: MOST_TERMS - 1], more)


def _padding(admission: Admission, arena: ArenaOrder, nbytes: int) -> LedgerLine:
    layout, model = admission.ask.request.layout, admission.ask.model
    terms = []
    for buffer in arena.buffers:
        wire = math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype]
        more = held_bytes(buffer, model) - wire if nbytes else 0
        if more:
            terms.append(Term(what=buffer.name, formula="rows padded to sixteen", bytes=more))
    gaps = nbytes - sum(term.bytes for term in terms)
    if gaps:
        terms.append(Term(what="gaps", formula="each buffer starts on a cache line", bytes=gaps))
    formula = "what the layout takes beyond wire bytes" if nbytes else "nothing"
    return LedgerLine(
        line="layout_padding", bytes=nbytes, formula=formula, source=f"--layout {layout}", terms=tuple(terms)
    )


def _weights(admission: Admission, arena: ArenaOrder) -> str:
    model, workload = admission.ask.model, admission.workload
    assert workload is not None
    converted = workload.weights_dtype != model.weights_dtype
    told = f"converted to {workload.weights_dtype}" if converted else f"as stored ({model.weights_dtype})"
    part = ", the part of this rank" if admission.ask.placement.is_split else ""
    return f"the tensors of {model.name} ({model.format}) that attention {workload.attention} reads, {told}{part}"


def _cache(admission: Admission, arena: ArenaOrder) -> str:
    """Concurrency, context and block size."""
    workload = admission.workload
    assert workload is not None
    block = workload.block_tokens
    blocks = "" if block is None else f" in blocks of {block} ({workload.cache_positions:,})"
    return f"{workload.batch:,} sequences x context {workload.positions:,}{blocks}, {workload.kv_dtype}"


def _in_flight(admission: Admission, footprint: ArenaFootprint) -> LedgerLine:
    """What of the cache is in flight: the prompt's part, held on both sides until the copy has ended."""
    prediction, workload = admission.prediction, admission.workload
    assert prediction is not None
    assert workload is not None
    rows = [row for row in prediction.handoff_rows if footprint.arena in (row.src, row.dst)]
    if admission.ask.placement.is_oracle:
        side = "one device: the copy stays in its memory"
    elif not workload.hands_over:
        side = "nothing is handed over"
    elif any(row.src == footprint.arena for row in rows):
        side = "kept here until the copy has ended"
    else:
        side = "set aside here before the copy begins"
    return LedgerLine(
        line="in flight", bytes=sum(row.bytes for row in rows), held=False,
        formula=" + ".join(f"{row.tensor} {row.src}->{row.dst}" for row in rows[:8]) or "nothing",
        source=f"part of kv_cache, no staging buffer beside it; {side}",
    )  # fmt: skip


def _activations(admission: Admission, arena: ArenaOrder) -> str:
    workload = admission.workload
    assert workload is not None
    if workload.attention == "host":
        return "operands of one matmul, in and out, f32"
    chunk = workload.prefill_chunk if admission.ask.placement.prefill in (arena.device, None) else 1
    if is_bound(admission.ask.model):
        return f"{SOURCE}; up to {chunk:,} positions x {workload.batch:,} sequences"
    return f"one forward call of up to {chunk:,} positions x {workload.batch:,} sequences, f32; scores and logits"


def _workspace(admission: Admission, arena: ArenaOrder) -> str:
    if arena.arena == "host:bounce":
        return "staging of the handoff: what one chunk takes on its way over the host"
    return "RoPE tables, made on the device"


_SOURCES = {"weights": _weights, "kv_cache": _cache, "activations": _activations, "workspace": _workspace}


def _runtime(device: Device, footprint: ArenaFootprint) -> LedgerLine:
    source = _source(device.runtime, "undeclared: counted as 0 B")
    formula = "context, handles and modules of the driver, beside the arena"
    return LedgerLine(line="runtime", bytes=footprint.lines["runtime"], formula=formula, source=source)


def _source(quantity: Quantity, undeclared: str) -> str:
    figure = quantity.declared
    if figure is None:
        return undeclared
    return f"{figure.provenance}: {figure.source}{'' if figure.verified else ', unverified'}"


def _bounds(admission: Admission, footprint: ArenaFootprint, device: Device) -> list[LedgerLine]:
    """What the device has, and what the budget allows."""
    ask, held = admission.ask, admission.budgets[footprint.arena]
    terms = terms_of(ask, device)
    share = format_utilization(terms.utilization)
    if terms.basis == "total":
        formula = f"floor(capacity x {share}) - reserve - in use"
    else:
        formula = f"all but the cache + floor((capacity - in use - reserve - all but the cache) x {share})"
    budget = held.budget_bytes
    slack = None if budget is None else budget - footprint.total_bytes
    has = None
    if held.capacity_bytes is not None and held.in_use_bytes is not None:
        has = held.capacity_bytes - held.in_use_bytes - footprint.total_bytes
    rows: list[tuple[str, int | None, str, str]] = [
        ("capacity", held.capacity_bytes, f"memory {device.default_memory}",
         _source(device.memory.capacity, "undeclared: unknown")),
        ("in use", held.in_use_bytes, "what others hold now",
         "--in-use" if any(d.in_use != 0 for d in ask.fleet.devices) else "nobody said that anything is"),
        ("reserve", terms.reserve, "kept free on every device", "the fleet's budget"),
        ("budget", budget, formula, f"utilization {share} of {terms.basis}: {_of_utilization(admission)}"),
        ("slack of the device", has, "capacity - in use - total", "what the device has"),
        ("slack", slack, "budget - total; admitted when not negative", "what the budget allows"),
    ]  # fmt: skip
    return [
        LedgerLine(line=line, bytes=nbytes, formula=words, source=source, held=False)
        for line, nbytes, words, source in rows
    ]


def _of_utilization(admission: Admission) -> str:
    ask = admission.ask
    if ask.utilization is not None:
        return "--utilization"
    return "the fleet's budget" if ask.fleet.budget.utilization == utilization_of(ask) else "policy, the default"


def ledger_document(admission: Admission, footprint: ArenaFootprint) -> list[dict[str, Any]]:
    """`ledger` of an entry of the plan's memory: {line, bytes, formula, source, terms}; null = unknown."""
    return [
        {
            "line": line.line, "bytes": line.bytes, "formula": line.formula, "source": line.source,
            **({"terms": [{"what": t.what, "formula": t.formula, "bytes": t.bytes} for t in line.terms]}
               if line.terms else {}),
        }
        for line in device_ledger(admission, footprint)
    ]  # fmt: skip
