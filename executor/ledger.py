"""Events -> counted bytes per edge. A fold with no access to any predicted number.

Rows are fixed int64, version 1; text (tensor names, ends of a row) is kept once, in a table that the `op` column points
into. The ledger counts what buffers said of themselves; whether bytes arrived is the witnesses' affair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.events import Copied, Dispatched, Event
from fleet.errors import LedgerOverflowError

LEDGER_VERSION = 1
COLUMNS = ("seq", "phase", "order", "op", "src", "dst", "layer", "pos0", "n_pos", "bytes", "passes")
PHASES = ("stage", "prefill", "handoff", "decode")

_PER_PASS_ROWS = {("prefill", "tokens"), ("decode", "next_token"), ("decode", "logits")} | {
    (phase, tensor) for phase in ("prefill", "decode") for tensor in ("act_in", "act_out")
}
_SEQ, _PHASE, _ORDER, _OP, _SRC, _DST, _LAYER, _POS0, _N_POS, _BYTES, _PASSES = range(len(COLUMNS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A device as the ledger words it: `ordinal` and `uuid` as the backend knows them. Any other end is a host."""

    id: str
    kind: str
    topology_id: int
    ordinal: int | None = None
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class _Op:
    """What a row's `op` stands for: a matmul on `src`, or one leg of the row `row_src` -> `row_dst`."""

    phase: str
    kind: str
    tensor: str
    src: str
    dst: str
    row_src: str
    row_dst: str


def row_kind(kinds: Mapping[str, str], src: str, dst: str) -> str:
    """Kind of a row by its ends; `kinds` holds the kind of every device, any other end is a host."""
    if src == dst:
        return "d2d"
    ends = (src in kinds, dst in kinds)
    return {(True, True): "p2p", (True, False): "d2h", (False, True): "h2d"}.get(ends, "h2h")


def leg_kind(kinds: Mapping[str, str], src: str, dst: str) -> str:
    """Kind of a leg: as a row, but a copy between a CPU device and another is, to the driver, an up or a down copy."""
    kind = row_kind(kinds, src, dst)
    if kind != "p2p" or kinds[src] == kinds[dst] or "cpu" not in (kinds[src], kinds[dst]):
        return kind
    return "h2d" if kinds[src] == "cpu" else "d2h"


