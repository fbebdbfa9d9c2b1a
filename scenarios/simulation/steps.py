"""Kernels: what a worker does at a boundary: who joins, who loses its blocks, what the next steps compute, what ends.

Order at a boundary, as in vLLM's scheduler: requests whose cache has come join; every running request gets the block of
its next token, for which the last admitted ones lose theirs and start again; then, if none did, those are taken back,
blocks are kept for handoffs, and new prompts are admitted. Decoding tokens come first in the budget, prompts get what
is left, in the order of admission.
"""

from __future__ import annotations

from typing import Any

from scenarios.simulation.blocks import admit_blocks, ceil, held, hold, make_room, release, room, share_prefix, take
from scenarios.simulation.columns import (
    ARRIVED,
    BUSY,
    CHUNK,
    COMPUTED,
    DB,
    DECODE,
    DECODING,
    DONE,
    DW,
    EARLY,
    FINISHED,
    GEN,
    HELD,
    HITS,
    IN_SYSTEM,
    JA,
    JINC,
    JK,
    JR,
    JS,
    JX,
    KV,
    MOVING,
    N_ITL,
    N_WAKE,
    NEWCOMERS,
    NREQ,
    NRUN,
    OUSTED,
    OUSTINGS,
    PEAK,
    PREEMPTED,
    PREFILL,
    PREFILLING,
    READY,
    RECOMPUTING,
    RESERVING,
    RETURNING,
    RUNNING,
    SEEN,
    ST,
    STEPS,
    TADM,
    TDONE,
    TFIRST,
    TGT,
    TLAST,
    TLAYER,
    TOKENS,
    TPEND,
)  # fmt: skip
from scenarios.simulation.handoffs import reserve, seek_decode
from scenarios.simulation.jit import inner
from scenarios.simulation.queues import append, drop, pop, push_front
from scenarios.simulation.series import note, note_at
from scenarios.simulation.stretch import begin, boundary, longest, scaled, step_at, step_cost, upload_cost
from scenarios.simulation.windows import look


def _enter(s: Any, w: int, r: int, state: int) -> None:
    s.R[r, ST] = state
    s.run[w, s.V[w, NRUN]] = r
    s.V[w, NRUN] += 1
    note(s, w, RUNNING, 1)


enter = inner(_enter)


def _admit_arrived(c: Any, s: Any, w: int) -> None:
    while s.qlen[ARRIVED, w] > 0 and s.V[w, NRUN] < c.max_seqs[w]:
        r = pop(s, ARRIVED, w)
        s.R[r, CHUNK] = 1  # its first id comes from the host
        enter(s, w, r, DECODING)


admit_arrived = inner(_admit_arrived)


def _oust(c: Any, s: Any, w: int) -> int:
    """The last admitted request loses its blocks; what it had computed is computed again."""
    s.V[w, NRUN] -= 1
    note(s, w, RUNNING, -1)
    r = s.run[w, s.V[w, NRUN]]
    release(c, s, w, r)
    s.R[r, ST] = OUSTED
    s.R[r, PREEMPTED] += 1
    s.V[w, OUSTINGS] += 1
    push_front(s, RETURNING, w, r)
    return int(r)


oust = inner(_oust)


def _grow(c: Any, s: Any, w: int) -> int:
    """The block of the next token for every decoding request; how many were ousted for it."""
    i = ousted = 0
    while i < s.V[w, NRUN]:
        r = s.run[w, i]
        more = hold(c, w, s.R[r, KV] + 1) - held(c, s, r) if s.R[r, ST] == DECODING else 0
        if more > 0:
            kept = True
            while kept and room(c, s, w) < more:
                kept = oust(c, s, w) != r
                ousted += 1
            if kept:
                make_room(c, s, w, more)
                take(c, s, w, more)
                s.R[r, DB] += more
        i += 1
    return ousted


grow = inner(_grow)


def _budget_left(c: Any, s: Any, w: int) -> int:
    left = c.budget[w]
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        left -= 1 if s.R[r, ST] == DECODING else s.R[r, TGT] - s.R[r, DONE]
    return int(left)


budget_left = inner(_budget_left)


def _admit_prompts(c: Any, s: Any, w: int, queue: int, time: int) -> None:
    """Prompts to compute, first come first served, while slots, blocks and tokens of the step are left."""
    left = budget_left(c, s, w)
    while s.qlen[queue, w] > 0 and s.V[w, NRUN] < c.max_seqs[w] and left > 0:
        r = s.qhead[queue, w]
        target = c.prompt[r] + s.R[r, GEN]
        found = admit_blocks(c, s, w, r, target)
        if found < 0:
            break
        pop(s, queue, w)
        s.V[w, HITS] += found
        if c.role[w] == PREFILL:
            s.V[w, TOKENS] -= found
        if s.R[r, TADM] < 0:
            s.R[r, TADM] = time
        s.R[r, DONE], s.R[r, TGT] = found, target
        left -= target - found
        enter(s, w, r, PREFILLING if c.role[w] == PREFILL else RECOMPUTING)


