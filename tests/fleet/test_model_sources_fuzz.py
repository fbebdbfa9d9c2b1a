"""Every source under arbitrary and damaged input: a model or words, in bounded time, and nothing else."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.checkpoints.safetensors_index import INDEX_NAME, read_index
from fleet.errors import DescriptionError
from fleet.model import Model
from tests.fleet.gguf_files import gguf_bytes, llama_keys, llama_tensors
from tests.fleet.tensor_files import safetensors_bytes, write_parts
from tests.fleet.test_model_folder import CONFIG, tensors_of, write_single
from tests.work import counted

SETTINGS = settings(max_examples=200, deadline=None)
scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=12)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def model_or_words(path) -> Model | str:
    try:
        return load_model(str(path))
    except DescriptionError as error:
        return str(error)


@given(
    start=st.sampled_from(
        [b"", b"GGUF", b"FUGG", b"GGUF\3\0\0\0", b"{", b'{"weight_map"', b"\x10\0\0\0\0\0\0\0{", b"ak42"]
    ),
    rest=st.binary(max_size=200),
)
@SETTINGS
def test_any_file_is_a_model_or_words(tmp_path_factory, start, rest):
    path = tmp_path_factory.getbasetemp() / "any.file"
    path.write_bytes(start + rest)
    assert model_or_words(path)


@given(document=st.dictionaries(st.sampled_from(["weight_map", "metadata", "x"]), anything) | anything)
@SETTINGS
def test_any_json_is_an_index_or_words(tmp_path_factory, document):
    path = tmp_path_factory.getbasetemp() / INDEX_NAME
    path.write_text(json.dumps(document), encoding="utf-8", errors="replace")
    try:
        weight_map, total = read_index(str(path))
    except DescriptionError:
        return
    assert weight_map
    assert total is None or total >= 0


@given(weight_map=st.dictionaries(st.text(max_size=6), st.text(max_size=12) | st.just("a.safetensors"), max_size=4))
@SETTINGS
def test_any_map_of_names_stays_in_its_folder(tmp_path_factory, weight_map):
    folder = tmp_path_factory.getbasetemp() / "mapped"
    folder.mkdir(exist_ok=True)
    write_parts(folder, {"a.safetensors": {"a": ("U8", [1], 1)}}, weight_map=weight_map)
    found = model_or_words(folder)
    if isinstance(found, Model):
        assert set(weight_map.values()) == {"a.safetensors"}


plain = st.booleans() | st.integers(0, 2**32 - 1) | st.floats(width=32, allow_nan=False) | st.text(max_size=8)
listed = st.lists(st.integers(0, 2**32 - 1), max_size=6, min_size=1) | st.lists(st.booleans(), min_size=1, max_size=6)
KEYS = st.sampled_from(
    ["block_count", "embedding_length", "context_length", "feed_forward_length", "attention.head_count", "vocab_size",
     "attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.sliding_window",
     "attention.sliding_window_pattern", "attention.kv_lora_rank", "rope.dimension_count", "attention.key_length_mla"]
)  # fmt: skip


@given(
    arch=st.sampled_from(["llama", "gemma2", "deepseek2", "deci", "mamba"]),
    changes=st.dictionaries(KEYS, plain | listed, max_size=5),
    dropped=st.sets(KEYS, max_size=2),
)
@SETTINGS
def test_any_metadata_is_a_model_or_words(tmp_path_factory, arch, changes, dropped):
    keys = llama_keys(arch) | {f"{arch}.{name}": what for name, what in changes.items()}
    for name in dropped:
        keys.pop(f"{arch}.{name}", None)
    path = tmp_path_factory.getbasetemp() / "metadata.gguf"
    path.write_bytes(gguf_bytes(keys, llama_tensors()))
    found = model_or_words(path)
    if isinstance(found, Model) and not found.unknown:
        assert len(found.caches) == found.n_layers
        assert all(layer.heads == 2 or layer.kind == "mla" for layer in found.caches)


@given(
    names=st.sets(st.sampled_from(sorted(tensors_of(CONFIG))), max_size=6),
    shape=st.lists(st.integers(0, 70), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_a_folder_whose_files_differ_from_its_config_is_never_priced_by_its_config(tmp_path_factory, names, shape):
    tensors = tensors_of(CONFIG)
    size = 2
    for axis in shape:
        size *= axis
    truly = {name for name in names if tensors[name][1] != shape}
    tensors |= dict.fromkeys(names, ("BF16", shape, size))
    found = load_model(str(write_single(tmp_path_factory.mktemp("folder"), tensors)))
    assert bool(found.unknown) is bool(truly)
    assert bool(found.caches) is not bool(truly)
    assert found.weights_bytes == sum(row[2] for row in tensors.values())


def test_a_config_beside_very_many_foreign_tensors_is_compared_in_linear_time(tmp_path):
    spent = []
    for count in (10_000, 20_000):
        tensors = tensors_of(CONFIG) | {f"x{n}": ("U8", [0], 0) for n in range(count)}
        folder = write_single(tmp_path / f"with-{count}", tensors)
        model, calls = counted(lambda folder=folder: load_model(str(folder)))
        assert model.read.n_tensors == count + len(tensors_of(CONFIG))
        assert any(f"the files hold {count:,} tensors (0 B)" in word for word in model.warnings)
        spent.append(calls)
    assert spent[1] < 2.1 * spent[0]


def test_an_empty_header_is_no_model(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes({}, 0))
    assert "holds no tensor" in str(model_or_words(path))
