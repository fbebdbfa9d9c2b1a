"""The memory of a run: a backend with an arena per device and host role, and in each the buffers of the orders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from executor.device import Backend, Buffer, DeviceSpec, HostSpec
from executor.events import Event
from executor.naming import LAYERED, layer_tensor
from executor.packed.layout import ALIGNMENT, LAYOUT, WORD_BYTES
from executor.packing import packing_of
from fleet.model import Model
from planner.orders import BufferOrder, Orders

if TYPE_CHECKING:
    from executor.sampling import Sampler

__all__ = ["LAYERED", "Machine", "build_machine"]


@dataclass(slots=True)
class Machine:
    """A backend and its buffers by arena and name. `orders` are the only thing that it was built from.

    `sampler` is the host's part of a request that draws its ids, None where the device chooses them.
    """

    orders: Orders
    model: Model
    backend: Backend
    buffers: dict[str, dict[str, Buffer]]
    sampler: Sampler | None = None

    def buffer(self, arena: str, name: str) -> Buffer:
        """The buffer `name` of `arena`; KeyError when the orders list none."""
        return self.buffers[arena][name]

    def cache(self, arena: str, phase: str, tensor: str) -> Buffer:
        """(L, positions, KD): `k` or `v` of `phase` in `arena`."""
        return self.buffers[arena][f"kv/{phase}/{tensor}"]

    def layer_of(self, arena: str, key: str, layer: int) -> Buffer:
        """A layer of the weight that llama2.c calls `key`, in `arena`."""
        name, index = layer_tensor(self.model, key, layer)
        whole = self.buffers[arena][f"weights/{name}"]
        return whole if index is None else whole.at(index)

    def cache_arena(self, phase: str) -> str:
        """Where the working cache of a phase lies: on its device, or in its host array with attention on the host."""
        return f"host:{phase}" if self.orders.workload.attention == "host" else self.device_of(phase)

    def device_of(self, phase: str) -> str:
        """The device that the orders give the phase."""
        return self.orders.prefill if phase == "prefill" else self.orders.decode

    def host_of(self, arena: str) -> str:
        """The id that an arena has in a row of the waybill: the device's own, or the host of the phase's device."""
        if arena in self._device_ids():
            return arena
        phase = "decode" if arena == "host:decode" else "prefill"
        return self.orders.device(self.device_of(phase)).host

    def is_device(self, arena: str) -> bool:
        """Whether the arena belongs to a device, not to a host role."""
        return arena in self._device_ids()

    def _device_ids(self) -> set[str]:
        return {arena.arena for arena in self.orders.arenas if arena.device is not None}

    def close(self) -> None:
        """Give back every arena."""
        self.buffers.clear()
        self.backend.close()


def build_machine(
    orders: Orders, model: Model, backend_class: type[Backend], listener: Callable[[Event], None], request: int
) -> Machine:
    """Arenas fenced and poisoned, buffers placed in the order listed. Nothing stays allocated when a buffer fails."""
    devices = [
        DeviceSpec(
            id=device.id,
            topology_id=device.topology_id,
            kind=device.kind,
            index=device.index,
            fence_bytes=orders.fence(_arena_of(orders, device.id)),
            host=device.host,
            uuid=device.uuid,
            pci=device.pci,
            alignment=ALIGNMENT if orders.workload.layout == LAYOUT else WORD_BYTES,
        )
        for device in orders.devices
    ]
    hosts = [HostSpec(name=a.arena, fence_bytes=orders.fence(a.arena)) for a in orders.arenas if a.device is None]
    backend = backend_class(devices, hosts, listener=listener, request=request)
    try:
        buffers = {
            arena.arena: {b.name: _place(backend, arena.arena, arena.device, b, model) for b in arena.buffers}
            for arena in orders.arenas
        }
    except BaseException:
        backend.close()
        raise
    return Machine(orders=orders, model=model, backend=backend, buffers=buffers, sampler=_sampler(orders, model))


def _sampler(orders: Orders, model: Model) -> Sampler | None:
    if orders.workload.sampling is None:
        return None
    from executor.sampling import Sampler

    return Sampler(orders.workload.sampling, model.vocab_size)


def _arena_of(orders: Orders, device_id: str) -> str:
    return next(arena.arena for arena in orders.arenas if arena.device == device_id)


def _place(backend: Backend, arena: str, device: str | None, order: BufferOrder, model: Model) -> Buffer:
    dtype: Any = order.dtype
    if device is None:
        return backend.host_alloc(arena, order.name, order.shape, dtype)
    return backend.alloc(device, order.name, order.shape, dtype, packing_of(order, model))
