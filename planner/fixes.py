"""What a refusal tells: the smallest single changes that would be admitted, each admitted again before it is told.

Order of preference: what costs the user least first. A share of the device that was left unused, cache positions nobody
needs, fewer sequences, fewer passes, another device, narrower types, more ranks, and only then a figure of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner import counterfactual as request
from planner import counterfactual_fleet as fleet
from planner.admit import Admission, admit
from planner.counterfactual import Change, Source, is_admitted
from planner.counterfactual_degree import degree

_ROUNDS = 8
"""A repaired fleet may show a next fault; each round mends one kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """One thing that could have been asked otherwise: the admitted changes of it, the smallest first, else why none."""

    name: str
    changes: tuple[Change, ...]
    why_none: str


def explain_refusal(admission: Admission) -> tuple[Admission, tuple[dict[str, Any], ...]]:
    """The same admission with a fix on its errors, and all admitted changes, least costly first."""
    told, documents, _ = counterfactuals(admission)
    return told, documents


def counterfactuals(
    admission: Admission,
) -> tuple[Admission, tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """A refusal with its fixes, all admitted changes, and what each dimension has of them; other verdicts have none."""
    if admission.verdict != "refused":
        return admission, (), ()
    weighed = dimensions(admission)
    changes = [change for dimension in weighed for change in dimension.changes] or list(_together(admission))
    documents = tuple(change.document for change in changes)
    table = tuple(
        {"dimension": each.name, "change": each.changes[0].document, "others": len(each.changes) - 1}
        if each.changes
        else {"dimension": each.name, "change": None, "why": each.why_none}
        for each in weighed
    )
    if not documents:
        return admission, (), table
    reasons = tuple(
        replace(reason, fix=documents[0]) if reason.severity == "error" else reason for reason in admission.reasons
    )
    return replace(admission, reasons=reasons), documents, table


def offered(admission: Admission) -> list[Change]:
    """The changes that a refusal tells: single ones that are admitted, else changes that are admitted together."""
    single = [change for dimension in dimensions(admission) for change in dimension.changes]
    return single or list(_together(admission))


def dimensions(admission: Admission) -> tuple[Dimension, ...]:
    """Every dimension, in order of preference, with the changes of it that are admitted."""
    least = request.least_of(admission)
    found = []
    for name, source, why in _DIMENSIONS:
        changes = tuple(change for change in source(admission) if is_admitted(change.ask))
        if not changes and name in least:
            words, ask = least[name]
            why = f"not even with {words}: {request.why_refused(ask)}"
        found.append(Dimension(name=name, changes=changes, why_none=why))
    return tuple(found)


def _routes(admission: Admission) -> Iterator[Change]:
    # A text of a foreign format has no line in which a link could be written; a flag adds those of hosts.
    foreign = bool(admission.ask.fleet.format)
    links = (fleet.host_return, fleet.links) if foreign else (fleet.links, fleet.host_return)
    for source in (*links, fleet.peer_access):
        yield from source(admission)


_DIMENSIONS: tuple[tuple[str, Source, str], ...] = (
    ("utilization", request.utilization, "all of it is used already"),
    ("context", request.context, "the cache is as long as the passes; --positions was not given"),
    ("sequences", request.sequences, "one sequence is the least"),
    ("new tokens", request.passes, "the cache is sized by --positions, or one decode pass is the least"),
    ("prompt", request.prompt, "it is no count beside --new-tokens that sizes the cache"),
    ("swapped roles", request.roles, "not admitted either, or the workers are divided otherwise"),
    ("other device", request.devices, "no other device of the fleet would do for one phase alone"),
    ("KV type", request.cache_type, "it has no narrower type that is priced"),
    ("weights type", request.weights_type, "they have no narrower type that is priced"),
    ("tensor-parallel degree", degree, "no degree that divides the model would do on devices that are free"),
    ("pinned pool", fleet.pools, "the pool is not what is short, or not it alone"),
    ("capacity", fleet.capacities, "no memory is short, or it is not memory alone"),
    ("other route", _routes, "the way is not what is missing, or not it alone"),
    ("one device for both phases", request.one_device, "no single device would hold both phases"),
)
"""Name, where changes of it come from, and why there is none where nothing could have been asked otherwise."""


def _together(admission: Admission) -> Iterator[Change]:
    """Where no single change will do: changes of the fleet file taken together, until the plan is admitted."""
    documents: list[dict[str, Any]] = []
    for _ in range(_ROUNDS):
        links = (fleet.host_return, fleet.links) if admission.ask.fleet.format else (fleet.links,)
        sources = (fleet.capacities, fleet.pools, *links, fleet.unknowns)
        change = next((c for source in sources for c in source(admission)), None)
        if change is None:
            return
        documents += [{k: v for k, v in change.document.items() if k != "and"}, *change.document.get("and", [])]
        admission = admit(change.ask)
        if admission.verdict == "admitted":
            yield Change(document={**documents[0], "and": documents[1:]}, ask=change.ask)
            return
