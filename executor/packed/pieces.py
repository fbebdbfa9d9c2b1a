"""The pieces of the program text as compiled calls on a device's memory, each with its rows in ledger and trace.

`executor.packed.fused` puts them together. The ledger's rows are written by the functions that do the work: a matmul's
device is the place in which its weight lies, found by address, and a copy's row follows the bytes that it moved. Each
gives an outcome of `executor.packed.slots`. `mode`, `team` and `plain` are types and not values, see there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from executor.packed import slots
from executor.packed.jit import carray, compiled
from executor.packed.lanes import f32_pointer, i32_pointer, i64_pointer, u32_pointer
from executor.packed.rowmajor import attend_rows, embed_rows, multiply_rows, multiply_rows_in_team
from executor.packed.steps import (
    add,
    argmax,
    attend_many,
    attend_one,
    embed,
    multiply,
    multiply_in_team,
    rmsnorm,
    rope,
    store_kv,
    swiglu,
)
from executor.sampling import draw, first_largest

_WORTH_A_TEAM = 1 << 16  # multiplications below which waking threads costs more than it saves

I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]
U32 = npt.NDArray[np.uint32]


class Book(NamedTuple):
    """What a call writes beside its work. All int64, C-contiguous.

    rows: the ledger's, (capacity, 11); places: the table of arenas, (n, 4); codes: the `op` codes, (n, OP_CODES);
    trace: tables of the operations of a forward call, (TRACES, room, 5); state: see `slots`.
    """

    rows: I64
    places: I64
    codes: I64
    trace: I64
    state: I64


@compiled
def _place_of(places: I64, address: int) -> int:
    """The row of the arena that holds `address`, or -1."""
    for i in range(places.shape[0]):
        if places[i, slots.START] <= address < places[i, slots.END]:
            return i
    return -1


@compiled
def _write(book: Book, plan: I64, op: int, src: int, dst: int, layer: int, nbytes: int) -> int:
    """One row of the ledger, for the current forward call."""
    count = book.state[slots.LEDGER_ROWS]
    if count >= book.rows.shape[0]:
        return slots.LEDGER_FULL
    row = book.rows[count]
    position, n_tokens = book.state[slots.CALL_POSITION], book.state[slots.CALL_TOKENS]
    row[0], row[1], row[2], row[3] = count, plan[slots.PHASE], plan[slots.ORDER], op
    row[4], row[5], row[6], row[7] = src, dst, layer, position
    row[8], row[9], row[10] = n_tokens, nbytes, n_tokens  # a pass a position
    book.state[slots.LEDGER_ROWS] = count + 1
    return slots.DONE


@compiled
def _note(book: Book, op: int, layer: int, weight: int, first: int, second: int) -> int:
    """One row of the trace of the call under way."""
    at = book.state[slots.TRACED + slots.NOW]
    if at >= book.trace.shape[1]:
        return slots.TRACE_FULL
    row = book.trace[slots.NOW, at]
    row[0], row[1], row[2], row[3], row[4] = op, layer, weight, first, second
    book.state[slots.TRACED + slots.NOW] = at + 1
    return slots.DONE


@compiled
def _keep_trace(book: Book, wants_logits: bool) -> None:
    """The call that ended beside the first of its kind: kept where it is the first, or the first that differs."""
    counts, table = book.state[slots.TRACED :], slots.KNOWN + (1 if wants_logits else 0)
    count = counts[slots.NOW]
    if counts[table] >= 0:
        alike = counts[table] == count
        for i in range(count if alike else 0):
            for column in range(slots.TRACE_COLUMNS):
                alike = alike and book.trace[table, i, column] == book.trace[slots.NOW, i, column]
        if alike or counts[slots.ODD] >= 0:
            return
        table = slots.ODD
    for i in range(count):
        for column in range(slots.TRACE_COLUMNS):
            book.trace[table, i, column] = book.trace[slots.NOW, i, column]
    counts[table] = count


@compiled
def _matmul(
    book: Book, plan: I64, out: int, x: int, n_tokens: int, weight: int, layer: int, n: int, rows: int,
    mode: Any, team: Any, plain: Any,
) -> int:  # fmt: skip
    """out (n_tokens, rows) = x (n_tokens, n) times a weight, and its rows in ledger and trace."""
    address = plan[slots.ADDRESS_OF_WEIGHT + weight] + max(layer, 0) * plan[slots.STRIDE_OF_WEIGHT + weight]
    place = _place_of(book.places, address)
    if place < 0:
        return slots.OPERAND_OUTSIDE
    widest = plan[slots.WIDEST]
    if plain is not None:
        if team is None or rows * n * n_tokens < _WORTH_A_TEAM:
            multiply_rows(out, x, n_tokens, address, n, rows)
        else:
            multiply_rows_in_team(out, x, n_tokens, address, n, rows, team)
    elif team is None or rows * n * n_tokens < _WORTH_A_TEAM:
        multiply(out, rows * 4, x, n * 4, n_tokens, address, n * 64, n, rows, widest, mode)
    else:
        multiply_in_team(out, rows * 4, x, n * 4, n_tokens, address, n * 64, n, rows, widest, mode, team)
    status = _note(book, slots.OP_MATMUL, layer, weight, rows, n)
    if plan[slots.COUNTED] != 0:
        device = book.places[place, slots.DEVICE_CODE]
        status = max(status, _write(book, plan, book.codes[place, weight], device, device, layer, 0))
    return status


@compiled
def _rmsnorm(book: Book, plan: I64, out: int, x: int, weight: int, layer: int, n_tokens: int, mode: Any) -> int:
    address = plan[slots.ADDRESS_OF_WEIGHT + weight] + max(layer, 0) * plan[slots.STRIDE_OF_WEIGHT + weight]
    rmsnorm(out, x, address, plan[slots.DIM], n_tokens, mode)
    return _note(book, slots.OP_RMSNORM, layer, weight, plan[slots.DIM], 0)


@compiled
def _copy_ids(book: Book, plan: I64, ids: I32, first: int, count: int, up: bool) -> int:
    """Token ids up to the device's `tokens`, or the chosen one down from its `next`, and the row of the copy."""
    address = plan[slots.ADDRESS_OF_MEMORY + (slots.TOKENS if up else slots.NEXT)]
    place = _place_of(book.places, address)
    if place < 0:
        return slots.OPERAND_OUTSIDE
    there = carray(i32_pointer(address), (count,))
    for t in range(count):
        if up:
            there[t] = ids[first + t]
        else:
            ids[first + t] = there[t]
    if plan[slots.COUNTED] == 0:
        return slots.DONE
    device, host = book.places[place, slots.DEVICE_CODE], book.places[place, slots.HOST_CODE]
    if up:
        return _write(book, plan, book.codes[place, slots.OP_TOKENS], host, device, -1, count * 4)
    return _write(book, plan, book.codes[place, slots.OP_NEXT], device, host, -1, count * 4)


