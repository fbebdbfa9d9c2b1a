"""`p2pBandwidthLatencyTest` (CUDA samples) output -> observed rates and latencies of links. An overlay.

Rows copy to columns. The matrices with peer access enabled are what a peer copy sees; those with it disabled are copies
staged through the host, and stay in the notes unless the test found no peer access between the two. The diagonal is a
copy inside one device. Bidirectional matrices sum both directions and are no rate of one: notes only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from fleet.identity import MAX_INDEX
from fleet.readers import MeasuredCard, Observation, Reading
from fleet.readers.building import Faults, device_id, lines_of
from fleet.units import MAX_FIGURE
from fleet.yaml_source import printable

NAME = "p2pBandwidthLatencyTest"

_BANNER = re.compile(r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test")
_DEVICE = re.compile(
    r"^\s*Device:\s*(\d{1,4}),\s*(.{1,200}?)"
    r"(?:,\s*pciBusID:\s*([0-9a-fA-F]{1,2}),\s*pciDeviceID:\s*([0-9a-fA-F]{1,2}),\s*pciDomainID:\s*([0-9a-fA-F]{1,8}))?"
    r"(?:,.*)?$"
)
_ACCESS = re.compile(r"^\s*Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})\s*$")
_CONNECTIVITY = re.compile(r"^\s*P2P Connectivity Matrix\s*$")
_BANDWIDTH = re.compile(
    r"^\s*(Unidirectional|Bidirectional) P2P=(Enabled|Disabled) Bandwidth (?:\(P2P Writes\) )?Matrix \(GB/s\)\s*$"
)
_LATENCY = re.compile(r"^\s*P2P=(Enabled|Disabled) Latency (?:\(P2P Writes\) )?Matrix \(us\)\s*$")
_HEADER = re.compile(r"^\s*(D\\D|GPU|CPU)((?:\s+\d{1,4})+)\s*$")
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?", re.ASCII)
_MAX_LINE = 4000


@dataclass(slots=True)
class _Matrix:
    """One printed matrix. `name` is e.g. `unidirectional_p2p_enabled_GBps`."""

    name: str
    line: int
    columns: list[int] = field(default_factory=list)
    rows: dict[int, list[Decimal | None]] = field(default_factory=dict)

    def cells(self) -> dict[tuple[int, int], Decimal]:
        """(row, column) -> what is printed there."""
        pairs = {(row, column): cell for row, cells in self.rows.items() for column, cell in zip(self.columns, cells)}  # noqa: B905 - a short row is a fault already
        return {pair: cell for pair, cell in pairs.items() if cell is not None}


@dataclass(slots=True)
class _Found:
    names: dict[int, str] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    """PCI address by number."""
    access: dict[tuple[int, int], bool] = field(default_factory=dict)
    matrices: dict[str, _Matrix] = field(default_factory=dict)


def matches(text: str) -> bool:
    """Whether the banner or the title of one of the matrices is in the text."""
    if _BANNER.search(text):
        return True
    return "P2P=" in text and any(_BANDWIDTH.match(line) or _LATENCY.match(line) for line in lines_of(text))


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The overlay: bandwidths in bytes per second, latencies (as the GPU timed them) in picoseconds.

    Raises DescriptionError: no matrix, repeated or ragged rows, cells that are no numbers.
    """
    faults = Faults(source)
    found = _parse(lines_of(text), faults)
    if not found.matrices and not faults.found:
        faults.tell(0, "", "holds no matrix; looked for e.g. Unidirectional P2P=Enabled Bandwidth Matrix (GB/s)")
    overlay = _overlay(found, faults)
    faults.stop()
    told = [] if sku is None else [f"--sku {printable(sku)} is not used: measurements fill no memory"]
    if any(name.startswith("bidirectional") for name in found.matrices):
        told.append("bidirectional matrices sum both directions: kept as notes, no rate of one direction")
    cards = tuple(
        MeasuredCard(id=device_id(number), name=name, pci=found.places.get(number))
        for number, name in sorted(found.names.items())
    )
    return Reading(fleet=None, overlay=tuple(overlay), cards=cards, warnings=tuple(told), notes=_notes(found))


def _parse(lines: list[str], faults: Faults) -> _Found:
    found = _Found()
    title = ""
    current: _Matrix | None = None
    for number, line in enumerate(lines, start=1):
        if not line or line.isspace():
            continue
        if len(line) > _MAX_LINE:
            faults.tell(number, "", f"a line of more than {_MAX_LINE:,} characters is no row of a matrix")
            continue
        named = _title(line)
        header = _HEADER.match(line)
        if named:
            title, current = named, None
        elif header:
            current = _begin(found, title, header, number, faults)
        elif current is not None and re.match(r"\s*\d+\s", line):
            _row(current, line.split(), number, faults)
        else:
            current = None
            _device(found, line)
    for matrix in found.matrices.values():
        missing = [str(column) for column in matrix.columns if column not in matrix.rows]
        if missing:
            faults.tell(matrix.line, matrix.name, f"rows are missing: {', '.join(missing[:8])}; the text was cut")
    return found


