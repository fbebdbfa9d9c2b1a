"""A fleet at the rates that plans are to be priced with: as declared, or with what was observed in its place.

Only links change: sizes never do, so a verdict on memory is the same at either. What was not observed stays declared.
"""

from __future__ import annotations

from dataclasses import replace

from fleet.machine import Fleet, Link, Quantity
from planner.roofline import Rates


def fleet_at(fleet: Fleet, rates: Rates) -> Fleet:
    """The fleet whose links declare what was observed of them; the fleet itself for `declared`.

    Its digest is another one, since ways over it are. The figure that was declared before is not in it.
    """
    if rates == "declared":
        return fleet
    links = tuple(_observed(link) for link in fleet.links)
    digest = f"{fleet.digest} observed" if fleet.digest else ""
    return fleet if links == fleet.links else replace(fleet, links=links, digest=digest)


def _observed(link: Link) -> Link:
    if link.bandwidth.observed is None and link.latency.observed is None:
        return link
    return replace(link, bandwidth=_first(link.bandwidth), latency=_first(link.latency))


def _first(quantity: Quantity) -> Quantity:
    return quantity if quantity.observed is None else replace(quantity, declared=quantity.observed)
