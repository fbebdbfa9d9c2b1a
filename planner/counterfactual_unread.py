"""What nobody knows stands in the way of any admission: the same question without it, which every change then rests on.

An engine whose way with this model's layers was not read gives way to `exact`, which prices the layers themselves; a
flag of a launch line that is not priced is left out of it; ranks among which a tensor is divided in a way that is not
known become fewer. None of it makes the unknown known: it is another question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from fleet.errors import DescriptionError
from fleet.placement import PHASES, Placement
from planner.admit import Admission, Ask, admit
from planner.counterfactual import Change, joined, parts_of
from planner.counterfactual_degree import told_degrees
from planner.counterfactual_screen import Shape, shapes_of
from planner.engines import engine_extent, engine_unknown
from planner.workers import degrees, worker_unknown

EXACT = "exact"
ENGINE, DEGREE = "engine", "known degree"


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A question without what is unknown. `name`: of the dimension. `change`: how it comes from the one that was asked.

    `change` is None where there is no such question; `why` says so then.
    """

    name: str
    change: Change | None
    why: str = ""


def known_questions(admission: Admission) -> Iterator[Known]:
    """Nothing where everything is known; else questions without the unknown, the nearest to what was asked first."""
    ask, engine = admission.ask, _read(admission.ask)
    if not (ask.placement.is_split and worker_unknown(ask.model, ask.placement)):
        if engine is not None:
            yield Known(name=ENGINE, change=engine)
        return
    rest = ask if engine is None else engine.ask
    found = False
    for change in _divided(rest):
        found = True
        yield Known(name=DEGREE, change=change if engine is None else resting_on(engine, change))
    if not found:
        yield Known(name=DEGREE, change=None, why="with no fewer ranks the division of all tensors is known")


def resting_on(first: Change, then: Change) -> Change:
    """Both changes as one; `then` is a change of what `first` asks."""
    return replace(then, document=joined([*parts_of(first.document), *parts_of(then.document)]))


def _read(ask: Ask) -> Change | None:
    """What was not read of an engine, left out; None where everything was."""
    request, documents = ask.request, list[dict[str, Any]]()
    if request.engine is not None and engine_unknown(request.engine, ask.model):
        documents.append({"flag": "--engine", "from": request.engine, "to": EXACT})
        request = replace(request, engine=EXACT, kv_extent=engine_extent(EXACT, request.unit_tokens))
    documents += [{"field": each.field, "from": each.flag, "to": None} for each in request.unpriced]
    if not documents:
        return None
    return Change(document=joined(documents), ask=replace(ask, request=replace(request, unpriced=())))


def _divided(ask: Ask) -> Iterator[Change]:
    """The same workers with their first ranks alone: the largest degrees first whose division is known."""
    placed = ask.placement
    now = shapes_of(placed)
    usable = degrees(ask.model, max(tp for tp, _ in now))
    for most in reversed(usable):
        shapes = tuple((min(tp, most), pp) for tp, pp in now)
        if shapes == now or any(tp not in usable for tp, _ in shapes):
            continue
        fewer = _first_ranks(placed, (shapes[0], shapes[1]))
        if fewer.is_split and worker_unknown(ask.model, fewer):
            continue
        changed = replace(ask, placement=fewer)
        try:
            admit(changed)
        except DescriptionError:  # an engine, say, that pairs no such degrees
            continue
        phases = [phase for phase, was, to in zip(PHASES, now, shapes, strict=True) if was != to]
        yield Change(document=told_degrees(placed, fewer, phases, now, (shapes[0], shapes[1])), ask=changed)


def _first_ranks(placed: Placement, shapes: tuple[Shape, Shape]) -> Placement:
    """The first ranks of each stage."""
    names = {}
    for phase, (tp, pp) in zip(PHASES, shapes, strict=True):
        ranks, size = placed.ranks(phase), placed.tensor_parallel(phase)
        names[phase] = ",".join(ranks[stage * size + rank] for stage in range(pp) for rank in range(tp))
    if all("," not in each for each in names.values()):
        return Placement(prefill=names["prefill"], decode=names["decode"])
    (up, up_stages), (down, down_stages) = shapes
    return Placement(prefill=names["prefill"], decode=names["decode"], tp=(up, down), pp=(up_stages, down_stages))
