"""One placement among many like it, judged as `admit` would: the screen of `planner.place`, with stages too."""

from __future__ import annotations

from fractions import Fraction

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from fleet.placement import PHASES, Placement
from planner.admit import Ask
from planner.place.classes import FleetClasses, classes_of
from planner.place.screen import Screen

Shape = tuple[int, int]
"""Ranks of one stage, and stages, of one phase."""
Time = tuple[bool, Fraction | int]
"""Whether a handoff is unpriced, and its seconds: sorts the quickest first."""
MOST_TOLD = 16
"""Devices, or groups of them, of one dimension that are told."""


_LAST: list[FleetClasses] = []


def classes_for(fleet: Fleet) -> FleetClasses:
    """The classes of a fleet, also of one in use: all dimensions of one refusal ask for those of one fleet."""
    if not _LAST or _LAST[0].fleet is not fleet:
        _LAST[:] = [classes_of(fleet)]
    return _LAST[0]


class ShapedScreen(Screen):
    """Pairs of workers of these shapes, prefill's first. DescriptionError where the request does not allow them."""

    def __init__(self, ask: Ask, shapes: tuple[Shape, Shape], classes: FleetClasses) -> None:
        self.shapes = shapes
        super().__init__(ask, tp=(shapes[0][0] * shapes[0][1], shapes[1][0] * shapes[1][1]), classes=classes)

    @property
    def is_whole(self) -> bool:
        """Whether every pair is admitted whole, because totals are near the largest that are counted."""
        return self._whole

    def placement(self, prefill: str, decode: str) -> Placement:
        """The placement that a plan of these workers has."""
        if self.tp == (1, 1):
            return Placement(prefill=prefill, decode=decode)
        (prefill_tp, prefill_pp), (decode_tp, decode_pp) = self.shapes
        return Placement(prefill=prefill, decode=decode, tp=(prefill_tp, decode_tp), pp=(prefill_pp, decode_pp))


def shapes_of(placed: Placement) -> tuple[Shape, Shape]:
    """(ranks of a stage, stages) of both phases."""
    prefill, decode = ((placed.tensor_parallel(phase), placed.pipeline(phase)) for phase in PHASES)
    return prefill, decode


def screen_of(ask: Ask, shapes: tuple[Shape, Shape], classes: FleetClasses) -> ShapedScreen | None:
    """The screen; None where the request cannot be meant with such workers."""
    try:
        return ShapedScreen(ask, shapes, classes)
    except DescriptionError:
        return None
