"""Checkpoints in parts: the index, the files that it names, and every way in which the two can contradict."""

from __future__ import annotations

import json
import os

import pytest

from fleet.checkpoints.safetensors_index import INDEX_NAME, part_of, read_sharded
from fleet.errors import DescriptionError
from tests.fleet.tensor_files import laid_out, safetensors_bytes, write_parts

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
PARTS = {ONE: {"a": ("BF16", [4, 4], 32), "b": ("F32", [2], 8)}, TWO: {"c": ("F8_E4M3", [16], 16)}}


def refused(folder):
    with pytest.raises(DescriptionError) as caught:
        read_sharded(str(folder), INDEX_NAME)
    return str(caught.value)


def test_parts_are_read_as_one_and_sum_to_the_index(tmp_path):
    write_parts(tmp_path, PARTS)
    stored = read_sharded(str(tmp_path), INDEX_NAME)
    assert [(t.name, t.nbytes, t.file) for t in stored.tensors] == [("a", 32, ONE), ("b", 8, ONE), ("c", 16, TWO)]
    assert stored.nbytes == 56
    assert {k: v.nbytes for k, v in stored.by_dtype().items()} == {"BF16": 32, "F32": 8, "F8_E4M3": 16}
    assert stored.warnings == ()


def test_the_digest_changes_with_any_part_and_not_with_the_index(tmp_path):
    write_parts(tmp_path, PARTS)
    before = read_sharded(str(tmp_path), INDEX_NAME).digest
    write_parts(tmp_path, PARTS, metadata={})
    assert read_sharded(str(tmp_path), INDEX_NAME).digest == before
    path = tmp_path / TWO
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    assert read_sharded(str(tmp_path), INDEX_NAME).digest != before


@pytest.mark.parametrize(("said", "found"), [(57, "57"), (0, "0"), (57.0, "57")])
def test_a_total_that_is_not_the_sum_is_told_with_both_figures(tmp_path, said, found):
    write_parts(tmp_path, PARTS, metadata={"total_size": said})
    (warning,) = read_sharded(str(tmp_path), INDEX_NAME).warnings
    assert f"total_size {found} bytes" in warning
    assert "sum to 56" in warning


def test_a_tensor_that_only_a_file_names_is_counted_and_told(tmp_path):
    write_parts(tmp_path, PARTS, weight_map={"a": ONE, "c": TWO})
    stored = read_sharded(str(tmp_path), INDEX_NAME)
    assert stored.nbytes == 56
    assert "does not name b" in stored.warnings[0]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {}}, "is empty: it names no tensor"),
        ({"weight_map": []}, "must map tensors to files"),
        ({"weight_map": {"a": "../a.safetensors"}}, "must be the name of a file in the index's own folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "must be the name of a file"),
        ({"weight_map": {"a": ".."}}, "must be the name of a file"),
        ({"weight_map": {"a": "sub/a.safetensors"}}, "must be the name of a file"),
        ({"weight_map": {"a": "..\\a.safetensors"}}, "must be the name of a file"),
        ({"weight_map": {"a": "C:a"}}, "must be the name of a file"),
        ({"weight_map": {"a": "a\0b"}}, "must be the name of a file"),
        ({"weight_map": {"a": ""}}, "must be the name of a file"),
        ({"weight_map": {"a": "x" * 300}}, "must be the name of a file"),
        ({"weight_map": {"a": 3}}, "must be the name of a file"),
        ({"weight_map": {"a": "absent.safetensors"}}, "absent.safetensors: no such file; download it again"),
        ({"weight_map": {"a": TWO, "b": ONE, "c": TWO}}, f"a should be in {TWO}, but is in {ONE}"),
        ({"weight_map": {"a": ONE, "b": ONE, "c": TWO, "d": TWO}}, "which does not hold it"),
        ({"metadata": {"total_size": -1}}, "must be a number of bytes"),
        ({"metadata": {"total_size": "56"}}, "must be a number of bytes"),
        ({"weight_map": {"a": [[]] * 5000}}, "no flat map"),
        ({"weight_map": {f"t{i}": f"f{i}" for i in range(5000)}}, "more than 4,096 files"),
    ],
)
def test_a_wrong_index_is_refused_in_words(tmp_path, index, words):
    write_parts(tmp_path, PARTS, **index)
    assert words in refused(tmp_path)


def test_the_faults_of_all_parts_are_told_at_once(tmp_path):
    write_parts(tmp_path, PARTS)
    (tmp_path / ONE).write_bytes(b"\0\0")
    (tmp_path / TWO).unlink()
    message = refused(tmp_path)
    assert ONE in message
    assert TWO in message


def test_a_tensor_in_two_parts_is_refused(tmp_path):
    write_parts(tmp_path, PARTS | {TWO: {"a": ("U8", [1], 1), "c": ("U8", [1], 1)}})
    assert f"a is in {ONE} and in {TWO}" in refused(tmp_path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1]", b'{"weight_map":{"a":"x","a":"y"}}'])
def test_an_index_that_is_no_object_is_refused(tmp_path, data):
    (tmp_path / INDEX_NAME).write_bytes(data)
    assert refused(tmp_path).startswith(str(tmp_path))


def test_a_link_out_of_the_folder_is_not_followed(tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "elsewhere.safetensors"
    folder.mkdir()
    write_parts(folder, PARTS)
    (folder / ONE).rename(outside)
    (folder / ONE).symlink_to(outside)
    assert "link out of its folder" in refused(folder)
    os.replace(outside, folder / "kept.safetensors")
    (folder / ONE).unlink()
    (folder / ONE).symlink_to("kept.safetensors")
    assert read_sharded(str(folder), INDEX_NAME).nbytes == 56


def test_an_index_that_is_a_link_out_of_the_folder_is_not_followed(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_parts(folder, PARTS)
    (folder / INDEX_NAME).rename(tmp_path / INDEX_NAME)
    (folder / INDEX_NAME).symlink_to(tmp_path / INDEX_NAME)
    assert "link out of its folder" in refused(folder)


def test_a_link_that_turns_in_a_circle_and_a_pipe_end_in_words(tmp_path):
    write_parts(tmp_path, PARTS)
    (tmp_path / ONE).unlink()
    (tmp_path / ONE).symlink_to(ONE)
    (tmp_path / TWO).unlink()
    os.mkfifo(tmp_path / TWO)
    message = refused(tmp_path)
    assert "link to a file that is absent" in message
    assert "not a regular file" in message


def test_links_into_the_blobs_of_the_cache_are_followed_and_no_others(tmp_path):
    repository = tmp_path / "models--org--name"
    snapshot, blobs = repository / "snapshots" / "abc", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    header, size = laid_out({"a": ("U8", [3], 3)})
    (blobs / "0123").write_bytes(safetensors_bytes(header, size))
    (snapshot / ONE).symlink_to("../../blobs/0123")
    (blobs / "4567").write_text(json.dumps({"weight_map": {"a": ONE}}))
    (snapshot / INDEX_NAME).symlink_to("../../blobs/4567")
    assert read_sharded(str(snapshot), INDEX_NAME).nbytes == 3
    (tmp_path / "0123").write_bytes((blobs / "0123").read_bytes())
    (blobs / "0123").unlink()
    (blobs / "0123").symlink_to(tmp_path / "0123")
    assert "link out of its folder" in refused(snapshot)


def test_part_names_are_recognised():
    assert part_of("model-00002-of-00163.safetensors") == ("model", 2, 163)
    assert part_of("m-Q4_K-00001-of-00003.gguf") == ("m-Q4_K", 1, 3)
    assert part_of("model.safetensors") is None
