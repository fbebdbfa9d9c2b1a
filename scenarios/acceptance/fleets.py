"""The machine of an acceptance run: its cards by identity, and two independent descriptions of its links.

Plans are made on the text that the driver's own tool prints, with the cards' identities laid in; what discovery finds
is held beside it: both must agree on the kinds and counts of the links that leave each card for the others.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from typing import Any

from executor.cuda.driver import Card
from fleet.discovery.discover import discover
from fleet.dump import fleet_yaml
from fleet.identity import pci_key, uuid_key
from fleet.load import load_fleet
from fleet.machine import Fleet

__all__ = ["agreement", "planned_fleet", "staged_text", "topology_text"]

_COMMAND = ("nvidia-smi", "topo", "-m")
_SECONDS = 60


def topology_text() -> str | None:
    """What `nvidia-smi topo -m` prints; None where it does not answer."""
    try:
        done = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def planned_fleet(text: str, cards: list[Card], sku: str) -> Fleet:
    """The fleet of a topology text, each card with its UUID and PCI address. `sku` names the cards' figures.

    DescriptionError when the text is not one, or has fewer cards.
    """
    fleet = load_fleet("nvidia-smi", text=text, sku=sku)
    known = {f"gpu:{number}": card for number, card in enumerate(cards)}
    devices = tuple(
        replace(device, uuid=known[device.id].uuid, pci=known[device.id].pci) if device.id in known else device
        for device in fleet.devices
    )
    return replace(fleet, devices=devices)


def staged_text(fleet: Fleet) -> str:
    """The fleet file in which no card reaches another directly: every copy between them is staged over the host."""
    links = tuple(
        replace(link, peer_access="staged") if link.src.startswith("gpu") and link.dst.startswith("gpu") else link
        for link in fleet.links
    )
    return fleet_yaml(replace(fleet, links=links))


def agreement(planned: Fleet) -> dict[str, Any]:
    """Whether discovery and the topology text describe one machine: {agree, discovered, imported, identities}."""
    found = discover()
    views = {"discovered": _lanes(found.fleet), "imported": _lanes(planned)}
    mine, others = (_identities(fleet) for fleet in (planned, found.fleet))
    return {
        "agree": views["discovered"] == views["imported"] and mine == others and bool(mine),
        "same_identities": mine == others,
        **{name: sorted(map(list, view.items())) for name, view in views.items()},
        "notes": list(found.notes),
    }


def _lanes(fleet: Fleet) -> Counter[str]:
    """`gpu:0 nvlink` -> lanes that leave the card, whether to another card (as a topology matrix has it) or to the
    switch between them (as the driver tells it).
    """
    lanes: Counter[str] = Counter()
    for link in fleet.links:
        if link.src.startswith("gpu") and link.kind.startswith("nv"):
            lanes[f"{link.src} {link.kind}"] += link.count
    return lanes


def _identities(fleet: Fleet) -> dict[str, tuple[str | None, Any]]:
    return {d.id: (uuid_key(d.uuid), pci_key(d.pci)) for d in fleet.devices if d.kind == "gpu"}
