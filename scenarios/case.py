"""What the checks look at: two documents, their compared rows, what a short run could be held to, further runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]

BOS = 1
"""llama2.c's id for the beginning of a sequence; sampled or forced, it ends the walk (run.c)."""


def ends_walk(run: Document) -> int | None:
    """The id that ends a run, and with which each begins: BOS, by the tensors of its program; None where there is none.

    A checkpoint that is not llama2.c's begins with whatever its prompt begins with, and makes the passes planned.
    """
    tensors = {entry["tensor"] for phase in (run.get("program") or {}).values() for entry in phase} - {""}
    return BOS if not tensors or "wq" in tensors else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """The further runs that a proof rests on.

    single_device    the oracle's run of the same request: prefill and decode on one device
    without_handoff  how decode's memory stood (`poisoned`, `zeroed`) -> the run with the handoff deleted
    lost             memory that the executor poisoned as decode began -> the run that resulted
    """

    single_device: Document | None = None
    without_handoff: Mapping[str, Document] = field(default_factory=dict)
    lost: Mapping[str, Document] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What a run may be held to: the plan's passes, or fewer where BOS stopped the run early."""

    full: Mapping[str, int]
    made: Mapping[str, int]
    prompt_tokens: int
    prefill_chunk: int
    handed_over: bool = False
    """Whether the run counted any handoff copy."""

    @classmethod
    def of(cls, plan: Document, run: Document) -> Expected:
        """The passes that the plan foresees, cut to those made where BOS stopped the run.

        The run's word for it is not enough: its last id must be BOS, or a run that merely gave up would pass.
        """
        full = {phase: (plan.get("passes") or {}).get(phase, 0) for phase in ("prefill", "decode")}
        made = full
        if run["stopped"] == "bos" and run["tokens"][-1:] == [ends_walk(run)]:
            made = {phase: min(full[phase], run["passes"][phase]) for phase in full}
        work = plan["orders"]["workload"]
        handed_over = any(row["phase"] == "handoff" and row["bytes"] for row in run["waybill"])
        return cls(
            full=full,
            made=made,
            prompt_tokens=work["prompt_tokens"],
            prefill_chunk=work["prefill_chunk"],
            handed_over=handed_over,
        )

    @property
    def shortened(self) -> bool:
        """Whether BOS stopped the run before its last planned pass."""
        return self.made != self.full

    @property
    def decodes(self) -> bool:
        """Whether a decode pass was made: without one, nothing about the split can be told."""
        return self.made["decode"] > 0

    def scale(self, row: Document, nbytes: int | None, copies: int | None) -> tuple[int | None, int | None]:
        """(bytes, copies) of a leg of this row for the passes made.

        Rows of a pass scale with the passes of their phase. The rest are there once or not at all: decode's first
        token when decode began, prefill's sampled token when the whole prompt was walked. The handoff must be there
        when decode began; where BOS was the very first chosen token it may be left out, but not in part.
        """
        phase = row["phase"]
        if phase == "stage" or nbytes is None or copies is None:
            return nbytes, copies
        if phase == "prefill" and row["tensor"] == "tokens" and self.prefill_chunk > 1:
            return self._calls(nbytes, copies)
        if row.get("per_pass"):
            full, made = self.full[phase], self.made[phase]
            return (nbytes * made // full, copies * made // full) if full else (nbytes, copies)
        happened = {
            "prefill": self.made["prefill"] >= self.prompt_tokens,
            "handoff": self.decodes or self.handed_over,
            "decode": self.decodes,
        }[phase]
        return (nbytes, copies) if happened else (0, 0)

    def _calls(self, nbytes: int, copies: int) -> tuple[int, int]:
        """Prefill of several positions a call: ids by position, copies by call."""
        full, made = self.full["prefill"], self.made["prefill"]
        calls = -(-made // self.prefill_chunk)
        return nbytes * made // full, copies * calls // max(1, -(-full // self.prefill_chunk))

    def dispatches(self, plan: Document, phase: str) -> int | None:
        """Dispatches of a phase for the passes made; None = the plan does not say. Every decode pass has the same."""
        total = (plan.get("dispatches") or {}).get(phase)
        full, made = self.full[phase], self.made[phase]
        return total if total is None or full == made or not full else int(total) * made // full


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One comparison, as the checks see it. `expected` is None unless a plan is set beside a run."""

    a: Document
    b: Document
    rows: list[Document]
    expected: Expected | None = None
    proof: Proof | None = None

    @property
    def orders(self) -> Document:
        """The plan's orders. Only for plan with run."""
        orders: Document = self.a["orders"]
        return orders

    @property
    def is_oracle(self) -> bool:
        """Whether both phases are placed on one device."""
        return bool(self.orders["prefill"] == self.orders["decode"])

    def topology_id(self, device_id: str) -> int | None:
        """The ordered device's topology id."""
        return next((d["topology_id"] for d in self.orders["devices"] if d["id"] == device_id), None)