@compiled
def begin_call(book: Book, plan: I64, ids: I32, chosen: I32, done: int, n_tokens: int) -> int:
    """A forward call of n_tokens begins, `done` passes into the stretch: its ids go up where they are not there.

    What was drawn on the host is not there: of `chosen` the last goes up.
    """
    book.state[slots.CALL_POSITION], book.state[slots.CALL_TOKENS] = plan[slots.FIRST] + done, n_tokens
    book.state[slots.TRACED + slots.NOW] = 0
    if plan[slots.STEP_AT] != 0:
        carray(i64_pointer(plan[slots.STEP_AT]), (1,))[0] = plan[slots.FIRST] + done
    if _ids_come(plan, done):
        if plan[slots.DECODES] != 0 and done > 0:
            return _copy_ids(book, plan, chosen, done - 1, 1, True)
        return _copy_ids(book, plan, ids, done, n_tokens, True)
    return slots.DONE


@compiled
def _ids_come(plan: I64, done: int) -> bool:
    """Whether the ids of a call come from the host: in decode those that were drawn there, else only the first does,
    and where it continues none.
    """
    return plan[slots.DECODES] == 0 or plan[slots.SAMPLER] != 0 or (done == 0 and plan[slots.CONTINUES] == 0)


@compiled
def end_call(book: Book, plan: I64, chosen: I32, top1: U32, done: int, wants_logits: bool) -> int:
    """A forward call ended, `done` passes made now: the chosen id comes down, or the logits to draw one from; the
    largest logit is noted.
    """
    _keep_trace(book, wants_logits)
    book.state[slots.PASSES_MADE] = done
    if not wants_logits:
        return slots.DONE
    if plan[slots.SAMPLER] != 0:
        return _draw(book, plan, chosen, top1, done - 1)
    status = _copy_ids(book, plan, chosen, done - 1, 1, False)
    if status == slots.DONE:
        logits = carray(u32_pointer(plan[slots.ADDRESS_OF_MEMORY + slots.LOGITS]), (plan[slots.VOCAB],))
        top1[done - 1] = logits[chosen[done - 1]]
    return status


