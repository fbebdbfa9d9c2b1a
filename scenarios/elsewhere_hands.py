"""Hands that let decode work on other memory than its own: faults like those of `scenarios.faulty_hands`.

Operation by operation the work is done past the ABI, on raw arrays, or, on a device whose memory this process cannot
address, on copies that are laid beside its arena; a compiled call is given another address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.arena import NUMPY_DTYPES, DType
from executor.buffer import Block, Buffer
from executor.events import Copied, Dispatched, Event, Label
from executor.hands import Hands, Piece
from executor.instance import Phase
from executor.kernels import run_op
from executor.machine import Machine
from executor.ops import op_spec, ordered_scalars
from executor.packed.single import launch_packed
from executor.stretch import Span
from executor.transformer import Cache
from planner.orders import Step

Array = npt.NDArray[Any]


class _Elsewhere(Hands):
    """Operations that work on other memory than the ABI was told: past it, on raw arrays."""

    def moved(self, buffer: Buffer) -> Array | Buffer | None:
        """The array, or other buffer, that is used in place of this buffer; None = the buffer itself."""
        raise NotImplementedError  # abstract: each fault says what it swaps

    def instead(self, name: str) -> int | None:
        """On the fused path, the address that decode is given in place of this buffer's; None = the buffer's own."""
        raise NotImplementedError  # abstract: each fault says what it swaps

    def address(self, phase: Phase, name: str) -> int:
        other = self.instead(name) if phase == "decode" else None
        return super().address(phase, name) if other is None else other

    def dispatch(self, device: str, op: str, out: Buffer, *operands: Buffer, label: Label, **scalars: int) -> None:
        moved = [self.moved(buffer) for buffer in (out, *operands)]
        if label.phase != "decode" or all(place is None for place in moved):
            super().dispatch(device, op, out, *operands, label=label, **scalars)
            return
        places = [b if m is None else m for m, b in zip(moved, (out, *operands), strict=True)]
        compute_past_abi(self.machine, device, op, places, scalars)
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

    def moved(self, buffer: Buffer) -> Array | Buffer | None:
        for tensor in ("k", "v"):
            mine = self._whole("decode", tensor)
            if mine is not None and _lies_in(buffer, mine):
                other = self._whole("prefill", tensor)
                assert other is not None
                return _twin(buffer, mine, other)
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
            source = self.machine.cache(self.machine.orders.prefill, "prefill", step.tensor)
            self.kept[step.tensor] = np.array(content(source))

    def cache(self, phase: Phase) -> Cache:
        if phase == "decode" and self.machine.orders.workload.attention == "host" and self.kept:
            return Cache(list(self.kept["k"]), list(self.kept["v"]))
        return super().cache(phase)

    def instead(self, name: str) -> int | None:
        copy = self.kept.get(name.rpartition("/")[2]) if name.startswith("kv/") else None
        return None if copy is None else _address(copy)

    def moved(self, buffer: Buffer) -> Array | Buffer | None:
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

    def moved(self, buffer: Buffer) -> Array | Buffer | None:
        machine = self.machine
        for name, mine in machine.buffers[machine.orders.decode].items():
            if name.startswith("weights/") and _lies_in(buffer, mine):
                self.instead(name)
                return _same_part(buffer, mine, self.taken[name])
        return None


class CacheElsewhere(PrivateCopy):
    """Decode works on a heap copy of the cache that it was handed: its own arena is never written again."""

    def cache(self, phase: Phase) -> Cache:
        if phase == "decode":
            machine = self.machine
            for tensor in ("k", "v"):
                self.kept[tensor] = np.array(content(machine.cache(machine.cache_arena("decode"), "decode", tensor)))
        return super().cache(phase)

    def instead(self, name: str) -> int | None:
        tensor = name.rpartition("/")[2]
        if name.startswith("kv/") and tensor not in self.kept:
            self.kept[tensor] = np.array(content(self.machine.buffer(self.machine.orders.decode, name)))
        return super().instead(name)

    def handoff(self, order: int, step: Step) -> None:
        Hands.handoff(self, order, step)


def compute_past_abi(
    machine: Machine, device: str, op: str, places: Sequence[Array | Buffer], scalars: Mapping[str, int]
) -> None:
    """An operation on raw memory: nobody checks whose it is and nobody is told. Written places keep what was written.

    Where `device` computes in memory of its own, what lies elsewhere is laid beside its arena for the call.
    """
    backend: Any = machine.backend
    buffers = [place for place in places if isinstance(place, Buffer)]
    if any(buffer.packing is not None for buffer in buffers):
        launch_packed(op, buffers, ordered_scalars(op, dict(scalars)))
    elif machine.backend.arenas()[device].addressable:
        arrays = [content(p) if isinstance(p, Buffer) else p for p in places]
        run_op(op, *arrays, **scalars)
        for place, array in list(zip(places, arrays, strict=True))[: op_spec(op).written]:
            if isinstance(place, Buffer) and not place.block.arena.addressable:
                place.put(array)
    else:
        backend.compute_past_abi(device, op, places, ordered_scalars(op, dict(scalars)))


def content(buffer: Buffer) -> Array:
    """The memory of a buffer where this process can address it, else a copy of it."""
    return buffer.array if buffer.block.arena.addressable else buffer.wire().view(NUMPY_DTYPES[buffer.dtype])


def _twin(buffer: Buffer, mine: Buffer, other: Buffer) -> Buffer:
    """The part of `other` that `buffer` is of `mine`."""
    address = other.address + buffer.address - mine.address
    return Buffer(other.block, other.name, buffer.shape, buffer.dtype, address, buffer.packing)


def _lies_in(buffer: Buffer, whole: Buffer) -> bool:
    return whole.address <= buffer.address < whole.address + whole.held_bytes


def _address(array: Array) -> int:
    return int(array.ctypes.data)


def _across_step(step: Step) -> bool:
    return step.mode not in ("up", "down")


class _Heap:
    """An array of this process, as the arena that a buffer looks its memory up in."""

    addressable = True

    def __init__(self, array: Array) -> None:
        self.name, self.address, self._array = "the heap", _address(array), array

    def settle(self) -> None:
        """As `executor.arena.Arena.settle`."""

    def view(self, offset: int, shape: tuple[int, ...], dtype: DType) -> Array:
        """As `executor.arena.Arena.view`."""
        return np.ndarray(shape, NUMPY_DTYPES[dtype], self._array.data, offset)


def _same_part(buffer: Buffer, mine: Buffer, other: Array) -> Array | Buffer | None:
    """The part of `other`, a copy of the memory of `mine`, that `buffer` is of `mine`; None when it lies elsewhere."""
    if not _lies_in(buffer, mine):
        return None
    if buffer.packing is not None:
        heap: Any = _Heap(other)
        address = heap.address + buffer.address - mine.address
        return Buffer(
            Block(heap, heap.address, other.nbytes), mine.name, buffer.shape, buffer.dtype, address, buffer.packing
        )
    first = (buffer.address - mine.address) // other.itemsize
    return other.reshape(-1)[first : first + buffer.nbytes // other.itemsize].reshape(buffer.shape)


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
            source = content(self.machine.cache(self.machine.orders.prefill, "prefill", piece.tensor))
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

    def moved(self, buffer: Buffer) -> Array | Buffer | None:
        """The same weights, or the cache, of prefill's device; the activations stay where they are."""
        machine = self.machine
        for name, mine in machine.buffers[machine.orders.decode].items():
            if not name.startswith("act/") and _lies_in(buffer, mine):
                twin = machine.buffers[machine.orders.prefill][name.replace("kv/decode", "kv/prefill")]
                return _twin(buffer, mine, twin)
        return None

    def _copied(
        self, kind: str, src: str, dst: str, nbytes: int, order: int, tensor: str, phase: str = "stage"
    ) -> Event:
        ids = {spec.id: spec.topology_id for spec in self.machine.backend.devices.values()}
        label = Label(phase, order, tensor)  # type: ignore[arg-type]  # stage or handoff
        return Copied(kind, src, dst, ids.get(src), ids.get(dst), nbytes, label)  # type: ignore[arg-type]  # a copy kind
