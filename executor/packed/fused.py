"""One compiled call a phase: the program text of `executor.transformer` on a device's memory, with its ledger.

The ledger's rows are written by the functions that do the work: a matmul's device is the arena in which its weight
lies, found by address, and a copy's row follows the bytes that it moved. A full ledger ends the call with an outcome of
its own. `plain`, like `mode` a type and not a value, chooses the layout: None for packed16, True for plain memory, in
which k and v are computed in the cache itself. Known limits: f32, batch 1, greedy; threads share packed matmuls only;
the layout plain has no fast mode; q_dim equals dim.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from executor.packed import slots
from executor.packed.jit import carray, compiled
from executor.packed.lanes import i32_pointer, i64_pointer, u32_pointer
from executor.packed.rowmajor import attend_rows, embed_rows, multiply_rows
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
        multiply_rows(out, x, n_tokens, address, n, rows)
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
def _attention_half(book: Book, plan: I64, layer: int, mode: Any, team: Any, plain: Any) -> int:
    """From x to x + attention; fills the caches at the positions of the call."""
    dim, head_dim, kv_dim = plan[slots.DIM], plan[slots.HEAD_DIM], plan[slots.KV_HEADS] * plan[slots.HEAD_DIM]
    position, n_tokens = book.state[slots.CALL_POSITION], book.state[slots.CALL_TOKENS]
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    k_layer, v_layer = m[slots.K_CACHE] + layer * plan[slots.K_STRIDE], m[slots.V_CACHE] + layer * plan[slots.V_STRIDE]
    k, v = m[slots.K], m[slots.V]
    if plain is not None:
        k, v = k_layer + position * kv_dim * 4, v_layer + position * kv_dim * 4
    status = _rmsnorm(book, plan, m[slots.XB], m[slots.X], slots.RMS_ATT, layer, n_tokens, mode)
    status = max(
        status, _matmul(book, plan, m[slots.Q], m[slots.XB], n_tokens, slots.WQ, layer, dim, dim, mode, team, plain)
    )
    status = max(status, _matmul(book, plan, k, m[slots.XB], n_tokens, slots.WK, layer, dim, kv_dim, mode, team, plain))
    status = max(status, _matmul(book, plan, v, m[slots.XB], n_tokens, slots.WV, layer, dim, kv_dim, mode, team, plain))
    rope(m[slots.Q], dim, n_tokens, m[slots.ROPE_COS], m[slots.ROPE_SIN], position, head_dim)
    rope(k, kv_dim, n_tokens, m[slots.ROPE_COS], m[slots.ROPE_SIN], position, head_dim)
    status = max(status, _note(book, slots.OP_ROPE, layer, slots.NO_WEIGHT, dim, kv_dim))
    positions, n_heads, n_kv_heads = plan[slots.POSITIONS], plan[slots.HEADS], plan[slots.KV_HEADS]
    out, q, att = m[slots.XB], m[slots.Q], m[slots.ATT]
    if plain is not None:
        attend_rows(out, q, k_layer, v_layer, att, position, n_tokens, positions, n_heads, n_kv_heads, head_dim)
    else:
        store_kv(k, v, k_layer, v_layer, position, n_tokens, positions, n_kv_heads, head_dim)
        if n_tokens == 1:
            attend_one(out, q, k_layer, v_layer, att, position + 1, positions, n_heads, n_kv_heads, head_dim, mode)
        else:
            attend_many(
                out, q, k_layer, v_layer, att, position, n_tokens, positions, n_heads, n_kv_heads, head_dim, mode
            )
    status = max(status, _note(book, slots.OP_ATTENTION, layer, slots.NO_WEIGHT, dim, kv_dim))
    status = max(
        status, _matmul(book, plan, m[slots.XB2], m[slots.XB], n_tokens, slots.WO, layer, dim, dim, mode, team, plain)
    )
    add(m[slots.X], m[slots.XB2], n_tokens * dim)
    return max(status, _note(book, slots.OP_ADD, layer, slots.NO_WEIGHT, dim, 0))


@compiled
def _feed_forward_half(book: Book, plan: I64, layer: int, mode: Any, team: Any, plain: Any) -> int:
    """From x to x + w2 (silu(w1 x) * w3 x)."""
    dim, hidden, n_tokens = plan[slots.DIM], plan[slots.HIDDEN], book.state[slots.CALL_TOKENS]
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    status = _rmsnorm(book, plan, m[slots.XB], m[slots.X], slots.RMS_FFN, layer, n_tokens, mode)
    status = max(
        status, _matmul(book, plan, m[slots.HB], m[slots.XB], n_tokens, slots.W1, layer, dim, hidden, mode, team, plain)
    )
    status = max(
        status,
        _matmul(book, plan, m[slots.HB2], m[slots.XB], n_tokens, slots.W3, layer, dim, hidden, mode, team, plain),
    )
    swiglu(m[slots.HB], m[slots.HB2], n_tokens * hidden, mode)
    status = max(status, _note(book, slots.OP_SWIGLU, layer, slots.NO_WEIGHT, hidden, 0))
    status = max(
        status,
        _matmul(book, plan, m[slots.XB2], m[slots.HB], n_tokens, slots.W2, layer, hidden, dim, mode, team, plain),
    )
    add(m[slots.X], m[slots.XB2], n_tokens * dim)
    return max(status, _note(book, slots.OP_ADD, layer, slots.NO_WEIGHT, dim, 0))


@compiled
def _choose(book: Book, plan: I64, mode: Any, team: Any, plain: Any) -> int:
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


@compiled
def _forward(book: Book, plan: I64, tokens: int, wants_logits: bool, mode: Any, team: Any, plain: Any) -> int:
    """One forward call: `state` says from which position on and how many tokens; their ids lie at address `tokens`."""
    m = plan[slots.ADDRESS_OF_MEMORY : slots.ADDRESS_OF_WEIGHT]
    table, n_tokens = plan[slots.ADDRESS_OF_WEIGHT + slots.EMBEDDING], book.state[slots.CALL_TOKENS]
    if plain is not None:
        outside = embed_rows(m[slots.X], table, plan[slots.DIM], plan[slots.VOCAB], tokens, n_tokens)
    else:
        outside = embed(m[slots.X], table, plan[slots.DIM], plan[slots.VOCAB], tokens, n_tokens)
    if outside >= 0:
        return slots.TOKEN_OUTSIDE
    status = _note(book, slots.OP_EMBED, -1, slots.EMBEDDING, plan[slots.VOCAB], plan[slots.DIM])
    for layer in range(plan[slots.LAYERS]):
        status = max(status, _attention_half(book, plan, layer, mode, team, plain))
        status = max(status, _feed_forward_half(book, plan, layer, mode, team, plain))
        if status != slots.DONE:
            return status
    if wants_logits:
        status = max(status, _choose(book, plan, mode, team, plain))
    return status


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
def run_phase(plan: I64, book: Book, ids: I32, chosen: I32, top1: U32, mode: Any, team: Any, plain: Any) -> int:
    """All forward calls of a phase; gives an outcome of `slots`, and in `book.state` how far it came.

    Prefill: `ids` are the tokens of its passes, `chunk` of them a call; logits come from the last call where they are
    wanted. Decode: `ids` is the one token to begin with, each next one is what was chosen last; it ends after BOS.
    chosen, top1: (passes,) the ids chosen on the way and the bits of their logits; a pass that computes none leaves its
    entry alone. Every call is traced, see `slots`. team: None for one thread, else how many share the rows of a matmul.
    """
    decodes, passes = plan[slots.DECODES] != 0, plan[slots.PASSES]
    done = 0
    while done < passes:
        n_tokens = 1 if decodes else min(plan[slots.CHUNK], passes - done)
        last = done + n_tokens == passes
        wants_logits = decodes or (last and plan[slots.WANTS_LOGITS] != 0)
        book.state[slots.CALL_POSITION], book.state[slots.CALL_TOKENS] = plan[slots.FIRST] + done, n_tokens
        book.state[slots.TRACED + slots.NOW] = 0
        if plan[slots.STEP_AT] != 0:
            carray(i64_pointer(plan[slots.STEP_AT]), (1,))[0] = plan[slots.FIRST] + done
        status, tokens = slots.DONE, plan[slots.ADDRESS_OF_MEMORY + slots.NEXT]
        if not decodes or (done == 0 and plan[slots.CONTINUES] == 0):
            tokens = plan[slots.ADDRESS_OF_MEMORY + slots.TOKENS]
            status = _copy_ids(book, plan, ids, done, n_tokens, True)
        if status == slots.DONE:
            status = _forward(book, plan, tokens, wants_logits, mode, team, plain)
        if status != slots.DONE:
            return status
        _keep_trace(book, wants_logits)
        done += n_tokens
        book.state[slots.PASSES_MADE] = done
        if wants_logits:
            status = _copy_ids(book, plan, chosen, done - 1, 1, False)
            if status != slots.DONE:
                return status
            logits = carray(u32_pointer(plan[slots.ADDRESS_OF_MEMORY + slots.LOGITS]), (plan[slots.VOCAB],))
            top1[done - 1] = logits[chosen[done - 1]]
            if decodes and chosen[done - 1] == slots.BOS:
                break
    return slots.DONE
