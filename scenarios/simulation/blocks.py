"""Kernels: KV blocks of a worker, and prefix blocks that outlive their request and are found again by their hash.

A prefix block that nobody uses counts as room: the one unused longest goes first. Blocks of one prompt are let go from
its end, so that the beginning, which others share, stays longest.
"""

from __future__ import annotations

from typing import Any

from scenarios.simulation.columns import (
    DB,
    EVICTABLE,
    FREE,
    HELD,
    LRU_HEAD,
    LRU_TAIL,
    MAT,
    PB,
    PEAK,
    PREFILL,
    SEEN,
)  # fmt: skip
from scenarios.simulation.jit import inner
from scenarios.simulation.series import note


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


ceil = inner(_ceil)


def _hold(c: Any, w: int, tokens: int) -> int:
    """What a cache of so many positions takes: blocks, or bytes where windows or states are kept."""
    blocks = ceil(tokens, c.block)
    if c.bent == 0:
        return int(blocks)
    positions = blocks * c.block
    total = c.hold_fixed[w] + c.hold_each[w, 0] * positions
    for i in range(len(c.hold_windows)):
        total += c.hold_each[w, i + 1] * min(positions, c.hold_windows[i])
    return int(total)


hold = inner(_hold)


def _lru_remove(s: Any, w: int, h: int) -> None:
    a, b = s.lru_prev[w, h], s.lru_next[w, h]
    if a < 0:
        s.V[w, LRU_HEAD] = b
    else:
        s.lru_next[w, a] = b
    if b < 0:
        s.V[w, LRU_TAIL] = a
    else:
        s.lru_prev[w, b] = a
    s.V[w, EVICTABLE] -= 1


lru_remove = inner(_lru_remove)


def _lru_append(s: Any, w: int, h: int) -> None:
    tail = s.V[w, LRU_TAIL]
    s.lru_prev[w, h] = tail
    s.lru_next[w, h] = -1
    if tail < 0:
        s.V[w, LRU_HEAD] = h
    else:
        s.lru_next[w, tail] = h
    s.V[w, LRU_TAIL] = h
    s.V[w, EVICTABLE] += 1


lru_append = inner(_lru_append)


def _room(c: Any, s: Any, w: int) -> int:
    """Blocks (bytes where `bent`) that can be had: free ones, and prefix blocks that nobody uses."""
    if c.hash_tokens == 0:
        return int(s.V[w, FREE])
    return int(s.V[w, FREE] + s.V[w, EVICTABLE] * (c.hash_tokens // c.block))


room = inner(_room)


def _mark(c: Any, s: Any, w: int) -> None:
    """Notes what is held now, if that is another number than before."""
    now = c.blocks[w] - room(c, s, w)
    if now != s.V[w, SEEN]:
        note(s, w, HELD, now - s.V[w, SEEN])
        s.V[w, SEEN] = now


mark = inner(_mark)


def _take(c: Any, s: Any, w: int, n: int) -> None:
    """Uses n blocks that are there. Prefix blocks that nobody uses count as room."""
    s.V[w, FREE] -= n
    mark(c, s, w)
    s.V[w, PEAK] = max(s.V[w, PEAK], s.V[w, SEEN])


take = inner(_take)


def _make_room(c: Any, s: Any, w: int, n: int) -> None:
    """Lets prefix blocks go until n blocks are free; there is room for them."""
    while s.V[w, FREE] < n:
        h = s.V[w, LRU_HEAD]
        lru_remove(s, w, h)
        s.ref[w, h] = -1
        s.V[w, FREE] += c.hash_tokens // c.block


make_room = inner(_make_room)


def _matched(c: Any, s: Any, w: int, r: int) -> int:
    """Prefix blocks of a request that a worker has, from the beginning; one token at least is left to compute."""
    if c.hash_tokens == 0 or not c.role[w] & PREFILL:
        return 0
    first = c.hash_at[r]
    most = min(c.hash_at[r + 1] - first, (c.prompt[r] - 1) // c.hash_tokens)
    n = 0
    while n < most and s.ref[w, c.hashes[first + n]] >= 0:
        n += 1
    return int(n)


matched = inner(_matched)


def _pin(c: Any, s: Any, w: int, r: int, first: int, end: int) -> None:
    for i in range(c.hash_at[r] + first, c.hash_at[r] + end):
        h = c.hashes[i]
        if s.ref[w, h] == 0:
            lru_remove(s, w, h)
        s.ref[w, h] += 1


pin = inner(_pin)


def _admit_blocks(c: Any, s: Any, w: int, r: int, tokens: int) -> int:
    """Takes the blocks of `tokens`, less those of a known prefix: the tokens found, or -1 where there is no room."""
    found = matched(c, s, w, r)
    each = c.hash_tokens // c.block
    need = hold(c, w, tokens) - found * each
    idle = 0
    for i in range(c.hash_at[r], c.hash_at[r] + found):
        idle += s.ref[w, c.hashes[i]] == 0
    if room(c, s, w) - idle * each < need:
        return -1
    pin(c, s, w, r, 0, found)
    s.R[r, MAT] = found
    make_room(c, s, w, need)
    take(c, s, w, need)
    s.R[r, PB if c.role[w] == PREFILL else DB] = need
    return int(found * c.hash_tokens)


admit_blocks = inner(_admit_blocks)


def _held(c: Any, s: Any, r: int) -> int:
    """Blocks that a request has where it decodes: its own, and those of the prefix that it shares."""
    if c.hash_tokens == 0:
        return int(s.R[r, DB])
    return int(s.R[r, DB] + s.R[r, MAT] * (c.hash_tokens // c.block))


held = inner(_held)


def _share_prefix(c: Any, s: Any, w: int, r: int) -> None:
    """What a request computed where prompts come becomes known by its hashes; a copy of what another put there first
    is dropped.
    """
    if c.hash_tokens == 0 or not c.role[w] & PREFILL:
        return
    each, column = c.hash_tokens // c.block, PB if c.role[w] == PREFILL else DB
    end = min(c.hash_at[r + 1] - c.hash_at[r], c.prompt[r] // c.hash_tokens)
    for i in range(s.R[r, MAT], end):
        h = c.hashes[c.hash_at[r] + i]
        s.R[r, column] -= each
        if s.ref[w, h] < 0:
            s.ref[w, h] = 1
        else:
            pin(c, s, w, r, i, i + 1)
            s.V[w, FREE] += each
    s.R[r, MAT] = max(end, s.R[r, MAT])
    mark(c, s, w)


share_prefix = inner(_share_prefix)


def _release(c: Any, s: Any, w: int, r: int) -> None:
    """All that a request holds on a worker."""
    column = PB if c.role[w] == PREFILL else DB
    s.V[w, FREE] += s.R[r, column]
    s.R[r, column] = 0
    if c.hash_tokens > 0 and c.role[w] & PREFILL:
        for i in range(c.hash_at[r] + s.R[r, MAT] - 1, c.hash_at[r] - 1, -1):
            h = c.hashes[i]
            s.ref[w, h] -= 1
            if s.ref[w, h] == 0:
                lru_append(s, w, h)
        s.R[r, MAT] = 0
    mark(c, s, w)


release = inner(_release)
