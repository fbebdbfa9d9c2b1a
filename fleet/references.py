"""What joins the fields of a fleet file: ids, link ends, default memories, indices, hosts, SKUs.

Works on the plain data, tolerant of what is misshapen (`fleet.schema` tells that), so that one pass tells every fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fleet.errors import MAX_FAULTS_TOLD
from fleet.identity import ID_PATTERN, MAX_INDEX, collisions, index_in_id, kind_in_id, topology_id
from fleet.yaml_source import Path, field_name, nearest, printable

DEFAULT_HOST = "host"
_BAD_INDEX = -1
KINDS = ("gpu", "cpu", "npu")

Told = tuple[Path, str, bool]
Line = Callable[[Path], int]


@dataclass(slots=True)
class _Seat:
    """One device as far as its place is concerned."""

    position: int
    id: str
    kind: str | None
    host: str | None
    index: int | None

    @property
    def path(self) -> Path:
        return ("devices", self.position)


@dataclass(slots=True)
class _Check:
    """The ids found so far and the faults told so far."""

    data: dict[str, Any]
    line: Line
    told: list[Told] = field(default_factory=list)
    owners: dict[str, Path] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    hints: int = 0
    seats: list[_Seat] = field(default_factory=list)

    def tell(self, path: Path, message: str) -> None:
        self.told.append((path, message, False))

    def claim(self, seen: dict[Any, Path], key: Any, path: Path, what: str, mend: str = "give each its own") -> bool:
        """Whether `key` was free; tells a fault when it was claimed before."""
        first = seen.setdefault(key, path)
        if first is not path:
            self.tell(path, f"{what} of {field_name(first)} too, at line {self.line(first)}; {mend}")
        return first is path

    def hint(self, word: str, known: Iterable[str]) -> str:
        """`; did you mean ...?`, for as many faults as are ever told: each search walks over all of `known`."""
        self.hints += 1
        return nearest(word, known) if self.hints <= MAX_FAULTS_TOLD else ""


def check(data: dict[str, Any], line: Line) -> list[Told]:
    """Every fault of reference as (path, message, at the key). `line` gives the line of a path."""
    state = _Check(data, line)
    _ids(state)
    _skus(state)
    _devices(state)
    _places(state)
    _links(state)
    return state.told


def rows(data: Any, section: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The mappings of a list section with their positions; anything else is skipped."""
    section_rows = data.get(section) if isinstance(data, dict) else None
    if isinstance(section_rows, list):
        for position, row in enumerate(section_rows):
            if isinstance(row, dict):
                yield position, row


def _some(names: Iterable[str]) -> str:
    """The first few names, for a message."""
    first = list(islice(names, 9))
    return ", ".join(printable(name) for name in first[:8]) + (" ..." if len(first) > 8 else "")


def _ids(state: _Check) -> None:
    for section in ("hosts", "devices"):
        for position, row in rows(state.data, section):
            name = row.get("id")
            if isinstance(name, str):
                state.claim(state.owners, name, (section, position, "id"), f"{printable(name)} is the id")
                if section == "hosts":
                    state.hosts[name] = None
    if not isinstance(state.data.get("hosts"), list) or not state.data["hosts"]:
        state.hosts[DEFAULT_HOST] = None
        if DEFAULT_HOST in state.owners:
            state.tell(state.owners[DEFAULT_HOST], "is the id of the host, which a file without hosts has; rename it")


def _skus(state: _Check) -> None:
    skus = state.data.get("skus")
    for name, sku in skus.items() if isinstance(skus, dict) else ():
        if isinstance(sku, dict):
            _memories(state, sku, ("skus", name))
            _default_memory(state, sku.get("memories"), sku.get("default_memory"), ("skus", name))


def _memories(state: _Check, owner: dict[str, Any], path: Path) -> None:
    seen: dict[Any, Path] = {}
    for position, memory in rows(owner, "memories"):
        name = memory.get("name")
        if isinstance(name, str):
            state.claim(seen, name, (*path, "memories", position, "name"), f"{printable(name)} is the name")


def _default_memory(state: _Check, memories: Any, default: Any, path: Path) -> None:
    """Several memories need a named default; a named default must exist."""
    if not isinstance(memories, list):
        return
    names = [m["name"] for m in memories if isinstance(m, dict) and isinstance(m.get("name"), str)]
    if isinstance(default, str) and names and default not in names:
        state.tell((*path, "default_memory"), f"{printable(default)} is no memory here{state.hint(default, names)}")
    if default is None and len(memories) > 1:
        example = f"default_memory: {printable(names[0])}" if names else "default_memory:"
        state.tell(path, f"has {len(memories)} memories and no default_memory; add e.g. {example}")


def _devices(state: _Check) -> None:
    skus = state.data.get("skus") if isinstance(state.data.get("skus"), dict) else {}
    devices = state.data.get("devices")
    if isinstance(devices, list) and not devices:
        state.tell(("devices",), "is empty; a fleet has at least one device")
    uuids: dict[Any, Path] = {}
    addresses: dict[Any, Path] = {}
    for position, row in rows(state.data, "devices"):
        path: Path = ("devices", position)
        sku = _sku_of(state, row, skus or {}, path)
        _memories(state, row, path)
        if sku is not None:
            memories = row.get("memories") if row.get("memories") is not None else sku.get("memories")
            if not memories:
                state.tell(path, "has no memory; add memories: [{name: main, capacity: 80 GiB}] here or to its sku")
            elif row.get("memories") is not None or row.get("default_memory") is not None:
                _default_memory(state, memories, _default_name(row, sku, memories), path)
        host = _host_of(state, row, path)
        _seat(state, row, sku, host, position)
        if isinstance(row.get("uuid"), str):
            state.claim(uuids, row["uuid"], (*path, "uuid"), "is the uuid")
        if isinstance(row.get("pci"), str):
            state.claim(addresses, (host, row["pci"].lower()), (*path, "pci"), "is the pci address")


