"""`nvbandwidth` output -> observed rates of links. An overlay: it describes no machine and declares nothing.

The arrow of a matrix title says which way the bytes go between row and column: `->` row to column, `<-` column to row.
A diagonal of N/A or 0.00 was not measured. Bidirectional matrices, and tests that load several links at once, give no
rate of one direction alone: they stay in the notes. SUM and COEFFICIENT lines are no data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from fleet.identity import MAX_INDEX
from fleet.readers import MeasuredCard, Observation, Reading
from fleet.readers.building import HOST, Faults, device_id, lines_of
from fleet.units import MAX_FIGURE
from fleet.yaml_source import printable

NAME = "nvbandwidth"
MAX_COLUMNS = 1024
MAX_CELLS = 200_000

_TITLE = re.compile(
    r"\b(?P<row>CPU|GPU|Node|Process) ?\( ?row ?\) ?(?P<arrow><->|->|<-) ?(?P<col>CPU|GPU|Node|Process) ?"
    r"\( ?col(?:umn)? ?\) ?(?:[A-Za-z0-9]{1,20} ){0,3}\((?P<unit>[^()]{1,20})\)$",
    re.IGNORECASE,
)
_MAX_TITLE = 400
_RUNNING = re.compile(r"^\s*Running\s+([A-Za-z0-9_]{1,100})\.?\s*$", re.IGNORECASE)
_SUM = re.compile(r"^\s*SUM\s+([A-Za-z0-9_]{1,120})\s+([0-9.]+)\s*$")
_VERSION = re.compile(r"^[^\S\n]*nvbandwidth Version:[^\S\n]*(\S+)", re.MULTILINE)
_LISTED = re.compile(
    r"^\s*Device ([0-9]{1,3}): (.{1,200}?)(?: \(([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\))?\s*$", re.ASCII
)
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", re.ASCII)
_RATES = {"MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12}
_TIMES = {"ns": 10**3, "us": 10**6}
_BLANKS = ("N/A", "-", "")
_LOADED = ("all_to", "_to_all", "one_to", "to_one", "multicast", "interference", "local_copy")
"""Tests in which a figure is not one copy over one link."""


@dataclass(slots=True)
class _Matrix:
    """One matrix as printed. `cells` hold None where nothing was measured."""

    title: re.Match[str]
    line: int
    test: str | None
    columns: list[int] = field(default_factory=list)
    rows: dict[int, list[Decimal | None]] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    """The line of each row."""

    @property
    def one_way(self) -> bool:
        """Whether a cell is one copy in one direction, or a latency (whose arrow points both ways)."""
        timed = self.title["unit"].strip() in _TIMES
        return (timed or self.title["arrow"] != "<->") and not any(word in (self.test or "") for word in _LOADED)


def matches(text: str) -> bool:
    """Whether a matrix title, or the tool's version line, is in the text."""
    return _VERSION.search(text) is not None or ("(" in text and any(map(_title, lines_of(text))))


