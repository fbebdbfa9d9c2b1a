"""Hugging Face configs: what is priced equals the published counts exactly; everything else says why not."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import hf_config, load_model
from fleet.errors import DescriptionError
from fleet.models.families import FAMILIES, dense

SMALL = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def write(tmp_path: Path, config: object, name: str = "some-model.json") -> Path:
    path = tmp_path / name
    path.write_text(config if isinstance(config, str) else json.dumps(config, indent=2))
    return path


def small(tmp_path: Path, **changes: object) -> str:
    """A small config with `changes`; a value of `...` leaves the field out."""
    config = {k: v for k, v in (SMALL | changes).items() if v is not ...}
    return str(write(tmp_path, config))


def refused(path: object) -> list[str]:
    with pytest.raises(DescriptionError) as caught:
        load_model(str(path))
    return str(caught.value).splitlines()


def test_the_tensor_table_has_the_checkpoints_names_shapes_and_roles(tmp_path):
    model = load_model(small(tmp_path, num_hidden_layers=1, head_dim=16))
    assert [(t.name, t.shape, t.role) for t in model.tensors] == [
        ("model.embed_tokens.weight", (512, 64), "embedding"),
        ("model.layers.0.input_layernorm.weight", (64,), "norm"),
        ("model.layers.0.self_attn.q_proj.weight", (128, 64), "projection"),
        ("model.layers.0.self_attn.k_proj.weight", (64, 64), "projection"),
        ("model.layers.0.self_attn.v_proj.weight", (64, 64), "projection"),
        ("model.layers.0.self_attn.o_proj.weight", (64, 128), "projection"),
        ("model.layers.0.mlp.gate_proj.weight", (172, 64), "projection"),
        ("model.layers.0.mlp.up_proj.weight", (172, 64), "projection"),
        ("model.layers.0.mlp.down_proj.weight", (64, 172), "projection"),
        ("model.layers.0.post_attention_layernorm.weight", (64,), "norm"),
        ("model.norm.weight", (64,), "norm"),
        ("lm_head.weight", (512, 64), "classifier"),
    ]
    assert (model.kv_dim, model.q_dim) == (64, 128)
    assert model.classifier_name == "lm_head.weight"
    assert {t.offset for t in model.tensors} == {None}


def added(tmp_path: Path, **changes: object) -> dict[str, int]:
    """Elements a layer of tensors that the plain config does not have."""
    plain = {t.name for t in load_model(small(tmp_path)).tensors}
    model = load_model(small(tmp_path, **changes))
    assert not model.unknown
    layer = "model.layers.3."
    extra = [t for t in model.tensors if t.name.startswith(layer) and t.name not in plain]
    return {t.name.removeprefix(layer): t.n_elements for t in extra}


def test_biases_and_norms_follow_the_family(tmp_path):
    qkv = {"self_attn.q_proj.bias": 64, "self_attn.k_proj.bias": 32, "self_attn.v_proj.bias": 32}
    assert added(tmp_path, attention_bias=True) == qkv | {"self_attn.o_proj.bias": 64}
    assert added(tmp_path, mlp_bias=True) == {
        "mlp.gate_proj.bias": 172,
        "mlp.up_proj.bias": 172,
        "mlp.down_proj.bias": 64,
    }
    assert added(tmp_path, model_type="qwen2", architectures=["Qwen2ForCausalLM"]) == qkv
    norms = {"self_attn.q_norm.weight": 8, "self_attn.k_norm.weight": 8}
    assert added(tmp_path, model_type="qwen3", architectures=["Qwen3ForCausalLM"], head_dim=8) == norms


PLAIN = [family.model_type for family in dense.FAMILIES]
TIED = {"cohere", "cohere2", "gemma", "gemma2", "smollm3"}


@pytest.mark.parametrize("family", PLAIN)
def test_tied_embeddings_default_to_the_familys_own_rule(tmp_path, family):
    bias = {"attention_bias": True} if family == "mimo" else {}
    changes = {"model_type": family, "architectures": [FAMILIES[family].architectures[0]], **bias}
    assert load_model(small(tmp_path, **changes, tie_word_embeddings=...)).shared_classifier is (family in TIED)
    tied = load_model(small(tmp_path, **changes, tie_word_embeddings=True))
    own = load_model(small(tmp_path, **changes, tie_word_embeddings=False))
    assert own.parameters - tied.parameters == 512 * 64
    assert tied.classifier_name == "model.embed_tokens.weight"


def test_heads_left_out_or_null_follow_the_librarys_rules(tmp_path):
    for absent in (..., None):
        model = load_model(small(tmp_path, num_key_value_heads=absent, head_dim=absent))
        assert (model.n_kv_heads, model.head_dim) == (8, 8)


@pytest.mark.parametrize(
    ("changes", "dtype", "warned"),
    [
        ({"torch_dtype": "float16"}, "fp16", False),
        ({"torch_dtype": "torch.float32"}, "fp32", False),
        ({"torch_dtype": ..., "dtype": "float16"}, "fp16", False),
        ({"torch_dtype": ...}, "bf16", True),
    ],
)
def test_the_dtype_is_taken_from_either_field_or_assumed_aloud(tmp_path, changes, dtype, warned):
    model = load_model(small(tmp_path, **changes))
    assert (model.weights_dtype, model.kv_dtype, {t.dtype for t in model.tensors}) == (dtype, dtype, {dtype})
    assert bool(model.warnings) is warned


QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "deepseek_v9"}, "family deepseek_v9 is not understood: KV and weights are not priced"),
        ({"model_type": "deepseek_v4"}, "family deepseek_v4 is not understood: KV and weights are not priced: window"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantised (gptq)"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "bitsandbytes, 4 bit"),
        ({"quantization_config": "odd"}, "quantised"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"text_config": {"hidden_size": 3}}, "text_config"),
        ({"auto_map": {"AutoModelForCausalLM": "own.Model"}}, "program code"),
        ({"architectures": ["LlamaModel"]}, "architecture LlamaModel"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
        ({"sliding_window": 4096}, "sliding window 4,096"),
        (MISTRAL | {"attention_bias": True}, "attention_bias true"),
        (MISTRAL | {"mlp_bias": True}, "mlp_bias true"),
        (QWEN2 | {"layer_types": ["full_attention"] * 4 + ["sliding_attention"]}, "sliding_attention"),
        (QWEN2 | {"attention_bias": False}, "attention_bias false"),
        ({"qkv_bias": True}, "qkv_bias"),
        ({"lm_head_bias": True}, "lm_head_bias"),
        ({"use_qk_norm": True}, "use_qk_norm"),
        ({"qk_layernorm": True}, "qk_layernorm"),
        ({"attn_output_gate": True}, "attn_output_gate"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_is_not_understood_is_said_and_not_priced(tmp_path, changes, said):
    model = load_model(small(tmp_path, **changes))
    assert any(said in word for word in model.unknown), model.unknown
    assert model.tensors == ()


@pytest.mark.parametrize(
    "changes",
    [
        MISTRAL | {"sliding_window": None},
        QWEN2 | {"sliding_window": 4096, "use_sliding_window": False},
        QWEN2 | {"sliding_window": 4096},
        QWEN2 | {"use_sliding_window": True, "sliding_window": None},
        QWEN2 | {"layer_types": ["full_attention"] * 5},
        {"quantization_config": None, "num_local_experts": 0, "output_router_logits": False, "auto_map": {}},
        {"qkv_bias": False, "use_qk_norm": False, "lm_head_bias": None},
        {"x": float("inf"), "y": float("nan"), "rope_scaling": {"factor": 8.0}},
    ],
)
def test_switched_off_and_harmless_fields_change_nothing(tmp_path, changes):
    assert load_model(small(tmp_path, **changes)).unknown == ()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (SMALL | {"model_type": "bert"}, "bert is an encoder, not a decoder language model"),
        (SMALL | {"model_type": "t5"}, "encoder-decoder"),
        (SMALL | {"model_type": "someseq", "is_encoder_decoder": True}, "encoder-decoder"),
        (SMALL | {"architectures": ["LlamaForSequenceClassification"]}, "chooses no next token"),
        ({"_class_name": "UNet2DConditionModel", "sample_size": 64}, "diffusion"),
        ({"peft_type": "LORA", "r": 8}, "LoRA adapter"),
        ({"tokenizer_class": "LlamaTokenizer"}, "tokenizer"),
        ({"bos_token_id": 1}, "model_type is missing"),
        ({"model_type": 3}, "model_type is 3: must be a word"),
    ],
)
def test_what_is_no_decoder_language_model_is_refused(tmp_path, config, said):
    assert said in refused(write(tmp_path, config))[0]


def test_all_wrong_fields_are_told_at_once_with_line_and_column(tmp_path):
    path = small(
        tmp_path,
        hidden_size=-64,
        intermediate_size=None,
        num_hidden_layers="5",
        num_attention_heads=True,
        vocab_size=4096.0,
        max_position_embeddings=...,
        tie_word_embeddings=None,
        torch_dtype=7,
        rms_norm_eps=float("nan"),
    )
    lines = refused(path)
    line = Path(path).read_text().splitlines().index('  "hidden_size": -64,') + 1
    assert [line.split()[1] for line in lines] == [
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "torch_dtype"),
        *("tie_word_embeddings", "rms_norm_eps", "max_position_embeddings"),
    ]
    assert lines[0].startswith(f"{path}:{line}:3 hidden_size is -64: must lie in 1..")
    assert "is null" in lines[1]
    assert "max_position_embeddings is missing" in lines[-1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"num_key_value_heads": 3}, "8 is no multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 12, "num_key_value_heads": 4}, "64 is no multiple of num_attention_heads 12"),
        ({"head_dim": 7}, "7 is odd"),
        ({"architectures": ["MistralForCausalLM"]}, "contradicts model_type llama"),
        ({"architectures": "LlamaForCausalLM"}, "must be a list"),
        ({"dtype": "float16"}, "contradicts torch_dtype"),
        ({"layer_types": ["full_attention"]}, "lists 1 layers"),
        ({"layer_types": [3]}, "must be a list of words"),
        ({"sliding_window": "wide"}, "must be a whole number or null"),
        ({"rope_theta": 0}, "must be a number above 0"),
        ({"rope_theta": 10**400}, "is far too large"),
        ({"num_hidden_layers": 10**9}, "must lie in 1..4,096"),
    ],
)
def test_contradictions_and_absurd_values_are_refused(tmp_path, changes, said):
    assert said in " ".join(refused(small(tmp_path, **changes)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', "a stands twice"),
        ('{"model_type": "llama", "x": {"b": 1, "b": 2}}', "b stands twice"),
        ('{\n "a": }', "Expecting value"),
        ("{", "no valid JSON"),
        ('{"a":' * 100 + "1" + "}" * 100, "nested deeper than 64"),
        ('{"a":' * 200_000, "nested deeper than 64"),
        ('{"a": ' + "9" * 5000 + "}", "thousands of digits"),
        ('{"model_type": "\\ud800"}', "family ? is not understood"),
    ],
)
def test_hostile_json_ends_in_one_sentence(tmp_path, text, said):
    path = write(tmp_path, text)
    try:
        told = load_model(str(path)).unknown
    except DescriptionError as error:
        told = str(error).splitlines()
    assert len(told) == 1
    assert said in told[0]


def test_a_syntax_fault_is_told_with_its_line(tmp_path):
    path = write(tmp_path, '{\n "a": }')
    assert refused(path)[0].startswith(f"{path}:2:7 is no valid JSON")


def test_bytes_that_are_no_utf8_and_huge_files_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "c.json"
    path.write_bytes(b'{"a": "\xff"}')
    assert "not UTF-8 at byte 7" in refused(path)[0]
    monkeypatch.setattr(hf_config, "MAX_BYTES", 100)
    assert "larger than 100 bytes" in refused(small(tmp_path))[0]


@given(
    st.dictionaries(
        st.sampled_from(
            [*SMALL, "head_dim", "layer_types", "sliding_window", "quantization_config", "rope_parameters"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
            max_leaves=5,
        ),
        max_size=5,
    )
)
@settings(max_examples=300, deadline=None)
def test_any_change_gives_a_model_or_a_description_error(tmp_path_factory, changes):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(SMALL | changes))
    try:
        model = load_model(str(path))
    except DescriptionError:
        return
    assert model.unknown or model.tensors


def test_a_folder_gives_its_config_and_its_own_name(tmp_path):
    folder = tmp_path / "Some-2.5-7B"
    folder.mkdir()
    write(folder, SMALL, "config.json")
    for path in (folder, folder / "config.json", f"{folder}/"):
        model = load_model(str(path))
        assert model.name == "Some-2.5-7B"
        assert not model.unknown
    (folder / "hf_quant_config.json").write_text("{}")
    assert any("quantised" in word for word in load_model(str(folder)).unknown)


@pytest.mark.parametrize(("marker", "said"), [("adapter_config.json", "LoRA"), ("model_index.json", "diffusion")])
def test_folders_of_adapters_and_pipelines_are_refused(tmp_path, marker, said):
    write(tmp_path, SMALL, "config.json")
    (tmp_path / marker).write_text("{}")
    assert said in refused(tmp_path)[0]


def test_a_dash_reads_the_config_from_standard_input(monkeypatch):
    stream = SimpleNamespace(buffer=io.BytesIO(json.dumps(SMALL).encode()))
    monkeypatch.setattr(hf_config.sys, "stdin", stream)
    model = load_model("-")
    assert (model.name, model.path, model.unknown) == ("stdin", "-", ())


def test_a_byte_order_mark_is_accepted(tmp_path):
    path = tmp_path / "bom.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(SMALL).encode())
    assert load_model(str(path)).dim == 64
