"""What must hold of every placed scene. The layout makes it so; this looks again, at points along every line."""

from __future__ import annotations

from collections import defaultdict

from scenarios.pictures.places import Placed, Point, points_of

INSIDE = 0.5
NEAR = 2.0
"""Lines nearer than these pixels count as one upon the other."""
SHARED = 0.25
"""Share of a line that may lie upon others: crossings do, a shared path would be most of it."""
LOOKED_AT = 48


def faults(placed: Placed) -> list[str]:
    """What is wrong with a picture, a sentence each; none for one that shows all that it should."""
    return [*_boxes_apart(placed), *_boxes_crossed(placed), *_paths_shared(placed), *_labels(placed), *_outside(placed)]


def _boxes_apart(placed: Placed) -> list[str]:
    rects = sorted(placed.rects.items(), key=lambda row: row[1].left)
    return [
        f"box {one} lies upon {other}"
        for at, (one, a) in enumerate(rects)
        for other, b in rects[at + 1 :]
        if a.meets(b, 4)
    ]


def _points(placed: Placed) -> list[list[Point]]:
    return [[point for curve in path for point in points_of(curve, LOOKED_AT)] for path in placed.paths]


def _boxes_crossed(placed: Placed) -> list[str]:
    """Lines through a box, that of their own ends as well: they come to its edge and no further."""
    told = []
    for line, points in zip(placed.scene.lines, _points(placed), strict=True):
        for name, rect in placed.rects.items():
            if any(
                rect.left + INSIDE < x < rect.right - INSIDE and rect.top + INSIDE < y < rect.bottom - INSIDE
                for x, y in points
            ):
                told.append(f"line {line.src} -> {line.dst} goes through box {name}")
    return told


def _paths_shared(placed: Placed) -> list[str]:
    """Lines most of whose points lie upon one other line."""
    lines = _points(placed)
    spots: dict[tuple[int, int], list[tuple[int, Point]]] = defaultdict(list)
    for number, points in enumerate(lines):
        for x, y in points:
            cell = (int(x // NEAR), int(y // NEAR))
            spots[cell].append((number, (x, y)))
    told = []
    for number, points in enumerate(lines):
        upon: dict[int, int] = defaultdict(int)
        for point in points:
            for other in _near(point, spots):
                upon[other] += other != number
        for other, count in upon.items():
            if count > SHARED * len(points):
                a, b = placed.scene.lines[number], placed.scene.lines[other]
                told.append(f"line {a.src} -> {a.dst} lies upon {b.src} -> {b.dst}: {count} of {len(points)} points")
    return told


def _near(point: Point, spots: dict[tuple[int, int], list[tuple[int, Point]]]) -> set[int]:
    x, y = point
    column, row = int(x // NEAR), int(y // NEAR)
    around = [(column + i, row + j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    return {
        number
        for cell in around
        for number, (ox, oy) in spots.get(cell, ())
        if (ox - x) ** 2 + (oy - y) ** 2 < NEAR * NEAR
    }


def _labels(placed: Placed) -> list[str]:
    told = []
    rects = [(at, label.rect) for at, label in enumerate(placed.labels) if label is not None]
    for number, (at, rect) in enumerate(rects):
        line = placed.scene.lines[at]
        told += [f"label of {line.src} -> {line.dst} covers box {n}" for n, r in placed.rects.items() if rect.meets(r)]
        told += [
            f"label of {line.src} -> {line.dst} covers another" for _, other in rects[number + 1 :] if rect.meets(other)
        ]
    return told


def _outside(placed: Placed) -> list[str]:
    corners = [(x, y) for r in placed.rects.values() for x, y in ((r.left, r.top), (r.right, r.bottom))]
    corners += [point for points in _points(placed) for point in points]
    beyond = [p for p in corners if not (0 <= p[0] <= placed.width and 0 <= p[1] <= placed.height)]
    return [f"{len(beyond)} points lie outside the picture"] if beyond else []
