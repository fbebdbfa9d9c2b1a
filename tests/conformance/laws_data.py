"""Laws of data: the bytes that a copy or a dispatch moved, on the named device and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from executor.device import Backend
from tests.conformance.bench import DEVICES, LABEL, WORDS, Bench, alloc, bench, bits, numbers
from tests.conformance.law import law


def _only_changed(
    b: Bench, before: dict[str, npt.NDArray[np.uint32]], place: str, first: int, new: npt.NDArray[Any]
) -> None:
    """Assert that `new` stands at word `first` of the arena `place` and that no other word of any arena changed."""
    words = bits(new)
    expected = {name: memory.copy() for name, memory in before.items()}
    expected[place][first : first + len(words)] = words
    for name, memory in b.snapshots().items():
        wrong = np.flatnonzero(memory != expected[name])
        assert not len(wrong), f"{len(wrong)} words of {name} are not as they should be, the first at {wrong[0]}"


@law(moves_data=True)
def a_copy_up_lands_on_the_named_device(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        for device in DEVICES:
            alloc(b, device, "before", 3)
            buffer = alloc(b, device, "up", 5)
            before = b.snapshots()
            b.backend.copy_h2d(device, numbers(5, 7.0), buffer, LABEL)
            _only_changed(b, before, device, 3, numbers(5, 7.0))
            before = b.snapshots()
            b.backend.copy_h2d(device, numbers(2, 50.0), buffer.view(1, 2), LABEL)
            _only_changed(b, before, device, 4, numbers(2, 50.0))


@law(moves_data=True)
def allocate_and_transfer_uses_one_device_for_both(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        for device in reversed(DEVICES):
            before = b.snapshots()
            tokens = np.array([[1, -2, 3]], np.int32)
            buffer = b.backend.alloc_and_transfer(device, "tokens", tokens, LABEL)
            assert (buffer.shape, buffer.dtype, b.backend.where(buffer.address)) == ((1, 3), "int32", device)
            _only_changed(b, before, device, 0, tokens)


@law(moves_data=True)
def a_copy_down_reads_the_named_device(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        buffers = {device: b.staged(device, "x", numbers(6, 10.0 * i)) for i, device in enumerate(DEVICES)}
        before = b.snapshots()
        for i, device in enumerate(DEVICES):
            down, row = np.zeros(6, np.float32), np.zeros(2, np.float32)
            b.backend.copy_d2h(device, buffers[device], down, LABEL)
            assert np.array_equal(bits(down), bits(numbers(6, 10.0 * i))), f"the copy down from {device} gave {down}"
            b.backend.copy_d2h(device, buffers[device].view(3, 2), row, LABEL)
            assert np.array_equal(bits(row), bits(numbers(6, 10.0 * i)[3:5]))
        _only_changed(b, before, "gpu:0", 0, np.zeros(0, np.float32))


@law(moves_data=True)
def a_peer_copy_moves_its_bytes_and_nothing_else(backend_class: type[Backend]) -> None:
    everything = numbers(WORDS, 1000.0)
    for here, there in (DEVICES, DEVICES[::-1]):
        with bench(backend_class) as b:
            src, dst = b.staged(here, "src", everything), alloc(b, there, "dst", WORDS)
            before = b.snapshots()
            b.backend.copy_p2p(here, src.view(5, 3), there, dst.view(17, 3), LABEL)
            b.backend.synchronize(there)
            _only_changed(b, before, there, 17, everything[5:8])
            b.backend.copy_p2p(here, src, there, dst, LABEL)
            b.backend.synchronize(there)
            _only_changed(b, before, there, 0, everything)


@law(moves_data=True)
def a_copy_within_a_device_moves_its_bytes_and_nothing_else(backend_class: type[Backend]) -> None:
    for device in DEVICES:
        with bench(backend_class) as b:
            src, dst = b.staged(device, "src", numbers(4, 3.0)), alloc(b, device, "dst", 8)
            before = b.snapshots()
            b.backend.copy_p2p(device, src, device, dst.view(4, 4), LABEL)
            b.backend.synchronize(device)
            _only_changed(b, before, device, 8, numbers(4, 3.0))


@law(moves_data=True)
def host_roles_are_ends_of_copies(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        up = b.backend.host_alloc("host:prefill", "up", (2, 3), "fp32")
        down = b.backend.host_alloc("host:decode", "down", (2, 3), "fp32")
        up.array[:] = numbers(6).reshape(2, 3)
        buffer = alloc(b, "gpu:0", "x", 2, 3)
        before = b.snapshots()
        b.backend.copy_h2d("gpu:0", up, buffer, LABEL)
        _only_changed(b, before, "gpu:0", 0, numbers(6))
        before = b.snapshots()
        b.backend.copy_d2h("gpu:0", buffer.view(1, 1), down.view(0, 1), LABEL)
        _only_changed(b, before, "host:decode", 0, numbers(6)[3:])


@law(moves_data=True)
def a_dispatch_works_on_the_memory_of_its_device(backend_class: type[Backend]) -> None:
    # numbers() are quarters below 8 here, so that every product and sum is exact in f32 whatever its order
    content = [(numbers(6, i).reshape(2, 3), numbers(12, 4.0 * i).reshape(4, 3)) for i in range(len(DEVICES))]
    with bench(backend_class) as b:
        placed = [
            (alloc(b, device, "out", 2, 4), b.staged(device, "x", x), b.staged(device, "w", w))
            for device, (x, w) in zip(DEVICES, content, strict=True)
        ]
        for device, arrays, (x, w) in zip(DEVICES, placed, content, strict=True):
            before = b.snapshots()
            b.backend.dispatch(device, "matmul", *arrays, label=LABEL)
            b.backend.synchronize(device)
            _only_changed(b, before, device, 0, (x @ w.T).astype(np.float32))
