"""`model show`: the reference values through the command's document, both readings, explanations, and bad requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.model import with_mtp
from scenarios.model_lines import model_text
from scenarios.model_text import RANKS, model_document
from tests.command_line import asker

SHARED = Path(__file__).parents[3] / "shared" / "data"
CONFIGS = sorted(SHARED.glob("model_configs/*.json"))
SMALL = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())


@pytest.fixture
def ask(capfd):
    return asker(capfd)


def small(tmp_path: Path, name: str, **changes: object) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(SMALL[name]["config"] | changes))
    return str(path)


@pytest.mark.shared
@pytest.mark.skipif(not CONFIGS, reason="shared/data/model_configs is not beside the project")
@pytest.mark.parametrize("path", CONFIGS, ids=lambda p: p.stem)
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_the_document_says_every_reference_value(path, dtype):
    truth = json.loads((SHARED / "model_truth.json").read_text())["models"][path.stem]
    said = truth["kv"][dtype]
    contexts = [int(tokens) for tokens in said["bytes_at_exact_window"]]
    document = model_document(load_model(str(path)), contexts, dtype, explain=True)
    shown = document["kv"]
    assert document["parameters"] == truth["params"]["language_model_formula"]
    assert (document["weights_bytes"] is None) is truth["weights"]["status"].startswith("unverified")
    assert {row["kind"]: row["count"] for row in document["layers"]} == truth["layers"]["kinds"]
    assert [f"{run['kind']}x{run['count']}" for run in document["order"]] == truth["layers"]["order_run_length"]
    assert shown["bytes_per_token"] == said["bytes_per_token_all_layers"]
    assert shown["growing_bytes_per_token"] == said["bytes_per_token_growing_layers_only"]
    assert shown["bytes_per_block"] == said["bytes_of_one_16_token_block_all_layers"]
    for name, reading, blocks in (
        ("bytes_at_exact_window", "window", "by_context"),
        ("bytes_at_all_layers_full_rate", "full", "by_context"),
        ("bytes_at_full_rate_rounded_to_16_token_blocks", "full", "by_context_in_blocks"),
    ):
        assert {tokens: held[reading] for tokens, held in shown[blocks].items()} == said[name]
    state = truth.get("recurrent_state")
    assert shown["state_bytes_per_sequence"] == (state["bytes_state_fp32_conv_16bit"] if state else 0)
    assert (shown["state"] or {}).get("layers") == (state or {}).get("layers")
    assert shown["fp8_ds_mla_bytes_per_token"] == truth["kv"].get(
        "vllm_fp8_ds_mla_bytes_per_token", shown["fp8_ds_mla_bytes_per_token"]
    )
    if dtype == "bf16":
        assert shown["tensor_parallel"] == truth["kv"]["tensor_parallel_bf16_full_rate"]
    weights = document["explain"]["weights"]
    assert sum(row["bytes"] for row in weights) - document["weights"]["computed_bytes"] in (
        0,
        document["weights"]["buffer_bytes"],
    )
    assert all(number["field"] for kind in document["explain"]["kinds"] for number in kind["numbers"])
    assert model_text(document)


def test_ranks_are_those_of_the_reference_table():
    assert RANKS == (1, 2, 4, 8, 16)


def test_contexts_come_as_lists_and_repeated_and_codes_follow_what_is_unknown(ask, tmp_path):
    model = small(tmp_path, "gemma2")
    answer = ask("model", "show", model, "--context", "1,100", "--context", "64", "-o", "json")
    assert answer.code == 0
    shown = answer.document["kv"]
    layer = 2 * 2 * 24 * 2
    assert shown["by_context"] == {
        "1": {"window": 8 * layer, "full": 8 * layer},
        "100": {"window": 4 * layer * 100 + 4 * layer * 64, "full": 8 * layer * 100},
        "64": {"window": 8 * layer * 64, "full": 8 * layer * 64},
    }
    blocks = ask("model", "show", model, "--context", "100", "--block-size", "48", "-o", "json").document["kv"]
    assert blocks["by_context_in_blocks"]["100"] == {"window": 4 * layer * (144 + 96), "full": 8 * layer * 144}
    assert (blocks["block_tokens"], blocks["bytes_per_block"]) == (48, 8 * layer * 48)
    unknown = ask(
        "model", "show", small(tmp_path, "mixtral", quantization_config={"quant_method": "gptq"}), "-o", "json"
    )
    assert unknown.code == 3
    assert unknown.document["weights_bytes"] is None
    assert unknown.document["parameters"] == SMALL["mixtral"]["parameters"]
    assert unknown.document["kv"]["bytes_per_token"] == 8 * 2 * 2 * 16 * 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--context", "0"], "--context 0 is out of range"),
        (["--context", "4k"], "'4k' is no count of tokens"),
        (["--context", "1,,2"], "'' is no count"),
        (["--context", "9" * 30], "is no count of tokens"),
        (["--block-size", "0"], "--block-size 0 is out of range"),
        (["--kv-dtype", "int3"], "--kv-dtype 'int3' is unknown; use bf16, fp16, fp32, fp8"),
        (["--kv-dtype", "fp8_ds_mla"], "fp8_ds_mla stores latents of MLA only, not full layers"),
    ],
)
def test_requests_that_make_no_sense_end_with_code_2(ask, tmp_path, words, said):
    answer = ask("model", "show", small(tmp_path, "llama"), *words)
    assert answer.code == 2
    assert said in answer.err


def test_special_cache_types_have_their_scales(tmp_path):
    llama = load_model(small(tmp_path, "llama"))
    layer, heads = 2 * 2 * 24, 2 * 2
    for dtype, nbytes in (
        ("fp32", 4 * layer),
        ("fp8", layer),
        ("fp8_token_head", layer + 4 * heads),
        ("int8_token_head", layer + 4 * heads),
        ("nvfp4", heads * (12 + 2)),
    ):
        assert model_document(llama, [], dtype)["kv"]["bytes_per_token"] == 8 * nbytes
    latents = load_model(small(tmp_path, "deepseek_v32"))
    assert model_document(latents, [], "fp8_ds_mla")["kv"]["bytes_per_token"] == 8 * ((24 + 4 + 2 * 8) + (16 + 4))
    with pytest.raises(DescriptionError, match="heads of K and V"):
        model_document(latents, [], "nvfp4")


def test_a_cache_type_that_the_checkpoint_sets_is_the_default(tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SMALL["llama"]["config"]))
    scheme = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(scheme))
    model = load_model(str(folder))
    document = model_document(model, [], None)
    assert (document["kv"]["dtype"], document["weights"]["quantisation"]) == ("fp8", "nvfp4, a scale for 16")
    assert document["weights_bytes"] is None
    gate = [t for t in model.tensors if t.name.startswith("model.layers.0.mlp.gate_proj")]
    assert [(t.shape, t.dtype) for t in gate] == [
        ((176, 48), "u8"), ((176, 6), "fp8"), ((), "fp32"), ((), "fp32"), ((176,), "bf16"),
    ]  # fmt: skip
    assert next(t for t in model.tensors if t.name == "lm_head.weight").dtype == "bf16"
    assert model.parameters == SMALL["llama"]["parameters"]


def test_mtp_layers_are_counted_when_asked_for(ask, tmp_path):
    path = small(tmp_path, "deepseek_v3", num_nextn_predict_layers=2)
    plain, counted = (ask("model", "show", path, *more, "-o", "json").document for more in ([], ["--mtp"]))
    assert plain["mtp_layers"] == 2
    assert counted["kv"]["bytes_per_token"] == plain["kv"]["bytes_per_token"] * 10 // 8
    model = load_model(path)
    assert counted["weights_bytes"] == plain["weights_bytes"] + sum(
        t.nbytes for t in model.mtp_tensors if t.role != "buffer"
    )
    # An MTP layer of another family keeps a cache that is known, and weights that are not.
    other = load_model(small(tmp_path, "glm4_moe", num_nextn_predict_layers=1))
    assert other.unknown == ()
    counted_other = model_document(with_mtp(other), [], None)
    assert (counted_other["weights_bytes"], len(counted_other["unknown"])) == (None, 1)
    assert counted_other["kv"]["bytes_per_token"] == 9 * 2 * 2 * 24 * 2
    none = ask("model", "show", small(tmp_path, "llama"), "--mtp")
    assert (none.code, "--mtp changes nothing" in none.err) == (0, True)


def test_the_explanation_names_formula_numbers_and_fields(ask, tmp_path):
    answer = ask("model", "show", small(tmp_path, "qwen3_next"), "--explain")
    assert answer.code == 0
    for words in (
        "6 gated-deltanet: nv*dk*dv*e_s + (kc-1)*(2*nk*dk+nv*dv)*e",
        "nv = 4  from linear_num_value_heads",
        "2 full: T*nk*(dk+dv)*e",
        "nk = 2  from num_key_value_heads",
        "= 256 B a token a layer",
        "model.layers.*.mlp.experts.*.gate_proj.weight",
    ):
        assert words in answer.out
    dense = ask("model", "show", small(tmp_path, "granite"), "--explain").out
    assert "dk = 16  from hidden_size / num_attention_heads" in dense


def test_what_was_measured_of_an_engine_is_told_with_its_source_and_else_that_nothing_is_known(tmp_path):
    unknown = model_document(load_model(small(tmp_path, "llama")), [], None)["resident"]
    assert unknown == {"measured": [], "words": "checkpoint bytes; the engine may pad"}
    if not CONFIGS:
        pytest.skip("shared/data/model_configs is not beside the project")
    document = model_document(load_model(str(SHARED / "model_configs" / "gpt-oss-20b.json")), [], None)
    (row,) = document["resident"]["measured"]
    assert (row["engine"], row["ranks"], row["loaded_gib"]) == ("vLLM", 1, "13.47")
    assert row["source"]
    loaded = 1347 * 2**30 // 100
    assert row["padding_bytes_least"] < loaded - document["weights_bytes"] < row["padding_bytes_most"]
    assert "13.47 GiB by vLLM" in model_text(document)
