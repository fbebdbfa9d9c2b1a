"""Laws of refusal: what no entry point of the ABI accepts, and that a refused call is not reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from executor.device import Backend, Buffer
from executor.events import Allocated, Copied
from fleet.errors import BackendError, CopyError, DeviceMismatchError, PlacementError
from tests.conformance.bench import DEVICES, LABEL, Bench, alloc, bench, numbers, refused
from tests.conformance.law import law

# Refusals: each entry point, by name, and no event


def _calls(b: Bench, device: str, buffer: Buffer) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every entry point that takes a buffer, with `buffer` (4 floats) handed in for `device`."""
    backend, host = b.backend, np.zeros(buffer.shape, np.float32)
    good = alloc(b, device, "good", *buffer.shape)
    weight = alloc(b, device, "weight", *buffer.shape)
    yield "copy_h2d", lambda: backend.copy_h2d(device, host, buffer, LABEL)
    yield "copy_d2h", lambda: backend.copy_d2h(device, buffer, host, LABEL)
    yield "copy_p2p", lambda: backend.copy_p2p(device, buffer, device, good, LABEL)
    yield "copy_p2p", lambda: backend.copy_p2p(device, good, device, buffer, LABEL)
    yield "add", lambda: backend.dispatch(device, "add", buffer, good, label=LABEL)
    yield "add", lambda: backend.dispatch(device, "add", good, buffer, label=LABEL)
    yield "rmsnorm", lambda: backend.dispatch(device, "rmsnorm", good, weight, buffer.reshape(4), label=LABEL)
    yield "free", lambda: backend.free(device, buffer)


