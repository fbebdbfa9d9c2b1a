"""Which ordinal of the runtime is the card that the plan means: by UUID and PCI address, never by an ordinal alone.

A fleet file, the driver's tools (NVML) and the runtime (CUDA, after `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER`)
may count the same cards in three orders. A backend with ordinals calls `resolve` once, before its first arena, with
the devices of the orders and with what its runtime sees, and from then on uses `Match.ordinal` alone:

    visible = [VisibleDevice(ordinal=i, uuid=..., pci=..., name=...) for i in range(count)]   # in the runtime's order
    matches = resolve(gpu_specs, visible, present=nvml_cards, setting=os.environ.get("CUDA_VISIBLE_DEVICES"))
    ordinal = matches["gpu:0"].ordinal
    ...
    def physical_devices(self): return [match.entry() for match in self._matches.values()]

The device that the driver then reports for that ordinal can be held against the match with `confirm`. Pure Python: no
driver is loaded here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, Protocol

from fleet.errors import DeviceMismatchError, InconclusiveError, PlacementError
from fleet.identity import pci_key, uuid_key
from fleet.yaml_source import printable

__all__ = ["Match", "PlannedDevice", "VisibleDevice", "confirm", "resolve"]

_LISTED = 8


class PlannedDevice(Protocol):
    """What is asked of a device of the orders; `executor.device.DeviceSpec` and `OrderedDevice` have it."""

    @property
    def id(self) -> str: ...
    @property
    def index(self) -> int | None: ...
    @property
    def host(self) -> str: ...
    @property
    def uuid(self) -> str | None: ...
    @property
    def pci(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class VisibleDevice:
    """A device as a runtime or a driver lists it. `ordinal` is its place in that list; None = the list does not say."""

    ordinal: int
    uuid: str | None = None
    pci: str | None = None
    name: str | None = None

    def __str__(self) -> str:
        known = [part for part in (self.name, self.uuid, self.pci) if part]
        return printable(f"{self.ordinal} ({', '.join(known) or 'it does not say which card it is'})", 160)


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """The card found for a device of the plan. `by` says what it was found by; `ordinal` proves no identity."""

    device: str
    found: VisibleDevice
    by: Literal["uuid", "pci", "ordinal"]

    @property
    def ordinal(self) -> int:
        """The runtime's number of the card: what every call to the runtime must name."""
        return self.found.ordinal

    def entry(self) -> dict[str, Any]:
        """The row of `physical_devices` in a run: {device, ordinal, uuid, pci, name}."""
        seen = self.found
        return {
            "device": self.device,
            "ordinal": seen.ordinal,
            "uuid": seen.uuid,
            "pci": seen.pci,
            "name": seen.name,
        }


def resolve(
    planned: Iterable[PlannedDevice],
    visible: Sequence[VisibleDevice],
    *,
    present: Sequence[VisibleDevice] | None = None,
    setting: str | None = None,
) -> dict[str, Match]:
    """The card of each device of the plan, by device id, in the order of the plan.

    A device with a UUID or a PCI address is found by these, wherever the runtime lists it; one with neither is taken
    by its index, unless another device of the plan is that card. `present` is what the driver lists whatever the
    runtime is shown, `setting` the value of `CUDA_VISIBLE_DEVICES`: both only for the words of an error.

    Raises PlacementError (code 2): two devices of the plan are one card by what the plan itself says.
    Raises InconclusiveError (code 3), with every fault: a card is not visible or not here, its UUID and PCI address
    name two cards, the runtime lists one identity twice or none, two devices end on one card.
    """
    wanted = list(planned)
    _plan_is_clear(wanted)
    look = _Look(visible, present, setting)
    matches: dict[str, Match] = {}
    faults = look.faults()
    for device in sorted(wanted, key=lambda d: uuid_key(d.uuid) is None and pci_key(d.pci) is None):
        found = look.find(device)
        if isinstance(found, str):
            faults.append(f"{device.id}: {found}")
            continue
        taken = next((m.device for m in matches.values() if m.ordinal == found.ordinal), None)
        if taken is not None:
            faults.append(
                f"{device.id}: the runtime's device {found.found} is {taken} already; give both their uuid in the fleet"
            )
        else:
            matches[device.id] = found
    if faults:
        raise InconclusiveError("; ".join(faults) + look.shown())
    return {device.id: matches[device.id] for device in wanted}


def confirm(match: Match, uuid: str | None, pci: str | None = None) -> None:
    """Holds what the driver says of the device in use against the match. Unknown confirms nothing and refuses nothing.

    Raises DeviceMismatchError: work would go to another card than the one resolved.
    """
    for what, told, held in (
        ("uuid", uuid_key(uuid), uuid_key(match.found.uuid)),
        ("pci address", pci_key(pci), pci_key(match.found.pci)),
    ):
        if told is not None and held is not None and told != held:
            raise DeviceMismatchError(
                f"{match.device}: the device in use has another {what} than ordinal {match.ordinal} had when it was "
                f"chosen ({printable((uuid if what == 'uuid' else pci) or '')}, then {match.found})"
            )


