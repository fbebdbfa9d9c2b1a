"""Kernels: the event loop. At one instant: outages, then arrivals, then ends of handoffs, then ends of steps."""

from __future__ import annotations

from typing import Any

from scenarios.simulation.blocks import mark, release
from scenarios.simulation.columns import (
    BOTH,
    DB,
    DECODE,
    DONE,
    DW,
    EARLY,
    EVENTS,
    EVICTABLE,
    FAIR,
    FREE,
    GEN,
    HEAP_SIZE,
    IN_SYSTEM,
    INFLIGHT,
    JK,
    JR,
    KV,
    LAST_TIME,
    LEG,
    LOST_MOVES,
    LRU_HEAD,
    LRU_TAIL,
    MAT,
    MOVING,
    N_ITL,
    N_MOVES,
    N_WAKE,
    NEVER,
    NEWCOMERS,
    NEXT_ARRIVAL,
    NEXT_OUTAGE,
    NO_DECODE,
    NREQ,
    NRUN,
    PB,
    PREFILLING,
    PW,
    READY,
    RECOMPUTING,
    REDONE,
    REFUSED,
    RESERVING,
    RUNNING,
    ST,
    TADM,
    TFIRST,
    THE,
    THS,
    TLAST,
    TOKENS,
    TPEND,
    TRIES,
    UP,
    WAITING,
)  # fmt: skip
from scenarios.simulation.handoffs import flow_off, flow_on, reserve, seek_decode, seek_prefill, settle
from scenarios.simulation.jit import by_address, inner, outer
from scenarios.simulation.queues import append, drop, pop, remove
from scenarios.simulation.series import note, tick
from scenarios.simulation.steps import arrived, break_off, schedule, step_end, wake
from scenarios.simulation.stretch import cut, note_peak


def _arrive(c: Any, s: Any, r: int, time: int) -> None:
    """A request comes, or comes again after its worker failed."""
    s.R[r, ST] = WAITING
    w = seek_prefill(c, s, r)
    if w < 0:
        return
    if s.V[w, JK] == 0:
        wake(s, w)
    elif c.role[w] == BOTH and s.V[w, NRUN] < c.max_seqs[w]:
        cut(c, s, w, time)


arrive = inner(_arrive)


def _move_end(c: Any, s: Any, r: int, time: int) -> None:
    """A handoff, or under fair share one of its legs, ends: the prefill worker lets go, decode may begin."""
    p, w = s.R[r, PW], s.R[r, DW]
    way = c.pair[p, w]
    if c.share == FAIR:
        flow_off(c, s, r)
        s.legs[r, s.R[r, LEG] - c.way_at[way], 1] = time
        leg = s.R[r, LEG] + 1
        if leg < c.way_at[way + 1]:
            flow_on(c, s, r, leg, time)
            return
        settle(c, s, time)
    release(c, s, p, r)
    s.V[p, NREQ] -= 1
    s.V[w, INFLIGHT] -= 1
    s.R[r, THE] = time
    arrived(c, s, r, time)
    if s.V[p, JK] == 0:
        wake(s, p)
    if s.V[w, JK] == 0:
        wake(s, w)
    elif s.V[w, NRUN] < c.max_seqs[w]:
        cut(c, s, w, time)


move_end = inner(_move_end)


def _stop_move(c: Any, s: Any, r: int) -> None:
    """A handoff that cannot end. Under queue its links stay taken as long as they were booked."""
    drop(s, r)
    if c.share == FAIR:
        flow_off(c, s, r)
    s.R[r, REDONE] += 1
    s.g[LOST_MOVES] += 1


stop_move = inner(_stop_move)


def _leave_decode(c: Any, s: Any, r: int, failed: int, time: int) -> None:
    """Takes a request whose cache has not come yet from its decode worker, which may be the failed one."""
    w, state = s.R[r, DW], s.R[r, ST]
    moving = state == MOVING or (state == PREFILLING and s.R[r, EARLY] == 2)
    if moving:
        stop_move(c, s, r)
    if w != failed:
        if moving:
            note_peak(c, s, w, time)
            release(c, s, w, r)
            s.V[w, INFLIGHT] -= 1
            cut(c, s, w, time)
        else:
            remove(s, NEWCOMERS, w, r)
        s.V[w, NREQ] -= 1
    s.R[r, DB], s.R[r, EARLY], s.R[r, DW] = 0, 0, -1


leave_decode = inner(_leave_decode)


def _keep_move(s: Any, r: int) -> None:
    """Notes the handoff of a request that begins again, if one was completed: its bytes have passed."""
    if s.R[r, THE] < 0:
        return
    row = s.moves[s.g[N_MOVES]]
    row[0], row[1], row[2] = r, s.R[r, PW], s.R[r, DW]
    for leg in range(s.legs.shape[1]):
        row[3 + 2 * leg], row[4 + 2 * leg] = s.legs[r, leg, 0], s.legs[r, leg, 1]
    s.g[N_MOVES] += 1


keep_move = inner(_keep_move)


def _again(s: Any, r: int) -> None:
    """From the beginning."""
    keep_move(s, r)
    for column in (DONE, GEN, KV, PB, DB, MAT, EARLY):
        s.R[r, column] = 0
    for column in (DW, TLAST, TADM, TPEND, THS, THE, TFIRST):
        s.R[r, column] = -1
    s.R[r, TRIES] += 1


again = inner(_again)


