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
from executor.events import Copied, Dispatched, Event, Label
from executor.hands import Hands, Piece
from executor.instance import BaseInstance, Phase
from executor.kernels import run_op
from executor.stretch import Span, Stretch, Walked
from executor.transformer import Cache
from planner.orders import Step
from scenarios.another_body import values_before_keys, walk_values_before_keys
from scenarios.case import BOS

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
            arrived = self.target(piece).array
            arrived[:] = np.roll(arrived, 1, axis=0)


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
        target.put(np.stack(parts) if piece.layer < 0 else parts[0])
        self._tell(piece, target.nbytes)

    def _tell(self, piece: Piece, nbytes: int) -> None:
        orders = self.machine.orders
        label = Label("handoff", piece.order, piece.tensor, piece.layer, piece.p0, piece.p1 - piece.p0)
        src, dst = orders.device(piece.src), orders.device(piece.dst)
        if piece.mode == "staged":
            label = replace(label, row_src=src.id, row_dst=dst.id)
            self.machine.buffer("host:bounce", "bounce").array.reshape(-1)[: nbytes // 4] = 1.0
            self.hear(Copied("d2h", src.id, src.host, src.topology_id, None, nbytes, label))
            self.hear(Copied("h2d", dst.host, dst.id, None, dst.topology_id, nbytes, label))
            return
        kind = "d2d" if src.id == dst.id else "p2p"
        self.hear(Copied(kind, src.id, dst.id, src.topology_id, dst.topology_id, nbytes, label))  # type: ignore[arg-type]  # one of two literals


class _Elsewhere(Hands):
    """Operations that work on other memory than the ABI was told: past it, on raw arrays."""

    def moved(self, buffer: Buffer) -> Array | None:
        """The array that is used in place of this buffer; None = the buffer itself."""
        raise NotImplementedError  # abstract: each fault says what it swaps

    def instead(self, name: str) -> int | None:
        """On the fused path, the address that decode is given in place of this buffer's; None = the buffer's own."""
        raise NotImplementedError  # abstract: each fault says what it swaps

    def address(self, phase: Phase, name: str) -> int:
        other = self.instead(name) if phase == "decode" else None
        return super().address(phase, name) if other is None else other

    def dispatch(self, device: str, op: str, out: Buffer, *operands: Buffer, label: Label, **scalars: int) -> None:
        arrays = [self.moved(buffer) for buffer in (out, *operands)]
        if label.phase != "decode" or all(array is None for array in arrays):
            super().dispatch(device, op, out, *operands, label=label, **scalars)
            return
        real = [b.array if a is None else a for a, b in zip(arrays, (out, *operands), strict=True)]
        run_op(op, *real, **scalars)
        if op == "matmul":
            spec = self.machine.backend.devices[device]
            shape = (out.shape[0], *operands[-1].shape)
            self.hear(Dispatched(spec.id, spec.topology_id, spec.index, op, shape, label))


class Theatre(_Elsewhere):
    """The handoff is made, and decode reads prefill's own array all the same."""

    def instead(self, name: str) -> int | None:
        if not name.startswith("kv/"):
            return None
        return Hands.address(self, "prefill", name.replace("kv/decode", "kv/prefill"))

    def cache(self, phase: Phase) -> Cache:
        if phase == "decode" and self.machine.orders.workload.attention == "host":
            return super().cache("prefill")
        return super().cache(phase)

    def moved(self, buffer: Buffer) -> Array | None:
        for tensor in ("k", "v"):
            mine = self._whole("decode", tensor)
            if mine is not None and mine.address <= buffer.address < mine.address + mine.nbytes:
                other = self._whole("prefill", tensor)
                assert other is not None
                first = (buffer.address - mine.address) // 4
                count = buffer.nbytes // 4
                return other.array.reshape(-1)[first : first + count].reshape(buffer.shape)
        return None

    def _whole(self, phase: Phase, tensor: str) -> Buffer | None:
        orders = self.machine.orders
        if orders.workload.attention == "host":
            return None
        return self.machine.cache(orders.prefill if phase == "prefill" else orders.decode, phase, tensor)


class PrivateCopy(_Elsewhere):
    """The handoff is made, a private copy of prefill's cache is kept beside it, and decode reads that one."""

    def prepare(self) -> None:
        self.kept: dict[str, Array] = {}

    def handoff(self, order: int, step: Step) -> None:
        super().handoff(order, step)
        if _across_step(step) and step.tensor is not None:
            source = self.machine.cache(self.machine.orders.prefill, "prefill", step.tensor).array
            self.kept[step.tensor] = np.array(source)

    def cache(self, phase: Phase) -> Cache:
        if phase == "decode" and self.machine.orders.workload.attention == "host" and self.kept:
            return Cache(list(self.kept["k"]), list(self.kept["v"]))
        return super().cache(phase)

    def instead(self, name: str) -> int | None:
        copy = self.kept.get(name.rpartition("/")[2]) if name.startswith("kv/") else None
        return None if copy is None else _address(copy)

    def moved(self, buffer: Buffer) -> Array | None:
        machine = self.machine
        if machine.orders.workload.attention == "host" or not self.kept:
            return None
        for tensor, copy in self.kept.items():
            part = _same_part(buffer, machine.cache(machine.orders.decode, "decode", tensor), copy)
            if part is not None:
                return part
        return None


class WeightsFromFile(_Elsewhere):
    """Decode takes its weights from the checkpoint in host memory; the device's own are staged and never read."""

    def prepare(self) -> None:
        self.taken: dict[str, Array] = {}

    def instead(self, name: str) -> int | None:
        """A heap copy, packed as the device's own would be; it has to live as long as decode does."""
        if not name.startswith("weights/"):
            return None
        if name not in self.taken:
            buffer = self.machine.buffer(self.machine.orders.decode, name)
            tensor = self.weights.tensor(name.removeprefix("weights/"))
            self.taken[name] = np.array(tensor) if buffer.packing is None else np.zeros_like(buffer.array)
            if buffer.packing is not None:
                buffer.packing.write(self.taken[name], tensor)
        return _address(self.taken[name])

    def places(self, phase: Phase) -> list[Span]:
        """The account takes the copies for memory of decode's device."""
        device, found = self.machine.orders.decode, super().places(phase)
        names = self.machine.buffers[device] if phase == "decode" else ()
        starts = {name: start for name in names if (start := self.instead(name)) is not None}
        return [*found, *(Span(start, start + self.taken[name].nbytes, device) for name, start in starts.items())]

    def moved(self, buffer: Buffer) -> Array | None:
        machine = self.machine
        for name, mine in machine.buffers[machine.orders.decode].items():
            if name.startswith("weights/"):
                part = _same_part(buffer, mine, np.array(self.weights.tensor(name.removeprefix("weights/"))))
                if part is not None:
                    return part
        return None


class CacheElsewhere(PrivateCopy):
    """Decode works on a heap copy of the cache that it was handed: its own arena is never written again."""

    def cache(self, phase: Phase) -> Cache:
        if phase == "decode":
            machine = self.machine
            for tensor in ("k", "v"):
                self.kept[tensor] = np.array(machine.cache(machine.cache_arena("decode"), "decode", tensor).array)
        return super().cache(phase)

    def instead(self, name: str) -> int | None:
        tensor = name.rpartition("/")[2]
        if name.startswith("kv/") and tensor not in self.kept:
            self.kept[tensor] = np.array(self.machine.buffer(self.machine.orders.decode, name).array)
        return super().instead(name)

    def handoff(self, order: int, step: Step) -> None:
        Hands.handoff(self, order, step)


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _across_step(step: Step) -> bool:
    return step.mode not in ("up", "down")


def _same_part(buffer: Buffer, mine: Buffer, other: Array) -> Array | None:
    """The part of `other`, a copy of `mine`, that `buffer` is of `mine`; None when it lies elsewhere."""
    if not mine.address <= buffer.address < mine.address + mine.nbytes:
        return None
    first = (buffer.address - mine.address) // 4
    return other.reshape(-1)[first : first + buffer.nbytes // 4].reshape(buffer.shape)


class OneDispatchElsewhere(Hands):
    """In the middle of decode one matmul is computed with the weights of prefill's device, and says so."""

    chosen = ("w1", 0)

    def __init__(self, passes: int | None = None) -> None:
        """`passes`: decode passes of the honest run, fewer than planned where BOS stops it. None = as planned."""
        self.passes = passes
        self.now = False

    def _middle(self) -> int:
        work = self.machine.orders.workload
        passes = work.passes - work.prompt_tokens if self.passes is None else self.passes
        return work.prompt_tokens + passes // 2

    def address(self, phase: Phase, name: str) -> int:
        there = self.now and name == f"weights/{self.chosen[0]}"
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
        if label.step != self._middle() or op != "matmul" or (label.tensor, label.layer) != self.chosen:
            super().dispatch(device, op, out, *operands, label=label, **scalars)
            return
        first = self.machine.orders.prefill
        weight = self.machine.buffer(first, f"weights/{label.tensor}").array[label.layer]
        run_op(op, out.array, operands[0].array, weight)
        spec = self.machine.backend.devices[first]
        self.hear(Dispatched(spec.id, spec.topology_id, spec.index, op, (out.shape[0], *weight.shape), label))


class AllOnOneDevice(_Elsewhere):
    """One device does everything and the account names two: what Vx #347 warns of."""

    def stage(self, order: int, tensor: str, device: str) -> None:
        if device == self.machine.orders.prefill:
            super().stage(order, tensor, device)
            return
        buffer = self.machine.buffer(device, f"weights/{tensor}")
        self.hear(self._copied("h2d", self.machine.orders.device(device).host, device, buffer.nbytes, order, "weights"))

    def copy(self, piece: Piece) -> None:
        if piece.mode == "up":
            super().copy(piece)
        elif piece.mode == "down":
            source = self.machine.cache(self.machine.orders.prefill, "prefill", piece.tensor).array
            target = self.target(piece).array
            target[:] = source if piece.layer < 0 else source[piece.layer, piece.p0 : piece.p1]
            host = self.machine.orders.device(piece.src).host
            self.hear(self._copied("d2h", piece.src, host, target.nbytes, piece.order, piece.tensor, "handoff"))
        else:
            nbytes = self.target(piece).nbytes
            event = self._copied("p2p", piece.src, piece.dst, nbytes, piece.order, piece.tensor, "handoff")
            self.hear(event)

    def instead(self, name: str) -> int | None:
        if name.startswith("act/"):
            return None
        return Hands.address(self, "prefill", name.replace("kv/decode", "kv/prefill"))

    def places(self, phase: Phase) -> list[Span]:
        """In decode the account takes the memory of both for that of decode's device."""
        device = self.machine.orders.decode
        return [replace(span, device=device) if phase == "decode" else span for span in super().places(phase)]

    def moved(self, buffer: Buffer) -> Array | None:
        """The same weights, or the cache, of prefill's device; the activations stay where they are."""
        machine = self.machine
        for name, mine in machine.buffers[machine.orders.decode].items():
            if not name.startswith("act/") and mine.address <= buffer.address < mine.address + mine.nbytes:
                twin = machine.buffers[machine.orders.prefill][name.replace("kv/decode", "kv/prefill")]
                first = (buffer.address - mine.address) // 4
                return twin.array.reshape(-1)[first : first + buffer.nbytes // 4].reshape(buffer.shape)
        return None

    def _copied(
        self, kind: str, src: str, dst: str, nbytes: int, order: int, tensor: str, phase: str = "stage"
    ) -> Event:
        ids = {spec.id: spec.topology_id for spec in self.machine.backend.devices.values()}
        label = Label(phase, order, tensor)  # type: ignore[arg-type]  # stage or handoff
        return Copied(kind, src, dst, ids.get(src), ids.get(dst), nbytes, label)  # type: ignore[arg-type]  # a copy kind


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
        if device != self.machine.orders.decode or tensor != "wq":
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
            float(machine.cache(machine.cache_arena("prefill"), "prefill", "k").array.reshape(-1)[0])


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
