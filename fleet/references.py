"""What joins the fields of a fleet file: ids, link ends, default memories, indices, hosts, SKUs.

Works on the plain data, tolerant of what is misshapen (`fleet.schema` tells that), so that one pass tells every fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from fleet.catalog.skus import sku_names
from fleet.errors import MAX_FAULTS_TOLD
from fleet.identity import (
    ID_PATTERN,
    MAX_INDEX,
    collisions,
    index_in_id,
    kind_in_id,
    pci_key,
    topology_id,
    uuid_key,
)
from fleet.reference_links import check_fabric, check_links
from fleet.reference_memories import check_claims, check_default, check_memories, check_skus
from fleet.reference_nodes import Stamps
from fleet.yaml_source import Path, nearest, printable

DEFAULT_HOST = "host"
_BAD_INDEX = -1
KINDS = ("gpu", "cpu", "npu")

Told = tuple[Path, str, bool]
Seen = Callable[[Path], tuple[int, str]]
"""(line, field as written) of a path of the data."""


@dataclass(slots=True)
class _Seat:
    """One device as far as its place is concerned."""

    position: int
    path: Path
    id: str
    kind: str | None
    host: str | None
    index: int | None


@dataclass(slots=True)
class Part:
    """A file or one of its templates: the ids found so far and the faults told so far (paths are those of the file)."""

    data: dict[str, Any]
    skus: dict[str, Any]
    seen: Seen
    start: Path = ()
    told: list[Told] = field(default_factory=list)
    owners: dict[str, Path] = field(default_factory=dict)
    hosts: dict[str, None] = field(default_factory=dict)
    through: set[str] = field(default_factory=set)
    """Ids of hosts and NICs: links that end there know no peer access."""
    hints: int = 0
    seats: list[_Seat] = field(default_factory=list)

    def tell(self, path: Path, message: str) -> None:
        self.told.append((path, message, False))

    def rows(self, section: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """(path, row) of each mapping of a list section; anything else is skipped."""
        for position, row in rows(self.data, section):
            yield (*self.start, section, position), row

    def claim(self, seen: dict[Any, Path], key: Any, path: Path, what: str, mend: str = "give each its own") -> bool:
        """Whether `key` was free; tells a fault when it was claimed before."""
        first = seen.setdefault(key, path)
        if first is not path:
            line, name = self.seen(first)
            self.tell(path, f"{what} of {name} too, at line {line}; {mend}")
        return first is path

    def hint(self, word: str, known: Iterable[str]) -> str:
        """`; did you mean ...?`, for as many faults as are ever told: each search walks over all of `known`."""
        self.hints += 1
        return nearest(word, known) if self.hints <= MAX_FAULTS_TOLD else ""


def check(data: dict[str, Any], seen: Seen) -> list[Told]:
    """Every fault of reference as (path, message, at the key). `seen` gives line and field of a path."""
    skus = data["skus"] if isinstance(data.get("skus"), dict) else {}
    templates = data["templates"] if isinstance(data.get("templates"), dict) else {}
    whole = Part(data, skus, seen)
    parts = [Part(part, skus, seen, ("templates", name), whole.told) for name, part in templates.items()]
    check_skus(whole)
    stamps = Stamps(templates)
    for part in [whole, *(part for part in parts if isinstance(part.data, dict))]:
        _ids(part)
        _devices(part)
        check_claims(part)
        _nics_and_switches(part)
        stamps.check_nodes(part)
        check_links(part, stamps)
    check_fabric(whole, stamps)
    for part in [whole, *(part for part in parts if isinstance(part.data, dict))]:
        _places(part)
    return whole.told


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


def _ids(state: Part) -> None:
    for section in ("hosts", "devices", "switches", "nics", "nodes"):
        for path, row in state.rows(section):
            name = row.get("id")
            if isinstance(name, str):
                state.claim(state.owners, name, (*path, "id"), f"{printable(name)} is the id")
                if section == "hosts":
                    state.hosts[name] = None
                if section in ("hosts", "nics"):
                    state.through.add(name)
    if state.data.get("hosts") in (None, []) and (state.data.get("devices") or not state.data.get("nodes")):
        state.hosts[DEFAULT_HOST] = None
        state.through.add(DEFAULT_HOST)
        if DEFAULT_HOST in state.owners:
            state.tell(state.owners[DEFAULT_HOST], "is the id of the host, which a file without hosts has; rename it")


def _devices(state: Part) -> None:
    devices = state.data.get("devices")
    if not state.start and not state.data.get("nodes"):
        if devices is None:
            state.tell(("devices",), "is missing; a fleet has at least one device")
        if isinstance(devices, list) and not devices:
            state.tell(("devices",), "is empty; a fleet has at least one device")
    uuids: dict[Any, Path] = {}
    addresses: dict[Any, Path] = {}
    for path, row in state.rows("devices"):
        sku = _sku_of(state, row, path)
        check_memories(state, row, path)
        if sku is not None:
            memories = row.get("memories") if row.get("memories") is not None else sku.get("memories")
            if not memories:
                state.tell(path, "has no memory; add memories: [{name: main, capacity: 80 GiB}] here or to its sku")
            elif row.get("memories") is not None or row.get("default_memory") is not None:
                check_default(state, memories, _default_name(row, sku, memories), path)
        host = _host_of(state, row, path)
        _seat(state, row, sku, host, path)
        _slice(state, row, path)
        if isinstance(row.get("uuid"), str):
            state.claim(uuids, uuid_key(row["uuid"]), (*path, "uuid"), "is the uuid")
        if isinstance(row.get("pci"), str):
            state.claim(addresses, (host, pci_key(row["pci"])), (*path, "pci"), "is the pci address")


def _default_name(row: dict[str, Any], sku: dict[str, Any], memories: Any) -> Any:
    """The device's own default memory; its SKU's where that is one of the device's memories."""
    if row.get("default_memory") is not None or not isinstance(memories, list):
        return row.get("default_memory")
    names = [memory.get("name") for memory in memories if isinstance(memory, dict)]
    return sku.get("default_memory") if sku.get("default_memory") in names else None


