"""Activations: the executor's own buffers for a dense decoder, a bound from shapes for any other model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.model import Model
from planner.activations import is_bound, scores_heads, widest_layer
from planner.sharding import Cut, layer_of
from planner.workers import rank_model

CONFIGS = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())
OTHERS = [name for name in CONFIGS if name not in ("llama", "mistral", "qwen2-windows", "qwen3")]


def loaded(tmp_path: Path, name: str, **changes: object) -> Model:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(CONFIGS[name]["config"] | changes))
    return load_model(str(path))


def test_a_dense_decoder_has_the_executors_buffers_and_no_bound(tmp_path):
    assert not is_bound(loaded(tmp_path, "llama"))


def test_experts_count_as_often_as_a_token_goes_through_them(tmp_path):
    model = loaded(tmp_path, "qwen3_moe")
    config = CONFIGS["qwen3_moe"]["config"]
    routed, width, dim = config["num_experts_per_tok"], config["moe_intermediate_size"], model.dim
    attention = model.q_dim + 2 * model.kv_dim + dim
    sparse = attention + config["num_experts"] + routed * (2 * width + dim)
    dense = attention + 2 * config["intermediate_size"] + dim
    has_dense = any("layers.0.mlp.gate_proj" in t.name or ".mlp.up_proj" in t.name for t in model.tensors)
    assert is_bound(model)
    assert widest_layer(model) == max(sparse, dense if has_dense else 0)
    nobody_says = replace(model, experts_per_token=None)
    assert widest_layer(nobody_says) - sparse >= (config["num_experts"] - routed) * (2 * width + dim) - dense


@pytest.mark.parametrize("name", OTHERS)
def test_the_bound_holds_every_matrix_of_any_layer_and_shrinks_on_ranks(tmp_path, name):
    model = loaded(tmp_path, name)
    if not is_bound(model):
        return
    by_layer: dict[int | None, int] = {}
    for tensor in model.tensors:
        if tensor.role == "projection" and len(tensor.shape) == 2:
            count = min(tensor.repeat, model.experts_per_token or tensor.repeat)
            by_layer[layer_of(tensor)] = by_layer.get(layer_of(tensor), 0) + tensor.shape[0] * count
    assert widest_layer(model) >= max(by_layer.values())
    assert scores_heads(model) >= model.n_heads
    half = rank_model(model, Cut(ranks=2, rank=0, layers=(0, model.n_layers), first=True, last=True))
    if half.layers is not None and len(half.tensors) == len(model.tensors):
        assert widest_layer(half) <= widest_layer(model)


def test_latents_are_kept_beside_the_matrices(tmp_path):
    model = loaded(tmp_path, "deepseek_v3")
    layer = model.caches[0]
    assert widest_layer(model) >= 2 * model.n_heads * layer.latent_dim
