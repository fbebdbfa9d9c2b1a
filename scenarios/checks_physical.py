"""Whether two phases really ran on two physical devices, and on those that were planned: never by an ordinal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fleet.identity import pci_key, uuid_key
from scenarios.case import Case, Document
from scenarios.finding import Finding, failed, inconclusive, passed, waived


def two_physical_devices(case: Case) -> Finding:
    """Fails on-device when prefill and decode turn out to be one physical device; ordinals prove nothing.

    Spelling makes no second device: UUIDs are compared without case, blanks and hyphens, PCI addresses by their
    numbers, processors by machine and socket. What the dispatches say they ran on must be what the run lists, and
    what the run lists the card that was planned.
    """
    if case.is_oracle:
        return waived("prefill and decode are placed on one device")
    if case.b["tier"] == "emulated":
        return inconclusive("both devices are emulated by one processor", required=False)
    names = [case.orders[phase] for phase in ("prefill", "decode")]
    physical = {entry["device"]: entry for entry in case.b["physical_devices"]}
    first, second = (physical.get(name) for name in names)
    if first is None or second is None:
        return inconclusive("the run does not say which physical devices took part")
    other = next(other_cards(case), None)
    if other is not None:
        return failed(other)
    uuids, pcis = ([read(entry) for entry in (first, second)] for read in (_uuid, _pci))
    for field, (one, another) in (("uuid", uuids), ("pci", pcis)):
        if one is not None and one == another:
            return failed(f"{names[0]} and {names[1]} have one {field}: one physical device")
    for name, uuid in zip(names, uuids, strict=True):
        dispatched = {_uuid(entry) for entry in case.b["dispatches"] if entry["device"] == name} - {None, uuid}
        if dispatched:
            return failed(f"{name} dispatched on another UUID than the one listed for it")
    kinds = {device["id"]: device["kind"] for device in case.orders["devices"]}
    if kinds[names[0]] != kinds[names[1]]:
        return passed("one GPU and one CPU" if set(kinds.values()) == {"gpu", "cpu"} else "two devices of unlike kind")
    if set(kinds.values()) == {"cpu"}:
        return _two_processors(first, second)
    if None in uuids:
        return inconclusive("no UUID is known for both devices; an ordinal identifies nothing")
    return passed("two UUIDs" + (" and two PCI addresses" if None not in pcis else ""))


def other_cards(case: Case) -> Iterator[str]:
    """Each device that ran on another card than the plan names. Emulation is asked for, and names no card."""
    if case.b["tier"] == "emulated":
        return
    physical = {entry["device"]: entry for entry in case.b["physical_devices"]}
    for device in case.orders["devices"]:
        entry = physical.get(device["id"], {})
        for what, read in (("uuid", _uuid), ("pci", _pci)):
            planned, seen = read(device), read(entry)
            if planned is not None and seen is not None and planned != seen:
                yield f"{device['id']} was planned on {what} {device[what]} and ran on {entry[what]}"


def _two_processors(first: Document, second: Document) -> Finding:
    """CPUs are told apart by the machine and, within one, by the socket."""
    machines = [entry.get("machine") for entry in (first, second)]
    sockets = [entry.get("socket") for entry in (first, second)]
    if None in machines:
        return inconclusive("the machine of a CPU is not known; an ordinal identifies nothing")
    if machines[0] != machines[1]:
        return passed("two CPUs of two machines")
    if None in sockets:
        return inconclusive("both CPUs are in one machine, and their sockets are not known")
    if sockets[0] == sockets[1]:
        return failed("both CPUs are one socket of one machine: one physical device")
    return passed("two sockets of one machine")


def _uuid(entry: Mapping[str, Any]) -> str | None:
    uuid = entry.get("uuid")
    return None if uuid is None else uuid_key(str(uuid))


def _pci(entry: Mapping[str, Any]) -> str | None:
    pci = entry.get("pci")
    return None if pci is None else pci_key(str(pci))
