"""One compiled call a phase: the program text of `executor.transformer` on a device's memory, with its ledger.

`mode`, `team` and `plain` are types and not values, so that each is a specialisation of its own. mode: STRICT or FAST
of `executor.packed.lanes`. team: None for one thread, else how many share the rows of a matmul. plain: None for the
layout packed16, True for plain memory, in which k and v are computed in the cache itself.

A full ledger ends the call with an outcome of its own. Known limits: f32, batch 1; the layout plain has no
fast mode; q_dim equals dim.
"""

from __future__ import annotations

from typing import Any

from executor.packed import slots
from executor.packed.jit import compiled
from executor.packed.pieces import (
    I32,
    I64,
    U32,
    Book,
    attend,
    begin_call,
    choose,
    embed_tokens,
    end_call,
    feed_forward,
    normalise,
    project,
)

__all__ = ["Book", "run_phase"]


@compiled
def _forward(book: Book, plan: I64, done: int, wants_logits: bool, mode: Any, team: Any, plain: Any) -> int:
    """One forward call, top to bottom in the order of the computation."""
    status = embed_tokens(book, plan, done, plain)
    if status != slots.DONE:
        return status
    for layer in range(plan[slots.LAYERS]):
        status = max(status, normalise(book, plan, slots.RMS_ATT, layer, mode))
        status = max(status, project(book, plan, slots.WQ, layer, mode, team, plain))
        status = max(status, project(book, plan, slots.WK, layer, mode, team, plain))
        status = max(status, project(book, plan, slots.WV, layer, mode, team, plain))
        status = max(status, attend(book, plan, layer, mode, team, plain))
        status = max(status, feed_forward(book, plan, layer, mode, team, plain))
        if status != slots.DONE:
            return status
    if wants_logits:
        status = choose(book, plan, mode, team, plain)
    return status


@compiled
def run_phase(plan: I64, book: Book, ids: I32, chosen: I32, top1: U32, mode: Any, team: Any, plain: Any) -> int:
    """All forward calls of a phase; gives an outcome of `slots`, and in `book.state` how far it came.

    Prefill: `ids` are the tokens of its passes, `chunk` of them a call; logits come from the last call where they are
    wanted. Decode: `ids` is the one token to begin with, each next one is what was chosen last; it ends after BOS. The
    first largest logit is chosen on the device, or, where the plan has a sampler, an id is drawn on the host.
    chosen, top1: (passes,) the ids chosen on the way and the bits of their logits; a pass that computes none leaves its
    entry alone. Every call is traced, see `slots`.
    """
    decodes, passes = plan[slots.DECODES] != 0, plan[slots.PASSES]
    done = 0
    while done < passes:
        n_tokens = 1 if decodes else min(plan[slots.CHUNK], passes - done)
        wants_logits = decodes or (done + n_tokens == passes and plan[slots.WANTS_LOGITS] != 0)
        status = begin_call(book, plan, ids, chosen, done, n_tokens)
        if status == slots.DONE:
            status = _forward(book, plan, done, wants_logits, mode, team, plain)
        done += n_tokens
        if status == slots.DONE:
            status = end_call(book, plan, chosen, top1, done, wants_logits)
        if status != slots.DONE:
            return status
        if decodes and chosen[done - 1] == slots.BOS:
            break
    return slots.DONE
