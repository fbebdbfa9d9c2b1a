"""Checkpoints of Hugging Face on a card, and on a card and a processor: the slow reference's logits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.executor.test_run_stored import NEW, VARIANTS, check
from tests.gpu.card import backend, needs
from tests.gpu.test_stored_fake import carried_out
from tests.hub_checkpoints import tensors_of, write_hub

pytestmark = needs(1)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("ends", [("gpu:0", "gpu:0"), ("gpu:0", "cpu:0"), ("cpu:0", "gpu:0")])
def test_a_run_on_a_card_is_that_of_the_reference(name: str, ends: tuple[str, str], tmp_path: Path) -> None:
    hub = VARIANTS[name]
    tensors = tensors_of(hub)
    folder = write_hub(tmp_path / "m", hub, tensors)
    facts, comparison = carried_out(backend(ends), folder, ends, kv_dtype=hub.dtype)
    assert check(hub, tensors, facts, hub.dtype) > NEW // 2
    assert {row["verdict"] for row in comparison["rows"]} <= {"match", "unwitnessed"}


@pytest.mark.parametrize("attention", ["device", "host"])
def test_both_modes_of_attention_and_calls_of_several_positions_on_a_card(attention: str, tmp_path: Path) -> None:
    hub = VARIANTS["qwen3"]
    folder = write_hub(tmp_path / "m", hub)
    ends = ("gpu:0", "gpu:0")
    alone, _ = carried_out(backend(ends), folder, ends, attention=attention)
    assert check(hub, tensors_of(hub), alone, "bf16") > NEW // 2
    if attention == "device":
        together, _ = carried_out(backend(ends), folder, ends, prefill_chunk=4)
        # Sums of several positions are made in tiles, in another order: ids and the distance to the reference count.
        assert alone.tokens == together.tokens
        assert check(hub, tensors_of(hub), together, "bf16") > NEW // 2
