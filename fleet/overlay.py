"""Measurements laid over a fleet: they fill `observed` of the links they speak of and leave `declared` alone.

A figure lands only on the link that it describes: between the cards that were measured, found by PCI address where both
say it, and over the way that the copies took. A copy staged over host memory is the rate of no single link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fleet.build import NO_RUNTIME
from fleet.catalog.products import card_of_name, claimed_card
from fleet.catalog.skus import sku_names
from fleet.digest import fleet_digest
from fleet.errors import DescriptionError, Fault
from fleet.identity import pci_key
from fleet.lint import warnings_of
from fleet.machine import Device, Figure, Fleet, Link, Quantity
from fleet.readers import MeasuredCard, Observation
from fleet.units import format_rate, format_seconds
from fleet.yaml_source import printable

__all__ = ["lay_over"]

_LISTED = 4


def lay_over(
    fleet: Fleet,
    observations: Iterable[Observation],
    *,
    cards: Sequence[MeasuredCard] = (),
    source: str = "measurements",
) -> tuple[Fleet, tuple[str, ...]]:
    """(the fleet with the observations in it, what is to be said of them). `cards` are the devices measured.

    Of several links between two ids the fastest declared one is taken to be the one that was measured. What describes
    no link of the fleet is not kept, and said so; one that contradicts an earlier one stands, both told.

    Raises DescriptionError: another card was measured than the fleet has, or nothing fits.
    """
    ids, moved = _matched(fleet, cards, source)
    layer = _Layer(fleet)
    seen = [replace(row, src=ids.get(row.src, row.src), dst=ids.get(row.dst, row.dst)) for row in observations]
    for row in seen:
        layer.take(row)
    if seen and not layer.kept:
        raise DescriptionError.at(source, "", layer.nothing(len(seen)))
    laid = replace(fleet, links=tuple(layer.links))
    undeclared = [device.id for device in laid.devices if device.runtime == NO_RUNTIME]
    found = warnings_of(laid, {device.id: device.arch for device in laid.devices}, undeclared)
    told = tuple(dict.fromkeys((*moved, *layer.told, *layer.lost())))
    return replace(laid, digest=fleet_digest(laid), warnings=(*told, *found)), told


class _Layer:
    """The links of a fleet while observations are laid over them."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.links = list(fleet.links)
        self.between: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, link in enumerate(self.links):
            self.between[link.src, link.dst].append(place)
        self.kept = 0
        self.told: list[str] = []
        self.left: dict[str, list[str]] = defaultdict(list)
        """What was not kept, by the reason."""
        self.laid: set[tuple[int, str]] = set()
        """The links and quantities that this text has laid already."""
        self.again: dict[str, list[str]] = defaultdict(list)
        """What several tests of this text measured unlike, by the tests."""

    def take(self, seen: Observation) -> None:
        """Lays one observation, or says why it fits nowhere."""
        places = self.between.get((seen.src, seen.dst), [])
        fitting = [place for place in places if _describes(seen, self.links[place])]
        if not fitting:
            accesses = {self.links[place].peer_access for place in places}
            self.left[_why(seen, bool(places), "direct" in accesses)].append(
                f"{seen.src} -> {seen.dst} ({seen.quantity})"
            )
            return
        place = max(fitting, key=lambda i: (self.links[i].bandwidth.value or 0, -i))
        self._tell_clash(place, seen)
        self.links[place] = _observed(self.links[place], seen)
        self.laid.add((place, seen.quantity))
        self.kept += 1

    def _tell_clash(self, place: int, seen: Observation) -> None:
        """Tells an earlier figure that the new one takes the place of, when they differ."""
        link, rate = self.links[place], seen.quantity == "bandwidth"
        before = (link.bandwidth if rate else link.latency).observed
        if before is None or before.value == seen.value:
            return
        show = format_rate if rate else format_seconds
        way = f"{link.src} -> {link.dst}"
        if (place, seen.quantity) in self.laid:
            tests = f"{before.note or before.source}, then {seen.note or seen.tool}"
            self.again[tests].append(f"{way} {show(seen.value)}, not {show(before.value)}")
            return
        both = f"{seen.tool} says {show(seen.value)}, {before.source} said {show(before.value)}"
        self.told.append(f"{way} {seen.quantity}: {both}; {show(seen.value)} is kept")

    def lost(self) -> list[str]:
        """One sentence for each reason."""
        again = [
            f"measured by several tests ({tests}), the last is kept: {_some(n)}" for tests, n in self.again.items()
        ]
        lost = {why: list(dict.fromkeys(names)) for why, names in self.left.items()}
        return again + [f"measured, but {why}, so it is not kept: {_some(names)}" for why, names in lost.items()]

    def nothing(self, count: int) -> str:
        """What was looked for where nothing fits."""
        devices = {device.id for device in self.fleet.devices}
        pairs = [f"{a} -> {b}" for a, b in self.between if a in devices or b in devices]
        why = "; ".join(f"{reason}: {_some(names)}" for reason, names in self.left.items())
        switched = sorted({switch.id for switch in self.fleet.switches})
        over = f"; its devices are joined over {_some(switched)}, and the rate of a pair is that of no one link"
        hint = over if switched else ""
        name = printable(self.fleet.name)
        return f"none of its {count} measurements is of a link of fleet {name} ({why}); its links: {_some(pairs)}{hint}"


