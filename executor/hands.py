"""Hands: everything that a run does to memory goes through these few methods, so that a fault can be put in on purpose.

A sabotage is a subclass that overrides one method. `Buffer.array` (raw memory, past the ABI) and `hear` (the account
that the ledger gets) are what it lies with. Which method for what:

    prepare      an allocation that nobody ordered; memory filled with something else
    stage        weights missing on a device
    handoff      the handoff deleted
    copy         a copy made twice, cut short, or skipped but told to `hear`
    source       K for V, another layer
    cache        a phase that works on the other phase's array
    program      another function body for a phase
    instance     a phase that runs on another device
    dispatch     one matmul elsewhere, or no dispatch at all
    hear         an account that says something else than what was done

and, where a phase is one compiled call (`--path fused`), in place of cache, program, instance and dispatch:

    address      a buffer of a phase that lies elsewhere
    places       whose memory the account takes an address for
    phase        anything that a whole phase does
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from executor.device import Buffer
from executor.events import Event, Label
from executor.instance import BaseInstance, DeviceInstance, HostInstance, Phase
from executor.machine import Machine
from executor.stretch import Span, Stretch, Walked
from executor.transformer import Cache, transformer
from planner.orders import Step

if TYPE_CHECKING:
    from executor.fused_path import FusedPath
    from executor.weights import Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One copy of a handoff step: `tensor` of one layer (or, layer -1, the whole array), positions [p0, p1).

    `src` and `dst` are arenas, `src_phase` and `dst_phase` name the cache in them. A staged piece has two legs.
    """

    order: int
    mode: str
    tensor: str
    layer: int
    p0: int
    p1: int
    src: str
    dst: str
    src_phase: Phase
    dst_phase: Phase


