"""What one device of a run has below: ordinal, stream, event, pinned scratch, kernels, and a log of dispatches."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

from executor.cuda.driver import Driver, DriverError, faults, worded
from executor.cuda.kernels import Kernels
from executor.cuda.source import names_of, source_of
from fleet.errors import BackendError

__all__ = ["Handle", "Lane"]

SCRATCH_BYTES = 1 << 20
"""Pinned memory a device: small copies go over it, so that they are asynchronous and of one speed."""
_FAULT_BYTES = 16


@dataclass(slots=True)
class Lane:
    """The stream of one device of the run. Two roles on one card have a lane each.

    `log` is run-length coded: [ordinal that the driver said was current, dispatches], in order.
    """

    device: str
    ordinal: int
    driver: Driver
    stream: int
    event: int
    scratch: int
    fault: int
    log: list[list[int]] = field(default_factory=list)

    @classmethod
    def open(cls, driver: Driver, device: str, ordinal: int) -> Lane:
        """A lane on the device that is selected."""
        scratch = driver.pinned(SCRATCH_BYTES + _FAULT_BYTES)
        ctypes.memset(scratch + SCRATCH_BYTES, 0, _FAULT_BYTES)
        stream = None
        try:
            stream = driver.stream()
            event = driver.event()
        except DriverError:
            driver.free_pinned(scratch)
            if stream is not None:
                driver.end_stream(stream)
            raise
        return cls(device, ordinal, driver, stream, event, scratch, scratch + SCRATCH_BYTES)

    def close(self) -> None:
        """Give stream, event and pinned memory back."""
        self.driver.end_event(self.event)
        self.driver.end_stream(self.stream)
        self.driver.free_pinned(self.scratch)

    def synchronize(self) -> None:
        """Wait for the stream. BackendError for a token id that a kernel found outside the vocabulary."""
        try:
            self.driver.synchronize(self.stream)
        except DriverError as fault:
            raise worded(fault, "waiting for work", self.device) from fault
        if ctypes.c_int32.from_address(self.fault).value:
            _, index, token = (ctypes.c_int32 * 3).from_address(self.fault)
            ctypes.memset(self.fault, 0, _FAULT_BYTES)
            raise BackendError(f"embed on {self.device}: token id {token} at index {index} is outside the vocabulary")

    def after(self, other: Lane) -> None:
        """What comes next on this lane waits for all that was asked of the other."""
        if other is not self:
            other.driver.record(other.event, other.stream)
            self.driver.wait(self.stream, other.event)

    def dispatched(self, count: int = 1) -> None:
        """Note what the driver says is current as work is dispatched. BackendError when it is another device."""
        now = self.driver.current()
        if now != self.ordinal:
            raise BackendError(f"dispatch on {self.device}: device {now} is current, it must be {self.ordinal}")
        if self.log and self.log[-1][0] == now:
            self.log[-1][1] += count
        else:
            self.log.append([now, count])


class Handle:
    """The library state of one device: kernels compiled for it, and a cuBLAS handle made on first use."""

    def __init__(self, lane: Lane, dtype: str = "fp32") -> None:
        self.lane = lane
        self._blas: Any = None
        with faults("compiling kernels", lane.device):
            module = lane.driver.module(source_of(dtype), names_of(dtype))
        self.kernels = Kernels(lane.driver, module, lane.stream, lane.fault, self.blas, dtype)

    def blas(self) -> Any:
        """The cuBLAS handle of this device, which has to be selected."""
        if self._blas is None:
            with faults("starting cuBLAS", self.lane.device):
                self._blas = self.lane.driver.blas()
        return self._blas

    def close(self) -> None:
        """Give the cuBLAS handle back."""
        if self._blas is not None:
            self.lane.driver.end_blas(self._blas)
            self._blas = None