admit_prompts = inner(_admit_prompts)


def _hand_over_early(c: Any, s: Any, w: int, time: int) -> None:
    """Layer by layer: prompts that this step ends look for a decode worker as it begins."""
    end = boundary(c, s, w, 1)
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        if s.R[r, DONE] + s.R[r, CHUNK] == s.R[r, TGT] and c.out[r] > 1:
            s.R[r, EARLY] = 1
            s.R[r, TPEND] = end
            s.R[r, TLAYER] = time + ceil(end - time, c.layers)
            seek_decode(c, s, r, time)


hand_over_early = inner(_hand_over_early)


def _build(c: Any, s: Any, w: int, time: int, rest: int, single: bool) -> None:
    """The next step, or stretch of steps unless `single`; nothing where nobody runs."""
    if s.V[w, NRUN] == 0:
        s.V[w, JR] = 0
        drop(s, len(c.arrival) + w)
        return
    running = tokens = logits = pairs = read = decoding = first_ids = sequences = 0
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        if s.R[r, ST] == DECODING:
            running += 1
            decoding += s.R[r, KV] + 1
            first_ids += s.R[r, CHUNK]
    left, chunks = c.budget[w] - running, 0
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        if s.R[r, ST] != DECODING:
            done = s.R[r, DONE]
            n = max(0, min(s.R[r, TGT] - done, left))
            s.R[r, CHUNK] = n
            left -= n
            tokens += n
            pairs += n * done + n * (n + 1) // 2
            read += done + n if n > 0 else 0
            logits += done + n == s.R[r, TGT]
            sequences += n > 0
            chunks += 1
    look(c, s, w)
    step = step_cost(c, s, w, tokens + running, logits + running, sequences + running, pairs, read, decoding)
    s.V[w, JS], s.V[w, JR], s.V[w, JA], s.V[w, JINC] = time, rest, step, 0
    steps = longest(c, s, w, decoding) if chunks == 0 and not single else 1
    begin(c, s, w, steps, step, upload_cost(c, w, tokens + first_ids))
    if c.layers > 0 and c.role[w] == PREFILL:
        hand_over_early(c, s, w, time)


build = inner(_build)


def _schedule(c: Any, s: Any, w: int, time: int, rest: int) -> None:
    """A worker that is up and at a boundary, `rest` units of 1/Q ps after `time`."""
    ousted = 0
    if c.role[w] & DECODE:
        admit_arrived(c, s, w)
        ousted = grow(c, s, w)
        if ousted == 0 or s.V[w, NRUN] == 0:
            admit_prompts(c, s, w, RETURNING, time)
        if c.role[w] == DECODE:
            reserve(c, s, w, time)
    if c.role[w] & PREFILL and s.qlen[RETURNING, w] == 0 and ousted == 0:
        admit_prompts(c, s, w, NEWCOMERS, time)
    # Who was not looked at beside those ousted is looked at when one step is made.
    build(c, s, w, time, rest, ousted > 0)


schedule = inner(_schedule)


def _gap(s: Any, first: int, growth: int, steps: int, tokens: int, q: int) -> None:
    """Notes gaps between tokens: `tokens` at each of `steps` boundaries, the first gap and its growth in 1/q ps."""
    if tokens > 0 and steps > 0:
        row = s.itl[s.g[N_ITL]]
        row[0], row[1], row[2], row[3], row[4] = first, growth, steps, tokens, q
        s.g[N_ITL] += 1


gap = inner(_gap)


def _wake(s: Any, w: int) -> None:
    """An idle worker is looked at when the event is over."""
    s.wake[s.g[N_WAKE]] = w
    s.g[N_WAKE] += 1


wake = inner(_wake)


def _finish(c: Any, s: Any, w: int, r: int, time: int) -> None:
    release(c, s, w, r)
    s.R[r, ST], s.R[r, TDONE] = FINISHED, time
    s.V[w, NREQ] -= 1
    s.g[IN_SYSTEM] -= 1
    note(s, len(c.role), RUNNING, -1)


finish = inner(_finish)


def _note_growth(c: Any, s: Any, w: int, r: int, k: int) -> int:
    """Notes the blocks that a decoding request takes in the first k steps of a stretch, each as its step begins."""
    step = c.block - s.R[r, KV] % c.block
    n = 0
    while step < k:
        end = s.R[r, KV] + step
        more = hold(c, w, end + 1) - hold(c, w, end) if c.bent else 1
        note_at(s, w, HELD, more, boundary(c, s, w, step))
        step += c.block
        n += more
    s.V[w, SEEN] += n
    return n


note_growth = inner(_note_growth)


def _take_growth(c: Any, s: Any, w: int) -> None:
    """The blocks that a stretch took step by step, before any of its requests ends and lets go of its own."""
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        if s.R[r, ST] == DECODING:
            more = note_growth(c, s, w, r, s.V[w, JK])
            if more > 0:
                make_room(c, s, w, more)
                take(c, s, w, more)
                s.R[r, DB] += more


