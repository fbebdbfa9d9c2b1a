"""Exports of Nsight Systems: tables and columns that differ by version, labels, cut and hostile files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from scenarios.observations.nsight import kind_of, read

LABELS = [(1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"), (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host")]
LABELS += [(8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"), (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer")]
COLUMNS = '"start" INTEGER, "end" INTEGER, deviceId INTEGER, bytes INTEGER, copyKind INTEGER'
ENUM = "CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER PRIMARY KEY, name TEXT, label TEXT)"
META = "CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT)"


def export(tmp_path, rows=(), *, columns=COLUMNS, labels=LABELS, more=(), schema="3.11.1"):
    path = tmp_path / "report.sqlite"
    path.unlink(missing_ok=True)
    database = sqlite3.connect(path)
    database.execute(META)
    database.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', ?)", (schema,))
    if columns is not None:
        database.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns})")
        marks = ", ".join("?" * (columns.count(",") + 1))
        database.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({marks})", rows)
    if labels is not None:
        database.execute(ENUM)
        database.executemany("INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (?, ?, ?)", labels)
    for statement in more:
        database.execute(statement)
    database.commit()
    database.close()
    return str(path)


def reading(path):
    return read(path, "report.sqlite", None)


def fault(path):
    with pytest.raises(DescriptionError) as caught:
        reading(path)
    return str(caught.value)


def test_copies_are_summed_exactly_by_kind_and_device(tmp_path):
    rows = [(0, 1000, 0, 4096, 1), (1000, 3000, 0, 4096, 1), (0, 500, 1, 10, 2), (0, 10, 1, 7, 8)]
    seen = reading(export(tmp_path, rows)).observations
    told = [(o.kind, o.src, o.dst, o.transfers.whole(), o.bytes.whole()) for o in seen]
    assert told == [
        ("h2d", "host", "gpu:0", (2, 2), (8192, 8192)),
        ("d2h", "gpu:1", "host", (1, 1), (10, 10)),
        ("d2d", "gpu:1", "gpu:1", (1, 1), (7, 7)),
    ]
    assert float(seen[0].seconds.low) == 3e-6
    assert [float(end) for end in (seen[0].rates.low, seen[0].rates.high)] == [2.048e9, 4.096e9]
    assert seen[0].version == "schema 3.11.1"


def test_kinds_come_from_labels_and_never_from_numbers(tmp_path):
    swapped = [(1, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"), (77, None, "PtoP")]
    rows = [(0, 1, 0, 5, 1), (0, 1, 0, 6, 77), (0, 1, 0, 7, 3)]
    seen = reading(export(tmp_path, rows, labels=swapped))
    assert [o.kind for o in seen.observations] == ["d2h", None, "p2p"]
    assert "copyKind 3 has no label" in seen.warnings[0]
    bare = reading(export(tmp_path, rows, labels=None))
    assert {o.kind for o in bare.observations} == {None}
    assert "of unknown kind" in bare.warnings[0]
    torn = reading(export(tmp_path, rows, labels=[(1, "CUDA_MEMCPY_KIND_DTOH", "Host-to-Device")]))
    assert "copyKind 1 is named d2h and h2d" in torn.warnings[0]


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("Host-to-Device", "h2d"), ("HtoD", "h2d"), ("H2D", "h2d"), ("CUDA_MEMCPY_KIND_HTOD", "h2d"),
        ("Host-to-Array", "h2d"), ("Array-to-Host", "d2h"), ("Device-to-Array", "d2d"), ("Peer-to-Peer", "p2p"),
        ("Host-to-Host", "h2h"), ("Unified Host-to-Device", "unified"), ("Unknown", None), ("", None),
    ],
)  # fmt: skip
def test_every_spelling_of_a_kind_is_known(label, kind):
    assert kind_of(label) == kind


def test_peer_copies_have_ends_only_where_the_export_has_the_columns(tmp_path):
    wide = COLUMNS + ", srcDeviceId INTEGER, dstDeviceId INTEGER, globalPid INTEGER"
    rows = [(0, 1, 0, 9, 10, 0, 1, 5), (0, 1, 0, 9, 10, 0, 1, 6)]
    seen = reading(export(tmp_path, rows, columns=wide)).observations
    assert [(o.src, o.dst, o.rank) for o in seen] == [("gpu:0", "gpu:1", "process 1"), ("gpu:0", "gpu:1", "process 2")]
    (narrow,) = reading(export(tmp_path, [(0, 1, 0, 9, 10)])).observations
    assert (narrow.src, narrow.dst) == (None, None)


def test_an_export_of_three_columns_has_no_times_and_no_devices(tmp_path):
    (seen,) = reading(
        export(tmp_path, [(512, 2, 1)], columns="bytes INTEGER, copyKind INTEGER, x INTEGER")
    ).observations
    assert (seen.src, seen.dst, seen.seconds, seen.bytes.whole()) == (None, "host", None, (512, 512))


def test_no_table_of_copies_is_none_made_only_where_cuda_was_traced(tmp_path):
    kernels = ["CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)"]
    (zero,) = reading(export(tmp_path, columns=None, more=kernels)).observations
    assert zero.bytes.whole() == (0, 0)
    untraced = reading(export(tmp_path, columns=None))
    assert untraced.observations[0].bytes is None
    assert "was not traced" in untraced.warnings[-1]


def test_an_unknown_schema_version_is_told(tmp_path):
    seen = reading(export(tmp_path, [(0, 1, 0, 5, 1)], schema="9.0.0"))
    assert "schema version 9.0.0 is unknown" in seen.warnings[0]


@pytest.mark.parametrize(
    "row", [(0, 1, 0, "many", 1), (0, 1, 0, -5, 1), (5, 1, 0, 5, 1), (0, 1, 0, None, 1), (0, 1, 0, 1.5, 1)]
)
def test_values_that_are_no_figures_are_told_not_summed(tmp_path, row):
    assert "1 rows of CUPTI_ACTIVITY_KIND_MEMCPY" in fault(export(tmp_path, [(0, 1, 0, 1, 1), row]))


def test_a_version_without_bytes_names_the_columns_it_has(tmp_path):
    told = fault(export(tmp_path, columns='"start" INTEGER, size INTEGER'))
    assert "no column bytes and copyKind (it has size, start)" in told


def test_a_file_cut_at_any_page_is_told(tmp_path):
    path = export(tmp_path, [(i, i + 1, 0, 5, 1) for i in range(2000)])
    whole = Path(path).read_bytes()
    for size in (16, 60, 100, 4096, len(whole) // 2, len(whole) - 1):
        Path(path).write_bytes(whole[:size])
        assert "is cut" in fault(path)


def test_an_export_whose_changes_lie_beside_it_is_told(tmp_path):
    path = export(tmp_path, [(0, 1, 0, 5, 1)])
    (tmp_path / "report.sqlite-wal").write_bytes(b"x")
    assert "has not ended" in fault(path)


def test_a_view_in_place_of_the_table_computes_nothing(tmp_path):
    view = (
        "CREATE VIEW CUPTI_ACTIVITY_KIND_MEMCPY AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) "
        'SELECT i AS bytes, 1 AS copyKind, 0 AS "start", 1 AS "end" FROM n'
    )
    assert reading(export(tmp_path, columns=None, more=[view])).observations[0].bytes is None


def test_a_computed_column_is_no_column(tmp_path):
    columns = "copyKind INTEGER, bytes INTEGER GENERATED ALWAYS AS (length(zeroblob(1000000000)))"
    table = f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({columns})"
    rows = "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY (copyKind) VALUES (1)"
    assert "no column bytes" in fault(export(tmp_path, columns=None, more=[table, rows]))


def test_another_database_and_a_broken_one_are_told(tmp_path):
    path = tmp_path / "other.sqlite"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE cats (name TEXT)")
    database.commit()
    database.close()
    assert "no export of Nsight Systems" in fault(str(path))
    broken = bytearray(path.read_bytes())
    broken[100:4096] = b"\xff" * 3996
    path.write_bytes(bytes(broken))
    assert "cannot be read" in fault(str(path))


def test_sums_beyond_64_bits_are_told(tmp_path):
    assert "overflow" in fault(export(tmp_path, [(0, 1, 0, 2**62, 1)] * 3))


def test_labels_that_are_numbers_of_strings_are_looked_up(tmp_path):
    more = [
        "CREATE TABLE ENUM_CUDA_MEMCPY_OPER (id INTEGER, name INTEGER, label INTEGER)",
        "CREATE TABLE StringIds (id INTEGER, value TEXT)",
        "INSERT INTO StringIds VALUES (5, 'CUDA_MEMCPY_KIND_PTOP'), (6, 'Peer-to-Peer')",
        "INSERT INTO ENUM_CUDA_MEMCPY_OPER VALUES (10, 5, 6), (1, 99, NULL)",
    ]
    seen = reading(export(tmp_path, [(0, 8, 0, 64, 10), (0, 8, 0, 32, 1)], labels=None, more=more)).observations
    assert [(one.kind, int(one.bytes.low)) for one in seen] == [(None, 32), ("p2p", 64)]


def test_columns_and_tables_in_another_case_are_the_same(tmp_path):
    columns = '"Start" INTEGER, "END" INTEGER, DeviceID INTEGER, Bytes INTEGER, COPYKIND INTEGER'
    (seen,) = reading(export(tmp_path, [(0, 8, 1, 64, 2)], columns=columns)).observations
    assert (seen.kind, seen.src, int(seen.bytes.low), float(seen.seconds.low)) == ("d2h", "gpu:1", 64, 8e-9)
    columns = COLUMNS.replace("bytes", "nbytes")
    assert "has no column bytes" in fault(export(tmp_path, [], columns=columns))


def test_a_table_without_rows_is_a_zero_and_copies_in_another_table_are_unknown(tmp_path):
    found = reading(export(tmp_path, []))
    (seen,) = found.observations
    assert (seen.bytes.low, seen.transfers.low) == (0, 0)
    assert any("has no row: CUDA was traced" in warning for warning in found.warnings)
    other = "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY2 (bytes INTEGER, srcDeviceId INTEGER, dstDeviceId INTEGER)"
    for columns in (None, COLUMNS):
        found = reading(export(tmp_path, [], columns=columns, more=[other]))
        assert found.observations[0].bytes is None, "no zero while another table may hold copies"
        assert any("CUPTI_ACTIVITY_KIND_MEMCPY2 may hold copies" in warning for warning in found.warnings)
