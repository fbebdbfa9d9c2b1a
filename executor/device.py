"""The device ABI: every call names its device, and the memory itself says whether the name is true.

`Backend` is the base class of all backends. It checks devices, sizes and states, words the errors and emits the events;
what is left to a backend are bare hooks, each of which is handed the ends that it works on. The interface has no
"current device": a backend with one below enters it in `_select` and leaves it as it was. Work that a backend declines
is never moved elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType, TracebackType
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from executor.arena import NUMPY_DTYPES, Arena, DType, poison_word
from executor.buffer import Block, Buffer
from executor.discovery import find_backends, load_backend, probe
from executor.ends import DeviceSpec, End, HostSpec, end_of, nbytes_of, overlap, poison_keys, same_size
from executor.events import Allocated, Copied, CopyKind, Dispatched, Event, Freed, Label, Listener
from executor.ops import OpSpec, check_positions, check_shapes, op_spec, ordered_scalars
from executor.packing import Packing
from fleet.errors import (
    BackendError,
    BackendUnavailableError,
    CopyError,
    DeviceMismatchError,
    PlacementError,
)

__all__ = ["ABI_VERSION", "Backend", "Buffer", "DeviceSpec", "HostSpec", "find_backends", "load_backend", "probe"]

ABI_VERSION = 1
Host = npt.NDArray[Any] | Buffer
_NO_DEVICE: AbstractContextManager[None] = nullcontext()


class Backend(ABC):
    """Memory and work of the devices of one request. See the hooks at the end for what a backend must bring.

    `listener` is called with each event, after the work. Arenas are made, and poisoned with words of `request`, at
    once; other per-device state (`handle`) is made on first use, after the device was selected.

    Every method raises PlacementError for a device outside the fleet, DeviceMismatchError for a buffer that lies in
    another device's arena, CopyError for operands of unequal size or type, freed, overlapping or strided, FenceError
    beyond a fence, and BackendUnavailableError when the backend declines.
    """

    name: ClassVar[str]
    abi_version: ClassVar[int] = ABI_VERSION
    moves_data: ClassVar[bool] = True
    native_kinds: ClassVar[frozenset[str]] = frozenset()
    alignment: ClassVar[int] = 4
    layouts: ClassVar[frozenset[str]] = frozenset()
    """Layouts beside plain that this backend holds buffers in."""
    runs_packed: ClassVar[bool] = False
    """Whether operations can be dispatched one by one on packed operands."""
    runs_fused: ClassVar[bool] = False
    """Whether compiled calls (`executor.fused_path`) can work on its memory: the processor's own."""

    def __init__(
        self,
        devices: Sequence[DeviceSpec],
        hosts: Sequence[HostSpec] = (),
        *,
        listener: Listener | None = None,
        request: int = 0,
    ) -> None:
        self.listener = listener
        self._closed = False
        self._specs = {spec.id: spec for spec in devices}
        self._hosts = {spec.name: spec for spec in hosts}
        self._handles: dict[str, object] = {}
        self._blocks: list[Block] = []
        self._arenas: dict[str, Arena] = {}
        names = [*(spec.id for spec in devices), *(spec.name for spec in hosts)]
        for what, values in (("name", names), ("topology id", [spec.topology_id for spec in devices])):
            if len(set(values)) < len(values):
                raise PlacementError(f"two devices or host roles share a {what}: {', '.join(map(str, values))}")
        self._keys = poison_keys(names)
        for device in devices:
            with self._select(device):
                self._arenas[device.id] = self._map(device, poison_word(self._keys[device.id], request))
        for host in hosts:
            self._arenas[host.name] = Arena(host.name, host.fence_bytes, poison_word(self._keys[host.name], request))
        table = sorted((arena.address, arena.address + arena.fence, name) for name, arena in self._arenas.items())
        self._starts = [start for start, _, _ in table]
        self._ends = [end for _, end, _ in table]
        self._names = [name for _, _, name in table]
        self._ranges: dict[str, tuple[int, int]] = {name: (start, end) for start, end, name in table}

    # Memory

    def alloc(
        self, device: str, name: str, shape: tuple[int, ...], dtype: DType, packing: Packing | None = None
    ) -> Buffer:
        """A buffer of `shape` in the arena of `device`. Its content is poison until something is copied into it.

        `packing`: how it lies in memory, where not row by row; `shape` and the bytes of its copies stay the wire's.
        """
        spec = self._spec(device)
        if packing is not None:
            if packing.layout not in self.layouts:
                raise BackendUnavailableError(f"backend {self.name} has no layout {packing.layout}; use plain")
            if packing.wire_shape != shape or dtype != "fp32":
                raise CopyError(f"{name}: a packing of fp32 {packing.wire_shape} does not hold {dtype} {shape}")
        return self._place(spec, name, shape, dtype, packing)

    def alloc_and_transfer(self, device: str, name: str, host: npt.NDArray[Any], label: Label) -> Buffer:
        """A buffer on `device` of the shape and type of `host`, and its content copied up in the same call."""
        spec = self._spec(device)
        dtype = next((key for key, value in NUMPY_DTYPES.items() if value == host.dtype), None)
        if dtype is None:
            raise CopyError(f"{name}: {host.dtype} is no type of the executor; known: {', '.join(NUMPY_DTYPES)}")
        self._host_end(spec, host)
        known: Any = dtype
        buffer = self._place(spec, name, host.shape, known)
        self.copy_h2d(device, host, buffer, label)
        return buffer

    def host_alloc(self, host_role: str, name: str, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A buffer in the arena of a host role; `Buffer.array` is its ndarray."""
        if host_role not in self._hosts:
            raise PlacementError(f"no host role {host_role!r}; known: {', '.join(self._hosts) or 'none'}")
        self._open()
        nbytes = nbytes_of(name, shape, dtype)
        arena = self._arenas[host_role]
        offset = arena.allocate(name, nbytes, self.alignment)
        return self._placed(arena, None, name, shape, dtype, arena.address + offset, nbytes)

    def free(self, device: str, buffer: Buffer) -> None:
        """Give a whole buffer back, with all its views. `device` may be a host role."""
        block, arena = buffer.block, self._arenas.get(device)
        spec = None if device in self._hosts else self._spec(device)
        self._owned(device, buffer, "free")
        if arena is None or (buffer.address, buffer.held_bytes) != (block.address, block.nbytes):
            raise CopyError(f"free: {buffer.name} is a view; free the whole buffer")
        if spec is None:
            arena.free(block.address - arena.address)
        else:
            self._hook(spec, "free", self._free, block.address)
        block.freed = True
        self._blocks.remove(block)
        self._emit(Freed(device, spec.topology_id if spec else None, buffer.name, block.nbytes))

    # Copies

    def copy_h2d(self, device: str, host: Host, dst: Buffer, label: Label) -> None:
        """Copy host memory up into `dst` on `device`; both contiguous, of equal size and type."""
        spec = self._spec(device)
        self._owned(device, dst, "copy_h2d")
        source = self._host_end(spec, host)
        same_size("copy_h2d", source, end_of(dst))
        if dst.packing is None:
            self._hook(spec, "copy_h2d", self._h2d, source.address, dst.address, dst.nbytes)
        else:
            self._hook(spec, "copy_h2d", self._pack, source.address, dst)
        self._emit(Copied("h2d", spec.host, spec.id, None, spec.topology_id, dst.nbytes, label))

    def copy_d2h(self, device: str, src: Buffer, host: Host, label: Label) -> None:
        """Copy `src` on `device` down into host memory; both contiguous, of equal size and type."""
        spec = self._spec(device)
        self._owned(device, src, "copy_d2h")
        target = self._host_end(spec, host, written=True)
        same_size("copy_d2h", end_of(src), target)
        if src.packing is None:
            self._hook(spec, "copy_d2h", self._d2h, src.address, target.address, src.nbytes)
        else:
            self._hook(spec, "copy_d2h", self._unpack, src, target.address)
        self._emit(Copied("d2h", spec.id, spec.host, spec.topology_id, None, src.nbytes, label))

    def copy_p2p(self, src_device: str, src: Buffer, dst_device: str, dst: Buffer, label: Label) -> None:
        """Copy `src` on one device to `dst` on another, or (kind `d2d`) within one device.

        It may still be under way when this returns: `synchronize` of either end waits for it, as does its next use.
        """
        here, there = self._spec(src_device), self._spec(dst_device)
        self._owned(src_device, src, "copy_p2p")
        self._owned(dst_device, dst, "copy_p2p")
        same_size("copy_p2p", end_of(src), end_of(dst))
        if overlap(src, dst):
            raise CopyError(f"copy_p2p: {src.name} and {dst.name} overlap on {src_device}")
        if src.packing is None and dst.packing is None:
            self._hook(here, "copy_p2p", self._p2p, there, src.address, dst.address, src.nbytes)
        else:
            self._hook(here, "copy_p2p", self._repack, there, src, dst)
        kind: CopyKind = "d2d" if here is there else "p2p"
        self._emit(Copied(kind, here.id, there.id, here.topology_id, there.topology_id, src.nbytes, label))

    # Work

    def dispatch(self, device: str, op: str, out: Buffer, *operands: Buffer, label: Label, **scalars: int) -> None:
        """Run `op` of `executor.ops` on `device`: the output first, then the operands in the order of the table.

        A matmul is reported as Dispatched, on the device in whose arena its weight lies; the other operations belong to
        the same forward pass and are not counted (see the contract's "Dispatch").
        """
        spec = self._spec(device)
        arrays = (out, *operands)
        for buffer in arrays:
            self._owned(device, buffer, op)
        values = self._fits(op, arrays, scalars)
        handle = self.handle(device)
        self._hook(spec, op, self._launch, handle, op, arrays, values)
        if op_spec(op).counted:
            weight = operands[-1]
            owner = self._specs[self.where(weight.address)]
            shape = (out.shape[0], *weight.shape)
            self._emit(Dispatched(owner.id, owner.topology_id, owner.index, op, shape, label))

    def synchronize(self, device: str) -> None:
        """Wait until all work of `device` is done."""
        self._hook(self._spec(device), "synchronize", self._sync)

    def handle(self, device: str) -> object:
        """The library state of `device`: one object a device, made when it is first asked for."""
        found = self._handles.get(device)
        if found is None:
            found = self._handles[device] = self._hook(self._spec(device), "handle", self._make_handle)
        return found

    # The arena table

    def arenas(self) -> Mapping[str, Arena]:
        """Arenas by device id and host role."""
        return MappingProxyType(self._arenas)

    @property
    def devices(self) -> Mapping[str, DeviceSpec]:
        """The devices of this backend by id, in the order given."""
        return MappingProxyType(self._specs)

    def where(self, address: int) -> str:
        """The name of the arena that holds `address`. DeviceMismatchError when none does."""
        found = self._find(address)
        if found is None:
            raise DeviceMismatchError(f"address {address:#x} lies in no arena; known: {', '.join(self._arenas)}")
        return found

    def poison_words(self, request: int) -> set[int]:
        """The words that `poison(request)` fills the arenas with."""
        return {poison_word(key, request) for key in self._keys.values()}

    def poison(self, request: int) -> None:
        """Fill every arena anew, with words that it held for no other request. Buffers stay, their content goes."""
        self._open()
        for name, arena in self._arenas.items():
            spec = self._specs.get(name)
            with self._select(spec) if spec else nullcontext():
                arena.fill(poison_word(self._keys[name], request))

    @property
    def tier(self) -> Literal["emulated", "on-device"]:
        """`on-device` when every device is of a kind that this backend really computes on."""
        return "on-device" if all(s.kind in self.native_kinds for s in self._specs.values()) else "emulated"

    def close(self) -> None:
        """Give all memory back; every buffer counts as freed. Closing twice is harmless."""
        self._closed = True
        for block in self._blocks:
            block.freed = True
        self._blocks.clear()
        self._handles.clear()
        for arena in self._arenas.values():
            arena.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Checks

    def _spec(self, device: str) -> DeviceSpec:
        self._open()
        spec = self._specs.get(device)
        if spec is None:
            raise PlacementError(f"no device {device!r} in this fleet; known: {', '.join(self._specs) or 'none'}")
        return spec

    def _open(self) -> None:
        if self._closed:
            raise BackendError(f"backend {self.name} is closed")

    def _find(self, address: int) -> str | None:
        at = bisect_right(self._starts, address) - 1
        return self._names[at] if at >= 0 and address < self._ends[at] else None

    def _owned(self, device: str, buffer: Buffer, op: str) -> None:
        start, end = self._ranges[device]
        if not start <= buffer.address < end:
            owner = self._find(buffer.address) or "no arena of this backend"
            raise DeviceMismatchError(f"{op} on {device}: {buffer.name} lies in {owner}; copy it to {device} first")
        if buffer.block.freed:
            raise CopyError(f"{op} on {device}: {buffer.name} was freed; allocate it again before it is used")

    def _host_end(self, spec: DeviceSpec, host: Host, written: bool = False) -> End:
        if isinstance(host, Buffer):
            end = end_of(host)
        elif not isinstance(host, np.ndarray) or not host.flags.c_contiguous:
            raise CopyError("the host end of a copy is strided or no array; pass np.ascontiguousarray(it)")
        elif written and not host.flags.writeable:
            raise CopyError("the host end of a copy down is read-only; pass an array that may be written")
        else:
            end = End(host.__array_interface__["data"][0], host.nbytes, host.dtype, "the host array")
        owner = self._find(end.address)
        if owner in self._specs or (owner is None and isinstance(host, Buffer)):
            where = owner or "no arena of this backend"
            raise DeviceMismatchError(f"a copy between {spec.host} and {spec.id}: {end.name} lies in {where}")
        if isinstance(host, Buffer) and host.freed:
            raise CopyError(f"a copy between {spec.host} and {spec.id}: {end.name} was freed")
        return end

    def _fits(self, op: str, arrays: tuple[Buffer, ...], given: dict[str, int]) -> tuple[int, ...]:
        spec, values = op_spec(op), ordered_scalars(op, given)
        self._fits_packed(op, spec, arrays)
        fixed = values[1:] if "pos0" in given else values
        check_shapes(op, tuple(a.shape for a in arrays), tuple(a.dtype for a in arrays), fixed)
        if "pos0" in given:
            check_positions(op, given["pos0"], arrays[0].shape[0], arrays[2].shape[0])
        if spec.distinct:
            for other in arrays[1:]:
                if overlap(arrays[0], other):
                    raise CopyError(f"{op}: the output {arrays[0].name} overlaps {other.name}")
        return values

    def _fits_packed(self, op: str, spec: OpSpec, arrays: tuple[Buffer, ...]) -> None:
        """Packed are all arrays that may be, or none; a cache lies there whole but where rows are stored in it."""
        packed = tuple(i for i, array in enumerate(arrays) if array.packing is not None)
        if not packed:
            return
        names = ", ".join(arrays[i].name for i in packed)
        if not self.runs_packed:
            raise BackendError(f"{op}: {names}: backend {self.name} dispatches on plain buffers only")
        kinds = [arrays[i].packing.kind for i in packed]  # type: ignore[union-attr]  # those that have one
        wanted = {"attention": [["k", "v"]], "store": [["k"], ["v"]]}.get(op, [["matrix"]])
        windows = [i for i in packed if arrays[i].packing.window is not None]  # type: ignore[union-attr]  # likewise
        if packed != spec.packed or kinds not in wanted or (windows and op != "store"):
            raise BackendError(f"{op}: {names}: packed otherwise than this operation reads; see executor.ops")

    def _place(
        self, spec: DeviceSpec, name: str, shape: tuple[int, ...], dtype: DType, packing: Packing | None = None
    ) -> Buffer:
        nbytes = nbytes_of(name, shape, dtype) if packing is None else packing.packed.nbytes
        address = self._hook(spec, "alloc", self._alloc, name, nbytes)
        owner = self._find(address)
        if owner != spec.id:
            raise DeviceMismatchError(f"alloc on {spec.id}: backend {self.name} placed {name} in {owner or 'no arena'}")
        return self._placed(self._arenas[spec.id], spec.topology_id, name, shape, dtype, address, nbytes, packing)

    def _placed(
        self,
        arena: Arena,
        topology_id: int | None,
        name: str,
        shape: tuple[int, ...],
        dtype: DType,
        address: int,
        nbytes: int,
        packing: Packing | None = None,
    ) -> Buffer:
        block = Block(arena, address, nbytes)
        self._blocks.append(block)
        self._emit(Allocated(arena.name, topology_id, name, nbytes, address - arena.address))
        return Buffer(block, name, shape, dtype, address, packing)

    def _hook(self, spec: DeviceSpec, what: str, hook: Callable[..., Any], *args: Any) -> Any:
        declined = f"backend {self.name} declined {what} on {spec.id}; work is not moved to another device"
        try:
            with self._select(spec):
                result = hook(spec, *args)
        except NotImplementedError as error:
            raise BackendUnavailableError(f"{declined}{f': {error}' if str(error) else ''}") from error
        if result is NotImplemented:
            raise BackendUnavailableError(declined)
        return result

    def _emit(self, event: Event) -> None:
        if self.listener is not None:
            self.listener(event)

    # Hooks: bare, checked by the methods above. Addresses and sizes are in bytes.

    def _select(self, device: DeviceSpec) -> AbstractContextManager[None]:
        """Enter the device below, and leave what was current before as it was."""
        return _NO_DEVICE

    def _map(self, device: DeviceSpec, poison: int) -> Arena:
        """The arena of a device, filled with `poison`."""
        return Arena(device.id, device.fence_bytes, poison)

    def _alloc(self, device: DeviceSpec, name: str, nbytes: int) -> int:
        """Place `nbytes` bytes on the device; gives their address."""
        arena = self._arenas[device.id]
        return arena.address + arena.allocate(name, nbytes, max(self.alignment, device.alignment))

    def _free(self, device: DeviceSpec, address: int) -> None:
        """Give the block at `address` back."""
        arena = self._arenas[device.id]
        arena.free(address - arena.address)

    @abstractmethod
    def _sync(self, device: DeviceSpec) -> None:
        """Wait for the work of a device."""

    @abstractmethod
    def physical_devices(self) -> list[dict[str, Any]]:
        """The devices that really do the work: [{device, ordinal, uuid, pci, name}]."""

    @abstractmethod
    def _make_handle(self, device: DeviceSpec) -> object:
        """The library state of one device, never shared with another."""

    @abstractmethod
    def _h2d(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        """Copy from host address `src` to `dst` on the device."""

    @abstractmethod
    def _d2h(self, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        """Copy from `src` on the device to host address `dst`."""

    @abstractmethod
    def _p2p(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        """Copy from `src` on one device to `dst` on another or the same."""

    def _pack(self, device: DeviceSpec, src: int, dst: Buffer) -> None:
        """Copy from host address `src`, in wire order, into a packed buffer. By default declined."""
        raise NotImplementedError  # how a hook declines; `_hook` words it as a fault of the run

    def _unpack(self, device: DeviceSpec, src: Buffer, dst: int) -> None:
        """Copy a packed buffer to host address `dst`, in wire order. By default declined."""
        raise NotImplementedError  # how a hook declines; `_hook` words it as a fault of the run

    def _repack(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: Buffer, dst: Buffer) -> None:
        """Copy between buffers of which one at least is packed, in wire order. By default declined."""
        raise NotImplementedError  # how a hook declines; `_hook` words it as a fault of the run

    @abstractmethod
    def _launch(
        self, device: DeviceSpec, handle: object, op: str, arrays: tuple[Buffer, ...], scalars: tuple[int, ...]
    ) -> None:
        """Run an operation of `executor.ops`: arrays output first, scalars in the order of its table."""