@law()
def refuses_a_buffer_of_another_device(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        for here, there in (DEVICES, DEVICES[::-1]):
            foreign = alloc(b, there, "foreign", 1, 4)
            for op, call in _calls(b, here, foreign):
                count = len(b.events)
                with refused(DeviceMismatchError, op, "foreign", here, there):
                    call()
                assert len(b.events) == count, f"{op} was reported although it was refused"


@law()
def refuses_a_device_buffer_as_host_memory(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        one, two = alloc(b, "gpu:0", "one", 4), alloc(b, "gpu:1", "two", 4)
        raw = [two.array] if b.backend.arenas()["gpu:1"].addressable else []
        for host in (two, *raw):
            with refused(DeviceMismatchError, "host", "gpu:0", "gpu:1"):
                b.backend.copy_h2d("gpu:0", host, one, LABEL)
            with refused(DeviceMismatchError, "host", "gpu:0", "gpu:1"):
                b.backend.copy_d2h("gpu:0", one, host, LABEL)
        assert not any(isinstance(event, Copied) for event in b.events)


@law()
def refuses_freed_buffers(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        keep = alloc(b, "gpu:1", "keep", 1, 4)
        gone = alloc(b, "gpu:1", "gone", 1, 4)
        piece = gone.view(0, 1)
        with refused(CopyError, "view"):
            b.backend.free("gpu:1", keep.reshape(2))
        b.backend.free("gpu:1", gone)
        for buffer in (gone, piece):
            assert buffer.freed
            for op, call in _calls(b, "gpu:1", buffer):
                count = len(b.events)
                with refused(CopyError, op, "gone", "freed"):
                    call()
                assert len(b.events) == count
        host = b.backend.host_alloc("host:prefill", "gone too", (1, 4), "fp32")
        b.backend.free("host:prefill", host)
        with refused(CopyError, "gone too", "freed"):
            b.backend.copy_h2d("gpu:1", host, keep, LABEL)
        with refused(CopyError, "gone too", "freed"):
            _ = host.array


@law()
def refuses_unequal_sizes_and_types(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        four, six = alloc(b, "gpu:0", "four", 4), alloc(b, "gpu:1", "six", 6)
        hosts: tuple[Any, ...] = (numbers(5), numbers(3), np.zeros(4, np.int32), np.zeros(2, np.float64))
        for host in hosts:
            with refused(CopyError, "copy_h2d", "four", "equal"):
                b.backend.copy_h2d("gpu:0", host, four, LABEL)
            with refused(CopyError, "copy_d2h", "four", "equal"):
                b.backend.copy_d2h("gpu:0", four, host, LABEL)
        with refused(CopyError, "copy_p2p", "four", "six", "16 B", "24 B"):
            b.backend.copy_p2p("gpu:0", four, "gpu:1", six, LABEL)
        whole = b.backend.alloc("gpu:1", "ids", (4,), "int32")
        with refused(CopyError, "copy_p2p", "int32", "float32"):
            b.backend.copy_p2p("gpu:0", four, "gpu:1", whole, LABEL)
        for shape in ((), (0,), (2, -1)):
            with refused(CopyError, "empty", "shape"):
                b.backend.alloc("gpu:0", "empty", shape, "fp32")
        assert not any(isinstance(event, Copied) for event in b.events)


@law()
def refuses_strided_rows(backend_class: type[Backend]) -> None:
    wide = np.zeros((4, 8), np.float32)
    with bench(backend_class) as b:
        square = alloc(b, "gpu:1", "square", 4, 4)
        for strided in (wide[:, ::2], wide[:, :4], np.zeros((4, 4), np.float32).T[::-1]):
            with refused(CopyError, "strided", "ascontiguousarray"):
                b.backend.copy_h2d("gpu:1", strided, square, LABEL)
            with refused(CopyError, "strided"):
                b.backend.copy_d2h("gpu:1", square, strided, LABEL)
            with refused(CopyError, "strided"):
                b.backend.alloc_and_transfer("gpu:1", "rows", strided, LABEL)
        fixed = np.zeros((4, 4), np.float32)
        fixed.flags.writeable = False
        b.backend.copy_h2d("gpu:1", fixed, square, LABEL)
        with refused(CopyError, "read-only"):
            b.backend.copy_d2h("gpu:1", square, fixed, LABEL)
        assert [type(event) for event in b.events] == [Allocated, Copied]


@law()
def refuses_a_device_outside_the_fleet(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        good = alloc(b, "gpu:0", "good", 1, 4)
        other = alloc(b, "gpu:0", "other", 1, 4)
        host, backend, count = np.zeros((1, 4), np.float32), b.backend, len(b.events)
        unknown: tuple[Any, ...] = ("gpu:2", "gpu:-1", "", "host", "host:prefill", 1, 500)
        for device in unknown:
            calls: list[Callable[[], object]] = [
                lambda d=device: backend.alloc(d, "n", (1,), "fp32"),
                lambda d=device: backend.alloc_and_transfer(d, "n", host, LABEL),
                lambda d=device: backend.copy_h2d(d, host, good, LABEL),
                lambda d=device: backend.copy_d2h(d, good, host, LABEL),
                lambda d=device: backend.copy_p2p(d, good, "gpu:0", other, LABEL),
                lambda d=device: backend.copy_p2p("gpu:0", good, d, other, LABEL),
                lambda d=device: backend.dispatch(d, "add", good, other, label=LABEL),
                lambda d=device: backend.synchronize(d),
                lambda d=device: backend.handle(d),
            ]
            for call in calls:
                with refused(PlacementError, repr(device), *DEVICES):
                    call()
        with refused(PlacementError, "gpu:2", *DEVICES):
            backend.free("gpu:2", good)
        with refused(PlacementError, "host:other", "host:prefill", "host:decode"):
            backend.host_alloc("host:other", "n", (1,), "fp32")
        assert len(b.events) == count


@law()
def refuses_operands_that_do_not_fit_the_operation(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        x, w, out = alloc(b, "gpu:0", "x", 1, 4), alloc(b, "gpu:0", "w", 2, 4), alloc(b, "gpu:0", "out", 1, 2)
        count = len(b.events)
        cases: tuple[tuple[str, tuple[Buffer, ...], dict[str, int], str], ...] = (
            ("matmul", (out, x), {}, "2 arrays"),
            ("matmul", (out, x, w.view(0, 1)), {}, "shape (1, 4)"),
            ("matmul", (out, x, x.reshape(4)), {}, "must be [d, n]"),
            ("matmul", (out, x, w), {"pos0": 1}, "scalars"),
            ("convolve", (out, x), {}, "matmul"),
            ("argmax", (out.reshape(1), x.reshape(4)), {}, "int32"),
            ("rope", (x, x, w, w), {"pos0": 2, "head_dim": 8}, "heads"),
            ("rope", (x, x, w.reshape(2, 2), w.reshape(2, 2)), {"pos0": 2, "head_dim": 4}, "positions 2..2"),
        )
        for op, arrays, scalars, word in cases:
            with refused(BackendError, op, word):
                b.backend.dispatch("gpu:0", op, *arrays, label=LABEL, **scalars)
        with refused(CopyError, "matmul", "overlaps"):
            b.backend.dispatch("gpu:0", "matmul", x.reshape(1, 2), x, w, label=LABEL)
        with refused(CopyError, "overlap"):
            b.backend.copy_p2p("gpu:0", w.reshape(6), "gpu:0", Buffer(w.block, "v", (6,), "fp32", w.address + 8), LABEL)
        assert len(b.events) == count


@law()
def a_closed_backend_refuses_everything(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        one = alloc(b, "gpu:0", "one", 4)
        b.backend.close()
        b.backend.close()
        assert one.freed
        for call in (
            lambda: b.backend.alloc("gpu:0", "n", (1,), "fp32"),
            lambda: b.backend.copy_h2d("gpu:0", numbers(4), one, LABEL),
            lambda: b.backend.host_alloc("host:prefill", "n", (1,), "fp32"),
            lambda: b.backend.poison(1),
        ):
            with refused(BackendError, "closed"):
                call()