@compiled
def _draw(book: Book, plan: I64, chosen: I32, top1: U32, at: int) -> int:
    """The logits come down, their row is written, and an id is drawn from them, as entry `at` of chosen."""
    address, vocab = plan[slots.ADDRESS_OF_MEMORY + slots.LOGITS], plan[slots.VOCAB]
    place = _place_of(book.places, address)
    if place < 0:
        return slots.OPERAND_OUTSIDE
    table = carray(i64_pointer(plan[slots.SAMPLER]), (4,))
    there, here = carray(f32_pointer(address), (vocab,)), carray(f32_pointer(table[1]), (vocab,))
    for i in range(vocab):
        here[i] = there[i]
    status = slots.DONE
    if plan[slots.COUNTED] != 0:
        device, host = book.places[place, slots.DEVICE_CODE], book.places[place, slots.HOST_CODE]
        status = _write(book, plan, book.codes[place, slots.OP_LOGITS], device, host, -1, vocab * 4)
    top1[at] = carray(u32_pointer(table[1]), (vocab,))[first_largest(here)]
    order, settings = carray(i32_pointer(table[2]), (vocab,)), carray(f32_pointer(table[3]), (2,))
    chosen[at] = draw(here, order, settings, table[:1])
    return status


@compiled
def embed_tokens(book: Book, plan: I64, done: int, plain: Any) -> int:
    """x of the tokens of the call."""
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    tokens = m[slots.TOKENS] if _ids_come(plan, done) else m[slots.NEXT]
    table, n_tokens = plan[slots.ADDRESS_OF_WEIGHT + slots.EMBEDDING], book.state[slots.CALL_TOKENS]
    if plain is not None:
        outside = embed_rows(m[slots.X], table, plan[slots.DIM], plan[slots.VOCAB], tokens, n_tokens)
    else:
        outside = embed(m[slots.X], table, plan[slots.DIM], plan[slots.VOCAB], tokens, n_tokens)
    if outside >= 0:
        return slots.TOKEN_OUTSIDE
    return _note(book, slots.OP_EMBED, -1, slots.EMBEDDING, plan[slots.VOCAB], plan[slots.DIM])


@compiled
def normalise(book: Book, plan: I64, weight: int, layer: int, mode: Any) -> int:
    """xb = the norm of x, by RMS_ATT or RMS_FFN."""
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    return _rmsnorm(book, plan, m[slots.XB], m[slots.X], weight, layer, book.state[slots.CALL_TOKENS], mode)


@compiled
def _row_of(book: Book, plan: I64, weight: int, layer: int, plain: Any) -> Any:
    """Where a projection goes: the row of q, k or v; of a plain cache, k and v are computed in their own place."""
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    if weight == slots.WQ:
        return m[slots.Q]
    if plain is None:
        return m[slots.K] if weight == slots.WK else m[slots.V]
    kv_bytes = plan[slots.KV_HEADS] * plan[slots.HEAD_DIM] * 4
    offset = book.state[slots.CALL_POSITION] * kv_bytes
    if weight == slots.WK:
        return m[slots.K_CACHE] + layer * plan[slots.K_STRIDE] + offset
    return m[slots.V_CACHE] + layer * plan[slots.V_STRIDE] + offset


@compiled
def project(book: Book, plan: I64, weight: int, layer: int, mode: Any, team: Any, plain: Any) -> int:
    """The rows of q, k or v (weight WQ, WK or WV) from xb."""
    x, n_tokens = plan[slots.ADDRESS_OF_MEMORY + slots.XB], book.state[slots.CALL_TOKENS]
    rows = plan[slots.DIM] if weight == slots.WQ else plan[slots.KV_HEADS] * plan[slots.HEAD_DIM]
    out = _row_of(book, plan, weight, layer, plain)
    return _matmul(book, plan, out, x, n_tokens, weight, layer, plan[slots.DIM], rows, mode, team, plain)


