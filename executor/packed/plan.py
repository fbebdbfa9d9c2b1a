"""From a model and the addresses of its buffers to the plan of one compiled call, and back from its outcome and trace.

Which buffers a phase needs, and how large each is, is said here too: `memory_of` is what an arena must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from executor.packed import slots
from executor.packed.layout import KV_TENSORS, LAYOUT, WORD_BYTES, packed_kv, packed_weight
from fleet.errors import BackendError, DeviceMismatchError, LedgerOverflowError
from fleet.model import Model, TensorSpec

I64 = npt.NDArray[np.int64]
Entry = tuple[str, int, str, tuple[int, ...]]

_PHASES = {"prefill": 1, "decode": 3}
_CACHED_BYTES = 16 << 20  # weights up to this size stay in a processor's cache from token to token
_PAGED_ONLY = ("act/k", "act/v")
_ENTRIES_OF_A_LAYER, _OTHER_ENTRIES = 14, 4


@dataclass(frozen=True, slots=True)
class Memory:
    """One buffer: its name in the arena, the shape that it has there, its type and layout. `rows`: see `padding`."""

    name: str
    shape: tuple[int, ...]
    dtype: Literal["fp32", "int32"]
    layout: str = "plain"
    rows: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One phase: `passes` forward passes from position `first` on, `chunk` of them a call (decode: 1).

    `order` is the index into the orders' steps, `positions` the extent of the cache. `continues`: decode goes on from
    the id that it chose last. `layout`: how weights and caches lie. `step_at`: address of an int64 that is told the
    number of each pass, or 0. `sampler`: the address of the host's table to draw ids by, or 0. `counted` False
    writes no ledger: only a benchmark of the ledger's cost may ask for that.
    """

    phase: Literal["prefill", "decode"]
    order: int
    first: int
    passes: int
    positions: int
    chunk: int = 1
    wants_logits: bool = True
    continues: bool = False
    layout: str = LAYOUT
    step_at: int = 0
    sampler: int = 0
    counted: bool = True