take_growth = inner(_take_growth)


def _decoded(c: Any, s: Any, w: int, r: int, time: int) -> None:
    """The steps of a stretch for one decoding request."""
    k = s.V[w, JK]
    s.R[r, KV] += k
    s.R[r, GEN] += k
    s.R[r, CHUNK] = 0
    s.R[r, TLAST] = time
    if s.R[r, GEN] == c.out[r]:
        finish(c, s, w, r, time)


decoded = inner(_decoded)


def _computed(c: Any, s: Any, w: int, r: int, time: int) -> None:
    """A chunk of a prompt; at its end the first token, or the next one after blocks were lost."""
    n = s.R[r, CHUNK]
    s.R[r, DONE] += n
    s.R[r, CHUNK] = 0
    s.V[w, COMPUTED] += n
    if c.role[w] == PREFILL:
        s.V[w, TOKENS] -= n
    if s.R[r, DONE] < s.R[r, TGT]:
        return
    share_prefix(c, s, w, r)
    if s.R[r, GEN] > 0:
        gap(s, time - s.R[r, TLAST], 0, 1, 1, 1)
    s.R[r, GEN] += 1
    s.R[r, KV] = s.R[r, TGT]
    if s.R[r, GEN] == 1:
        s.R[r, TPEND] = time
    if c.role[w] != PREFILL or c.out[r] == 1:
        s.R[r, TLAST] = time
        if s.R[r, GEN] == 1:
            s.R[r, TFIRST] = time
        s.R[r, ST] = DECODING
        if s.R[r, GEN] == c.out[r]:
            finish(c, s, w, r, time)
    elif s.R[r, EARLY] > 0:
        s.R[r, ST] = RESERVING if s.R[r, EARLY] == 1 else MOVING
        s.R[r, EARLY] = 0
    else:
        seek_decode(c, s, r, time)


computed = inner(_computed)


def _note_gaps(c: Any, s: Any, w: int) -> None:
    """The gaps of a stretch: equal ones together, those of requests that waited before it one by one."""
    v, regular, running = s.V[w], 0, 0
    end = boundary(c, s, w, 1)
    for i in range(v[NRUN]):
        r = s.run[w, i]
        if s.R[r, ST] == DECODING:
            running += 1
            if s.R[r, TLAST] == v[JS]:
                regular += 1
            else:
                gap(s, end - s.R[r, TLAST], 0, 1, 1, 1)
    if regular == running and v[JX] == 0:
        gap(s, v[JA], v[JINC], v[JK], running, c.q[w])
    else:
        gap(s, v[JX] + v[JA], 0, 1, regular, c.q[w])
        gap(s, v[JA] + v[JINC], v[JINC], v[JK] - 1, running, c.q[w])


note_gaps = inner(_note_gaps)


def _break_off(c: Any, s: Any, w: int, time: int) -> None:
    """A worker fails in the midst of a stretch: the steps that it had ended count, the one under way does not."""
    if s.V[w, JK] == 0:
        return
    under_way = step_at(c, s, w, time)
    held_now = c.blocks[w] - room(c, s, w)
    if s.V[w, JK] > 1:
        for i in range(s.V[w, NRUN]):
            if s.R[s.run[w, i], ST] == DECODING:
                held_now += note_growth(c, s, w, s.run[w, i], under_way)
    s.V[w, PEAK] = max(s.V[w, PEAK], held_now)
    s.V[w, JK] = under_way - 1
    if under_way > 1:
        note_gaps(c, s, w)
        s.V[w, BUSY] += boundary(c, s, w, under_way - 1) - s.V[w, JS]
        s.V[w, STEPS] += under_way - 1


break_off = inner(_break_off)


def _step_end(c: Any, s: Any, w: int, time: int) -> None:
    """The end of a stretch: its tokens, its prompts, and what comes next."""
    whole = scaled(s, w, s.V[w, JK])
    take_growth(c, s, w)
    note_gaps(c, s, w)
    s.V[w, BUSY] += time - s.V[w, JS]
    s.V[w, STEPS] += s.V[w, JK]
    kept = 0
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        if s.R[r, ST] == DECODING:
            decoded(c, s, w, r, time)
        else:
            computed(c, s, w, r, time)
        if s.R[r, ST] == DECODING or s.R[r, ST] == PREFILLING or s.R[r, ST] == RECOMPUTING:
            s.run[w, kept] = r
            kept += 1
    note(s, w, RUNNING, kept - s.V[w, NRUN])
    s.V[w, NRUN] = kept
    s.V[w, JK], s.V[w, JR] = 0, whole % c.q[w]
    wake(s, w)


step_end = inner(_step_end)


def _arrived(c: Any, s: Any, r: int, time: int) -> None:
    """Puts a request whose cache has come to the others of its decode worker."""
    w = s.R[r, DW]
    s.R[r, ST], s.R[r, KV], s.R[r, TFIRST], s.R[r, TLAST] = READY, c.prompt[r], time, time
    append(s, ARRIVED, w, r)


arrived = inner(_arrived)
