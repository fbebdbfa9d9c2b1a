"""What a refusal tells: the smallest single changes that would be admitted, each admitted again before it is told.

Order of preference: what costs the user least first. A share of the device that was left unused, cache positions nobody
needs, fewer sequences, fewer passes, another device, narrower types, more ranks, and only then a figure of the fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from planner import counterfactual as request
from planner import counterfactual_fleet as fleet
from planner.admit import Admission, admit
from planner.counterfactual import Change, Found, Source, accepted, is_mended, joined, parts_of
from planner.counterfactual_degree import degree, stages
from planner.counterfactual_devices import apart, one_device, other_devices
from planner.counterfactual_pairs import pairs
from planner.counterfactual_unread import Known, known_questions, resting_on
from planner.fleet_patch import patch_of

_ROUNDS = 8
"""A repaired fleet may show a next fault; each round mends one kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimension:
    """One thing that could have been asked otherwise: the admitted changes of it, the smallest first, else why none."""

    name: str
    changes: tuple[Change, ...]
    why_none: str
    searched: str = ""
    more: int = 0
    """Changes that would do too and are not told."""


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
    weighed, changes = _weighed(admission)
    documents = tuple(change.document for change in changes)
    table = tuple(map(_row, weighed))
    if not documents:
        return admission, (), table
    reasons = tuple(
        replace(reason, fix=documents[0]) if reason.severity == "error" else reason for reason in admission.reasons
    )
    return replace(admission, reasons=reasons), documents, table


def _row(dimension: Dimension) -> dict[str, Any]:
    """The smallest change of a dimension and how many more there are, or why there is none."""
    row: dict[str, Any] = {"dimension": dimension.name}
    if dimension.changes:
        others = len(dimension.changes) - 1 + dimension.more
        row |= {"change": dimension.changes[0].document, "others": others}
        row |= {} if dimension.changes[0].leaves == "admitted" else {"leaves": dimension.changes[0].leaves}
    else:
        row |= {"change": None, "why": dimension.why_none}
    return row | ({"searched": dimension.searched} if dimension.searched else {})


def offered(admission: Admission) -> list[Change]:
    """The changes that a refusal tells: single ones that are admitted, else changes that are admitted together."""
    return _weighed(admission)[1]


def _weighed(admission: Admission) -> tuple[tuple[Dimension, ...], list[Change]]:
    """Every dimension, and what is told, each change of the fleet with what a program would do to it."""
    weighed, changes = _searched(admission)
    return _with_patches(admission, weighed), [_with_patch(admission, change) for change in changes]


def _searched(admission: Admission) -> tuple[tuple[Dimension, ...], list[Change]]:
    """Every dimension, and what is told: where nothing but a figure of the fleet would do, pairs go before it."""
    if known := list(known_questions(admission)):
        return _on_known(known)
    weighed = dimensions(admission)
    request = [each for each in weighed if each.name not in _FIGURES]
    if any(_admitted(request)):
        return weighed, [*_admitted(weighed)]
    joint = _pairs(admission)
    figures = [*_admitted(each for each in weighed if each.name in _FIGURES)]
    together = () if figures else _together(admission)
    return (*weighed, *joint), [*_admitted(joint), *figures, *together]


def _on_known(questions: list[Known]) -> tuple[tuple[Dimension, ...], list[Change]]:
    """What is told beside something that nobody knows: the first question without it that leads to an admission."""
    told: list[tuple[tuple[Dimension, ...], list[Change]]] = []
    for known in questions:
        told.append(_on_one(known))
        if told[-1][1]:
            return told[-1]
    return told[0]


def _on_one(known: Known) -> tuple[tuple[Dimension, ...], list[Change]]:
    """A question without the unknown, alone where that will do, else with the changes that it needs beside."""
    change = known.change
    if change is None:
        return (Dimension(name=known.name, changes=(), why_none=known.why),), []
    admission = admit(change.ask)
    if admission.verdict != "refused":
        alone = Dimension(name=known.name, changes=(_settled(change),), why_none="")
        return (alone,), [*_admitted([alone])]
    weighed, changes = _searched(admission)
    rows = (replace(each, changes=tuple(resting_on(change, one) for one in each.changes)) for each in weighed)
    alone = Dimension(name=known.name, changes=(), why_none=f"not alone: {request.why_refused(change.ask)}")
    return (alone, *rows), [resting_on(change, one) for one in changes]


def _with_patches(admission: Admission, weighed: Iterable[Dimension]) -> tuple[Dimension, ...]:
    """Changes of the fleet with what a program would do to it."""
    return tuple(
        replace(each, changes=tuple(_with_patch(admission, change) for change in each.changes)) for each in weighed
    )


def _with_patch(admission: Admission, change: Change) -> Change:
    if change.ask.fleet is admission.ask.fleet:
        return change
    patch = patch_of(admission.ask.fleet, change.ask.fleet)
    return replace(change, document=change.document | {"patch": patch}) if patch else change


