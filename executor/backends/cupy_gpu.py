"""The CUDA backend: one arena, stream and set of kernels a device, through CuPy. `cpu:*` beside it runs by numba.

Nothing of CuPy is imported here: `executor.cuda.cupy_driver` is, when a machine is built or probed. Each call below
works on the device that it names and leaves the caller's current device as it was. A direct copy between two cards runs
on the source's stream, and the destination waits for its event; where the plan says staged, the executor has asked for
two copies already. Work that the plan gives to a card which is not here is refused, never moved.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from executor import device as abi
from executor.arena import Arena, type_of
from executor.cuda import cupy_driver
from executor.cuda.arena import CudaArena, SharedArena
from executor.cuda.driver import Driver, DriverError, faults, selected, worded
from executor.cuda.identity import cards_of, refuse_forced_tf32, visible_devices
from executor.cuda.kernels import Kernels, Operand
from executor.cuda.lane import SCRATCH_BYTES, Handle, Lane
from executor.cuda.witness import DriverSight, Tags, sort_copies
from executor.device import Buffer, DeviceSpec, HostSpec
from executor.events import Label, Listener
from executor.ledger import Ledger
from executor.machine import Machine
from executor.ops import op_spec
from executor.processor import processor_entry
from executor.stretch import Span, Stretch, Walked
from fleet.errors import BackendError, DeviceMismatchError, InconclusiveError, KvWaybillError

make_driver: Callable[[], Driver] = cupy_driver.make_driver
"""Replaced by tests with a driver that is none."""

_PINNABLE_BYTES = 8 << 30
"""Host arenas above this stay pageable: pinning takes about 0.7 s a GiB."""


class Backend(abi.Backend):
    """f32 on CUDA devices, and on processors beside them. `emulate`: an absent card is played by one that is there."""

    name: ClassVar[str] = "cupy"
    native_kinds: ClassVar[frozenset[str]] = frozenset({"gpu", "cpu"})
    runs_fused: ClassVar[bool] = True
    emulate: ClassVar[bool] = False
    compute_dtype: ClassVar[str] = "fp32"
    """In which cards read weight matrices; processors beside them compute in fp32 always."""

    def __init__(
        self,
        devices: Sequence[DeviceSpec],
        hosts: Sequence[HostSpec] = (),
        *,
        listener: Listener | None = None,
        request: int = 0,
    ) -> None:
        gpus = [spec for spec in devices if spec.kind == "gpu"]
        if odd := [spec.id for spec in devices if spec.kind not in self.native_kinds]:
            raise InconclusiveError(f"{odd[0]}: backend cupy has neither it nor a stand-in; use --backend numba")
        with faults("starting CUDA", "this machine"):
            self._driver = make_driver()
        refuse_forced_tf32(self._driver.settings())
        self._matches = cards_of(self._driver, gpus, self.emulate)
        self._lanes: dict[str, Lane] = {}
        self._pinned: list[tuple[int, int]] = []
        self._peers: list[dict[str, Any]] = []
        self.tags = Tags(outer=self._driver.outer_trace())
        try:
            super().__init__(devices, hosts, listener=listener, request=request)
            self._pin_hosts(hosts)
            self._meet_peers()
        except BaseException:
            self._release()
            raise

    @classmethod
    def emulating(cls) -> type[Backend]:
        """This backend with two roles on one card allowed."""
        return type("Emulating", (cls,), {"emulate": True})

    @classmethod
    def computing(cls, dtype: str) -> type[Backend]:
        """This backend with weights narrowed on each card, once they are staged: `bf16` or `fp16`."""
        return type(f"Computing_{dtype}", (cls,), {"compute_dtype": dtype})

    @property
    def tier(self) -> Literal["emulated", "on-device"]:
        """`emulated` as soon as one card plays two devices."""
        ordinals = [lane.ordinal for lane in self._lanes.values()]
        return "emulated" if len(set(ordinals)) < len(ordinals) else super().tier

    def physical_devices(self) -> list[dict[str, Any]]:
        entries = [match.entry() for match in self._matches.values()]
        for spec in self.devices.values():
            if spec.kind == "cpu":
                entries.append(processor_entry(spec.id))
        return entries

    def report(self) -> dict[str, Any]:
        """What the run document says of the driver: versions, settings, peers, and the current device by dispatch."""
        narrow = {} if self.compute_dtype == "fp32" else {"compute_dtype": self.compute_dtype}
        return {
            **narrow,
            "versions": self._driver.versions(),
            "settings": self._driver.settings(),
            "peer_access": self._peers,
            "pinned_host_bytes": sum(nbytes for _, nbytes in self._pinned),
            "current_device_at_dispatch": [
                {"device": name, "ordinal": ordinal, "uuid": self._matches[name].found.uuid, "dispatches": count}
                for name, lane in self._lanes.items()
                for ordinal, count in lane.log
            ],
        }

    def compiled_path(self, machine: Machine, ledger: Ledger, step_at: int, pace: tuple[Any, Any]) -> CompiledPath:
        """A request's compiled calls: graphs on cards, `executor.fused_path` on processors."""
        return CompiledPath(self, machine, ledger, step_at, pace)

    # The driver's witness

    def begin_trace(self) -> str | None:
        """Start to look at every copy; one sentence where nobody can."""
        trace = self._driver.trace()
        if isinstance(trace, str):
            self.tags = Tags(outer=self._driver.outer_trace())
            return trace
        self._quiet()
        trace.begin()
        self.tags = Tags(trace)
        for lane in self._lanes.values():
            lane.log.clear()
        return None

    def end_trace(self) -> DriverSight | None:
        """What was seen since `begin_trace`; None when nobody looked."""
        if self.tags.trace is None:
            return None
        self._quiet()
        ordinals = {name: self._lanes[name].ordinal if name in self._lanes else None for name in self.devices}
        return sort_copies(self.tags.trace.end(), self.tags, ordinals)

    def _quiet(self) -> None:
        for name, lane in self._lanes.items():
            with self._select(self.devices[name]):
                lane.synchronize()

    # Copies carry the leg that they are made for

    def copy_h2d(self, device: str, host: abi.Host, dst: Buffer, label: Label) -> None:
        with self._for_leg(label, None, device):
            super().copy_h2d(device, host, dst, label)

    def copy_d2h(self, device: str, src: Buffer, host: abi.Host, label: Label) -> None:
        with self._for_leg(label, device, None):
            super().copy_d2h(device, src, host, label)

    def copy_p2p(self, src_device: str, src: Buffer, dst_device: str, dst: Buffer, label: Label) -> None:
        with self._for_leg(label, src_device, dst_device):
            super().copy_p2p(src_device, src, dst_device, dst, label)

    def _for_leg(self, label: Label, src: str | None, dst: str | None) -> contextlib.AbstractContextManager[None]:
        known = self.devices
        if any(name is not None and name not in known for name in (src, dst)):
            return contextlib.nullcontext()  # the ABI refuses the call
        host = known[src or dst or ""].host
        ends = (src or host, dst or host)
        row = (label.row_src or ends[0], label.row_dst or ends[1])
        return self.tags.leg((label.phase, label.tensor, *row, *ends))

    # Hooks

    def _select(self, device: DeviceSpec) -> contextlib.AbstractContextManager[None]:
        match = self._matches.get(device.id)
        return contextlib.nullcontext() if match is None else selected(self._driver, match.ordinal)

    def _map(self, device: DeviceSpec, poison: int) -> Arena:
        match = self._matches.get(device.id)
        if match is None:
            return SharedArena(device.id, device.fence_bytes, poison)
        with faults("opening a stream", device.id):
            lane = self._lanes[device.id] = Lane.open(self._driver, device.id, match.ordinal)
        arena = CudaArena(
            device.id, device.fence_bytes, poison, self._driver, lane.ordinal, lane.stream,
            lambda: self.tags.looking(), lambda: self._kernels_of(device.id),
        )  # fmt: skip
        with faults("asking whose memory it is", device.id):
            owner = self._driver.owner(arena.address)
        if owner != lane.ordinal:
            arena.close()
            raise DeviceMismatchError(f"{device.id}: its arena lies on device {owner}, wanted is {lane.ordinal}")
        return arena

    def _make_handle(self, device: DeviceSpec) -> object:
        lane = self._lanes.get(device.id)
        return object() if lane is None else Handle(lane, self.compute_dtype)

    def _kernels_of(self, device: str) -> Kernels:
        handle = self.handle(device)
        assert isinstance(handle, Handle)
        return handle.kernels

    def _h2d(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        lane = self._lanes.get(device.id)
        if lane is None:
            self._move(device, src, dst, nbytes)
            return
        with faults(f"copying {nbytes:,} B up", device.id):
            over_scratch = nbytes <= SCRATCH_BYTES and not self._is_pinned(src)
            if over_scratch:
                lane.synchronize()  # whoever used the scratch before
                ctypes.memmove(lane.scratch, src, nbytes)
            self._driver.copy("h2d", dst, lane.scratch if over_scratch else src, nbytes, lane.stream)
        if not over_scratch:
            lane.synchronize()  # the caller may write to its memory again

    def _d2h(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        lane = self._lanes.get(device.id)
        if lane is None:
            self._move(device, src, dst, nbytes)
            return
        over_scratch = nbytes <= SCRATCH_BYTES and not self._is_pinned(dst)
        with faults(f"copying {nbytes:,} B down", device.id):
            self._driver.copy("d2h", lane.scratch if over_scratch else dst, src, nbytes, lane.stream)
        lane.synchronize()
        if over_scratch:
            ctypes.memmove(dst, lane.scratch, nbytes)

    def _p2p(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        here, there = self._lanes.get(src_device.id), self._lanes.get(dst_device.id)
        if here is None and there is None:
            self._arenas[src_device.id].settle()
            self._move(dst_device, src, dst, nbytes)
        elif here is None or there is None:
            self._over_the_bus(src_device, dst_device, src, dst, nbytes)
        else:
            with faults(f"copying {nbytes:,} B to {dst_device.id}", src_device.id):
                self._wait_for(here, there)
                if here.ordinal == there.ordinal:
                    self._driver.copy("d2d", dst, src, nbytes, here.stream)
                else:
                    self._require_peer(here, there)
                    self._driver.copy_peer(dst, there.ordinal, src, here.ordinal, nbytes, here.stream)
                self._wait_for(there, here)

    def _move(self, processor: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        self._arenas[processor.id].settle()
        ctypes.memmove(dst, src, nbytes)

    def _over_the_bus(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        """Between a card and a processor's memory, which is waited for when it is next used: copies go back to back."""
        down = src_device.id in self._lanes
        card, processor = (src_device, dst_device) if down else (dst_device, src_device)
        lane, arena = self._lanes[card.id], self._arenas[processor.id]
        assert isinstance(arena, SharedArena)
        arena.settle(but_for=lane)  # what another card has to do with this memory comes first
        with self._select(card), faults(f"copying {nbytes:,} B to {dst_device.id}", src_device.id):
            self._driver.copy("d2h" if down else "h2d", dst, src, nbytes, lane.stream)
        arena.awaited[card.id] = lane

    def _wait_for(self, lane: Lane, other: Lane) -> None:
        with selected(self._driver, other.ordinal):
            if other is not lane:
                self._driver.record(other.event, other.stream)
        if other is not lane:
            with selected(self._driver, lane.ordinal):
                self._driver.wait(lane.stream, other.event)

    def _require_peer(self, here: Lane, there: Lane) -> None:
        entry = next(p for p in self._peers if (p["src"], p["dst"]) == (here.device, there.device))
        if not entry["enabled"]:
            raise DriverError("peer", f"the plan says direct, the driver gives no peer access ({entry['why_not']})")

    def _launch(
        self, device: DeviceSpec, handle: object, op: str, arrays: tuple[Buffer, ...], scalars: tuple[int, ...]
    ) -> None:
        if not isinstance(handle, Handle):
            from executor.kernels import call_kernel

            call_kernel(op, [buffer.array for buffer in arrays], scalars)
            return
        lane = self._lanes[device.id]
        if handle.lane is not lane:
            raise DeviceMismatchError(f"{op} on {device.id}: its kernels were made for {handle.lane.device}")
        with faults(op, device.id):
            for buffer in arrays:
                if (owner := self._driver.owner(buffer.address)) != lane.ordinal:
                    raise DeviceMismatchError(
                        f"{op} on {device.id}: the driver says {buffer.name} is on device {owner}"
                    )
            lane.dispatched()
            handle.kernels.run(op, [Operand(b.address, b.shape, b.dtype) for b in arrays], scalars)

    def _sync(self, device: DeviceSpec) -> None:
        lane = self._lanes.get(device.id)
        if lane is None:
            self._arenas[device.id].settle()
        else:
            lane.synchronize()

    def compute_past_abi(self, device: str, op: str, places: Sequence[Any], scalars: tuple[int, ...]) -> None:
        """An operation of `device` on arrays, and buffers of any device: for faults put in on purpose, never a run.

        What does not lie on the device is laid beside its arena for the call; written places get their content back.
        """
        spec, lane, written = self.devices[device], self._lanes[device], op_spec(op).written
        kernels, temporary = self.handle(device).kernels, []  # type: ignore[attr-defined]  # a GPU's own
        with self._select(spec), self.tags.looking(), faults(f"{op} past the ABI", device):
            operands = []
            for place in places:
                if isinstance(place, Buffer) and self.where(place.address) == device:
                    operands.append(Operand(place.address, place.shape, place.dtype))
                    continue
                words = place.wire() if isinstance(place, Buffer) else place
                held = np.ascontiguousarray(words)
                at = self._driver.malloc(held.nbytes)
                temporary.append((at, place, held))
                self._driver.copy("h2d", at, held.ctypes.data, held.nbytes, lane.stream)
                operands.append(Operand(at, place.shape, place.dtype if isinstance(place, Buffer) else type_of(place)))
            kernels.run(op, operands, scalars)
            for at, _, held in temporary:
                self._driver.copy("d2h", held.ctypes.data, at, held.nbytes, lane.stream)
            lane.synchronize()
            for at, place, held in temporary:
                self._driver.free(at)
                if not any(place is one for one in places[:written]):
                    continue
                if isinstance(place, Buffer):
                    place.put(held)
                else:
                    place[...] = held

    # What a machine has and gives back

    def _is_pinned(self, address: int) -> bool:
        return any(start <= address < start + nbytes for start, nbytes in self._pinned)

    def _pin_hosts(self, hosts: Sequence[HostSpec]) -> None:
        """Page-lock the host roles' arenas. What cannot be locked stays pageable: slower, and reported."""
        if not self._lanes:
            return
        names = [spec.name for spec in hosts] + [name for name in self.devices if name not in self._lanes]
        for name in names:
            arena = self._arenas[name]
            nbytes = -(-max(arena.fence, 1) // 4096) * 4096
            if nbytes > _PINNABLE_BYTES:
                continue
            with contextlib.suppress(DriverError):
                self._driver.pin(arena.address, nbytes)
                self._pinned.append((arena.address, nbytes))

    def _meet_peers(self) -> None:
        """Enable peer access once, both ways, where the driver has it; note it either way."""
        for here in self._lanes.values():
            for there in self._lanes.values():
                if here is there:
                    continue
                entry = {"src": here.device, "dst": there.device, "can": None, "enabled": False, "why_not": None}
                self._peers.append(entry)
                if here.ordinal == there.ordinal:
                    entry["why_not"] = "one card"
                    continue
                try:
                    entry["can"] = self._driver.can_access_peer(here.ordinal, there.ordinal)
                    if entry["can"]:
                        with selected(self._driver, here.ordinal):
                            self._driver.enable_peer(there.ordinal)
                        entry["enabled"] = True
                    else:
                        entry["why_not"] = "cudaDeviceCanAccessPeer says no"
                except DriverError as fault:
                    entry["why_not"] = str(fault)

    def close(self) -> None:
        self._closed = True
        handles = [handle for handle in self._handles.values() if isinstance(handle, Handle)]
        for handle in handles:
            with contextlib.suppress(KvWaybillError, DriverError), selected(self._driver, handle.lane.ordinal):
                handle.close()
        self._release()
        super().close()

    def _release(self) -> None:
        """Give back what lies below; a lost device has nothing left to give, and says so to nobody here."""
        arenas = getattr(self, "_arenas", {})
        for arena in arenas.values():
            with contextlib.suppress(DriverError, BackendError, InconclusiveError):
                arena.settle()
        for address, _ in self._pinned:
            with contextlib.suppress(DriverError):
                self._driver.unpin(address)
        self._pinned.clear()
        for name, lane in self._lanes.items():
            with (
                contextlib.suppress(DriverError, BackendError, InconclusiveError),
                selected(self._driver, lane.ordinal),
            ):
                if name in arenas:
                    arenas[name].close()
                lane.close()
        self._lanes.clear()


class CompiledPath:
    """Each phase's compiled calls where the phase runs."""

    def __init__(self, backend: Backend, machine: Machine, ledger: Ledger, step_at: int, pace: tuple[Any, Any]) -> None:
        self._backend, self._machine, self._ledger = backend, machine, ledger
        self._processor = (step_at, pace)
        self._known: dict[str, Any] = {}
        self._narrowed: set[str] = set()

    def run(self, stretch: Stretch, address: Callable[[str], int], places: Sequence[Span]) -> Walked:
        """See `executor.fused_path.FusedPath.run`."""
        device = self._machine.device_of(stretch.phase)
        if stretch.phase not in self._known:
            self._known[stretch.phase] = self._path(device)
        self._backend.arenas()[device].settle()  # compiled calls take addresses, past the buffers
        walked: Walked = self._known[stretch.phase].run(stretch, address, places)
        return walked

    def _path(self, device: str) -> Any:
        backend = self._backend
        handle = backend.handle(device)
        if isinstance(handle, Handle):
            from executor.cuda.graphs import GraphPath

            return GraphPath(self._machine, self._ledger, handle.lane, handle, backend.tags, self._narrowed)
        from executor.fused_path import FusedPath

        return FusedPath(self._machine, self._ledger, *self._processor)


def probe() -> list[str] | str:
    """The CUDA devices that this process sees, or one sentence why it can use none."""
    try:
        driver = make_driver()
        refuse_forced_tf32(driver.settings())
        seen = visible_devices(driver)
    except DriverError as fault:
        return str(fault)
    except KvWaybillError as error:
        return str(error)
    return [found.name or f"device {found.ordinal}" for found in seen] or "no CUDA device is visible"


__all__ = ["Backend", "make_driver", "probe", "worded"]
