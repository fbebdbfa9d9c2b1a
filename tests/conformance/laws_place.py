"""Laws of memory and report: where buffers lie, fences, poison, events."""

from __future__ import annotations

import numpy as np

from executor.device import Backend, Buffer
from executor.events import Allocated, Copied, Dispatched, Freed
from fleet.errors import DeviceMismatchError, FenceError
from tests.conformance.bench import DEVICES, FENCE, LABEL, alloc, bench, bits, numbers, refused
from tests.conformance.law import law

# Where things lie


@law()
def allocation_lies_on_the_named_device(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        for device in DEVICES:
            before = {name: arena.high_water for name, arena in b.backend.arenas().items()}
            try:
                buffer = b.backend.alloc(device, "one", (3, 5), "fp32")
            except DeviceMismatchError as error:
                raise AssertionError(f"alloc on {device} went elsewhere: {error}") from error
            assert b.backend.where(buffer.address) == device
            assert b.backend.where(buffer.address + buffer.nbytes - 1) == device
            after = {name: arena.high_water for name, arena in b.backend.arenas().items()}
            assert after == before | {device: before[device] + 60}
            assert b.events[-1] == Allocated(device, 500 + DEVICES.index(device), "one", 60, 0)


@law()
def device_is_found_by_address_whatever_the_caller_says(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        x, w, out = (b.backend.alloc("gpu:1", n, s, "fp32") for n, s in (("x", (1, 4)), ("w", (2, 4)), ("o", (1, 2))))
        there = b.backend.arenas()["gpu:0"]
        for buffer in (x, w, out):
            buffer.name = "gpu:0/w"
            buffer.block.arena = there
        with refused(DeviceMismatchError, "matmul", "gpu:0", "gpu:1"):
            b.backend.dispatch("gpu:0", "matmul", out, x, w, label=LABEL)
        assert b.backend.where(w.address) == "gpu:1"
        outside = Buffer(w.block, "w", (1,), "fp32", w.address)
        # Behind the last arena: behind another one the next may begin, as a card's allocator likes to do.
        outside.address = max(arena.address + arena.fence for arena in b.backend.arenas().values())
        with refused(DeviceMismatchError, "no arena"):
            b.backend.copy_h2d("gpu:0", numbers(1), outside, LABEL)
        assert not any(isinstance(event, Copied | Dispatched) for event in b.events)


@law()
def fence_is_exact_to_the_byte(backend_class: type[Backend]) -> None:
    for fence, words in ((FENCE, FENCE // 4), (FENCE + 3, FENCE // 4), (4, 1)):
        asked, short = f"{4 * words + 4:,} B", f"{4 - fence % 4} B short"
        for device in DEVICES:
            with bench(backend_class, fence) as b:
                with refused(FenceError, asked, f"{fence:,} B", short):
                    alloc(b, device, "over", words + 1)
                alloc(b, device, "equal", words)
                assert b.backend.arenas()[device].high_water == 4 * words
                with refused(FenceError, device, "one more"):
                    alloc(b, device, "one more", 1)
        with bench(backend_class, fence) as b, refused(FenceError, "host:prefill", asked, short):
            b.backend.host_alloc("host:prefill", "over", (words + 1,), "fp32")


@law()
def freed_memory_is_given_back(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        for place, make in (("gpu:1", b.backend.alloc), ("host:decode", b.backend.host_alloc)):
            first = make(place, "all", (FENCE // 4,), "fp32")
            b.backend.free(place, first)
            assert first.freed
            try:
                again = make(place, "all", (FENCE // 4,), "fp32")
            except FenceError as error:
                raise AssertionError(f"what was freed cannot be had again: {error}") from error
            assert b.backend.arenas()[place].high_water == FENCE
            assert again.address == first.address


# Poison


@law()
def poison_words_differ_by_arena_and_by_request(backend_class: type[Backend]) -> None:
    seen: dict[str, set[int]] = {}
    with bench(backend_class) as b:
        for request in range(50):
            b.backend.poison(request)
            words = {name: arena.poison for name, arena in b.backend.arenas().items()}
            assert len(set(words.values())) == len(words), f"two arenas share a poison: {words}"
            for name, word in words.items():
                assert 0x7FA00000 <= word <= 0x7FAFFFFF
                assert word not in seen.setdefault(name, set()), f"{name} holds the poison of an earlier request"
                seen[name].add(word)
    with bench(backend_class, request=7) as b:
        assert all(arena.poison in seen[name] for name, arena in b.backend.arenas().items())


@law()
def arenas_hold_poison_until_something_arrives(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        for request in (0, 1):
            b.backend.poison(request)
            for name, arena in b.backend.arenas().items():
                assert np.all(arena.snapshot() == arena.poison), f"{name} is not poisoned throughout"
            buffer = b.staged("gpu:1", f"w{request}", numbers(8))
            assert b.backend.arenas()["gpu:1"].poison not in bits(numbers(8))
        b.backend.free("gpu:1", buffer)
        assert np.all(b.backend.arenas()["gpu:1"].snapshot() == b.backend.arenas()["gpu:1"].poison)


# Events


@law()
def events_are_complete_and_in_order(backend_class: type[Backend]) -> None:
    host = np.zeros((2, 4), np.float32)
    with bench(backend_class) as b:
        w = b.backend.alloc_and_transfer("gpu:1", "w", host, LABEL)
        x, out = alloc(b, "gpu:1", "x", 1, 4), alloc(b, "gpu:1", "out", 1, 2)
        there, mine = alloc(b, "gpu:0", "there", 1, 4), b.backend.host_alloc("host:decode", "mine", (1, 4), "fp32")
        b.backend.copy_h2d("gpu:1", mine, x, LABEL)
        b.backend.dispatch("gpu:1", "add", x, x, label=LABEL)
        b.backend.dispatch("gpu:1", "matmul", out, x, w, label=LABEL)
        b.backend.copy_p2p("gpu:1", x, "gpu:0", there, LABEL)
        b.backend.copy_p2p("gpu:1", w.view(1, 1), "gpu:1", x, LABEL)
        b.backend.copy_d2h("gpu:0", there, mine, LABEL)
        b.backend.synchronize("gpu:1")
        b.backend.free("gpu:1", w)
        b.backend.free("host:decode", mine)
        assert b.events == [
            Allocated("gpu:1", 501, "w", 32, 0),
            Copied("h2d", "host", "gpu:1", None, 501, 32, LABEL),
            Allocated("gpu:1", 501, "x", 16, 32),
            Allocated("gpu:1", 501, "out", 8, 48),
            Allocated("gpu:0", 500, "there", 16, 0),
            Allocated("host:decode", None, "mine", 16, 0),
            Copied("h2d", "host", "gpu:1", None, 501, 16, LABEL),
            Dispatched("gpu:1", 501, 1, "matmul", (1, 2, 4), LABEL),
            Copied("p2p", "gpu:1", "gpu:0", 501, 500, 16, LABEL),
            Copied("d2d", "gpu:1", "gpu:1", 501, 501, 16, LABEL),
            Copied("d2h", "gpu:0", "host", 500, None, 16, LABEL),
            Freed("gpu:1", 501, "w", 32),
            Freed("host:decode", None, "mine", 16),
        ]
