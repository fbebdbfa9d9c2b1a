"""The handoff of a plan on the fleet that it was made for: the links that carry K and V, with bytes and copies."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from scenarios.words import count_of, exact_bytes, scored_time

Document = dict[str, Any]
MOST_LEGS, MOST_NAMED = 20, 80
"""Legs that are told one by one, and characters of the names of a phase's devices that are told in full."""


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

    @property
    def ranks(self) -> dict[str, tuple[str, ...]]:
        """The devices of each phase: one, or those of a worker of several."""
        return {"prefill": tuple(self.prefill.split(",")), "decode": tuple(self.decode.split(","))}


def handoff_of(plan: Document, fleet: Fleet, source: str) -> Handoff:
    """The marks of a plan. DescriptionError where it was made for another fleet, or places nothing on this one."""
    made_for = (plan.get("inputs") or {}).get("fleet") or {}
    if made_for.get("digest") != fleet.digest:
        card = made_for.get("sku")
        told = (
            f"was made for the fleet {made_for.get('name')}{f' with --sku {card}' if card else ''}, "
            f"which is not this one ({fleet.name}): their digests differ"
        )
        raise DescriptionError.at(source, "inputs.fleet", f"{told}; show the fleet of the plan, or admit again")
    placement = plan.get("placement") or {}
    prefill, decode = placement.get("prefill"), placement.get("decode")
    if (
        not isinstance(prefill, str)
        or not isinstance(decode, str)
        or not all(fleet.device(name) for name in (*prefill.split(","), *decode.split(",")))
    ):
        raise DescriptionError.at(source, "placement", "places no device of this fleet; admit again")
    handoff = plan.get("handoff")
    if not handoff:
        note = f"The plan ({plan['verdict']}) hands nothing over."
        return Handoff(prefill=prefill, decode=decode, carried={}, unknown=None, notes=(note,), passed=frozenset())
    return _carried(plan, handoff, fleet, prefill, decode)


@dataclass(slots=True)
class _Leg:
    """A leg of the handoff, all its tensors together: they pass the same places (`nodes`, ends included)."""

    kind: str
    link: str
    nodes: tuple[str, ...]
    rate: int | None
    nbytes: int | None
    copies: int | None


def _carried(plan: Document, handoff: Document, fleet: Fleet, prefill: str, decode: str) -> Handoff:
    whole = f"{exact_bytes(handoff.get('bytes'))} in {count_of(handoff.get('copies'))} copies"
    ends = f"{_devices(prefill)} to {_devices(decode)}"
    notes = [f"KV handoff of the plan ({plan['verdict']}): {ends}, {whole}, {scored_time(handoff)}."]
    legs = _legs(plan)
    ways = [_links(fleet, leg) for leg in legs or ()]
    if not legs or None in ways:
        notes.append("The way of the handoff is not known: it is drawn from device to device, over no link.")
        return Handoff(
            prefill=prefill, decode=decode, carried={}, unknown=f"KV {whole}, way unknown", notes=tuple(notes),
            passed=frozenset(),
        )  # fmt: skip
    amounts: dict[int, tuple[int | None, int | None]] = {}
    for number, (leg, places) in enumerate(zip(legs, ways, strict=True), start=1):
        words = f"{exact_bytes(leg.nbytes)} in {count_of(leg.copies)} copies"
        over = " over " + ", ".join(leg.nodes[1:-1]) if len(leg.nodes) > 2 else ""
        if number <= MOST_LEGS:
            notes.append(f"Leg {number} of {len(legs)}: {leg.kind} {leg.nodes[0]} to {leg.nodes[-1]}{over}, {words}.")
        for place in places or ():
            nbytes, copies = amounts.get(place, (0, 0))
            amounts[place] = _sum(nbytes, leg.nbytes), _sum(copies, leg.copies)
    if len(legs) > MOST_LEGS:
        notes.append(f"{len(legs) - MOST_LEGS:,} more legs; the plan has them all (kvwaybill explain).")
    carried = {
        place: f"KV {exact_bytes(total)} in {count_of(count)} copies" for place, (total, count) in amounts.items()
    }
    inside = f"KV {whole}, inside the device" if not carried else None
    passed = frozenset(name for leg in legs for name in leg.nodes)
    return Handoff(prefill=prefill, decode=decode, carried=carried, unknown=inside, notes=tuple(notes), passed=passed)


def _devices(names: str) -> str:
    """The devices of a worker, of many the first and how many more."""
    told = names.split(",")
    return names if len(names) <= MOST_NAMED or len(told) == 1 else f"{told[0]} and {len(told) - 1:,} more"


def _legs(plan: Document) -> list[_Leg] | None:
    """The legs of the rows of the handoff as the plan states them, k and v summed; None where a row has none."""
    found: dict[tuple[Any, ...], _Leg] = {}
    for row in plan.get("waybill") or []:
        if row["phase"] != "handoff":
            continue
        if row["legs"] is None:
            return None
        for leg in row["legs"]:
            segments = _mappings(leg.get("segments"))
            nodes = (leg["src"], *(str(segment.get("dst")) for segment in segments)) if segments else _ends(leg)
            link, rate = str(leg.get("link")), leg.get("bandwidth_bytes_per_s")
            held = found.get((leg["kind"], link, nodes))
            if held is None:
                found[leg["kind"], link, nodes] = _Leg(leg["kind"], link, nodes, rate, leg["bytes"], leg["copies"])
            else:
                held.nbytes, held.copies = _sum(held.nbytes, leg["bytes"]), _sum(held.copies, leg["copies"])
    return list(found.values())


def _ends(leg: Document) -> tuple[str, ...]:
    """The two ends of a leg without segments."""
    return (leg["src"], leg["dst"])


def _mappings(rows: Any) -> list[Document]:
    """The objects of a part of a document that nobody checked."""
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _links(fleet: Fleet, leg: _Leg) -> list[int] | None:
    """The places, among the fleet's links, of those that a leg takes. None where one of them is not there.

    Of parallel links the one of the leg's kind and rate is taken, as the plan tells them.
    """
    if leg.nodes[0] == leg.nodes[-1]:
        return []
    places: list[int] = []
    kinds = leg.link.split("+")
    for src, dst in pairwise(leg.nodes):
        held = [(place, link) for place, link in enumerate(fleet.links) if (link.src, link.dst) == (src, dst)]
        if not held:
            return None
        rank = [(link.kind not in kinds, link.bandwidth.value != leg.rate, place) for place, link in held]
        places.append(min(rank)[2])
    return places
