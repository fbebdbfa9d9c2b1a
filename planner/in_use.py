"""A fleet with what others hold now: each holding on its device, each device with a sum or, where it is not said, None.

Never admitted on an unknown: a device whose use is not known has `in_use` None. What names no device of the fleet is
told; a text of which nothing can be mapped is of another fleet and refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from fleet.errors import DescriptionError, Fault
from fleet.identity import pci_key, uuid_key
from fleet.machine import Device, Fleet
from fleet.readers.in_use import STATED, Holding, InUse, SomeOf
from fleet.readers.in_use_smi import MIB


@dataclass(slots=True)
class _Held:
    """What is known of one device while texts are read. `sources`: the texts that count it."""

    bytes: int | None = 0
    sources: list[str] = field(default_factory=list)


def with_in_use(fleet: Fleet, readings: Sequence[InUse], digest: str | None = None) -> tuple[Fleet, tuple[str, ...]]:
    """(the fleet with `in_use` of its devices set, what could not be mapped and what is doubtful, in words).

    `digest`: that of the fleet's file, which plans must have; left out, the fleet's own. Raises DescriptionError: a
    plan of another fleet or given twice, a text that names no device of this fleet.
    """
    faults = [*_foreign_plans(readings, digest or fleet.digest, fleet.name), *_twice(readings)]
    if faults:
        raise DescriptionError(faults)
    finder = _Finder(fleet)
    held = {device.id: _Held() for device in fleet.devices}
    told: list[str] = []
    for reading in (each for each in readings if each.format != "stated"):
        told += reading.told
        mapped = sum(_book(finder, each, reading.source, held, told) for each in reading.holdings)
        mapped += _book_some(fleet, reading.some, reading.source, held, told)
        if not mapped and (reading.holdings or reading.some):
            faults.append(Fault(source=reading.source, field="", message=_of_another(fleet, reading)))
    if faults:
        raise DescriptionError(faults)
    for name, one in held.items():
        sources = list(dict.fromkeys(one.sources))
        if len(sources) > 1:
            told.append(f"{name} is counted by {' and by '.join(sources)}; both are subtracted")
    told += _state(fleet, [each for one in readings if one.format == "stated" for each in one.holdings], held)
    return _applied(fleet, held), tuple(dict.fromkeys(told))


def _foreign_plans(readings: Sequence[InUse], digest: str, name: str) -> Iterable[Fault]:
    for reading in readings:
        for other, found in reading.fleets:
            if found != digest:
                words = f"is a plan of fleet {other} ({found[:12]}), not of {name} ({digest[:12]}); admit it there"
                yield Fault(source=reading.source, field="inputs.fleet.digest", message=words)


def _twice(readings: Sequence[InUse]) -> Iterable[Fault]:
    seen: dict[str, str] = {}
    for reading in readings:
        for plan in reading.plan_ids:
            if plan in seen:
                words = f"plan {plan[:12]} was given by {seen[plan]} already; a plan is in use once"
                yield Fault(source=reading.source, field="id", message=words)
            seen[plan] = reading.source


def _of_another(fleet: Fleet, reading: InUse) -> str:
    if reading.some:
        nodes = sorted({each.node for each in reading.some})
        hosts = ", ".join(host.id for host in fleet.hosts[:4])
        return f"names no host of fleet {fleet.name} ({hosts}): its nodes are {', '.join(nodes[:4])}; label hosts so"
    return f"names no device of fleet {fleet.name}: it is of another machine; give one of this fleet"


def _state(fleet: Fleet, stated: Sequence[Holding], held: dict[str, _Held]) -> Iterable[str]:
    """What is stated of a device stands in place of what texts say of it, and that is told."""
    by_name = {each.device: each for each in stated if each.device is not None}
    if len(by_name) < len(stated):
        names = [each.device for each in stated]
        twice = next(name for name in names if names.count(name) > 1)
        raise DescriptionError.at(STATED, "", f"states the use of {twice} twice; keep one")
    before = {name: held[name].bytes for name in by_name}
    parents = {device.id: device.parent for device in fleet.devices}
    for name, holding in sorted(by_name.items(), key=lambda each: parents[each[0]] is None):  # slices before cards
        one = held[name]
        if one.sources and one.bytes != holding.bytes:
            was = "nothing that is known" if one.bytes is None else f"{one.bytes:,} B"
            yield f"{name} holds {holding.bytes:,} B as stated, in place of {was} by {' and by '.join(one.sources)}"
        held[name] = _Held(holding.bytes, [STATED])
        for part in (d for d in fleet.devices if d.parent == name and not held[d.id].sources):
            _add(held[part.id], None if holding.bytes else 0, STATED)  # on which slice it lies is not said
    slices: dict[str, list[str]] = {}
    for each, parent in parents.items():
        if parent is not None and each in by_name:
            slices.setdefault(parent, []).append(each)
    for card, own in slices.items():
        parts = sum(by_name[each].bytes or 0 for each in own)
        if card not in by_name:
            _state_slices(held[card], [(before[each], by_name[each].bytes or 0) for each in own])
        elif parts > (by_name[card].bytes or 0):
            yield f"{card} is stated to hold less than its slices, {', '.join(own)}: {parts:,} B"


def _state_slices(card: _Held, slices: Sequence[tuple[int | None, int]]) -> None:
    """What is stated of slices lies on their card too: in place of what was known of each, as (before, stated).

    What a text says of the card alone may be theirs: it holds no less than is stated of them.
    """
    card.sources.append(STATED)
    if card.bytes is not None:
        card.bytes += sum(stated - known for known, stated in slices if known is not None)
        card.bytes = max(card.bytes, sum(stated for _, stated in slices))


class _Finder:
    """The device that a holding means."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.ids = {device.id: device for device in fleet.devices}
        self.uuids = {uuid_key(d.uuid): d for d in fleet.devices if d.uuid}
        self.cards = [d for d in fleet.devices if d.kind == "gpu" and d.parent is None]

    def find(self, holding: Holding) -> tuple[Device | None, str]:
        """(device, "") or (None, why not)."""
        if holding.device is not None:
            return self.ids.get(holding.device), f"{holding.device} is no device of fleet {self.fleet.name}"
        if holding.uuid is not None and (found := self.uuids.get(uuid_key(holding.uuid))) is not None:
            return found, ""
        near = [d for d in self.cards if holding.node is None or _is_host(self.fleet, d.host, holding.node)]
        if holding.pci is not None:
            same = [d for d in near if d.pci is not None and pci_key(d.pci) == pci_key(holding.pci)]
            if len(same) == 1:
                return self._unless_other(same[0], holding)
        if holding.index is not None:
            same = [d for d in near if d.index == holding.index]
            if len(same) == 1:
                return self._unless_other(same[0], holding)
            if same:
                names = ", ".join(device.id for device in same[:4])
                return None, f"{names} have this index; name the GPU by uuid or pci.bus_id, which the fleet must state"
        return None, f"no device of fleet {self.fleet.name} has its uuid, PCI address or index"

    def _unless_other(self, device: Device, holding: Holding) -> tuple[Device | None, str]:
        for what, stated, found, key in (
            ("uuid", holding.uuid, device.uuid, uuid_key), ("PCI address", holding.pci, device.pci, pci_key),
        ):  # fmt: skip
            if stated is not None and found is not None and key(stated) != key(found):
                return None, f"{device.id} of fleet {self.fleet.name} has another {what}"
        return device, ""


