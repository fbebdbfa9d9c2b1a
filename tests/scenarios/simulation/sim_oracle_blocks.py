"""Objects, clock and blocks of the slow oracle, step by step on plain objects, with the clock of SimPy.

Each decode step is an event of its own and times are exact fractions; blocks are counted token by token. What happens
at one instant is put in the order that the event loop promises: outages, arrivals, handoffs by request, workers.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import Any

import simpy


@dataclass(eq=False)
class Req:
    id: int
    prompt: int
    out: int
    hashes: list[int]
    state: str = "new"
    pw: int = -1
    dw: int = -1
    done: int = 0
    target: int = 0
    gen: int = 0
    kv: int = 0
    blocks: int = 0
    far_blocks: int = 0
    pins: int = 0
    chunk: int = 0
    early: str = ""
    tries: int = 0
    ousted: int = 0
    redone: int = 0
    last: int = -1
    times: dict[str, int] = field(default_factory=dict)
    token: int = 0
    rem: int = 0
    since: int = 0
    slow: int = 0
    leg: int = 0
    spans: dict[int, list[int]] = field(default_factory=dict)


@dataclass(eq=False)
class Worker:
    id: int
    role: int
    free: int
    up: bool = True
    run: list[Req] = field(default_factory=list)
    new: list[Req] = field(default_factory=list)
    arrived: list[Req] = field(default_factory=list)
    returning: list[Req] = field(default_factory=list)
    inflight: int = 0
    tokens: int = 0
    nreq: int = 0
    began: int = 0
    exact: Fraction = Fraction(0)
    busy: bool = False
    token: int = 0
    users: dict[int, int] = field(default_factory=dict)
    idle: list[int] = field(default_factory=list)
    busy_time: int = 0
    steps: int = 0
    peak: int = 0


class Blocks:
    """The clock, and the blocks of workers."""

    def __init__(self, c: Any) -> None:
        self.c = c
        self.env = simpy.Environment()
        self.due: list[tuple[int, int, int, Any]] = []
        self.tickets = count()
        self.asked = False
        self.placing = False
        self.workers = [Worker(w, int(c.role[w]), int(c.blocks[w])) for w in range(len(c.role))]
        self.requests = [
            Req(r, int(c.prompt[r]), int(c.out[r]), [int(h) for h in c.hashes[c.hash_at[r] : c.hash_at[r + 1]]])
            for r in range(len(c.arrival))
        ]
        self.no_prefill: list[Req] = []
        self.no_decode: list[Req] = []
        self.turn = {"prefill": 0, "decode": 0}
        self.link_free = [0] * c.n_links
        self.flows: list[Req] = []
        self.gaps: list[int] = []
        self.lost: list[list[Any]] = []  # handoffs that were completed, and whose request began again
        self.samples: list[tuple[int, list[list[int]]]] = []
        self.open = 0
        self.todo = len(self.requests)

    # The clock: one thing at a time, in a promised order.
    def at(self, time: int, kind: int, number: int, action: Any) -> None:
        def wait() -> Any:
            yield self.env.timeout(time - self.env.now)
            heapq.heappush(self.due, (kind, number, next(self.tickets), action))
            if not self.asked:
                self.asked = True
                self.env.process(self.handle())

        self.env.process(wait())

    def handle(self) -> Any:
        while self.due:
            # Let everything that is due now get into line first.
            while self.env.peek() == self.env.now:
                yield self.env.timeout(0)
            _, _, _, action = heapq.heappop(self.due)
            action()
            self.samples.append((self.now, self.levels()))
            yield self.env.timeout(0)
        self.asked = False

    @property
    def now(self) -> int:
        return int(self.env.now)

    def levels(self) -> list[list[int]]:
        """By worker: newcomers, arrived, returning, running, blocks held; then what no worker has."""
        rows = [
            [len(w.new), len(w.arrived), len(w.returning), len(w.run), int(self.c.blocks[w.id]) - self.room(w)]
            for w in self.workers
        ]
        return [*rows, [len(self.no_prefill), 0, 0, self.open, 0], [len(self.no_decode), 0, 0, 0, 0]]

    # Sizes.
    def ceil(self, tokens: int) -> int:
        return -(-tokens // int(self.c.block))

    def size(self, w: Worker, tokens: int) -> int:
        """Blocks of a cache; with windows or states bytes, position by position of its whole blocks."""
        blocks = self.ceil(tokens)
        if not self.c.bent:
            return blocks
        growing, *windowed = self.c.hold_each[w.id].tolist()
        total = int(self.c.hold_fixed[w.id])
        for position in range(blocks * int(self.c.block)):
            total += growing
            total += sum(n for n, most in zip(windowed, self.c.hold_windows, strict=True) if position < most)
        return total

    def never(self, r: Req) -> bool:
        def holds(role: int, tokens: int) -> bool:
            return any(w.role == role and self.size(w, tokens) <= self.c.blocks[w.id] for w in self.workers)

        whole = r.prompt + r.out - 1
        if any(w.role == 3 for w in self.workers):
            return not holds(3, whole)
        return not holds(1, r.prompt) or (r.out > 1 and not holds(2, whole))

    def shared(self) -> int:
        return self.each() if self.c.hash_tokens else 0

    def each(self) -> int:
        return int(self.c.hash_tokens) // int(self.c.block)

    def matched(self, w: Worker, r: Req) -> int:
        if not self.c.hash_tokens or not w.role & 1:
            return 0
        n = 0
        for h in r.hashes[: (r.prompt - 1) // int(self.c.hash_tokens)]:
            if h not in w.users:
                break
            n += 1
        return n

    def room(self, w: Worker) -> int:
        return w.free + len(w.idle) * (self.each() if self.c.hash_tokens else 0)

    def use(self, w: Worker, n: int) -> None:
        while w.free < n:
            del w.users[w.idle.pop(0)]
            w.free += self.each()
        w.free -= n
        w.peak = max(w.peak, int(self.c.blocks[w.id]) - self.room(w))

    def pin(self, w: Worker, h: int) -> None:
        if w.users[h] == 0:
            w.idle.remove(h)
        w.users[h] += 1

    def hold(self, w: Worker, r: Req, n: int) -> None:
        if w.role == 1:
            r.blocks += n
        else:
            r.far_blocks += n

    def release(self, w: Worker, r: Req) -> None:
        if w.role == 1:
            w.free += r.blocks
            r.blocks = 0
        else:
            w.free += r.far_blocks
            r.far_blocks = 0
        if w.role & 1:
            for h in reversed(r.hashes[: r.pins]):
                w.users[h] -= 1
                if w.users[h] == 0:
                    w.idle.append(h)
            r.pins = 0
