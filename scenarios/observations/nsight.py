"""Nsight Systems' sqlite export: every copy that the driver recorded, summed by process, kind and ends.

Tables and columns are asked for, since exports differ by version and a table is made only when it has a row. Kinds are
taken from the label of `ENUM_CUDA_MEMCPY_OPER`, never from the number. Figures are integers of bytes and nanoseconds:
exact. Devices are the machine's ordinals where it has a table of them. RDMA and kernels that store to a peer leave no
such record.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from fractions import Fraction
from urllib.parse import quote

from fleet.errors import DescriptionError
from scenarios.observations.observation import Interval, Observation, Reading, exactly

NAME = "Nsight Systems sqlite"
ENGINE = "nsight"
MAGIC = b"SQLite format 3\0"
MAX_FILE = 16 << 30
MOST_GROUPS = 10_000
LEAST_WORK, WORK_OF_A_BYTE = 20_000_000, 16
"""Steps of sqlite's machine that a file may take: some more than reading every row of its size needs, several times."""
STEP = 100_000
COPIES = "CUPTI_ACTIVITY_KIND_MEMCPY"
KINDS = "ENUM_CUDA_MEMCPY_OPER"
DEVICES = "TARGET_INFO_CUDA_DEVICE"
_KNOWN = re.compile(r"CUPTI_ACTIVITY_KIND_|ENUM_(?:CUDA|NSYS)_|TARGET_INFO_|META_DATA_(?:EXPORT|CAPTURE)$|StringIds$")
_SPELLED = (
    COPIES, KINDS, DEVICES, "META_DATA_EXPORT", "StringIds", "id", "name", "label", "value", "bytes", "copyKind",
    "start", "end", "deviceId", "srcDeviceId", "dstDeviceId", "globalPid", "gpuId", "cudaId", "pid",
)  # fmt: skip
_OTHER_COPIES = re.compile(r"CUPTI_ACTIVITY_KIND_MEMCPY[A-Z0-9_]+")
_SEEN_SCHEMAS = ("2", "3")
_ENDS = ("deviceId", "srcDeviceId", "dstDeviceId", "globalPid")
_ALLOWED = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ)
_FUNCTIONS = ("count", "sum", "min", "max", "typeof")
_MEMORIES = {"host": "h", "h": "h", "device": "d", "d": "d", "array": "d", "a": "d"}
_PAIR = re.compile(r"(host|device|array|[hda])(?:to|2)(host|device|array|[hda])")
_BLIND = (
    "RDMA: a network card that reads device memory makes no record",
    "kernels that store to the memory of a peer",
    "copies inside captured graphs, when whole graphs are traced (--cuda-graph-trace=graph)",
    "processes that were not profiled, and the time outside the capture",
)


def matches(head: bytes) -> bool:
    """Whether the file is a sqlite database."""
    return head.startswith(MAGIC)


def read(path: str, source: str, version: str | None) -> Reading:
    """Copies of each process by kind and ends. DescriptionError for a database that is cut, broken, or no export."""
    _check_file(path, source)
    warnings: list[str] = []
    with _opened(path, source) as database:
        tables = _tables(database)
        if not any(_KNOWN.match(name) for name in tables):
            raise DescriptionError.at(source, "", "is a sqlite database, and no export of Nsight Systems")
        schema = _schema(database, tables, warnings)
        others = sorted(name for name in tables if _OTHER_COPIES.fullmatch(name))
        if others:
            warnings.append(f"{', '.join(others[:3])} may hold copies, too, in a form that was not seen: not counted")
        if COPIES not in tables:
            seen = _no_copies(tables, source, version or schema, warnings)
        else:
            seen = _copies(database, tables, source, version or schema, warnings)
    return Reading(format=NAME, engine=ENGINE, observations=seen, blind=_BLIND, warnings=tuple(warnings))


def _check_file(path: str, source: str) -> None:
    """What sqlite itself would only meet halfway: a cut file, or one whose last changes lie in another file."""
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            header = file.read(100)
        beside = [end for end in ("-wal", "-journal") if os.path.isfile(path + end) and os.path.getsize(path + end)]
    except OSError as error:
        raise DescriptionError.at(source, "", f"cannot be read: {error.strerror or error}") from error
    if size > MAX_FILE:
        raise DescriptionError.at(source, "", f"larger than {MAX_FILE >> 30} GiB; export fewer tables or less time")
    if len(header) < 100:
        raise DescriptionError.at(source, "", f"is cut: a sqlite database of {size:,} B")
    if beside:
        message = f"{os.path.basename(path)}{beside[0]} stands beside it: the export has not ended, or was broken off"
        raise DescriptionError.at(source, "", message)
    page = int.from_bytes(header[16:18], "big")
    page = 65536 if page == 1 else page
    pages = int.from_bytes(header[28:32], "big")
    # The count of pages is valid only if written by the version that wrote last (sqlite's file format, section 1.3).
    if header[24:28] == header[92:96] and pages and size < page * pages:
        message = f"is cut: {size:,} B of {page * pages:,} B that its header states; export it again"
        raise DescriptionError.at(source, "", message)


