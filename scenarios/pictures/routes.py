"""Ports and curves: every end of a line has a port of its own, so no two lines share a path.

Between two rows a curve leaves and enters upright; curves of one strip share their course in y, so those that are
ordered at both ends never meet. A line within a row is an arc below it (devices) or above it, deeper than every shorter
arc that it encloses or crosses.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from scenarios.pictures.layout import LINE_HEIGHT, PITCH, STRIP, STRIP_CARRIED, Rows, Spot
from scenarios.pictures.places import Curve, Point, Rect
from scenarios.pictures.scene import DEVICES

BOX_PAD = 10.0
WIDEST_PITCH = 30.0
DEEPEST = 300.0
SLOPE = 0.13
"""Height of a strip for each pixel that its longest line goes sideways: flat lines lie too near to each other."""


@dataclass(slots=True)
class Arc:
    """A line within a row, by the x of its ports."""

    line: int
    row: int
    below: bool
    left: float
    right: float
    depth: float = 0.0


@dataclass(slots=True)
class _Sides:
    """Line ends at one box, by side: (sort key, line, which end)."""

    top: list[tuple[tuple[int, float, float], int, int]] = field(default_factory=list)
    bottom: list[tuple[tuple[int, float, float], int, int]] = field(default_factory=list)


class Routes:
    """Curves of a scene's lines on arranged rows."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.ports: dict[tuple[int, int], float] = {}
        self._give_ports()
        self.arcs = self._arcs()
        self.heights = [0.0] * rows.count
        for spot in rows.spots:
            if spot.box is not None:
                tall = LINE_HEIGHT * len(spot.box.lines) + 2 * BOX_PAD
                self.heights[spot.row] = max(self.heights[spot.row], tall)
        self.tops, self.bottom = self._rows_in_y()

    def rect(self, spot: Spot) -> Rect:
        """Where a box lies."""
        top = self.tops[spot.row]
        return Rect(spot.x - spot.width / 2, top, spot.x + spot.width / 2, top + self.heights[spot.row])

    def path(self, line: int) -> tuple[Curve, ...]:
        """The curves of a line, from its src to its dst as the chain runs (upper to lower, or along the arc)."""
        if line in self.arcs:
            return (self._arc(self.arcs[line]),)
        chain = self.rows.chains[line]
        curves: list[Curve] = []
        last = len(chain) - 1
        for number, (a, b) in enumerate(itertools.pairwise(chain)):
            start = (self.ports[line, 0] if number == 0 else a.x, self.tops[a.row] + self.heights[a.row])
            end = (self.ports[line, 1] if number + 1 == last else b.x, self.tops[b.row])
            middle = (start[1] + end[1]) / 2
            curves.append((start, (start[0], middle), (end[0], middle), end))
            if number + 1 < last:
                curves.append(_straight(end, (b.x, self.tops[b.row] + self.heights[b.row])))
        return tuple(curves)

    def _give_ports(self) -> None:
        sides: dict[int, _Sides] = {id(spot): _Sides() for spot in self.rows.boxes.values()}
        for line, chain in enumerate(self.rows.chains):
            first, last = chain[0], chain[-1]
            if first.row == last.row:
                self._arc_ends(sides, line, first, last)
                continue
            sides[id(first)].bottom.append(((1, chain[1].x, line), line, 0))
            sides[id(last)].top.append(((1, chain[-2].x, line), line, 1))
        for spot in self.rows.boxes.values():
            for ends in (sides[id(spot)].top, sides[id(spot)].bottom):
                pitch = min(WIDEST_PITCH, spot.width / (len(ends) + 1))
                left = spot.x - pitch * (len(ends) - 1) / 2
                for place, (_, line, end) in enumerate(sorted(ends)):
                    self.ports[line, end] = left + pitch * place

    def _arc_ends(self, sides: dict[int, _Sides], line: int, src: Spot, dst: Spot) -> None:
        """Ends of an arc, so that arcs of one box enclose each other: the far ones next to its middle."""
        below = _is_below(src)
        for end, (spot, other) in enumerate(((src, dst), (dst, src))):
            far = abs(other.x - spot.x)
            key = (2, -far, float(line)) if other.x > spot.x else (0, far, -float(line))
            if other is spot:
                key = (3, float(line), float(end))
            (sides[id(spot)].bottom if below else sides[id(spot)].top).append((key, line, end))

    def _arcs(self) -> dict[int, Arc]:
        arcs = {}
        for line, chain in enumerate(self.rows.chains):
            if chain[0].row == chain[-1].row:
                left, right = sorted((self.ports[line, 0], self.ports[line, 1]))
                arcs[line] = Arc(line, chain[0].row, _is_below(chain[0]), left, right)
        for row in range(self.rows.count):
            for below in (False, True):
                _deepen([arc for arc in arcs.values() if arc.row == row and arc.below is below])
        return arcs

    def _rows_in_y(self) -> tuple[list[float], float]:
        """The top of each row, and the end of the last strip."""
        tops = []
        at = self._reach(0, below=False)
        for row in range(self.rows.count):
            tops.append(at)
            at += self.heights[row] + self._reach(row, below=True)
            if row + 1 < self.rows.count:
                at += (
                    self._reach(row + 1, below=False)
                    + (STRIP_CARRIED if self.rows.carried else STRIP)
                    + min(DEEPEST, SLOPE * self._sideways(row))
                )
        return tops, at

    def _reach(self, row: int, *, below: bool) -> float:
        depths = [arc.depth for arc in self.arcs.values() if arc.row == row and arc.below is below]
        return max(depths) + 14 if depths else 0.0

    def _sideways(self, row: int) -> float:
        """How far a line between this row and the next goes sideways at most."""
        widest = 0.0
        for chain in self.rows.chains:
            for a, b in itertools.pairwise(chain):
                if a.row == row != b.row:
                    widest = max(widest, abs(a.x - b.x))
        return widest

    def _arc(self, arc: Arc) -> Curve:
        edge = self.tops[arc.row] + (self.heights[arc.row] if arc.below else 0.0)
        deep = edge + (arc.depth if arc.below else -arc.depth) * 4 / 3
        start, end = self.ports[arc.line, 0], self.ports[arc.line, 1]
        return ((start, edge), (start, deep), (end, deep), (end, edge))


def _is_below(spot: Spot) -> bool:
    return spot.box is not None and spot.box.rank[0] >= DEVICES


def _deepen(arcs: list[Arc]) -> None:
    """An arc is deeper than the shorter ones whose span meets its own."""
    levels: list[tuple[Arc, int]] = []
    for arc in sorted(arcs, key=lambda arc: (round(arc.right - arc.left, 3), arc.left, arc.line)):
        met = [level for other, level in levels if other.left < arc.right and arc.left < other.right]
        levels.append((arc, 1 + max(met, default=-1)))
    most = max((level for _, level in levels), default=0)
    step = max(6.0, min(PITCH, 360.0 / (most + 1)))
    for arc, level in levels:
        arc.depth = 30.0 + step * level


def _straight(a: Point, b: Point) -> Curve:
    third = ((b[0] - a[0]) / 3, (b[1] - a[1]) / 3)
    return (a, (a[0] + third[0], a[1] + third[1]), (b[0] - third[0], b[1] - third[1]), b)
