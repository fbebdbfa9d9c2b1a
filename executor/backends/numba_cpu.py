"""The numba backend: the CPU as one or several devices, each with an arena of its own; `gpu:*` runs emulated.

Copies are memory copies between arenas, dispatches are the kernels of `executor.kernels` on the memory of the device,
or, where operands are packed, the steps of `executor.packed`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from executor import device as abi
from executor.arena import Arena, require_memory
from executor.device import Buffer, DeviceSpec, HostSpec
from executor.events import Listener
from executor.kernels import call_kernel
from executor.packed.layout import LAYOUT
from executor.packed.pages import advise_large_pages
from executor.packed.single import launch_packed
from executor.processor import processor_entry, processor_name


@dataclass(frozen=True, slots=True)
class Handle:
    """The library state of one emulated device: there is none but whose it is."""

    device: str


class Backend(abi.Backend):
    """Strict f32 on the CPU, in llama2.c's own layout and with its exact bits."""

    name: ClassVar[str] = "numba"
    native_kinds: ClassVar[frozenset[str]] = frozenset({"cpu"})
    layouts: ClassVar[frozenset[str]] = frozenset({LAYOUT})
    runs_packed: ClassVar[bool] = True
    runs_fused: ClassVar[bool] = True

    def __init__(
        self,
        devices: Sequence[DeviceSpec],
        hosts: Sequence[HostSpec] = (),
        *,
        listener: Listener | None = None,
        request: int = 0,
    ) -> None:
        require_memory(sum(spec.fence_bytes for spec in devices) + sum(spec.fence_bytes for spec in hosts))
        super().__init__(devices, hosts, listener=listener, request=request)

    @property
    def tier(self) -> Literal["emulated", "on-device"]:
        """`on-device` for the one processor as one device. Two devices of it share what two would have apart."""
        return super().tier if len(self.devices) == 1 else "emulated"

    def physical_devices(self) -> list[dict[str, Any]]:
        return [processor_entry()]

    def _make_handle(self, device: DeviceSpec) -> object:
        return Handle(device.id)

    def _map(self, device: DeviceSpec, poison: int) -> Arena:
        arena = super()._map(device, poison)
        advise_large_pages(arena.address, arena.fence)
        return arena

    def _h2d(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        ctypes.memmove(dst, src, nbytes)

    def _d2h(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        ctypes.memmove(dst, src, nbytes)

    def _p2p(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        ctypes.memmove(dst, src, nbytes)

    def _pack(self, device: DeviceSpec, src: int, dst: Buffer) -> None:
        dst.put(_words_at(src, dst.shape))

    def _unpack(self, device: DeviceSpec, src: Buffer, dst: int) -> None:
        _words_at(dst, src.shape)[...] = src.wire()

    def _repack(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: Buffer, dst: Buffer) -> None:
        dst.put(src.wire())

    def _launch(
        self, device: DeviceSpec, handle: object, op: str, arrays: tuple[Buffer, ...], scalars: tuple[int, ...]
    ) -> None:
        if any(buffer.packing is not None for buffer in arrays):
            launch_packed(op, arrays, scalars)
        else:
            call_kernel(op, [buffer.array for buffer in arrays], scalars)

    def _sync(self, device: DeviceSpec) -> None:
        pass  # every call above returns when its work is done


def _words_at(address: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Host memory as 32-bit words of this shape: whoever calls has checked that it is there."""
    memory = (ctypes.c_uint32 * prod(shape)).from_address(address)
    return np.ctypeslib.as_array(memory).reshape(shape)


def probe() -> list[str] | str:
    """The processor; numba was loaded with this file, so it can run."""
    return [processor_name()]
