"""The tensors behind the table: exact, read-only, and only of the file that was loaded."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor import weights as weights_module
from executor.tokenizer import load_tokenizer
from executor.weights import open_weights
from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from tests.checkpoint_files import Dims, checkpoint_bytes, write_checkpoint
from tests.numpy_reference import NumpyTransformer, walk

SHARED = Path(__file__).parents[3] / "shared" / "data" / "llama2c_golden"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data/llama2c_golden is not beside the project")


def put(path: Path, name: str, index: int, word: int) -> None:
    """Overwrite one 32-bit word of tensor `name`."""
    spec = next(t for t in load_model(str(path)).tensors if t.name == name)
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, spec.offset + 4 * index, word)
    path.write_bytes(data)


@given(
    st.booleans(),
    st.sampled_from([0, 1]),
    st.integers(0, 5),
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 7)),
)
@settings(max_examples=30, deadline=None)
def test_every_tensor_holds_the_files_own_bytes(tmp_path_factory, shared, version, seed, sizes):
    layers, hidden, vocab = sizes
    dims = Dims(n_layers=layers, hidden_dim=hidden, vocab_size=vocab, shared=shared)
    path = write_checkpoint(tmp_path_factory.mktemp("m"), dims, version, seed)
    model = load_model(str(path))
    opened = open_weights(model)
    tensors = checkpoint_bytes(dims, version, seed)[1]
    for spec in model.tensors:
        array = opened.tensor(spec.name)
        assert array.tobytes() == tensors[spec.name]
        assert array.shape == spec.shape
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert not array.flags.writeable


def test_a_name_outside_the_table_is_a_key_error(tmp_path):
    with pytest.raises(KeyError):
        open_weights(load_model(str(write_checkpoint(tmp_path)))).tensor("wz")


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_nan_and_infinity_are_named_by_tensor_and_number(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(weights_module, "_CHUNK_ELEMENTS", chunk)
    path = write_checkpoint(tmp_path)
    assert open_weights(load_model(str(path))).check() == []
    put(path, "wk", 3, 0x7FC00000)
    put(path, "wk", 9, 0xFF800000)
    put(path, "rms_final", 0, 0x7F800000)
    put(path, "freq_cis_real", 0, 0x7FC00000)
    warnings = open_weights(load_model(str(path))).check()
    assert [warning.split()[0] for warning in warnings] == ["wk", "rms_final"]
    assert "1 NaN and 1 infinite" in warnings[0]


@pytest.mark.parametrize("chunk", [5, 1 << 20])
def test_a_poison_word_among_the_weights_is_found_by_its_bits(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(weights_module, "_CHUNK_ELEMENTS", chunk)
    path = write_checkpoint(tmp_path)
    put(path, "w3", 17, 0x7FA00123)
    put(path, "freq_cis_imag", 1, 0x7FA00456)
    opened = open_weights(load_model(str(path)))
    assert opened.contains_word(0x7FA00123)
    assert not opened.contains_word(0x7FA00124)
    # A tensor that is never staged cannot be mistaken for poison.
    assert not opened.contains_word(0x7FA00456)


@pytest.mark.parametrize("change", ["shrunk", "grown", "altered"])
@pytest.mark.parametrize("version", [0, 1])
def test_a_file_that_changed_since_it_was_loaded_is_refused(tmp_path, version, change):
    path = write_checkpoint(tmp_path, version=version)
    model = load_model(str(path))
    data = path.read_bytes()
    path.write_bytes({"shrunk": data[:-4], "grown": data + b"1234", "altered": data[:-1] + b"\x01"}[change])
    with pytest.raises(DescriptionError, match=r"is not the file that was loaded.*admit again"):
        open_weights(model)


def test_a_file_that_is_gone_is_refused(tmp_path):
    path = write_checkpoint(tmp_path)
    model = load_model(str(path))
    path.unlink()
    with pytest.raises(DescriptionError, match="no such file"):
        open_weights(model)


def test_a_config_without_weights_is_refused(tmp_path):
    model = replace(load_model(None), format="hf-config", path="some/config.json")
    with pytest.raises(DescriptionError, match="holds no weights"):
        open_weights(model)


@needs_shared
@pytest.mark.shared
def test_the_numpy_reference_walks_the_golden_story():
    import json

    run = next(r for r in json.loads((SHARED / "golden.json").read_text()) if r["n_arg"] == 256 and r["prompt"])
    model = load_model(str(SHARED / "stories260K.bin"))
    tokens = load_tokenizer(str(SHARED / "tok512.bin"), 512).encode(run["prompt"])
    done = walk(NumpyTransformer(model, open_weights(model).tensor, run["steps_effective"]), tokens, 120)
    assert done.tokens == run["token_ids"][: len(done.tokens)]
    assert len(done.tokens) >= 100
