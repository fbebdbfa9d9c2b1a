"""Kernels: the heap of coming events, and the queues of workers."""

from __future__ import annotations

from typing import Any

from scenarios.simulation.columns import HEAP_SIZE
from scenarios.simulation.jit import inner
from scenarios.simulation.series import note


def _before(s: Any, a: int, b: int) -> bool:
    """Earlier; at the same time the smaller slot: moves before steps, each by number."""
    return bool(s.key[a] < s.key[b] or (s.key[a] == s.key[b] and a < b))


before = inner(_before)


def _up(s: Any, at: int) -> None:
    slot = s.heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if not before(s, slot, s.heap[parent]):
            break
        s.heap[at] = s.heap[parent]
        s.pos[s.heap[at]] = at
        at = parent
    s.heap[at] = slot
    s.pos[slot] = at


sift_up = inner(_up)


def _down(s: Any, at: int) -> None:
    slot, size = s.heap[at], s.g[HEAP_SIZE]
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and before(s, s.heap[child + 1], s.heap[child]):
            child += 1
        if not before(s, s.heap[child], slot):
            break
        s.heap[at] = s.heap[child]
        s.pos[s.heap[at]] = at
        at = child
    s.heap[at] = slot
    s.pos[slot] = at


sift_down = inner(_down)


def _drop(s: Any, slot: int) -> None:
    """Takes the event of a slot out, if there is one."""
    at = s.pos[slot]
    if at < 0:
        return
    s.pos[slot] = -1
    s.g[HEAP_SIZE] -= 1
    size = s.g[HEAP_SIZE]
    if at == size:
        return
    last = s.heap[size]
    s.heap[at] = last
    s.pos[last] = at
    sift_up(s, at)
    sift_down(s, s.pos[last])


drop = inner(_drop)


def _put(s: Any, slot: int, time: int) -> None:
    """Sets the event of a slot to a time, in place of one that it has."""
    s.key[slot] = time
    at = s.pos[slot]
    if at < 0:
        at = s.g[HEAP_SIZE]
        s.g[HEAP_SIZE] += 1
        s.heap[at] = slot
        s.pos[slot] = at
    sift_up(s, at)
    sift_down(s, s.pos[slot])


put = inner(_put)


def _append(s: Any, queue: int, w: int, r: int) -> None:
    s.nxt[r] = -1
    if s.qlen[queue, w] == 0:
        s.qhead[queue, w] = r
    else:
        s.nxt[s.qtail[queue, w]] = r
    s.qtail[queue, w] = r
    s.qlen[queue, w] += 1
    note(s, w, queue, 1)


append = inner(_append)


def _push_front(s: Any, queue: int, w: int, r: int) -> None:
    s.nxt[r] = s.qhead[queue, w] if s.qlen[queue, w] else -1
    if s.qlen[queue, w] == 0:
        s.qtail[queue, w] = r
    s.qhead[queue, w] = r
    s.qlen[queue, w] += 1
    note(s, w, queue, 1)


push_front = inner(_push_front)


def _pop(s: Any, queue: int, w: int) -> int:
    """The first of a queue that is not empty."""
    r = s.qhead[queue, w]
    s.qhead[queue, w] = s.nxt[r]
    s.qlen[queue, w] -= 1
    note(s, w, queue, -1)
    return int(r)


pop = inner(_pop)


def _remove(s: Any, queue: int, w: int, r: int) -> None:
    """Takes one out of the middle."""
    previous, at = -1, s.qhead[queue, w]
    while at != r:
        previous, at = at, s.nxt[at]
    if previous < 0:
        s.qhead[queue, w] = s.nxt[r]
    else:
        s.nxt[previous] = s.nxt[r]
    if s.qtail[queue, w] == r:
        s.qtail[queue, w] = previous
    s.qlen[queue, w] -= 1
    note(s, w, queue, -1)


remove = inner(_remove)
