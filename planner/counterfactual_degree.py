"""The fewest more ranks that would be admitted: tensor-parallel degrees, and pipeline stages, on named free devices.

A phase whose device is short gets more ranks, both where one alone will not do; degrees of the phases may be unlike.
All shapes that the model allows are tried, the fewest devices first. The devices of a worker are of one kind, and lie
in one link domain, or, where no such group is admitted, on one host. Groups are taken rank by rank, of devices that
swaps make equal one, so none is left out: a smaller shape that is not told is not admitted anywhere. Where there are
too many groups, what was searched is told, and the shape is not called exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from fleet.placement import PHASES, Placement
from planner.admit import Admission, Ask
from planner.counterfactual import Change, Found, Goal, accepted, joined, phases_short
from planner.counterfactual_screen import Shape, ShapedScreen, classes_for, screen_of, shapes_of
from planner.place.classes import FleetClasses
from planner.workers import MOST_RANKS, degrees

MOST_GROUPS = 128
"""Groups of devices of one shape that are screened."""
MOST_TRIED = 512
"""Groups in all; with the ranks of a group it bounds the time of an answer."""
MOST_SHAPES = 64
"""Shapes of both phases that are tried in one kind of area."""
_AREAS = ("domain", "host")


def degree(admission: Admission) -> Found:
    """The least tensor-parallel degrees of the phases that are short; stages stay as they are."""
    ask = admission.ask
    if ask.model.unknown:
        return Found()
    usable = degrees(ask.model, min(len(ask.fleet.devices), MOST_RANKS))
    return _least(admission, lambda now: [(tp, now[1]) for tp in usable if tp > now[0]])


def stages(admission: Admission) -> Found:
    """The least pipeline stages of the phases that are short; degrees stay as they are."""
    ask = admission.ask
    if ask.model.unknown:
        return Found()
    most = min(ask.model.n_layers, len(ask.fleet.devices), MOST_RANKS)
    return _least(admission, lambda now: [(now[0], pp) for pp in range(now[1] + 1, most + 1)])


def _least(admission: Admission, more: Callable[[Shape], list[Shape]]) -> Found:
    """The first group of the fewest devices: the phases that are short, then both."""
    ask, short = admission.ask, phases_short(admission)
    placed = ask.placement
    if not short or set(placed.ranks("prefill")) & set(placed.ranks("decode")):
        return Found()
    now = shapes_of(placed)
    search = _Search(ask, classes_for(ask.fleet), accepted(admission))
    for area, phases in product(_AREAS, dict.fromkeys((short, PHASES))):
        options = [more(shape) if phase in phases else [shape] for phase, shape in zip(PHASES, now, strict=True)]
        listed = sorted(((one, other) for one, other in product(*options)), key=_devices_of)
        for shapes in search.tried(listed, phases, area):
            placement = search.first(shapes, phases, area)
            if placement is not None:
                document = told_degrees(placed, placement, phases, now, shapes)
                change = Change(document=document, ask=replace(ask, placement=placement))
                return Found(changes=(change,), searched=search.words)
    return Found(searched=search.words)


def _devices_of(shapes: tuple[Shape, Shape]) -> tuple[int, int, int]:
    """Fewest devices first, then the most alike, then the smaller prefill worker."""
    counts = [tp * pp for tp, pp in shapes]
    return sum(counts), max(counts), counts[0]


def told_degrees(
    placed: Placement, placement: Placement, phases: Iterable[str], now: tuple[Shape, Shape],
    shapes: tuple[Shape, Shape],
) -> dict[str, Any]:  # fmt: skip
    """Devices by phase; of workers the degree too, which was told before and may not be what the devices give."""
    changes: list[dict[str, Any]] = []
    for at, name in enumerate(("tp", "pp")):
        was, to = [shape[at] for shape in now], [shape[at] for shape in shapes]
        if was == to or (name == "tp" and not placed.is_split):
            continue
        if len(set(was)) == len(set(to)) == 1:
            changes.append({"flag": f"--{name}", "from": was[0], "to": to[0]})
        else:
            ends = zip(PHASES, was, to, strict=True)
            changes += [{"flag": f"--{phase}-{name}", "from": a, "to": b} for phase, a, b in ends if a != b]
    changes += [
        {"flag": f"--{phase}", "from": getattr(placed, phase), "to": getattr(placement, phase)}
        for phase in ("decode", "prefill")
        if phase in phases
    ]
    return joined(changes)


@dataclass(slots=True)
class _Search:
    """Groups of devices for the ranks of both phases, one rank after another."""

    ask: Ask
    classes: FleetClasses
    goal: Goal
    searched: int = 0
    possible: int = 0
    _cut: bool = False
    _left_out: int = 0
    _screens: dict[tuple[Shape, Shape], ShapedScreen | None] = field(default_factory=dict)
    _plots: dict[str, _Plot] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Empty where all groups of all shapes that were tried were looked at."""
        if self._left_out:
            return f"{self._left_out:,} shapes of workers were not tried; others may do"
        if not self._cut:
            return ""
        return f"searched {self.searched:,} of up to {self.possible:,} groups of devices in order; fewer ranks may do"

    def tried(
        self, listed: list[tuple[Shape, Shape]], phases: Iterable[str], area: str
    ) -> list[tuple[Shape, Shape]]:  # fmt: skip
        """The shapes for which an area, and the fleet, has devices enough: as many as are tried."""
        most, whole = self._plot(area).most, len(self.ask.fleet.devices)
        fit = [
            shapes for shapes in listed
            if _devices_of(shapes)[0] <= whole
            and all(tp * pp <= most for phase, (tp, pp) in zip(PHASES, shapes, strict=True) if phase in phases)
        ]  # fmt: skip
        self._left_out += max(0, len(fit) - MOST_SHAPES)
        return fit[:MOST_SHAPES]

    def _plot(self, area: str) -> _Plot:
        if area not in self._plots:
            self._plots[area] = _Plot.of(self.ask, self.classes, area)
        return self._plots[area]

    def first(self, shapes: tuple[Shape, Shape], phases: Iterable[str], area: str) -> Placement | None:
        """The first admitted placement of these shapes; phases that are not among `phases` stay where they are."""
        screen = self._screen(shapes)
        if screen is None:
            return None
        ranks = [(phase, rank) for at, phase in enumerate(PHASES) if phase in phases for rank in range(screen.tp[at])]
        walk = _Walk(screen, self.classes, ranks, self._plot(area), self.goal)
        left = min(MOST_GROUPS, MOST_TRIED - self.searched)
        for number, named in enumerate(walk.groups()):
            if number >= left:
                self._cut = True
                self.possible += walk.possible()
                return None
            self.searched += 1
            if screen.pair(*named).verdict in self.goal:
                return screen.placement(*named)
        return None

    def _screen(self, shapes: tuple[Shape, Shape]) -> ShapedScreen | None:
        if shapes not in self._screens:
            found = screen_of(self.ask, shapes, self.classes)
            self._screens[shapes] = None if found is None or found.is_whole else found
        return self._screens[shapes]


