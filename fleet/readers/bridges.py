"""PCIe bridges that several cards hang below: switches of the fleet, so that what copies share on their way is known.

A topology text that gives the PCI tree says which bridge each card's way up passes. A card that shares none keeps its
one link with the host.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fleet.digest import fleet_digest
from fleet.identity import natural_order
from fleet.machine import UNKNOWN, Figure, Fleet, Link, Quantity, Switch
from fleet.readers.pcie import Slot, rate_figure, slowest

_BUS = r"[0-9A-Za-z.:_-]{1,40}"
"""A name of a bridge that can be part of an id."""
_COUNTED = Quantity(
    declared=Figure(value=0, provenance="policy", source="counted in the latency of the card's port", verified=False)
)


def share_bridges(fleet: Fleet, slots: Mapping[str, Slot], host: str, source: str) -> Fleet:
    """The fleet with a switch for each bridge that two cards or more pass (`slots`: by device id, the way up).

    The PCIe links of such cards with the host lead over their bridges; each part has the rate of its slowest hop.
    Whether a peer copy turns round at a bridge is not said, so these links know no peer access.
    """
    # Where a hop has no rate, the card's link has what --sku gave it for all of its way, and is left as it is.
    slots = {device: slot for device, slot in slots.items() if slowest(slot.hops) is not None}
    passing = Counter(name for slot in slots.values() for name, _ in slot.hops[1:])
    shared = {name for name, count in passing.items() if count > 1 and re.fullmatch(_BUS, name, re.ASCII)}
    behind = {device: slot for device, slot in slots.items() if any(name in shared for name, _ in slot.hops[1:])}
    if not behind:
        return fleet
    kept: list[Link] = []
    made: dict[tuple[str, str], Link] = {}
    for link in fleet.links:
        card = link.dst if link.src == host else link.src
        if host not in (link.src, link.dst) or link.kind != "pcie" or card not in behind:
            kept.append(link)
            continue
        for part in _parts(link, card, behind[card], shared, host, source):
            made.setdefault((part.src, part.dst), part)
    where = {end: link.where for link in made.values() for end in (link.src, link.dst)}
    names = sorted({end for part in made.values() for end in (part.src, part.dst)} - {host, *slots}, key=natural_order)
    links = sorted((*kept, *made.values()), key=lambda k: (natural_order(k.src), natural_order(k.dst), k.kind))
    switches = tuple(Switch(id=name, kind="pcie", host=host, where=where[name]) for name in names)
    fleet = replace(fleet, links=tuple(links), switches=(*fleet.switches, *switches))
    return replace(fleet, digest=fleet_digest(fleet))


def _parts(link: Link, card: str, slot: Slot, shared: set[str], host: str, source: str) -> Iterator[Link]:
    """The links that stand in place of one between a card and the host, in its direction."""
    upwards = link.src == card
    cuts = [at for at, (name, _) in enumerate(slot.hops) if at and name in shared]
    stops = [card, *(_id(slot.hops[at][0]) for at in cuts), host]
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, len(slot.hops)], strict=True)):
        low, high = stops[number], stops[number + 1]
        rate = rate_figure(slowest(slot.hops[first:last]), source)
        known = link.latency.declared is not None
        yield replace(
            link,
            src=low if upwards else high,
            dst=high if upwards else low,
            bandwidth=rate,
            latency=(link.latency if number == 0 else _COUNTED) if known else UNKNOWN,
            peer_access=None if high == host else "unknown",
        )


def _id(bus: str) -> str:
    return f"pcie:{bus}"
