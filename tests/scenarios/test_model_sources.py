"""Each model source through the commands: shown, admitted, 2 when it is wrong, 3 when it is unknown."""

from __future__ import annotations

import json
import struct

import pytest

from tests.command_line import asker
from tests.fleet.gguf_files import data_bytes, gguf_bytes, llama_keys, llama_tensors
from tests.fleet.tensor_files import laid_out, safetensors_bytes, write_parts
from tests.fleet.test_model_folder import CONFIG, K, cache, changed, computed, tensors_of, write_single


@pytest.fixture
def ask(capfd):
    return asker(capfd)


@pytest.fixture
def sources(tmp_path):
    """A good GGUF file and a good folder."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes(llama_keys(), llama_tensors(kind=8)))
    return path, write_single(tmp_path / "some", tensors_of(CONFIG))


def admitted(ask, model, *more):
    return ask(
        "admit", "--fleet", "two-gpu-nvlink", "--model", model, "--prompt-tokens", "10", "--new-tokens", "5", *more
    )


def test_a_gguf_file_is_shown_with_the_bytes_that_were_read(ask, sources):
    answer = ask("model", "show", sources[0], "-o", "json")
    assert answer.code == 0
    size = data_bytes(llama_tensors(kind=8))
    document = answer.document
    assert document["weights_bytes"] == size
    assert document["kv"]["bytes_per_token"] == 4 * 2 * 16 * 2
    assert document["read"]["bytes"] == sum(row["bytes"] for row in document["read"]["by_dtype"]) == size
    assert document["read"]["differences"] == []
    assert "Read from 1 gguf file" in ask("model", "show", sources[0]).out


def test_a_config_alone_has_nothing_read(ask, sources):
    document = ask("model", "show", sources[1] / "config.json", "-o", "json").document
    assert document["read"] is None


@pytest.mark.parametrize("which", [0, 1])
def test_what_was_read_is_what_is_staged(ask, sources, which):
    model = sources[which]
    answer = admitted(ask, model, "-o", "json")
    assert answer.code == 0
    size = data_bytes(llama_tensors(kind=8)) if which == 0 else computed(CONFIG).weights_bytes
    staged = [row["bytes"] for row in answer.document["waybill"] if row["tensor"] == "weights"]
    assert staged == [size, size]


def test_bytes_read_and_not_computed_are_staged_where_the_types_differ(ask, tmp_path):
    folder = write_single(tmp_path / "wide", tensors_of(CONFIG, ("F32", 4)))
    answer = admitted(ask, folder, "-o", "json")
    staged = {row["bytes"] for row in answer.document["waybill"] if row["tensor"] == "weights"}
    assert staged == {2 * computed(CONFIG).weights_bytes}
    assert "B computed from the config" in answer.err + answer.out


def test_files_that_contradict_their_config_admit_nothing(ask, tmp_path):
    folder = write_single(tmp_path / "bad", changed(K, ("BF16", [64, 64], 8192)))
    for answer in (admitted(ask, folder), ask("model", "show", folder)):
        assert answer.code == 3
        assert "computed [32, 64], read BF16 [64, 64]" in answer.out
        assert "B computed from the config" in answer.out
        assert "B read from the files" in answer.out


def test_a_file_without_config_shows_its_bytes_and_admits_nothing(ask, tmp_path):
    path = write_single(tmp_path / "some", tensors_of(CONFIG), config=None) / "model.safetensors"
    answer = ask("model", "show", path)
    assert answer.code == 3
    assert f"{computed(CONFIG).weights_bytes:,} B" in answer.out
    assert "bytes read, KV unknown" in answer.out
    assert admitted(ask, path).code == 3


def test_caches_that_differ_between_layers_are_priced_each_by_its_own_formula(ask, tmp_path):
    path = tmp_path / "g.gguf"
    path.write_bytes(gguf_bytes(llama_keys("gemma2", gemma2__attention__sliding_window=100), llama_tensors()))
    answer = admitted(ask, path, "-o", "json")
    assert answer.code == 0
    parts = [row["tensor"] for row in answer.document["waybill"] if row["phase"] == "handoff"]
    assert parts == ["k.sliding", "v.sliding", "k.full", "v.full"]
    kinds = [(row["kind"], row["window"]) for row in ask("model", "show", path, "-o", "json").document["layers"]]
    assert kinds == [("sliding", 100), ("full", None)]


@pytest.mark.parametrize("which", [0, 1])
def test_what_is_not_executed_is_refused_by_run_in_words(ask, sources, tmp_path, which):
    plan = tmp_path / "plan.json"
    model = sources[0] if which == 0 else sources[1] / "config.json"
    answer = admitted(ask, model, "--plan-out", plan)
    assert "it is for admission only" in answer.err
    answer = ask("run", plan)
    assert answer.code == 2
    assert "can be admitted, not run" in answer.err


def test_a_prompt_in_words_needs_a_count_of_tokens_instead(ask, sources, tmp_path):
    tokenizer = tmp_path / "tok.bin"
    tokenizer.write_bytes(b"")
    answer = ask("admit", "--fleet", "two-gpu-nvlink", "--model", sources[0], "--prompt", "x", "--tokenizer", tokenizer)
    assert answer.code == 2
    assert "a gguf file comes without a tokenizer that is read here; give --prompt-tokens N" in answer.err


def test_an_id_of_the_cache_is_shown_and_one_that_is_not_there_is_refused(ask, tmp_path, monkeypatch):
    hub, _ = cache(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert ask("model", "show", "org/some").code == 0
    answer = ask("model", "show", "org/other")
    assert answer.code == 2
    assert f"looked for {hub}/models--org--other" in answer.err


def test_a_scenario_names_a_model_by_its_path_or_by_its_id(ask, tmp_path, monkeypatch):
    hub, _ = cache(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    lines = [
        "schema: kvwaybill/scenario/1",
        "name: x",
        "fleet: two-gpu-nvlink",
        "workload: {prompt_tokens: 9, new_tokens: 2}",
    ]
    for model, code in (("org/some", 0), ("made-a", 0), ("org/other", 2)):
        path = tmp_path / "case.yaml"
        path.write_text("\n".join([*lines, f"model: {model}"]))
        answer = ask("admit", path, "-o", "json")
        assert answer.code == code, answer.err
        if code == 0:
            assert answer.document["inputs"]["model"]["n_layers"] == 2


def _bad(folder):
    header, size = laid_out({"a": ("U8", [4], 4)})
    files = {
        "length.safetensors": struct.pack("<Q", 2**60) + b'{"a":1}',
        "cut.safetensors": safetensors_bytes(header, size)[:30],
        "short.safetensors": safetensors_bytes(header, 3),
        "text.safetensors": safetensors_bytes('{"a":', 0),
        "length.gguf": b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60),
        "big.gguf": b"GGUF" + struct.pack(">IQQ", 3, 1, 1),
        "cut.gguf": gguf_bytes(llama_keys(), llama_tensors())[:700],
        "short.gguf": gguf_bytes(llama_keys(), llama_tensors())[:-1],
        "empty.index.json": b'{"metadata": {}, "weight_map": {}}',
        "absent.index.json": b'{"weight_map": {"a": "absent.safetensors"}}',
        "outside.index.json": b'{"weight_map": {"a": "../../etc/passwd"}}',
        "encoder.gguf": gguf_bytes(llama_keys("bert"), llama_tensors()),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return sorted(files)


def test_every_wrong_file_ends_with_code_2_and_names_itself(ask, tmp_path):
    for name in _bad(tmp_path):
        for answer in (ask("model", "show", tmp_path / name), admitted(ask, tmp_path / name)):
            assert answer.code == 2, name
            assert name in answer.err or "absent.safetensors" in answer.err
            assert answer.out == ""


def test_an_index_shows_the_sum_beside_its_total(ask, tmp_path):
    parts = {"a.safetensors": {"a": ("U8", [4], 4)}, "b.safetensors": {"b": ("U8", [4], 4)}}
    write_parts(tmp_path, parts, metadata={"total_size": 9})
    answer = ask("model", "show", tmp_path, "-o", "json")
    assert answer.code == 3
    assert answer.document["read"] | {"by_dtype": []} == {
        "format": "safetensors", "files": 2, "tensors": 2, "bytes": 8, "by_dtype": [], "differences": [],
    }  # fmt: skip
    assert "says total_size 9 bytes; the tensors of its files sum to 8" in answer.err
    assert json.dumps(answer.document)
