"""Laws of per-device state: handles, selection, and what happens when a backend declines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from executor.device import Backend, Buffer, DeviceSpec
from fleet.errors import BackendUnavailableError, FenceError
from tests.conformance.bench import DEVICES, FENCE, LABEL, Bench, alloc, bench, numbers, refused
from tests.conformance.law import law

# What a backend declines


@law()
def declined_work_is_fatal_and_stays_where_it_is(backend_class: type[Backend]) -> None:
    hooks = {"_alloc": "alloc", "_h2d": "copy_h2d", "_d2h": "copy_d2h", "_p2p": "copy_p2p", "_launch": "matmul"}
    hooks |= {"_sync": "synchronize", "_free": "free", "_make_handle": "handle"}
    for hook, word in hooks.items():
        for answer in ("raise", "return"):
            asked: list[str] = []

            def decline(self: Backend, device: DeviceSpec, *_: Any, how: str = answer, to: list[str] = asked) -> Any:
                to.append(device.id)
                if how == "raise":
                    raise NotImplementedError("no such kernel")
                return NotImplemented

            with bench(backend_class) as b:
                x, w = (
                    b.staged("gpu:0", "x", numbers(4).reshape(1, 4)),
                    b.staged("gpu:0", "w", numbers(8).reshape(2, 4)),
                )
                out, far = alloc(b, "gpu:0", "out", 1, 2), alloc(b, "gpu:1", "far", 1, 4)
                if hook != "_make_handle":
                    b.backend.handle("gpu:0")
                b.backend.__class__ = type("Declining", (backend_class,), {hook: decline})
                memory, count = b.snapshots(), len(b.events)
                with refused(BackendUnavailableError, "declined", word, "gpu:0", "not moved to another device"):
                    _one_call(b, hook, x, w, out, far)
                assert asked == ["gpu:0"], f"after {hook} was declined the work went to {asked}"
                assert len(b.events) == count
                assert all(np.array_equal(memory[name], now) for name, now in b.snapshots().items())


def _one_call(b: Bench, hook: str, x: Buffer, w: Buffer, out: Buffer, far: Buffer) -> None:
    backend, host = b.backend, np.zeros((1, 4), np.float32)
    calls: dict[str, Callable[[], object]] = {
        "_alloc": lambda: backend.alloc("gpu:0", "more", (1,), "fp32"),
        "_h2d": lambda: backend.copy_h2d("gpu:0", host, x, LABEL),
        "_d2h": lambda: backend.copy_d2h("gpu:0", x, host, LABEL),
        "_p2p": lambda: backend.copy_p2p("gpu:0", x, "gpu:1", far, LABEL),
        "_launch": lambda: backend.dispatch("gpu:0", "matmul", out, x, w, label=LABEL),
        "_sync": lambda: backend.synchronize("gpu:0"),
        "_free": lambda: backend.free("gpu:0", x),
        "_make_handle": lambda: backend.dispatch("gpu:0", "matmul", out, x, w, label=LABEL),
    }
    calls[hook]()


# Per-device state


@law()
def each_device_has_its_own_handle(backend_class: type[Backend]) -> None:
    with bench(backend_class) as b:
        one, two = (b.backend.handle(device) for device in DEVICES)
        assert one is not two, "both devices share one handle"
        assert (b.backend.handle("gpu:0"), b.backend.handle("gpu:1")) == (one, two)


@contextmanager
def _selected(
    trace: list[tuple[str, str]], below: contextlib.AbstractContextManager[None], name: str
) -> Iterator[None]:
    trace.append(("enter", name))
    try:
        with below:
            yield
    finally:
        trace.append(("leave", name))


def _traced(backend_class: type[Backend], trace: list[tuple[str, str]]) -> type[Backend]:
    """A copy of the backend that writes down selections and hooks; what the hooks do is unchanged."""

    def select(self: Backend, device: DeviceSpec) -> contextlib.AbstractContextManager[None]:
        return _selected(trace, backend_class._select(self, device), device.id)

    def noted(hook: str) -> Callable[..., Any]:
        def call(self: Backend, device: DeviceSpec, *args: Any) -> Any:
            trace.append((hook, device.id))
            return getattr(backend_class, hook)(self, device, *args)

        return call

    hooks = ("_make_handle", "_alloc", "_free", "_h2d", "_d2h", "_p2p", "_launch", "_sync")
    return type("Traced", (backend_class,), {"_select": select} | {hook: noted(hook) for hook in hooks})


@law()
def handles_are_made_on_first_use_after_the_device_is_selected(backend_class: type[Backend]) -> None:
    trace: list[tuple[str, str]] = []
    with bench(_traced(backend_class, trace)) as b:
        x, y = alloc(b, "gpu:1", "x", 1, 4), alloc(b, "gpu:1", "y", 1, 4)
        made = [entry for entry in trace if entry[0] == "_make_handle"]
        assert not made, f"handles made before any use: {made}"
        del trace[:]
        b.backend.dispatch("gpu:1", "add", x, y, label=LABEL)
        b.backend.dispatch("gpu:1", "add", x, y, label=LABEL)
        launch = [("enter", "gpu:1"), ("_launch", "gpu:1"), ("leave", "gpu:1")]
        assert trace == [("enter", "gpu:1"), ("_make_handle", "gpu:1"), ("leave", "gpu:1"), *launch, *launch]


@law()
def every_hook_runs_on_its_device_and_leaves_none_selected(backend_class: type[Backend]) -> None:
    trace: list[tuple[str, str]] = []
    with bench(_traced(backend_class, trace)) as b:
        host = np.zeros((1, 4), np.float32)
        one, two = alloc(b, "gpu:0", "one", 1, 4), alloc(b, "gpu:1", "two", 1, 4)
        b.backend.copy_h2d("gpu:1", host, two, LABEL)
        b.backend.copy_p2p("gpu:1", two, "gpu:0", one, LABEL)
        b.backend.copy_d2h("gpu:0", one, host, LABEL)
        b.backend.dispatch("gpu:0", "add", one, one, label=LABEL)
        b.backend.synchronize("gpu:1")
        with refused(FenceError):
            b.backend.alloc("gpu:1", "over", (FENCE,), "fp32")
        b.backend.free("gpu:0", one)
        entered: list[str] = []
        seen: set[str] = set()
        for what, device in trace:
            if what == "enter":
                entered.append(device)
            elif what == "leave":
                assert entered.pop() == device
            else:
                seen.add(what)
                assert entered == [device], f"{what} of {device} ran with {entered or 'no device'} selected"
        assert entered == [], f"{entered} stayed selected"
        assert seen == {"_make_handle", "_alloc", "_free", "_h2d", "_d2h", "_p2p", "_launch", "_sync"}


@law()
def a_launch_is_handed_the_handle_of_its_device(backend_class: type[Backend]) -> None:
    used: list[tuple[str, object]] = []

    def launch(self: Backend, device: DeviceSpec, handle: object, *args: Any) -> Any:
        used.append((device.id, handle))
        return backend_class._launch(self, device, handle, *args)

    with bench(type("Watched", (backend_class,), {"_launch": launch})) as b:
        for device in (*DEVICES, *DEVICES):
            b.backend.dispatch(device, "add", *(alloc(b, device, n, 1, 4) for n in "xy"), label=LABEL)
        assert [device for device, _ in used] == [*DEVICES, *DEVICES]
        assert all(handle is b.backend.handle(device) for device, handle in used)
