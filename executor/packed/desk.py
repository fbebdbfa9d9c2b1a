"""Packed devices on their own: arenas, staging, handoff and calls, without orders. For tests and benchmarks.

A request of the product goes through `executor.run`; what is here shows the same memory and the same compiled call to
whoever wants to look at one of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.arena import Arena, poison_word
from executor.packed import slots
from executor.packed.fused import Book, run_phase
from executor.packed.jit import start_threads
from executor.packed.lanes import STRICT
from executor.packed.layout import ALIGNMENT, LAYOUT, kv_index, pack, packed_kv, read_kv, write_kv
from executor.packed.pages import advise_large_pages
from executor.packed.plan import Call, Memory, check_outcome, entries, make_plan, memory_of, new_state, new_trace
from executor.packed.steps import rope_table
from fleet.model import Model

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """`chosen` ids and the bits of their logits, a pass each; `entries` of the traced forward call; `passes` made."""

    chosen: list[int]
    top1_bits: list[int]
    passes: int
    entries: list[Any]


class Desk:
    """One device: an arena with the buffers of `memory_of`, poisoned, then staged from wire tensors."""

    def __init__(
        self, name: str, model: Model, phases: tuple[str, ...], positions: int, chunk: int, request: int = 0
    ) -> None:
        self.name, self.model, self.positions, self.chunk = name, model, positions, chunk
        self.memory: dict[str, Memory] = {m.name: m for m in memory_of(model, phases, positions, chunk)}
        sizes = [-(-_nbytes(m) // ALIGNMENT) * ALIGNMENT for m in self.memory.values()]
        self.arena = Arena(name, sum(sizes), poison_word(name, request))
        advise_large_pages(self.arena.address, self.arena.fence)
        self.arrays: dict[str, Array] = {}
        for m in self.memory.values():
            offset = self.arena.allocate(m.name, _nbytes(m), ALIGNMENT)
            self.arrays[m.name] = self.arena.view(offset, m.shape, m.dtype)

    def stage(self, tensor: Callable[[str], Array]) -> None:
        """Copy every weight up, packing on the way, and make the RoPE tables."""
        for m in self.memory.values():
            prefix, _, name = m.name.partition("/")
            if prefix == "weights" and m.layout == LAYOUT:
                pack(tensor(name), self.arrays[m.name])
            elif prefix == "weights":
                np.copyto(self.arrays[m.name], tensor(name))
        rope_table(
            self.address("work/rope_cos"), self.address("work/rope_sin"), self.positions, self.model.head_dim
        )  # fmt: skip

    def address(self, name: str) -> int:
        """The address of a buffer."""
        return int(self.arrays[name].ctypes.data)

    def kv(self, phase: str, n_positions: int) -> tuple[Array, Array]:
        """Both caches of a phase in wire order: (layers, positions, kv_dim) copies of the first positions."""
        k, v = (self._read(phase, tensor, n_positions) for tensor in ("k", "v"))
        return k, v

    def _read(self, phase: str, tensor: Any, n_positions: int) -> Array:
        model = self.model
        shape = packed_kv(tensor, model.n_layers, self.positions, model.n_kv_heads, model.head_dim)
        index = kv_index(tensor, shape, 0, n_positions)
        return np.stack([read_kv(layer, index) for layer in self.arrays[f"kv/{phase}/{tensor}"]])

    def receive(self, phase: str, k: Array, v: Array) -> None:
        """Fill both caches of a phase from wire order (layers, positions, kv_dim)."""
        model = self.model
        for tensor, wire in (("k", k), ("v", v)):
            kind: Any = tensor
            shape = packed_kv(kind, model.n_layers, self.positions, model.n_kv_heads, model.head_dim)
            index = kv_index(kind, shape, 0, wire.shape[1])
            for layer, values in zip(self.arrays[f"kv/{phase}/{tensor}"], wire, strict=True):
                write_kv(layer, index, values)

    def _entries(self, book: Book) -> list[Any]:
        """Of a call that differs from its like, else of one with logits, else of one without."""
        tables = (slots.ODD, slots.KNOWN + 1, slots.KNOWN)
        return next(e for table in tables if (e := entries(book.trace, book.state, table, self.model)) is not None)

    def call(
        self, call: Call, ids: Sequence[int], *, mode: Any = STRICT, book: Book | None = None, threads: int = 1
    ) -> Outcome:
        """Run one phase. `book`: tables and ledger of the caller's; by default a ledger of its own, thrown away.

        `threads` above 1 shares the matmuls out over as many of numba's threads, of which there must be so many.
        """
        plan = make_plan(self.model, call, self.address)
        own = own_book([self], self.model, call.passes) if book is None else book
        chosen, top1 = np.full(call.passes, -1, np.int32), np.zeros(call.passes, np.uint32)
        own.state[slots.PASSES_MADE], own.state[slots.TRACED :] = 0, -1
        team = None if threads == 1 else threads
        if team is not None:
            start_threads(team)
        check_outcome(run_phase(plan, own, np.array(ids, np.int32), chosen, top1, mode, team, None), plan, own.state)
        passes = int(own.state[slots.PASSES_MADE])
        computed = [i for i in range(passes) if chosen[i] >= 0]
        return Outcome(
            chosen=[int(chosen[i]) for i in computed],
            top1_bits=[int(top1[i]) for i in computed],
            passes=passes,
            entries=self._entries(own),
        )


def own_book(desks: Sequence[Desk], model: Model, passes: int) -> Book:
    """A book for calls on these desks, with room for `passes` forward calls of one token and codes of its own."""
    places = np.array(
        [[d.arena.address, d.arena.address + d.arena.fence, i + 1, 0] for i, d in enumerate(desks)], np.int64
    )
    codes = np.arange(len(desks) * slots.OP_CODES, dtype=np.int64).reshape(len(desks), slots.OP_CODES)
    rows = np.zeros((passes * (7 * model.n_layers + 3), 11), np.int64)
    return Book(rows=rows, places=places, codes=codes, trace=new_trace(model), state=new_state())


def _nbytes(memory: Memory) -> int:
    return int(np.prod(memory.shape)) * 4
