"""GGUF headers: what is read equals what the format's own library wrote; hostile files end in words."""

from __future__ import annotations

import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints.gguf_cursor import Skipped
from fleet.checkpoints.gguf_header import read_gguf_file
from fleet.checkpoints.gguf_types import GGML_TYPES, UNSIZED
from fleet.errors import DescriptionError
from tests.fleet.gguf_files import ARRAY, BOOL, STRING, U32, data_bytes, gguf_bytes, header, info, text, value
from tests.work import counted

ONE = {"a": ((4, 8), 0)}


def written(tmp_path, data, name="a.gguf"):
    path = tmp_path / name
    path.write_bytes(data)
    return str(path)


def refused(path):
    with pytest.raises(DescriptionError) as caught:
        read_gguf_file(str(path))
    return str(caught.value)


def read_or_words(path):
    try:
        return read_gguf_file(str(path))
    except DescriptionError as error:
        return str(error)


def test_what_the_library_writes_is_read_back_for_every_type(tmp_path):
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(3)
    writer.add_head_count_kv([4, 0, 2])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_name("Größe")
    writer.add_bool("flag", True)
    writer.add_token_list([f"token{n}" for n in range(5000)])
    writer.add_token_scores([0.5] * 20_000)
    expected = {}
    for kind, (block, nbytes) in gguf.GGML_QUANT_SIZES.items():
        if int(kind) in UNSIZED:
            continue
        raw = np.zeros((3, 5, 2 * nbytes), np.uint8)
        writer.add_tensor(f"t.{kind.name}", raw, raw_dtype=kind)
        expected[f"t.{kind.name}"] = ((3, 5, 2 * block), kind.name, raw.nbytes)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = read_gguf_file(str(path))
    assert {t.name: (t.shape, t.dtype, t.nbytes) for t in stored.tensors} == expected
    assert {kind.name for kind in GGML_TYPES.values()} == {dtype for _, dtype, _ in expected.values()}
    assert stored.nbytes == sum(nbytes for _, _, nbytes in expected.values())
    assert stored.metadata["general.name"] == "Größe"
    assert stored.metadata["llama.attention.head_count_kv"] == (4, 0, 2)
    assert stored.metadata["flag"] is True
    assert stored.metadata["tokenizer.ggml.tokens"] == Skipped(5000)
    assert stored.metadata["tokenizer.ggml.scores"] == Skipped(20_000)
    assert stored.warnings == ()


def test_our_own_writer_is_read_by_the_library(tmp_path):
    gguf = pytest.importorskip("gguf")
    tensors = {"a": ((4, 8), 0), "b": ((2, 64), 8), "c": ((3,), 1)}
    path = written(tmp_path, gguf_bytes({"general.architecture": "llama", "x": [1, 2]}, tensors))
    theirs = {t.name: (tuple(int(n) for n in t.shape[::-1]), int(t.n_bytes)) for t in gguf.GGUFReader(path).tensors}
    assert {t.name: (t.shape, t.nbytes) for t in read_gguf_file(path).tensors} == theirs


@pytest.mark.parametrize("alignment", [1, 8, 32, 4096])
def test_alignment_is_that_of_the_file(tmp_path, alignment):
    tensors = {"a": ((3,), 24), "b": ((5,), 24)}
    path = written(tmp_path, gguf_bytes({"general.alignment": alignment}, tensors, alignment=alignment))
    assert read_gguf_file(path).nbytes == 8


def test_version_2_is_read(tmp_path):
    data = bytearray(gguf_bytes({"a": 1}, ONE))
    data[4] = 2
    assert read_gguf_file(written(tmp_path, bytes(data))).nbytes == 128


