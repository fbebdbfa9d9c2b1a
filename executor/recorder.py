"""What a run remembers of itself: ids, the program that was really called, the largest logits, times."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from executor.instance import BaseInstance, Entry
from executor.stretch import Walked
from planner.orders import Step


@dataclass(slots=True)
class Recorder:
    """Filled call by call. `tokens` are the ids walked, `generated` the chosen ones, `passes` by phase."""

    tokens: list[int] = field(default_factory=list)
    generated: list[int] = field(default_factory=list)
    top1_bits: list[int] = field(default_factory=list)
    passes: dict[str, int] = field(default_factory=lambda: {"prefill": 0, "decode": 0})
    seconds: dict[str, float] = field(default_factory=lambda: {"prefill": 0.0, "decode": 0.0})
    spans: list[dict[str, Any]] = field(default_factory=list)
    _began_ns: int | None = None
    _first_pass_at: float | None = None
    _last_pass_at: float = 0.0
    _known: dict[tuple[str, bool], list[Entry]] = field(default_factory=dict)
    _odd: dict[str, list[Entry]] = field(default_factory=dict)

    def span(self, step: Step, began: int, ended: int) -> None:
        """Book one order, from call to return, in ns of the host's monotonic clock.

        Orders that follow each other on one device or edge are one span, which then holds what lies between them.
        """
        if self._began_ns is None:
            self._began_ns = began
        where = {"phase": step.op, "tensor": step.tensor if step.op == "handoff" else None}
        where |= {"src": "host" if step.op == "stage" else step.src, "dst": step.dst}
        end = {"end_ns": ended - self._began_ns}
        last = self.spans[-1] if self.spans else None
        if last is not None and all(last[name] == value for name, value in where.items()):
            last |= end | {"orders": last["orders"] + 1}
            return
        self.spans.append(where | {"orders": 1, "start_ns": began - self._began_ns} | end)

    def call(self, instance: BaseInstance, n_tokens: int, began: float) -> None:
        """Book one forward call, from its start (`time.perf_counter`) to now."""
        now = time.perf_counter()
        phase = instance.phase
        self.passes[phase] += n_tokens
        self.seconds[phase] += now - began
        if self._first_pass_at is None:
            self._first_pass_at = now
        self._last_pass_at = now
        if instance.wants_logits:
            self.top1_bits.append(instance.top1_bits)
        self._learn(phase, instance.wants_logits, instance.entries)

    def walk(self, phase: str, walked: Walked, began: float) -> None:
        """Book a stretch of passes that was one compiled call, from its start to now."""
        now = time.perf_counter()
        self.passes[phase] += walked.passes
        self.seconds[phase] += now - began
        if self._first_pass_at is None:
            self._first_pass_at = now
        self._last_pass_at = now
        self.top1_bits += walked.top1_bits
        for wants_logits, entries in walked.programs.items():
            self._learn(phase, wants_logits, entries)
        if walked.odd is not None:
            self._odd.setdefault(phase, walked.odd)

    def _learn(self, phase: str, wants_logits: bool, entries: list[Entry]) -> None:
        known = self._known.setdefault((phase, wants_logits), entries)
        if known is not entries and known != entries:
            self._odd.setdefault(phase, entries)

    def program(self, phase: str) -> list[Entry]:
        """The operations of one forward call: the one with logits where there was one.

        A call that differed from its like is given instead, so that one odd call in the middle shows.
        """
        alike = self._known.get((phase, True), self._known.get((phase, False), []))
        return self._odd.get(phase, alike)

    def tokens_per_second(self, phase: str) -> float | None:
        """Forward passes of a phase by its own time; None when there were none."""
        passes, seconds = self.passes[phase], self.seconds[phase]
        return passes / seconds if passes and seconds > 0 else None

    def llama2c_tokens_per_second(self) -> float | None:
        """run.c's own figure: (passes - 1) by the time since the first pass ended, in whole milliseconds.

        None with one pass, and below a millisecond, where run.c would divide by zero.
        """
        passes = sum(self.passes.values())
        if passes <= 1 or self._first_pass_at is None:
            return None
        elapsed_ms = int(self._last_pass_at * 1000) - int(self._first_pass_at * 1000)
        return (passes - 1) / elapsed_ms * 1000 if elapsed_ms else None
