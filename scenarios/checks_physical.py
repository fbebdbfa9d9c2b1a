"""Whether two phases really ran on two physical devices: by UUID and PCI address, never by an ordinal."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scenarios.case import Case, Document
from scenarios.finding import Finding, failed, inconclusive, passed, waived

_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])")


def two_physical_devices(case: Case) -> Finding:
    """Fails on-device when prefill and decode turn out to be one physical device; ordinals prove nothing.

    Spelling makes no second device: UUIDs are compared without case and blanks, PCI addresses by their numbers. What
    the dispatches say they ran on must be what the run lists.
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
    uuids, pcis = ([read(entry) for entry in (first, second)] for read in (_uuid, _pci))
    for field, (one, other) in (("uuid", uuids), ("pci", pcis)):
        if one is not None and one == other:
            return failed(f"{names[0]} and {names[1]} have one {field}: one physical device")
    for name, uuid in zip(names, uuids, strict=True):
        dispatched = {_uuid(entry) for entry in case.b["dispatches"] if entry["device"] == name} - {None, uuid}
        if dispatched:
            return failed(f"{name} dispatched on another UUID than the one listed for it")
    kinds = {device["id"]: device["kind"] for device in case.orders["devices"]}
    if kinds[names[0]] != kinds[names[1]]:
        return passed("one GPU and one CPU" if set(kinds.values()) == {"gpu", "cpu"} else "two devices of unlike kind")
    if None in uuids:
        return inconclusive("no UUID is known for both devices; an ordinal identifies nothing")
    return passed("two UUIDs" + (" and two PCI addresses" if None not in pcis else ""))


def _uuid(entry: Mapping[str, Any]) -> str | None:
    return str(entry.get("uuid") or "").strip().casefold() or None


def _pci(entry: Document) -> str | None:
    """`0000:1:00.0`, `00000000:01:00.0` and `01:00.0` are one address."""
    text = str(entry.get("pci") or "").strip().casefold()
    found = _PCI.fullmatch(text)
    if found is None:
        return text or None
    return ":".join(str(int(part or "0", 16)) for part in found.groups())
