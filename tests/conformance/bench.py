"""Two devices of one backend with all that they report: the ground that the laws stand on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.device import Backend, Buffer, DeviceSpec, HostSpec
from executor.events import Event, Label
from fleet.errors import KvWaybillError

WORDS = 256
FENCE = 4 * WORDS
DEVICES = ("gpu:0", "gpu:1")
LABEL = Label("stage", 0, "weights")


@dataclass
class Bench:
    """A backend with two fenced devices and two host roles, and the events it reported so far."""

    backend: Backend
    events: list[Event] = field(default_factory=list)

    def staged(self, device: str, name: str, content: npt.NDArray[Any]) -> Buffer:
        """A buffer on `device` that holds `content`."""
        return self.backend.alloc_and_transfer(device, name, content, LABEL)

    def snapshots(self) -> dict[str, npt.NDArray[np.uint32]]:
        """What every arena holds now, past the copies of the ABI."""
        return {name: arena.snapshot() for name, arena in self.backend.arenas().items()}


def specs(fence: int = FENCE) -> tuple[list[DeviceSpec], list[HostSpec]]:
    """Two devices and two host roles, each with a fence of `fence` bytes."""
    devices = [
        DeviceSpec(id=name, topology_id=500 + index, kind="gpu", index=index, fence_bytes=fence)
        for index, name in enumerate(DEVICES)
    ]
    return devices, [HostSpec(name=name, fence_bytes=fence) for name in ("host:prefill", "host:decode")]


@contextmanager
def bench(backend_class: type[Backend], fence: int = FENCE, request: int = 0) -> Iterator[Bench]:
    """A Bench that is closed afterwards, whatever happens."""
    devices, hosts = specs(fence)
    events: list[Event] = []
    with backend_class(devices, hosts, listener=events.append, request=request) as backend:
        yield Bench(backend, events)


@contextmanager
def refused(error: type[KvWaybillError], *words: str) -> Iterator[None]:
    """Fail with AssertionError unless the block raises exactly `error` with all `words` in its message."""
    caught: Exception | None = None
    try:
        yield
    except Exception as raised:  # noqa: BLE001 - a TypeError from deep inside is no refusal: judged below
        caught = raised
    if caught is None:
        raise AssertionError(f"accepted; {error.__name__} was due")
    if type(caught) is not error:
        raise AssertionError(f"{caught!r} instead of {error.__name__}") from caught
    missing = [word for word in words if word not in str(caught)]
    if missing:
        raise AssertionError(f"the message {str(caught)!r} does not name {missing}") from caught


def numbers(count: int, start: float = 1.0) -> npt.NDArray[np.float32]:
    """`count` different small floats from `start` on."""
    return np.arange(count, dtype=np.float32) * np.float32(0.25) + np.float32(start)


def bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    """The words of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint32)


def alloc(b: Bench, device: str, name: str, *shape: int) -> Buffer:
    """An f32 buffer on `device`, poisoned."""
    return b.backend.alloc(device, name, shape, "fp32")
