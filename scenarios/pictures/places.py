"""Where boxes, lines and labels lie. Pixels, y downwards, origin at the top left of the drawing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scenarios.pictures.shape import Box, Line, Scene

Point = tuple[float, float]
Curve = tuple[Point, Point, Point, Point]
"""A cubic Bezier curve: start, two control points, end."""


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its sides."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Rect, gap: float = 0.0) -> bool:
        """Whether the two lie nearer to each other than `gap`."""
        across = self.left < other.right + gap and other.left < self.right + gap
        return across and self.top < other.bottom + gap and other.top < self.bottom + gap

    def holds(self, point: Point) -> bool:
        """Whether the point lies inside."""
        return self.left < point[0] < self.right and self.top < point[1] < self.bottom


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Words on a line: in full, or only the letter of the legend where they do not fit."""

    lines: tuple[str, ...]
    rect: Rect


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A scene with places. `paths` and `labels` go with `scene.lines`; a label is None where not even a letter fits."""

    scene: Scene
    width: float
    height: float
    rects: dict[str, Rect]
    paths: tuple[tuple[Curve, ...], ...]
    labels: tuple[Label | None, ...]
    frames: dict[str, Rect]


STEPS = 16
"""Points by which a curve is looked at."""


def points_of(curve: Curve, steps: int = STEPS) -> list[Point]:
    """Points along a curve, ends included."""
    return [point_at(curve, step / steps) for step in range(steps + 1)]


def point_at(curve: Curve, t: float) -> Point:
    """The point of a curve at t in 0..1."""
    (ax, ay), (bx, by), (cx, cy), (dx, dy) = curve
    u = 1 - t
    a, b, c, d = u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t
    return (a * ax + b * bx + c * cx + d * dx, a * ay + b * by + c * cy + d * dy)


def picture_document(placed: Placed) -> dict[str, Any]:
    """The picture as data: boxes and lines with their places, legend and notes. What `svg` draws, and nothing else."""
    scene = placed.scene
    rows = zip(scene.lines, placed.paths, placed.labels, strict=True)
    return {
        "width": round(placed.width, 1),
        "height": round(placed.height, 1),
        "collapsed": scene.collapsed,
        "boxes": [_box(box, placed.rects[box.name]) for box in scene.boxes],
        "lines": [_line(line, path, label) for line, path, label in rows],
        "legend": [{"key": e.key, "kind": e.kind, "priced": e.priced, "words": e.words} for e in scene.legend],
        "notes": list(scene.notes),
    }


def _box(box: Box, rect: Rect) -> dict[str, Any]:
    place = {"x": rect.left, "y": rect.top, "width": rect.right - rect.left, "height": rect.bottom - rect.top}
    named = {"id": box.name, "kind": box.kind, "count": box.count, "role": box.role, "lines": list(box.lines)}
    return named | {name: round(value, 1) for name, value in place.items()}


def _line(line: Line, path: tuple[Curve, ...], label: Label | None) -> dict[str, Any]:
    corners = [path[0][0], *(point for curve in path for point in curve[1:])]
    return {
        "src": line.src,
        "dst": line.dst,
        "kind": line.kind,
        "links": line.links,
        "both_ways": line.both,
        "priced": line.priced,
        "key": line.key or None,
        "kv": line.kv,
        "words": line.words,
        "label": None if label is None else list(label.lines),
        "path": [[round(x, 1), round(y, 1)] for x, y in corners],
    }
