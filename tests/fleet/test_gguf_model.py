"""Models from GGUF: caches of each layer by metadata and tensors, bytes read, and words for everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.checkpoints import load_model
from fleet.checkpoints.gguf_model import ARCHITECTURES
from fleet.errors import DescriptionError
from fleet.models.kv import bytes_per_token, kv_bytes
from tests.fleet.gguf_files import data_bytes, gguf_bytes, llama_keys, llama_tensors

SHARED = Path(__file__).parents[3] / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="shared/data is not beside the project")


def model_of(tmp_path, keys, tensors, name="a.gguf"):
    path = tmp_path / name
    path.write_bytes(gguf_bytes(keys, tensors))
    return load_model(str(path))


def refused(tmp_path, keys, tensors):
    with pytest.raises(DescriptionError) as caught:
        model_of(tmp_path, keys, tensors)
    return str(caught.value)


@pytest.mark.parametrize("arch", [name for name, row in ARCHITECTURES.items() if row.pattern == "full"])
def test_a_full_attention_model_is_priced_by_its_heads(tmp_path, arch):
    tensors = llama_tensors()
    model = model_of(tmp_path, llama_keys(arch), tensors)
    assert model.unknown == ()
    assert (model.family, model.format, model.kv_dtype) == (arch, "gguf", "fp16")
    assert bytes_per_token(model.caches, "fp16") == 4 * 2 * (8 + 8) * 2
    assert (model.dim, model.n_layers, model.n_heads, model.n_kv_heads, model.head_dim) == (64, 4, 8, 2, 8)
    assert (model.vocab_size, model.seq_len, model.shared_classifier) == (96, 512, False)
    assert model.is_plain_cache


@pytest.mark.parametrize(
    ("kind", "name", "nbytes"), [(0, "F32", 4.0), (30, "BF16", 2.0), (8, "Q8_0", 34 / 32), (2, "Q4_0", 18 / 32)]
)
def test_weights_are_the_bytes_of_the_tensors(tmp_path, kind, name, nbytes):
    tensors = llama_tensors(kind=kind)
    model = model_of(tmp_path, llama_keys(), tensors)
    norms = 5 * 64
    matrices = 2 * 96 * 64 + 4 * (2 * 64 * 64 + 2 * 16 * 64 + 3 * 64 * 128)
    assert model.parameters == norms + matrices
    assert model.weights_bytes == 4 * norms + int(matrices * nbytes) == data_bytes(tensors)
    assert model.read.nbytes == model.weights_bytes
    assert model.read.n_tensors == len(tensors)
    held = {dtype: size for dtype, _, size in model.read.by_dtype}
    assert held[name] == int(matrices * nbytes) + (4 * norms if kind == 0 else 0)
    assert model.quantisation == (name if name.startswith("Q") else None)


def test_an_embedding_without_output_is_the_classifier(tmp_path):
    assert model_of(tmp_path, llama_keys(), llama_tensors(head=False)).shared_classifier


def test_heads_of_each_layer_are_those_of_the_list_and_a_layer_of_none_keeps_nothing(tmp_path):
    heads = [4, 0, 2, 1]
    keys = llama_keys("deci", deci__attention__head_count_kv=heads, deci__attention__head_count=[8, 0, 8, 8])
    model = model_of(tmp_path, keys, llama_tensors(heads))
    assert model.unknown == ()
    assert [layer.heads for layer in model.caches] == heads
    assert [layer.kind for layer in model.caches] == ["full", "none", "full", "full"]
    assert kv_bytes(model.caches, 10, "fp16") == 10 * 7 * 16 * 2
    assert not model.is_plain_cache


def test_key_and_value_lengths_are_those_of_the_file(tmp_path):
    keys = llama_keys("qwen3", qwen3__attention__key_length=24, qwen3__attention__value_length=16)
    model = model_of(tmp_path, keys, llama_tensors(key=24, value=16))
    assert model.unknown == ()
    assert bytes_per_token(model.caches, "fp16") == 4 * 2 * (24 + 16) * 2


def test_without_kv_heads_every_head_is_kept(tmp_path):
    model = model_of(tmp_path, llama_keys(llama__attention__head_count_kv=None), llama_tensors((8, 8, 8, 8)))
    assert bytes_per_token(model.caches, "fp16") == 4 * 8 * 16 * 2


@pytest.mark.parametrize(
    ("changes", "heads", "words"),
    [
        ({"llama__attention__head_count_kv": 4}, (2, 2, 2, 2), "blk.0.attn_k.weight has 16 rows, metadata says 32"),
        ({"llama__attention__key_length": 16}, (2, 2, 2, 2), "has 16 rows, metadata says 32"),
        ({}, (2, 0, 2, 2), "blk.1.attn_k.weight has 0 rows, metadata says 16"),
        ({"llama__block_count": 5}, (2, 2, 2, 2), "blk.4.attn_k.weight has 0 rows"),
    ],
)
def test_metadata_that_the_tensors_contradict_is_told_with_both_figures(tmp_path, changes, heads, words):
    model = model_of(tmp_path, llama_keys(**changes), llama_tensors(heads))
    assert any(words in told for told in model.unknown)
    assert model.caches == ()
    assert model.weights_bytes == data_bytes(llama_tensors(heads))


@pytest.mark.parametrize(
    ("arch", "changes", "words"),
    [
        ("mamba", {}, "architecture mamba is not understood: bytes read, KV unknown"),
        ("future", {}, "architecture future is not understood"),
        ("llama", {"general__architecture": None}, "names no general.architecture"),
        (
            "llama",
            {"llama__attention__sliding_window": 128},
            "sliding_window 128 is not understood in architecture llama",
        ),
        ("llama", {"llama__ssm__state_size": 16}, "keys not understood: llama.ssm.state_size"),
        ("glm4moe", {"glm4moe__nextn_predict_layers": 1}, "nextn_predict_layers"),
        ("gemma2", {}, "has windows, but gemma2.attention.sliding_window is missing"),
        ("deepseek2", {}, "is not understood"),
    ],
)
def test_what_is_not_understood_is_unknown_in_words_and_never_priced(tmp_path, arch, changes, words):
    model = model_of(tmp_path, llama_keys(arch, **changes), llama_tensors())
    assert any(words in told for told in model.unknown)
    assert model.caches == ()
    assert model.weights_bytes == data_bytes(llama_tensors())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"llama__block_count": None}, "llama.block_count is missing"),
        ({"llama__block_count": 0}, "llama.block_count is 0"),
        ({"llama__block_count": 5000}, "up to 4,096"),
        ({"llama__block_count": "4"}, "llama.block_count is 4: must be a whole number"),
        ({"llama__attention__head_count": None}, "head_count is missing or 0"),
        (
            {"llama__attention__head_count_kv": [2, 2]},
            "list of 2 values: must be one whole number for each of 4 layers",
        ),
        ({"llama__attention__head_count_kv": [2.0] * 4}, "one whole number for each of 4 layers"),
        ({"llama__attention__head_count_kv": True}, "must be a whole number"),
        ({"llama__context_length": 1.5}, "llama.context_length is 1.5"),
        ({"general__architecture": 7}, "general.architecture is 7: must be a word"),
        ({"general__architecture": "bert"}, "is an encoder, not a decoder language model"),
        ({"general__architecture": "clip"}, "is a vision tower"),
        ({"general__architecture": "t5"}, "is an encoder-decoder"),
        ({"general__type": "adapter"}, "general.type is a LoRA adapter"),
        ({"general__type": "mmproj"}, "is a vision tower beside a model"),
    ],
)
def test_wrong_metadata_is_refused_in_words(tmp_path, changes, words):
    assert words in refused(tmp_path, llama_keys(**changes), llama_tensors())


def test_a_vocabulary_without_tensors_is_no_model(tmp_path):
    assert "vocabulary without tensors" in refused(tmp_path, llama_keys(), {})


def test_windows_stand_where_the_architecture_or_the_file_puts_them(tmp_path):
    keys = llama_keys("gemma2", gemma2__attention__sliding_window=100)
    model = model_of(tmp_path, keys, llama_tensors())
    assert [layer.window for layer in model.caches] == [100, None, 100, None]
    keys["gemma2.attention.sliding_window_pattern"] = [False, True, True, False]
    model = model_of(tmp_path, keys, llama_tensors())
    assert [layer.window for layer in model.caches] == [None, 100, 100, None]


@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "arch"),
    [("Meta-Llama-3.1-8B", "llama"), ("Qwen3-8B", "qwen3"), ("Qwen2.5-7B-Instruct", "qwen2"), ("gemma-2-9b", "gemma2"),
     ("gemma-2b", "gemma"), ("gemma-3-27b", "gemma3"), ("gpt-oss-20b", "gpt-oss"), ("Qwen3-30B-A3B", "qwen3moe"),
     ("DeepSeek-V3", "deepseek2")],
)  # fmt: skip
def test_a_published_model_as_gguf_keeps_what_its_config_keeps(tmp_path, name, arch):
    config = json.loads((SHARED / "model_configs" / f"{name}.json").read_text())
    truth = json.loads((SHARED / "model_truth.json").read_text())["models"][name]
    config = config.get("text_config", config)
    layers, heads = config["num_hidden_layers"], config.get("num_attention_heads")
    kv_heads, dim = config.get("num_key_value_heads"), config["hidden_size"]
    head_dim = config.get("head_dim") or dim // heads
    keys = {
        "general.architecture": arch, f"{arch}.block_count": layers, f"{arch}.embedding_length": dim,
        f"{arch}.context_length": 4096, f"{arch}.attention.head_count": heads,
        f"{arch}.attention.head_count_kv": kv_heads, f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
    }  # fmt: skip
    tensors = {"token_embd.weight": ((32, 32), 2)}
    if arch == "deepseek2":
        rank, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
        keys |= {f"{arch}.attention.kv_lora_rank": rank, f"{arch}.rope.dimension_count": rope}
        keys |= {f"{arch}.attention.key_length_mla": 192, f"{arch}.attention.head_count_kv": 1}
        tensors |= {f"blk.{n}.attn_kv_a_mqa.weight": ((rank + rope, 32), 2) for n in range(layers)}
    else:
        if ARCHITECTURES[arch].pattern == "windowed":
            keys[f"{arch}.attention.sliding_window"] = config["sliding_window"]
        for n in range(layers):
            tensors |= {f"blk.{n}.attn_{letter}.weight": ((kv_heads * head_dim, 32), 2) for letter in "kv"}
    model = model_of(tmp_path, keys, tensors)
    assert model.unknown == ()
    said = truth["kv"]["bf16"]
    assert bytes_per_token(model.caches, "bf16") == said["bytes_per_token_all_layers"]
    assert len([layer for layer in model.caches if layer.window]) == truth["layers"]["kinds"].get("sliding", 0)


def parts(tmp_path, changes=(), count=3):
    """A model of `count` parts; `changes` replace the bytes of a part, None leaves it out."""
    tensors = list(llama_tensors().items())
    shares = [dict(tensors[n::count]) for n in range(count)]
    for n, share in enumerate(shares):
        keys = {"split.no": n, "split.count": count, "split.tensors.count": len(tensors)}
        data = gguf_bytes((llama_keys() if n == 0 else {}) | keys, share)
        data = dict(changes).get(n, data)
        if data is not None:
            (tmp_path / f"m-{n + 1:05}-of-{count:05}.gguf").write_bytes(data)
    return tmp_path / f"m-00001-of-{count:05}.gguf"


def test_parts_are_one_model_whichever_is_given(tmp_path):
    first = parts(tmp_path)
    whole = model_of(tmp_path, llama_keys(), llama_tensors(), "whole.gguf")
    for path in (first, tmp_path / "m-00003-of-00003.gguf"):
        model = load_model(str(path))
        assert (model.name, model.unknown) == ("m", ())
        assert model.weights_bytes == whole.weights_bytes
        assert model.caches == whole.caches
        assert model.read.n_files == 3
    (tmp_path / "whole.gguf").unlink()
    assert load_model(str(tmp_path)).weights_bytes == whole.weights_bytes


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({1: None}, "m-00002-of-00003.gguf: no such file"),
        ({1: b"GGUF"}, "is truncated"),
        ({1: gguf_bytes({"split.no": 2, "split.count": 3}, {})}, "part 2 of 3, counted from 0; its name says 1 of 3"),
        ({2: gguf_bytes({"split.no": 2, "split.count": 3}, {})}, "tensors, the parts hold"),
        (
            {2: gguf_bytes({"split.no": 2, "split.count": 3}, {"token_embd.weight": ((96, 64), 1)})},
            "token_embd.weight is in",
        ),
        ({0: gguf_bytes({"split.no": 0, "split.count": 2}, {})}, "its name does not"),
        ({0: gguf_bytes({"split.count": 70_000}, {})}, "must be 1 to 4,096"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, changes, words):
    path = parts(tmp_path, changes)
    with pytest.raises(DescriptionError) as caught:
        load_model(str(path))
    assert words in str(caught.value)
