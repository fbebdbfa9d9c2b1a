"""Checkpoints of Hugging Face on the CUDA backend over a driver that is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.device import Backend
from executor.facts import RunFacts, run_document
from executor.run import Executor
from executor.weights import open_weights
from fleet.checkpoints import load_model
from scenarios.compare import compare
from scenarios.documents import orders_from_document
from scenarios.planning import make_plan
from scenarios.wanted import Wanted, prepare
from tests.executor.test_run_stored import NEW, PROMPT, VARIANTS, check
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver
from tests.hub_checkpoints import Hub, tensors_of, write_hub

CASES = ["llama", "llama in fp32, tied, heads alike", "llama with all biases", "llama in fp16", "qwen3"]
ENDS = [("gpu:0", "gpu:1"), ("gpu:0", "cpu:0"), ("cpu:0", "gpu:0"), ("gpu:0", "gpu:0")]
FLEET = {"gpu:0 gpu:1": "two-gpu-nvlink", "gpu:0 gpu:0": "two-gpu-nvlink"}


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(cards=2)


@pytest.fixture
def cuda(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Backend]]:
    with on(driver, monkeypatch) as made:
        yield made


def carried_out(made: Any, folder: Path, ends: tuple[str, str], **words: Any) -> tuple[RunFacts, dict[str, Any]]:
    """A run with its comparison; a fleet that has the devices of both ends."""
    fleet = FLEET.get(" ".join(ends), "gpu-and-cpu")
    asked: dict[str, Any] = {"fleet": fleet, "model": str(folder), "prompt_ids": PROMPT, "new_tokens": NEW}
    plan = make_plan(prepare(Wanted(**(asked | {"prefill": ends[0], "decode": ends[1]} | words))))
    assert plan["verdict"] == "admitted", plan["reasons"]
    weights = open_weights(load_model(str(folder)))
    with Executor(orders_from_document(plan["orders"]), weights, made) as executor:
        facts = executor.run()
    return facts, compare(plan, run_document(facts, plan_id=plan["id"]))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("attention", ["device", "host"])
def test_a_run_over_a_driver_that_is_none_is_that_of_the_reference(
    cuda: type[Backend], driver: FakeDriver, name: str, attention: str, tmp_path: Path
) -> None:
    hub = VARIANTS[name]
    tensors = tensors_of(hub)
    folder = write_hub(tmp_path / "m", hub, tensors)
    facts, comparison = carried_out(cuda, folder, ENDS[0], attention=attention, kv_dtype=hub.dtype)
    assert check(hub, tensors, facts, hub.dtype) > NEW // 2
    assert {row["verdict"] for row in comparison["rows"]} == {"match"}
    assert driver.held == 0


@pytest.mark.parametrize("ends", ENDS[1:])
def test_unlike_devices_share_one_checkpoint(cuda: type[Backend], ends: tuple[str, str], tmp_path: Path) -> None:
    hub = Hub()
    folder = write_hub(tmp_path / "m", hub)
    facts, comparison = carried_out(cuda, folder, ends)
    assert check(hub, tensors_of(hub), facts, "bf16") > NEW // 2
    assert {row["verdict"] for row in comparison["rows"]} <= {"match", "unwitnessed"}


def test_several_positions_a_call_on_a_card(cuda: type[Backend], tmp_path: Path) -> None:
    hub = Hub()
    folder = write_hub(tmp_path / "m", hub)
    alone, _ = carried_out(cuda, folder, ENDS[0])
    together, _ = carried_out(cuda, folder, ENDS[0], prefill_chunk=4)
    assert (alone.tokens, alone.logits_top1_bits) == (together.tokens, together.logits_top1_bits)


def test_an_id_outside_the_vocabulary_is_found_by_the_kernel(cuda: type[Backend], tmp_path: Path) -> None:
    from executor.device import DeviceSpec
    from executor.events import Label
    from fleet.errors import BackendError

    spec = DeviceSpec(id="gpu:0", topology_id=500, kind="gpu", index=0, fence_bytes=1 << 16)
    label = Label("stage", 0, "w")
    with cuda([spec]) as made:
        arrays = [np.zeros((1, 4), np.float32), np.zeros((3, 4), np.uint16), np.array([3], np.int32)]
        x, table, ids = (made.alloc_and_transfer("gpu:0", str(n), a, label) for n, a in enumerate(arrays))
        made.dispatch("gpu:0", "embed", x, table, ids, label=label)
        with pytest.raises(BackendError, match="token id 3 at index 0 is outside the vocabulary"):
            made.synchronize("gpu:0")
