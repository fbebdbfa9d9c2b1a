"""A run of the event loop: arrays in, arrays out; `columns.py` says what they mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from scenarios.simulation import columns as col

GAPS = 1 << 16
LEAST_BIN = 1000
"""ps of a bin of series, at least."""
SLICE = 1 << 20
"""Events between two looks at the outside (Ctrl-C, progress)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a run leaves. `requests` (N, REQUEST_COLUMNS) and `workers` (W, WORKER_COLUMNS) of int64; times in ps.

    `moves` (completed handoffs, 3 + 2 legs): request, its two workers, ps from when to when each leg took its links,
    -1: none; several of a request whose decode worker failed. `levels`
    (W + 2, SERIES, bins): means over bins of `bin_ps` (the last one ends with the run) of what `columns` names.
    `gaps` (n, 5): stretches of gaps between tokens (first, growth a step, steps, tokens a step, units of a ps).
    """

    requests: Any
    workers: Any
    gaps: Any
    counters: Any
    area: float
    moves: Any
    levels: Any
    bin_ps: int


def new_state(config: col.Config) -> col.State:
    """The state before the first event: all workers up and empty."""
    n, w = len(config.arrival), len(config.role)
    hashes = int(config.hashes.max()) + 1 if len(config.hashes) else 0
    requests = np.zeros((n, col.REQUEST_COLUMNS), np.int64)
    for column in (col.PW, col.DW, col.TLAST, col.TADM, col.TPEND, col.THS, col.THE, col.TFIRST, col.TDONE):
        requests[:, column] = -1
    workers = np.zeros((w, col.WORKER_COLUMNS), np.int64)
    workers[:, col.UP] = 1
    workers[:, col.FREE] = config.blocks
    workers[:, (col.LRU_HEAD, col.LRU_TAIL)] = -1
    by_hash = (w, hashes)
    counters = np.zeros(col.COUNTERS, np.int64)
    counters[col.BIN_WIDTH], counters[col.GROW_BY] = _first_width(config)
    queues, legs = (3, w + 2), max(1, int(np.diff(config.way_at).max(initial=0)))
    return col.State(
        R=requests, V=workers, run=np.zeros((w, int(config.max_seqs.max())), np.int64),
        nxt=np.full(n, -1, np.int64), qhead=np.full(queues, -1, np.int64), qtail=np.full(queues, -1, np.int64),
        qlen=np.zeros(queues, np.int64), heap=np.zeros(n + w, np.int64), pos=np.full(n + w, -1, np.int64),
        key=np.zeros(n + w, np.int64), link_free=np.zeros(config.n_links, np.int64),
        link_flows=np.zeros(config.n_links, np.int64), flows=np.zeros(n if config.share == col.FAIR else 1, np.int64),
        ref=np.full(by_hash, -1, np.int32), lru_prev=np.full(by_hash, -1, np.int32),
        lru_next=np.full(by_hash, -1, np.int32),
        seen=np.zeros((len(config.windows), col.SEEN_COLUMNS), np.int64), wake=np.zeros(2 * w + 2, np.int64),
        moves=np.zeros((n if len(config.outage_time) else 0, 3 + 2 * legs), np.int64), area=np.zeros(1),
        steps=np.zeros((w + 2, col.SERIES, col.BINS), np.int64), parts=np.zeros((w + 2, col.SERIES, col.BINS)),
        legs=np.full((n, legs, 2), -1, np.int64),
        itl=np.zeros((GAPS + int(config.max_seqs.max()), 5), np.int64),
        g=counters,
    )  # fmt: skip


def _first_width(config: col.Config) -> tuple[int, int]:
    """(ps of a bin, what it grows by first): of widths 1 or 2 times a power of ten the widest that needs all bins
    until the last arrival; 1 ns at least.
    """
    width, by = LEAST_BIN, 2
    while len(config.arrival) and width * by * col.BINS <= config.arrival[-1]:
        width, by = width * by, 7 - by
    return width, by


def too_large(config: col.Config) -> Any:
    """(N,) True for requests whose cache no worker of a phase, or no pair of workers, could ever hold."""
    whole = config.prompt + config.out - 1
    if bool((config.role[config.prefill_pool] == col.BOTH).all()):
        return _beyond(config, config.prefill_pool, whole)
    over = _beyond(config, config.decode_pool, whole) & (config.out > 1)
    return over | _beyond(config, config.prefill_pool, config.prompt)


def _beyond(config: col.Config, pool: Any, tokens: Any) -> Any:
    """(N,) True where no worker of a pool holds a cache of so many positions. Equal workers are looked at once."""
    positions = -(-tokens // config.block) * config.block
    if not config.bent:
        return positions // config.block > config.blocks[pool].max()
    room = np.column_stack([config.blocks, config.hold_fixed, config.hold_each])[pool]
    out = np.ones(len(tokens), bool)
    for most, fixed, growing, *each in np.unique(room, axis=0).tolist():
        kept = (n * np.minimum(positions, window) for n, window in zip(each, config.hold_windows, strict=True))
        out &= fixed + growing * positions + sum(kept) > most
    return out


def will_compile(config: col.Config) -> bool:
    """Whether a run has to compile the event loop first: nothing of it is in this process or kept on disk."""
    from executor.ready import is_kept, signature_of
    from scenarios.simulation.loop import advance

    known: Any = advance
    if not hasattr(known, "signatures"):  # NUMBA_DISABLE_JIT
        return False
    return not known.signatures and not is_kept(known, signature_of(known, (config, new_state(config), SLICE)))


def simulate(
    config: col.Config, progress: Callable[[int, int], None] | None = None, longest: int | None = None
) -> Outcome:
    """Runs until no event is left. `progress` is told (requests arrived, requests) now and then.

    Requests of more than `longest` positions are refused like those that no worker could hold.
    """
    from scenarios.simulation.loop import advance

    state = new_state(config)
    state.R[too_large(config), col.ST] = col.REFUSED
    if longest is not None:
        state.R[config.prompt + config.out - 1 > longest, col.ST] = col.REFUSED
    gaps, moves = [], []
    done = False
    while not done:
        done = advance(config, state, SLICE)
        held = int(state.g[col.N_ITL])
        gaps.append(state.itl[:held].copy())
        moves.append(state.moves[: int(state.g[col.N_MOVES])].copy())
        state.g[col.N_ITL] = state.g[col.N_MOVES] = 0
        if progress is not None:
            progress(int(state.g[col.NEXT_ARRIVAL]), len(config.arrival))
    return Outcome(
        requests=state.R, workers=state.V, gaps=np.concatenate(gaps), counters=state.g,
        area=float(state.area[0]), moves=_moves(state, moves), levels=_levels(state),
        bin_ps=int(state.g[col.BIN_WIDTH]),
    )  # fmt: skip


def _moves(state: col.State, earlier: list[Any]) -> Any:
    """Completed handoffs: the last one of each request, then those after which it began again."""
    r = state.R
    last = np.flatnonzero(r[:, col.THE] >= 0)
    legs = state.legs[last].reshape(len(last), 2 * state.legs.shape[1])
    return np.concatenate([np.column_stack([last, r[last, col.PW], r[last, col.DW], legs]), *earlier])


def _levels(state: col.State) -> Any:
    """(rows, SERIES, bins) mean level of each bin until the last event, out of the changes in it."""
    last, width = int(state.g[col.LAST_TIME]), int(state.g[col.BIN_WIDTH])
    bins = max(1, -(-last // width))
    steps, parts = state.steps[:, :, :bins], state.parts[:, :, :bins].copy()
    after = np.cumsum(steps, axis=2)
    parts[:, :, 1:] += after[:, :, :-1] * float(width)
    over = bins * width - last
    parts[:, :, -1] -= after[:, :, -1] * float(over)
    parts[:, :, :-1] /= width
    parts[:, :, -1] /= max(1, width - over)
    return parts