def _book(finder: _Finder, holding: Holding, source: str, held: dict[str, _Held], told: list[str]) -> int:
    """1 where the holding was put on a device, else 0 and told."""
    device, why = finder.find(holding)
    if device is None:
        told.append(f"{holding.what} ({source}) is mapped to no device: {why}")
        return 0
    capacity = device.memory.capacity.value
    nbytes = capacity if holding.whole else holding.bytes
    stated = holding.capacity_bytes
    if stated is not None and capacity is not None and abs(stated - capacity) * 10 > capacity:
        told.append(f"{holding.what} ({source}) has {stated:,} B, but {device.id} of the fleet {capacity:,} B")
    if stated is None and nbytes is not None and capacity is not None and nbytes >= capacity + MIB:
        told.append(f"{holding.what} ({source}) holds {nbytes:,} B, more than the {capacity:,} B of {device.id}")
    _add(held[device.id], nbytes, source)
    for part in (d for d in finder.fleet.devices if d.parent == device.id):
        _add(held[part.id], None if nbytes is None or nbytes else 0, source)  # on which slice it lies is not said
    if device.parent is not None and device.parent in held:
        _add(held[device.parent], nbytes, source)
    return 1


def _add(one: _Held, nbytes: int | None, source: str) -> None:
    one.bytes = None if one.bytes is None or nbytes is None else one.bytes + nbytes
    one.sources.append(source)


