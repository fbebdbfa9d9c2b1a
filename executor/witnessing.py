"""Shows the arrival witness where to look: the regions of a machine's memory, and when they should have been filled."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from executor.machine import Machine
from executor.observers.arrival import ArrivalWitness
from planner.orders import Step


class Lookout:
    """One request's arrival witness, led over the machine before the steps, after staging and after the handoff."""

    def __init__(self, machine: Machine) -> None:
        self.witness = ArrivalWitness()
        self._machine = machine
        self._words: dict[tuple[str, str], int] = {}
        self._marks: dict[str, int] = {}
        self._steps = [step for step in machine.orders.steps if step.op == "handoff"]

    def before(self, zeroed: bool) -> None:
        """Mark destinations in the arena of their source; watch the bounce buffer. Zeroed memory stays zero."""
        for step in self._steps:
            if step.mode == "local" and not zeroed:
                array = self._target(step)
                word = self.witness.mark(array, self._machine.backend.arenas()[step.dst].poison)
                self._words[step.dst, _cache_name(step)] = word
            elif step.mode == "staged":
                bounce = self._machine.buffer("host:bounce", "bounce").array
                self.witness.watch_bounce(bounce, self._machine.backend.arenas()["host:bounce"].poison)

    def after_stage(self) -> None:
        """Count what arrived of the weights, device by device."""
        orders = self._machine.orders
        for device in dict.fromkeys(step.dst for step in orders.steps if step.op == "stage"):
            host = orders.device(device).host
            buffers = self._machine.buffers[device]
            weights = [buffer.array for name, buffer in buffers.items() if name.startswith("weights/")]
            word = self._machine.backend.arenas()[device].poison
            self.witness.count(("stage", "weights", host, device, host, device), weights, word)

    def after_handoff(self) -> None:
        """Count what arrived at each hop's destination, and digest both ends. Decode has not written yet."""
        for step in self._steps:
            assert step.src is not None
            assert step.tensor is not None
            src, dst = self._machine.host_of(step.src), self._machine.host_of(step.dst)
            leg_src = self._machine.orders.device(step.dst).host if step.mode == "staged" else src
            word = self._words.get((step.dst, _cache_name(step)), self._machine.backend.arenas()[step.dst].poison)
            self.witness.count(("handoff", step.tensor, src, dst, leg_src, dst), [self._target(step)], word)
        if self._steps:
            self._digest()
            for tensor, array in self._decode_cache():
                # What a copy brought beyond the prompt is garbage to be overwritten: marked, the overwriting shows.
                self._marks[tensor] = self.witness.mark(array[:, self._prompt :], self._word_of_decode())

    def after_decode(self, passes: int) -> None:
        """Count what decode wrote into its own cache: positions P to P + passes - 1."""
        if not self._marks:
            return
        self.witness.written = 0
        for tensor, array in self._decode_cache():
            self.witness.count_written(array[:, self._prompt : self._prompt + passes], self._marks[tensor])

    @property
    def _prompt(self) -> int:
        return self._machine.orders.workload.prompt_tokens

    def _word_of_decode(self) -> int:
        return self._machine.backend.arenas()[self._machine.cache_arena("decode")].poison

    def _decode_cache(self) -> list[tuple[str, npt.NDArray[Any]]]:
        arena = self._machine.cache_arena("decode")
        return [(tensor, self._machine.cache(arena, "decode", tensor).array) for tensor in ("k", "v")]

    def _target(self, step: Step) -> npt.NDArray[Any]:
        return self._machine.buffer(step.dst, _cache_name(step)).array

    def _digest(self) -> None:
        machine = self._machine
        prompt = machine.orders.workload.prompt_tokens
        for tensor in ("k", "v"):
            src, dst = (machine.cache(machine.cache_arena(p), p, tensor).array for p in ("prefill", "decode"))
            for layer in range(machine.model.n_layers):
                self.witness.digest(tensor, layer, src[layer, :prompt], dst[layer, :prompt])


def _cache_name(step: Step) -> str:
    return f"kv/{'prefill' if step.mode == 'up' else 'decode'}/{step.tensor}"
