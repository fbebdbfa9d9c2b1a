"""`nvidia-smi --query-gpu=index,uuid,pci.bus_id,memory.total,memory.used --format=csv`: what each GPU has in use.

Figures are printed in whole MiB. So up to one byte less than a MiB more may be in use than is printed, and that much is
added: a plan that is admitted fits whatever the true figure is. `memory.reserved`, where asked for, is in use as well.
"""

from __future__ import annotations

import csv
import re

from fleet.errors import DescriptionError, Fault
from fleet.readers.in_use import MAX_ROWS, Holding, InUse
from fleet.yaml_source import printable

MIB = 2**20
_EXAMPLE = "nvidia-smi --query-gpu=index,uuid,pci.bus_id,memory.total,memory.used --format=csv"
_NAMES = {"gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "pci.bus": "bus", "count": "count"}
_SIZES = ("memory.total", "memory.used", "memory.reserved", "memory.free")
_FIGURE = re.compile(r"([0-9]{1,12})(?: MiB)?", re.ASCII)
_NONE = re.compile(r"\[?(N/A|Not Supported|Unknown Error|GPU requires reset|Insufficient Permissions)\]?", re.I)


def read_smi(text: str, source: str) -> InUse:
    """The rows of the CSV. Raises DescriptionError with every fault: no header, no column that names the GPU or its
    memory in use, a figure that is none.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:  # control characters alone are lines, and blank ones
        raise DescriptionError.at(source, "", f"holds no line of text; write it with {_EXAMPLE}")
    names = _header(lines[0][1], source, lines[0][0])
    if len(lines) - 1 > MAX_ROWS:
        raise DescriptionError.at(source, "", f"has more than {MAX_ROWS:,} rows")
    faults: list[Fault] = []
    holdings = []
    for number, line in lines[1:]:
        values = _cells(line)
        if len(values) != len(names):
            words = f"has {len(values)} columns, the header {len(names)}"
            faults.append(Fault(source=source, field="", message=words, line=number, column=1))
            continue
        holdings.append(_holding(dict(zip(names, values, strict=True)), source, number, faults))
    if faults:
        raise DescriptionError(faults)
    if not holdings:
        raise DescriptionError.at(source, "", f"has a header and no row; write it with {_EXAMPLE}")
    return InUse(source=source, format="nvidia-smi", holdings=tuple(holdings))


def _cells(line: str) -> list[str]:
    if len(line) > 10_000:
        return []
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _header(line: str, source: str, number: int) -> list[str]:
    """The names of the columns, without units."""
    names = [re.sub(r"\s*\[.*?\]$", "", cell).strip().casefold() for cell in _cells(line)]
    names = [_NAMES.get(name, name) for name in names]
    if "memory.used" not in names:
        words = f"has no column memory.used in its first line; write it with {_EXAMPLE} (with the header)"
        raise DescriptionError.at(source, "", words, number, 1)
    if not {"index", "uuid", "pci.bus_id"} & set(names):
        words = f"has no column that names the GPU (uuid, pci.bus_id or index); write it with {_EXAMPLE}"
        raise DescriptionError.at(source, "", words, number, 1)
    if len(set(names)) < len(names):
        raise DescriptionError.at(source, "", "names a column twice; keep one", number, 1)
    return names


def _holding(row: dict[str, str], source: str, number: int, faults: list[Fault]) -> Holding:
    sizes: dict[str, int | None] = {}
    for name in _SIZES:
        if name in row:
            sizes[name] = _size(row[name], name, source, number, faults)
    used, reserved = sizes.get("memory.used"), sizes.get("memory.reserved", 0)
    total = sizes.get("memory.total")
    if used is not None and total is not None and used > total:
        words = f"{row['memory.used']} is more than the {row['memory.total']} of memory.total"
        faults.append(Fault(source=source, field="memory.used", message=words, line=number, column=1))
    # Printed in whole MiB: the true figure may lie up to the next.
    held = None if used is None or reserved is None else used + reserved + MIB - 1
    index = row.get("index", "")
    if index and not re.fullmatch(r"[0-9]{1,6}", index, re.ASCII):
        words = f"{printable(index)} is no index of a GPU"
        faults.append(Fault(source=source, field="index", message=words, line=number, column=1))
        index = ""
    uuid, pci = _known(row.get("uuid")), _known(row.get("pci.bus_id"))
    return Holding(
        what=f"GPU {index or uuid or pci} of nvidia-smi", bytes=held, uuid=uuid, pci=pci,
        index=int(index) if index else None, capacity_bytes=sizes.get("memory.total"),
    )  # fmt: skip


def _known(text: str | None) -> str | None:
    return None if not text or _NONE.fullmatch(text) else text


def _size(text: str, name: str, source: str, number: int, faults: list[Fault]) -> int | None:
    """Bytes; None where the driver does not say."""
    if _NONE.fullmatch(text):
        return None
    found = _FIGURE.fullmatch(text)
    if found is None:
        words = f"{printable(text)} is no size; nvidia-smi prints e.g. 1024 MiB"
        faults.append(Fault(source=source, field=name, message=words, line=number, column=1))
        return None
    return int(found[1]) * MIB
