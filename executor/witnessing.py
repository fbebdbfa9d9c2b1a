"""Shows the arrival witness where to look: the regions of a machine's memory, and when they should have been filled."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from executor.buffer import Buffer
from executor.machine import Machine
from executor.observers.arrival import ArrivalWitness, Digest
from executor.observers.digest import tree_digest
from planner.orders import Step


@runtime_checkable
class SeenByDriver(Protocol):
    """A backend whose driver keeps an account of its own: of every copy, whoever asked for it."""

    def begin_trace(self) -> str | None:
        """Start to look; one sentence where nobody can."""

    def end_trace(self) -> Any:
        """What the driver saw (`executor.cuda.witness.DriverSight`); None when nobody looked."""

    def report(self) -> dict[str, Any]:
        """Versions, settings, peers, and the device that was current at each dispatch."""


def out_of_reach(machine: Machine) -> frozenset[str]:
    """Devices whose memory this process cannot look at in place: what arrives there, their driver has to tell."""
    return frozenset(name for name, arena in machine.backend.arenas().items() if not arena.addressable)


class Lookout:
    """One request's arrival witness, led over the machine before the steps, after staging and after the handoff."""

    def __init__(self, machine: Machine) -> None:
        self.witness = ArrivalWitness()
        self._machine = machine
        self._words: dict[tuple[str, str], int] = {}
        self._marks: dict[str, int] = {}
        self._steps = [step for step in machine.orders.steps if step.op == "handoff"]
        self._far = out_of_reach(machine)

    def before(self, zeroed: bool) -> None:
        """Mark destinations in the arena of their source; watch the bounce buffer. Zeroed memory stays zero."""
        for step in self._steps:
            if step.mode == "local" and not zeroed and step.dst not in self._far:
                target = self._target(step)
                mark = self.witness.mark_of(self._machine.backend.arenas()[step.dst].poison)
                target.put(np.full(target.wire_shape, mark, np.uint32))
                self._words[step.dst, _cache_name(step)] = mark
            elif step.mode == "staged":
                bounce = self._machine.buffer("host:bounce", "bounce").array
                self.witness.watch_bounce(bounce, self._machine.backend.arenas()["host:bounce"].poison)

    def after_stage(self) -> None:
        """Count what arrived of the weights, device by device."""
        orders = self._machine.orders
        staged = dict.fromkeys(step.dst for step in orders.steps if step.op == "stage")
        for device in (name for name in staged if name not in self._far):
            host = orders.device(device).host
            buffers = self._machine.buffers[device]
            weights = [buffer for name, buffer in buffers.items() if name.startswith("weights/")]
            word = self._machine.backend.arenas()[device].poison
            self.witness.count(
                ("stage", "weights", host, device, host, device), (weight.wire() for weight in weights), word
            )
            self._watch_padding("stage", host, device, weights, word)

    def after_handoff(self) -> None:
        """Count what arrived at each hop's destination, and digest both ends. Decode has not written yet."""
        for step in self._steps:
            assert step.src is not None
            assert step.tensor is not None
            src, dst = self._machine.host_of(step.src), self._machine.host_of(step.dst)
            leg_src = self._machine.orders.device(step.dst).host if step.mode == "staged" else src
            word = self._words.get((step.dst, _cache_name(step)), self._machine.backend.arenas()[step.dst].poison)
            if step.dst in self._far:
                continue
            self.witness.count(("handoff", step.tensor, src, dst, leg_src, dst), [self._target(step).wire()], word)
            poison = self._machine.backend.arenas()[step.dst].poison
            self._watch_padding("handoff", src, dst, [self._target(step)], poison)
        if self._steps:
            self._digest()
            mark = self.witness.mark_of(self._word_of_decode())
            for tensor, cache in self._decode_cache():
                # What a copy brought beyond the prompt is garbage to be overwritten: marked, the overwriting shows.
                self._marks[tensor] = mark
                mark_after(cache, self._prompt, mark)

    def after_decode(self, passes: int) -> None:
        """Count what decode wrote into its own cache: positions P to P + passes - 1."""
        if not self._marks:
            return
        self.witness.written = 0
        device = self._machine.orders.decode
        for tensor, cache in self._decode_cache():
            span = (self._prompt, self._prompt + passes)
            self.witness.count_written(words_other_than(cache, span, self._marks[tensor]))
            self._watch_padding("decode", device, device, [cache], self._word_of_decode())

    def _watch_padding(self, phase: str, src: str, dst: str, buffers: list[Buffer], word: int) -> None:
        """Words of a layout's padding that hold something else than before: no copy may bring them, no work write them.

        They are witnessed as a row of their own, which no plan has.
        """
        padding = [lanes for lanes in (buffer.padding() for buffer in buffers) if lanes is not None]
        self.witness.count_padding((phase, "layout_padding", src, dst, src, dst), padding, word)

    @property
    def _prompt(self) -> int:
        return self._machine.orders.workload.prompt_tokens

    def _word_of_decode(self) -> int:
        return self._machine.backend.arenas()[self._machine.cache_arena("decode")].poison

    def _decode_cache(self) -> list[tuple[str, Buffer]]:
        arena = self._machine.cache_arena("decode")
        return [(tensor, self._machine.cache(arena, "decode", tensor)) for tensor in ("k", "v")]

    def _target(self, step: Step) -> Buffer:
        return self._machine.buffer(step.dst, _cache_name(step))

    def _digest(self) -> None:
        machine = self._machine
        prompt = machine.orders.workload.prompt_tokens
        for tensor in ("k", "v"):
            ends = [machine.cache(machine.cache_arena(p), p, tensor) for p in ("prefill", "decode")]
            digests = zip(*(layer_digests(cache, prompt) for cache in ends), strict=True)
            self.witness.digests += [Digest(tensor, layer, *pair) for layer, pair in enumerate(digests)]


def layer_digests(cache: Buffer, positions: int) -> list[str]:
    """The digest of each layer of a cache (L, positions, KD) over its first positions, where the cache lies."""
    if cache.packing is not None:
        return [tree_digest(layer[:positions].tobytes()) for layer in cache.wire()]
    return cache.block.arena.digests(*_ranges(cache, (0, positions)))


def words_other_than(cache: Buffer, span: tuple[int, int], word: int) -> int:
    """How many words of the positions [first, last) of every layer are not `word`."""
    if cache.packing is not None:
        return int(np.count_nonzero(cache.wire()[:, slice(*span)] != np.uint32(word)))
    return cache.block.arena.count_other(*_ranges(cache, span), word)


def mark_after(cache: Buffer, first: int, word: int) -> None:
    """Fill every layer of a cache with `word` from a position on."""
    if cache.packing is not None:
        words = cache.wire()
        words[:, first:] = word
        cache.put(words)
    elif first < cache.shape[1]:
        for layer in range(cache.shape[0]):
            cache.at(layer).view(first, cache.shape[1] - first).fill(word)


def _ranges(cache: Buffer, span: tuple[int, int]) -> tuple[int, int, int, int]:
    """(offset in the arena, bytes, stride, count) of positions [first, last) of every layer, as far as they exist."""
    layers, positions, _ = cache.shape
    first, last = (min(at, positions) for at in span)
    offset = cache.address - cache.block.arena.address
    row = cache.nbytes // (layers * positions)
    return offset + row * first, row * max(last - first, 0), row * positions, layers


def _cache_name(step: Step) -> str:
    return f"kv/{'prefill' if step.mode == 'up' else 'decode'}/{step.tensor}"