@dataclass(frozen=True, slots=True)
class _Plot:
    """By device its areas; by phase the devices of its kind in the order in which they are tried, and one of each
    likeness; `most` in one area.
    """

    areas: list[frozenset[str]]
    orders: dict[str, list[int]]
    kinds: dict[str, tuple[int, ...]]
    most: int

    @staticmethod
    def of(ask: Ask, classes: FleetClasses, area: str) -> _Plot:
        """The phase's own devices first, then those of its host, then the rest; last those that the other phase has."""
        fleet, symmetry = ask.fleet.devices, classes.symmetry
        by_domain = area == "domain"
        areas = [
            classes.near.domains.get(d.id, frozenset()) if by_domain else frozenset((d.host,)) for d in fleet
        ]  # fmt: skip
        orders, kinds = {}, {}
        for phase in PHASES:
            own = [symmetry.number[name] for name in ask.placement.ranks(phase)]
            host, kind = fleet[own[0]].host, fleet[own[0]].kind
            others = {symmetry.number[name] for name in ask.placement.devices} - set(own)
            rest = set(range(len(fleet))) - set(own) - others
            order = [*own, *sorted(rest, key=lambda at: (fleet[at].host != host, at)), *sorted(others)]
            orders[phase] = [at for at in order if fleet[at].kind == kind and areas[at]]
            kinds[phase] = tuple({symmetry.like[at]: at for at in reversed(orders[phase])}.values())
        sizes = Counter(each for held in areas for each in held)
        return _Plot(areas, orders, kinds, max(sizes.values(), default=0))


