"""The smallest pairs of changes, where no single one is admitted: of each two dimensions the ends of their staircase.

A dimension is a ladder: step 0 is what was asked, each step takes no more memory than the last. Of two ladders the
pairs that are admitted lie above a staircase. Three of its corners are told, each found by bisection: first the one
whose larger share of its two ladders is least, then the one that climbs least of the first ladder, and of the other.
One step less of either is refused. Swapped roles, a route or a pool are no ladders: each is made first, and then the
smallest step of every ladder is found. Two other devices are the best pair of the whole fleet, as `place` finds it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations
from typing import Any

from fleet.errors import DescriptionError
from fleet.model import DTYPE_BYTES, PRICED_DTYPES
from fleet.placement import Placement
from planner.admit import Admission, Ask
from planner.counterfactual import (
    STEPS_OF_SHARE,
    Change,
    Goal,
    accepted,
    decimal,
    is_mended,
    joined,
    parts_of,
    roles,
    with_batch,
)
from planner.counterfactual_devices import apart
from planner.counterfactual_fleet import host_return, links, peer_access, pools
from planner.request import resolve, with_passes

Step = Callable[[Ask, int], tuple[Ask, list[dict[str, Any]]]]
Corner = tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """`at(ask, step)`: the request with that step made, and its documents; step 0 changes nothing."""

    name: str
    steps: int
    at: Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """The changes of two dimensions together, the smallest first."""

    name: str
    changes: tuple[Change, ...]


def pairs(admission: Admission) -> tuple[Pair, ...]:
    """All pairs of dimensions that mend a refusal, in order of preference of the dimensions."""
    goal, rungs = accepted(admission), ladders(admission)
    found = [
        Pair(name=f"{one.name} and {other.name}", changes=tuple(_corners(admission.ask, one, other, goal)))
        for one, other in combinations(rungs, 2)
    ]
    found += _with_choices(admission, rungs, goal)
    return tuple(each for each in found if each.changes)


def ladders(admission: Admission) -> list[Ladder]:
    """The dimensions of a request in which less could have been asked, in order of preference."""
    ask, workload = admission.ask, admission.workload
    if workload is None:
        return []
    request, found = ask.request, []
    if admission.utilization < 1:
        found.append(_utilization(admission.utilization))
    if request.positions is not None:
        least = min(workload.passes, workload.prompt_tokens + 1)
        found.append(_context(admission, workload.positions - least))
    if workload.batch > 1:
        batch = workload.batch

        def fewer(asked: Ask, step: int) -> tuple[Ask, list[dict[str, Any]]]:
            return with_batch(asked, batch - step), [{"flag": "--batch", "from": batch, "to": batch - step}]

        found.append(Ladder(name="sequences", steps=batch - 1, at=fewer))
    if request.positions is None and workload.decode_passes > 1:
        found.append(_passes(admission, workload.decode_passes - 1))
    tokens = request.prompt_tokens
    if (
        tokens is not None
        and request.prompt_ids is None
        and request.new_tokens is not None
        and request.positions is None
    ):
        found.append(_counted("prompt", "--prompt-tokens", "prompt_tokens", tokens, least=max(1, request.prefix_hit)))
    for name, field, now in (
        ("KV type", "kv_dtype", workload.kv_dtype), ("weights type", "weights_dtype", workload.weights_dtype),
    ):  # fmt: skip
        found += _types(ask, name, field, now)
    return [ladder for ladder in found if ladder.steps > 0]


def _utilization(now: Fraction) -> Ladder:
    first = int(now * STEPS_OF_SHARE)  # the first share of four decimals that is more is one step up

    def more(asked: Ask, step: int) -> tuple[Ask, list[dict[str, Any]]]:
        share = Fraction(first + step, STEPS_OF_SHARE)
        return replace(asked, utilization=share), [
            {"flag": "--utilization", "from": decimal(now), "to": decimal(share)}
        ]

    return Ladder(name="utilization", steps=STEPS_OF_SHARE - first, at=more)


def _context(admission: Admission, steps: int) -> Ladder:
    workload = admission.workload
    assert workload is not None

    def shorter(asked: Ask, step: int) -> tuple[Ask, list[dict[str, Any]]]:
        count = workload.positions - step
        request = replace(asked.request, positions=count)
        documents: list[dict[str, Any]] = [{"flag": "--positions", "from": workload.positions, "to": count}]
        if count < workload.passes:
            request, flag, before, after = with_passes(request, workload, count)
            documents.append({"flag": flag, "from": before, "to": after})
        return replace(asked, request=request), documents

    return Ladder(name="context", steps=steps, at=shorter)


def _passes(admission: Admission, steps: int) -> Ladder:
    request, workload = admission.ask.request, admission.workload
    assert workload is not None
    if request.new_tokens is not None:
        return _counted("new tokens", "--new-tokens", "new_tokens", request.new_tokens, least=2)

    def fewer(asked: Ask, step: int) -> tuple[Ask, list[dict[str, Any]]]:
        changed, flag, before, after = with_passes(asked.request, workload, workload.passes - step)
        return replace(asked, request=changed), [{"flag": flag, "from": before, "to": after}]

    return Ladder(name="new tokens", steps=steps, at=fewer)


def _counted(name: str, flag: str, field: str, now: int, least: int = 1) -> Ladder:
    def fewer(asked: Ask, step: int) -> tuple[Ask, list[dict[str, Any]]]:
        changed: dict[str, Any] = {field: now - step}
        document = {"flag": flag, "from": now, "to": now - step}
        return replace(asked, request=replace(asked.request, **changed)), [document]

    return Ladder(name=name, steps=now - least, at=fewer)


def _types(ask: Ask, name: str, field: str, now: str) -> list[Ladder]:
    """One step a width: of types of one width the first that the request may have."""
    if now not in DTYPE_BYTES:
        return []
    widths: dict[int, str] = {}
    for dtype in PRICED_DTYPES:
        if DTYPE_BYTES[dtype] < DTYPE_BYTES[now] and _is_meant(ask, {field: dtype}):
            widths.setdefault(DTYPE_BYTES[dtype], dtype)
    types = [widths[width] for width in sorted(widths, reverse=True)]

    def narrower(asked: Ask, step: int) -> tuple[Ask, list[dict[str, Any]]]:
        changed: dict[str, Any] = {field: types[step - 1]}
        document = {"flag": f"--{field.replace('_', '-')}", "from": now, "to": types[step - 1]}
        return replace(asked, request=replace(asked.request, **changed)), [document]

    return [Ladder(name=name, steps=len(types), at=narrower)]


def _is_meant(ask: Ask, changed: dict[str, Any]) -> bool:
    try:
        resolve(replace(ask.request, **changed), ask.model)
    except DescriptionError:
        return False
    return True


class _Staircase:
    """Which steps of two ladders together mend a request."""

    def __init__(self, ask: Ask, one: Ladder, other: Ladder, goal: Goal) -> None:
        self.ask, self.one, self.other, self.goal = ask, one, other, goal

    def change(self, corner: Corner) -> Change:
        """Both steps; a step of none is left out."""
        ask, documents = self.ask, list[dict[str, Any]]()
        for ladder, step in zip((self.one, self.other), corner, strict=True):
            if step:
                ask, more = ladder.at(ask, step)
                documents += more
        return Change(document=joined(documents) if documents else {}, ask=ask)

    def holds(self, corner: Corner) -> bool:
        """Whether the request with both steps is mended."""
        return is_mended(self.change(corner).ask, self.goal)

    def corners(self) -> list[Corner]:
        """The told corners, the one with the smallest larger share of its ladders first."""
        most = (self.one.steps, self.other.steps)
        if not self.holds(most):
            return []
        first = _least(most[0], lambda step: self.holds((step, most[1])))
        second = _least(most[1], lambda step: self.holds((most[0], step)))
        ends = [self._down((first, most[1])), self._down((most[0], second))]
        up = _least(most[0], lambda step: self.holds((step, step * most[1] // most[0])))
        over = _least(most[1], lambda step: self.holds((step * most[0] // most[1], step)))
        even = [self._down((up, up * most[1] // most[0])), self._down((over * most[0] // most[1], over))]
        return list(dict.fromkeys([min(even, key=self.share), *ends]))

    def share(self, corner: Corner) -> Fraction:
        """The larger share of a ladder that a corner climbs."""
        return max(Fraction(corner[0], self.one.steps), Fraction(corner[1], self.other.steps))

    def _down(self, corner: Corner) -> Corner:
        """The corner below a pair that holds: the least second step, then the least first."""
        second = _least(corner[1], lambda step: self.holds((corner[0], step)))
        return _least(corner[0], lambda step: self.holds((step, second))), second


def _least(most: int, holds: Callable[[int], bool]) -> int:
    """The least step in [0, most] that holds; the last one is known to."""
    return bisect_left(range(most), True, key=holds)


def _corners(ask: Ask, one: Ladder, other: Ladder, goal: Goal) -> Iterator[Change]:
    stairs = _Staircase(ask, one, other, goal)
    yield from map(stairs.change, stairs.corners())


def _with_choices(admission: Admission, rungs: list[Ladder], goal: Goal) -> Iterator[Pair]:
    """A choice first, then the least step of each ladder on what it leaves; and both devices elsewhere."""
    for name, source in _CHOICES:
        for choice in source(admission):
            for ladder in rungs:
                changes = tuple(_stepped(choice, ladder, goal))
                if changes:
                    yield Pair(name=f"{name} and {ladder.name}", changes=changes)
    yield from _both_devices(admission, goal)


def _stepped(choice: Change, ladder: Ladder, goal: Goal) -> Iterator[Change]:
    def made(step: int) -> Ask:
        return ladder.at(choice.ask, step)[0]

    if not is_mended(made(ladder.steps), goal):
        return
    step = 1 + _least(ladder.steps - 1, lambda step: is_mended(made(step + 1), goal))
    ask, documents = ladder.at(choice.ask, step)
    yield Change(document=joined([*parts_of(choice.document), *documents]), ask=ask)


def _both_devices(admission: Admission, goal: Goal) -> Iterator[Pair]:
    """The pair with the least time of the handoff on the whole fleet."""
    from planner.place.pairs import PairSearch, Question

    ask, placed = admission.ask, admission.ask.placement
    if placed.is_split or len(ask.fleet.devices) < 2:
        return
    best = PairSearch(Question(ask=ask)).best()
    if best is None or best.verdict not in goal:
        return
    moved = Placement(prefill=best.prefill[0][0], decode=best.decode[0][0])
    documents = [
        {"flag": f"--{phase}", "from": getattr(placed, phase), "to": getattr(moved, phase)}
        for phase in ("decode", "prefill")
        if getattr(placed, phase) != getattr(moved, phase)
    ]
    if len(documents) > 1:
        change = Change(document=joined(documents), ask=replace(ask, placement=moved))
        yield Pair(name="both devices", changes=(change,))


_CHOICES: tuple[tuple[str, Callable[[Admission], Iterable[Change]]], ...] = (
    ("swapped roles", roles), ("pinned pool", pools), ("host links", host_return), ("links", links),
    ("direct route", peer_access), ("card or slice", apart),
)  # fmt: skip
