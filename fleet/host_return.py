"""Host links that a description leaves out, assumed because somebody asked for it (`--assume-host-return`).

Machine files of Vx declare the way from the host to one memory and no way home. Such links are policy: nobody measured
or declared them, so they have no rate, and every leg over one is marked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.digest import fleet_digest
from fleet.identity import natural_order
from fleet.machine import Fleet, Link

ASSUMED = "assumed (policy)"
"""Where an assumed link stands: in no file."""
_TOLD = 50


def assume_host_return(fleet: Fleet) -> Fleet:
    """The fleet with a way in both directions between every device and its host.

    A link is added where no chain of links over switches and NICs leads from one to the other; what is declared stays
    as it is. Added links have no rate, `assumed` set, and a warning each.
    """
    added = [
        Link(src=src, dst=dst, kind="host", where=ASSUMED, assumed=True) for src, dst in _missing(fleet)
    ]  # fmt: skip
    if not added:
        return fleet
    links = sorted((*fleet.links, *added), key=lambda k: (natural_order(k.src), natural_order(k.dst), k.kind))
    told = [f"{link.src} -> {link.dst}: {ASSUMED}, without a rate; no such link is declared" for link in added[:_TOLD]]
    if len(added) > _TOLD:
        told.append(f"... and {len(added) - _TOLD} more assumed links")
    fleet = replace(fleet, links=tuple(links), warnings=(*fleet.warnings, *told))
    return replace(fleet, digest=fleet_digest(fleet))


def _missing(fleet: Fleet) -> list[tuple[str, str]]:
    """The (src, dst) of hosts and their devices, in the order of the fleet, between which no way leads."""
    relays = {switch.id for switch in fleet.switches} | {nic.id for nic in fleet.nics}
    ahead: dict[str, list[str]] = defaultdict(list)
    back: dict[str, list[str]] = defaultdict(list)
    for link in fleet.links:
        ahead[link.src].append(link.dst)
        back[link.dst].append(link.src)
    inside: dict[str, list[str]] = defaultdict(list)
    for device in fleet.devices:
        inside[device.host].append(device.id)
    missing = []
    for host, devices in inside.items():
        there = _unreached(host, devices, ahead, relays)
        home = _unreached(host, devices, back, relays)
        for name in devices:
            missing += [(host, name)] if name in there else []
            missing += [(name, host)] if name in home else []
    return missing


def _unreached(host: str, devices: Sequence[str], ways: Mapping[str, Sequence[str]], relays: set[str]) -> set[str]:
    """Those of the devices that no chain of `ways` over relays alone reaches; the walk ends when all are reached."""
    left = set(devices)
    seen, ready = {host}, [host]
    while ready and left:
        for end in ways.get(ready.pop(), ()):
            left.discard(end)
            if end in relays and end not in seen:
                seen.add(end)
                ready.append(end)
    return left