class _Walk:
    """All groups of one shape in one kind of area, those that swaps turn into each other once."""

    def __init__(
        self, screen: ShapedScreen, classes: FleetClasses, ranks: list[tuple[str, int]], plot: _Plot, goal: Goal
    ) -> None:  # fmt: skip
        self.screen, self.symmetry, self.ranks, self.plot, self.goal = screen, classes.symmetry, ranks, plot, goal
        placed, moved = screen.ask.placement, {phase for phase, _ in ranks}
        self.stay = {phase: placed.ranks(phase) for phase in PHASES if phase not in moved}
        self.fixed = tuple(self.symmetry.number[name] for names in self.stay.values() for name in names)
        self.able = {rank: self._able(*rank) for rank in ranks}
        self.sizes = {phase: self._sizes(phase) for phase in moved}

    def _able(self, phase: str, rank: int) -> list[int]:
        """Devices against which nothing stands that they decide alone, of the kind that the phase is on."""
        like, able = self.symmetry.like, set()
        for number in self.plot.kinds[phase]:
            site = self.screen.site(self.symmetry.names[number], phase, rank)
            if not site.errors and ("unverified" in self.goal or not site.unknowns):
                able.add(like[number])
        fixed = set(self.fixed)
        return [n for n in self.plot.orders[phase] if like[n] in able and n not in fixed] if able else []

    def _sizes(self, phase: str) -> Counter[str]:
        """Devices that may be a rank of the phase, by area."""
        able = {number for (of, _), numbers in self.able.items() if of == phase for number in numbers}
        return Counter(area for number in able for area in self.plot.areas[number])

    def groups(self) -> Iterator[tuple[str, str]]:
        """(prefill, decode), ranks joined by commas."""
        for chosen in self._more((), frozenset()) if all(self.able.values()) else ():
            names = {phase: list(ranks) for phase, ranks in self.stay.items()}
            for (phase, _), number in zip(self.ranks, chosen, strict=True):
                names.setdefault(phase, []).append(self.symmetry.names[number])
            yield ",".join(names["prefill"]), ",".join(names["decode"])

    def _more(self, chosen: tuple[int, ...], area: frozenset[str]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == len(self.ranks):
            yield chosen
            return
        phase, rank = self.ranks[len(chosen)]
        count = self.screen.tp[PHASES.index(phase)]
        seen: set[object] = set()
        for number in self.able[phase, rank]:
            shared = self.plot.areas[number]
            shared = area & shared if rank else frozenset(e for e in shared if self.sizes[phase][e] >= count)
            if number in chosen or not shared:
                continue
            key = (self.symmetry.tuple_class((*self.fixed, *chosen, number)), shared if rank else None)
            if key not in seen:
                seen.add(key)
                yield from self._more((*chosen, number), shared)

    def possible(self) -> int:
        """Groups in order that there are at most, a device of several areas counted in each."""
        return math.prod(
            sum(math.perm(size, self.screen.tp[PHASES.index(phase)]) for size in sizes.values())
            for phase, sizes in self.sizes.items()
        )
