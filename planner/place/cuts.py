"""What every way out of, or into, a device or a node must pass: the fastest and the quickest link over that cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.machine import Fleet, Quantity

Cut = tuple[int, int]
"""No link over it has more bytes per second, none a lower latency in picoseconds."""
OPEN: Cut = (0, 0)
"""A cut that nothing is known of: it bounds nothing."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """By device, and by host (its devices, NICs, and switches that only these reach), what leaves and what comes in."""

    out: Mapping[str, Cut]
    into: Mapping[str, Cut]
    leave: Mapping[str, Cut]
    enter: Mapping[str, Cut]


def cuts_of(fleet: Fleet) -> Cuts:
    """The cuts of a fleet; O(links)."""
    home = _homes(fleet)
    of_device = {device.id: device.id for device in fleet.devices}
    out, into = _over(fleet, of_device.get)
    leave, enter = _over(fleet, home.get)
    return Cuts(out=out, into=into, leave=leave, enter=enter)


def _homes(fleet: Fleet) -> dict[str, str]:
    home = {host.id: host.id for host in fleet.hosts} | {device.id: device.host for device in fleet.devices}
    home |= {nic.id: nic.host for nic in fleet.nics if nic.host is not None}
    near: dict[str, set[str | None]] = {switch.id: set() for switch in fleet.switches}
    for link in fleet.links:
        for one, other in ((link.src, link.dst), (link.dst, link.src)):
            if one in near:
                near[one].add(home.get(other))
    for name, hosts in near.items():
        only = next(iter(hosts)) if len(hosts) == 1 else None
        if only is not None:
            home[name] = only
    return home


def _over(fleet: Fleet, side: Callable[[str], str | None]) -> tuple[dict[str, Cut], dict[str, Cut]]:
    """By side, the links that leave it and those that enter it."""
    out: dict[str, Cut] = {}
    into: dict[str, Cut] = {}
    kept: dict[tuple[int, int], Cut] = {}
    for link in fleet.links:
        src, dst = side(link.src), side(link.dst)
        rates = _figures(link.bandwidth)
        if src == dst or not rates:  # what goes over a link without a rate is unpriced
            continue
        figures = (max(rates), min(_figures(link.latency), default=0))
        figures = kept.setdefault(figures, figures)
        for name, cuts in ((src, out), (dst, into)):
            if name is None:
                continue
            rate, latency = cuts.get(name, figures)
            cuts[name] = (max(rate, figures[0]), min(latency, figures[1]))
    return out, into


def _figures(quantity: Quantity) -> list[int]:
    return [figure.value for figure in (quantity.declared, quantity.observed) if figure is not None]
