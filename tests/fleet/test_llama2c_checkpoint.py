"""llama2.c checkpoints: every byte of a good file is accounted for, every bad file is refused in words."""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model, source
from fleet.errors import DescriptionError
from tests.checkpoint_files import Dims, checkpoint_bytes, write_checkpoint

SHARED = Path(__file__).parents[3] / "shared" / "data" / "llama2c_golden"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="shared/data/llama2c_golden is not beside the project")

dims_strategy = st.builds(
    lambda head, kv, group, hidden, layers, vocab, seq, shared: Dims(
        2 * head * kv * group, hidden, layers, kv * group, kv, vocab, seq, shared
    ),
    *(st.integers(1, high) for high in (3, 3, 3, 9, 3, 12, 7)),
    st.booleans(),
)


def refused(path) -> str:
    with pytest.raises(DescriptionError) as caught:
        load_model(str(path))
    assert caught.value.exit_code == 2
    text = str(caught.value)
    assert "Traceback" not in text
    return text


def patched(tmp_path: Path, version: int, **fields: int) -> Path:
    path = write_checkpoint(tmp_path, version=version)
    data = bytearray(path.read_bytes())
    names = ("dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "seq_len")
    for name, value in fields.items():
        struct.pack_into("<i", data, (0 if version == 0 else 8) + 4 * names.index(name), value)
    path.write_bytes(data)
    return path


@needs_shared
@pytest.mark.shared
def test_stories260k_has_the_published_dimensions_and_bytes():
    model = load_model(str(SHARED / "stories260K.bin"))
    assert (model.dim, model.hidden_dim, model.n_layers, model.n_heads, model.n_kv_heads) == (64, 172, 5, 8, 4)
    assert (model.vocab_size, model.seq_len, model.shared_classifier, model.head_dim) == (512, 512, True, 8)
    assert model.format == "llama2c-v0"
    assert model.name == "stories260K"
    assert model.digest == "b0a507e7ad0f626624f17112325e66691f9076d622e1d3274d103d00299f2696"
    device, host = model.staged_tensors("device"), model.staged_tensors("host")
    assert (sum(t.nbytes for t in device), len(device)) == (1_040_128, 11)
    assert (sum(t.nbytes for t in host), len(host)) == (1_037_312, 8)
    assert sum(t.nbytes for t in model.tensors if t.role == "unread") == 16_384


@given(dims=dims_strategy, version=st.sampled_from([0, 1]))
@settings(max_examples=60, deadline=None)
def test_the_table_covers_the_file_without_gap_or_overlap(tmp_path_factory, dims, version):
    path = write_checkpoint(tmp_path_factory.mktemp("m"), dims, version)
    data, tensors = checkpoint_bytes(dims, version)
    model = load_model(str(path))
    end = 28 if version == 0 else 256
    for spec in model.tensors:
        assert spec.offset == end
        assert data[spec.offset : spec.offset + spec.nbytes] == tensors.get(spec.name, b"")
        end += spec.nbytes
    assert end == len(data) == path.stat().st_size
    assert {t.name for t in model.tensors if t.nbytes} == set(tensors)
    assert model.shared_classifier is dims.shared
    assert model.digest == hashlib.sha256(data).hexdigest()
    assert (model.dim, model.n_kv_heads, model.seq_len) == (dims.dim, dims.n_kv_heads, dims.seq_len)


@given(dims=dims_strategy, seed=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_both_versions_describe_the_same_model(tmp_path_factory, dims, seed):
    folder = tmp_path_factory.mktemp("m")
    v0 = load_model(str(write_checkpoint(folder, dims, 0, seed)))
    v1 = load_model(str(write_checkpoint(folder, dims, 1, seed)))
    assert v0.parameters == v1.parameters
    assert {(t.name, t.shape, t.role) for t in v1.tensors} == {
        (t.name, t.shape, t.role) for t in v0.tensors if t.role != "unread"
    }


@given(dims=dims_strategy, version=st.sampled_from([0, 1]), cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60, deadline=None)
def test_every_shorter_file_is_refused_as_truncated_or_empty(tmp_path_factory, dims, version, cut):
    path = write_checkpoint(tmp_path_factory.mktemp("m"), dims, version)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    text = refused(path)
    assert "truncated" in text or "empty" in text or "is text" in text


@given(head=st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_arbitrary_bytes_end_in_a_clear_refusal(tmp_path_factory, head):
    path = tmp_path_factory.getbasetemp() / "arbitrary.bin"
    path.write_bytes(head)
    assert str(path) in refused(path)


def test_a_size_fault_tells_expected_found_and_all_dimensions(tmp_path):
    path = write_checkpoint(tmp_path)
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-5])
    text = refused(path)
    assert f"expected {whole:,} bytes, found {whole - 5:,}" in text
    assert "within freq_cis_imag" in text
    for said in ("dim 8", "hidden_dim 12", "n_layers 2", "n_heads 4", "n_kv_heads 2", "vocab_size 10", "seq_len 6"):
        assert said in text


def test_trailing_bytes_are_refused_with_their_number(tmp_path):
    path = write_checkpoint(tmp_path, version=1)
    path.write_bytes(path.read_bytes() + b"abc")
    assert "3 trailing bytes" in refused(path)


@pytest.mark.parametrize("version", [0, 1])
def test_all_absurd_dimensions_are_told_at_once(tmp_path, version):
    text = refused(patched(tmp_path, version, dim=0, n_layers=-3, seq_len=2**31 - 1))
    assert len(text.splitlines()) == 3
    assert "dim is 0" in text
    assert "n_layers is -3" in text
    assert "seq_len is 2,147,483,647" in text


def test_dimensions_that_do_not_divide_are_refused(tmp_path):
    text = refused(patched(tmp_path, 1, n_heads=3, n_kv_heads=2))
    assert "dim 8 is no multiple of n_heads 3" in text
    assert "n_heads 3 is no multiple of n_kv_heads 2" in text


def test_an_odd_head_size_is_refused(tmp_path):
    assert "odd head size 1" in refused(patched(tmp_path, 0, n_heads=8, n_kv_heads=8))


def test_a_negative_vocabulary_means_an_own_classifier_in_version_0_only(tmp_path):
    model = load_model(str(write_checkpoint(tmp_path, Dims(shared=False), 0)))
    assert model.vocab_size == 10
    assert model.classifier_name == "wcls"
    assert "vocab_size is -10" in refused(patched(tmp_path, 1, vocab_size=-10))


@pytest.mark.parametrize(
    ("version", "said"),
    [(2, "version 2 checkpoint (int8"), (3, "is llama2.c version 3"), (0, "is llama2.c version 0:")],
)
def test_other_versions_are_refused_by_name(tmp_path, version, said):
    path = tmp_path / "q.bin"
    path.write_bytes(struct.pack("<Ii", 0x616B3432, version).ljust(400, b"\0"))
    assert said in refused(path)


def test_a_damaged_version_1_header_is_refused(tmp_path):
    path = write_checkpoint(tmp_path, version=1)
    data = bytearray(path.read_bytes())
    data[36], data[200] = 7, 1
    path.write_bytes(data)
    text = refused(path)
    assert "shared_classifier is 7" in text
    assert "bytes 37 to 255" in text


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (b"PK\x03\x04rest", "zip archive"),
        (b"\x80\x02}q\x00", "pickle"),
        (b"ak42\0\0\0\1", "big-endian"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"schema: kvwaybill/fleet/1\n", "is text"),
        (struct.pack("<ifi", 7, 0.0, 5) + b"<unk>" + struct.pack("<fi", 0.0, 1) + b"a", "tokenizer"),
        (b"\xff" * 300, "no llama2.c checkpoint"),
    ],
)
def test_other_files_are_named_for_what_they_look_like(tmp_path, head, said):
    path = tmp_path / "model.bin"
    path.write_bytes(head)
    assert said in refused(path)


