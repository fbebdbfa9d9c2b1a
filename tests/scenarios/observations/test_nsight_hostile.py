"""Exports made to mislead: pages that count twice, trees without end, and processes that each count GPUs from 0."""

from __future__ import annotations

import itertools
import sqlite3
import struct

import pytest

from fleet.errors import DescriptionError
from scenarios.observations import nsight, read_observations

PAGE, CELLS = 512, 70
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"


def export(path, columns, rows, more=""):
    """A small export; returns the page where the tree of copies begins."""
    database = sqlite3.connect(path)
    database.executescript(
        f"PRAGMA page_size = {PAGE}; VACUUM; CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);"
        f"CREATE TABLE {COPIES} ({columns}); CREATE TABLE filler (x);"
        "CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER, name TEXT, label TEXT);"
        "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (1, 'CUDA_MEMCPY_KIND_HTOD', 'Host-to-Device');" + more
    )
    for row in rows:
        database.execute(f"INSERT INTO {COPIES} VALUES ({', '.join('?' * len(row))})", row)
    database.executemany("INSERT INTO filler VALUES (?)", [("x" * 400,)] * 20)
    database.commit()
    ((root,),) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (COPIES,)).fetchall()
    database.close()
    return root


def many_times(path, levels):
    """Puts `levels` inner pages above the only leaf of the copies, each of which names the one below 71 times."""
    root = export(path, "start INTEGER, end INTEGER, bytes INTEGER, copyKind INTEGER", [(0, 1, 5, 1)])
    data = bytearray(path.read_bytes())
    last = len(data) // PAGE
    pages = [root, *range(last - levels, last)]
    leaf = data[(root - 1) * PAGE : root * PAGE]
    for page, child in itertools.pairwise(pages):
        inner = bytearray(PAGE)
        struct.pack_into(">BHHHBI", inner, 0, 5, 0, CELLS, PAGE - 5 * CELLS, 0, child)
        for cell in range(CELLS):
            at = PAGE - 5 * (cell + 1)
            struct.pack_into(">H", inner, 12 + 2 * cell, at)
            struct.pack_into(">IB", inner, at, child, cell + 1)
        data[(page - 1) * PAGE : page * PAGE] = inner
    data[(pages[-1] - 1) * PAGE : pages[-1] * PAGE] = leaf
    path.write_bytes(data)


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_a_page_that_stands_in_the_tree_twice_does_not_count_twice(tmp_path, levels):
    """One row of 5 B; sqlite alone would count it 71 times, or, of five levels, for minutes."""
    many_times(tmp_path / "a.sqlite", levels)
    with pytest.raises(DescriptionError, match=f"{COPIES} is damaged"):
        read_observations(str(tmp_path / "a.sqlite"))


def test_a_query_ends_where_its_file_is_too_small_for_the_work(tmp_path, monkeypatch):
    """The bound itself, with the check of pages out of the way."""
    monkeypatch.setattr(nsight, "_check_pages", lambda database, source: None)
    monkeypatch.setattr(nsight, "LEAST_WORK", 300_000)
    many_times(tmp_path / "a.sqlite", 5)
    with pytest.raises(DescriptionError, match="more work than its size allows"):
        read_observations(str(tmp_path / "a.sqlite"))


def test_a_large_export_stays_within_the_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(nsight, "LEAST_WORK", 0)
    columns = "start INTEGER, end INTEGER, bytes INTEGER, copyKind INTEGER"
    export(tmp_path / "a.sqlite", columns, [(0, 1, 1, 1)] * 20_000)
    assert read_observations(str(tmp_path / "a.sqlite")).observations[0].transfers.whole() == (20_000, 20_000)


@pytest.mark.parametrize("known", [True, False])
def test_gpus_of_processes_are_the_machines_or_it_is_said_that_they_are_not(tmp_path, known):
    """Two processes, each with one visible GPU: both call it 0."""
    more = "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);"
    more += "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (4, 0, 71), (6, 0, 72);"
    columns = "start INTEGER, end INTEGER, deviceId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER"
    rows = [(0, 1, 0, pid << 24, 8, 1) for pid in (71, 72)]
    export(tmp_path / "a.sqlite", columns, rows, more if known else "")
    read = read_observations(str(tmp_path / "a.sqlite"))
    assert [seen.dst for seen in read.observations] == (["gpu:4", "gpu:6"] if known else ["gpu:0", "gpu:0"])
    assert any("numbered as each process saw them" in words for words in read.warnings) is not known


def test_a_damaged_schema_that_is_no_text_is_told(tmp_path):
    """sqlite quotes the schema in its message, whatever bytes stand there."""
    path = tmp_path / "a.sqlite"
    export(path, "start INTEGER, end INTEGER, bytes INTEGER, copyKind INTEGER", [])
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE filler", b"CREATE \xacABLE \xff\xfeller"))
    with pytest.raises(DescriptionError, match="cannot be read"):
        read_observations(str(path))