@compiled
def attend(book: Book, plan: I64, layer: int, mode: Any, team: Any, plain: Any) -> int:
    """From q, k and v to x + attention: the rotation, the caches at the positions of the call, the way out by wo."""
    dim, head_dim, kv_dim = plan[slots.DIM], plan[slots.HEAD_DIM], plan[slots.KV_HEADS] * plan[slots.HEAD_DIM]
    position, n_tokens = book.state[slots.CALL_POSITION], book.state[slots.CALL_TOKENS]
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    k_layer, v_layer = m[slots.K_CACHE] + layer * plan[slots.K_STRIDE], m[slots.V_CACHE] + layer * plan[slots.V_STRIDE]
    k = _row_of(book, plan, slots.WK, layer, plain)
    rope(m[slots.Q], dim, n_tokens, m[slots.ROPE_COS], m[slots.ROPE_SIN], position, head_dim)
    rope(k, kv_dim, n_tokens, m[slots.ROPE_COS], m[slots.ROPE_SIN], position, head_dim)
    status = _note(book, slots.OP_ROPE, layer, slots.NO_WEIGHT, dim, kv_dim)
    positions, n_heads, n_kv_heads = plan[slots.POSITIONS], plan[slots.HEADS], plan[slots.KV_HEADS]
    out, q, att, own_exp = m[slots.XB], m[slots.Q], m[slots.ATT], plan[slots.OWN_EXP]
    if plain is not None:
        attend_rows(out, q, k_layer, v_layer, att, position, n_tokens, positions, n_heads, n_kv_heads, head_dim)
    else:
        store_kv(k, m[slots.V], k_layer, v_layer, position, n_tokens, positions, n_kv_heads, head_dim)
        if n_tokens == 1:
            n = position + 1
            attend_one(out, q, k_layer, v_layer, att, n, positions, n_heads, n_kv_heads, head_dim, mode, own_exp)
        else:
            attend_many(
                out, q, k_layer, v_layer, att, position, n_tokens, positions, n_heads, n_kv_heads, head_dim, mode,
                own_exp,
            )  # fmt: skip
    status = max(status, _note(book, slots.OP_ATTENTION, layer, slots.NO_WEIGHT, dim, kv_dim))
    status = max(
        status, _matmul(book, plan, m[slots.XB2], m[slots.XB], n_tokens, slots.WO, layer, dim, dim, mode, team, plain)
    )
    add(m[slots.X], m[slots.XB2], n_tokens * dim)
    return max(status, _note(book, slots.OP_ADD, layer, slots.NO_WEIGHT, dim, 0))


@compiled
def feed_forward(book: Book, plan: I64, layer: int, mode: Any, team: Any, plain: Any) -> int:
    """From x to x + w2 (silu(w1 x) * w3 x)."""
    dim, hidden, n_tokens = plan[slots.DIM], plan[slots.HIDDEN], book.state[slots.CALL_TOKENS]
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    status = normalise(book, plan, slots.RMS_FFN, layer, mode)
    status = max(
        status, _matmul(book, plan, m[slots.HB], m[slots.XB], n_tokens, slots.W1, layer, dim, hidden, mode, team, plain)
    )
    status = max(
        status,
        _matmul(book, plan, m[slots.HB2], m[slots.XB], n_tokens, slots.W3, layer, dim, hidden, mode, team, plain),
    )
    swiglu(m[slots.HB], m[slots.HB2], n_tokens * hidden, mode, plan[slots.OWN_EXP])
    status = max(status, _note(book, slots.OP_SWIGLU, layer, slots.NO_WEIGHT, hidden, 0))
    status = max(
        status,
        _matmul(book, plan, m[slots.XB2], m[slots.HB], n_tokens, slots.W2, layer, hidden, dim, mode, team, plain),
    )
    add(m[slots.X], m[slots.XB2], n_tokens * dim)
    return max(status, _note(book, slots.OP_ADD, layer, slots.NO_WEIGHT, dim, 0))


@compiled
def choose(book: Book, plan: I64, mode: Any, team: Any, plain: Any) -> int:
    """The logits of the call's last token, and the id of the first largest one in `next`."""
    dim, vocab, n_tokens = plan[slots.DIM], plan[slots.VOCAB], book.state[slots.CALL_TOKENS]
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    x = m[slots.X] + (n_tokens - 1) * dim * 4
    status = _rmsnorm(book, plan, x, x, slots.RMS_FINAL, -1, 1, mode)
    status = max(
        status, _matmul(book, plan, m[slots.LOGITS], x, 1, slots.CLASSIFIER, -1, dim, vocab, mode, team, plain)
    )
    carray(i32_pointer(m[slots.NEXT]), (1,))[0] = argmax(m[slots.LOGITS], vocab)
    return max(status, _note(book, slots.OP_ARGMAX, -1, slots.NO_WEIGHT, vocab, 0))
