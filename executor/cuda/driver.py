"""The driver as the CUDA backend needs it: a protocol, so that its logic can be tested where there is no GPU.

`executor.cuda.cupy_driver` is the real one. Every method that concerns a device works on the one that was selected by
`use`; addresses, ordinals, streams and events are plain ints. A fault of the driver is a `DriverError`, which the
backend words (`worded`): it alone knows what was being done, and for whom.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fleet.errors import BackendError, InconclusiveError, KvWaybillError

__all__ = ["Card", "Driver", "DriverError", "FaultKind", "faults", "selected", "worded"]

FaultKind = Literal["memory", "too old", "no device", "lost", "peer", "library", "other"]

CopyDirection = Literal["h2d", "d2h", "d2d"]


class DriverError(Exception):
    """What a driver call answered, with the driver's own name of the error."""

    def __init__(self, kind: FaultKind, words: str) -> None:
        super().__init__(words)
        self.kind: FaultKind = kind


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A device as the runtime lists it. `total_bytes` is what the runtime reports, without the driver's reserve."""

    ordinal: int
    name: str
    uuid: str | None
    pci: str | None
    total_bytes: int


class Driver(Protocol):
    """One process's view of the CUDA runtime."""

    def count(self) -> int:
        """Devices visible to this process; DriverError where there is no driver, or one older than the runtime."""

    def card(self, ordinal: int) -> Card: ...
    def present(self) -> list[Card] | None:
        """The cards that the machine has, whatever this process is shown; None where nobody tells (no NVML)."""

    def versions(self) -> dict[str, Any]: ...
    def settings(self) -> dict[str, Any]:
        """The settings that decide on arithmetic: TF32 and who set it."""

    def current(self) -> int: ...
    def use(self, ordinal: int) -> None: ...
    def malloc(self, nbytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the selected device."""

    def owner(self, address: int) -> int:
        """The ordinal in whose memory an address lies, as the driver says."""

    def can_access_peer(self, ordinal: int, peer: int) -> bool: ...
    def enable_peer(self, peer: int) -> None:
        """Let the selected device reach the memory of `peer`. Enabling twice is harmless."""

    def stream(self) -> int: ...
    def end_stream(self, stream: int) -> None: ...
    def synchronize(self, stream: int) -> None: ...
    def event(self, timed: bool = False) -> int: ...
    def end_event(self, event: int) -> None: ...
    def record(self, event: int, stream: int) -> None: ...
    def wait(self, stream: int, event: int) -> None: ...
    def elapsed_us(self, first: int, last: int) -> float:
        """Microseconds between two timed events that are over."""

    def copy(self, direction: CopyDirection, dst: int, src: int, nbytes: int, stream: int) -> None: ...
    def copy_peer(self, dst: int, dst_ordinal: int, src: int, src_ordinal: int, nbytes: int, stream: int) -> None: ...
    def fill(self, address: int, word: int, count: int, stream: int) -> None:
        """Set `count` 32-bit words: a memset, never a copy."""

    def pinned(self, nbytes: int) -> int:
        """Page-locked host memory, which every device can address."""

    def free_pinned(self, address: int) -> None: ...
    def pin(self, address: int, nbytes: int) -> None: ...
    def unpin(self, address: int) -> None: ...
    def module(self, source: str, names: Sequence[str]) -> Any:
        """The kernels `names` of `source`, compiled for the selected device, and the address of `looked`."""

    def launch(
        self, module: Any, name: str, grid: tuple[int, int], block: int, shared: int, args: Sequence[Any], stream: int,
        together: bool = False,
    ) -> None:  # fmt: skip
        """Launch a kernel; `args` are numbers of the kinds that `executor.cuda.kernels.parameters_of` gives.

        `together`: its blocks wait for one another, so that all of them have to run at once (see `blocks_together`).
        """

    def blocks_together(self) -> tuple[int, int]:
        """(blocks that can run at once, one a processor; bytes of shared memory that each may have), selected device.

        No blocks where a launch cannot demand that, or the card has no engine that copies into shared memory.
        """

    def blas(self) -> Any:
        """A cuBLAS handle of the selected device in plain f32 (no TF32), never shared."""

    def end_blas(self, handle: Any) -> None: ...
    def sgemm(
        self, handle: Any, out: int, x: int, w: int, rows: int, d: int, n: int, stream: int, add: bool = False
    ) -> None:
        """out (rows, d) = x (rows, n) times w (d, n) transposed, all row-major; `add`: added to what out holds."""

    def gemm_narrow(
        self, handle: Any, out: int, x: int, w: int, rows: int, d: int, n: int, stream: int, *, dtype: str,
        narrow_out: bool, add: bool,
    ) -> None:  # fmt: skip
        """As sgemm with x and w in `dtype` (bf16, fp16), sums in f32; out is f32, or of that type (`narrow_out`)."""

    def begin_capture(self, stream: int) -> None: ...
    def end_capture(self, stream: int) -> Any: ...
    def replay(self, graph: Any, stream: int) -> None: ...
    def end_graph(self, graph: Any) -> None: ...
    def trace(self) -> Any:
        """The driver's own witness (see `executor.observers.cupti`), or a str: one sentence why there is none."""

    def outer_trace(self) -> Any:
        """The trace of somebody who looks at this whole process, to tell it which copies are looks; None mostly."""

    def counters(self, ordinal: int) -> dict[str, Any]:
        """Byte counters of a card's links as NVML reads them; what it cannot read says "not supported"."""


def worded(fault: DriverError, what: str, device: str) -> KvWaybillError:
    """The error that a user is told: what was done, on which device, what the driver said, and how to mend it."""
    said = f"{what} on {device}: {fault}"
    if fault.kind == "memory":
        return InconclusiveError(f"{said}; free memory of the device, or ask for fewer positions or another model")
    if fault.kind == "too old":
        return InconclusiveError(f"{said}; install a newer driver, or cupy for the CUDA version that this one has")
    if fault.kind in ("no device", "library"):
        return InconclusiveError(said)
    if fault.kind == "lost":
        return BackendError(f"{said}; the device is lost to this process: nothing of this run counts; start it anew")
    if fault.kind == "peer":
        return InconclusiveError(f"{said}; describe the link in the fleet as staged (peer_access) and admit again")
    return BackendError(said)


@contextmanager
def faults(what: str, device: str) -> Iterator[None]:
    """Words whatever the driver answers inside."""
    try:
        yield
    except DriverError as fault:
        raise worded(fault, what, device) from fault


@contextmanager
def selected(driver: Driver, ordinal: int) -> Iterator[None]:
    """Select a device for the block, and leave the caller's as it was."""
    before = driver.current()
    driver.use(ordinal)
    try:
        yield
    finally:
        driver.use(before)
