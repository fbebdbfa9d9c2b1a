"""The null backend: answers everything and moves nothing. For tests of what the ABI checks and reports only."""

from __future__ import annotations

from typing import Any, ClassVar

from executor import device as abi
from executor.device import Buffer, DeviceSpec
from executor.packed.layout import LAYOUT


class Backend(abi.Backend):
    """Allocates, so that addresses are true; copies and computes nothing."""

    name: ClassVar[str] = "null"
    moves_data: ClassVar[bool] = False
    layouts: ClassVar[frozenset[str]] = frozenset({LAYOUT})
    runs_packed: ClassVar[bool] = True

    def physical_devices(self) -> list[dict[str, Any]]:
        return []

    def _make_handle(self, device: DeviceSpec) -> object:
        return object()

    def _h2d(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        pass

    def _d2h(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        pass

    def _p2p(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        pass

    def _pack(self, device: DeviceSpec, src: int, dst: Buffer) -> None:
        pass

    def _unpack(self, device: DeviceSpec, src: Buffer, dst: int) -> None:
        pass

    def _repack(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: Buffer, dst: Buffer) -> None:
        pass

    def _launch(
        self, device: DeviceSpec, handle: object, op: str, arrays: tuple[Buffer, ...], scalars: tuple[int, ...]
    ) -> None:
        pass

    def _sync(self, device: DeviceSpec) -> None:
        pass


def probe() -> list[str] | str:
    """Why no user gets it."""
    return "it moves no data; it is there for tests"
