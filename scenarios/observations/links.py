"""Which link a rate looks like: the declared rates of the plan's own edges and of the shipped fleets, no others."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

from scenarios.observations.observation import Interval

Document = dict[str, Any]
FAR_BELOW = Fraction(1, 2)
LIKE = Fraction(2, 5)
"""A transfer of blocks reaches 2/5 of a link's declared rate or more when nothing else slows it (policy)."""


def declared_rate(plan: Document) -> tuple[int, str] | None:
    """(bytes per second, kind) of the slowest leg that the handoff takes; None where one has no rate."""
    legs = [leg for row in plan["waybill"] if row["phase"] == "handoff" for leg in row.get("legs") or [row]]
    rates = [(leg.get("bandwidth_bytes_per_s"), str(leg.get("link") or leg["kind"])) for leg in legs]
    known = [(rate, kind) for rate, kind in rates if isinstance(rate, int)]
    return min(known) if known and len(known) == len(rates) else None


def looks_like(plan: Document, rate: Interval) -> str:
    """Words for a rate far below its edge: the links that it could be, or that none is so slow."""
    known = sorted(_of_plan(plan) | _of_catalog())
    fit = [(value, kind) for value, kind in known if rate.high <= value and rate.low >= value * LIKE]
    if fit:
        return "it looks like " + " or ".join(f"{kind} ({value / 1e9:g} GB/s)" for value, kind in fit)
    slower = [(value, kind) for value, kind in known if rate.high < value * LIKE]
    if slower and slower[0] == known[0]:
        value, kind = known[0]
        return (
            f"no link of the shipped fleets is so slow (the slowest is {kind}, {value / 1e9:g} GB/s): a way over host "
            "memory or a socket, or many small descriptors"
        )
    return "it lies between the links of the shipped fleets"


def _of_plan(plan: Document) -> set[tuple[int, str]]:
    legs = [leg for row in plan["waybill"] for leg in row.get("legs") or []]
    found = [(leg.get("bandwidth_bytes_per_s"), str(leg.get("link") or leg["kind"])) for leg in legs]
    return {(rate, kind) for rate, kind in found if isinstance(rate, int) and rate > 0}


@cache
def _of_catalog() -> frozenset[tuple[int, str]]:
    from fleet.catalog import catalog_names
    from fleet.load import load_fleet

    links = [link for name in catalog_names() for link in load_fleet(name).links]
    return frozenset((link.bandwidth.value, link.kind) for link in links if link.bandwidth and link.bandwidth.value)
