"""What the handoffs of several plans share when they run at the same time, from the plans' own documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from fleet.errors import DescriptionError
from fleet.machine import UNKNOWN, Figure, Link, Quantity
from planner.contention import Flow, segment_document, shared_segments
from planner.queueing import Arrival, Queued, queued
from planner.rows import Leg, Row
from scenarios.derivation import Derivation, Document
from scenarios.explain_times import explain_shared
from scenarios.words import scored_time, time_words

_PS_PER_SECOND = 10**12


def explain_together(plans: Sequence[Document]) -> list[Derivation]:
    """The segments that two handoffs or more pass, each with its bytes and the least time for all of them.

    The same plan given twice stands for two requests. Raises DescriptionError for plans on different fleets.
    """
    fleets = {plan["inputs"]["fleet"]["digest"]: plan["inputs"]["fleet"]["name"] for plan in plans}
    if len(fleets) > 1:
        names = " and ".join(sorted(str(name) for name in fleets.values()))
        raise DescriptionError.at(
            "explain", "--with", f"the plans are on different fleets ({names}); give plans on one"
        )
    refused = [str(number) for number, plan in enumerate(plans, 1) if plan.get("verdict") == "refused"]
    if refused:
        words = f"plan {', '.join(refused)} is refused, and no time is told of it; give plans that are admitted"
        raise DescriptionError.at("explain", "--with", words)
    unknown = [number for number, plan in enumerate(plans, 1) if (plan.get("handoff") or {}).get("legs", 0) is None]
    if unknown:
        told = ", ".join(str(number) for number in unknown)
        raise DescriptionError.at("explain", "--with", f"the way of the handoff of plan {told} is unknown")
    flows = [
        flow
        for number, plan in enumerate(plans, 1)
        for flow in handoff_flows(plan, f"plan {number} ({plan['id'][:12]})")
    ]
    shared = [segment_document("handoff", segment) for segment in shared_segments(flows)]
    if shared:
        return [*explain_shared(shared), *_one_by_one(plans)]
    nothing = ("no segment is passed by two of them: they do not stand in each other's way",)
    return [Derivation(subject="handoff shared", terms=nothing, bytes=None)]


def _one_by_one(plans: Sequence[Document]) -> list[Derivation]:
    """The same handoffs as a queue, all ready at once and served in the order given: when each ends, and why."""
    ready = [
        Arrival(name=f"plan {number} ({plan['id'][:12]})", rows=tuple(_rows(plan)))
        for number, plan in enumerate(plans, 1)
    ]
    return [_queued(one) for one in queued(ready)]


def _queued(one: Queued) -> Derivation:
    about = frozenset(("queue", "handoff"))
    if one.end is None or one.waited is None:
        return Derivation(subject=f"{one.name} queued", terms=one.time.unpriced, bytes=None, about=about)
    behind = f" behind {', '.join(one.behind)}" if one.behind else ""
    waits = f"waits {time_words(float(one.waited))}{behind}" if one.waited else "waits for nobody"
    terms = (waits, f"moves {time_words(float(one.end - one.waited))}")
    figure = scored_time({"seconds": float(one.end), "lower_bound": one.time.lower_bound})
    return Derivation(subject=f"{one.name} queued", terms=terms, bytes=None, about=about, figure=figure)


def _rows(plan: Document) -> Iterator[Row]:
    """The handoff rows of a plan, with the links that it states."""
    for row in plan.get("waybill") or []:
        if row["phase"] != "handoff" or row.get("legs") is None:
            continue
        legs = tuple(
            Leg(
                src=leg["src"], dst=leg["dst"], kind=leg["kind"], link=leg["link"], bytes=leg["bytes"] or 0,
                copies=leg["copies"] or 0, through=_links(leg),
            )
            for leg in row["legs"]
        )  # fmt: skip
        yield Row(
            phase="handoff", tensor=row["tensor"], src=row["src"], dst=row["dst"], kind=row["kind"],
            payload_bytes=row["bytes"] or 0, bytes=row["bytes"] or 0, copies=row["copies"] or 0, legs=legs,
        )  # fmt: skip


def handoff_flows(plan: Document, name: str) -> list[Flow]:
    """The flows of the handoff rows of a plan: K and V over one chain of links are one flow."""
    sums: dict[tuple[str, str, str, tuple[Link, ...]], list[int]] = {}
    for row in plan.get("waybill") or []:
        if row["phase"] == "handoff":
            for leg in row.get("legs") or ():
                links = _links(leg)
                if links and leg["bytes"] is not None:
                    held = sums.setdefault((leg["src"], leg["dst"], leg["kind"], links), [0, 0])
                    held[0] += leg["bytes"]
                    held[1] += leg["copies"] or 0
    return [
        Flow(src=src, dst=dst, kind=kind, bytes=held[0], copies=held[1], links=links, name=name)
        for (src, dst, kind, links), held in sums.items()
    ]


def _links(leg: Document) -> tuple[Link, ...]:
    """The links that a leg passes, as far as the plan states them; none inside a device."""
    if leg.get("segments"):
        return tuple(_link(segment, str(segment.get("kind"))) for segment in leg["segments"])
    return (_link(leg, str(leg["link"])),) if leg.get("link") is not None else ()


def _link(part: Document, kind: str) -> Link:
    rate, latency = part.get("bandwidth_bytes_per_s"), part.get("latency_s")
    duplex: Literal["independent", "shared"] | None = "shared" if part.get("duplex") == "shared" else None
    return Link(
        src=part["src"], dst=part["dst"], kind=kind, bandwidth=_figure(rate or None),
        latency=_figure(None if latency is None else round(latency * _PS_PER_SECOND)), duplex=duplex,
        copy_engines=part.get("copy_engines") or None,
    )  # fmt: skip


def _figure(value: Any) -> Quantity:
    if value is None:
        return UNKNOWN
    return Quantity(declared=Figure(value=value, provenance="spec", source="the plan"))