def _title(line: str) -> re.Match[str] | None:
    """The title of a matrix, blanks run together so that no line is slow to look at."""
    return _TITLE.search(" ".join(line.split())) if "(" in line and len(line) < _MAX_TITLE else None


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The overlay: bandwidths in bytes per second, latencies in picoseconds. `notes["tests"]` holds every matrix.

    Raises DescriptionError: no matrix, ragged or repeated rows, cells that are no numbers.
    """
    faults = Faults(source)
    matrices, sums = _matrices(lines_of(text), faults)
    if not matrices and not faults.found:
        faults.tell(0, "", "holds no matrix; looked for a title such as GPU(row) -> GPU(column) bandwidth (GB/s)")
    overlay: list[Observation] = []
    for matrix in matrices:
        overlay += _observations(matrix, faults)
    faults.stop()
    notes = _notes(matrices, sums)
    version = _VERSION.search(text)
    notes["version"] = None if version is None else printable(version[1])
    told = [] if sku is None else [f"--sku {printable(sku)} is not used: measurements fill no memory"]
    unread = sorted({m.test or "a matrix without a name" for m in matrices if not m.one_way})
    if unread:
        told.append(f"not one copy in one direction, kept as notes only: {', '.join(unread)}")
    return Reading(fleet=None, overlay=tuple(overlay), cards=_cards(text), warnings=tuple(told), notes=notes)


def _cards(text: str) -> tuple[MeasuredCard, ...]:
    """The devices that the tool lists at its head: `Device 0: NVIDIA H100 80GB HBM3 (00000000:1b:00)`."""
    found = [match for line in lines_of(text) if len(line) < _MAX_TITLE and (match := _LISTED.match(line))]
    return tuple(
        MeasuredCard(
            id=device_id(int(match[1])),
            name=printable(match[2].strip(), 200),
            pci=f"{match[3].lower()}.0" if match[3] else None,
        )
        for match in found
    )


def _matrices(lines: list[str], faults: Faults) -> tuple[list[_Matrix], dict[str, Decimal]]:
    """The matrices, each with the name of its test: of the `Running` line before it or the `SUM` line after it."""
    found: list[_Matrix] = []
    sums: dict[str, Decimal] = {}
    running: str | None = None
    current: _Matrix | None = None
    last: _Matrix | None = None
    cells = 0
    for number, line in enumerate(lines, start=1):
        if cells > MAX_CELLS:
            faults.tell(number, "", f"more than {MAX_CELLS:,} cells; split the text")
            faults.stop()
        if not line or line.isspace():
            if current is not None and current.rows:
                current = None
            continue
        if len(line) > 200_000:
            faults.tell(number, "", "a line of more than 200,000 characters is no row of a matrix")
            continue
        started, summed, title = _RUNNING.match(line), _SUM.match(line), _title(line)
        if started:
            running, current, last = started[1], None, None
        elif title:
            last = current = _Matrix(title, number, running)
            found.append(current)
        elif summed:
            _sum(summed, number, sums, faults)
            if last is not None:
                last.test = summed[1]  # more exact than the Running line: read1, read2, total
            last = current = None
        elif current is not None:
            cells += len(current.columns)
            current = current if _row(current, line, number, faults) else None
    for matrix in found:
        _complete(matrix, faults)
    return found, sums


def _sum(match: re.Match[str], number: int, sums: dict[str, Decimal], faults: Faults) -> None:
    if _NUMBER.fullmatch(match[2]):
        sums[match[1]] = Decimal(match[2])
    else:
        faults.tell(number, "SUM", f"{printable(match[2])} is no number")


def _row(matrix: _Matrix, line: str, number: int, faults: Faults) -> bool:
    """Takes a header or a row of the matrix; False where the matrix has ended."""
    cells = line.split()
    if not matrix.columns:
        if not all(re.fullmatch(r"[0-9]{1,4}", cell, re.ASCII) for cell in cells):
            faults.tell(number, "", "the numbers of the columns must stand below the title of a matrix")
            return False
        matrix.columns = [int(cell) for cell in cells[:MAX_COLUMNS]]
        if len(set(matrix.columns)) < len(cells):
            faults.tell(number, "", "a column is given twice or there are too many")
        return True
    if not re.fullmatch(r"[0-9]{1,4}", cells[0], re.ASCII):
        return False
    row = int(cells[0])
    if row in matrix.rows:
        faults.tell(number, f"row {row}", f"is given twice, first at line {matrix.places[row]}")
        return True
    if len(cells) - 1 != len(matrix.columns):
        faults.tell(number, f"row {row}", f"has {len(cells) - 1} cells for {len(matrix.columns)} columns")
    matrix.places[row] = number
    matrix.rows[row] = [_cell(cell, row, number, faults) for cell in cells[1:]]
    return True


def _cell(cell: str, row: int, number: int, faults: Faults) -> Decimal | None:
    if cell.upper() in _BLANKS:
        return None
    if not _NUMBER.fullmatch(cell):
        faults.tell(number, f"row {row}", f"{printable(cell)} is no number and not N/A")
        return None
    value = Decimal(cell)
    return value if value else None


def _complete(matrix: _Matrix, faults: Faults) -> None:
    if not matrix.rows:
        faults.tell(matrix.line, "", "a matrix without rows; the text was cut")
        return
    if {matrix.title["row"].upper(), matrix.title["col"].upper()} == {"GPU"}:
        missing = [column for column in matrix.columns if column not in matrix.rows]
        if missing:
            faults.tell(matrix.line, "", f"rows are missing: {', '.join(map(str, missing[:8]))}; the text was cut")


def _observations(matrix: _Matrix, faults: Faults) -> list[Observation]:
    """The cells of a one-way matrix between devices, or between the host and a device."""
    ends = (matrix.title["row"].upper(), matrix.title["col"].upper())
    scale = _scale(matrix.title["unit"])
    if not matrix.one_way or scale is None or not set(ends) <= {"CPU", "GPU"} or ends == ("CPU", "CPU"):
        return []
    if "CPU" in ends and len(matrix.rows if ends[0] == "CPU" else matrix.columns) > 1:
        return []  # several host rows are NUMA nodes: no single host end
    quantity, factor = scale
    told = []
    for row, cells in matrix.rows.items():
        for column, cell in zip(matrix.columns, cells, strict=False):
            a = HOST if ends[0] == "CPU" else device_id(row)
            b = HOST if ends[1] == "CPU" else device_id(column)
            value = None if cell is None else round(Fraction(cell) * factor)
            if value is None or a == b:
                continue
            if value > MAX_FIGURE or max(row, column) > MAX_INDEX:
                faults.tell(matrix.places[row], f"row {row}", "a figure or a number of a device beyond all bounds")
                continue
            src, dst = (b, a) if matrix.title["arrow"] == "<-" else (a, b)
            access: Literal["peer"] | None = None if HOST in (src, dst) else "peer"
            told.append(
                Observation(
                    src=src, dst=dst, quantity=quantity, value=value, tool=NAME, note=matrix.test, access=access
                )
            )
    return told


def _scale(unit: str) -> tuple[Literal["bandwidth", "latency"], int] | None:
    """(quantity, factor to bytes per second or picoseconds) of a printed unit."""
    plain = unit.strip()
    if plain in _RATES:
        return "bandwidth", _RATES[plain]
    return ("latency", _TIMES[plain]) if plain in _TIMES else None


def _notes(matrices: list[_Matrix], sums: dict[str, Decimal]) -> dict[str, Any]:
    tests: dict[str, Any] = {}
    gpus = 0
    for number, matrix in enumerate(matrices):
        name = matrix.test or f"matrix {number + 1}"
        name = name if name not in tests else f"{name} #{number + 1}"
        tests[name] = {
            "unit": matrix.title["unit"].strip(),
            "arrow": matrix.title["arrow"],
            "matrix": [[None if cell is None else float(cell) for cell in row] for row in matrix.rows.values()],
            "printed_sum": float(sums[name]) if name in sums else None,
        }
        if matrix.title["col"].upper() == "GPU":
            gpus = max(gpus, len(matrix.columns))
    return {"n_gpus": gpus, "tests": tests}