def test_dim_640_is_not_taken_for_a_pickle(tmp_path):
    dims = Dims(dim=640, hidden_dim=4, n_layers=1, n_heads=4, n_kv_heads=1, vocab_size=3, seq_len=2)
    assert load_model(str(write_checkpoint(tmp_path, dims))).dim == 640


def test_missing_empty_and_unreadable_files_are_refused(tmp_path):
    assert "no such file" in refused(tmp_path / "absent.bin")
    (tmp_path / "empty.bin").write_bytes(b"")
    assert "is empty" in refused(tmp_path / "empty.bin")
    assert "cannot be opened" in refused(tmp_path / ("n" * 300))
    assert "cannot be opened" in refused(str(tmp_path / "nul\0byte"))
    assert "folder without config.json" in refused(tmp_path)


def test_a_file_without_read_permission_is_refused(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path)

    def forbidden(*args):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # The superuser may read everything, so the system's refusal is played.
    monkeypatch.setattr(source.os, "open", forbidden)
    assert "cannot be opened: Permission denied" in refused(path)


def test_a_named_pipe_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refused(tmp_path / "pipe")


def test_a_path_with_control_characters_is_escaped_in_messages(tmp_path):
    assert "\\x1b" in refused(tmp_path / "a\x1b[31m.bin")


def test_the_digest_of_a_large_file_covers_header_and_size(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path)
    monkeypatch.setattr(source, "FULL_DIGEST_LIMIT", 100)
    data = path.read_bytes()
    assert load_model(str(path)).digest == hashlib.sha256(data[:28] + str(len(data)).encode()).hexdigest()


def test_loading_a_checkpoint_imports_nothing_heavy(tmp_path):
    path = write_checkpoint(tmp_path)
    code = (
        "import sys; from fleet.checkpoints import load_model; load_model(sys.argv[1]); load_model(None);"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'pydantic', 'numba', 'networkx')))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0