@contextmanager
def _opened(path: str, source: str) -> Iterator[sqlite3.Connection]:
    """The database, read-only and unable to do anything but read. Its errors are told as those of the file."""
    uri = f"file:{quote(os.path.abspath(path))}?mode=ro&immutable=1"
    most = (LEAST_WORK + WORK_OF_A_BYTE * os.path.getsize(path)) // STEP
    work = 0

    def too_much() -> bool:
        nonlocal work
        work += 1
        return work > most

    try:
        with closing(sqlite3.connect(uri, uri=True)) as database:
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1 << 24)
            database.execute("PRAGMA cell_size_check = ON")
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA mmap_size = 0")
            database.text_factory = _text
            database.set_progress_handler(too_much, STEP)
            database.set_authorizer(_authorize)
            yield database
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite quotes a damaged schema, which need be no UTF-8
        words = "its tables are no plain ones" if "prohibited" in str(error) or "auth" in str(error) else str(error)
        words = "it takes more work than its size allows" if work > most else words
        raise DescriptionError.at(source, "", f"cannot be read: {words}; export it again") from error


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    """Reading only: no file is attached, no setting changed, no function called that a hostile schema could name."""
    fine = action in _ALLOWED or (action == sqlite3.SQLITE_PRAGMA and first in ("table_info", "quick_check"))
    fine = fine or (action == sqlite3.SQLITE_FUNCTION and second in _FUNCTIONS)
    return sqlite3.SQLITE_OK if fine else sqlite3.SQLITE_DENY


