"""What the executor cannot do it refuses in words, before anything is allocated, and never half done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from executor.arena import Arena
from executor.device import DeviceSpec, HostSpec
from executor.discovery import load_backend
from executor.hands import Hands
from executor.run import Executor
from executor.weights import Weights
from fleet.errors import BackendUnavailableError, DescriptionError, FenceError, LedgerOverflowError
from planner.orders import BufferOrder, Fence, Orders, Step
from tests.executor.requests import PROMPT, SPLIT, admitted, embedded, orders_for, random_weights, run_once
from tests.planner.fleets import llama2c

ORDERS = orders_for(embedded().model, steps=20)
STAGED = orders_for(embedded().model, steps=20, attention="host", peer_access="staged")


def refused(orders: Orders, words: str, weights: Weights | None = None) -> None:
    with pytest.raises(DescriptionError, match=words):
        Executor(orders, embedded() if weights is None else weights)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch": 2}, "2 sequences at once are priced, not run; admit with --batch 1"),
        ({"kv_dtype": "bf16"}, "kv_dtype the executor computes fp32, not bf16"),
        ({"weights_dtype": "fp8"}, "weights_dtype the executor computes fp32, not fp8"),
        ({"layout": "paged"}, "layout 'paged' is not known"),
        ({"prompt_ids": None}, "only a count of 14 is known; give a prompt of that many tokens"),
        ({"prompt_ids": (1, 2, 3)}, "3 ids where 14 are ordered"),
        ({"prompt_ids": (*PROMPT[:-1], 259)}, "id 259 is outside the vocabulary of 259"),
        ({"prompt_ids": (*PROMPT[:-1], -1)}, "id -1 is outside"),
        ({"positions": 19}, "passes <= positions <= seq_len"),
        ({"passes": 0}, "passes <= positions <= seq_len"),
        ({"prefill_chunk": 0}, "passes <= positions"),
    ],
)
def test_refuses_a_workload_that_it_cannot_run(change: dict[str, Any], words: str) -> None:
    refused(replace(ORDERS, workload=replace(ORDERS.workload, **change)), words)


def test_tells_every_fault_at_once() -> None:
    wrong = replace(ORDERS.workload, batch=3, kv_dtype="fp16", layout="x", prompt_ids=None)
    with pytest.raises(DescriptionError) as caught:
        Executor(replace(ORDERS, workload=wrong), embedded())
    assert [fault.field for fault in caught.value.faults] == [
        "workload.batch", "workload.kv_dtype", "workload.layout", "workload.prompt_ids",
    ]  # fmt: skip


def test_refuses_weights_of_another_shape() -> None:
    other = random_weights(replace(llama2c(), seq_len=512))
    refused(ORDERS, "weights/token_embedding has shape", other)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_theta": 500000.0}, "rope_theta 500000"),
        ({"norm_eps": 1e-6}, "norm_eps 1e-06"),
        ({"format": "hf-config"}, "run are llama2.c checkpoints"),
        ({"unknown": ("family x is not understood",)}, "family x is not understood"),
    ],
)
def test_refuses_a_model_that_llama2c_could_not_run(change: dict[str, Any], words: str) -> None:
    model = replace(embedded().model, **change)
    refused(ORDERS, words, Weights(model, {t.name: embedded().tensor(t.name) for t in model.tensors}))


def with_buffer(orders: Orders, arena: str, name: str, buffer: BufferOrder | None) -> Orders:
    arenas = []
    for listed in orders.arenas:
        if listed.arena == arena:
            kept = tuple(buffer if b.name == name else b for b in listed.buffers)
            listed = replace(listed, buffers=tuple(b for b in kept if b is not None))
        arenas.append(listed)
    return replace(orders, arenas=tuple(arenas))


@pytest.mark.parametrize("orders", [ORDERS, STAGED], ids=["device", "staged-host"])
def test_refuses_orders_that_lack_or_misshape_any_buffer(orders: Orders) -> None:
    for arena in orders.arenas:
        for buffer in arena.buffers:
            refused(with_buffer(orders, arena.arena, buffer.name, None), "lists no buffer|the model or the arena")
            lean = replace(buffer, shape=tuple(extent - 1 for extent in buffer.shape))
            refused(with_buffer(orders, arena.arena, buffer.name, lean), "has shape")
            refused(
                with_buffer(orders, arena.arena, buffer.name, replace(buffer, shape=(2, *buffer.shape))), "has shape"
            )
            refused(with_buffer(orders, arena.arena, buffer.name, replace(buffer, dtype="fp16")), "the run needs")
            refused(with_buffer(orders, arena.arena, buffer.name, replace(buffer, layout="paged")), "the run needs")


HANDOFF = next(n for n, step in enumerate(ORDERS.steps) if step.op == "handoff")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (Step(op="stage", dst="gpu:0", tensor="w9"), "stages 'w9' to gpu:0"),
        (Step(op="stage", dst="gpu:7", tensor="wq"), "stages 'wq' to gpu:7"),
        (Step(op="decode", dst="gpu:1"), "at most one decode after it"),
        (replace(ORDERS.steps[HANDOFF], src="gpu:1", dst="gpu:0"), "is no hop of this placement"),
        (replace(ORDERS.steps[HANDOFF], mode="local"), "is no hop of this placement"),
        (replace(ORDERS.steps[HANDOFF], mode="up"), "is no hop of this placement"),
        (replace(ORDERS.steps[HANDOFF], tensor="q"), "names no tensor k or v"),
        (replace(ORDERS.steps[HANDOFF], layers=(0, 99)), "copies layers 0..98"),
        (replace(ORDERS.steps[HANDOFF], positions=(3, 2)), "positions 3..1"),
        (replace(ORDERS.steps[HANDOFF], unit="array"), "an array, but not all of it"),
        (replace(ORDERS.steps[HANDOFF], unit="block", block=0), "blocks of no size"),
        (replace(ORDERS.steps[HANDOFF], layout="paged"), "layout 'paged'"),
    ],
)
def test_refuses_a_step_that_does_not_fit(step: Step, words: str) -> None:
    steps = list(ORDERS.steps)
    steps[HANDOFF] = step
    refused(replace(ORDERS, steps=tuple(steps)), words)


def test_refuses_a_placement_without_arena_or_fence() -> None:
    refused(replace(ORDERS, decode="gpu:9"), "'gpu:9' is not among the devices")
    refused(replace(ORDERS, fences=ORDERS.fences[:1]), "arena gpu:1 has none")
    refused(replace(ORDERS, arenas=ORDERS.arenas[:1]), "gpu:1 has no arena of its name")
    elsewhere = (ORDERS.devices[0], replace(ORDERS.devices[1], host="node1/host"))
    refused(replace(ORDERS, devices=elsewhere), "several hosts")


def test_refuses_buffers_that_are_read_together_and_have_other_extents() -> None:
    names = ("kv/decode/v", "act/att", "work/rope_sin")
    for name, words in zip(names, ("several shapes", "its caches 20", "wanted one"), strict=True):
        buffer = next(b for b in ORDERS.arenas[1].buffers if b.name == name)
        shape = tuple(extent + (extent == 20) for extent in buffer.shape)
        longer = replace(buffer, shape=shape)
        fences = tuple(replace(fence, bytes=fence.bytes + 2**20) for fence in ORDERS.fences)
        refused(replace(with_buffer(ORDERS, "gpu:1", name, longer), fences=fences), words)


def test_refuses_options_that_it_does_not_know() -> None:
    with pytest.raises(DescriptionError, match="'prefill' is not known; use handoff"):
        Executor(ORDERS, embedded(), without={"prefill"})
    with pytest.raises(DescriptionError, match="'cupti' is not known"):
        Executor(ORDERS, embedded(), observers={"cupti"})
    with pytest.raises(DescriptionError, match="no such backend"):
        Executor(ORDERS, embedded(), "cuda")


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the arenas that were closed, in order."""
    names: list[str] = []
    close = Arena.close

    def noted(arena: Arena) -> None:
        names.append(arena.name)
        close(arena)

    monkeypatch.setattr(Arena, "close", noted)
    return names


