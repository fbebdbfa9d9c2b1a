"""Measurements laid over a fleet: they fill `observed` of the links they speak of and leave `declared` alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from fleet.build import NO_RUNTIME
from fleet.digest import fleet_digest
from fleet.lint import warnings_of
from fleet.machine import Figure, Fleet, Link, Quantity
from fleet.readers import Observation
from fleet.units import format_rate, format_seconds

_LISTED = 4


def lay_over(fleet: Fleet, observations: Iterable[Observation]) -> tuple[Fleet, tuple[str, ...]]:
    """(the fleet with the observations in it, what is to be said of them).

    Of several links between two ids the fastest declared one is taken to be the one that was measured. An observation
    of a pair without a link of its own is not kept, and said so; one that contradicts an earlier one stands, both told.
    """
    links = list(fleet.links)
    between: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, link in enumerate(links):
        between[link.src, link.dst].append(place)
    told: list[str] = []
    lost: list[str] = []
    for seen in observations:
        places = between.get((seen.src, seen.dst))
        if not places:
            lost.append(f"{seen.src} -> {seen.dst} ({seen.quantity})")
            continue
        place = max(places, key=lambda i: (links[i].bandwidth.value or 0, -i))
        links[place], clash = _observed(links[place], seen)
        told += clash
    if lost:
        more = f" and {len(lost) - _LISTED} more" if len(lost) > _LISTED else ""
        told.append(f"measured, but the fleet has no such link, so it is not kept: {', '.join(lost[:_LISTED])}{more}")
    laid = replace(fleet, links=tuple(links))
    undeclared = [device.id for device in laid.devices if device.runtime == NO_RUNTIME]
    found = warnings_of(laid, {device.id: device.arch for device in laid.devices}, undeclared)
    told = list(dict.fromkeys(told))
    return replace(laid, digest=fleet_digest(laid), warnings=(*told, *found)), tuple(told)


def _observed(link: Link, seen: Observation) -> tuple[Link, list[str]]:
    figure = Figure(value=seen.value, provenance="measured", source=seen.tool, note=seen.note)
    rate = seen.quantity == "bandwidth"
    before = link.bandwidth if rate else link.latency
    after = Quantity(declared=before.declared, observed=figure)
    told = []
    if before.observed is not None and before.observed.value != figure.value:
        show = format_rate if rate else format_seconds
        told = [
            f"{link.src} -> {link.dst} {seen.quantity}: {seen.tool} says {show(figure.value)}, "
            f"{before.observed.source} said {show(before.observed.value)}; the former is kept"
        ]
    return (replace(link, bandwidth=after) if rate else replace(link, latency=after)), told
