"""Which layers look back through a window, by each family's rule; what a config leaves out is told as the library's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.model import Model

SMALL = json.loads((Path(__file__).parent / "library_counts.json").read_text())
LAYERS = 8


def loaded(tmp_path: Path, name: str, **changes: object) -> Model:
    """A small config with `changes`; a value of `...` leaves the field out."""
    config = SMALL[name]["config"] | changes
    path = tmp_path / "w.json"
    path.write_text(json.dumps({field: value for field, value in config.items() if value is not ...}))
    return load_model(str(path))


def pattern(model: Model) -> str:
    return "".join(layer.kind[0] for layer in model.caches)


def switched(on: bool, first: int | None = None) -> dict[str, object]:
    more = {} if first is None else {"max_window_layers": first}
    return {"sliding_window": 64, "use_sliding_window": on, **more}


@pytest.mark.parametrize(
    ("name", "changes", "kinds"),
    [
        ("mistral", {"sliding_window": 64}, "ssssssss"),
        ("mistral", {"sliding_window": None}, "ffffffff"),
        ("mistral", {"sliding_window": 0}, "ffffffff"),
        ("mistral", {"sliding_window": ...}, "ssssssss"),
        ("phi3", {"sliding_window": 2047}, "ssssssss"),
        ("mixtral", {"sliding_window": 64}, "ssssssss"),
        ("mixtral", {"sliding_window": ...}, "ffffffff"),
        ("qwen3", switched(False), "ffffffff"),
        ("qwen3", switched(True, 0), "ssssssss"),
        ("qwen3", switched(True, 6), "ffffffss"),
        ("qwen3", switched(True, 100), "ffffffff"),
        ("qwen2-windows", {"use_sliding_window": ...}, "ffffffff"),
        ("gemma2", {}, "sfsfsfsf"),
        ("gemma3_text", {"sliding_window_pattern": ...}, "sssssfss"),
        ("gemma3_text", {"sliding_window_pattern": 2}, "sfsfsfsf"),
        ("gemma3_text", {"_sliding_window_pattern": 4, "sliding_window_pattern": ...}, "sssfsssf"),
        ("olmo3", {}, "sssfsssf"),
        ("exaone4", {"sliding_window_pattern": "LLG"}, "ssfssfss"),
        ("exaone4", {"sliding_window": None, "sliding_window_pattern": ...}, "ffffffff"),
        ("gpt_oss", {"layer_types": ["full_attention"] * 7 + ["sliding_attention"]}, "fffffffs"),
        ("llama4_text", {}, "cccfcccf"),
        ("llama4_text", {"no_rope_layers": [1, 0] * 4}, "cfcfcfcf"),
        ("llama4_text", {"no_rope_layers": []}, "cccfcccf"),
        ("llama4_text", {"attention_chunk_size": None}, "ffffffff"),
        ("gemma4_text", {"num_hidden_layers": 8}, "sssssfsf"),
    ],
)
def test_each_family_has_its_own_rule(tmp_path, name, changes, kinds):
    model = loaded(tmp_path, name, **changes)
    assert model.unknown == ()
    assert pattern(model) == kinds


def test_the_window_is_the_configs_or_the_librarys_and_that_is_said(tmp_path):
    assert {layer.window for layer in loaded(tmp_path, "phi3", sliding_window=2047).caches} == {2047}
    left_out = loaded(tmp_path, "mistral", sliding_window=...)
    assert {layer.window for layer in left_out.caches} == {4096}
    assert left_out.warnings == ("the config leaves out sliding_window: the library's 4,096 is taken",)
    chunk = loaded(tmp_path, "llama4_text", attention_chunk_size=...)
    assert {layer.window for layer in chunk.caches} == {8192, None}
    assert "attention_chunk_size: the library's 8,192" in chunk.warnings[0]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("llama", {"sliding_window": 64}, "sliding window 64"),
        ("llama", {"layer_types": ["sliding_attention"] * LAYERS}, "sliding_attention"),
        ("qwen3", {"layer_types": ["sliding_attention"] * LAYERS, "sliding_window": 64}, "sliding_attention"),
        ("gemma2", {"layer_types": ..., "sliding_window_pattern": 3}, "sliding_window_pattern 3"),
        ("olmo3", {"layer_types": ..., "_sliding_window_pattern": 2}, "sliding_window_pattern 2"),
        ("qwen3_moe", {"layer_types": ..., "use_sliding_window": True, "sliding_window": 64}, "readers disagree"),
        ("seed_oss", {"attention_out_bias": True}, "attention_out_bias true"),
        ("gemma2", {"layer_types": ["sparse_attention"] * LAYERS}, "sparse_attention"),
        ("gemma2", {"layer_types": ["linear_attention"] * LAYERS}, "does not have"),
        ("mimo_v2_flash", {"layer_types": None}, "which layers have a window"),
        ("gemma4_text", {"num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ("gemma4_text", {"hidden_size_per_layer_input": 256}, "hidden_size_per_layer_input"),
        ("granitemoehybrid", {"layer_types": ["mamba"] * 7 + ["conv"]}, "does not have"),
        ("qwen3_next", {"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype float8"),
    ],
)
def test_a_layout_outside_the_rule_is_unknown_and_never_plain(tmp_path, name, changes, said):
    model = loaded(tmp_path, name, **changes)
    assert (model.caches, model.tensors) == ((), ())
    assert any(said in words for words in model.unknown), model.unknown


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types lists 1 layers"),
        ("llama4_text", {"no_rope_layers": [1, 0]}, "no_rope_layers lists 2 layers"),
        ("nemotron_h", {"hybrid_override_pattern": "M*"}, "hybrid_override_pattern has 2 marks"),
        ("jamba", {"attn_layer_offset": 9}, "attn_layer_offset is 9: must be below attn_layer_period 4"),
        ("bamba", {"mamba_d_head": 17}, "mamba_d_head 17 times mamba_n_heads"),
        ("exaone4", {"sliding_window_pattern": "GLL"}, "letters L ending with one G"),
        ("glm_moe_dsa", {"num_experts": 9}, "num_experts 9 contradicts n_routed_experts 6"),
        ("deepseek_v3", {"kv_lora_rank": None}, "kv_lora_rank is null"),
        ("falcon", {"num_kv_heads": 4}, "num_attention_heads 6"),
        ("kimi_linear", {"linear_attn_config": {"num_heads": 4, "head_dim": 8, "kda_layers": [0]}}, "numbers from 1"),
    ],
)
def test_contradictions_are_told_with_their_field(tmp_path, name, changes, said):
    with pytest.raises(DescriptionError) as caught:
        loaded(tmp_path, name, **changes)
    assert said in str(caught.value)
