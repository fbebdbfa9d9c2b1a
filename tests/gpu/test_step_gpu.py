"""On a real card: a decode step in one launch beside the same step in parts, on shapes that fill nothing evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor.cuda.driver import selected
from executor.cuda.kernels import Kernels
from executor.cuda.step import room_of_step
from executor.cuda.steps import Memory, Steps
from executor.run import Executor
from fleet.errors import BackendError
from planner.plan import make_orders
from tests.executor.requests import ORACLE, admitted, random_weights, run_once
from tests.gpu.card import backend, needs
from tests.planner.fleets import llama2c

pytestmark = needs(1)

SHAPES: dict[str, tuple[tuple[int, ...], int]] = {
    "heads of eight, an odd vocabulary": ((48, 104, 2, 6, 3, 259, 300), 200),
    "hidden rows too short for parts of attention": ((256, 64, 2, 2, 1, 97, 512), 400),
    "heads of 256, two parts": ((512, 1040, 2, 2, 2, 1001, 700), 600),
    "more units than a block finishes at once": ((288, 768, 1, 6, 6, 70001, 40), 40),
    "rows of nine pieces of bf16": ((72, 184, 2, 6, 6, 50, 100), 100),
    "one head, many positions, four parts": ((128, 640, 1, 1, 1, 64, 1600), 1500),
    "more heads than processors": ((1088, 128, 1, 136, 8, 32, 300), 280),
}


def both_ways(
    monkeypatch: pytest.MonkeyPatch, made: Any, shape: tuple[int, ...], steps: int
) -> list[tuple[list[int], Any]]:
    """Ids and largest logits in one launch and in parts."""
    dim, hidden, layers, heads, kv_heads, vocab, length = shape
    model = llama2c(dim, hidden, layers, heads, kv_heads, vocab, length, shared=True)
    orders, found = make_orders(admitted(model, (1, 2, 3), steps=steps, devices=ORACLE, granule=2 << 20)), []
    asked: list[bool] = []

    def noted(kernels: Kernels, memory: Memory) -> int | None:
        room = room_of_step(kernels, memory)
        asked.append(room is not None)
        return room

    monkeypatch.setattr("executor.cuda.steps.room_of_step", noted)
    for whole in (True, False):
        monkeypatch.setattr(Kernels, "whole", whole)
        facts = run_once(orders, random_weights(model), backend=made)
        found.append((list(facts.tokens), np.array(facts.logits_top1_bits, np.uint32).view(np.float32)))
    assert asked, "no step was captured"
    assert all(asked), "a step that was to go in one launch went in parts"
    return found


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_step_in_one_launch_computes_what_its_parts_do(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    made: Any = backend()
    one, parts = both_ways(monkeypatch, made if dtype == "fp32" else made.computing(dtype), *SHAPES[name])
    assert one[0] == parts[0]
    assert np.allclose(one[1], parts[1], rtol=1e-4, atol=1e-4)


def opened(executor: Executor) -> tuple[Any, Steps]:
    """The lane of the card, and the steps of its decode."""
    machine: Any = executor.machine
    handle = machine.backend.handle("gpu:0")
    positions = machine.cache("gpu:0", "decode", "k").shape[1]
    memory = Memory(machine.model, "decode", lambda name: machine.buffer("gpu:0", name).address, positions)
    return handle, Steps(handle.kernels, memory)


@pytest.mark.parametrize(("shape", "goes"), [((64, 172, 2, 8, 4, 512, 64), True), ((30, 70, 2, 3, 3, 50, 64), False)])
def test_rows_that_are_no_whole_pieces_go_in_parts(shape: tuple[int, ...], goes: bool) -> None:
    model = llama2c(*shape, shared=True)
    orders = make_orders(admitted(model, (1, 2), steps=40, devices=ORACLE, granule=2 << 20))
    with Executor(orders, random_weights(model), backend()) as executor:
        handle, steps = opened(executor)
        with selected(handle.lane.driver, handle.lane.ordinal):
            assert (room_of_step(handle.kernels, steps.memory) is not None) == goes
        assert executor.run().tokens


def test_an_id_outside_the_vocabulary_is_told_and_the_next_step_is_sound() -> None:
    model = llama2c(64, 172, 2, 8, 4, 512, 64, shared=True)
    orders = make_orders(admitted(model, (1, 2), steps=40, devices=ORACLE, granule=2 << 20))
    with Executor(orders, random_weights(model), backend()) as executor:
        before = executor.run()
        handle, steps = opened(executor)
        lane, driver = handle.lane, handle.lane.driver
        with selected(driver, lane.ordinal):
            driver.fill(steps.memory.at("act/tokens"), 512, 1, lane.stream)
            steps.token(steps.memory.at("act/tokens"), True, 0)
            with pytest.raises(BackendError, match="token id 512 at index 0 is outside the vocabulary"):
                lane.synchronize()
        after = executor.run()
    assert (before.tokens, before.logits_top1_bits) == (after.tokens, after.logits_top1_bits)
