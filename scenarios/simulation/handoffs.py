"""Kernels: which worker takes a request, when its cache is handed over, and what handoffs do to each other on links."""

from __future__ import annotations

from typing import Any

from scenarios.simulation.blocks import ceil, hold, matched, take
from scenarios.simulation.columns import (
    ARRIVED,
    BOTH,
    DB,
    DECODE,
    DW,
    EARLY,
    FLOW,
    INFLIGHT,
    LEG,
    MOVING,
    N_FLOWS,
    NEVER,
    NEWCOMERS,
    NO_DECODE,
    NREQ,
    NRUN,
    PREFIX_AWARE,
    PW,
    QUEUE,
    REM,
    RESERVING,
    RETURNING,
    ROUND_ROBIN,
    RR_DECODE,
    RR_PREFILL,
    SAME_DOMAIN,
    SETTLED,
    SLOW,
    ST,
    THS,
    TLAYER,
    TOKENS,
    TPEND,
    UP,
)  # fmt: skip
from scenarios.simulation.jit import inner
from scenarios.simulation.queues import append, pop, put
from scenarios.simulation.stretch import cut, note_peak, room_at

ONE = 1024
"""A share of 1, in the unit of `leg_ratio`."""


def _can_take(c: Any, s: Any, w: int, r: int, source: int) -> bool:
    """Whether a worker is up, ever has the blocks, and is reached from `source` (-1: need not be)."""
    tokens = c.prompt[r] if c.role[w] == 1 else c.prompt[r] + c.out[r] - 1
    if s.V[w, UP] == 0 or hold(c, w, tokens) > c.blocks[w]:
        return False
    return source < 0 or c.pair[source, w] >= 0


can_take = inner(_can_take)


def _load(c: Any, s: Any, w: int, r: int, policy: int) -> int:
    """What is weighed: prompt tokens not yet computed before decode, requests where decoding goes on."""
    if c.role[w] & DECODE:
        return int(s.V[w, NREQ])
    if policy == PREFIX_AWARE:
        return int(s.V[w, TOKENS] - matched(c, s, w, r) * c.hash_tokens)
    return int(s.V[w, TOKENS])


load = inner(_load)


def _choose(c: Any, s: Any, r: int, source: int) -> int:
    """The worker of the phase: prefill for source -1, else decode after `source`. -1: none is up that can take it."""
    pool = c.prefill_pool if source < 0 else c.decode_pool
    policy = c.route_prefill if source < 0 else c.route_decode
    turn = RR_PREFILL if source < 0 else RR_DECODE
    n, best, near, least, least_near = len(pool), -1, -1, NEVER, NEVER
    if policy == ROUND_ROBIN:
        for i in range(n):
            w = pool[(s.g[turn] + i) % n]
            if can_take(c, s, w, r, source):
                s.g[turn] = (s.g[turn] + i + 1) % n
                return int(w)
        return -1
    for i in range(n):
        w = pool[i]
        if not can_take(c, s, w, r, source):
            continue
        weight = load(c, s, w, r, policy)
        if weight < least:
            best, least = w, weight
        if policy == SAME_DOMAIN and source >= 0 and c.domain[w] == c.domain[source] and weight < least_near:
            near, least_near = w, weight
    if near >= 0 and least_near < c.max_seqs[near]:
        return int(near)
    return int(best)


choose = inner(_choose)


def _units(c: Any, r: int) -> int:
    """Units of transfer of a request: whole blocks, or tokens."""
    return int(ceil(c.prompt[r], c.block)) if c.by_blocks else int(c.prompt[r])


units = inner(_units)


def _leg_time(c: Any, leg: int, n: int) -> int:
    """ps of a leg alone, rounded up."""
    time = c.leg_fixed[leg] + c.leg_each[leg] * n
    for i in range(len(c.knots)):
        time += c.leg_bends[leg, i] * min(n, c.knots[i])
    for i in range(len(c.step_chunk)):
        time += c.leg_steps[leg, i] * ceil(min(n, c.step_knot[i]), c.step_chunk[i])
    return int(ceil(time, c.leg_q[leg]))


leg_time = inner(_leg_time)


def _queued(c: Any, s: Any, r: int, time: int) -> None:
    """First come, first served: each leg takes all its links from its first byte to its last."""
    way = c.pair[s.R[r, PW], s.R[r, DW]]
    n, now, first = units(c, r), time, NEVER
    if c.layers > 0:
        now = max(now, s.R[r, TLAYER])
    for leg in range(c.way_at[way], c.way_at[way + 1]):
        begin, took = now, leg_time(c, leg, n)
        for i in range(c.link_at[leg], c.link_at[leg + 1]):
            begin = max(begin, s.link_free[c.leg_links[i]])
        first = min(first, begin)
        now = min(NEVER, begin + took)
        if c.layers > 0:
            # The last layer is computed at TPEND and goes after that, if it takes no time in the next picosecond.
            now = min(NEVER, max(now, s.R[r, TPEND] + max(1, ceil(took, c.layers))))
        s.legs[r, leg - c.way_at[way], 0], s.legs[r, leg - c.way_at[way], 1] = begin, now
        for i in range(c.link_at[leg], c.link_at[leg + 1]):
            s.link_free[c.leg_links[i]] = now
    s.R[r, THS] = min(first, now)
    put(s, r, now)


queued = inner(_queued)


