"""Defects put into a copy of a backend, each with the laws that must catch it.

The first four are those of vx-lang/Vx#346: one handle for the whole process, an allocation that ignores the topology, a
device-to-host copy without topology, and no peer movement. They are bound to break the one law that is theirs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from executor import device as abi
from executor.arena import Arena
from executor.buffer import Buffer
from executor.device import Backend, DeviceSpec

Mutation = Callable[[type[Backend]], contextlib.AbstractContextManager[type[Backend]]]


@dataclass(frozen=True)
class Mutant:
    """A defect by name. `only`: it breaks no law but those of `caught_by`."""

    name: str
    mutation: Mutation
    caught_by: frozenset[str]
    only: bool


MUTANTS: dict[str, Mutant] = {}


def _mutant(*caught_by: str, only: bool = False) -> Callable[[Callable[[type[Backend]], Any]], Any]:
    """Enter a generator function that yields the defective class; the names are those of the laws that catch it."""

    def enter(function: Callable[[type[Backend]], Iterator[type[Backend]]]) -> Any:
        name = function.__name__
        MUTANTS[name] = Mutant(name, contextmanager(function), frozenset(caught_by), only)
        return function

    return enter


def _copy(backend_class: type[Backend], **methods: Any) -> type[Backend]:
    return type(backend_class.__name__, (backend_class,), methods)


def _first(backend: Backend) -> DeviceSpec:
    return next(iter(backend.devices.values()))


def _on_first(backend: Backend, device: DeviceSpec, address: int) -> int:
    """The address of the same offset in the first device's arena."""
    arenas = backend.arenas()
    return arenas[_first(backend).id].address + address - arenas[device.id].address


# The four of Vx#346