def _plan_is_clear(wanted: Sequence[PlannedDevice]) -> None:
    """Raises PlacementError when two devices of the plan have one identity."""
    uuids: dict[str, str] = {}
    places: dict[tuple[str, str], PlannedDevice] = {}
    for device in wanted:
        uuid, pci = uuid_key(device.uuid), pci_key(device.pci)
        if uuid is not None and uuids.setdefault(uuid, device.id) != device.id:
            _one_card(uuids[uuid], device.id, "uuid")
        if pci is None:
            continue
        other = places.setdefault((device.host, pci), device)
        # Slices of one card have one address, and UUIDs of their own.
        if other is not device and (uuid is None or uuid_key(other.uuid) is None):
            _one_card(other.id, device.id, "pci address")


def _one_card(first: str, second: str, what: str) -> NoReturn:
    raise PlacementError(f"{first} and {second} have one {what} in the plan, so they are one card; mend the fleet")


class _Look:
    """What can be seen, by identity."""

    def __init__(
        self, visible: Sequence[VisibleDevice], present: Sequence[VisibleDevice] | None, setting: str | None
    ) -> None:
        self.visible, self.present, self.setting = visible, present, setting
        self.by_uuid = _grouped((uuid_key(seen.uuid), seen) for seen in visible)
        self.by_pci = _grouped((pci_key(seen.pci), seen) for seen in visible)

    def faults(self) -> list[str]:
        """What is wrong with the runtime's own list."""
        told = [
            f"the runtime lists one uuid twice, as {' and as '.join(map(str, same))}"
            for same in self.by_uuid.values()
            if len(same) > 1
        ]
        ordinals = Counter(seen.ordinal for seen in self.visible)
        return told + [f"the runtime lists ordinal {o} {n} times" for o, n in sorted(ordinals.items()) if n > 1]

    def find(self, device: PlannedDevice) -> Match | str:
        """The card of one device, or why there is none."""
        uuid, pci = uuid_key(device.uuid), pci_key(device.pci)
        if uuid is not None:
            return self._by_uuid(device, uuid, pci)
        if pci is not None:
            return self._by_pci(device, pci)
        if device.index is None:
            return "the plan gives neither uuid, nor pci address, nor index; give its uuid in the fleet"
        found = next((seen for seen in self.visible if seen.ordinal == device.index), None)
        if found is None:
            return f"the plan gives no uuid, and the runtime has no ordinal {device.index}"
        return Match(device=device.id, found=found, by="ordinal")

    def _by_uuid(self, device: PlannedDevice, uuid: str, pci: str | None) -> Match | str:
        shown = printable(device.uuid or "", 80)
        same = self.by_uuid.get(uuid, [])
        if not same:
            return f"the card {shown} {self._missing('uuid', uuid)}"
        where = pci_key(same[0].pci)
        if pci is not None and where is not None and pci != where:
            return (
                f"the card {shown} is at {printable(same[0].pci or '', 40)}, the plan says "
                f"{printable(device.pci or '', 40)}: its links may have changed; describe the fleet anew and admit"
            )
        return Match(device=device.id, found=same[0], by="uuid")

    def _by_pci(self, device: PlannedDevice, pci: str) -> Match | str:
        same = self.by_pci.get(pci, [])
        shown = printable(device.pci or "", 40)
        if not same:
            return f"the card at {shown} {self._missing('pci', pci)}"
        if len(same) > 1:
            return f"the card at {shown} is listed {len(same)} times (slices?); give the uuid of one in the fleet"
        return Match(device=device.id, found=same[0], by="pci")

    def _missing(self, what: Literal["uuid", "pci"], key: str) -> str:
        """Why nothing of this identity is visible."""
        keys = {seen.ordinal: _key(seen, what) for seen in self.visible}
        if None in keys.values():
            return f"cannot be told from the others: the runtime gives no {what} for some of its devices"
        hidden = next((seen for seen in self.present or () if _key(seen, what) == key), None)
        if hidden is not None:
            return f"is in this machine, the driver's number {hidden.ordinal}, but the runtime is not shown it"
        return "is not visible to the runtime" if self.present is None else "is not in this machine"

    def shown(self) -> str:
        """What the runtime does see, and the setting that decides it."""
        some = ", ".join(str(seen) for seen in self.visible[:_LISTED])
        more = f" and {len(self.visible) - _LISTED} more" if len(self.visible) > _LISTED else ""
        value = None if self.setting is None else printable(self.setting, 200) or "(empty)"
        limit = "" if value is None else f" with CUDA_VISIBLE_DEVICES={value}"
        return f"; visible{limit}: {some or 'none'}{more}"


def _key(seen: VisibleDevice, what: Literal["uuid", "pci"]) -> str | None:
    return uuid_key(seen.uuid) if what == "uuid" else pci_key(seen.pci)


def _grouped(pairs: Iterable[tuple[str | None, VisibleDevice]]) -> Mapping[str, list[VisibleDevice]]:
    groups: dict[str, list[VisibleDevice]] = {}
    for key, seen in pairs:
        if key is not None:
            groups.setdefault(key, []).append(seen)
    return groups
