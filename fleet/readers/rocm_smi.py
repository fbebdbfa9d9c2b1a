"""`rocm-smi --showtopo` -> one node of AMD GPUs. Every section may be missing; what it would say is then unknown.

XGMI joins two cards directly; of PCIE nothing says whether a peer copy goes direct, unless the section on link
accessibility does. The number of XGMI lanes of a pair is not printed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from fleet.identity import MAX_INDEX
from fleet.machine import PeerAccess
from fleet.readers import Reading
from fleet.readers.building import Faults, Gpu, Pair, build_fleet, device_id, lines_of
from fleet.yaml_source import printable

NAME = "rocm-smi"
MAX_LINE = 20_000

_SECTIONS = {
    "weight between two gpus": "weight",
    "hops between two gpus": "hops",
    "link type between two gpus": "type",
    "link accessibility between two gpus": "access",
}
_TITLE = re.compile(r"(weight|hops|link type|link accessibility) between two gpus", re.I)
_GPU = re.compile(r"GPU ?\[?([0-9]{1,6})\]?(?![0-9A-Za-z])", re.ASCII)
_NUMA = re.compile(r"^GPU([0-9]{1,6})\s*:\s*\(Topology\) Numa (Node|Affinity)\s*:\s*(\S*)", re.ASCII | re.I)
_UNKNOWN = ("N/A", "-", "UNKNOWN", "None")
_EXPECTED = {"weight": "a whole number", "hops": "a whole number", "type": "XGMI or PCIE", "access": "True or False"}


@dataclass(slots=True)
class _Table:
    """One section: the GPUs of its header, the cell of each ordered pair, the line of each row."""

    kind: str
    line: int
    gpus: tuple[int, ...] = ()
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Text:
    """What was found in a text: tables by kind, NUMA node and affinity by GPU (None = unknown) and their lines."""

    tables: dict[str, _Table] = field(default_factory=dict)
    numa: dict[str, dict[int, int | None]] = field(default_factory=lambda: {"node": {}, "affinity": {}})
    lines: dict[int, int] = field(default_factory=dict)


def matches(text: str) -> bool:
    """Whether the text has the title of one of the tables, or a NUMA line of rocm-smi."""
    return _TITLE.search(text) is not None or "(Topology) Numa" in text


def read(text: str, source: str, *, sku: str | None = None) -> Reading:
    """The node of a text. Raises DescriptionError: no table, cut or contradictory ones, unknown words."""
    faults = Faults(source)
    found = _parse(lines_of(text), faults)
    gpus = _gpus(found, faults)
    if not gpus:
        faults.tell(0, "", "holds no topology of rocm-smi; looked for a table such as Link Type between two GPUs")
    faults.stop()
    values = {kind: _undirected(table, faults) for kind, table in found.tables.items() if kind != "access"}
    faults.stop()
    warnings = _warnings(found, values)
    cards = [Gpu(index=i, line=found.lines[i], numa=found.numa["node"].get(i), vendor="1002") for i in gpus]
    fleet, told = build_fleet(NAME, source, cards, _pairs(found, values, gpus), sku=sku)
    return Reading(fleet=fleet, warnings=(*warnings, *told), notes=_notes(found, values, gpus))


def _parse(lines: list[str], faults: Faults) -> _Text:
    found = _Text()
    table: _Table | None = None
    for number, line in enumerate(lines, 1):
        title = _TITLE.search(line)
        plain = line.strip()
        plain = _GPU.sub(lambda match: f"GPU{int(match[1])}", plain) if len(plain) <= MAX_LINE else plain
        if title is not None:
            if table is not None:
                _end(table, faults)
            table = _begin(found, _SECTIONS[title[0].lower()], number, faults)
        elif (numa := _NUMA.match(plain)) is not None:
            _numa(found, numa, number, faults)
        elif table is not None and plain.startswith("==="):
            _end(table, faults)
            table = None
        elif table is not None and len(plain) > MAX_LINE:
            faults.tell(number, table.kind, "is longer than a row of a table can be")
        elif table is not None and plain:
            _table_line(table, plain.split(), number, found, faults)
    if table is not None:
        _end(table, faults)
    return found


def _begin(found: _Text, kind: str, number: int, faults: Faults) -> _Table:
    table = _Table(kind, number)
    if kind in found.tables:
        faults.tell(number, kind, f"the section stands twice, first in line {found.tables[kind].line}; keep one")
        return table
    found.tables[kind] = table
    return table


def _end(table: _Table, faults: Faults) -> None:
    absent = [f"GPU{i}" for i in table.gpus if i not in table.rows]
    if absent:
        last = max(table.rows.values(), default=table.line)
        faults.tell(last, table.kind, f"the table ends here without the row of {', '.join(absent[:4])}: paste it whole")


def _numa(found: _Text, match: re.Match[str], number: int, faults: Faults) -> None:
    gpu, column, word = int(match[1]), match[2].lower(), match[3]
    found.lines.setdefault(gpu, number)
    value = None if word in ("", "-1", *_UNKNOWN) else _number(word)
    if value is None and word not in ("", "-1", *_UNKNOWN):
        faults.tell(number, f"GPU{gpu}", f"Numa {column}: {printable(word)} is no number of a node")
    if found.numa[column].setdefault(gpu, value) != value:
        faults.tell(number, f"GPU{gpu}", f"Numa {column} is {word} here and {found.numa[column][gpu]} above")


def _number(word: str) -> int | None:
    return int(word) if re.fullmatch(r"[0-9]{1,6}", word, re.ASCII) else None


def _table_line(table: _Table, tokens: list[str], number: int, found: _Text, faults: Faults) -> None:
    names = [int(token[3:]) if re.fullmatch(r"GPU[0-9]{1,6}", token, re.ASCII) else None for token in tokens]
    header = tuple(name for name in names if name is not None)
    if len(header) == len(tokens):
        if not table.gpus:
            table.gpus = header
            for gpu in header:
                found.lines.setdefault(gpu, number)
        elif header != table.gpus:
            faults.tell(number, table.kind, "a second header inside one table names other GPUs")
        if len(set(header)) < len(header):
            faults.tell(number, table.kind, "names one GPU as two columns")
    elif names[0] is not None and table.gpus:
        _row(table, names[0], tokens[1:], number, faults)


def _row(table: _Table, gpu: int, cells: list[str], number: int, faults: Faults) -> None:
    name = f"GPU{gpu}"
    if gpu not in table.gpus:
        faults.tell(number, name, f"is no column of the {table.kind} table of line {table.line}")
        return
    if gpu in table.rows:
        faults.tell(number, name, f"stands twice, first in line {table.rows[gpu]}")
        return
    table.rows[gpu] = number
    if len(cells) != len(table.gpus):
        faults.tell(number, name, f"has {len(cells)} cells, the header names {len(table.gpus)}: paste the row whole")
        return
    for other, word in zip(table.gpus, cells, strict=True):
        if other == gpu:
            if word not in ("0", "X", "True", *_UNKNOWN):
                faults.tell(
                    number, name, f"{printable(word)} stands on the diagonal, where 0 belongs: the row is shifted"
                )
        elif not _fits(table.kind, word):
            faults.tell(number, f"{name}-GPU{other}", f"{printable(word)} is not {_EXPECTED[table.kind]}")
        elif word not in _UNKNOWN:
            table.cells[gpu, other] = word


def _fits(kind: str, word: str) -> bool:
    if word in _UNKNOWN:
        return True
    if kind in ("weight", "hops"):
        return _number(word) is not None
    return word in (("XGMI", "PCIE") if kind == "type" else ("True", "False"))


def _gpus(found: _Text, faults: Faults) -> list[int]:
    tables = list(found.tables.values())
    for table in tables:
        if not table.gpus:
            faults.tell(table.line, table.kind, "has a title and no table below it: paste it whole")
        elif tables[0].gpus and set(table.gpus) != set(tables[0].gpus):
            faults.tell(table.line, table.kind, f"names other GPUs than the table of line {tables[0].line}")
    named = {gpu for table in tables for gpu in table.gpus}
    stray = sorted(set(found.lines) - named) if named else []
    for gpu in stray:
        faults.tell(found.lines[gpu], f"GPU{gpu}", "is named here and in no table")
    for gpu in sorted(found.lines):
        if gpu > MAX_INDEX:
            faults.tell(found.lines[gpu], f"GPU{gpu}", f"lies outside GPU0..GPU{MAX_INDEX}")
    return sorted(found.lines)


def _undirected(table: _Table, faults: Faults) -> dict[tuple[int, int], str]:
    """The cell of each unordered pair; both directions must agree."""
    found: dict[tuple[int, int], str] = {}
    for (a, b), word in table.cells.items():
        back = table.cells.get((b, a), word)
        if back != word and a < b:
            message = f"is {word} in line {table.rows[a]} but {back} in line {table.rows[b]}"
            faults.tell(table.rows[b], f"GPU{a}-GPU{b}", f"{table.kind} {message}")
        found[min(a, b), max(a, b)] = word
    return found


def _pairs(found: _Text, values: dict[str, dict[tuple[int, int], str]], gpus: list[int]) -> list[Pair]:
    access = found.tables["access"].cells if "access" in found.tables else {}
    pairs = []
    for at, a in enumerate(gpus):
        for b in gpus[at + 1 :]:
            word = values.get("type", {}).get((a, b))
            there, back = (_peer(access.get(way), word) for way in ((a, b), (b, a)))
            pairs.append(
                Pair(
                    a=device_id(a), b=device_id(b), kind="xgmi" if word == "XGMI" else "pcie", rated=word is not None,
                    line=_line(found, a), peer=there, peer_back=back,
                )
            )  # fmt: skip
    return pairs


def _line(found: _Text, gpu: int) -> int:
    """Where what joins a GPU is said, else where the GPU is named."""
    tables = (found.tables[kind] for kind in ("type", "access") if kind in found.tables)
    return next((table.rows[gpu] for table in tables if gpu in table.rows), found.lines[gpu])


def _peer(access: str | None, word: str | None) -> PeerAccess:
    if access is not None:
        return "direct" if access == "True" else "staged"
    return "direct" if word == "XGMI" else "unknown"


def _notes(found: _Text, values: dict[str, dict[tuple[int, int], str]], gpus: list[int]) -> dict[str, Any]:
    pairs = sorted({pair for cells in values.values() for pair in cells})
    return {
        "n_gpus": len(gpus),
        "links": {
            f"{a}-{b}": {
                "type": values.get("type", {}).get((a, b)),
                "hops": _count(values, "hops", (a, b)),
                "weight": _count(values, "weight", (a, b)),
            }
            for a, b in pairs
        },
        "numa_node": [found.numa["node"].get(gpu) for gpu in gpus],
        "numa_affinity": [found.numa["affinity"].get(gpu) for gpu in gpus],
    }


def _count(values: dict[str, dict[tuple[int, int], str]], kind: str, pair: tuple[int, int]) -> int | None:
    word = values.get(kind, {}).get(pair)
    return None if word is None else int(word)


def _warnings(found: _Text, values: dict[str, dict[tuple[int, int], str]]) -> list[str]:
    told = []
    if "type" not in found.tables:
        told.append(
            "the section Link Type between two GPUs is missing: taken as PCIe without a rate, peer access unknown"
        )
    if "XGMI" in values.get("type", {}).values():
        told.append("rocm-smi does not print how many XGMI lanes join a pair: taken as one")
    far = [
        pair
        for pair, hops in values.get("hops", {}).items()
        if int(hops) > 1 and values.get("type", {}).get(pair) == "XGMI"
    ]
    if far:
        told.append(f"{len(far)} pairs are more than one XGMI hop apart: their copies share the lanes of other pairs")
    return told