def _title(line: str) -> str:
    if _CONNECTIVITY.match(line):
        return "connectivity"
    rate, latency = _BANDWIDTH.match(line), _LATENCY.match(line)
    if rate:
        return f"{rate[1].lower()}_p2p_{rate[2].lower()}_GBps"
    return f"latency_us_p2p_{latency[1].lower()}" if latency else ""


def _begin(found: _Found, title: str, header: re.Match[str], number: int, faults: Faults) -> _Matrix | None:
    """A matrix begins at its line of columns; one latency title stands above two, GPU and CPU."""
    if not title:
        return None
    clock = "" if header[1] == "D\\D" else f"_{header[1].lower()}"
    matrix = _Matrix(title + clock, number, [int(column) for column in header[2].split()])
    if matrix.name in found.matrices:
        first = found.matrices[matrix.name].line
        faults.tell(number, matrix.name, f"is given twice, first at line {first}; give one run at a time")
    elif len(set(matrix.columns)) < len(matrix.columns):
        faults.tell(number, matrix.name, "a column is given twice")
    elif max(matrix.columns) > MAX_INDEX:
        faults.tell(number, matrix.name, f"devices beyond {MAX_INDEX} are not known here")
    found.matrices.setdefault(matrix.name, matrix)
    return matrix


def _row(matrix: _Matrix, cells: list[str], number: int, faults: Faults) -> None:
    row = int(cells[0]) if len(cells[0]) < 5 else -1
    if row in matrix.rows or row not in matrix.columns:
        why = "is given twice" if row in matrix.rows else "has no column of its own"
        faults.tell(number, f"row {printable(cells[0])}", why)
        return
    if len(cells) - 1 != len(matrix.columns):
        faults.tell(number, f"row {row}", f"has {len(cells) - 1} cells for {len(matrix.columns)} columns")
    matrix.rows[row] = [_cell(cell, row, number, faults) for cell in cells[1:]]


def _cell(cell: str, row: int, number: int, faults: Faults) -> Decimal | None:
    if cell.upper() == "N/A":
        return None
    if not _NUMBER.fullmatch(cell):
        faults.tell(number, f"row {row}", f"{printable(cell)} is no number")
        return None
    return Decimal(cell)


def _device(found: _Found, line: str) -> None:
    device, access = _DEVICE.match(line), _ACCESS.match(line)
    if device:
        found.names[int(device[1])] = printable(device[2].strip(), 200)
        if device[3]:
            found.places[int(device[1])] = f"{device[5]:0>4}:{device[3]:0>2}:{device[4]:0>2}.0".lower()
    elif access and max(int(access[1]), int(access[3])) <= MAX_INDEX:
        found.access[int(access[1]), int(access[3])] = access[2] == "CAN"


def _reachable(found: _Found) -> dict[tuple[int, int], bool]:
    """Who may copy to whom directly: the connectivity matrix, else the lines above it."""
    matrix = found.matrices.get("connectivity")
    return found.access if matrix is None else {pair: cell == 1 for pair, cell in matrix.cells().items()}


def _overlay(found: _Found, faults: Faults) -> list[Observation]:
    told: list[Observation] = []
    reachable = _reachable(found)
    sources: list[tuple[str, Literal["bandwidth", "latency"], int]] = [
        ("unidirectional_p2p_{}_GBps", "bandwidth", 10**9),
        ("latency_us_p2p_{}_gpu", "latency", 10**6),
    ]
    for pattern, quantity, factor in sources:
        enabled, disabled = (found.matrices.get(pattern.format(word)) for word in ("enabled", "disabled"))
        matrix = enabled or disabled
        for (row, column), cell in ({} if matrix is None else matrix.cells()).items():
            value = round(Fraction(cell) * factor)
            if row == column or value == 0:
                continue
            if value > MAX_FIGURE:
                faults.tell(matrix.line if matrix else 0, f"row {row}", "a figure beyond all bounds")
                continue
            staged = enabled is None or reachable.get((row, column)) is False
            note = "staged: no peer access in this measurement" if staged else "peer access"
            told.append(
                Observation(
                    src=device_id(row),
                    dst=device_id(column),
                    quantity=quantity,
                    value=value,
                    tool=NAME,
                    note=note,
                    access="staged" if staged else "peer",
                )
            )
    return told


def _notes(found: _Found) -> dict[str, Any]:
    """Everything printed, by the names of the matrices; pairs are written `row-column`."""
    columns = max((len(matrix.columns) for matrix in found.matrices.values()), default=0)
    reachable = _reachable(found)
    ids = sorted({end for pair in reachable for end in pair})
    notes: dict[str, Any] = {
        "n_gpus": max(columns, len(found.names)),
        "device_names": [found.names[index] for index in sorted(found.names)],
        "p2p_access": [[True if a == b else reachable.get((a, b)) for b in ids] for a in ids],
    }
    for name, matrix in found.matrices.items():
        if name != "connectivity":
            pairs = matrix.cells().items()
            notes[name] = {f"{row}-{column}": float(cell) for (row, column), cell in pairs if row != column}
    runs = [found.matrices.get(f"unidirectional_p2p_{word}_GBps") for word in ("enabled", "disabled")]
    local = next((matrix for matrix in runs if matrix is not None), None)
    if local is not None:
        cells = local.cells().items()
        notes["local_copy_GBps"] = {str(row): float(cell) for (row, column), cell in cells if row == column}
    return notes
