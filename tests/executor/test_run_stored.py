"""Checkpoints of Hugging Face on the processor: each variant beside the slow reference, split beside one device."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.facts import RunFacts
from executor.hands import Hands
from executor.run import Executor
from executor.weights import open_weights
from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from planner.orders import Orders
from scenarios.documents import orders_from_document
from scenarios.planning import make_plan
from scenarios.wanted import Wanted, prepare
from tests.hub_checkpoints import Hub, tensors_of, write_hub
from tests.hub_reference import hub_logits

PROMPT = (5, 17, 80, 1, 33, 1, 9)
NEW = 8
BOUNDS = {"fp32": 5e-5, "bf16": 5e-3, "fp16": 1e-3}
"""How far a logit may lie from the reference's, by the type of K and V: a last bit of f32 can turn one rounding."""

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
VARIANTS = {
    "llama": Hub(),
    "llama in fp32, tied, heads alike": Hub(dtype="fp32", tied=True, kv_heads=4),
    "llama in fp16": Hub(dtype="fp16"),
    "llama with heads wider than the model": Hub(head_dim=16, hidden=64),
    "llama with heads narrower than the model": Hub(head_dim=4, eps=1e-3),
    "llama with all biases": Hub(
        qkv_bias=True, o_bias=True, mlp_bias=True, extra={"attention_bias": True, "mlp_bias": True}
    ),
    "llama, linear": Hub(extra={"rope_scaling": {"type": "linear", "factor": 2.5}}),
    "llama, dynamic": Hub(extra={"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
    "llama, llama3": Hub(extra={"rope_theta": 500000.0, "rope_scaling": LLAMA3}),
    "llama, yarn": Hub(extra={"rope_scaling": YARN}, dtype="fp32"),
    "llama, yarn with an attention factor": Hub(extra={"rope_scaling": YARN | {"attention_factor": 1.3}}),
    "mistral": Hub(family="mistral", kv_heads=1, extra={"rope_theta": 1e6}),
    "qwen2": Hub(family="qwen2", qkv_bias=True, tied=True),
    "qwen3": Hub(family="qwen3", qk_norm=True, head_dim=16, hidden=64, eps=1e-6),
}  # fmt: skip


def orders_of(folder: Path, **words: Any) -> Orders:
    asked: dict[str, Any] = {"fleet": "two-gpu-nvlink", "model": str(folder), "prompt_ids": PROMPT, "new_tokens": NEW}
    plan = make_plan(prepare(Wanted(**(asked | words))))
    assert plan["verdict"] == "admitted", plan["reasons"]
    return orders_from_document(plan["orders"])


def run(folder: Path, hands: Hands | None = None, **words: Any) -> RunFacts:
    with Executor(orders_of(folder, **words), open_weights(load_model(str(folder))), hands=hands) as executor:
        return executor.run()


def check(hub: Hub, tensors: dict[str, Any], facts: RunFacts, kv_dtype: str) -> int:
    """Holds a run against the reference, step by step along its own walk; gives how many ids were clear."""
    logits = hub_logits(hub, tensors, list(facts.tokens[:-1]), kv_dtype)[len(PROMPT) - 1 :]
    top = np.array(facts.logits_top1_bits, np.uint32).view(np.float32)[-NEW:]
    bound, clear = BOUNDS[kv_dtype], 0
    for chosen, value, row in zip(facts.generated_tokens, top, logits, strict=True):
        assert abs(value - row[chosen]) <= bound
        second, first = np.sort(row)[-2:]
        if first - second > 2 * bound:
            assert chosen == row.argmax()
            clear += 1
    return clear


@pytest.mark.parametrize("name", VARIANTS)
def test_a_run_is_that_of_the_slow_reference(name: str, tmp_path: Path) -> None:
    hub = VARIANTS[name]
    tensors = tensors_of(hub)
    folder = write_hub(tmp_path / "m", hub, tensors)
    facts = run(folder, kv_dtype=hub.dtype)
    assert check(hub, tensors, facts, hub.dtype) > NEW // 2
    assert facts.passes == {"prefill": len(PROMPT), "decode": NEW - 1}
    single = run(folder, kv_dtype=hub.dtype, decode="gpu:0", prefill="gpu:0")
    assert (single.tokens, single.logits_top1_bits) == (facts.tokens, facts.logits_top1_bits)


@pytest.mark.parametrize("kv_dtype", ["fp32", "bf16", "fp16"])
def test_k_and_v_are_kept_in_the_type_that_was_admitted(kv_dtype: str, tmp_path: Path) -> None:
    hub = Hub(family="qwen3", qk_norm=True, head_dim=8)
    folder = write_hub(tmp_path / "m", hub)
    facts = run(folder, kv_dtype=kv_dtype)
    assert check(hub, tensors_of(hub), facts, kv_dtype) > NEW // 2
    moved = [row["bytes"] for row in facts.waybill if row["phase"] == "handoff"]
    width = 4 if kv_dtype == "fp32" else 2
    assert moved == [hub.layers * len(PROMPT) * hub.kv_heads * hub.head * width] * 2
    host = run(folder, kv_dtype=kv_dtype, attention="host")
    assert host.tokens == facts.tokens


def test_weights_cross_in_the_types_of_the_file(tmp_path: Path) -> None:
    hub = Hub()
    folder = write_hub(tmp_path / "m", hub)
    elements = sum(values.size for values in tensors_of(hub).values())
    rows = [row for row in run(folder).waybill if row["tensor"] == "weights"]
    assert [(row["bytes"], row["copies"]) for row in rows] == [(2 * elements, len(tensors_of(hub)))] * 2


def test_several_positions_a_call_have_the_bits_of_one_at_a_time(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "m", VARIANTS["qwen3"])
    alone, together = run(folder), run(folder, prefill_chunk=3)
    assert (alone.tokens, alone.logits_top1_bits) == (together.tokens, together.logits_top1_bits)


def test_a_checkpoint_in_parts_is_the_same_model(tmp_path: Path) -> None:
    hub = Hub()
    whole, parts = write_hub(tmp_path / "m", hub), write_hub(tmp_path / "parts", hub, parts=3)
    assert run(whole).logits_top1_bits == run(parts).logits_top1_bits


def test_a_header_of_odd_length_shifts_nothing(tmp_path: Path) -> None:
    hub = Hub()
    folder = write_hub(tmp_path / "m", hub)
    wanted = run(folder, attention="host").logits_top1_bits
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    file.write_bytes(struct.pack("<Q", length + 3) + data[8 : 8 + length] + b"   " + data[8 + length :])
    assert run(folder, attention="host").logits_top1_bits == wanted


def test_no_id_ends_a_walk(tmp_path: Path) -> None:
    """1 stands in the prompt and may be chosen: it is BOS in llama2.c's vocabularies alone."""
    hub = Hub(vocab=2, tied=True)
    folder = write_hub(tmp_path / "m", hub)
    facts = run(folder, prompt_ids=(0, 1, 1, 0, 1, 1, 0))
    assert (facts.stopped, sum(facts.passes.values())) == ("steps", 6 + NEW)
    assert 1 in facts.tokens[1:-1]


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act", "run is silu alone"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "rope_scaling", "not computed"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling", "lacks factor"),
        ({"rope_scaling": {"type": "linear", "factor": "NaN"}}, "rope_scaling.factor", "must be a number from"),
        ({"rope_scaling": {"type": "linear", "factor": -1}}, "rope_scaling.factor", "must be a number from"),
        ({"rope_scaling": {"type": ["yarn"]}}, "rope_scaling", "not computed"),
        ({"rope_scaling": [1]}, "rope_scaling", "must be an object"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "rope_scaling", "must be below"),
        ({"rope_scaling": YARN, "rope_theta": 1}, "rope_scaling", "rope_theta above 1"),
        ({"rope_scaling": YARN | {"truncate": 1}}, "rope_scaling.truncate", "true or false"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "rope_parameters", "says full_attention"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling", "says factor and no kind"),
        (
            {"rope_scaling": YARN | {"original_max_position_embeddings": 5e-324}},
            "original_max",
            "must be a number from",
        ),
        ({"rope_scaling": LLAMA3, "rope_parameters": YARN}, "rope_parameters", "beside another rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"rope_theta": 5e5}}, "rope_scaling.rope_theta", "rope_theta beside it 10000"),
        ({"rope_theta": 1e300}, "rope_theta", "run are 0.001 to"),
        ({"rope_theta": 5e-324}, "rope_theta", "run are 0.001 to"),
        ({"rope_scaling": {"type": "linear", "factor": 1e-9}}, "rope_theta", "turns pairs by"),
        ({"rope_scaling": YARN | {"attention_factor": 1e9}}, "rope_scaling", "multiplies q and k"),
        ({"rms_norm_eps": 1e-300}, "rms_norm_eps", "run are 1e-30 to 1"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "turned whole"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
            "rope",
            "would change",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_field(
    config: dict[str, Any], field: str, words: str, tmp_path: Path
) -> None:
    folder = write_hub(tmp_path / "m", Hub(extra=config))
    with pytest.raises(DescriptionError, match=words) as caught:
        run(folder)
    assert field in str(caught.value)


def test_a_family_that_nobody_computes_and_a_window_are_told_together(tmp_path: Path) -> None:
    hub = Hub(family="mistral", extra={"sliding_window": 16, "hidden_act": "relu"})
    with pytest.raises(DescriptionError) as caught:
        Executor(_forged(write_hub(tmp_path / "m", hub)), open_weights(load_model(str(tmp_path / "m"))))
    told = str(caught.value)
    assert "full attention alone" in told
    assert "silu alone" in told


def _forged(folder: Path) -> Orders:
    return orders_of(write_hub(folder.parent / "twin", Hub(family="mistral")))


def test_all_tensors_that_do_not_fit_are_told_at_once(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "m", Hub())
    orders = orders_of(folder)
    tensors = tensors_of(Hub())
    tensors["model.layers.0.self_attn.rotary_scale.weight"] = np.ones(4, np.float32)
    tensors["model.layers.1.mlp.up_gate.weight"] = np.ones(4, np.float32)
    write_hub(folder, Hub(), tensors)
    with pytest.raises(DescriptionError) as caught:
        Executor(orders, open_weights(load_model(str(folder))))
    assert str(caught.value).count("is read by no operation of the program") == 2


def test_a_bias_that_the_config_does_not_name_is_not_added_in_silence(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "m", Hub(qkv_bias=True))  # attention_bias is false: the library leaves it out
    with pytest.raises(DescriptionError, match=r"q_proj.bias is read by no operation"):
        run(folder)


def test_a_head_stored_beside_a_tied_embedding_is_neither_read_nor_staged(tmp_path: Path) -> None:
    hub = Hub(tied=True)
    extra = {"lm_head.weight": np.ones((hub.vocab, hub.dim), np.float32)}
    runs = [run(write_hub(tmp_path / "m", hub)), run(write_hub(tmp_path / "both", hub, tensors_of(hub) | extra))]
    staged = [[row["bytes"] for row in facts.waybill if row["tensor"] == "weights"] for facts in runs]
    assert staged[0] == staged[1]
    assert runs[0].logits_top1_bits == runs[1].logits_top1_bits


def test_a_file_that_changed_since_it_was_loaded_is_not_staged(tmp_path: Path) -> None:
    folder = write_hub(tmp_path / "m", Hub())
    model = load_model(str(folder))
    write_hub(folder, Hub(), tensors_of(Hub(), seed=1))
    with pytest.raises(DescriptionError, match="changed; admit again"):
        open_weights(model)


def test_nan_is_told_in_each_type(tmp_path: Path) -> None:
    for dtype in ("bf16", "fp16", "fp32"):
        hub = Hub(dtype=dtype)
        folder = write_hub(tmp_path / dtype, hub)
        file = folder / "model.safetensors"
        data = bytearray(file.read_bytes())
        header = json.loads(data[8 : 8 + struct.unpack_from("<Q", data)[0]])
        at = 8 + struct.unpack_from("<Q", data)[0] + header["model.norm.weight"]["data_offsets"][0]
        nan, infinite = {"bf16": (0x7FC0, 0xFF80), "fp16": (0x7E00, 0xFC00), "fp32": (0x7FC00000, 0xFF800000)}[dtype]
        struct.pack_into("<II" if dtype == "fp32" else "<HH", data, at, nan, infinite)
        file.write_bytes(data)
        told = open_weights(load_model(str(folder))).check()
        assert told == ["model.norm.weight holds 1 NaN and 1 infinite values: the tokens mean nothing"]


@pytest.mark.parametrize(
    ("hub", "words", "message"),
    [
        (Hub(), {"weights_dtype": "fp32"}, "leave --weights-dtype out"),
        (Hub(), {"kv_dtype": "fp8"}, "K and V are kept in"),
        (Hub(), {"batch": 2}, "2 sequences at once"),
        (Hub(hidden=8), {"kv_dtype": "bf16"}, "use --kv-dtype fp32"),
        (Hub(dim=33, head_dim=8), {}, "witnesses look at words of four"),
        (Hub(), {"prompt_ids": None, "prompt_tokens": 7}, "only a count of 7 is known"),
    ],
)
def test_a_request_that_is_priced_and_not_run_is_refused_in_words(
    hub: Hub, words: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(DescriptionError, match=message):
        run(write_hub(tmp_path / "m", hub), **words)
