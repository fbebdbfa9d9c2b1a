"""Labels on lines: in full where they cover no box and no other label, else the letter of the legend."""

from __future__ import annotations

from scenarios.pictures.layout import LINE_HEIGHT, text_width
from scenarios.pictures.places import Curve, Label, Point, Rect, point_at, points_of
from scenarios.pictures.shape import Line

TRIED = (0.5, 0.38, 0.62, 0.28, 0.72, 0.2, 0.8, 0.45, 0.55, 0.33, 0.67, 0.24, 0.76)
ANY = 1_000_000
LITTLE = 4
"""What must be labelled keeps near its middle, for a little of another line."""
CROSSED = 3
"""A label that would lie over more points of other lines than these gives way to the letter."""


def place_labels(
    lines: tuple[Line, ...], paths: tuple[tuple[Curve, ...], ...], boxes: list[Rect], bounds: Rect
) -> tuple[Label | None, ...]:
    """A label for each line. What carries K and V is labelled first, then short words before long ones."""
    placed: dict[int, Label] = {}
    points = [[point for curve in path for point in points_of(curve)] for path in paths]
    weights = [1 if line.kv is None else CROSSED + 1 for line in lines]  # what is marked is covered by nothing
    order = sorted(range(len(lines)), key=lambda at: (lines[at].kv is None, at))
    for at in order:
        line = lines[at]
        others = [spot for number, row in enumerate(points) if number != at for spot in row * weights[number]]
        blocked = [*boxes, *(label.rect for label in placed.values())]
        for words, crossed in _wordings(line):
            label = _fit(words, paths[at], blocked, others, bounds, crossed)
            if label is not None:
                placed[at] = label
                break
    return tuple(placed.get(at) for at in range(len(lines)))


def _wordings(line: Line) -> list[tuple[tuple[str, ...], int]]:
    """What a label may say, the fullest first, and how many points of other lines each may cover."""
    if line.kv is None:
        return [((line.words,), CROSSED), ((line.key,), ANY)]
    whole = [((line.kv, line.words), ANY)] if line.words else []
    return [*whole, ((line.kv,), ANY), *([((line.key,), ANY)] if line.key else [])]


def _fit(
    words: tuple[str, ...],
    path: tuple[Curve, ...],
    blocked: list[Rect],
    others: list[Point],
    bounds: Rect,
    crossed: int,
) -> Label | None:
    """The label at the first place along the line that crosses the fewest others; None where it fits nowhere."""
    wide = max(text_width(line) for line in words) / 2 + 3
    tall = LINE_HEIGHT * len(words) / 2
    best: tuple[int, int, Rect] | None = None
    spots = [point_at(curve, t) for t in TRIED for curve in path if curve[0][1] != curve[3][1] or len(path) == 1]
    for number, (x, y) in enumerate(spots):
        rect = Rect(x - wide, y - tall, x + wide, y + tall)
        if rect.left < bounds.left or rect.right > bounds.right or rect.top < bounds.top or rect.bottom > bounds.bottom:
            continue
        if any(rect.meets(other, 2) for other in blocked):
            continue
        over = sum(rect.holds(point) for point in others)
        rank = over // LITTLE if crossed == ANY else over
        if over <= crossed and (best is None or (rank, number) < best[:2]):
            best = (rank, number, rect)
    return None if best is None else Label(lines=words, rect=best[2])