class Ledger:
    """Preallocated rows, written by `hear` in the order of events. Raises LedgerOverflowError when they are full."""

    def __init__(self, capacity: int, places: Sequence[Place]) -> None:
        self._rows: npt.NDArray[np.int64] = np.empty((capacity, len(COLUMNS)), np.int64)
        self._count = 0
        self._places: Mapping[str, Place] = {place.id: place for place in places}
        self._kinds = {place.id: place.kind for place in places}
        self._ends: dict[str, int] = {}
        self._ops: list[_Op] = []
        self._copy_codes: dict[tuple[str, ...], tuple[int, int, int, int]] = {}
        self._dispatch_codes: dict[tuple[str, str, str], tuple[int, int, int]] = {}

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """The rows written so far, (n, 11) int64, columns as COLUMNS names them; `passes` counts forward passes."""
        return self._rows[: self._count]

    @property
    def ops(self) -> tuple[_Op, ...]:
        """What the `op` column points into."""
        return tuple(self._ops)

    def hear(self, event: Event) -> None:
        """Write the row of a copy or of a matmul; other events move nothing."""
        if isinstance(event, Dispatched):
            if event.op == "matmul":
                self._dispatched(event)
        elif isinstance(event, Copied):
            self._copied(event)

    def room(self) -> tuple[npt.NDArray[np.int64], int]:
        """(all rows, those written): for a compiled call, which writes on from there, see `absorb`."""
        return self._rows, self._count

    def absorb(self, count: int, phase: str, ends: Sequence[tuple[str, str]], ops: Sequence[tuple[str, str]]) -> None:
        """Take in the rows that a compiled call of `phase` wrote, up to row `count`, and give them their codes.

        Such a row's op is place * len(ops) + slot, its src and dst are 2 * place for the device of `ends[place]` and
        2 * place + 1 for its host. `ops`: (kind, tensor) by slot.
        """
        rows = self._rows[self._count : count]
        given = rows[:, _OP].copy()
        codes, first = np.unique(given, return_index=True)
        for code in codes[np.argsort(first)].tolist():
            place, slot = divmod(code, len(ops))
            (kind, tensor), (device, host) = ops[slot], ends[place]
            if kind == "matmul":
                _, op, src = self._codes_of_dispatch(phase, device, tensor)
                dst = src
            else:
                src_end, dst_end = (host, device) if kind == "h2d" else (device, host)
                _, op, src, dst = self._codes_of_copy(phase, kind, tensor, src_end, dst_end, "", "")
            mine = given == code
            rows[mine, _OP], rows[mine, _SRC], rows[mine, _DST] = op, src, dst
        self._count = count

    def _dispatched(self, event: Dispatched) -> None:
        label = event.label
        phase, op_code, device = self._codes_of_dispatch(label.phase, event.device, label.tensor)
        self._write(phase, label.order, op_code, device, device, label.layer, label.pos0, label.n_pos, 0, label.n_pos)

    def _codes_of_dispatch(self, phase: str, device: str, tensor: str) -> tuple[int, int, int]:
        key = (phase, device, tensor)
        codes = self._dispatch_codes.get(key)
        if codes is None:
            op = _Op(phase, "matmul", tensor, device, device, device, device)
            codes = self._dispatch_codes[key] = (PHASES.index(phase), self._new_op(op), self._end(device))
        return codes

    def _copied(self, event: Copied) -> None:
        label = event.label
        phase, op_code, src_code, dst_code = self._codes_of_copy(
            label.phase, event.kind, label.tensor, event.src, event.dst, label.row_src, label.row_dst
        )
        passes = label.n_pos if label.step >= 0 else 0
        self._write(
            phase, label.order, op_code, src_code, dst_code, label.layer, label.pos0, label.n_pos, event.nbytes, passes
        )

    def _codes_of_copy(
        self, phase: str, kind: str, tensor: str, src: str, dst: str, row_src: str, row_dst: str
    ) -> tuple[int, int, int, int]:
        key = (phase, kind, tensor, src, dst, row_src, row_dst)
        codes = self._copy_codes.get(key)
        if codes is None:
            leg = leg_kind(self._kinds, src, dst) if kind == "p2p" else kind
            op = _Op(phase, leg, tensor, src, dst, row_src or src, row_dst or dst)
            codes = (PHASES.index(phase), self._new_op(op), self._end(src), self._end(dst))
            self._copy_codes[key] = codes
        return codes

    def _write(self, *values: int) -> None:
        count = self._count
        if count == len(self._rows):
            raise LedgerOverflowError(f"the ledger holds {count:,} rows and a further event came; make it larger")
        self._rows[count] = (count, *values)
        self._count = count + 1

    def _new_op(self, op: _Op) -> int:
        self._ops.append(op)
        return len(self._ops) - 1

    def _end(self, name: str) -> int:
        return self._ends.setdefault(name, len(self._ends))

    def waybill_rows(self, prompt_tokens: int, passes: Mapping[str, int]) -> list[dict[str, Any]]:
        """The rows of the contract's waybill, in order of first appearance, each with its legs.

        A row's bytes are those that reached its end: the legs that lead there. `payload_bytes` counts the positions
        below `prompt_tokens` only; `per_pass` is there when each of the `passes` made (by phase) moved the same.
        """
        out = []
        drawn = any((op.phase, op.tensor) == ("decode", "logits") for op in self._ops)
        every_pass = _PER_PASS_ROWS | ({("decode", "tokens")} if drawn else set())
        for (phase, tensor, src, dst), op_codes in self._grouped().items():
            legs = [self._leg(code) for code in op_codes]
            arrived = [leg for leg in legs if leg["dst"] == dst]
            last = [code for code, leg in zip(op_codes, legs, strict=True) if leg["dst"] == dst]
            row: dict[str, Any] = {"phase": phase, "tensor": tensor, "src": src, "dst": dst}
            row |= {"kind": row_kind(self._kinds, src, dst), "legs": legs}
            row["payload_bytes"] = sum(self._payload(code, prompt_tokens) for code in last)
            row["bytes"] = sum(leg["bytes"] for leg in arrived)
            row["copies"] = sum(leg["copies"] for leg in arrived)
            made = passes.get(phase, 0) if (phase, tensor) in every_pass else 0
            out.append(row | _per_pass(row, made))
        return out

    def _grouped(self) -> dict[tuple[str, str, str, str], list[int]]:
        groups: dict[tuple[str, str, str, str], list[int]] = {}
        for code, op in enumerate(self._ops):
            if op.kind != "matmul":
                groups.setdefault((op.phase, op.tensor, op.row_src, op.row_dst), []).append(code)
        return groups

    def _of(self, op_code: int) -> npt.NDArray[np.int64]:
        rows = self.rows
        return np.compress(rows[:, _OP] == op_code, rows, axis=0)

    def _leg(self, op_code: int) -> dict[str, Any]:
        op, rows = self._ops[op_code], self._of(op_code)
        nbytes = int(rows[:, _BYTES].sum())
        return {"src": op.src, "dst": op.dst, "kind": op.kind, "link": None, "bytes": nbytes, "copies": len(rows)}

    def _payload(self, op_code: int, prompt_tokens: int) -> int:
        rows = self._of(op_code)
        if self._ops[op_code].tensor not in ("k", "v"):
            return int(rows[:, _BYTES].sum())
        n_pos = np.maximum(rows[:, _N_POS], 1)
        filled = np.clip(prompt_tokens - rows[:, _POS0], 0, n_pos)
        return int((rows[:, _BYTES] // n_pos * filled).sum())

    def edges(self) -> list[dict[str, Any]]:
        """The sums of all legs by (src, dst, kind), sorted."""
        sums: dict[tuple[str, str, str], list[int]] = {}
        for code, op in enumerate(self._ops):
            if op.kind != "matmul":
                leg = self._leg(code)
                held = sums.setdefault((op.src, op.dst, op.kind), [0, 0])
                held[0] += leg["bytes"]
                held[1] += leg["copies"]
        return [
            {"src": src, "dst": dst, "kind": kind, "bytes": nbytes, "copies": copies}
            for (src, dst, kind), (nbytes, copies) in sorted(sums.items())
        ]

    def _matmuls(self) -> npt.NDArray[np.int64]:
        matmuls = [code for code, op in enumerate(self._ops) if op.kind == "matmul"]
        return self.rows[np.isin(self.rows[:, _OP], matmuls)]

    def dispatches(self) -> list[dict[str, Any]]:
        """The matmuls in order, run-length coded by phase and device: one stray dispatch makes an entry of its own.

        `first_step` and `last_step` number forward passes from 0, both inclusive.
        """
        rows = self._matmuls()
        if not len(rows):
            return []
        keys = rows[:, (_PHASE, _SRC)]
        starts = np.concatenate(([0], np.flatnonzero((keys[1:] != keys[:-1]).any(axis=1)) + 1, [len(rows)]))
        return [self._run_of(rows[first:last]) for first, last in pairwise(starts)]

    def _run_of(self, rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        device = next(name for name, code in self._ends.items() if code == rows[0, _SRC])
        place = self._places[device]
        return {
            "phase": PHASES[rows[0, _PHASE]],
            "device": device,
            "topology_id": place.topology_id,
            "ordinal": place.ordinal,
            "uuid": place.uuid,
            "count": len(rows),
            "first_step": int(rows[0, _POS0]),
            "last_step": int((rows[:, _POS0] + rows[:, _N_POS] - 1).max()),
        }


def _per_pass(row: Mapping[str, Any], passes: int) -> dict[str, Any]:
    if not passes or row["bytes"] % passes or row["copies"] % passes or row["copies"] < passes:
        return {}
    return {"per_pass": {"bytes": row["bytes"] // passes, "copies": row["copies"] // passes}}
