"""Every family on a small config of odd sizes: parameters and kinds as the transformers library builds them.

`library_counts.json`: configs made up for this test; parameters, buffers and layer types of the model that
transformers 5.24.0 builds from each on torch's meta device. Nothing of it needs either library here.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.model import with_mtp
from fleet.models import kv
from fleet.models.families import FAMILIES
from fleet.models.layers import KINDS

COUNTS = json.loads((Path(__file__).parent / "library_counts.json").read_text())
UNREAD = {"max_window_layers", "num_key_value_heads", "head_dim", "intermediate_size", "moe_layer_freq", "index_topk"}
NOT_BUILT = {"kimi_k2", "kimi_k3", "mimo", "nemotron-nas", "qwen", "step3p5", "step3p7"}
WORDS = {
    "full_attention": {"full"},
    "sliding_attention": {"sliding"},
    "chunked_attention": {"chunked"},
    "indexed_attention": {"mla+indexer", "mla"},
    "linear_attention": {"gated-deltanet", "kda", "mamba1", "mamba2"},
    "mlp": {"mlp"},
    "moe": {"moe"},
}


def loaded(tmp_path: Path, config: object):
    path = tmp_path / "small.json"
    path.write_text(json.dumps(config))
    return load_model(str(path))


LEFT_OUT_COUNTS = json.loads((Path(__file__).parent / "left_out_counts.json").read_text())


@pytest.mark.parametrize(("name", "field"), [(n, f) for n, fields in LEFT_OUT_COUNTS.items() for f in fields])
def test_a_size_that_is_left_out_is_the_librarys_and_told(tmp_path, name, field):
    config = {key: value for key, value in COUNTS[name]["config"].items() if key != field}
    said = LEFT_OUT_COUNTS[name][field]
    model = loaded(tmp_path, config | said["with"])
    buffers = sum(t.n_parameters for t in model.tensors if t.role == "buffer")
    assert model.unknown == ()
    assert model.parameters - buffers == said["parameters"]
    is_told = any(f"leaves out {field}" in warning for warning in model.warnings)
    assert is_told or field == "attention_bias"


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("glm4_moe_lite", {"first_k_dense_replace": 2, "mlp_layer_types": None}, "first_k_dense_replace other than 1"),
        ("mimo_v2_flash", {"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias"),
        ("glm_moe_dsa", {"mlp_layer_types": ["dense"] * 3 + ["odd"]}, "mlp_layer_types other than"),
    ],
)
def test_what_readers_of_a_config_disagree_on_is_unknown(tmp_path, name, changes, said):
    config = COUNTS[name]["config"]
    if "odd" in (changes.get("mlp_layer_types") or ()):
        changes = {"mlp_layer_types": ["odd"] * config["num_hidden_layers"]}
    model = loaded(tmp_path, config | changes)
    assert any(said in word for word in model.unknown), model.unknown


def test_layers_named_dense_against_the_count_of_dense_layers_are_refused(tmp_path):
    config = COUNTS["deepseek_v3"]["config"]
    listed = {"mlp_layer_types": ["sparse"] * config["num_hidden_layers"], "first_k_dense_replace": 1}
    with pytest.raises(DescriptionError, match="contradicts first_k_dense_replace"):
        loaded(tmp_path, config | listed)


def test_the_qkv_bias_of_the_first_qwen_experts_can_be_switched_off(tmp_path):
    config = COUNTS["qwen2_moe"]["config"]
    with_bias, without = (loaded(tmp_path, config | {"qkv_bias": on}) for on in (True, False))
    biases = sum(t.n_parameters for t in with_bias.tensors if t.role == "bias")
    assert with_bias.parameters - without.parameters == biases > 0


def test_command_r_plus_has_a_norm_of_its_own_for_each_head(tmp_path):
    config = COUNTS["cohere"]["config"]
    plain, normed = (loaded(tmp_path, config | {"use_qk_norm": on}) for on in (False, True))
    more = normed.n_layers * (normed.n_heads + normed.n_kv_heads) * normed.head_dim
    assert normed.unknown == ()
    assert normed.parameters - plain.parameters == more


@pytest.mark.parametrize("name", COUNTS)
def test_parameters_and_kinds_are_the_librarys(tmp_path, name):
    said = COUNTS[name]
    model = loaded(tmp_path, said["config"])
    assert model.unknown == ()
    buffers = sum(t.n_parameters for t in model.tensors if t.role == "buffer")
    assert buffers == said["buffers"]
    assert model.parameters - buffers == said["parameters"]
    assert model.weights_bytes == model.bytes_if(2) == 2 * said["parameters"]
    kinds = [layer.kind for layer in model.caches]
    assert len(kinds) == model.n_layers
    for kind, word in zip(kinds, said["layer_types"] or [], strict=False):
        if kind != "mla":
            assert kind in WORDS[word]


def test_every_family_was_built_or_is_named_as_not_built():
    assert set(FAMILIES) - {entry["config"]["model_type"] for entry in COUNTS.values()} == NOT_BUILT
    for family in FAMILIES.values():
        assert set(family.kinds.split(", ")) <= set(KINDS)
        assert family.checked
        assert family.architectures


@pytest.mark.parametrize("name", COUNTS)
def test_names_of_tensors_are_unique_and_repeats_have_a_place(tmp_path, name):
    model = loaded(tmp_path, COUNTS[name]["config"])
    names = [one for spec in model.tensors for one in spec.names()]
    assert len(names) == len(set(names)) == sum(spec.repeat for spec in model.tensors)
    assert all(("{}" in spec.name) is (spec.repeat > 1) for spec in model.tensors)


def told(tmp_path: Path, config: object) -> str:
    """What is said of a config: its faults, or its unknown words, or nothing."""
    try:
        return "; ".join(loaded(tmp_path, config).unknown)
    except DescriptionError as error:
        return str(error)


@pytest.mark.parametrize("name", COUNTS)
def test_a_negative_number_that_is_read_is_told_with_its_field(tmp_path, name):
    config = COUNTS[name]["config"]
    counts = [f for f, v in config.items() if isinstance(v, int) and not isinstance(v, bool)]
    silent = {field for field in counts if field not in told(tmp_path, config | {field: -3})}
    # Which experts a token takes, and ids of tokens, change no byte.
    assert {f for f in silent if not re.search(r"per_tok|top_?k|_group|token_id|offset|interval", f)} <= UNREAD


@pytest.mark.parametrize("name", COUNTS)
def test_a_number_left_out_or_null_ends_in_words_or_in_a_model(tmp_path, name):
    config = COUNTS[name]["config"]
    for field in config:
        for changed in ({k: v for k, v in config.items() if k != field}, config | {field: None}):
            try:
                model = loaded(tmp_path, changed)
            except DescriptionError:
                continue
            assert model.tensors or model.unknown


def test_latents_are_priced_without_a_factor_of_two_and_shared_indexes_keep_no_key(tmp_path):
    model = loaded(tmp_path, COUNTS["glm_moe_dsa-shared"]["config"])
    assert [layer.kind == "mla+indexer" for layer in model.caches] == [
        True,
        True,
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    own, shared = model.caches[0], model.caches[3]
    assert (own.token_elements, shared.token_elements) == (24 + 8 + 16, 24 + 8)


def test_gemma_4s_full_layers_keep_k_and_v_in_heads_of_their_own(tmp_path):
    near, *_, wide = loaded(tmp_path, COUNTS["gemma4_text"]["config"]).caches
    assert (near.kind, near.heads, near.key_dim, near.window) == ("sliding", 2, 16, 64)
    assert (wide.kind, wide.heads, wide.key_dim, wide.value_dim) == ("full", 1, 32, 32)


def test_layers_without_attention_keep_nothing(tmp_path):
    blocks = [
        {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 2.625, "no_op": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 1.0, "no_op": False}},
        {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": None, "no_op": True}},
    ]
    config = {
        "model_type": "nemotron-nas", "architectures": ["DeciLMForCausalLM"], "hidden_size": 512,
        "intermediate_size": None, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": None,
        "vocab_size": 320, "max_position_embeddings": 512, "torch_dtype": "bfloat16", "block_configs": blocks,
    }  # fmt: skip
    model = loaded(tmp_path, config)
    assert [(layer.kind, layer.heads) for layer in model.caches] == [("full", 2), ("none", 0), ("full", 1)]
    widths = [t.shape[0] for t in model.tensors if t.name.endswith("gate_proj.weight")]
    assert widths == [1024, 512]
    linear = [*blocks[:2], {"attention": {"replace_with_linear": True, "no_op": False}, "ffn": {"no_op": True}}]
    assert "block_configs" in loaded(tmp_path, config | {"block_configs": linear}).unknown[0]


def test_kimi_k3_is_priced_in_caches_alone(tmp_path):
    text = COUNTS["kimi_linear"]["config"] | {"routed_expert_hidden_size": 24, "latent_moe_use_norm": True}
    wrapper = {"model_type": "kimi_k3", "architectures": ["KimiK3ForConditionalGeneration"], "text_config": text}
    model = loaded(tmp_path, wrapper)
    assert [layer.kind for layer in model.caches] == ["kda", "kda", "kda", "mla"] * 2
    assert (model.tensors, model.weights_bytes, model.parameters) == ((), None, 0)
    assert "weights" in model.unknown[0]


@pytest.mark.parametrize(
    ("wrapper", "inner", "has_tower"),
    [("mistral3", "mistral", True), ("gemma3", "gemma3_text", True), ("qwen3_5", "qwen3_5_text", False)],
)
def test_a_wrapper_gives_its_language_model_and_names_what_is_left_out(tmp_path, wrapper, inner, has_tower):
    config = COUNTS[inner]["config"]
    document = {"model_type": wrapper, "architectures": ["XForConditionalGeneration"], "text_config": config}
    plain = loaded(tmp_path, config)
    wrapped = loaded(tmp_path, document | ({"vision_config": {"model_type": "other"}} if has_tower else {}))
    assert (wrapped.family, wrapped.parameters, wrapped.caches[0].kind) == (
        wrapper,
        plain.parameters,
        plain.caches[0].kind,
    )
    assert len(wrapped.excludes) == 1
    assert ("vision tower" in wrapped.excludes[0]) is has_tower
    assert wrapped.caches[-1].sources[0][1].startswith("text_config.")


def test_a_fault_within_a_wrapper_is_told_with_its_path_and_line(tmp_path):
    config = COUNTS["mistral"]["config"] | {"hidden_size": -5}
    path = tmp_path / "wrapped.json"
    path.write_text(json.dumps({"model_type": "mistral3", "text_config": config}, indent=1))
    with pytest.raises(DescriptionError) as caught:
        load_model(str(path))
    line = path.read_text().splitlines().index('  "hidden_size": -5,') + 1
    assert f":{line}:3 text_config.hidden_size is -5" in str(caught.value)


def test_fields_that_change_a_layout_and_were_read_by_nobody_make_a_model_unknown(tmp_path):
    for name, field in (
        ("llama", "kv_lora_rank"),
        ("mixtral", "n_shared_experts"),
        ("deepseek_v3", "num_kv_shared_layers"),
    ):
        model = loaded(tmp_path, COUNTS[name]["config"] | {field: 3})
        assert model.caches == ()
        assert any(field in words for words in model.unknown)


FIELDS = sorted({field for entry in COUNTS.values() for field in entry["config"]})
ODD = st.sampled_from(
    (None, -1, 0, 1, 3, 10**30, 1.5, math.inf, math.nan, "x", "auto", [], {}, [1, 2], ["full_attention"], [None], True)
)


@given(st.sampled_from(sorted(COUNTS)), st.dictionaries(st.sampled_from(FIELDS), ODD, max_size=3), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_change_of_any_family_gives_a_model_words_or_faults(tmp_path_factory, name, changes, is_wrapped):
    config = COUNTS[name]["config"] | changes
    if is_wrapped:
        config = {"model_type": "gemma3", "text_config": config, "vision_config": {"model_type": "siglip_vision_model"}}
    path = tmp_path_factory.getbasetemp() / "changed.json"
    path.write_text(json.dumps(config))
    try:
        model = with_mtp(load_model(str(path)))
    except DescriptionError:
        return
    assert model.unknown or (model.tensors and model.caches)
    assert kv.kv_bytes(model.caches, 100, "bf16") >= 0
    assert model.computed_weights_bytes is None or model.computed_weights_bytes > 0


def test_infinity_and_nan_in_a_config_are_read(tmp_path):
    config = COUNTS["nemotron_h"]["config"] | {"time_step_limit": [0.0, math.inf], "x": math.nan}
    model = loaded(tmp_path, config)
    assert "Infinity" in (tmp_path / "small.json").read_text()
    assert model.parameters - 5 == COUNTS["nemotron_h"]["parameters"]
