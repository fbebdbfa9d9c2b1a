"""Folders as they are downloaded and the local cache: bytes read, computed and compared; what contradicts is told."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.checkpoints.agree import compare
from fleet.checkpoints.hub_cache import cache_folder, find_snapshot, is_model_id
from fleet.checkpoints.safetensors_index import INDEX_NAME, SINGLE_NAME
from fleet.checkpoints.stored import Stored, StoredTensor
from fleet.errors import DescriptionError
from fleet.model import TensorSpec
from tests.fleet.gguf_files import gguf_bytes, llama_keys, llama_tensors
from tests.fleet.tensor_files import laid_out, safetensors_bytes, write_parts
from tests.work import counted

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 512,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}


def tensors_of(config, dtype=("BF16", 2)):
    """The tensors that a config computes, as a file would hold them."""
    word, width = dtype
    return {t.name: (word, list(t.shape), t.n_elements * width) for t in computed(config).tensors}


def computed(config):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        return load_model(str(path))


def write_single(folder, tensors, config=CONFIG):
    folder.mkdir(exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    header, size = laid_out(tensors)
    (folder / SINGLE_NAME).write_bytes(safetensors_bytes(header, size))
    return folder


def refused(path):
    with pytest.raises(DescriptionError) as caught:
        load_model(str(path))
    return str(caught.value)


def test_bytes_read_and_computed_that_agree_are_the_model_as_before(tmp_path):
    plain = computed(CONFIG)
    model = load_model(str(write_single(tmp_path / "some", tensors_of(CONFIG))))
    assert model.unknown == ()
    assert model.tensors == plain.tensors
    assert model.caches == plain.caches
    assert model.read.nbytes == model.weights_bytes == plain.weights_bytes
    assert model.read.differences == ()
    assert model.name == "some"
    assert model.digest != plain.digest


def test_a_config_given_by_its_own_path_is_not_joined_with_weights(tmp_path):
    folder = write_single(tmp_path / "some", tensors_of(CONFIG))
    assert load_model(str(folder / "config.json")).read is None


def test_the_digest_follows_the_weights(tmp_path):
    folder = write_single(tmp_path / "some", tensors_of(CONFIG))
    before = load_model(str(folder)).digest
    path = folder / SINGLE_NAME
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert load_model(str(folder)).digest != before


@pytest.mark.parametrize("given", ["", SINGLE_NAME])
def test_a_whole_file_beside_its_config_is_read_with_it(tmp_path, given):
    folder = write_single(tmp_path / "some", tensors_of(CONFIG))
    assert load_model(str(folder / given)).n_layers == 2


def test_a_file_without_config_has_bytes_and_no_kv(tmp_path):
    folder = write_single(tmp_path / "some", tensors_of(CONFIG), config=None)
    for path in (folder, folder / SINGLE_NAME):
        model = load_model(str(path))
        assert "unknown family: bytes read, KV unknown" in model.unknown[0]
        assert model.caches == ()
        assert model.weights_bytes == computed(CONFIG).weights_bytes
        assert (model.format, model.family) == ("safetensors", "unknown")


@pytest.mark.parametrize(("dtype", "parameters"), [("BF16", 8), ("F8_E4M3", 16), ("U8", 0), ("I32", 0), ("F4", 0)])
def test_packed_weights_without_config_have_bytes_and_no_count_of_parameters(tmp_path, dtype, parameters):
    shape = {"BF16": [8], "I32": [4], "F4": [32]}.get(dtype, [16])
    model = load_model(str(write_single(tmp_path / "some", {"a": (dtype, shape, 16)}, config=None)))
    assert (model.weights_bytes, model.parameters) == (16, parameters)


def changed(name, row):
    return {**tensors_of(CONFIG), name: row}


K = "model.layers.1.self_attn.k_proj.weight"


def test_another_shape_than_computed_is_unknown_with_both_figures(tmp_path):
    model = load_model(str(write_single(tmp_path / "some", changed(K, ("BF16", [64, 64], 8192)))))
    told = "\n".join(model.unknown)
    assert f"{K} computed [32, 64], read BF16 [64, 64]" in told
    plain = computed(CONFIG).weights_bytes
    assert f"{plain:,} B computed from the config, {plain + 4096:,} B read from the files" in told
    assert model.weights_bytes == plain + 4096
    assert model.unknown[0].startswith("config and files disagree")
    assert model.caches == ()
    assert model.parameters == 0


def test_a_computed_tensor_that_no_file_holds_is_unknown(tmp_path):
    tensors = tensors_of(CONFIG)
    del tensors[K]
    model = load_model(str(write_single(tmp_path / "some", tensors)))
    assert f"computes 1 tensors that no file holds: {K}" in "\n".join(model.unknown)


def test_many_differences_name_the_first_and_count_the_rest(tmp_path):
    tensors = {name: row for name, row in tensors_of(CONFIG).items() if "layers.1" not in name}
    model = load_model(str(write_single(tmp_path / "some", tensors)))
    assert "computes 9 tensors that no file holds" in model.unknown[0]
    assert "and 4 more" in model.unknown[0]


def test_another_type_than_the_config_says_is_priced_as_read_and_told(tmp_path):
    model = load_model(str(write_single(tmp_path / "some", tensors_of(CONFIG, ("F32", 4)))))
    plain = computed(CONFIG).weights_bytes
    assert model.unknown == ()
    assert model.weights_bytes == 2 * plain
    assert {t.dtype for t in model.tensors} == {model.weights_dtype} == {"fp32"}
    assert any(f"{plain:,} B computed from the config, {2 * plain:,} B read" in word for word in model.warnings)
    assert model.read.differences == model.warnings[-len(model.read.differences) :]


def test_roles_of_read_tensors_are_those_of_computed_ones(tmp_path):
    plain = computed(CONFIG)
    model = load_model(str(write_single(tmp_path / "some", tensors_of(CONFIG, ("F32", 4)))))
    assert {t.name: t.role for t in model.tensors} == {t.name: t.role for t in plain.tensors}
    assert model.parameters == plain.parameters


def test_tensors_beyond_the_config_count_and_are_told(tmp_path):
    model = load_model(str(write_single(tmp_path / "some", changed("model.extra.weight", ("F32", [10], 40)))))
    plain = computed(CONFIG).weights_bytes
    assert model.unknown == ()
    assert model.weights_bytes == plain + 40
    assert any("1 tensors (40 B) that the config does not compute: model.extra.weight" in w for w in model.warnings)


def test_a_tied_classifier_and_rotary_buffers_that_are_stored_do_not_count_but_are_told(tmp_path):
    config = CONFIG | {"tie_word_embeddings": True}
    tensors = tensors_of(config)
    tensors["lm_head.weight"] = ("BF16", [512, 64], 512 * 64 * 2)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", [4], 16)
    model = load_model(str(write_single(tmp_path / "some", tensors, config)))
    assert model.weights_bytes == computed(config).weights_bytes
    assert model.read.nbytes == model.weights_bytes + 512 * 64 * 2 + 16
    assert any("lm_head.weight" in word for word in model.warnings)


def test_other_names_of_the_same_tensors_are_the_same_model(tmp_path):
    renamed = {f"language_model.{name}": row for name, row in tensors_of(CONFIG).items()}
    model = load_model(str(write_single(tmp_path / "some", renamed)))
    assert model.unknown == ()
    assert model.weights_bytes == computed(CONFIG).weights_bytes
    assert any("have other names than the config gives them" in word for word in model.warnings)


def test_read_bytes_stand_in_for_weights_that_are_not_understood(tmp_path):
    config = CONFIG | {"quantization_config": {"quant_method": "some-new-method"}}
    assert computed(config).unknown
    tensors = {name: ("I8", shape, size // 2) for name, (_, shape, size) in tensors_of(CONFIG).items()}
    model = load_model(str(write_single(tmp_path / "some", tensors, config)))
    assert model.weights_bytes == sum(size for _, _, size in tensors.values())
    assert not any("weights are quantised" in word for word in model.unknown)
    assert model.caches == computed(CONFIG).caches
    assert model.parameters == computed(CONFIG).parameters


def test_parts_are_found_by_their_index(tmp_path):
    rows = list(tensors_of(CONFIG).items())
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    files = [f"model-0000{n + 1}-of-00002.safetensors" for n in range(2)]
    write_parts(tmp_path, {file: dict(rows[n::2]) for n, file in enumerate(files)})
    plain = computed(CONFIG).weights_bytes
    for path in (tmp_path, tmp_path / INDEX_NAME):
        model = load_model(str(path))
        assert (model.unknown, model.weights_bytes, model.read.n_files) == ((), plain, 2)
    alone = load_model(str(tmp_path / files[1]))
    assert "this is part 2 of 2: give the folder of all parts" in alone.unknown
    (tmp_path / INDEX_NAME).unlink()
    assert load_model(str(tmp_path)).weights_bytes == plain
    (tmp_path / files[1]).unlink()
    assert f"{files[1]}: no such file" in refused(tmp_path)


def test_an_index_without_config_has_bytes_and_no_kv(tmp_path):
    write_parts(tmp_path, {"a.safetensors": {"a": ("U8", [4], 4)}})
    assert load_model(str(tmp_path / INDEX_NAME)).weights_bytes == 4


def test_several_files_that_nothing_joins_are_refused(tmp_path):
    for name in ("one.safetensors", "two.safetensors"):
        (tmp_path / name).write_bytes(safetensors_bytes({}, 0))
    assert "no model.safetensors.index.json that says which belong together" in refused(tmp_path)


def test_a_folder_of_one_gguf_is_that_model_and_of_two_is_refused(tmp_path):
    data = gguf_bytes(llama_keys(), llama_tensors())
    (tmp_path / "a.gguf").write_bytes(data)
    assert load_model(str(tmp_path)).format == "gguf"
    (tmp_path / "b.gguf").write_bytes(data)
    assert "has 2 GGUF files: a.gguf, b.gguf; give one of them" in refused(tmp_path)


def test_weights_in_pickles_are_never_opened(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    model = load_model(str(tmp_path))
    assert model.weights_bytes == computed(CONFIG).weights_bytes
    assert any("pickles (pytorch_model.bin): never opened" in word for word in model.warnings)


@pytest.mark.parametrize("name", ["config.json", "hf_quant_config.json"])
def test_a_config_that_is_a_link_out_of_its_folder_is_not_followed(tmp_path, name):
    folder = write_single(tmp_path / "some", tensors_of(CONFIG))
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps(CONFIG))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(outside)
    assert "link out of its folder" in refused(folder)


def test_an_adapter_with_weights_is_no_model(tmp_path):
    write_single(tmp_path / "some", {"a": ("U8", [1], 1)}, config=None)
    (tmp_path / "some" / "adapter_config.json").write_text("{}")
    assert "is a LoRA adapter" in refused(tmp_path / "some")


def test_weight_files_without_tensors_are_no_model(tmp_path):
    assert "holds no tensor" in refused(write_single(tmp_path / "some", {}, config=None))
    assert "hold no tensor" in refused(write_single(tmp_path / "other", {}))


@pytest.mark.parametrize("data", [b"\0" * 8 + b"{}", b"\xff" * 8 + b'{"a":1}', b"\x50" + b"\0" * 7 + b'{"a"'])
def test_a_damaged_file_that_looks_like_safetensors_is_refused_as_one(tmp_path, data):
    path = tmp_path / "a.bin"
    path.write_bytes(data)
    assert "header" in refused(path)


def cache(tmp_path, revision="main", commit="a" * 40):
    """A cache with one model as the library lays it out; gives its place and the repository's."""
    repository = tmp_path / "hub" / "models--org--some"
    snapshot, blobs = repository / "snapshots" / commit, repository / "blobs"
    for folder in (snapshot, blobs, (repository / "refs" / revision).parent):
        folder.mkdir(parents=True, exist_ok=True)
    (repository / "refs" / revision).write_text(commit)
    source = write_single(tmp_path / f"made-{commit[0]}", tensors_of(CONFIG))
    for number, name in enumerate(("config.json", SINGLE_NAME)):
        blob = blobs / f"{commit[0]}{number}"
        blob.write_bytes((source / name).read_bytes())
        (snapshot / name).symlink_to(os.path.join("../../blobs", blob.name))
    return tmp_path / "hub", repository