def _sku_of(state: Part, row: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The device's SKU, empty when it names none, None when that cannot be said (told, here or by the shape)."""
    name = row.get("sku")
    if name is None:
        return {}
    if not isinstance(name, str):
        return None
    if name not in state.skus:
        known = f" (skus: {_some(state.skus)})" if state.skus else ""
        hint = state.hint(name, [*state.skus, *sku_names()])
        state.tell((*path, "sku"), f"{printable(name)} is no sku of this file, nor of the catalog{hint}{known}")
        return None
    return state.skus[name] if isinstance(state.skus[name], dict) else None


def _host_of(state: Part, row: dict[str, Any], path: Path) -> str | None:
    host = row.get("host")
    if host is None and isinstance(row.get("parent"), str):
        cards = [card.get("host") for _, card in state.rows("devices") if card.get("id") == row["parent"]]
        host = cards[0] if cards else None
        if host is None:
            return next(iter(state.hosts)) if len(state.hosts) == 1 else None  # told at the card
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


def _seat(state: Part, row: dict[str, Any], sku: dict[str, Any] | None, host: str | None, path: Path) -> None:
    name = row.get("id")
    if not isinstance(name, str) or not re.fullmatch(ID_PATTERN, name, re.ASCII):
        return
    kind = row.get("kind")
    if kind is None and sku is not None:
        kind = sku.get("kind") if sku else kind_in_id(name)
        if kind is None and not sku:
            state.tell(path, "needs kind: gpu, cpu or npu")
    index = None if row.get("parent") and row.get("index") is None else _index(state, row.get("index"), name, path)
    if index != _BAD_INDEX:
        kind = kind if isinstance(kind, str) else None
        state.seats.append(_Seat(int(path[-1]), path, name, kind, host, index))


def _slice(state: Part, row: dict[str, Any], path: Path) -> None:
    """A slice names a whole card beside it, and has a memory of its own."""
    parent = row.get("parent")
    if not isinstance(parent, str):
        if row.get("profile") is not None and parent is None:
            state.tell((*path, "profile"), "is for a slice of a card; name the card with parent")
        return
    cards = {card.get("id"): card for _, card in state.rows("devices") if isinstance(card.get("id"), str)}
    if parent == row.get("id"):
        state.tell((*path, "parent"), "is the slice itself; name the card that it is a slice of")
    elif parent not in cards:
        known = state.hint(parent, [name for name, card in cards.items() if name and card.get("parent") is None])
        state.tell((*path, "parent"), f"{printable(parent)} is no device here{known}")
    elif cards[parent].get("parent") is not None:
        state.tell((*path, "parent"), f"{printable(parent)} is a slice itself; name the card")
    elif isinstance(row.get("host"), str) and row["host"] != cards[parent].get("host", row["host"]):
        state.tell((*path, "host"), f"is not the host of its card {printable(parent)}; remove it")
    if not row.get("memories"):
        state.tell(path, "is a slice and needs memories of its own: its share of the card")


def _nics_and_switches(state: Part) -> None:
    for path, row in state.rows("nics"):
        _host_of(state, row, path)
    for path, row in state.rows("switches"):
        if row.get("host") is not None:
            _host_of(state, row, path)


def _index(state: Part, text: Any, name: str, path: Path) -> int | None:
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


def _places(state: Part) -> None:
    """Two devices of one kind on one host need two indices; topology ids must differ."""
    taken: dict[Any, Path] = {}
    for seat in state.seats:
        if state.owners[seat.id] != (*seat.path, "id"):
            continue
        if seat.index is not None and seat.kind is not None and seat.host is not None:
            path = (*seat.path, "index") if state.data["devices"][seat.position].get("index") else (*seat.path, "id")
            what = f"index {seat.index} of {seat.kind} on {printable(seat.host)} is that"
            state.claim(taken, (seat.host, seat.kind, seat.index), path, what)
    if state.told or state.start or state.data.get("nodes"):
        return  # of stamped nodes the ids are known once they are stamped
    one_node = is_one_node(seat.host for seat in state.seats)
    numbered = [(s.id, topology_id(s.id, s.kind, s.index, one_node=one_node)) for s in state.seats if s.kind in KINDS]
    places = {seat.id: (*seat.path, "id") for seat in state.seats}
    for first, second, number in collisions(numbered):
        state.tell(places[second], f"has the topology id {number} of {first}; rename one of them")


def is_one_node(hosts: Iterable[str | None]) -> bool:
    """Whether these hosts of devices are all the same one."""
    return len(set(hosts)) <= 1
