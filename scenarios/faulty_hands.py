"""Hands that do what they should not: the faults that a proof puts in on purpose, each a few overridden methods.

Which checks each of them must trip stands in `scenarios.sabotage`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.buffer import Buffer
from executor.events import Copied, Dispatched, Label
from executor.hands import Hands, Piece
from executor.instance import BaseInstance, Phase
from executor.naming import layer_tensor
from executor.stretch import Stretch, Walked
from executor.transformer import Cache
from planner.orders import Step
from scenarios.another_body import values_before_keys, walk_values_before_keys
from scenarios.case import BOS
from scenarios.elsewhere_hands import compute_past_abi

Array = npt.NDArray[Any]
Stale = dict[tuple[str, int], Array]
"""(tensor, layer) -> the cache (positions, KD) that another prompt left behind."""


class HandoffDeleted(Hands):
    """The device-to-device copies are simply not made."""

    def handoff(self, order: int, step: Step) -> None:
        if step.mode in ("up", "down"):
            super().handoff(order, step)


def _across(piece: Piece) -> bool:
    """Whether the piece goes between devices: a hop up or down is no part of these faults."""
    return piece.mode not in ("up", "down")


class KeysForValues(Hands):
    """K goes where V belongs and the reverse: the same bytes on every edge."""

    def source(self, piece: Piece) -> Buffer:
        if not _across(piece):
            return super().source(piece)
        return super().source(replace(piece, tensor="v" if piece.tensor == "k" else "k"))


class WrongLayer(Hands):
    """Each layer gets its neighbour's cache: the same bytes on every edge."""

    def source(self, piece: Piece) -> Buffer:
        if piece.layer < 0 or not _across(piece):
            return super().source(piece)
        return super().source(replace(piece, layer=(piece.layer + 1) % self.machine.model.n_layers))

    def copy(self, piece: Piece) -> None:
        super().copy(piece)
        if piece.layer < 0 and _across(piece):  # the whole array is one copy: its layers change places on arrival
            arrived = self.target(piece)
            arrived.put(np.roll(arrived.wire(), 1, axis=0))


class OnePositionShort(Hands):
    """The last position of the prompt stays behind."""

    def copy(self, piece: Piece) -> None:
        last = self.machine.orders.workload.prompt_tokens
        if not _across(piece) or not piece.p0 < last <= piece.p1:
            super().copy(piece)
        elif last - 1 > piece.p0:
            layers = range(self.machine.model.n_layers) if piece.layer < 0 else [piece.layer]
            for layer in layers:
                super().copy(replace(piece, layer=layer, p1=last - 1))


class OneCopyTooMany(Hands):
    """The first piece of K is copied twice: nothing else changes."""

    def copy(self, piece: Piece) -> None:
        super().copy(piece)
        if piece.tensor == "k" and piece.layer <= 0 and piece.p0 == 0 and _across(piece):
            super().copy(piece)


