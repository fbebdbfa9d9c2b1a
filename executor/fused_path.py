"""The fused path: a stretch of passes as one compiled call on the memory of a phase's device, with its ledger.

Addresses and the table of places are asked of whoever runs it (`executor.hands`), so that a fault can be put in; the
call itself looks up, by address, whose memory each weight is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from executor.ledger import Ledger
from executor.machine import Machine
from executor.packed import slots
from executor.packed.layout import LAYOUT
from executor.packed.plan import Call, check_outcome, entries, make_plan, new_state, new_trace, weight_names
from executor.stretch import Span, Stretch, Walked


class FusedPath:
    """The compiled calls of one request. Their rows go into `ledger`; `step_at`: see `executor.packed.plan.Call`.

    `pace`: (mode, team) of `executor.packed.fused`.
    """

    def __init__(
        self, machine: Machine, ledger: Ledger, step_at: int = 0, pace: tuple[Any, Any] = (None, None)
    ) -> None:
        self._machine, self._ledger, self._step_at, self._pace = machine, ledger, step_at, pace
        self._tables_of: set[str] = set()
        names = weight_names(machine.model)
        self._ops = [*(("matmul", name) for name in names), ("h2d", "tokens"), ("d2h", "next_token"), ("d2h", "logits")]

    @property
    def plain(self) -> bool | None:
        """The variant of the compiled call, see `executor.packed.fused`: None for packed16, True for plain memory."""
        return None if self._machine.orders.workload.layout == LAYOUT else True

    def run(self, stretch: Stretch, address: Callable[[str], int], places: Sequence[Span]) -> Walked:
        """Walk a stretch. `address` gives the address of a buffer by name, `places` whose memory lies where.

        Raises LedgerOverflowError, BackendError for a token outside the vocabulary, and DeviceMismatchError for an
        operand that lies in no place.
        """
        from executor.packed.fused import run_phase

        book, plan = self.book(places), self.plan(stretch, address)
        ids, chosen, top1 = buffers_of(stretch)
        outcome = run_phase(plan, book, ids, chosen, top1, *self._pace, self.plain)
        check_outcome(outcome, plan, book.state)
        return self.walked(stretch, book, places, chosen, top1)

    def plan(self, stretch: Stretch, address: Callable[[str], int]) -> Any:
        """The plan of a stretch; makes the device's RoPE tables before the first of a phase."""
        from executor.packed.steps import rope_table

        machine, phase = self._machine, stretch.phase
        device = machine.device_of(phase)
        if phase not in self._tables_of:
            positions = machine.buffer(device, "work/rope_cos").shape[0]
            rope_table(address("work/rope_cos"), address("work/rope_sin"), positions, machine.model.head_dim)
            self._tables_of.add(phase)
        call = Call(
            phase=phase, order=stretch.order, first=stretch.first, passes=stretch.passes,
            positions=machine.cache(device, phase, "k").shape[1], chunk=stretch.chunk,
            wants_logits=stretch.wants_logits, continues=stretch.continues, layout=machine.orders.workload.layout,
            step_at=self._step_at, sampler=0 if machine.sampler is None else machine.sampler.address,
        )  # fmt: skip
        return make_plan(machine.model, call, address)

    def book(self, places: Sequence[Span]) -> Any:
        """What a call writes: the ledger's own rows, a code a place and operation, and the traces."""
        from executor.packed.fused import Book

        rows, count = self._ledger.room()
        table = [[span.start, span.end, 2 * i, 2 * i + 1] for i, span in enumerate(places)]
        codes = np.arange(len(places) * slots.OP_CODES, dtype=np.int64).reshape(-1, slots.OP_CODES)
        trace = new_trace(self._machine.model)
        return Book(rows=rows, places=np.array(table, np.int64), codes=codes, trace=trace, state=new_state(count))

    def walked(self, stretch: Stretch, book: Any, places: Sequence[Span], chosen: Any, top1: Any) -> Walked:
        """What a call came to, its rows taken into the ledger."""
        state, model, orders = book.state, self._machine.model, self._machine.orders
        ends = [(span.device, orders.device(span.device).host) for span in places]
        self._ledger.absorb(int(state[slots.LEDGER_ROWS]), stretch.phase, ends, self._ops)
        passes = int(state[slots.PASSES_MADE])
        made = [i for i in range(passes) if chosen[i] >= 0]
        kinds = {wants: entries(book.trace, state, slots.KNOWN + wants, model) for wants in (False, True)}
        return Walked(
            chosen=[int(chosen[i]) for i in made], top1_bits=[int(top1[i]) for i in made], passes=passes,
            programs={wants: operations for wants, operations in kinds.items() if operations is not None},
            odd=entries(book.trace, state, slots.ODD, model),
        )  # fmt: skip


def buffers_of(stretch: Stretch) -> tuple[Any, Any, Any]:
    """ids in, chosen ids and bits of the largest logits out, an entry a pass; -1 where a pass chooses none."""
    passes = stretch.passes
    return np.array(stretch.ids, np.int32), np.full(passes, -1, np.int32), np.zeros(passes, np.uint32)