def _default_name(row: dict[str, Any], sku: dict[str, Any], memories: Any) -> Any:
    """The device's own default memory; its SKU's where that is one of the device's memories."""
    if row.get("default_memory") is not None or not isinstance(memories, list):
        return row.get("default_memory")
    names = [memory.get("name") for memory in memories if isinstance(memory, dict)]
    return sku.get("default_memory") if sku.get("default_memory") in names else None


def _sku_of(state: _Check, row: dict[str, Any], skus: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The device's SKU, empty when it names none, None when that cannot be said (told, here or by the shape)."""
    name = row.get("sku")
    if name is None:
        return {}
    if not isinstance(name, str):
        return None
    if name not in skus:
        known = f" (skus: {_some(skus)})" if skus else ""
        state.tell((*path, "sku"), f"{printable(name)} is no sku of this file{state.hint(name, skus)}{known}")
        return None
    return skus[name] if isinstance(skus[name], dict) else None


def _host_of(state: _Check, row: dict[str, Any], path: Path) -> str | None:
    host = row.get("host")
    if host is None:
        if len(state.hosts) == 1:
            return next(iter(state.hosts))
        state.tell(path, f"needs host: one of {_some(state.hosts)}")
        return None
    if isinstance(host, str) and host not in state.hosts:
        known = _some(state.hosts)
        state.tell(
            (*path, "host"),
            f"{printable(host)} is no host of this file{state.hint(host, state.hosts)} (hosts: {known})",
        )
        return None
    return host if isinstance(host, str) else None


def _seat(state: _Check, row: dict[str, Any], sku: dict[str, Any] | None, host: str | None, position: int) -> None:
    name = row.get("id")
    if not isinstance(name, str) or not re.fullmatch(ID_PATTERN, name, re.ASCII):
        return
    path: Path = ("devices", position)
    kind = row.get("kind")
    if kind is None and sku is not None:
        kind = sku.get("kind") if sku else kind_in_id(name)
        if kind is None and not sku:
            state.tell(path, "needs kind: gpu, cpu or npu")
    index = _index(state, row.get("index"), name, path)
    if index != _BAD_INDEX:
        state.seats.append(_Seat(position, name, kind if isinstance(kind, str) else None, host, index))


def _index(state: _Check, text: Any, name: str, path: Path) -> int | None:
    """The stated index, else the one in the id, else None; _BAD_INDEX when it was told, here or by the shape."""
    if text is None:
        index = index_in_id(name)
        if index is None or index <= MAX_INDEX:
            return index
        message = f"ends in {index}, read as the index, which must lie in 0..{MAX_INDEX}; rename it or add index: 0"
        state.tell((*path, "id"), message)
        return _BAD_INDEX
    if not isinstance(text, str) or not re.fullmatch(r"0|[1-9][0-9]{0,6}", text, re.ASCII):
        return _BAD_INDEX
    if int(text) <= MAX_INDEX:
        return int(text)
    state.tell((*path, "index"), f"{text} lies outside 0..{MAX_INDEX}")
    return _BAD_INDEX


def _places(state: _Check) -> None:
    """Two devices of one kind on one host need two indices; topology ids must differ."""
    taken: dict[Any, Path] = {}
    for seat in state.seats:
        if state.owners[seat.id] != (*seat.path, "id"):
            continue
        if seat.index is not None and seat.kind is not None and seat.host is not None:
            path = (*seat.path, "index") if state.data["devices"][seat.position].get("index") else (*seat.path, "id")
            what = f"index {seat.index} of {seat.kind} on {printable(seat.host)} is that"
            state.claim(taken, (seat.host, seat.kind, seat.index), path, what)
    if state.told:
        return
    one_node = is_one_node(seat.host for seat in state.seats)
    numbered = [(s.id, topology_id(s.id, s.kind, s.index, one_node=one_node)) for s in state.seats if s.kind in KINDS]
    places = {seat.id: (*seat.path, "id") for seat in state.seats}
    for first, second, number in collisions(numbered):
        state.tell(places[second], f"has the topology id {number} of {first}; rename one of them")


def is_one_node(hosts: Iterable[str | None]) -> bool:
    """Whether these hosts of devices are all the same one."""
    return len(set(hosts)) <= 1


def _links(state: _Check) -> None:
    known = [name for name in {**state.owners, **state.hosts} if re.fullmatch(ID_PATTERN, name, re.ASCII)]
    hosts = set(state.hosts)
    seen: dict[Any, Path] = {}
    for position, row in rows(state.data, "links"):
        path: Path = ("links", position)
        src, dst = row.get("from"), row.get("to")
        for key, end in (("from", src), ("to", dst)):
            if isinstance(end, str) and end not in state.owners and end not in hosts:
                state.tell((*path, key), f"{printable(end)} is no device or host of this file{state.hint(end, known)}")
        if not isinstance(src, str) or not isinstance(dst, str):
            continue
        if src == dst:
            state.tell((*path, "to"), "is where the link begins; copies within a device need no link: remove it")
            continue
        if row.get("peer_access") is not None and hosts & {src, dst}:
            state.tell(
                (*path, "peer_access"), "is for links between two devices; remove it from this link with a host end"
            )
        kind = row["kind"] if isinstance(row.get("kind"), str) else ""
        ways = [(src, dst), (dst, src)] if row.get("bidirectional") == "true" else [(src, dst)]
        for way in ways:
            what = f"{printable(way[0])} -> {printable(way[1])} ({printable(kind)}) is the link"
            if not state.claim(seen, (*way, kind), path, what, "remove one, or write its lanes as count"):
                break