def _empty(c: Any, s: Any, w: int) -> None:
    for queue in range(3):
        note(s, w, queue, -s.qlen[queue, w])
        s.qlen[queue, w] = 0
    note(s, w, RUNNING, -s.V[w, NRUN])
    for column in (NRUN, INFLIGHT, TOKENS, NREQ, JK, JR, EVICTABLE):
        s.V[w, column] = 0
    s.V[w, FREE] = c.blocks[w]
    s.V[w, LRU_HEAD], s.V[w, LRU_TAIL] = -1, -1
    s.ref[w, :] = -1
    mark(c, s, w)


empty = inner(_empty)


def _run_woken(c: Any, s: Any, time: int) -> None:
    """Idle workers go on, in the order in which they were woken."""
    for i in range(s.g[N_WAKE]):
        w = s.wake[i]
        if s.V[w, UP] > 0 and s.V[w, JK] == 0:
            schedule(c, s, w, time, s.V[w, JR])
    s.g[N_WAKE] = 0


run_woken = inner(_run_woken)


def _wake_all(c: Any, s: Any, time: int) -> None:
    """Blocks, slots or requests may have become free anywhere."""
    for w in range(len(c.role)):
        if s.V[w, UP] > 0:
            if s.V[w, JK] == 0:
                wake(s, w)
            elif c.role[w] == DECODE:
                reserve(c, s, w, time)


wake_all = inner(_wake_all)


def _place_again(c: Any, s: Any, time: int) -> None:
    """Those without a worker look for one: prefill first, each in the order in which they lost theirs."""
    none = len(c.role)
    for _ in range(s.qlen[NEWCOMERS, none]):
        arrive(c, s, pop(s, NEWCOMERS, none), time)
        s.g[N_WAKE] = 0
    for _ in range(s.qlen[NEWCOMERS, none + 1]):
        seek_decode(c, s, pop(s, NEWCOMERS, none + 1), time)
    wake_all(c, s, time)


place_again = inner(_place_again)


def _fail(c: Any, s: Any, failed: int, time: int) -> None:
    """A worker is lost with all it holds: requests start again; a cache still held at prefill is handed over again."""
    s.V[failed, UP] = 0
    drop(s, len(c.arrival) + failed)
    break_off(c, s, failed, time)
    for r in range(s.g[NEXT_ARRIVAL]):
        state, early = s.R[r, ST], s.R[r, EARLY] > 0
        before_decode = state in (RESERVING, MOVING) or (state == PREFILLING and early)
        at_prefill = WAITING <= state <= MOVING and s.R[r, PW] == failed
        at_decode = READY <= state <= RECOMPUTING and s.R[r, DW] == failed
        if before_decode and (at_prefill or s.R[r, DW] == failed):
            leave_decode(c, s, r, failed, time)
            if not at_prefill and state != PREFILLING:
                append(s, NEWCOMERS, len(c.role) + 1, r)
        if state == NO_DECODE and s.R[r, PW] == failed:
            remove(s, NEWCOMERS, len(c.role) + 1, r)
            at_prefill = True
        if at_prefill or at_decode:
            again(s, r)
            append(s, NEWCOMERS, len(c.role), r)
    empty(c, s, failed)
    settle(c, s, time)
    place_again(c, s, time)


fail = inner(_fail)


def _outage(c: Any, s: Any, at: int, time: int) -> None:
    w = c.outage_worker[at]
    if c.outage_up[at] == 0:
        fail(c, s, w, time)
    else:
        s.V[w, UP] = 1
        place_again(c, s, time)


outage = inner(_outage)


def _clock(s: Any, time: int) -> None:
    s.area[0] += s.g[IN_SYSTEM] * float(time - s.g[LAST_TIME])
    s.g[LAST_TIME] = time
    tick(s, time)
    s.g[EVENTS] += 1


clock = inner(_clock)


def _advance(config: Any, state: Any, most: int) -> bool:
    """Events until none is left before `NEVER` (True), or `most` were handled or a buffer may be too small (False)."""
    c, s = by_address(config), by_address(state)
    n, full = len(c.arrival), len(s.itl) - s.run.shape[1] - 8
    for _ in range(most):
        if s.g[N_ITL] > full:
            return False
        at, out = s.g[NEXT_ARRIVAL], s.g[NEXT_OUTAGE]
        arrival = c.arrival[at] if at < n else NEVER
        broken = c.outage_time[out] if out < len(c.outage_time) else NEVER
        event = s.key[s.heap[0]] if s.g[HEAP_SIZE] > 0 else NEVER
        time = min(arrival, event)
        if time >= NEVER and s.g[IN_SYSTEM] == 0:
            return True
        time = min(time, broken)
        if time >= NEVER:
            return True
        if time == broken and s.g[N_MOVES] > 0:
            return False
        clock(s, time)
        if broken == time:
            s.g[NEXT_OUTAGE] += 1
            outage(c, s, out, time)
        elif arrival == time:
            s.g[NEXT_ARRIVAL] += 1
            if s.R[at, ST] != REFUSED:
                s.g[IN_SYSTEM] += 1
                note(s, len(c.role), RUNNING, 1)
                arrive(c, s, at, time)
        else:
            slot = s.heap[0]
            drop(s, slot)
            if slot < n:
                move_end(c, s, slot, time)
            else:
                step_end(c, s, slot - n, time)
        run_woken(c, s, time)
    return False


advance = outer(_advance)