def _tables(database: sqlite3.Connection) -> set[str]:
    """Names of plain tables: a view or a virtual table (rootpage 0) could compute anything."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0")
    return _known_spelling({name for (name,) in rows.fetchmany(MOST_GROUPS) if isinstance(name, str)})


def _columns(database: sqlite3.Connection, table: str) -> set[str]:
    rows = database.execute(f'PRAGMA table_info("{table}")').fetchmany(1000)
    return _known_spelling({str(row[1]) for row in rows})


def _known_spelling(names: set[str]) -> set[str]:
    """The names, those that are asked for as they are spelled here: sqlite takes any case for the same."""
    spelled = {name.casefold(): name for name in _SPELLED}
    return {spelled.get(name.casefold(), name) for name in names}


def _schema(database: sqlite3.Connection, tables: set[str], warnings: list[str]) -> str | None:
    """What the export says of itself: product and schema version. One of a major that was not seen is told."""
    if "META_DATA_EXPORT" not in tables or not {"name", "value"} <= _columns(database, "META_DATA_EXPORT"):
        warnings.append("the export does not state its schema version; columns are asked for by name")
        return None
    rows = database.execute('SELECT "name", "value" FROM META_DATA_EXPORT').fetchmany(1000)
    told = {str(name): str(value)[:60] for name, value in rows if value is not None}
    schema = told.get("EXPORT_SCHEMA_VERSION")
    if schema is None:
        warnings.append("the export does not state its schema version; columns are asked for by name")
    elif schema.partition(".")[0] not in _SEEN_SCHEMAS:
        seen = " and ".join(f"{major}.x" for major in _SEEN_SCHEMAS)
        warnings.append(f"schema version {schema} is unknown here ({seen} are); columns are asked for by name")
    product = told.get("EXPORT_PRODUCT_VERSION")
    return ", ".join(part for part in (product, schema and f"schema {schema}") if part) or None


def _no_copies(tables: set[str], source: str, version: str | None, warnings: list[str]) -> tuple[Observation, ...]:
    """No table of copies: none were recorded, where CUDA was traced at all; else nobody knows."""
    traced = sorted(name for name in tables if name.startswith("CUPTI_ACTIVITY_KIND_"))
    none = Interval.exact(0) if traced and not any(map(_OTHER_COPIES.fullmatch, tables)) else None
    if not traced:
        warnings.append("no table of CUDA activity: CUDA was not traced (nsys profile -t cuda), or did nothing")
    elif none is not None:
        lost = f"{COPIES} has no row" if COPIES in tables else f"no table {COPIES}"
        warnings.append(f"{lost}: CUDA was traced ({traced[0]}) and no copy recorded")
    zero = Observation(source=source, engine=ENGINE, version=version, transfers=none, bytes=none, seconds=none)
    return (zero,)


def _copies(
    database: sqlite3.Connection, tables: set[str], source: str, version: str | None, warnings: list[str]
) -> tuple[Observation, ...]:
    columns = _columns(database, COPIES)
    lost = [name for name in ("bytes", "copyKind") if name not in columns]
    if lost:
        there = ", ".join(sorted(columns))[:300]
        message = f"{COPIES} has no column {' and '.join(lost)} (it has {there}): a version that is not known"
        raise DescriptionError.at(source, "", message)
    _check_pages(database, source)
    _check_values(database, columns, source)
    kinds = _kinds(database, tables, warnings)
    ends = [name for name in _ENDS if name in columns]
    rows = _sums(database, columns, ends, source)
    if not rows:
        return _no_copies(tables, source, version, warnings)
    processes = {pid: number for number, pid in enumerate(sorted({row["globalPid"] for row in rows}, key=repr), 1)}
    unknown = {kind for row in rows if isinstance(kind := row["copyKind"], int) and kind not in kinds}
    if unknown and kinds:
        warnings.append(f"copyKind {', '.join(map(str, sorted(unknown)))} has no label in {KINDS}: of unknown kind")
    devices = _devices(database, tables)
    if len(processes) > 1 and not devices:
        warnings.append(f"several processes and no {DEVICES}: devices are numbered as each process saw them")
    for row in rows:
        _renumber(row, devices)
    ranks = {pid: f"process {number}" if len(processes) > 1 else None for pid, number in processes.items()}
    return tuple(
        _observation(row, kinds.get(int(row["copyKind"] or 0)), source, version, ranks[row["globalPid"]])
        for row in rows
    )


def _check_pages(database: sqlite3.Connection, source: str) -> None:
    """Pages that stand in the tree of copies more than once would count their rows as often."""
    ((found,),) = database.execute(f"PRAGMA quick_check({COPIES})").fetchmany(1) or [("no answer",)]
    if found != "ok":
        words = " ".join(str(found).split())[:200]
        raise DescriptionError.at(source, "", f"cannot be read: {COPIES} is damaged ({words}); export it again")


def _check_values(database: sqlite3.Connection, columns: set[str], source: str) -> None:
    """sqlite keeps anything in any column: text, negatives and ends before beginnings are told, not summed."""
    wrong = ["typeof(\"bytes\") <> 'integer'", '"bytes" < 0', "typeof(\"copyKind\") <> 'integer'"]
    if {"start", "end"} <= columns:
        wrong += ["typeof(\"start\") <> 'integer'", "typeof(\"end\") <> 'integer'", '"end" < "start"']
    ((bad,),) = database.execute(f'SELECT count(*) FROM "{COPIES}" WHERE {" OR ".join(wrong)}').fetchall()
    if bad:
        message = f"{bad:,} rows of {COPIES} have no whole bytes, kind or times, or end before they start"
        raise DescriptionError.at(source, "", message)


def _sums(
    database: sqlite3.Connection, columns: set[str], ends: Sequence[str], source: str
) -> list[dict[str, int | float | None]]:
    """One row for each kind, ends and process: copies, bytes, nanoseconds, slowest and fastest copy in B/ns."""
    keys = ", ".join(f'"{name}"' for name in ("copyKind", *ends))
    timed = {"start", "end"} <= columns
    time = '"end" - "start"'
    rate = f'CASE WHEN "bytes" > 0 AND "end" > "start" THEN "bytes" * 1.0 / ({time}) END'
    more = f", sum({time}), min({rate}), max({rate})" if timed else ", NULL, NULL, NULL"
    query = f'SELECT {keys}, count(*), sum("bytes"){more} FROM "{COPIES}" GROUP BY {keys} ORDER BY {keys}'
    rows = database.execute(query).fetchmany(MOST_GROUPS + 1)
    if len(rows) > MOST_GROUPS:
        raise DescriptionError.at(source, "", f"more than {MOST_GROUPS:,} pairs of devices and processes")
    names = ("copyKind", *ends, "copies", "bytes", "ns", "slowest", "fastest")
    return [dict.fromkeys(_ENDS) | dict(zip(names, row, strict=True)) for row in rows]


def _kinds(database: sqlite3.Connection, tables: set[str], warnings: list[str]) -> dict[int, str]:
    """Number -> h2d, d2h, d2d, p2p, h2h, or `unified`, by label and name; where they contradict, none."""
    columns = _columns(database, KINDS) if KINDS in tables else set()
    words = [name for name in ("label", "name") if name in columns]
    if "id" not in columns or not words:
        warnings.append(f"no labels in {KINDS}: copies are of unknown kind, since numbers differ by version")
        return {}
    found: dict[int, set[str]] = {}
    query = f'SELECT "id", {", ".join(words)} FROM "{KINDS}"'
    for number, *told in database.execute(query).fetchmany(1000):
        texts = [_string(database, tables, text) for text in told]
        if isinstance(number, int):
            found.setdefault(number, set()).update(kind for text in texts if text and (kind := kind_of(str(text))))
    for number, kinds in sorted(found.items()):
        if len(kinds) > 1:
            warnings.append(f"copyKind {number} is named {' and '.join(sorted(kinds))}: of unknown kind")
    return {number: next(iter(kinds)) for number, kinds in found.items() if len(kinds) == 1}


def _string(database: sqlite3.Connection, tables: set[str], text: object) -> object:
    """A text, or what stands in the table of strings for its number."""
    if type(text) is not int or "StringIds" not in tables:
        return text
    if not {"id", "value"} <= _columns(database, "StringIds"):
        return text
    found = database.execute('SELECT "value" FROM StringIds WHERE "id" = ?', (text,)).fetchmany(1)
    return found[0][0] if found else None


def kind_of(label: str) -> str | None:
    """`Host-to-Device`, `HtoD`, `CUDA_MEMCPY_KIND_HTOD` and the like: h2d. Arrays lie on the device. None: no kind."""
    plain = re.sub(r"[^a-z0-9]", "", label.removeprefix("CUDA_MEMCPY_KIND_").casefold())
    if plain.startswith(("uvm", "unified")):
        return "unified"
    if plain in ("ptop", "p2p", "peertopeer"):
        return "p2p"
    pair = _PAIR.fullmatch(plain)
    return None if pair is None else f"{_MEMORIES[pair[1]]}2{_MEMORIES[pair[2]]}"


def _devices(database: sqlite3.Connection, tables: set[str]) -> dict[tuple[int, int], int]:
    """(process id, its ordinal) -> the machine's ordinal: CUDA_VISIBLE_DEVICES makes every process count from 0."""
    if DEVICES not in tables or not {"gpuId", "cudaId", "pid"} <= _columns(database, DEVICES):
        return {}
    rows = database.execute(f'SELECT "pid", "cudaId", "gpuId" FROM {DEVICES}').fetchmany(MOST_GROUPS)
    return {(pid, own): gpu for pid, own, gpu in rows if type(pid) is type(own) is type(gpu) is int}