class StaleCache(Hands):
    """Nothing is copied, but every copy is told; what decode finds is the cache of another prompt of this length."""

    def __init__(self, stale: Stale) -> None:
        self.stale = stale

    def copy(self, piece: Piece) -> None:
        if not _across(piece):
            super().copy(piece)
            return
        target = self.target(piece)
        layers = range(self.machine.model.n_layers) if piece.layer < 0 else [piece.layer]
        parts = [self.stale[piece.tensor, layer][piece.p0 : piece.p1] for layer in layers]
        far = any(not buffer.block.arena.addressable for buffer in (self.source(piece), target))
        if far:  # the driver would not see a copy that is only told, so it is made, and overwritten
            super().copy(piece)
        target.put(np.stack(parts) if piece.layer < 0 else parts[0])
        if not far:
            self._tell(piece, target.nbytes)

    def _tell(self, piece: Piece, nbytes: int) -> None:
        orders = self.machine.orders
        label = Label("handoff", piece.order, piece.tensor, piece.layer, piece.p0, piece.p1 - piece.p0)
        src, dst = orders.device(piece.src), orders.device(piece.dst)
        if piece.mode == "staged":
            label = replace(label, row_src=src.id, row_dst=dst.id)
            self.machine.buffer("host:bounce", "bounce").wire().reshape(-1)[: nbytes // 4] = 1
            self.hear(Copied("d2h", src.id, src.host, src.topology_id, None, nbytes, label))
            self.hear(Copied("h2d", dst.host, dst.id, None, dst.topology_id, nbytes, label))
            return
        kind = "d2d" if src.id == dst.id else "p2p"
        self.hear(Copied(kind, src.id, dst.id, src.topology_id, dst.topology_id, nbytes, label))  # type: ignore[arg-type]  # one of two literals


class OneDispatchElsewhere(Hands):
    """In the middle of decode one matmul is computed with the weights of prefill's device, and says so."""

    chosen = ("w1", 0)

    def __init__(self, passes: int | None = None) -> None:
        """`passes`: decode passes of the honest run, fewer than planned where BOS stops it. None = as planned."""
        self.passes = passes
        self.now = False

    def _tensor(self) -> str:
        return layer_tensor(self.machine.model, *self.chosen)[0]

    def _middle(self) -> int:
        work = self.machine.orders.workload
        passes = work.passes - work.prompt_tokens if self.passes is None else self.passes
        return work.prompt_tokens + passes // 2

    def address(self, phase: Phase, name: str) -> int:
        there = self.now and name == f"weights/{self._tensor()}"
        return super().address("prefill" if there else phase, name)

    def phase(self, stretch: Stretch) -> Walked:
        """On the fused path a call has one address a tensor: the tensor of one pass, in each of its layers."""
        if stretch.phase != "decode":
            return super().phase(stretch)
        first, middle, walked = stretch.first, self._middle(), Walked()
        ends = (first, middle, middle + 1, first + stretch.passes)
        for start, end in pairwise(ends):
            if start < end and walked.chosen[-1:] != [BOS]:
                ids = tuple(walked.chosen[-1:]) or stretch.ids
                self.now = start == middle and end == middle + 1
                part = replace(stretch, first=start, passes=end - start, ids=ids, continues=bool(walked.chosen))
                walked = walked.then(super().phase(part))
        self.now = False
        return walked

    def dispatch(self, device: str, op: str, out: Buffer, *operands: Buffer, label: Label, **scalars: int) -> None:
        chosen = (self._tensor(), self.chosen[1])
        if label.step != self._middle() or op != "matmul" or (label.tensor, label.layer) != chosen:
            super().dispatch(device, op, out, *operands, label=label, **scalars)
            return
        first = self.machine.orders.prefill
        weight = self.machine.layer_of(first, *self.chosen)
        compute_past_abi(self.machine, device, op, [out, operands[0], weight], scalars)
        spec = self.machine.backend.devices[first]
        self.hear(Dispatched(spec.id, spec.topology_id, spec.index, op, (out.shape[0], *weight.shape), label))


class AnotherBody(Hands):
    """Decode runs a copied function body in which two steps changed places: the same numbers, another program."""

    def program(self, phase: Phase) -> Callable[..., None]:
        return values_before_keys if phase == "decode" else super().program(phase)

    def phase(self, stretch: Stretch) -> Walked:
        if stretch.phase != "decode":
            return super().phase(stretch)
        assert self.fused is not None
        return walk_values_before_keys(self.fused, stretch, partial(self.address, "decode"), self.places("decode"))


class WeightsMissing(Hands):
    """The decode device never gets one of its tensors."""

    def stage(self, order: int, tensor: str, device: str) -> None:
        if device != self.machine.orders.decode or tensor != layer_tensor(self.machine.model, "wq", 0)[0]:
            super().stage(order, tensor, device)


class UnlistedAllocation(Hands):
    """One small buffer that the orders do not list."""

    done = False

    def prepare(self) -> None:
        if not self.done:
            self.machine.backend.alloc(self.machine.orders.decode, "unlisted", (1,), "fp32")
            self.done = True


class NoDecode(Hands):
    """No decode pass is computed; the ids come out of a drawer."""

    def __init__(self, chosen: tuple[int, ...]) -> None:
        self.chosen = chosen

    def forward(
        self, instance: BaseInstance, cache: Cache, ids: Sequence[int], position: int, wants_logits: bool
    ) -> int | None:
        if instance.phase == "prefill":
            return super().forward(instance, cache, ids, position, wants_logits)
        instance.entries = []
        return self.chosen[position - self.machine.orders.workload.prompt_tokens + 1]

    def phase(self, stretch: Stretch) -> Walked:
        if stretch.phase == "prefill":
            return super().phase(stretch)
        ids = list(self.chosen[1 : 1 + stretch.passes])
        return Walked(chosen=ids, top1_bits=[0] * len(ids), passes=len(ids), programs={True: []})


class StrayRead(Hands):
    """Decode looks once at prefill's cache and uses nothing of it: only the locked memory can tell."""

    def cache(self, phase: Phase) -> Cache:
        self._look(phase)
        return super().cache(phase)

    def phase(self, stretch: Stretch) -> Walked:
        self._look(stretch.phase)
        return super().phase(stretch)

    def _look(self, phase: Phase) -> None:
        if phase == "decode":
            machine = self.machine
            machine.cache(machine.cache_arena("prefill"), "prefill", "k").block.arena.peek(0, (1,), "int32")


class CopyBack(Hands):
    """After the handoff a layer of K goes back the way it came, into the room that it came from: unplanned traffic."""

    def handoff(self, order: int, step: Step) -> None:
        super().handoff(order, step)
        if step.mode in ("up", "down") or step.tensor != "v":
            return
        machine, orders = self.machine, self.machine.orders
        source = machine.cache(orders.decode, "decode", "k").at(0)
        target = machine.cache(orders.prefill, "prefill", "k").at(0)
        label = Label("handoff", order, "k", 0, 0, source.shape[0])
        machine.backend.copy_p2p(orders.decode, source, orders.prefill, target, label)