def _admitted(weighed: Iterable[Dimension]) -> Iterator[Change]:
    """Changes that leave nothing unknown: those that need no statement of a figure beside them go first."""
    changes = [change for each in weighed for change in each.changes if change.leaves == "admitted"]
    yield from sorted(changes, key=lambda change: any("unknown" in part for part in parts_of(change.document)))


def dimensions(admission: Admission) -> tuple[Dimension, ...]:
    """Every dimension, in order of preference, with the changes of it that are admitted."""
    least, goal = request.least_of(admission), accepted(admission)
    found = []
    for name, source, why in _DIMENSIONS:
        listed = source(admission)
        searched, more = (listed.searched, listed.more) if isinstance(listed, Found) else ("", 0)
        changes = tuple(_settled(change) for change in listed if is_mended(change.ask, goal))
        if not changes and name in least:
            words, ask = least[name]
            why = f"not even with {words}: {request.why_refused(ask)}"
        found.append(Dimension(name=name, changes=changes, why_none=why, searched=searched, more=more))
    return tuple(found)


def _routes(admission: Admission) -> Iterator[Change]:
    # A text of a foreign format has no line in which a link could be written; a flag adds those of hosts.
    foreign = bool(admission.ask.fleet.format)
    links = (fleet.host_return, fleet.links) if foreign else (fleet.links, fleet.host_return)
    for source in (*links, fleet.peer_access):
        yield from source(admission)


_FIGURES = ("in use", "pinned pool", "capacity")
"""Other hardware, or another setting of a host: told last."""
_DIMENSIONS: tuple[tuple[str, Source, str], ...] = (
    ("utilization", request.utilization, "all of it is used already"),
    ("context", request.context, "the cache is as long as the passes; --positions was not given"),
    ("sequences", request.sequences, "one sequence is the least"),
    ("new tokens", request.passes, "the cache is sized by --positions, or one decode pass is the least"),
    ("prompt", request.prompt, "it is no count beside --new-tokens that sizes the cache"),
    ("swapped roles", request.roles, "not admitted either, or the workers are divided otherwise"),
    ("other device", other_devices, "no other device of the fleet would do for one phase alone"),
    ("KV type", request.cache_type, "it has no narrower type that is priced"),
    ("weights type", request.weights_type, "they have no narrower type that is priced"),
    (
        "tensor-parallel degree",
        degree,
        "no degree that divides the model would do in one domain or host",
    ),
    ("pipeline stages", stages, "no number of stages that the layers allow would do on devices that are free"),
    ("in use", fleet.released, "others hold none of what is short, or not they alone"),
    ("pinned pool", fleet.pools, "the pool is not what is short, or not it alone"),
    ("capacity", fleet.capacities, "no memory is short, or it is not memory alone"),
    ("other route", _routes, "the way is not what is missing, or not it alone"),
    ("one device for both phases", one_device, "no single device would hold both phases"),
)
"""Name, where changes of it come from, and why there is none where nothing could have been asked otherwise."""


def _pairs(admission: Admission) -> tuple[Dimension, ...]:
    """Two dimensions changed together, where they mend what neither mends alone."""
    return tuple(
        Dimension(name=each.name, changes=tuple(map(_settled, each.changes)), why_none="") for each in pairs(admission)
    )


def _settled(change: Change) -> Change:
    """A change that leaves something unknown, with the statements beside it that would admit it, if they are true.

    No statement is chosen for its convenience: a capacity is that which is needed, peer access staged, which is always
    possible, or else direct. Where nothing can be stated (an engine's own way), the change is told as it is.
    """
    admission = admit(change.ask)
    documents = parts_of(change.document)
    for _ in range(_ROUNDS):
        if admission.verdict == "admitted":
            return Change(document=joined(documents), ask=admission.ask)
        stated = ((each, admit(each.ask)) for each in fleet.unknowns(admission))
        found = next(((each, after) for each, after in stated if after.verdict != "refused"), None)
        if found is None:
            break
        documents += parts_of(found[0].document)
        admission = found[1]
    return replace(change, leaves="unverified")


def _together(admission: Admission) -> Iterator[Change]:
    """Where no single change will do: changes of the fleet file taken together, until the plan is admitted."""
    documents: list[dict[str, Any]] = []
    for _ in range(_ROUNDS):
        links = (fleet.host_return, fleet.links) if admission.ask.fleet.format else (fleet.links,)
        sources = (apart, fleet.capacities, fleet.pools, *links, fleet.unknowns)
        change = next((c for source in sources for c in source(admission)), None)
        if change is None:
            return
        documents += parts_of(change.document)
        admission = admit(change.ask)
        if admission.verdict == "admitted":
            yield Change(document=joined(documents), ask=change.ask)
            return