def test_a_model_id_is_found_in_the_cache(tmp_path, monkeypatch):
    hub, _ = cache(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    for text in ("org/some", "org/some@main", f"org/some@{'a' * 40}"):
        model = load_model(text)
        assert (model.name, model.unknown) == ("some", ())
        assert model.read.nbytes == computed(CONFIG).weights_bytes
    cache(tmp_path, "refs/pr/1", "b" * 40)
    assert load_model("org/some@refs/pr/1").name == "some"


def test_a_path_that_exists_is_a_path_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    write_single(tmp_path / "org" / "some", tensors_of(CONFIG), config=None)
    assert load_model("org/some").family == "unknown"


def test_an_id_that_is_not_in_the_cache_says_where_was_looked_and_how_to_mend_it(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    message = refused("org/absent")
    assert str(tmp_path / "models--org--absent") in message
    assert "hf download org/absent" in message
    assert "HF_HUB_CACHE" in message


@pytest.mark.parametrize("revision", ["v2", "c" * 40, "../../../x", "refs/../../..", "a" * 39])
def test_a_revision_that_is_not_there_is_told_with_those_that_are(tmp_path, monkeypatch, revision):
    hub, _ = cache(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    message = refused(f"org/some@{revision}")
    assert "main" in message or "no such file" in message


@pytest.mark.parametrize("text", ["../../etc", "x" * 40, "", "a" * 4096, "\0" * 40, "é" * 40])
def test_a_ref_that_holds_no_commit_leads_nowhere(tmp_path, monkeypatch, text):
    hub, repository = cache(tmp_path)
    (repository / "refs" / "main").write_text(text)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    assert "is not in the local cache" in refused("org/some")


def test_links_of_a_snapshot_lead_into_its_blobs_and_nowhere_else(tmp_path, monkeypatch):
    hub, repository = cache(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    link = repository / "snapshots" / ("a" * 40) / SINGLE_NAME
    outside = tmp_path / "outside"
    outside.write_bytes(link.read_bytes())
    link.unlink()
    link.symlink_to(outside)
    assert "link out of its folder" in refused("org/some")
    snapshot = repository / "snapshots" / ("b" * 40)
    snapshot.symlink_to(tmp_path / "made-a")
    assert "is not in the local cache" in refused(f"org/some@{'b' * 40}")


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/a"),
        ({"HF_HOME": "/b", "XDG_CACHE_HOME": "/c"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
        ({}, os.path.expanduser("~/.cache/huggingface/hub")),
    ],
)
def test_the_cache_lies_where_the_library_puts_it(environment, place):
    assert cache_folder(environment) == place


@given(st.text(max_size=40) | st.from_regex(r"[a-z./@-]{1,30}", fullmatch=True))
@settings(max_examples=300, deadline=None)
def test_no_text_leads_out_of_the_cache(text):
    if not is_model_id(text):
        return
    with pytest.raises(DescriptionError) as caught:
        find_snapshot(text, {"HF_HUB_CACHE": "/nonexistent"})
    assert "/nonexistent/models--" in str(caught.value)


@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.lists(st.integers(1, 3), max_size=2), st.sampled_from("BF"))
    ),
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.lists(st.integers(1, 3), max_size=2), st.sampled_from("BF"))
    ),
)
def test_agreement_is_exact_when_and_only_when_both_are_equal(ours, theirs):
    dtypes = {"B": ("bf16", "BF16", 2), "F": ("fp32", "F32", 4)}
    specs = [TensorSpec(name=n, shape=tuple(s), dtype=dtypes[d][0], role="norm") for n, (s, d) in ours.items()]
    held = []
    for name, (shape, letter) in theirs.items():
        size = dtypes[letter][2]
        for axis in shape:
            size *= axis
        held.append(StoredTensor(name=name, shape=tuple(shape), dtype=dtypes[letter][1], nbytes=size, file="f"))
    found = compare(specs, Stored(format="safetensors", files=(), tensors=tuple(held)))
    assert (found.words() == ()) is (ours == theirs)
    assert set(found.missing) == ours.keys() - theirs.keys()
    assert set(found.extra) == theirs.keys() - ours.keys()
    assert found.exact is (ours == theirs)


def test_a_hundred_shards_of_a_gigabyte_are_read_by_their_headers(tmp_path):
    rows = {f"model.layers.{n}.w": ("BF16", [500, 10**6], 10**9) for n in range(100)}
    weight_map = {}
    for n, (name, row) in enumerate(rows.items()):
        file = f"model-{n + 1:05}-of-00100.safetensors"
        header, size = laid_out({name: row})
        path = tmp_path / file
        path.write_bytes(safetensors_bytes(header))
        os.truncate(path, path.stat().st_size + size)
        weight_map[name] = file
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    model, calls = counted(lambda: load_model(str(tmp_path)))
    assert model.weights_bytes == 100 * 10**9
    assert calls < 1_000_000