def memory_of(model: Model, phases: tuple[str, ...], positions: int, chunk: int) -> Iterator[Memory]:
    """The buffers of a device that runs `phases`: packed weights, paged K/V, rows of `chunk` tokens, tables."""
    for spec in model.tensors:
        if spec.role == "unread":
            continue
        packed = packed_weight(spec.shape) if spec.role != "norm" else None
        if packed is None:
            yield Memory(f"weights/{spec.name}", spec.shape, "fp32")
        else:
            yield Memory(f"weights/{spec.name}", packed.shape, "fp32", LAYOUT, packed.rows)
    for phase in phases:
        for tensor in KV_TENSORS:
            cache = packed_kv(tensor, model.n_layers, positions, model.n_kv_heads, model.head_dim)
            yield Memory(f"kv/{phase}/{tensor}", cache.shape, "fp32", LAYOUT, cache.rows)
    widths = {"k": model.kv_dim, "v": model.kv_dim, "hb": model.hidden_dim, "hb2": model.hidden_dim}
    for name in slots.ROWS:
        yield Memory(f"act/{name}", (chunk, widths.get(name, model.dim)), "fp32")
    yield Memory("act/att", (model.n_heads, positions), "fp32")
    yield Memory("act/logits", (model.vocab_size,), "fp32")
    yield Memory("act/tokens", (chunk,), "int32")
    yield Memory("act/next", (1,), "int32")
    for name in ("rope_cos", "rope_sin"):
        yield Memory(f"work/{name}", (positions, model.head_dim // 2), "fp32")


def make_plan(model: Model, call: Call, address_of: Callable[[str], int]) -> I64:
    """The plan of a call. `address_of` gives the address of a buffer of `memory_of` by its name.

    BackendError when the call does not fit: positions beyond the cache, no pass, or a model that is not llama2.c's.
    """
    if model.q_dim != model.dim or model.head_dim % 2 or model.n_heads % model.n_kv_heads:
        raise BackendError(f"{model.name}: heads of {model.head_dim} do not make up {model.dim}; not a llama2.c shape")
    if call.passes < 1 or call.first < 0 or call.chunk < 1 or call.first + call.passes > call.positions:
        raise BackendError(
            f"{call.phase}: {call.passes} passes from position {call.first} on, {call.chunk} a call, do not fit into "
            f"{call.positions} positions"
        )
    plan = np.zeros(slots.PLAN_LENGTH, np.int64)
    plan[: slots.DIM] = (
        _PHASES[call.phase], call.order, call.first, call.passes, call.chunk, call.phase == "decode",
        call.wants_logits, call.counted,
    )  # fmt: skip
    plan[slots.DIM : slots.K_STRIDE] = (
        model.dim, model.hidden_dim, model.n_layers, model.n_heads, model.n_kv_heads, model.head_dim, model.vocab_size,
        call.positions,
    )  # fmt: skip
    for tensor, stride in zip(KV_TENSORS, (slots.K_STRIDE, slots.V_STRIDE), strict=True):
        cache = packed_kv(tensor, model.n_layers, call.positions, model.n_kv_heads, model.head_dim)
        packed = call.layout == LAYOUT
        plan[stride] = cache.nbytes // model.n_layers if packed else call.positions * model.kv_dim * WORD_BYTES
    plan[slots.CONTINUES], plan[slots.STEP_AT], plan[slots.SAMPLER] = call.continues, call.step_at, call.sampler
    plan[slots.OWN_EXP] = _own_exp()
    plan[slots.WIDEST] = 4 if _weight_bytes(model) <= _CACHED_BYTES else 1
    for slot, name in enumerate(_memory_names(call.phase)):
        if call.layout == LAYOUT or name not in _PAGED_ONLY:
            plan[slots.ADDRESS_OF_MEMORY + slot] = address_of(name)
    shapes = {spec.name: spec for spec in model.tensors}
    for slot, name in enumerate(weight_names(model)):
        plan[slots.ADDRESS_OF_WEIGHT + slot] = address_of(f"weights/{name}")
        plan[slots.STRIDE_OF_WEIGHT + slot] = _stride(shapes[name], call.layout)
    return plan


@cache
def _own_exp() -> int:
    """Compared once a process. Imports numba only here: who asks what memory a phase needs does not wait for it."""
    from executor.packed.steps import own_exp_agrees

    return own_exp_agrees()


def _stride(spec: TensorSpec, layout: str) -> int:
    """Bytes from one layer of a weight to the next."""
    packed = packed_weight(spec.shape) if spec.role != "norm" else None
    if packed is None:
        return spec.shape[-1] * WORD_BYTES
    return packed.matrix_bytes if layout == LAYOUT else packed.rows * packed.n * WORD_BYTES


def weight_names(model: Model) -> tuple[str, ...]:
    """The tensors of the checkpoint in the order of `slots.WEIGHTS`."""
    return (*slots.WEIGHTS[:-1], model.classifier_name)


def op_order(model: Model, wants_logits: bool) -> list[tuple[int, str, str]]:
    """(slot, tensor, kind) of the ledger's ops in the order in which a phase first writes them.

    `slot` is the column of `Book.codes`; kind is `h2d`, `matmul` or `d2h`.
    """
    names = weight_names(model)
    matmuls = [slots.WQ, slots.WK, slots.WV, slots.WO, slots.W1, slots.W3, slots.W2]
    if wants_logits:
        matmuls.append(slots.CLASSIFIER)
    order = [(slots.OP_TOKENS, "tokens", "h2d"), *((slot, names[slot], "matmul") for slot in matmuls)]
    return [*order, (slots.OP_NEXT, "next_token", "d2h")] if wants_logits else order


def trace_room(model: Model) -> int:
    """Rows that a trace of one forward call can take."""
    return _ENTRIES_OF_A_LAYER * model.n_layers + _OTHER_ENTRIES


def new_state(ledger_rows: int = 0) -> I64:
    """The state of a call; `ledger_rows` of the ledger are written already."""
    state = np.zeros(slots.STATE_LENGTH, np.int64)
    state[slots.TRACED :] = -1
    state[slots.LEDGER_ROWS] = ledger_rows
    return state


def check_outcome(outcome: int, plan: I64, state: I64) -> None:
    """Raise what an outcome of `run_phase` stands for; nothing when it is done."""
    position, rows = int(state[slots.CALL_POSITION]), int(state[slots.LEDGER_ROWS])
    if outcome == slots.LEDGER_FULL:
        raise LedgerOverflowError(f"the ledger holds {rows:,} rows and a further event came; make it larger")
    if outcome == slots.TOKEN_OUTSIDE:
        raise BackendError(
            f"embed: a token id of the call at position {position} is not below {plan[slots.VOCAB]}, the vocabulary"
        )
    if outcome == slots.OPERAND_OUTSIDE:
        raise DeviceMismatchError(f"an operand of the call at position {position} lies in no arena")
    if outcome != slots.DONE:
        raise BackendError(f"the call at position {position} ended with outcome {outcome}")


def new_trace(model: Model) -> I64:
    """Room for the traces of a phase."""
    return np.zeros((slots.TRACES, trace_room(model), slots.TRACE_COLUMNS), np.int64)


def entries(trace: I64, state: I64, table: int, model: Model) -> list[Entry] | None:
    """The operations of a table of the trace as the program text's own record words them: (op, layer, tensor, shape).

    None where no call was kept in it.
    """
    names, count = weight_names(model), int(state[slots.TRACED + table])
    return None if count < 0 else [_entry(row, names) for row in trace[table, :count].tolist()]


def _entry(row: list[Any], names: tuple[str, ...]) -> Entry:
    op, layer, weight, first, second = row
    shape = (first, second) if second else (first,)
    return slots.TRACE_OPS[op], layer, "" if weight == slots.NO_WEIGHT else names[weight], shape


def _weight_bytes(model: Model) -> int:
    return sum(spec.nbytes for spec in model.tensors if spec.role != "unread")


def _memory_names(phase: str) -> list[str]:
    work = {"rope_cos": "work/rope_cos", "rope_sin": "work/rope_sin"}
    caches = {"k_cache": f"kv/{phase}/k", "v_cache": f"kv/{phase}/v"}
    return [work.get(name) or caches.get(name) or f"act/{name}" for name in slots.MEMORY]
