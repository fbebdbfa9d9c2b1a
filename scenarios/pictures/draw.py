"""Fleet -> scene -> places: the way to every picture."""

from __future__ import annotations

from typing import Any

from fleet.machine import Fleet
from scenarios.pictures.handoff import handoff_of
from scenarios.pictures.labels import place_labels
from scenarios.pictures.layout import Rows, arrange, text_width
from scenarios.pictures.places import Curve, Placed, Point, Rect
from scenarios.pictures.routes import Routes
from scenarios.pictures.scene import scene
from scenarios.pictures.shape import Scene

MARGIN = 24.0
LEAST_WIDTH = 460.0
"""Pixels: the words on a line may be wider than the boxes of a small fleet."""
FRAME_PAD = 14.0
FRAME_HEAD = 22.0


def scene_of(fleet: Fleet, plan: dict[str, Any] | None = None, source: str = "plan") -> Scene:
    """What a picture of the fleet shows; `plan` marks its handoff. DescriptionError for a plan of another fleet."""
    return scene(fleet, None if plan is None else handoff_of(plan, fleet, source))


def draw(what: Scene) -> Placed:
    """The scene with places: boxes in layers, a path for every line, labels. Moved so that nothing is left of 0."""
    rows = arrange(what)
    routes = Routes(rows)
    rects = {name: routes.rect(spot) for name, spot in rows.boxes.items()}
    paths = [_directed(what, rows, routes.path(line), line) for line in range(len(what.lines))]
    frames = _frames(what, rects, paths)
    corners = [*rects.values(), *frames.values(), *(_around(path) for path in paths)]
    left, top = min(r.left for r in corners) - MARGIN, min(r.top for r in corners) - MARGIN
    right, bottom = max(r.right for r in corners) + MARGIN, max(r.bottom for r in corners) + MARGIN
    spare = max(0.0, LEAST_WIDTH - (right - left)) / 2
    left, right = left - spare, right + spare
    rects = {name: _moved(rect, left, top) for name, rect in rects.items()}
    moved = tuple(tuple(_moved_curve(curve, left, top) for curve in path) for path in paths)
    frames = {name: _moved(rect, left, top) for name, rect in frames.items()}
    bounds = Rect(2, 2, right - left - 2, bottom - top - 2)
    blocked = [*rects.values(), *(_heading(rect, what.frames[name]) for name, rect in frames.items())]
    labels = place_labels(what.lines, moved, blocked, bounds)
    return Placed(
        scene=what, width=right - left, height=bottom - top, rects=rects, paths=moved, labels=labels, frames=frames
    )


def _directed(what: Scene, rows: Rows, path: tuple[Curve, ...], line: int) -> tuple[Curve, ...]:
    """The path from src to dst: chains run from the upper end to the lower one."""
    chain = rows.chains[line]
    if chain[0] is rows.boxes[what.lines[line].src]:
        return path
    return tuple((d, c, b, a) for a, b, c, d in reversed(path))


def _frames(what: Scene, rects: dict[str, Rect], paths: list[tuple[Curve, ...]]) -> dict[str, Rect]:
    """A frame around the boxes of each node, and the arcs between them; none where nodes would lie in one another."""
    found: dict[str, Rect] = {}
    for group in what.frames:
        names = {box.name for box in what.boxes if box.group == group and 0 < box.rank[0] < 6}
        inner = [rects[name] for name in sorted(names)]
        for line, path in zip(what.lines, paths, strict=True):
            if line.src in names and line.dst in names:
                inner.append(_around(path))
        if len(names) > 1:
            around = _union(inner)
            found[group] = Rect(
                around.left - FRAME_PAD, around.top - FRAME_PAD - FRAME_HEAD, around.right + FRAME_PAD,
                around.bottom + FRAME_PAD,
            )  # fmt: skip
    overlap = any(a.meets(b) for ka, a in found.items() for kb, b in found.items() if ka < kb)
    return {} if overlap else found


def _heading(frame: Rect, words: str) -> Rect:
    return Rect(frame.left, frame.top, frame.left + text_width(words) + 20, frame.top + FRAME_HEAD)


def _around(path: tuple[Curve, ...]) -> Rect:
    points: list[Point] = [point for curve in path for point in curve]
    middle = [((a[1] + d[1]) / 2 + 0.75 * (b[1] - a[1])) for a, b, _, d in path if a[1] == d[1]]
    ys = [point[1] for curve in path if curve[0][1] != curve[3][1] for point in curve] or [path[0][0][1]]
    ys += middle
    return Rect(min(p[0] for p in points), min(ys), max(p[0] for p in points), max(ys))


def _union(rects: list[Rect]) -> Rect:
    return Rect(
        min(r.left for r in rects), min(r.top for r in rects), max(r.right for r in rects), max(r.bottom for r in rects)
    )


def _moved(rect: Rect, left: float, top: float) -> Rect:
    return Rect(rect.left - left, rect.top - top, rect.right - left, rect.bottom - top)


def _moved_curve(curve: Curve, left: float, top: float) -> Curve:
    a, b, c, d = ((x - left, y - top) for x, y in curve)
    return (a, b, c, d)