@pytest.mark.parametrize("kind", [9, 31, 77, 2**31])
def test_a_type_that_is_not_known_has_no_bytes_and_is_told(tmp_path, kind):
    data = header(2, 0) + info("a", [4, 32], kind, 0) + info("b", [8], 0, 320)
    stored = read_gguf_file(written(tmp_path, data + bytes(-len(data) % 32) + bytes(352)))
    assert [t.nbytes for t in stored.tensors] == [None, 32]
    assert stored.nbytes is None
    assert f"{UNSIZED.get(kind, f'type {kind}')} (1 tensors) is not known" in stored.unknown[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GGUF", "is truncated"),
        (b"GGML" + bytes(20), "is no GGUF file"),
        (header(0, 0, version=1), "version 1"),
        (header(0, 0, version=4), "GGUF version 4"),
        (header(0, 0, version=0), "GGUF version 0"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"FUGG" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(0, 0)[:-3], "metadata_kv_count is truncated"),
        (header(2**60, 0), f"tensor_count is {2**60:,}"),
        (header(0, 2**60), f"metadata_kv_count is {2**60:,}"),
        (header(2, 0) + bytes(8), "more than the file"),
        (header(0, 1) + struct.pack("<Q", 2**60) + bytes(9), "at most 65,535"),
        (header(0, 1) + text("k") + struct.pack("<I", 13) + bytes(9), "k has value type 13"),
        (header(0, 1) + text("k") + struct.pack("<IQ", STRING, 2**60) + bytes(9), f"{2**60:,} bytes are announced"),
        (header(0, 1) + text("k") + value(STRING, b"\xff\xfe"), "k is not UTF-8"),
        (header(0, 1) + text(b"\xff") + value(U32, 1), "is not UTF-8"),
        (header(0, 1) + text("k") + struct.pack("<IB", BOOL, 2), "k is 2: must be true"),
        (header(0, 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**61), "bytes are announced"),
        (header(0, 1) + text("k") + struct.pack("<IIQ", ARRAY, U32, 2**62), "bytes are announced"),
        (header(0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 99, 1), "list of value type 99"),
        (header(0, 1) + text("k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 9, "nested deeper"),
        (header(0, 2) + (text("k") + value(U32, 1)) * 2, "k stands twice"),
        (header(2, 0) + info("a", [2], 0, 0) * 2 + bytes(64), "a stands twice"),
        (header(1, 0) + info("a", [1] * 5, 0, 0), "has 5 axes"),
        (header(1, 0) + info("a", [2**40, 2**40], 0, 0), "64 bits"),
        (header(1, 0) + info("a", [0, 2**63], 0, 0), "64 bits"),
        (header(1, 0) + info("a", [4, 33], 8, 0), "rows of 33 elements, Q8_0 stores blocks of 32"),
        (header(1, 0) + info("x" * 2000, [4], 0, 0), "at most 1,024"),
        (header(1, 0) + info("a", [4], 0, 2**60), "begins at"),
        (header(1, 1) + text("general.alignment") + value(U32, 24) + info("a", [4], 0, 0), "general.alignment is 24"),
        (header(1, 1) + text("general.alignment") + value(U32, 0) + info("a", [4], 0, 0), "power of two"),
        (header(1, 1) + text("general.alignment") + value(STRING, "x") + info("a", [4], 0, 0), "power of two"),
        (gguf_bytes({}, ONE)[:-1], "truncated: it ends 1 bytes early, within a"),
        (gguf_bytes({}, ONE, data=False), "truncated: it ends 128 bytes early"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_in_words(tmp_path, data, words):
    path = written(tmp_path, data)
    message = refused(path)
    assert words in message
    assert message.startswith(path)


@pytest.mark.parametrize("offsets", [(0, 64), (0, 16), (32, 64), (0, 0), (32, 32)])
def test_holes_and_overlaps_are_refused(tmp_path, offsets):
    data = header(2, 0) + info("a", [8], 0, offsets[0]) + info("b", [8], 0, offsets[1])
    assert "of the data, expected" in refused(written(tmp_path, data + bytes(512)))


def test_bytes_behind_the_last_tensor_are_told(tmp_path):
    (warning,) = read_gguf_file(written(tmp_path, gguf_bytes({}, ONE) + b"x")).warnings
    assert "1 bytes lie behind the last tensor" in warning


def test_a_sparse_file_of_100_gb_with_a_large_vocabulary_is_read_by_its_header(tmp_path):
    tensors = {f"blk.{n}.w": ((50_000, 20_000), 30) for n in range(50)}
    keys = {"tokenizer.ggml.tokens": [f"token {n}" for n in range(250_000)], "tokenizer.ggml.scores": [0.0] * 250_000}
    path = written(tmp_path, gguf_bytes(keys, tensors, data=False))
    size = os.path.getsize(path) + 50 * 2 * 10**9
    os.truncate(path, size)
    stored, calls = counted(lambda: read_gguf_file(path))
    assert calls < 1_000_000, "four for each word at most"
    assert stored.nbytes == 100 * 10**9


@pytest.mark.parametrize(
    "start",
    [
        header(0, 1) + text("k") + struct.pack("<IIQ", ARRAY, STRING, 2**33),
        header(0, 1) + text("k") + struct.pack("<IIQ", ARRAY, ARRAY, 2**33),
        header(0, 1) + text("k") + struct.pack("<IIQ", ARRAY, 0, 2**36),
        header(0, 1) + text("k") + struct.pack("<IQ", STRING, 2**36),
        header(10**6, 0),
        header(0, 2**16),
        header(1, 0),
    ],
)
def test_a_hostile_count_in_a_large_file_ends_soon_and_takes_little_memory(tmp_path, start):
    path = written(tmp_path, start)
    os.truncate(path, 100 << 30)
    tracemalloc.start()
    _, calls = counted(lambda: read_or_words(path))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert calls < 4_000_000, "sixty for each key at most"
    assert peak < 32 << 20


@pytest.mark.parametrize("width", [0, 1, 3, 8, 70_000])
def test_long_lists_of_strings_are_walked_over_every_edge_of_the_window(tmp_path, width):
    count = 2_000 if width > 10_000 else 150_000
    data = header(0, 2) + text("k") + value(ARRAY, (STRING, ["x" * width] * count)) + text("z") + value(U32, 7)
    stored = read_gguf_file(written(tmp_path, data))
    assert stored.metadata == {"k": Skipped(count), "z": 7}


def test_data_bytes_are_those_of_the_table():
    assert data_bytes(ONE) == 128


_GOOD = gguf_bytes(
    {"general.architecture": "llama", "a": [1, 2], "t": ["x", "yy"], "f": 0.5}, {**ONE, "b": ((2, 32), 2)}
)


@given(
    edits=st.lists(st.tuples(st.integers(0, 320), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.integers(0, 2 * len(_GOOD)),
)
@settings(max_examples=500, deadline=None)
def test_a_damaged_file_is_read_or_refused_never_more(tmp_path_factory, edits, cut):
    data = bytearray(_GOOD)
    for at, piece in edits:
        data[at : at + len(piece)] = piece
    path = tmp_path_factory.getbasetemp() / "fuzz.gguf"
    path.write_bytes(bytes(data[:cut]))
    found = read_or_words(path)
    if isinstance(found, str):
        assert found.startswith(str(path))
    else:
        assert found.nbytes is None or found.nbytes <= len(data)


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_any_bytes_behind_the_counts_are_read_or_refused(tmp_path_factory, raw, n_tensors, n_keys):
    path = tmp_path_factory.getbasetemp() / "any.gguf"
    path.write_bytes(header(n_tensors, n_keys) + raw)
    assert read_or_words(path)
