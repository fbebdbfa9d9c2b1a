"""Tree and link matrix of a fleet, for readers of `nvidia-smi topo -m`. What is alike in a large fleet stands once."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import Any

from fleet.machine import Fleet
from fleet.units import format_bytes
from scenarios.table import Paint, Table, safe

Marked = dict[str, str]

ASKED_BYTES = 2**20
"""The size of the copy whose way is asked: the fastest of several ways may depend on it."""
_SLOWEST_FIRST = ("net", "pcie", "host", "c2c", "xgmi", "nvlink")
_CELLS = {"net": "NET", "pcie": "PCI", "host": "HST", "c2c": "C2C", "xgmi": "XG", "nvlink": "NV"}
_LEGEND = {
    "X": "itself",
    "NV": "direct over # NVLinks, also through an NVSwitch",
    "XG": "direct over # Infinity Fabric links",
    "C2C": "direct over a chip-to-chip link",
    "PCI": "direct over PCIe",
    "HST": "direct over a link of unnamed kind",
    "NET": "direct over the network",
    "STG": "staged: two copies, over host memory",
    "?": "behind a mark: whether peers reach each other directly is unknown",
    ".": "no link of its own (network cards: only their links are shown)",
    "-": "no way is described",
}


@dataclass(frozen=True, slots=True)
class Shown:
    """The part of a fleet that is written out. `first`: id -> the id shown for it; `alike`: how many it stands for."""

    fleet: Fleet
    first: Marked
    alike: Counter[str]
    exact: bool = True

    @property
    def word(self) -> str:
        """What those that are told as one have in common."""
        return "alike" if self.exact else "of this kind"

    @property
    def collapsed(self) -> bool:
        """Whether anything stands for others."""
        return len(self.alike) < len(self.first)


def shown_part(fleet: Fleet, marked: tuple[str, ...] = ()) -> Shown:
    """The fleet, or the first of everything that is alike in a large one; marked ids stand for themselves."""
    from scenarios.pictures.collapse import Marks, representatives

    drawn = representatives(fleet, Marks({name: name for name in marked}))
    first = drawn.first
    kept = set(first.values())
    part = fleet if len(kept) == len(first) else replace(
        fleet,
        hosts=tuple(row for row in fleet.hosts if row.id in kept),
        devices=tuple(row for row in fleet.devices if row.id in kept),
        switches=tuple(row for row in fleet.switches if row.id in kept),
        nics=tuple(row for row in fleet.nics if row.id in kept),
        links=tuple(link for link in fleet.links if link.src in kept and link.dst in kept),
        digest="",
    )  # fmt: skip
    return Shown(part, first, Counter(first.values()), drawn.exact)


def tree_lines(shown: Shown, paint: Paint) -> list[str]:
    """Hosts with what sits in them, slices below their cards, then what no host holds."""
    fleet = shown.fleet
    below: dict[str, list[tuple[str, str]]] = defaultdict(list)
    hosts = {host.id for host in fleet.hosts}
    for device in fleet.devices:
        held = device.parent or shown.first.get(device.host, device.host)
        memory = format_bytes(device.memory.capacity.value)
        memory = memory.partition("(")[2].rstrip(")") or memory
        below[held].append((device.id, f"{device.profile or device.sku or device.kind}, {device.memory.name} {memory}"))
    for nic in fleet.nics:
        below[shown.first.get(nic.host, nic.host)].append((nic.id, nic.label or "network card"))
    loose: list[tuple[str, str]] = []
    for switch in fleet.switches:
        tier = "" if switch.tier is None else f", tier {switch.tier}"
        row = (switch.id, f"{switch.label or switch.kind + ' switch'}{tier}")
        owner = None if switch.host is None else shown.first.get(switch.host, switch.host)
        (below[owner] if owner in hosts else loose).append(row)
    lines = [paint("Tree", "bold")]
    for host in fleet.hosts:
        lines += _branch(host.id, host.label or "host", 1, below, shown, paint)
    for name, words in loose:
        lines += _branch(name, words, 1, below, shown, paint)
    if shown.collapsed:
        told = "  (n alike): told once; alike are those of equal figures with equal links to alike things"
        if not shown.exact:
            told = "  (n of this kind): only the first is told, because more differ than a page holds; all: -o json"
        lines += paint.fold(told, 4)
    return lines


def _branch(
    name: str, words: str, depth: int, below: dict[str, list[tuple[str, str]]], shown: Shown, paint: Paint
) -> list[str]:
    count = shown.alike[name]
    alike = f"  ({count:,} {shown.word})" if count > 1 else ""
    mark = "" if depth == 1 else "+- "
    lines = paint.fold(safe(f"{'  ' * depth}{mark}{name}  {words}{alike}"), 2 * depth + 4)
    if depth < 8:
        for inner, told in below.get(name, ()):
            lines += _branch(inner, told, depth + 1, below, shown, paint)
    return lines


def matrix_lines(shown: Shown, paint: Paint) -> list[str]:
    """Who reaches whom, and by what; row is the source. Cut in blocks of columns where the terminal is narrow."""
    fleet = shown.fleet
    names = [device.id for device in fleet.devices] + [host.id for host in fleet.hosts]
    if not fleet.devices:
        return []
    nics = [nic.id for nic in fleet.nics]
    cells = _cells(fleet, names, nics)
    columns = names + nics
    lines: list[str] = []
    for block in _blocks(columns, cells, names, paint):
        table = Table("Matrix", *block)
        for row in names:
            table.add(row, *(cells[row, column] for column in block))
        lines += ([""] if lines else []) + table.lines(replace_width(paint))
    told = paint.fold("  from the row to the column, for a copy of 1 MiB:", 4)
    return [*lines, *told, *_legend(set(cells.values()), paint)]


def replace_width(paint: Paint) -> Paint:
    """The same colours, unbroken: a matrix is cut by its columns, not by its lines."""
    return Paint(paint.on)


def _blocks(columns: list[str], cells: dict[Any, str], rows: list[str], paint: Paint) -> list[list[str]]:
    if paint.width is None:
        return [columns]
    room = paint.width - 2 - max(20, *(len(row) for row in rows))
    blocks: list[list[str]] = [[]]
    used = 0
    for column in columns:
        wide = 2 + max(len(column), *(len(cells[row, column]) for row in rows))
        if blocks[-1] and used + wide > room:
            blocks.append([])
            used = 0
        blocks[-1].append(column)
        used += wide
    return blocks


def _cells(fleet: Fleet, names: list[str], nics: list[str]) -> dict[tuple[str, str], str]:
    from planner.machine import machine_graph

    graph = machine_graph(fleet)
    cells = {(a, b): "X" if a == b else _cell(graph.way(a, b, ASKED_BYTES, 1)) for a in names for b in names}
    for row in names:
        for nic in nics:
            links = graph.links(row, nic)
            cells[row, nic] = _mark(links) if links else "."
    return cells


def _cell(way: Any) -> str:
    from planner.machine import NoWay, UnknownWay

    if isinstance(way, NoWay):
        return "-"
    if isinstance(way, UnknownWay):
        return _cell(way.direct) + "?"
    if way.staged or len(way.hops) > 1:
        return "STG"
    return _mark(way.hops[0].links)


def _mark(links: Any) -> str:
    """The slowest kind on the way, with lanes where there are several of one kind."""
    kinds = {link.kind for link in links}
    kind = next(kind for kind in _SLOWEST_FIRST if kind in kinds)
    lanes = min(link.count for link in links if link.kind == kind)
    return _CELLS[kind] + (str(lanes) if kind in ("nvlink", "xgmi") else "")


def _legend(marks: set[str], paint: Paint) -> list[str]:
    used = {mark.rstrip("?").rstrip("0123456789") if mark[:2] in ("NV", "XG") else mark.rstrip("?") for mark in marks}
    used |= {"?"} if any(mark.endswith("?") for mark in marks) else set()
    lines = []
    for mark, words in _LEGEND.items():
        if mark in used:
            name = f"{mark}#" if mark in ("NV", "XG") else mark
            lines += paint.fold(f"  {name:<4} {words}", 7)
    return lines
