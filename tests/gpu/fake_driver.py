"""A CUDA driver that is none: cards in host memory, streams that do nothing until they are waited for.

Work on a stream is put off as long as the real one may put it off, so that a missing wait shows as wrong data. A copy
from memory that is not pinned reads it at once, one from pinned memory when its turn comes. `faults` makes the n-th
call of a method fail. The trace sees copies when they are made, as CUPTI does.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from executor.cuda.driver import Card, DriverError, FaultKind
from executor.cuda.kernels import parameters_of
from executor.cuda.source_digest import RANGES
from executor.observers.cupti import CopyRecord, TraceReport
from fleet.errors import BackendError
from tests.gpu.fake_kernels import KERNELS, narrow_product, product

GIB = 1 << 30


def uuid_of(number: int) -> str:
    return f"GPU-{number:08x}-0000-4000-8000-{number:012x}"


@dataclass
class FakeTrace:
    """What CUPTI would have recorded."""

    records: list[CopyRecord] = field(default_factory=list)
    memsets: list[int] = field(default_factory=list)
    tags: list[int] = field(default_factory=list)
    lost: int = 0
    name: str = "cupti"

    def begin(self) -> None:
        self.records.clear()
        self.memsets.clear()

    @contextlib.contextmanager
    def tag(self, number: int) -> Iterator[None]:
        self.tags.append(number)
        try:
            yield
        finally:
            self.tags.pop()

    def end(self) -> TraceReport:
        if self.lost:
            raise BackendError(f"the driver lost {self.lost} records")
        return TraceReport(records=list(self.records), memsets=(len(self.memsets), sum(self.memsets)))


class FakeDriver:
    """`cards` devices; `order` lists the machine's cards as the runtime counts them."""

    def __init__(
        self,
        cards: int = 2,
        *,
        order: Sequence[int] | None = None,
        peers: bool = True,
        room: int = 1 * GIB,
        trace: FakeTrace | str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.machine = [
            Card(ordinal=n, name="Fake H200", uuid=uuid_of(n), pci=f"0000:{n + 6:02x}:00.0", total_bytes=room)
            for n in range(cards if order is None else max(order, default=-1) + 1)
        ]
        self.visible = list(range(cards) if order is None else order)
        self.peers, self.room = peers, room
        self.seen: Any = FakeTrace() if trace is None else trace
        self.faults: dict[str, tuple[int, FaultKind]] = {}
        self.calls: list[str] = []
        self.launched: set[str] = set()
        """Names of the kernels that were launched."""
        self.now = 0
        self.blocks: dict[int, tuple[int, int, Any]] = {}  # address -> (ordinal or -1, nbytes, memory)
        self.outer: Any = None
        self.globals: dict[int, tuple[int, int, Any]] = {}
        self.pins: dict[int, int] = {}
        self.enabled: set[tuple[int, int]] = set()
        self.queues: dict[int, list[Callable[[], None]]] = {}
        self.streams: dict[int, int] = {}
        self.events: dict[int, tuple[int, int]] = {}
        self.done: dict[int, int] = {}
        self.handles = 0
        self.capturing: dict[int, list[Callable[[], None]]] = {}
        self.blas_devices: dict[int, int] = {}
        self._settings = settings or {"NVIDIA_TF32_OVERRIDE": "0"}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.faults:
            left, kind = self.faults[name]
            self.faults[name] = (left - 1, kind)
            if left <= 0:
                raise DriverError(kind, f"cudaError made up for {name}")

    def _new(self) -> int:
        self.handles += 1
        return self.handles

    @property
    def held(self) -> int:
        """Blocks and handles that nobody gave back."""
        return len(self.blocks) + len(self.streams) + len(self.events) + len(self.pins) + len(self.blas_devices)

    # Devices

    def count(self) -> int:
        self._called("count")
        return len(self.visible)

    def card(self, ordinal: int) -> Card:
        card = self.machine[self.visible[ordinal]]
        return Card(ordinal=ordinal, name=card.name, uuid=card.uuid, pci=card.pci, total_bytes=card.total_bytes)

    def present(self) -> list[Card] | None:
        return list(self.machine)

    def versions(self) -> dict[str, Any]:
        return {"cupy": "none", "driver": "fake"}

    def settings(self) -> dict[str, Any]:
        return self._settings

    def current(self) -> int:
        return self.now

    def use(self, ordinal: int) -> None:
        self._called("use")
        if not 0 <= ordinal < len(self.visible):
            raise DriverError("no device", "cudaErrorInvalidDevice")
        self.now = ordinal

    # Memory

    def malloc(self, nbytes: int) -> int:
        self._called("malloc")
        free, _ = self.memory()
        if nbytes > free:
            raise DriverError("memory", "cudaErrorMemoryAllocation: out of memory")
        return self._block(self.now, nbytes)

    def _block(self, ordinal: int, nbytes: int) -> int:
        memory = np.full(nbytes + 64, 0x5A, np.uint8)
        address = (memory.ctypes.data + 63) & ~63
        self.blocks[address] = (ordinal, nbytes, memory)
        return address

    def free(self, address: int) -> None:
        self._called("free")
        del self.blocks[address]

    def memory(self) -> tuple[int, int]:
        used = sum(nbytes for ordinal, nbytes, _ in self.blocks.values() if ordinal == self.now)
        return self.room - used, self.room

    def owner(self, address: int) -> int:
        found = self._of(address)
        if found is None or found < 0:
            raise DriverError("other", f"cudaErrorInvalidValue: {address:#x}")
        return found

    def _of(self, address: int) -> int | None:
        """The ordinal that holds an address, -1 for pinned memory, None for plain host memory."""
        for start, (ordinal, nbytes, _) in (self.blocks | self.globals).items():
            if start <= address < start + max(nbytes, 1):
                return ordinal
        pinned = any(start <= address < start + nbytes for start, nbytes in self.pins.items())
        return -1 if pinned else None

    def can_access_peer(self, ordinal: int, peer: int) -> bool:
        return self.peers and ordinal != peer

    def enable_peer(self, peer: int) -> None:
        self._called("enable_peer")
        self.enabled.add((self.now, peer))

    def pinned(self, nbytes: int) -> int:
        self._called("pinned")
        return self._block(-1, nbytes)

    def free_pinned(self, address: int) -> None:
        del self.blocks[address]

    def pin(self, address: int, nbytes: int) -> None:
        self._called("pin")
        self.pins[address] = nbytes

    def unpin(self, address: int) -> None:
        del self.pins[address]

    # Order and time

    def stream(self) -> int:
        self._called("stream")
        stream = self._new()
        self.streams[stream], self.queues[stream], self.done[stream] = self.now, [], 0
        return stream

    def end_stream(self, stream: int) -> None:
        del self.streams[stream]

    def synchronize(self, stream: int) -> None:
        self._called("synchronize")
        self._run_to(stream, len(self.queues[stream]))

    def _run_to(self, stream: int, place: int) -> None:
        while self.done[stream] < place:
            step = self.queues[stream][self.done[stream]]
            self.done[stream] += 1
            step()

    def _enqueue(self, stream: int, step: Callable[[], None]) -> None:
        if stream in self.capturing:
            self.capturing[stream].append(step)
        else:
            self.queues[stream].append(step)

    def event(self, timed: bool = False) -> int:
        event = self._new()
        self.events[event] = (0, 0)
        return event

    def end_event(self, event: int) -> None:
        del self.events[event]

    def record(self, event: int, stream: int) -> None:
        if self.streams[stream] != self.now:
            raise DriverError("other", "cudaErrorInvalidResourceHandle: the stream is another device's")
        self.events[event] = (stream, len(self.queues[stream]))

    def wait(self, stream: int, event: int) -> None:
        other, place = self.events[event]
        self._enqueue(stream, lambda: self._run_to(other, place))

    def elapsed_us(self, first: int, last: int) -> float:
        return 1.0

    # Copies

    def copy(self, direction: str, dst: int, src: int, nbytes: int, stream: int) -> None:
        self._called("copy")
        ends = {"h2d": (None, dst), "d2h": (src, None), "d2d": (src, dst)}[direction]
        ordinals = [None if end is None else self.owner(end) for end in ends]
        if any(o is not None and o != self.streams[stream] for o in ordinals):
            raise DriverError("other", "the stream is another device's")
        self._copy(direction, dst, src, nbytes, stream, (ordinals[0], ordinals[1]), peer=False)

    def copy_peer(self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int) -> None:
        self._called("copy_peer")
        assert (self.owner(src), self.owner(dst)) == (src_ordinal, dst_ordinal)
        if stream in self.capturing:
            raise DriverError("other", "cudaErrorStreamCaptureUnsupported")
        kind = "d2d" if src_ordinal == dst_ordinal else "p2p"
        self._copy(kind, dst, src, nbytes, stream, (src_ordinal, dst_ordinal), peer=True)

    def _copy(
        self,
        kind: str,
        dst: int,
        src: int,
        nbytes: int,
        stream: int,
        ends: tuple[int | None, int | None],
        *,
        peer: bool,
    ) -> None:
        tags = getattr(self.seen, "tags", None)
        tag = tags[-1] if tags else None
        held = ctypes.string_at(src, nbytes) if self._of(src) is None else None  # pageable: staged by the call

        def move() -> None:
            ctypes.memmove(dst, src if held is None else held, nbytes)
            if isinstance(self.seen, FakeTrace):
                number = len(self.seen.records)
                memory = ["device" if end is not None else "pageable" for end in ends]
                self.seen.records.append(
                    CopyRecord(tag, kind, nbytes, *ends, *memory, 10 * number, 10 * number + 5, peer)
                )

        self._enqueue(stream, move)

    def fill(self, address: int, word: int, count: int, stream: int) -> None:
        self._called("fill")
        words = np.ctypeslib.as_array((ctypes.c_uint32 * count).from_address(address))

        def clear() -> None:
            words.fill(word)
            if isinstance(self.seen, FakeTrace):
                self.seen.memsets.append(4 * count)

        self._enqueue(stream, clear)

    # Work

    def module(self, source: str, names: Sequence[str]) -> Any:
        self._called("module")
        assert all(f" {name}(" in source for name in names)
        looked = np.zeros(8 * RANGES + 2, np.uint32)  # the module's own memory, which goes with it
        self.globals[looked.ctypes.data] = (self.now, looked.nbytes, looked)
        return {"device": self.now, "looked": looked.ctypes.data}

    def launch(
        self, module: Any, name: str, grid: tuple[int, int], block: int, shared: int, args: Sequence[Any], stream: int,
        together: bool = False,
    ) -> None:  # fmt: skip
        self._called("launch")
        self.launched.add(name)
        assert together == name.startswith("decode_step"), f"{name}: whether its blocks wait for one another"
        assert not together or (grid[0] <= self.at_once[0] and shared <= self.at_once[1])
        assert len(args) == len(parameters_of(name))
        assert min(*grid, block) > 0
        if not module["device"] == self.streams[stream] == self.now:
            raise DriverError("other", f"{name}: kernels, stream and current device are of different devices")
        for kind, value in zip(parameters_of(name), args, strict=True):
            if kind == "p" and value and self._of(value) not in (self.now, -1):
                raise DriverError("lost", f"cudaErrorIllegalAddress in {name}")
        self._enqueue(stream, lambda: KERNELS[name](grid, *args))

    at_once = (8, 227 << 10)
    """What `blocks_together` says: blocks, and bytes of shared memory of each."""

    def blocks_together(self) -> tuple[int, int]:
        return self.at_once

    def blas(self) -> Any:
        handle = self._new()
        self.blas_devices[handle] = self.now
        return handle

    def end_blas(self, handle: Any) -> None:
        del self.blas_devices[handle]

    def sgemm(
        self, handle: Any, out: int, x: int, w: int, rows: int, d: int, n: int, stream: int, add: bool = False
    ) -> None:
        assert self.blas_devices[handle] == self.streams[stream] == self.now
        self._enqueue(stream, lambda: product(out, x, w, rows, d, n, add))

    def gemm_narrow(
        self, handle: Any, out: int, x: int, w: int, rows: int, d: int, n: int, stream: int, *, dtype: str,
        narrow_out: bool, add: bool,
    ) -> None:  # fmt: skip
        assert self.blas_devices[handle] == self.streams[stream] == self.now
        self._enqueue(stream, lambda: narrow_product(dtype, narrow_out, out, x, w, rows, d, n, add))

    def begin_capture(self, stream: int) -> None:
        self.capturing[stream] = []

    def end_capture(self, stream: int) -> Any:
        return self.capturing.pop(stream)

    def replay(self, graph: Any, stream: int) -> None:
        for step in graph:
            self._enqueue(stream, step)

    def end_graph(self, graph: Any) -> None:
        graph.clear()

    def trace(self) -> Any:
        return self.seen

    def outer_trace(self) -> Any:
        return self.outer

    def counters(self, ordinal: int) -> dict[str, Any]:
        return {"pcie_tx_bytes": "not supported"}