class Hands:
    """What a run does, in the order of the orders. `attach` comes first; `prepare` once a request, before the steps."""

    machine: Machine
    weights: Weights
    listener: Callable[[Event], None]
    fused: FusedPath | None = None

    def attach(self, machine: Machine, weights: Weights, listener: Callable[[Event], None]) -> None:
        """Take charge of a machine. `listener` is the ledger and the witnesses."""
        self.machine, self.weights, self.listener = machine, weights, listener

    def hear(self, event: Event) -> None:
        """Each event of the ABI, before ledger and witnesses get it."""
        self.listener(event)

    def prepare(self) -> None:
        """The arenas were filled with poison (or zeros); nothing was done yet."""

    def stage(self, order: int, tensor: str, device: str) -> None:
        """Copy one named tensor of the checkpoint up to `device`."""
        buffer = self.machine.buffer(device, f"weights/{tensor}")
        self.machine.backend.copy_h2d(device, self.weights.tensor(tensor), buffer, Label("stage", order, "weights"))

    def handoff(self, order: int, step: Step) -> None:
        """Carry out one hop of the handoff, piece by piece."""
        for piece in pieces(order, step):
            self.copy(piece)

    def copy(self, piece: Piece) -> None:
        """Move one piece, both legs of it when it is staged."""
        source, target = self.source(piece), self.target(piece)
        label = Label("handoff", piece.order, piece.tensor, piece.layer, piece.p0, piece.p1 - piece.p0)
        backend = self.machine.backend
        if piece.mode == "up":
            backend.copy_h2d(piece.dst, source, target, label)
        elif piece.mode == "down":
            backend.copy_d2h(piece.src, source, target, label)
        elif piece.mode == "staged":
            label = replace(label, row_src=piece.src, row_dst=piece.dst)
            bounce = self.machine.buffer("host:bounce", "bounce").reshape(*source.shape)
            backend.copy_d2h(piece.src, source, bounce, label)
            backend.copy_h2d(piece.dst, bounce, target, label)
        else:
            backend.copy_p2p(piece.src, source, piece.dst, target, label)

    def source(self, piece: Piece) -> Buffer:
        """Where a piece comes from: (positions, KD) of one layer, or (L, positions, KD)."""
        return _cut(self.machine.cache(piece.src, piece.src_phase, piece.tensor), piece)

    def target(self, piece: Piece) -> Buffer:
        """Where a piece goes to."""
        return _cut(self.machine.cache(piece.dst, piece.dst_phase, piece.tensor), piece)

    def cache(self, phase: Phase) -> Cache:
        """The KV cache that a phase reads and writes: buffers of its device, or the arrays of its host role."""
        machine = self.machine
        arena = machine.cache_arena(phase)
        k, v = (machine.cache(arena, phase, tensor) for tensor in ("k", "v"))
        layers = range(machine.model.n_layers)
        if machine.is_device(arena):
            return Cache([k.at(layer) for layer in layers], [v.at(layer) for layer in layers])
        return Cache([k.array[layer] for layer in layers], [v.array[layer] for layer in layers])

    def program(self, phase: Phase) -> Callable[..., None]:
        """The function body that a phase runs: the one program text."""
        return transformer

    def instance(self, phase: Phase, order: int) -> BaseInstance:
        """The program text's device for a phase."""
        if self.machine.orders.workload.attention == "host":
            return HostInstance(self.machine, phase, order, self.dispatch, self.weights)
        return DeviceInstance(self.machine, phase, order, self.dispatch)

    def dispatch(self, device: str, op: str, out: Buffer, *operands: Buffer, label: Label, **scalars: int) -> None:
        """One operation on a device, as `Backend.dispatch`."""
        self.machine.backend.dispatch(device, op, out, *operands, label=label, **scalars)

    def forward(
        self, instance: BaseInstance, cache: Cache, ids: Sequence[int], position: int, wants_logits: bool
    ) -> int | None:
        """One forward call of len(ids) tokens; gives the sampled id where logits are wanted."""
        return instance.forward(self.program(instance.phase), cache, ids, position, wants_logits)

    def address(self, phase: Phase, name: str) -> int:
        """The address of a buffer that a phase works on, by its name in the orders."""
        return self.machine.buffer(self.machine.device_of(phase), name).address

    def places(self, phase: Phase) -> list[Span]:
        """Whose memory lies where: the arenas of the devices. By it the account of a compiled call is made."""
        arenas = self.machine.backend.arenas()
        named = [(name, arenas[name]) for name in self.machine.backend.devices]
        return [Span(arena.address, arena.address + arena.fence, name) for name, arena in named]

    def phase(self, stretch: Stretch) -> Walked:
        """A stretch of passes as one compiled call."""
        assert self.fused is not None
        return self.fused.run(stretch, partial(self.address, stretch.phase), self.places(stretch.phase))


def pieces(order: int, step: Step) -> Iterator[Piece]:
    """The copies of a handoff step, tensor by layer by position. A staged piece holds at most `chunk` positions.

    A whole array goes over the bounce buffer at once when it fits there, else layer by layer.
    """
    assert step.src is not None
    assert step.tensor is not None
    assert step.layers is not None
    assert step.positions is not None
    (l0, l1), (p0, p1) = step.layers, step.positions
    chunk = step.chunk if step.mode == "staged" and step.chunk else 0
    whole = Piece(
        order=order, mode=step.mode or "direct", tensor=step.tensor, layer=-1, p0=p0, p1=p1, src=step.src, dst=step.dst,
        src_phase="decode" if step.mode == "down" else "prefill",
        dst_phase="prefill" if step.mode == "up" else "decode",
    )  # fmt: skip
    if step.unit == "array" and (not chunk or chunk >= (l1 - l0) * (p1 - p0)):
        yield whole
        return
    block = step.block if step.unit == "block" and step.block else p1 - p0
    for layer in range(l0, l1):
        for first, last in _cuts(p0, p1, block):
            for start, end in _cuts(first, last, chunk or block):
                yield replace(whole, layer=layer, p0=start, p1=end)


def _cuts(first: int, last: int, size: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + size, last)) for start in range(first, last, size))


def _cut(cache: Buffer, piece: Piece) -> Buffer:
    return cache if piece.layer < 0 else cache.at(piece.layer).view(piece.p0, piece.p1 - piece.p0)