def _slowness(c: Any, s: Any, leg: int) -> int:
    """How many times longer a leg takes now than alone, in 1/1024: by the link whose share is smallest."""
    slow = ONE
    for i in range(c.link_at[leg], c.link_at[leg + 1]):
        slow = max(slow, s.link_flows[c.leg_links[i]] * c.leg_ratio[i])
    return int(slow)


slowness = inner(_slowness)


def _settle(c: Any, s: Any, time: int) -> None:
    """The links changed: every flow whose share is another goes on at its new one. Progress is rounded down."""
    for i in range(s.g[N_FLOWS]):
        r = s.flows[i]
        slow = slowness(c, s, s.R[r, LEG])
        if slow == s.R[r, SLOW]:
            continue
        was, passed = s.R[r, SLOW], time - s.R[r, SETTLED]
        if was > 0:
            gone = (passed // was) * ONE + (passed % was) * ONE // was
            s.R[r, REM] = max(0, s.R[r, REM] - gone)
        s.R[r, SLOW], s.R[r, SETTLED] = slow, time
        left = s.R[r, REM]
        if left // ONE >= NEVER // slow:
            put(s, r, NEVER)
        else:
            put(s, r, min(NEVER, time + (left // ONE) * slow + ceil((left % ONE) * slow, ONE)))


settle = inner(_settle)


def _flow_on(c: Any, s: Any, r: int, leg: int, time: int) -> None:
    s.R[r, LEG], s.R[r, REM], s.R[r, SETTLED], s.R[r, SLOW] = leg, leg_time(c, leg, units(c, r)), time, 0
    s.legs[r, leg - c.way_at[c.pair[s.R[r, PW], s.R[r, DW]]], 0] = time
    s.R[r, FLOW] = s.g[N_FLOWS]
    s.flows[s.g[N_FLOWS]] = r
    s.g[N_FLOWS] += 1
    for i in range(c.link_at[leg], c.link_at[leg + 1]):
        s.link_flows[c.leg_links[i]] += 1
    settle(c, s, time)


flow_on = inner(_flow_on)


def _flow_off(c: Any, s: Any, r: int) -> None:
    leg, at = s.R[r, LEG], s.R[r, FLOW]
    s.g[N_FLOWS] -= 1
    last = s.flows[s.g[N_FLOWS]]
    s.flows[at] = last
    s.R[last, FLOW] = at
    for i in range(c.link_at[leg], c.link_at[leg + 1]):
        s.link_flows[c.leg_links[i]] -= 1


flow_off = inner(_flow_off)


def _start_move(c: Any, s: Any, r: int, time: int) -> None:
    """The handoff of a request, for which blocks are kept at both ends."""
    way = c.pair[s.R[r, PW], s.R[r, DW]]
    for leg in range(s.legs.shape[1]):  # of a handoff that was lost, over another way
        s.legs[r, leg, 0] = s.legs[r, leg, 1] = -1
    if s.R[r, EARLY] > 0:
        s.R[r, EARLY] = 2
    else:
        s.R[r, ST] = MOVING
    if c.share == QUEUE:
        queued(c, s, r, time)
    else:
        s.R[r, THS] = time
        flow_on(c, s, r, c.way_at[way], time)


start_move = inner(_start_move)


def _reserve(c: Any, s: Any, w: int, time: int) -> None:
    """Keeps blocks for those that wait for a decode worker, first come first served, and starts their handoff.

    Pull: only when a slot is free for them. None before those that lost their blocks here have them back.
    """
    while s.qlen[NEWCOMERS, w] > 0 and s.qlen[RETURNING, w] == 0 and s.V[w, UP] > 0:
        r = s.qhead[NEWCOMERS, w]
        need = hold(c, w, c.prompt[r])
        taken = s.V[w, NRUN] + s.V[w, INFLIGHT] + s.qlen[ARRIVED, w]
        if (c.pull > 0 and taken >= c.max_seqs[w]) or room_at(c, s, w, time) < need:
            break
        pop(s, NEWCOMERS, w)
        take(c, s, w, need)
        note_peak(c, s, w, time)
        s.R[r, DB] = need
        s.V[w, INFLIGHT] += 1
        cut(c, s, w, time)
        start_move(c, s, r, time)


reserve = inner(_reserve)


def _seek_decode(c: Any, s: Any, r: int, time: int) -> None:
    """Chooses the decode worker of a request whose prompt is computed, or (by layer) is being computed."""
    w = choose(c, s, r, s.R[r, PW])
    s.R[r, DW] = w
    if w < 0:
        if s.R[r, EARLY] == 0:
            s.R[r, ST] = NO_DECODE
            append(s, NEWCOMERS, len(c.role) + 1, r)
        s.R[r, EARLY] = 0
        return
    if s.R[r, EARLY] == 0:
        s.R[r, ST] = RESERVING
    s.V[w, NREQ] += 1
    append(s, NEWCOMERS, w, r)
    reserve(c, s, w, time)


seek_decode = inner(_seek_decode)


def _seek_prefill(c: Any, s: Any, r: int) -> int:
    """Chooses the first worker of a request and puts it in its queue: the worker, or -1 where none is up."""
    w = choose(c, s, r, -1)
    if w < 0:
        s.R[r, PW] = -1
        append(s, NEWCOMERS, len(c.role), r)
        return -1
    s.R[r, PW] = w
    if c.role[w] == BOTH:
        s.R[r, DW] = w
    s.V[w, TOKENS] += c.prompt[r]
    s.V[w, NREQ] += 1
    append(s, NEWCOMERS, w, r)
    return int(w)


seek_prefill = inner(_seek_prefill)
