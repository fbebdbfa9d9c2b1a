"""The handoff of a plan on the fleet that it was made for: the links that carry K and V, with bytes and copies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.errors import DescriptionError
from fleet.machine import Fleet, Link
from planner.machine import UnknownWay, Way, machine_graph
from scenarios.words import count_of, exact_bytes, seconds_of

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Handoff:
    """What a plan marks in a picture.

    `carried` is the place of a link among the fleet's -> words; `unknown` the words of a handoff that no link carries,
    else None; `notes` its legs and segments in words; `passed` every id on its way.
    """

    prefill: str
    decode: str
    carried: dict[int, str]
    unknown: str | None
    notes: tuple[str, ...]
    passed: frozenset[str]


def handoff_of(plan: Document, fleet: Fleet, source: str) -> Handoff:
    """The marks of a plan. DescriptionError where it was made for another fleet, or places nothing on this one."""
    made_for = (plan.get("inputs") or {}).get("fleet") or {}
    if made_for.get("digest") != fleet.digest:
        told = (
            f"was made for the fleet {made_for.get('name')}, which is not this one ({fleet.name}): their digests differ"
        )
        raise DescriptionError.at(source, "inputs.fleet", f"{told}; show the fleet of the plan, or admit again")
    placement = plan.get("placement") or {}
    prefill, decode = placement.get("prefill"), placement.get("decode")
    if (
        not isinstance(prefill, str)
        or not isinstance(decode, str)
        or not (fleet.device(prefill) and fleet.device(decode))
    ):
        raise DescriptionError.at(source, "placement", "places no device of this fleet; admit again")
    handoff = plan.get("handoff")
    if not handoff:
        note = f"The plan ({plan['verdict']}) hands nothing over."
        return Handoff(prefill=prefill, decode=decode, carried={}, unknown=None, notes=(note,), passed=frozenset())
    return _carried(plan, handoff, fleet, prefill, decode)


def _carried(plan: Document, handoff: Document, fleet: Fleet, prefill: str, decode: str) -> Handoff:
    places: dict[tuple[Any, ...], int] = {}
    for place, link in enumerate(fleet.links):
        places.setdefault(_figures(link), place)
    carried: dict[int, str] = {}
    whole = f"{exact_bytes(handoff.get('bytes'))} in {count_of(handoff.get('copies'))} copies"
    notes = [f"KV handoff of the plan ({plan['verdict']}): {prefill} to {decode}, {whole}, {seconds_of(handoff)}."]
    passed: set[str] = set()
    legs = handoff.get("legs") or []
    ways = [_links(fleet, leg) for leg in legs]
    if not legs or None in ways:
        notes.append("The way of the handoff is not known: it is drawn from device to device, over no link.")
        return Handoff(
            prefill=prefill, decode=decode, carried={}, unknown=f"KV {whole}, way unknown", notes=tuple(notes),
            passed=frozenset(),
        )  # fmt: skip
    for number, (leg, links) in enumerate(zip(legs, ways, strict=True), start=1):
        words = f"{exact_bytes(leg['bytes'])} in {count_of(leg['copies'])} copies"
        nodes = [leg["src"], *(link.dst for link in links or ())]
        passed |= set(nodes)
        over = " over " + ", ".join(nodes[1:-1]) if len(nodes) > 2 else ""
        notes.append(f"Leg {number} of {len(legs)}: {leg['kind']} {leg['src']} to {leg['dst']}{over}, {words}.")
        for link in links or ():
            carried[places[_figures(link)]] = f"KV {words}"
    inside = f"KV {whole}, inside the device" if not carried else None
    return Handoff(
        prefill=prefill, decode=decode, carried=carried, unknown=inside, notes=tuple(notes), passed=frozenset(passed)
    )


def _figures(link: Link) -> tuple[Any, ...]:
    """What tells a link from others. The graph may hold the links of another reading of the same fleet."""
    held = (link.bandwidth.value, link.latency.value, link.peer_access, link.duplex, link.copy_engines)
    return (link.src, link.dst, link.kind, link.count, *held)


def _links(fleet: Fleet, leg: Document) -> list[Link] | None:
    """The links of one leg, by the planner's own choice; none inside a device, None where the graph knows no way."""
    way = machine_graph(fleet).way(leg["src"], leg["dst"], leg["bytes"] or 0, leg["copies"] or 1)
    if isinstance(way, UnknownWay):
        way = way.direct
    return [link for hop in way.hops for link in hop.links] if isinstance(way, Way) else None