@_mutant("each_device_has_its_own_handle", only=True)
def process_wide_handle(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    made: list[object] = []

    def make(self: Backend, device: DeviceSpec) -> object:
        made.append(made[0] if made else backend_class._make_handle(self, device))
        return made[0]

    yield _copy(backend_class, _make_handle=make)


@_mutant("allocation_lies_on_the_named_device", only=True)
def topology_ignored_at_allocation(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def alloc(self: Backend, device: DeviceSpec, name: str, nbytes: int) -> int:
        return backend_class._alloc(self, _first(self), name, nbytes)

    yield _copy(backend_class, _alloc=alloc)


@_mutant("a_copy_down_reads_the_named_device", only=True)
def copy_down_without_topology(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def down(self: Backend, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        backend_class._d2h(self, _first(self), _on_first(self, device, src), dst, nbytes)

    yield _copy(backend_class, _d2h=down)


@_mutant("a_peer_copy_moves_its_bytes_and_nothing_else", only=True)
def no_peer_movement(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def peer(self: Backend, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        if src_device is dst_device:
            backend_class._p2p(self, src_device, dst_device, src, dst, nbytes)

    yield _copy(backend_class, _p2p=peer)


# Other defects of a backend


@_mutant("a_copy_up_lands_on_the_named_device", "allocate_and_transfer_uses_one_device_for_both")
def copy_up_without_topology(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def up(self: Backend, device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        backend_class._h2d(self, _first(self), src, _on_first(self, device, dst), nbytes)

    yield _copy(backend_class, _h2d=up)


@_mutant("host_roles_are_ends_of_copies", "a_copy_down_reads_the_named_device")
def nothing_comes_down(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, _d2h=lambda self, device, src, dst, nbytes: None)


@_mutant("a_peer_copy_moves_its_bytes_and_nothing_else")
def peer_copy_of_one_word_more(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def peer(self: Backend, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        backend_class._p2p(self, src_device, dst_device, src, dst, nbytes + 4)

    yield _copy(backend_class, _p2p=peer)


@_mutant("a_copy_within_a_device_moves_its_bytes_and_nothing_else", only=True)
def no_movement_within_a_device(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def peer(self: Backend, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> None:
        if src_device is not dst_device:
            backend_class._p2p(self, src_device, dst_device, src, dst, nbytes)

    yield _copy(backend_class, _p2p=peer)


@_mutant("a_dispatch_works_on_the_memory_of_its_device", only=True)
def dispatch_on_the_first_device(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def launch(self: Backend, device: DeviceSpec, handle: object, op: str, arrays: Any, scalars: Any) -> None:
        arena = self.arenas()[_first(self).id]
        moved = [_on_first(self, device, a.address) for a in arrays]
        blocks = [abi.Block(arena, at, a.held_bytes) for at, a in zip(moved, arrays, strict=True)]
        there = [Buffer(k, a.name, a.shape, a.dtype, k.address, a.packing) for k, a in zip(blocks, arrays, strict=True)]
        backend_class._launch(self, device, handle, op, tuple(there), scalars)

    yield _copy(backend_class, _launch=launch)


@_mutant("packed_copies_keep_the_wire_and_touch_no_padding")
def packing_clears_the_padding(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def pack(self: Backend, device: DeviceSpec, src: int, dst: Buffer) -> None:
        padding = dst.padding()
        assert padding is not None
        padding[...] = 0
        backend_class._pack(self, device, src, dst)

    yield _copy(backend_class, _pack=pack)


@_mutant("packed_copies_keep_the_wire_and_touch_no_padding", "packed_windows_are_positions_of_the_wire")
def packed_caches_come_down_as_they_lie(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def unpack(self: Backend, device: DeviceSpec, src: Buffer, dst: int) -> None:
        backend_class._d2h(self, device, src.address, dst, src.nbytes)

    yield _copy(backend_class, _unpack=unpack)


@_mutant("packed_copies_count_the_bytes_of_the_wire")
def padding_is_counted(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def init(self: Buffer, *args: Any) -> None:
        real(self, *args)
        self.nbytes = self.held_bytes

    real = Buffer.__init__
    with patch.object(Buffer, "__init__", init), patch.object(abi, "same_size", lambda op, src, dst: None):
        yield backend_class


@_mutant("packed_operations_give_the_bits_of_plain_ones", only=True)
def packed_weights_are_read_as_they_lie(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def launch(self: Backend, device: DeviceSpec, handle: object, op: str, arrays: Any, scalars: Any) -> None:
        if op == "matmul" and arrays[2].packing is not None:
            *others, w = arrays
            arrays = (*others, Buffer(w.block, w.name, w.shape, w.dtype, w.address))
        backend_class._launch(self, device, handle, op, arrays, scalars)

    yield _copy(backend_class, _launch=launch)


@_mutant("packed_operands_that_an_operation_does_not_read_are_refused", only=True)
def any_operand_may_be_packed(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, _fits_packed=lambda self, op, spec, arrays: None)


@_mutant("a_device_aligns_its_buffers")
def alignment_is_ignored(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def alloc(self: Backend, device: DeviceSpec, name: str, nbytes: int) -> int:
        arena = self.arenas()[device.id]
        return arena.address + arena.allocate(name, nbytes, 4)

    yield _copy(backend_class, _alloc=alloc)


@_mutant("freed_memory_is_given_back")
def nothing_is_freed(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, _free=lambda self, device, address: None)


@_mutant("fence_is_exact_to_the_byte")
def fence_one_word_too_far(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def further(self: Backend, device: DeviceSpec, poison: int) -> Arena:
        arena = backend_class._map(self, device, poison)
        arena.fence += 4
        return arena

    yield _copy(backend_class, _map=further)


@_mutant("handles_are_made_on_first_use_after_the_device_is_selected")
def handles_made_at_once(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def start(self: Backend, *args: Any, **kwargs: Any) -> None:
        backend_class.__init__(self, *args, **kwargs)
        for device in self.devices:
            self.handle(device)

    yield _copy(backend_class, __init__=start)


@_mutant("a_launch_is_handed_the_handle_of_its_device")
def a_new_handle_each_time(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, handle=lambda self, device: object())


# Defects of the checks that all backends share


@_mutant("every_hook_runs_on_its_device_and_leaves_none_selected")
def hooks_run_unselected(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, _hook=lambda self, spec, what, hook, *args: hook(spec, *args))


@_mutant("declined_work_is_fatal_and_stays_where_it_is")
def declined_work_goes_elsewhere(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def hook(self: Backend, spec: DeviceSpec, what: str, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return backend_class._hook(self, spec, what, work, *args)
        except abi.BackendUnavailableError:
            other = next(device for device in self.devices.values() if device is not spec)
            return backend_class._hook(self, other, what, work, *args)

    yield _copy(backend_class, _hook=hook)


@_mutant(
    "refuses_a_buffer_of_another_device",
    "refuses_freed_buffers",
    "device_is_found_by_address_whatever_the_caller_says",
)
def the_caller_is_believed(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, _owned=lambda self, device, buffer, op: None)


@_mutant("refuses_a_device_buffer_as_host_memory")
def any_address_is_host_memory(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def find(self: Backend, address: int) -> str | None:
        owner = backend_class._find(self, address)
        return "host:prefill" if owner in self.devices else owner

    def host_end(self: Backend, spec: DeviceSpec, host: Any, written: bool = False) -> Any:
        with patch.object(type(self), "_find", find):
            return backend_class._host_end(self, spec, host, written)

    yield _copy(backend_class, _host_end=host_end)


@_mutant("refuses_unequal_sizes_and_types", only=True)
def sizes_are_not_compared(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    with patch.object(abi, "same_size", lambda op, src, dst: None):
        yield backend_class


@_mutant("refuses_strided_rows", only=True)
def strided_rows_are_gathered(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def host_end(self: Backend, spec: DeviceSpec, host: Any, written: bool = False) -> Any:
        gathered = host if isinstance(host, Buffer) else abi.np.ascontiguousarray(host)
        return backend_class._host_end(self, spec, gathered, written)

    yield _copy(backend_class, _host_end=host_end)


@_mutant("refuses_a_device_outside_the_fleet", only=True)
def unknown_devices_are_the_first(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def spec(self: Backend, device: str) -> DeviceSpec:
        self._open()
        return self.devices.get(device, _first(self))

    yield _copy(backend_class, _spec=spec)


@_mutant("refuses_operands_that_do_not_fit_the_operation", only=True)
def shapes_are_not_compared(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    with patch.object(abi, "check_shapes", lambda *_: None), patch.object(abi, "check_positions", lambda *_: None):
        yield backend_class


@_mutant("a_closed_backend_refuses_everything", only=True)
def closing_is_forgotten(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    yield _copy(backend_class, _open=lambda self: None)


@_mutant("poison_words_differ_by_arena_and_by_request", only=True)
def one_poison_for_all(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def poison(self: Backend, request: int) -> None:
        self._open()
        for arena in self.arenas().values():
            arena.fill(0x7FA00000 + request)

    yield _copy(backend_class, poison=poison)


@_mutant("arenas_hold_poison_until_something_arrives")
def poison_is_not_written(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    with patch.object(abi.Arena, "fill", lambda self, word: setattr(self, "poison", word)):
        yield backend_class


@_mutant("events_are_complete_and_in_order")
def freeing_is_not_reported(backend_class: type[Backend]) -> Iterator[type[Backend]]:
    def emit(self: Backend, event: Any) -> None:
        if not isinstance(event, abi.Freed):
            backend_class._emit(self, event)

    yield _copy(backend_class, _emit=emit)