def _book_some(
    fleet: Fleet, some: Sequence[SomeOf], source: str, held: dict[str, _Held], told: list[str]
) -> int:  # fmt: skip
    """Devices that are taken without saying which: all of a node, or unknown for each of them."""
    mapped = 0
    wanted: dict[tuple[str, str | None], int] = {}
    for each in some:
        if each.count is not None:
            wanted[each.node, each.profile] = wanted.get((each.node, each.profile), 0) + each.count
    mapped += _book_shares(fleet, {each.node for each in some if each.count is None}, source, held, told)
    for (node, profile), count in wanted.items():
        kind = "GPUs" if profile is None else f"slices {profile}"
        near = [d for d in fleet.devices if _is_host(fleet, d.host, node) and _is_kind(d, profile)]
        if not near:
            told.append(f"{count} {kind} of node {node} ({source}) are in use; fleet {fleet.name} has none there")
            continue
        mapped += 1
        everything = count >= len(near)
        if not everything:
            told.append(f"{count} of {len(near)} {kind} of node {node} are in use ({source}); which is not said")
        for device in near:
            _add(held[device.id], device.memory.capacity.value if everything else None, source)
    return mapped


def _book_shares(fleet: Fleet, shared: set[str], source: str, held: dict[str, _Held], told: list[str]) -> int:
    """Nodes of which parts of GPUs are taken: what is in use there is unknown, on cards and on slices."""
    mapped = 0
    for node in sorted(shared):
        near = [d for d in fleet.devices if d.kind == "gpu" and _is_host(fleet, d.host, node)]
        if not near:
            told.append(f"shares of GPUs of node {node} ({source}) are in use; fleet {fleet.name} has none there")
            continue
        mapped += 1
        told.append(f"shares of GPUs of node {node} are in use ({source}); of which, and how much, is not said")
        for device in near:
            _add(held[device.id], None, source)
    return mapped


def _is_kind(device: Device, profile: str | None) -> bool:
    return device.kind == "gpu" and (device.parent is None if profile is None else device.profile == profile)


def _is_host(fleet: Fleet, host_id: str, node: str) -> bool:
    """Whether a node's name is that of a host: its id without `/host`, its label, or the node it is part of."""
    host = fleet.host(host_id)
    if host is None:
        return node in (host_id, host_id.removesuffix("/host"))
    whole = () if host.node is None else (host.node, host.node.rpartition("/")[0])
    return node in (host_id, host_id.removesuffix("/host"), host.label, *whole)


def _applied(fleet: Fleet, held: dict[str, _Held]) -> Fleet:
    """Devices that lie in one memory have its whole use each."""
    shared: dict[str, int | None] = {}
    for device in fleet.devices:
        name, nbytes = device.memory.physical, held[device.id].bytes
        if name is not None:
            before = shared.get(name, 0)
            shared[name] = None if before is None or nbytes is None else before + nbytes
    devices = tuple(
        replace(d, in_use=held[d.id].bytes if d.memory.physical is None else shared[d.memory.physical])
        for d in fleet.devices
    )
    words = f"{fleet.digest} " + " ".join(f"{d.id}={d.in_use}" for d in devices if d.in_use != 0)
    digest = hashlib.sha256(words.encode()).hexdigest() if fleet.digest else ""
    return replace(fleet, devices=devices, digest=digest)
