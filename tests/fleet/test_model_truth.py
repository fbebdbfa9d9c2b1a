"""Every value of the reference file, config by config: parameters, weights, caches, states, ranks, orders."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from fleet.checkpoints import load_model
from fleet.model import Model, with_mtp
from fleet.models import kv
from fleet.models.layers import KINDS, run_lengths

SHARED = Path(__file__).parents[3] / "shared" / "data"
CONFIGS = sorted(SHARED.glob("model_configs/*.json"))
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not CONFIGS, reason="shared/data/model_configs is not beside the project"),
]
every_config = pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)


@lru_cache
def truths() -> dict[str, Any]:
    return json.loads((SHARED / "model_truth.json").read_text())["models"]


@lru_cache
def known(path: Path) -> tuple[Model, dict[str, Any]]:
    return load_model(str(path)), truths()[path.stem]


def test_every_config_has_its_truth_and_every_truth_its_config():
    assert len(CONFIGS) == 45
    assert {path.stem for path in CONFIGS} == set(truths())


@every_config
def test_parameters_are_the_published_count(path):
    model, truth = known(path)
    said = truth["params"]
    assert model.parameters == said["language_model_formula"]
    assert sum(t.n_parameters for t in model.tensors if t.role == "buffer") == said["of_which_library_buffers"]
    assert model.vision_parameters == (said["of_which_vision_tower"] or 0)
    if said["transformers_meta_device"] is not None:
        counted = model.parameters - said["of_which_library_buffers"] + model.vision_parameters
        assert counted == said["transformers_meta_device"]
    has_mtp = bool(model.mtp_layers)
    assert has_mtp is (said["excludes"] == "multi-token-prediction layers")


@every_config
def test_weights_are_the_published_bytes_or_unknown_with_words(path):
    model, truth = known(path)
    said = truth["weights"]
    assert model.shared_classifier is said["tied_embeddings"]
    if said["status"].startswith("unverified"):
        assert model.weights_bytes is None
        assert any("unverified" in words for words in model.unknown)
    else:
        assert model.unknown == ()
        wanted = [said.get(key) for key in ("computed_bytes", "computed_bytes_without_mtp")]
        wanted += [said.get("checkpoint_bytes"), said.get("checkpoint_bytes_if_16_bit")]
        assert model.weights_bytes == next(figure for figure in wanted if figure is not None)
    if "computed_bytes_without_mtp" in said:
        assert model.computed_weights_bytes == said["computed_bytes_without_mtp"]
        assert with_mtp(model).computed_weights_bytes == said["computed_bytes_with_mtp"]
    if "bytes_if_16_bit" in said:
        assert model.bytes_if(2) == said["bytes_if_16_bit"]
    if "checkpoint_bytes_if_16_bit" in said:
        assert model.bytes_if(2) == said["checkpoint_bytes_if_16_bit"]
    if "params_times_width" in said:
        assert model.weights_bytes == said["params_times_width"] + said["checkpoint_minus_params_times_width"]


@every_config
def test_the_type_is_the_configs(path):
    model, truth = known(path)
    said = truth["weights"]["checkpoint_dtype"]
    if said.startswith("quantised: "):
        assert (model.quantisation or "").startswith(said.removeprefix("quantised: "))
        return
    assert model.quantisation is None
    assert {"bfloat16": "bf16", "float16": "fp16"}[said.split()[0]] == model.weights_dtype
    assert any("bf16 is assumed" in words for words in model.warnings) is ("assumed" in said)


@every_config
def test_layers_have_their_kinds_in_their_order(path):
    model, truth = known(path)
    said = truth["layers"]
    assert len(model.caches) == said["count"] == model.n_layers
    kinds = sorted(layer.kind for layer in model.caches)
    assert {kind: len(list(same)) for kind, same in groupby(kinds)} == said["kinds"]
    assert [f"{kind}x{count}" for kind, count in run_lengths(model.caches)] == said["order_run_length"]
    assert model.seq_len == truth["max_positions"]
    assert model.family == truth["model_type"]


@every_config
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_caches_are_right_at_every_context_in_both_readings_and_in_blocks(path, dtype):
    model, truth = known(path)
    said, layers = truth["kv"][dtype], model.caches
    by_kind = {layer.kind: kv.token_bytes(layer, dtype) for layer in layers if kv.token_bytes(layer, dtype)}
    assert by_kind == said["bytes_per_token_per_layer_by_kind"]
    assert kv.bytes_per_token(layers, dtype) == said["bytes_per_token_all_layers"]
    assert kv.bytes_per_token(layers, dtype, growing_only=True) == said["bytes_per_token_growing_layers_only"]
    assert kv.kv_bytes(layers, 1, dtype, block=16) == said["bytes_of_one_16_token_block_all_layers"]
    for tokens, nbytes in said["bytes_at_exact_window"].items():
        assert kv.kv_bytes(layers, int(tokens), dtype) == nbytes
    for tokens, nbytes in said["bytes_at_all_layers_full_rate"].items():
        assert kv.kv_bytes(layers, int(tokens), dtype, reading="full") == nbytes
    for tokens, nbytes in said["bytes_at_full_rate_rounded_to_16_token_blocks"].items():
        assert kv.kv_bytes(layers, int(tokens), dtype, reading="full", block=16) == nbytes


@every_config
def test_ranks_hold_split_or_copied_heads_and_whole_latents(path):
    model, truth = known(path)
    for ranks, said in truth["kv"]["tensor_parallel_bf16_full_rate"].items():
        held = kv.rank_bytes_per_token(model.caches, "bf16", int(ranks))
        if said is None:
            assert held is None
            continue
        assert held == said["bytes_per_token_per_rank"]
        assert held * int(ranks) == said["bytes_per_token_all_ranks"]


@every_config
def test_special_caches_and_live_counts(path):
    model, truth = known(path)
    said = truth["kv"]
    if "vllm_fp8_ds_mla_bytes_per_token" in said:
        assert kv.bytes_per_token(model.caches, "fp8_ds_mla") == said["vllm_fp8_ds_mla_bytes_per_token"]
    live = said["transformers_live_cache_check"]
    if live is None:
        return
    elements = sum(
        layer.token_elements - layer.index_dim
        for layer in model.caches
        if KINDS[layer.kind].growth in ("growing", "bounded")
    )
    assert elements == live["formula_elements_per_token_without_indexer"] == live["library_elements_per_token"]
    if "formula_state_elements_with_4_conv_columns" in live:
        # The library keeps one column more than the engines.
        with_column = sum(
            layer.state_elements + layer.conv_elements * (layer.conv_columns + 1) // max(layer.conv_columns, 1)
            for layer in model.caches
        )
        assert with_column == live["formula_state_elements_with_4_conv_columns"] == live["library_state_elements"]


@every_config
def test_recurrent_state_is_right_in_every_type(path):
    model, truth = known(path)
    said, layers = truth.get("recurrent_state"), model.caches
    recurrent = [layer for layer in layers if KINDS[layer.kind].growth == "constant"]
    if said is None:
        assert recurrent == []
        assert kv.state_bytes(layers) == 0
        return
    assert len(recurrent) == said["layers"]
    assert sum(layer.state_elements for layer in recurrent) == said["state_elements_per_sequence"]
    assert sum(layer.conv_elements for layer in recurrent) == said["conv_elements_per_sequence"]
    assert kv.state_bytes(layers, state="fp32") == said["bytes_state_fp32_conv_16bit"]
    assert kv.state_bytes(layers, state="bf16") == said["bytes_all_16bit"]
    assert kv.state_bytes(layers, state="fp32", conv="fp32") == said["bytes_all_fp32"]
    assert recurrent[0].state_dtype == {"nothing": None, "float32": "fp32"}[said["config_says"]]
    blocks = said["vllm_attention_block_tokens_tp1"]
    assert kv.attention_block_tokens(layers, "bf16", state="bf16") == blocks["state_16bit"]
    assert kv.attention_block_tokens(layers, "bf16", state="fp32") == blocks["state_fp32"]