def _renumber(row: dict[str, int | float | None], devices: dict[tuple[int, int], int]) -> None:
    """Ordinals of the row's process become the machine's, where the export says them; 24 bits of globalPid are its."""
    process = row["globalPid"]
    if not devices or not isinstance(process, int):
        return
    for name in ("deviceId", "srcDeviceId", "dstDeviceId"):
        own = row[name]
        if isinstance(own, int):
            row[name] = devices.get((process >> 24 & 0xFFFFFF, own), own)


def _observation(
    row: dict[str, int | float | None], kind: str | None, source: str, version: str | None, rank: str | None
) -> Observation:
    src, dst = _ends_of(row, kind)
    rates = None if row["slowest"] is None else _rates(row["slowest"], row["fastest"])
    return Observation(
        source=source, engine=ENGINE, version=version, rank=rank, kind=kind, src=src, dst=dst,
        transfers=exactly(row["copies"]), bytes=exactly(row["bytes"]), rates=rates,
        seconds=exactly(row["ns"], Fraction(1, 10**9)), requests_unknown=True,
    )  # fmt: skip


def _rates(slowest: int | float | None, fastest: int | float | None) -> Interval:
    return Interval(Fraction(slowest or 0) * 10**9, Fraction(fastest or 0) * 10**9)


def _ends_of(row: dict[str, int | float | None], kind: str | None) -> tuple[str | None, str | None]:
    """Ends as ordinals of the profiler. A peer copy has two only where the export has columns for them."""
    own = _gpu(row["deviceId"])
    src, dst = _gpu(row["srcDeviceId"]), _gpu(row["dstDeviceId"])
    if kind == "h2d":
        return "host", own or dst
    if kind == "d2h":
        return own or src, "host"
    if kind == "h2h":
        return "host", "host"
    if kind == "d2d":
        return (src, dst) if src and dst else (own, own)
    return (src, dst) if kind == "p2p" else (None, None)


def _gpu(number: int | float | None) -> str | None:
    return f"gpu:{number}" if isinstance(number, int) and 0 <= number < 1 << 16 else None
