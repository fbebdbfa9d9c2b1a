"""Kernels: the time of steps, and stretches of equal steps in closed form.

A step takes FIXED + EACH n + copies + the sum over the worker's stages of max(WC n, W0 + WR n + ES min(EN, EK n))
+ max(HC l, H0) + max(ACP pairs + ACD C, AB (read + n + C)), in units of 1/Q ps: n tokens, l of them with logits, C
positions that decoding tokens attend to. While only decoding goes on, C grows by the number of running requests a step
and all else stays: k steps take k A + inc k (k - 1) / 2. The rest below one picosecond is carried on, so that a stretch
may be cut anywhere and ends when single steps would have ended.
"""

from __future__ import annotations

from typing import Any

from scenarios.simulation.blocks import ceil, held, hold, room
from scenarios.simulation.columns import (
    AB,
    ACD,
    ACP,
    ATTENDED,
    DECODING,
    DN0,
    DN1,
    EACH,
    EK,
    EN,
    ES,
    FIXED,
    GEN,
    GROWING,
    H0,
    HC,
    JA,
    JD,
    JINC,
    JK,
    JR,
    JS,
    JX,
    KV,
    NEVER,
    NRUN,
    PAIRS,
    PEAK,
    READ,
    SB,
    ST,
    UP0,
    UP1,
    W0,
    WC,
    WINDOW,
    WR,
)  # fmt: skip
from scenarios.simulation.jit import inner
from scenarios.simulation.queues import put


def _step_cost(
    c: Any, s: Any, w: int, n: int, logits: int, sequences: int, pairs: int, read: int, decoding: int
) -> int:
    """One step of n tokens without copies; `decoding` are the positions that decoding tokens attend to.

    What is seen through windows stands in `seen`.
    """
    time = c.cost[w, 0, FIXED] + c.cost[w, 0, EACH] * n
    if logits > 0:
        time += c.cost[w, 0, DN0] + c.cost[w, 0, DN1] * logits
    for stage in range(c.cost.shape[1]):
        k = c.cost[w, stage]
        time += max(k[WC] * n, k[W0] + k[WR] * n + k[ES] * min(k[EN], k[EK] * n))
        time += k[SB] * sequences
        if k[WINDOW] == 0:
            time += max(k[ACP] * pairs + k[ACD] * decoding, k[AB] * (read + n + decoding))
        else:
            at = s.seen[k[WINDOW] - 1]
            time += max(k[ACP] * at[PAIRS] + k[ACD] * at[ATTENDED], k[AB] * (at[READ] + n + at[ATTENDED]))
        if logits > 0:
            time += max(k[HC] * logits, k[H0])
    return int(time)


step_cost = inner(_step_cost)


def _upload_cost(c: Any, w: int, ids: int) -> int:
    """Token ids that come from the host: one copy a step, where there are any."""
    return int(c.cost[w, 0, UP0] + c.cost[w, 0, UP1] * ids) if ids > 0 else 0


upload_cost = inner(_upload_cost)


def _scaled(s: Any, w: int, k: int) -> int:
    """Units of 1/Q ps from the beginning of a stretch, its carried rest included, to the end of its k-th step."""
    v = s.V[w]
    return int(v[JR] + v[JX] + k * v[JA] + v[JINC] * (k * (k - 1) // 2))


scaled = inner(_scaled)


def _boundary(c: Any, s: Any, w: int, k: int) -> int:
    """When the k-th step of a stretch ends, in ps."""
    return int(s.V[w, JS] + scaled(s, w, k) // c.q[w])


boundary = inner(_boundary)


def _step_at(c: Any, s: Any, w: int, time: int) -> int:
    """The first step of the stretch that does not end before `time`."""
    low, high = 1, s.V[w, JK]
    while low < high:
        middle = (low + high) // 2
        if boundary(c, s, w, middle) >= time:
            high = middle
        else:
            low = middle + 1
    return int(low)


step_at = inner(_step_at)


def _cut(c: Any, s: Any, w: int, time: int) -> None:
    """Ends the stretch at the first boundary from `time` on, where something may change."""
    if s.V[w, JK] > 1:
        k = step_at(c, s, w, time)
        if k < s.V[w, JK]:
            s.V[w, JK] = k
            put(s, len(c.arrival) + w, boundary(c, s, w, k))


cut = inner(_cut)


def _growth(c: Any, s: Any, w: int, k: int) -> int:
    """Blocks that the running requests take beyond those they have until k decode steps are made."""
    more = 0
    for i in range(s.V[w, NRUN]):
        r = s.run[w, i]
        if s.R[r, ST] == DECODING:
            more += max(0, hold(c, w, s.R[r, KV] + k) - held(c, s, r))
    return more


growth = inner(_growth)


def _room_at(c: Any, s: Any, w: int, time: int) -> int:
    """Blocks that can be had at `time`, in the midst of a stretch."""
    if s.V[w, JK] <= 1:
        return int(room(c, s, w))
    return int(room(c, s, w) - growth(c, s, w, step_at(c, s, w, time)))


room_at = inner(_room_at)


def _note_peak(c: Any, s: Any, w: int, time: int) -> None:
    """Notes what is held in the midst of a stretch, where that is the most so far."""
    s.V[w, PEAK] = max(s.V[w, PEAK], c.blocks[w] - room_at(c, s, w, time))


note_peak = inner(_note_peak)


def _longest(c: Any, s: Any, w: int, decoding: int) -> int:
    """Steps that can be made at once: until one request ends or fills a window, blocks run out, or another term decides
    the time.
    """
    k, running = NEVER, s.V[w, NRUN]
    for i in range(running):
        r = s.run[w, i]
        k = min(k, c.out[r] - s.R[r, GEN])
        for j in range(len(c.windows)):
            if s.R[r, KV] + 1 < c.windows[j]:
                k = min(k, c.windows[j] - s.R[r, KV])
    s.V[w, JINC] = 0
    for stage in range(c.cost.shape[1]):
        compute, memory, window = c.cost[w, stage, ACD], c.cost[w, stage, AB], c.cost[w, stage, WINDOW]
        rate, positions, growing = memory, decoding, running
        if window > 0:
            positions, growing = s.seen[window - 1, ATTENDED], s.seen[window - 1, GROWING]
        if compute > memory:
            if compute * positions >= memory * (positions + running):
                rate = compute
            elif growing > 0:
                k = min(k, ceil(memory * running - (compute - memory) * positions, (compute - memory) * growing))
        s.V[w, JINC] += growing * rate
    # Every scaled time stays far below 2^63.
    worst = s.V[w, JA] + s.V[w, JINC] * k
    k = max(1, min(k, NEVER // 2 // max(worst, 1)))
    if k == 1 or growth(c, s, w, k) <= room(c, s, w):
        return int(k)
    low, high = 1, k
    while low < high:
        middle = (low + high + 1) // 2
        if growth(c, s, w, middle) <= room(c, s, w):
            low = middle
        else:
            high = middle - 1
    return int(low)


longest = inner(_longest)


def _begin(c: Any, s: Any, w: int, k: int, step: int, extra: int) -> None:
    """Starts k steps, of which the first takes `step` and `extra`; JS, JR and JINC are set."""
    s.V[w, JX] = extra
    s.V[w, JA] = step
    s.V[w, JK] = k
    s.V[w, JD] = k
    put(s, len(c.arrival) + w, boundary(c, s, w, k))


begin = inner(_begin)
