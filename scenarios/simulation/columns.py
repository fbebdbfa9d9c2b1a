"""The arrays of the event loop: what each column holds. Times are whole picoseconds, bytes and blocks whole numbers.

A request is a row of `R`, a worker a row of `V`. Rows keep what belongs together in one line of the processor's cache;
named columns keep the kernels readable. `Config` never changes in a run, `State` is all that does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

NEVER = 2**62
"""A time that does not come, 53 days; also the bound that every scaled time stays below."""

# Roles of workers, as bits.
PREFILL, DECODE, BOTH = 1, 2, 3

# Routing: how the worker of a phase is chosen.
ROUND_ROBIN, LEAST_LOADED, SAME_DOMAIN, PREFIX_AWARE = 0, 1, 2, 3

# How handoffs share a link.
QUEUE, FAIR = 0, 1

# Columns of a request.
ST, PW, DW, DONE, TGT, GEN, KV, PB, DB, MAT = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
CHUNK, TRIES, PREEMPTED, REDONE, LEG, EARLY, FLOW = 10, 11, 12, 13, 14, 15, 16
TLAST, TADM, TPEND, THS, THE, TFIRST, TDONE = 17, 18, 19, 20, 21, 22, 23
REM, SETTLED, SLOW, TLAYER = 24, 25, 26, 27
REQUEST_COLUMNS = 28

# States of a request.
NEW, WAITING, PREFILLING, RESERVING, MOVING, READY, DECODING = 0, 1, 2, 3, 4, 5, 6
OUSTED, RECOMPUTING, FINISHED, REFUSED, NO_PREFILL, NO_DECODE = 7, 8, 9, 10, 11, 12

# Columns of a worker. J*: the stretch of steps under way, in units of 1/Q ps but for JS.
UP, NRUN, FREE, INFLIGHT, TOKENS, NREQ, JS, JR, JX, JA, JINC, JK = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11
PEAK, BUSY, STEPS, OUSTINGS, LRU_HEAD, LRU_TAIL, EVICTABLE, COMPUTED, HITS = 12, 13, 14, 15, 16, 17, 18, 19, 20
JD, SEEN = 21, 22
WORKER_COLUMNS = 23

# Columns of the coefficients of a step of one stage of a worker (see `costs.py`), in units of 1/Q ps; further sorts of
# attention of a stage have rows of their own, where only ACP, ACD, AB and WINDOW are not 0. EN and EK are
# numbers of experts, WINDOW of a window. Copies, FIXED and EACH of the whole worker stand with its first row.
FIXED, WC, W0, WR, HC, H0, ACP, ACD, AB, UP0, UP1, DN0, DN1 = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
EACH, ES, EN, EK, SB, WINDOW = 13, 14, 15, 16, 17, 18
COST_COLUMNS = 19

# Columns of `seen`, a row a window: what its attention of a step looks at (see `windows.py`).
PAIRS, READ, ATTENDED, GROWING = 0, 1, 2, 3
SEEN_COLUMNS = 4

# Queues of a worker.
NEWCOMERS, ARRIVED, RETURNING = 0, 1, 2

# Series of a worker: its queues by their number, then these. RUNNING of row W: requests in the system.
RUNNING, HELD = 3, 4
SERIES = 5
BINS = 200  # 10 divides it

# Counters.
HEAP_SIZE, NEXT_ARRIVAL, NEXT_OUTAGE, EVENTS, N_ITL, RR_PREFILL, RR_DECODE, N_FLOWS = 0, 1, 2, 3, 4, 5, 6, 7
IN_SYSTEM, LAST_TIME, LOST_MOVES, N_WAKE, BIN, BIN_LEFT, BIN_WIDTH, GROW_BY = 8, 9, 10, 11, 12, 13, 14, 15
N_MOVES = 16
COUNTERS = 17


class Config(NamedTuple):
    """What a run is given. N requests in the order of arrival, W workers (prefill before decode), L links."""

    arrival: Any  # (N,) ps, sorted
    prompt: Any  # (N,) tokens
    out: Any  # (N,) new tokens, the first of which prefill makes
    hash_at: Any  # (N + 1,) offsets into hashes
    hashes: Any  # ids 0 .. H-1 of prefix blocks of `hash_tokens` tokens
    role: Any  # (W,)
    q: Any  # (W,) Q: units of a picosecond
    cost: Any  # (W, most rows, COST_COLUMNS)
    windows: Any  # tokens of each window that attention looks through; WINDOW of a row: 1 + its number, 0: none
    blocks: Any  # (W,) KV blocks; bytes where `bent`
    hold_fixed: Any  # (W,) bytes of the states of a sequence
    hold_each: Any  # (W, windows kept + 1) bytes of a position: of layers without a window, then by window
    hold_windows: Any  # tokens of each window that is kept
    max_seqs: Any  # (W,) requests that run at once
    budget: Any  # (W,) tokens of one step
    domain: Any  # (W,)
    prefill_pool: Any  # worker ids
    decode_pool: Any  # worker ids
    pair: Any  # (W, W) -> way, -1: none
    way_at: Any  # (ways + 1,) offsets into legs
    leg_q: Any  # (legs,)
    leg_fixed: Any  # (legs,) units of 1/leg_q ps
    leg_each: Any  # (legs,) the same a unit of transfer
    leg_bends: Any  # (legs, knots) the same a unit up to the knot
    knots: Any  # units of transfer from which on a part of the cache moves no more
    leg_steps: Any  # (legs, chunks) the same a chunk of units
    step_knot: Any  # units beyond which there are no more chunks
    step_chunk: Any  # units of a chunk
    link_at: Any  # (legs + 1,) offsets into leg_links
    leg_links: Any  # link ids
    leg_ratio: Any  # rate of the leg over rate of the link, in 1/1024, rounded up
    outage_time: Any  # (O,) ps, sorted
    outage_worker: Any  # (O,)
    outage_up: Any  # (O,) 1: it is back
    n_links: int
    block: int  # tokens of a KV block
    bent: int  # 1: windows or states are kept, and memory is counted in bytes
    hash_tokens: int  # tokens of a prefix block, 0: no reuse
    by_blocks: int  # 1: a unit of transfer is a block, 0: a token
    share: int  # QUEUE or FAIR
    pull: int  # 1: fetched when a slot is free
    layers: int  # > 0: handed over layer by layer
    route_prefill: int
    route_decode: int


class State(NamedTuple):
    """What a run changes."""

    R: Any  # (N, REQUEST_COLUMNS)
    V: Any  # (W, WORKER_COLUMNS)
    run: Any  # (W, most max_seqs) requests, in the order of admission
    nxt: Any  # (N,) the next in a queue
    qhead: Any  # (3, W + 2); columns W and W + 1: no prefill, no decode worker is up
    qtail: Any
    qlen: Any
    heap: Any  # slots: request ids for moves, N + w for steps
    pos: Any  # (N + W,) place in the heap, -1
    key: Any  # (N + W,) time
    link_free: Any  # (L,) queue: until when a link is taken
    link_flows: Any  # (L,) fair share: flows on it
    flows: Any  # (N,) requests whose handoff is under way, fair share
    ref: Any  # (W, H) users of a prefix block, -1: not there
    lru_prev: Any  # (W, H)
    lru_next: Any  # (W, H)
    seen: Any  # (windows, SEEN_COLUMNS)
    wake: Any  # (W,) idle workers for which something changed in this event
    itl: Any  # (buffer, 5): first gap, growth a step, steps, tokens a step, units of a ps
    steps: Any  # (W + 2, SERIES, BINS) changes of a level in a bin
    parts: Any  # (W + 2, SERIES, BINS) float: each change times what is left of its bin, in ps
    legs: Any  # (N, most legs of a way, 2) ps from when to when each leg of the last handoff takes its links, -1
    moves: Any  # (buffer, 3 + 2 * most legs): request, its workers, legs of handoffs whose request began again
    area: Any  # (1,) float: requests in the system times ps
    g: Any  # (COUNTERS,)
