"""What quantised checkpoints store, tensor by tensor; patterns of plain modules; descriptions that are wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.model import Model, TensorSpec
from fleet.models.quantised import _Kept, read_scheme, stored
from tests.work import counted

SMALL = json.loads((Path(__file__).parent / "library_counts.json").read_text())
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def loaded(tmp_path: Path, name: str, quantisation: object, **changes: object) -> Model:
    path = tmp_path / "q.json"
    path.write_text(json.dumps(SMALL[name]["config"] | {"quantization_config": quantisation} | changes))
    return load_model(str(path))


def matrices(tmp_path: Path, name: str) -> list[TensorSpec]:
    return [t for t in loaded(tmp_path, name, None).tensors if t.role == "projection"]


def test_fp8_tiles_take_a_byte_an_element_and_four_a_tile(tmp_path):
    plain = loaded(tmp_path, "deepseek_v3", None)
    model = loaded(tmp_path, "deepseek_v3", FP8 | {"weight_block_size": [16, 32]})
    tiles = sum(-(-t.shape[0] // 16) * -(-t.shape[1] // 32) * t.repeat for t in matrices(tmp_path, "deepseek_v3"))
    elements = sum(t.n_elements for t in matrices(tmp_path, "deepseek_v3"))
    assert model.weights_bytes == plain.weights_bytes + plain.buffer_bytes - elements + 4 * tiles
    assert model.unknown == ()
    assert model.parameters == plain.parameters
    gate = [t for t in model.tensors if t.name.endswith("mlp.gate.weight")]
    assert {t.dtype for t in gate} == {"bf16"}


def test_bitsandbytes_int8_takes_a_byte_an_element_four_a_row_and_one_a_matrix(tmp_path):
    model = loaded(tmp_path, "llama", {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False})
    plain = loaded(tmp_path, "llama", None)
    own = matrices(tmp_path, "llama")
    wanted = plain.weights_bytes + sum(-t.n_elements + 4 * t.shape[0] + 1 for t in own)
    assert (model.weights_bytes, model.quantisation, model.unknown) == (wanted, "bitsandbytes int8", ())


def test_mxfp4_packs_experts_alone(tmp_path):
    model = loaded(tmp_path, "gpt_oss", {"quant_method": "mxfp4"}, hidden_size=192, intermediate_size=96)
    experts = {
        t.name.removeprefix("model.layers.0.mlp.experts."): t for t in model.tensors if "layers.0.mlp.experts" in t.name
    }
    assert {name: (t.shape, t.dtype) for name, t in experts.items()} == {
        "gate_up_proj_blocks": ((5, 192, 6, 16), "u8"),
        "gate_up_proj_scales": ((5, 192, 6), "u8"),
        "gate_up_proj_bias": ((5, 192), "bf16"),
        "down_proj_blocks": ((5, 192, 3, 16), "u8"),
        "down_proj_scales": ((5, 192, 3), "u8"),
        "down_proj_bias": ((5, 192), "bf16"),
    }
    assert all(t.dtype == "bf16" for t in model.tensors if "self_attn" in t.name)
    assert model.weights_bytes is not None


@pytest.mark.parametrize(
    ("name", "quantisation"),
    [
        ("qwen3", FP8),
        ("llama", {"quant_method": "fp8"}),
        ("mixtral", {"quant_method": "mxfp4"}),
        ("llama", {"quant_algo": "NVFP4", "quant_method": "modelopt", "ignore": ["lm_head"]}),
    ],
)
def test_a_scheme_that_was_compared_with_nothing_in_a_family_is_computed_and_unknown(tmp_path, name, quantisation):
    if name == "mixtral":
        # Its experts are tensors of their own, which no published mxfp4 file has.
        model = loaded(tmp_path, name, quantisation)
        assert model.weights_bytes is None
        assert "no form is known for model.layers.0.block_sparse_moe.experts.[0:5].w1.weight" in model.unknown[0]
        return
    model = loaded(tmp_path, name, quantisation)
    assert (model.weights_bytes, model.computed_weights_bytes is None) == (None, False)
    assert f"{model.computed_weights_bytes:,} B computed" in model.unknown[0]
    assert model.caches
    assert model.parameters == SMALL[name]["parameters"]


@pytest.mark.parametrize(
    ("quantisation", "said"),
    [
        ("fp8", "no object"),
        ([1], "no object"),
        ({"quant_method": 8}, "bytes are not understood"),
        ({"quant_method": "awq"}, "quantised (awq)"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors"),
        (FP8 | {"weight_block_size": [0, 128]}, "no pair of whole numbers"),
        (FP8 | {"weight_block_size": [128]}, "no pair of whole numbers"),
        (FP8 | {"weight_block_size": "128"}, "no pair of whole numbers"),
        (FP8 | {"modules_to_not_convert": "lm_head"}, "no list of names"),
        (FP8 | {"modules_to_not_convert": [3]}, "no list of names"),
        (FP8 | {"ignore": ["re:(a+)+$"]}, "pattern re:(a+)+$ is not understood"),
        (FP8 | {"ignore": ["a|b"]}, "pattern a|b is not understood"),
        (FP8 | {"ignore": ["x"] * 5000}, "no list of names"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "W4A8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, "NVFP4"),
    ],
)
def test_descriptions_that_are_not_understood_leave_the_weights_unknown_and_the_cache_known(
    tmp_path, quantisation, said
):
    model = loaded(tmp_path, "llama", quantisation)
    assert any(said in words for words in model.unknown), model.unknown
    assert (model.tensors, model.weights_bytes) == ((), None)
    assert model.caches
    assert model.parameters == SMALL["llama"]["parameters"]


@pytest.mark.parametrize(
    ("beside", "said"),
    [
        ({}, "no object quantization"),
        ({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "INT3"}}, "kv_cache_quant_algo INT3"),
        ({"quantization": {"quant_algo": "MIXED_PRECISION"}}, "MIXED_PRECISION"),
    ],
)
def test_a_file_beside_the_config_that_is_not_understood_is_told(beside, said):
    scheme, words, _ = read_scheme(None, beside)
    assert scheme is None
    assert any(said in word for word in words)


def test_two_descriptions_that_contradict_each_other_are_told():
    beside = {"quantization": {"quant_algo": "NVFP4"}}
    _, words, _ = read_scheme(FP8, beside)
    assert "quantization_config says fp8 in tiles of 128x128, hf_quant_config.json says nvfp4" in words[0]
    assert read_scheme({"quant_method": "modelopt", "quant_algo": "NVFP4"}, beside)[1] == []


NAME = "model.layers.12.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("pattern", "holds"),
    [
        ("lm_head", False),
        ("q_proj", True),
        ("q_pro", False),
        ("self_attn", True),
        ("model.layers.12.self_attn", True),
        ("model.layers.1.self_attn", False),
        ("layers.12", True),
        ("model.layers.*.self_attn", True),
        ("model.layers.*.mlp", False),
        ("model.layers.12.self_attn*", True),
        ("model.layers.1*", True),
        ("*self_attn*", True),
        ("*.mlp.*", False),
        ("model.language_model.layers.12.self_attn*", True),
        ("re:.*self_attn.*", True),
        ("re:.*lm_head.*", False),
        ("re:.*layers\\.12.*", True),
        ("layers.*.q_proj", True),
        ("layers.*.q_pro", False),
    ],
)
def test_patterns_of_plain_modules_match_whole_parts_and_stars(pattern, holds):
    assert _Kept((pattern,)).holds(NAME) is holds


def test_hostile_patterns_take_no_time():
    kept = _Kept(("*a" * 120 + "*z", "re:" + ".*a" * 80 + ".*z") * 200)
    for _ in range(20):
        held, calls = counted(lambda: kept.holds("model." + "a" * 240))
        assert not held
        assert calls < 1_000_000, "each star is tried once at each letter, or there are more tries than atoms"


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text(alphabet="abl.*_", min_size=1, max_size=12), max_size=5), st.text(alphabet="abl._", max_size=30)
)
def test_any_pattern_ends(patterns, name):
    assert _Kept(tuple(patterns)).holds(name) in (True, False)


def test_excluded_matrices_stay_plain(tmp_path):
    plain = loaded(tmp_path, "llama", None)
    scheme, words, _ = read_scheme(FP8 | {"modules_to_not_convert": ["model.layers.*.mlp", "lm_head"]}, None)
    assert words == []
    table = stored(plain.tensors, scheme)
    assert {t.dtype for t in table if ".mlp." in t.name} == {"bf16"}
    assert {t.dtype for t in table if ".self_attn." in t.name and t.role == "projection"} == {"fp8"}
    assert sum(t.n_parameters for t in table) == plain.parameters


SCHEMES = (
    FP8,
    {"quant_method": "fp8"},
    {"quant_method": "mxfp4"},
    {"quant_method": "bitsandbytes", "load_in_8bit": True},
    {"quant_method": "modelopt", "quant_algo": "NVFP4"},
)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_every_scheme_on_every_family_keeps_the_count_of_parameters(tmp_path, name):
    for scheme in SCHEMES:
        model = loaded(tmp_path, name, scheme)
        buffers = SMALL[name]["buffers"]
        assert model.parameters == SMALL[name]["parameters"] + buffers
        assert model.caches
        names = [one for spec in model.tensors for one in spec.names()]
        assert len(names) == len(set(names))


def test_a_cache_type_is_read_also_where_the_weights_are_not_understood(tmp_path):
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    other = {"quant_method": "compressed-tensors", "format": "float-quantized"}
    for kv_scheme, dtype in ((scheme, "fp8"), ("FP8", "fp8"), (None, "bf16")):
        model = loaded(tmp_path, "llama", other | {"kv_cache_scheme": kv_scheme})
        assert (model.kv_dtype, model.weights_bytes) == (dtype, None)
        assert not any("type of the cache" in word for word in model.unknown)
    inside = loaded(
        tmp_path, "llama", {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "NVFP4"}
    )
    assert inside.kv_dtype == "nvfp4"
    assert loaded(tmp_path, "deepseek_v3", FP8).kv_dtype == "bf16"


@pytest.mark.parametrize(
    "said",
    [
        {"kv_cache_scheme": {"num_bits": 8, "type": "int"}},
        {"kv_cache_scheme": {"num_bits": 4}},
        {"kv_cache_scheme": 3},
        {"kv_cache_quant_algo": "INT3"},
        {"kv_cache_scheme": "FP8", "kv_cache_quant_algo": "NVFP4"},
    ],
)
def test_a_cache_type_that_is_not_understood_is_unknown_and_never_taken_as_the_weights_type(tmp_path, said):
    model = loaded(tmp_path, "deepseek_v3", FP8 | said)
    assert any("the type of the cache is not understood" in word for word in model.unknown)
    assert model.weights_bytes is None
