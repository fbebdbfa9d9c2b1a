"""Copies between a card and a processor on a driver that is none: back to back, waited for before memory is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from executor.backends import cupy_gpu
from executor.device import DeviceSpec
from executor.events import Label
from executor.run import Executor
from fleet.errors import BackendError
from planner.plan import make_orders
from tests.executor.requests import admitted, embedded
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver

LABEL = Label("handoff", 0, "k")
WORDS = np.arange(64, dtype=np.float32).reshape(1, 64)


def spec(name: str, index: int) -> DeviceSpec:
    kind: Any = name.split(":")[0]
    number = index + (500 if kind == "gpu" else 1)
    return DeviceSpec(id=name, topology_id=number, kind=kind, index=index, fence_bytes=4096)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(cards=2)


@pytest.fixture
def made(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with (
        on(driver, monkeypatch),
        cupy_gpu.Backend([spec("gpu:0", 0), spec("gpu:1", 1), spec("cpu:0", 0), spec("cpu:1", 1)]) as backend,
    ):
        yield backend


def buffers(made: Any, device: str, *names: str) -> list[Any]:
    return [made.alloc(device, name, WORDS.shape, "fp32") for name in names]


def content(buffer: Any) -> Any:
    return buffer.wire().view(np.float32).tolist()


def waits(driver: FakeDriver) -> int:
    return driver.calls.count("synchronize")


def test_copies_down_wait_for_nobody_and_their_memory_is_waited_for_once(made: Any, driver: FakeDriver) -> None:
    sources = [made.alloc_and_transfer("gpu:0", name, WORDS + n, LABEL) for n, name in enumerate("ab")]
    targets = buffers(made, "cpu:0", "c", "d")
    before = waits(driver)
    for source, target in zip(sources, targets, strict=True):
        made.copy_p2p("gpu:0", source, "cpu:0", target, LABEL)
    assert waits(driver) == before
    assert [content(target) for target in targets] == [WORDS.tolist(), (WORDS + 1).tolist()]
    assert waits(driver) == before + 1


@pytest.mark.parametrize("use", ["put", "fill", "copy up", "compute"])
def test_memory_that_is_being_copied_from_is_not_written_before_the_copy_is_over(made: Any, use: str) -> None:
    (source, other), (target,) = buffers(made, "cpu:0", "a", "o"), buffers(made, "gpu:0", "b")
    source.put(WORDS)
    other.put(WORDS)
    made.copy_p2p("cpu:0", source, "gpu:0", target, LABEL)
    if use == "put":
        source.put(WORDS + 7)
    elif use == "fill":
        source.fill(7)
    elif use == "copy up":
        made.copy_h2d("cpu:0", WORDS + 7, source, LABEL)
    else:
        made.dispatch("cpu:0", "add", source, other, label=LABEL)
    assert content(target) == WORDS.tolist()


def test_two_cards_and_one_memory_take_their_turns(made: Any) -> None:
    first = made.alloc_and_transfer("gpu:0", "a", WORDS, LABEL)
    (middle,), (last,) = buffers(made, "cpu:0", "m"), buffers(made, "gpu:1", "z")
    made.copy_p2p("gpu:0", first, "cpu:0", middle, LABEL)
    made.copy_p2p("cpu:0", middle, "gpu:1", last, LABEL)
    assert content(last) == WORDS.tolist()


@pytest.mark.parametrize("how", ["another processor", "synchronize"])
def test_what_is_on_its_way_down_has_come_before_it_goes_further(made: Any, how: str) -> None:
    first = made.alloc_and_transfer("gpu:0", "a", WORDS, LABEL)
    (middle,), (last,) = buffers(made, "cpu:0", "m"), buffers(made, "cpu:1", "z")
    made.copy_p2p("gpu:0", first, "cpu:0", middle, LABEL)
    if how == "synchronize":
        made.synchronize("cpu:0")
        arena = made.arenas()["cpu:0"]
        assert arena.view(middle.address - arena.address, WORDS.shape, "fp32").tolist() == WORDS.tolist()
        return
    made.copy_p2p("cpu:0", middle, "cpu:1", last, LABEL)
    assert content(last) == WORDS.tolist()


def test_what_went_wrong_on_the_way_is_told_when_the_memory_is_used(made: Any, driver: FakeDriver) -> None:
    source = made.alloc_and_transfer("gpu:0", "a", WORDS, LABEL)
    (target,) = buffers(made, "cpu:0", "b")
    made.copy_p2p("gpu:0", source, "cpu:0", target, LABEL)
    driver.faults["synchronize"] = (0, "lost")
    with pytest.raises(BackendError, match="waiting for work on gpu:0"):
        target.wire()
    del driver.faults["synchronize"]


@pytest.mark.parametrize("path", ["dispatch", "fused"])
@pytest.mark.parametrize("devices", [("gpu:0", "cpu:0"), ("cpu:0", "gpu:0")])
def test_the_copies_of_a_handoff_go_back_to_back(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, devices: tuple[str, str], path: Any
) -> None:
    orders = make_orders(admitted(embedded().model, steps=24, devices=devices))
    at: list[int] = []
    copy = cupy_gpu.Backend.copy_p2p

    def noted(self: Any, *args: Any) -> None:
        at.append(len(driver.calls))
        copy(self, *args)

    monkeypatch.setattr(cupy_gpu.Backend, "copy_p2p", noted)
    with on(driver, monkeypatch), Executor(orders, embedded(), cupy_gpu.Backend, path=path) as executor:
        executor.run()
    assert len(at) == 2 * embedded().model.n_layers
    assert "synchronize" not in driver.calls[at[0] : at[-1]]
