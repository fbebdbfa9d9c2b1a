"""Seventeen public reports of wrong memory, cache or transfer bytes: the right answer of each that is arithmetic here.

Numbered as in the reference list. 12 (an engine's start-up lines) and the pooling of 15 (transfer metrics of ranks) are
about reading an engine's output and belong to the importers; of 15 the block that the figures came from is shown here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.model import Model
from fleet.models import kv

SHARED = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
pytestmark = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data/model_configs is not beside the project"),
]

GEMMA_4_31B = {
    "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "hidden_size": 5376,
    "intermediate_size": 21504, "num_hidden_layers": 60, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
    "sliding_window": 1024, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "vocab_size": 262144,
    "max_position_embeddings": 262144, "dtype": "bfloat16",
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
}  # fmt: skip
KIMI_TEXT = {
    "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_hidden_layers": 61, "num_attention_heads": 64, "num_key_value_heads": 64, "kv_lora_rank": 512,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 384,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 1, "vocab_size": 163840,
    "max_position_embeddings": 262144, "topk_method": "noaux_tc", "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip


def model(name: str) -> Model:
    return load_model(str(SHARED / f"{name}.json"))


def made(tmp_path: Path, config: object) -> Model:
    path = tmp_path / "config-of-a-report.json"
    path.write_text(json.dumps(config))
    return load_model(str(path))


def of_token(which: Model) -> int:
    return kv.bytes_per_token(which.caches, "bf16")


def test_1_the_head_size_is_the_configs_not_hidden_over_heads():
    assert of_token(model("Qwen3-32B")) == 262_144


def test_2_so_it_is_where_the_fault_goes_both_ways():
    assert of_token(model("gpt-oss-20b")) == 49_152
    assert of_token(model("Devstral-Small-2507")) == 163_840


def test_3_kv_heads_count_not_query_heads():
    assert kv.kv_bytes(model("Meta-Llama-3.1-70B").caches, 32_768, "bf16") == 10_737_418_240


def test_4_no_further_factor_of_the_head_count():
    assert of_token(model("Llama-2-7b-hf")) == 524_288
    assert of_token(model("Meta-Llama-3.1-8B")) == 131_072


def test_5_the_embedding_length_sizes_no_cache():
    assert of_token(model("Qwen2.5-7B-Instruct")) == 57_344


def test_6_latents_are_told_by_their_fields_within_a_wrapper_and_are_whole_on_every_rank(tmp_path):
    kimi = made(tmp_path, {"model_type": "kimi_k25", "text_config": KIMI_TEXT, "tie_word_embeddings": False})
    assert of_token(kimi) == 70_272
    assert {kv.rank_bytes_per_token(kimi.caches, "bf16", ranks) for ranks in (1, 2, 4, 8, 16)} == {70_272}
    assert kimi.parameters == 1_026_408_232_448


def test_7_a_layout_that_is_not_understood_is_unknown_and_never_priced_plainly(tmp_path):
    v4 = made(tmp_path, KIMI_TEXT | {"model_type": "deepseek_v4", "architectures": ["DeepseekV4ForCausalLM"]})
    assert (v4.caches, v4.tensors) == ((), ())
    assert v4.weights_bytes is None
    assert "deepseek_v4 is not understood" in v4.unknown[0]


def test_8_sliding_layers_are_counted(tmp_path):
    config = json.loads((SHARED / "gpt-oss-20b.json").read_text())
    large = config | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": config["layer_types"] * 2}
    large["layer_types"] = large["layer_types"][:36]
    big = made(tmp_path, large)
    assert of_token(big) == 73_728
    # The published total of its index.
    assert big.weights_bytes == 65_248_815_744


def test_9_capacity_is_no_quotient_once_windows_are_full():
    gemma = model("gemma-3-27b")
    assert of_token(gemma) == 507_904
    assert kv.tokens_that_fit(gemma.caches, 20 * 2**30, "bf16", limit=1 << 30) == 256_819


def test_10_sliding_layers_pay_their_window_not_the_context(tmp_path):
    assert kv.kv_bytes(made(tmp_path, GEMMA_4_31B).caches, 32_768, "bf16") == 3_523_215_360


def test_11_a_window_is_not_reserved_beyond_the_longest_request(tmp_path):
    sliding = [layer for layer in made(tmp_path, GEMMA_4_31B).caches if layer.kind == "sliding"]
    assert len(sliding) == 50
    assert 32 * kv.kv_bytes(sliding, 128, "bf16") == 3_355_443_200


def test_13_a_rank_holds_its_share_of_the_heads():
    assert kv.rank_bytes_per_token(model("Qwen3-32B").caches, "bf16", 4) == 65_536


def test_14_ranks_beyond_the_heads_hold_a_copied_head_each():
    held = kv.rank_bytes_per_token(model("Meta-Llama-3.1-70B").caches, "bf16", 16)
    assert (held, held * 16) == (40_960, 655_360)


def test_15_one_block_of_thirty_six_layers_is_what_the_metrics_averaged():
    layers = model("Qwen3-8B").caches
    block = kv.kv_bytes(layers, 1, "bf16", block=16)
    assert block == 2_359_296 == 2.25 * 2**20
    assert (4 * block, 2 * len(layers)) == (9_437_184, 72)


def test_16_every_expert_and_an_untied_head_count():
    mixtral = model("Mixtral-8x7B-v0.1")
    assert (mixtral.parameters, mixtral.weights_bytes) == (46_702_792_704, 93_405_585_408)
    assert model("Meta-Llama-3.1-8B").parameters == 8_030_261_248


def test_17_a_tied_head_counts_once():
    small = model("Llama-3.2-1B")
    assert (small.parameters, small.weights_bytes) == (1_235_814_400, 2_471_628_800)
