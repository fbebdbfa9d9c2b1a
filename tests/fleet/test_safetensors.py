"""safetensors headers: what is read equals what the format's own library wrote; hostile files end in words."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints.safetensors_header import DTYPE_BITS, MAX_HEADER_BYTES, read_safetensors_file
from fleet.errors import DescriptionError
from tests.fleet.tensor_files import entry, laid_out, safetensors_bytes
from tests.work import counted

SIXTEEN = entry("F32", [2, 2], 0, 16)


def written(tmp_path, header, data=0):
    path = tmp_path / "a.safetensors"
    path.write_bytes(safetensors_bytes(header, data))
    return str(path)


def refused(path):
    with pytest.raises(DescriptionError) as caught:
        read_safetensors_file(str(path))
    return str(caught.value)


def read_or_words(path):
    try:
        return read_safetensors_file(str(path))
    except DescriptionError as error:
        return str(error)


@given(
    arrays=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
            lambda s: s != "__metadata__"
        ),
        st.tuples(
            st.lists(st.integers(0, 5), max_size=4),
            st.sampled_from(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?", "c8"]),
        ),
        min_size=1,
        max_size=8,
    ),
    metadata=st.none() | st.dictionaries(st.text(max_size=8), st.text(max_size=8), min_size=1, max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_what_the_library_writes_is_read_back(tmp_path_factory, arrays, metadata):
    library = pytest.importorskip("safetensors.numpy")
    made = {name: np.zeros(shape, kind) for name, (shape, kind) in arrays.items()}
    path = tmp_path_factory.mktemp("st") / "a.safetensors"
    library.save_file(made, path, metadata=metadata)
    stored = read_safetensors_file(str(path))
    assert {t.name: (t.shape, t.nbytes) for t in stored.tensors} == {n: (a.shape, a.nbytes) for n, a in made.items()}
    assert stored.nbytes == sum(a.nbytes for a in made.values())
    assert dict(stored.metadata) == (metadata or {})
    assert sum(row.count for row in stored.by_dtype().values()) == len(made)


def test_the_library_takes_every_listed_type_and_so_do_we(tmp_path):
    library = pytest.importorskip("safetensors")
    for dtype, bits in DTYPE_BITS.items():
        data = safetensors_bytes({"t": entry(dtype, [3, 8], 0, 3 * bits)}, 3 * bits)
        (name, row), *_ = library.deserialize(data)
        assert (name, row["dtype"], row["shape"]) == ("t", dtype, [3, 8])
        (tensor,) = read_safetensors_file(written(tmp_path, {"t": entry(dtype, [3, 8], 0, 3 * bits)}, 3 * bits)).tensors
        assert (tensor.dtype, tensor.nbytes, tensor.n_elements) == (dtype, 3 * bits, 24)


def test_tensors_come_in_the_order_of_the_file(tmp_path):
    header = {"late": entry("U8", [4], 4, 8), "early": entry("BF16", [2], 0, 4), "none": entry("F32", [0, 9], 4, 4)}
    names = [t.name for t in read_safetensors_file(written(tmp_path, header, 8)).tensors]
    assert names == ["early", "none", "late"]


def test_a_type_that_is_not_known_keeps_the_bytes_of_the_file_and_is_told(tmp_path):
    stored = read_safetensors_file(written(tmp_path, {"t": entry("F2_E1M0", [16], 0, 4)}, 4))
    assert stored.nbytes == 4
    assert "F2_E1M0" in stored.warnings[0]
    assert "not checked" in stored.warnings[0]


@pytest.mark.parametrize(
    ("header", "data", "words"),
    [
        ({"t": entry("F32", [2, 2], 0, 12)}, 12, "takes 12 bytes, but F32 [2, 2] needs 16"),
        ({"t": entry("F4", [3], 0, 2)}, 2, "no whole number of bytes"),
        ({"t": SIXTEEN}, 15, "truncated by 1 bytes"),
        ({"t": SIXTEEN}, 17, "1 bytes lie behind the last tensor"),
        ({}, 3, "3 bytes lie behind"),
        ({"t": SIXTEEN, "u": entry("U8", [4], 20, 24)}, 24, "u leaves a hole of 4 bytes after t"),
        ({"t": SIXTEEN, "u": entry("U8", [4], 14, 18)}, 18, "u overlaps t"),
        ({"t": entry("U8", [4], 4, 8)}, 8, "hole of 4 bytes after the header"),
        ({"t": entry("F32", [-2, -2], 0, 16)}, 16, "shape is [-2, -2]"),
        ({"t": entry("F32", [2.0, 2], 0, 16)}, 16, "shape is"),
        ({"t": entry("F32", [True, 4], 0, 16)}, 16, "shape is"),
        ({"t": entry("F32", ["4"], 0, 16)}, 16, "shape is"),
        ({"t": entry("F32", [1] * 9, 0, 4)}, 4, "at most 8"),
        ({"t": entry("F32", [2**33, 2**33], 0, 16)}, 16, "64 bits"),
        ({"t": entry("F32", [2**64], 0, 16)}, 16, "whole numbers"),
        ({"t": entry("F32", [4], 16, 0)}, 16, "begin <= end"),
        ({"t": entry("F32", [4], -16, 0)}, 16, "data_offsets are"),
        ({"t": {"dtype": "F32", "shape": [4], "data_offsets": [16]}}, 16, "data_offsets are [16]"),
        ({"t": {"dtype": 7, "shape": [4], "data_offsets": [0, 16]}}, 16, "dtype is 7"),
        ({"t": {"dtype": "F32", "shape": [4]}}, 16, "must have dtype, shape and data_offsets"),
        ({"t": SIXTEEN | {"more": 1}}, 16, "and nothing else"),
        ({"t": {"dtype": "F32", "shape": [4], "data_offsets": {"a": 1}}}, 16, "no flat object"),
        ({"t": [1]}, 0, "no flat object"),
        ({"t": "x" * 5000}, 0, "no flat object"),
        ({"t": SIXTEEN | {"dtype": "F" * 5000}}, 16, "at most 4096 bytes"),
        ({"x" * 5000: SIXTEEN}, 16, "at most 4,096 bytes"),
        ({"__metadata__": {"a": 1}}, 0, "in quotes was expected"),
        ({"__metadata__": []}, 0, "{ was expected"),
        ('{"t":{"dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16]}}', 16, "each once"),
        (f'{{"t":{json.dumps(SIXTEEN)},"t":{json.dumps(SIXTEEN)}}}', 16, "t stands twice"),
        (f'{{"t":{json.dumps(SIXTEEN)},}}', 16, "in quotes was expected"),
        (f'{{"t":{json.dumps(SIXTEEN)}', 16, "no valid JSON"),
        (f'{{"t":{json.dumps(SIXTEEN)}}} x', 16, "does not end with its object"),
        ('{"t":{"dtype":"F32","shape":' + "[" * 2000 + "]" * 2000 + ',"data_offsets":[0,1]}}', 1, "t"),
        ('{"t":{"dtype":"F32","shape":[' + "9" * 4040 + '],"data_offsets":[0,1]}}', 1, "t"),
        ('{"t":{"dtype":"F32","shape":[NaN],"data_offsets":[0,Infinity]}}', 1, "shape is [nan]"),
        (b'{"\xff":1}', 0, "is not UTF-8"),
        (b'{"t":{"dtype":"\xff"}}', 0, "no valid JSON in UTF-8"),
        ("[]", 0, "no JSON object"),
        ('{"\\u12":1}', 0, "malformed"),
    ],
)
def test_a_wrong_header_is_refused_in_words(tmp_path, header, data, words):
    path = written(tmp_path, header, data)
    message = refused(path)
    assert words in message
    assert message.startswith(path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is truncated: 0 bytes"),
        (b"\x08\0\0", "is truncated: 3 bytes"),
        (struct.pack("<Q", 2**60) + b"{}", f"says that it has {2**60:,} bytes; the format allows 100,000,000"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "the format allows"),
        (struct.pack("<Q", 100) + b"{}", "is truncated: 100 bytes are announced, 2 are there"),
        (struct.pack("<Q", 0) + b"{}", "no JSON object"),
        (struct.pack("<Q", 1) + b"{", "no JSON object"),
    ],
)
def test_a_wrong_length_is_refused_in_words(tmp_path, data, words):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    assert words in refused(path)


def test_all_faults_of_a_header_are_told_at_once(tmp_path):
    header = {"a": entry("F32", [3], 0, 16), "b": entry("F32", [-1], 16, 32), "c": entry("F32", [4], 40, 56)}
    assert len(refused(written(tmp_path, header, 56)).splitlines()) >= 3


def test_a_million_faults_end_the_walk_after_some_twenty(tmp_path):
    header = {f"t{i}": entry("F32", [-1], 0, 0) for i in range(20_000)}
    path = written(tmp_path, header)
    told, calls = counted(lambda: refused(path))
    assert len(told.splitlines()) <= 22
    assert calls < 10_000, "less than one call for each tensor"


def test_a_sparse_file_of_100_gb_is_read_by_its_header_alone(tmp_path):
    layers = {f"model.layers.{i}.mlp.w": ("BF16", [50_000, 10_000], 10**9) for i in range(100)}
    header, size = laid_out(layers)
    path = tmp_path / "big.safetensors"
    path.write_bytes(safetensors_bytes(header))
    os.truncate(path, path.stat().st_size + size)
    tracemalloc.start()
    stored, calls = counted(lambda: read_safetensors_file(str(path)))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert stored.nbytes == 100 * 10**9
    assert calls < 100_000, "a thousand for each tensor at most"
    assert peak < 1 << 20


@pytest.mark.parametrize("filler", [b" ", b"[", b'{"a":', b"1,", b'"\\n', b'"a\\\\'])
def test_the_largest_header_of_garbage_needs_little_more_than_itself(tmp_path, filler):
    raw = (b'{"__metadata__":{"a":' + filler * (MAX_HEADER_BYTES // len(filler)))[:MAX_HEADER_BYTES]
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw)) + raw)
    del raw
    tracemalloc.start()
    message = refused(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "no valid JSON" in message
    assert peak < 2.2 * MAX_HEADER_BYTES


_GOOD = safetensors_bytes(
    {"__metadata__": {"format": "pt"}, "a": SIXTEEN, "b": entry("BF16", [4, 2], 16, 32)}, bytes(range(32))
)


@given(
    edits=st.lists(st.tuples(st.integers(0, len(_GOOD) - 1), st.binary(min_size=0, max_size=6)), max_size=4),
    cut=st.integers(0, 2 * len(_GOOD)),
)
@settings(max_examples=400, deadline=None)
def test_a_damaged_file_is_read_or_refused_never_more(tmp_path_factory, edits, cut):
    data = bytearray(_GOOD)
    for at, piece in edits:
        data[at : at + len(piece)] = piece
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(bytes(data[:cut]))
    stored = read_or_words(path)
    if isinstance(stored, str):
        assert stored.startswith(str(path))
        return
    assert stored.nbytes == len(data) - 8 - struct.unpack_from("<Q", data)[0]


@given(st.binary(max_size=300), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_behind_a_length_are_read_or_refused(tmp_path_factory, raw, length):
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(struct.pack("<Q", length) + b"{" + raw)
    assert read_or_words(path)
