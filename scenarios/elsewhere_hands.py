"""Hands that let decode work on other memory than its own: faults like those of `scenarios.faulty_hands`.

Operation by operation the work is done past the ABI, on raw arrays; a compiled call is given another address.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.buffer import Buffer
from executor.events import Copied, Dispatched, Event, Label
from executor.hands import Hands, Piece
from executor.instance import Phase
from executor.kernels import run_op
from executor.stretch import Span
from executor.transformer import Cache
from planner.orders import Step

Array = npt.NDArray[Any]


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