def _describes(seen: Observation, link: Link) -> bool:
    """Whether the figure is one of this link: a peer copy ran over it, or an end is a host, or nobody says."""
    if seen.access == "staged":
        return False
    return seen.access is None or link.peer_access in ("direct", "unknown", None)


def _why(seen: Observation, linked: bool, direct: bool) -> str:
    if not linked:
        return "the fleet has no such link"
    if seen.access == "peer":
        return f"{seen.tool} found peer access where the fleet says staged"
    if direct:
        return f"{seen.tool} found no peer access where the fleet says direct"
    return "it is a copy staged over host memory and so the rate of no single link"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _matched(fleet: Fleet, cards: Sequence[MeasuredCard], source: str) -> tuple[dict[str, str], list[str]]:
    """(id in the fleet by the tool's id, what moved). Raises DescriptionError for cards that are not the fleet's."""
    by_pci = {pci_key(device.pci): device for device in fleet.devices if device.pci is not None}
    ids: dict[str, str] = {}
    moved: list[str] = []
    faults: list[Fault] = []
    for card in cards:
        device = fleet.device(card.id)
        if card.pci is not None and by_pci:
            found = by_pci.get(pci_key(card.pci))
            if found is None and device is not None and device.pci is not None:
                shown = f"was measured at PCI {card.pci}; the fleet has {device.id} at {printable(device.pci)}"
                faults.append(Fault(source=source, field=card.id, message=f"{shown} and no card at the former"))
                continue
            device = device if found is None else found
        if device is None:
            continue
        other = _other_name(card, device)
        if other is not None:
            faults.append(Fault(source=source, field=card.id, message=other))
        if ids.get(card.id, device.id) != device.id or device.id in {ids[name] for name in ids if name != card.id}:
            told = f"is {device.id} of the fleet, as another card is"
            faults.append(Fault(source=source, field=card.id, message=told))
        ids[card.id] = device.id
        if device.id != card.id:
            moved.append(f"{card.id} of the measurements is {device.id} of the fleet, by its PCI address {card.pci}")
    if faults:
        raise DescriptionError(faults)
    return ids, moved


def _other_name(card: MeasuredCard, device: Device) -> str | None:
    """Both names, where the tool's and the fleet's are those of two cards."""
    if card.name is None:
        return None
    in_catalog = device.sku is not None and device.sku in sku_names()
    same = claimed_card(card.name, device.sku or "") if in_catalog else None
    if same is None and device.label is not None:
        one, other = card_of_name(card.name), card_of_name(device.label)
        same = None if one is None or other is None else one == other
    if same is not False:
        return None
    shown = device.sku if in_catalog else printable(device.label or "", 80)
    return f"was measured on {printable(card.name, 80)}; {device.id} of the fleet is {shown}: lay it over its own fleet"


def _observed(link: Link, seen: Observation) -> Link:
    figure = Figure(value=seen.value, provenance="measured", source=seen.tool, note=seen.note, error=seen.error)
    if seen.quantity == "bandwidth":
        return replace(link, bandwidth=Quantity(declared=link.bandwidth.declared, observed=figure))
    return replace(link, latency=Quantity(declared=link.latency.declared, observed=figure))