@settings(max_examples=20, deadline=None)
@given(
    layers=st.integers(1, 3),
    heads=st.sampled_from([(1, 1), (2, 1), (4, 2)]),
    hidden=st.integers(1, 50),
    vocab=st.integers(60, 130),
    steps=st.integers(1, 30),
    attention=st.sampled_from(["device", "host"]),
)
def test_a_fence_one_granule_lower_refuses_the_last_buffer(
    layers: int, heads: tuple[int, int], hidden: int, vocab: int, steps: int, attention: str
) -> None:
    granule = 256
    model = llama2c(heads[0] * 4, hidden, layers, *heads, vocab=vocab, seq_len=32)
    ids = (3, 5, 9)
    orders = orders_for(model, ids, steps=steps, attention=attention, granule=granule)
    weights = random_weights(model)
    run_once(orders, weights)
    for number, fence in enumerate(orders.fences):
        device = fence.arena in SPLIT
        assume(fence.bytes > granule)
        lower = Fence(arena=fence.arena, bytes=fence.bytes - (granule if device else 4))
        fences = (*orders.fences[:number], lower, *orders.fences[number + 1 :])
        with pytest.raises(DescriptionError, match=f"arena {fence.arena}: "):
            Executor(replace(orders, fences=fences), weights)


def test_a_fence_that_refuses_leaves_nothing_allocated(closed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    last = ORDERS.fences[-1]
    used = admitted(embedded().model, steps=20).prediction
    assert used is not None
    lower = Fence(arena=last.arena, bytes=used.footprints[-1].resident_bytes - 1)
    with pytest.raises(DescriptionError, match="1 B short"):
        Executor(replace(ORDERS, fences=(*ORDERS.fences[:-1], lower)), embedded())
    assert closed == []  # it was seen before anything was allocated
    monkeypatch.setattr("executor.check_orders.check_room", lambda orders, model: iter(()))
    with pytest.raises(FenceError):
        Executor(replace(ORDERS, fences=(*ORDERS.fences[:-1], lower)), embedded())
    assert sorted(closed) == ["gpu:0", "gpu:1"]


def test_an_error_in_a_run_leaves_nothing_allocated(closed: list[str]) -> None:
    class Slipping(Hands):
        def handoff(self, order: int, step: Step) -> None:
            raise ZeroDivisionError

    executor = Executor(ORDERS, embedded(), hands=Slipping())
    with pytest.raises(ZeroDivisionError):
        executor.run()
    assert sorted(closed) == ["gpu:0", "gpu:1"]


def test_an_interrupt_leaves_nothing_allocated(closed: list[str]) -> None:
    class Interrupted(Hands):
        def prepare(self) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Executor(ORDERS, embedded(), hands=Interrupted()).run()
    assert sorted(closed) == ["gpu:0", "gpu:1"]


def test_a_backend_that_declines_ends_the_run(closed: list[str]) -> None:
    numba: Any = load_backend("numba")

    class Declining(numba):  # type: ignore[misc]  # the base class is only known at run time
        def _p2p(self, src_device: DeviceSpec, dst_device: DeviceSpec, src: int, dst: int, nbytes: int) -> Any:
            return NotImplemented

    with pytest.raises(BackendUnavailableError, match="declined copy_p2p on gpu:0; work is not moved"):
        Executor(ORDERS, embedded(), Declining).run()
    assert sorted(closed) == ["gpu:0", "gpu:1"]


def test_more_events_than_any_order_could_cause_overflow_the_ledger() -> None:
    class Endless(Hands):
        def handoff(self, order: int, step: Step) -> None:
            while True:
                super().handoff(order, step)

    with pytest.raises(LedgerOverflowError):
        run_once(orders_for(llama2c(4, 4, 1, 1, 1, vocab=9), (3, 4), steps=4), _tiny(), hands=Endless())


def _tiny() -> Weights:
    return random_weights(llama2c(4, 4, 1, 1, 1, vocab=9))


def test_arenas_are_of_the_devices_and_roles_of_the_orders() -> None:
    with Executor(STAGED, embedded()) as executor:
        assert set(executor.machine.backend.arenas()) == {
            "gpu:0", "gpu:1", "host:prefill", "host:decode", "host:bounce",
        }  # fmt: skip
        fences = {fence.arena: fence.bytes for fence in STAGED.fences}
        assert {name: arena.fence for name, arena in executor.machine.backend.arenas().items()} == fences
        buffer = executor.machine.buffer("gpu:0", "weights/wq")
        assert np.isnan(buffer.array).all()
    assert HostSpec(name="host:bounce", fence_bytes=1).name == "host:bounce"
