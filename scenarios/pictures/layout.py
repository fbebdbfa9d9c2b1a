"""Layers: every kind of thing has a row of its own, and a line that passes a row has a place in it, beside the boxes.

So no line can cross a box, whatever is described: between rows there are no boxes, and within a row it keeps its place.
Order within a row by barycentres (Sugiyama), places by least squares that keep the order (pool adjacent violators).
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fleet.identity import natural_order
from scenarios.pictures.scene import WIDE_ABOVE, WIDE_BELOW
from scenarios.pictures.shape import Box, Line, Scene
from scenarios.table import width_of

CHAR = 7.0
"""Pixels of a character of small text, on the wide side: fonts differ."""
LINE_HEIGHT = 16.0
PITCH = 16.0
"""Least pixels between two ports of a box."""
GAP = 28.0
ROOMY = (110.0, 210.0)
"""Between the boxes of a row of at most three, without and with a handoff: their labels need the room."""
GROUP_GAP = 56.0
STRIP = 72.0
STRIP_CARRIED = 112.0
"""Least height between two rows; with a handoff its words need room as well."""
PASSING = 16.0
SWEEPS = 6


@dataclass(eq=False, slots=True)
class Spot:
    """A place in a row: of a box, or of a line that passes."""

    row: int
    group: str
    width: float
    box: Box | None
    order: int
    x: float = 0.0
    above: list[Spot] = field(default_factory=list)
    below: list[Spot] = field(default_factory=list)


@dataclass(slots=True)
class Rows:
    """The spots of all rows, `chains` the spots of each line (two of one row for a line within it)."""

    spots: list[Spot]
    boxes: dict[str, Spot]
    chains: list[list[Spot]]
    count: int
    wide: frozenset[int]
    carried: bool


def text_width(text: str) -> float:
    """Pixels of small text."""
    return width_of(text) * CHAR


def arrange(scene: Scene) -> Rows:
    """Rows with the x of every spot."""
    rows = _rows(scene)
    groups = sorted({spot.group for spot in rows.spots if spot.row not in rows.wide}, key=natural_order)
    left = 0.0
    for group in groups:
        held = [spot for spot in rows.spots if spot.group == group and spot.row not in rows.wide]
        _place_group(held, rows.carried)
        shift = left - min(spot.x - spot.width / 2 for spot in held)
        for spot in held:
            spot.x += shift
        left = max(spot.x + spot.width / 2 for spot in held) + GROUP_GAP
    _place_wide(rows)
    return rows


def _rows(scene: Scene) -> Rows:
    ends = _ends(scene.lines)
    ranks = sorted({box.rank for box in scene.boxes})
    row_of = {rank: row for row, rank in enumerate(ranks)}
    boxes = {}
    for order, box in enumerate(sorted(scene.boxes, key=lambda box: natural_order(box.name))):
        boxes[box.name] = Spot(row_of[box.rank], box.group, _box_width(box, ends[box.name]), box, order)
    wide = frozenset(row for rank, row in row_of.items() if rank[0] in (WIDE_ABOVE, WIDE_BELOW))
    carried = any(line.kv is not None for line in scene.lines)
    rows = Rows(spots=list(boxes.values()), boxes=boxes, chains=[], count=len(ranks), wide=wide, carried=carried)
    for line in scene.lines:
        rows.chains.append(_chain(rows, boxes[line.src], boxes[line.dst]))
    return rows


def _ends(lines: Iterable[Line]) -> dict[str, int]:
    count: dict[str, int] = defaultdict(int)
    for line in lines:
        count[line.src] += 1
        count[line.dst] += 1
    return count


def _box_width(box: Box, ends: int) -> float:
    told = max(text_width(line) for line in box.lines)
    heading = text_width(box.lines[0]) * 1.15
    return max(96.0, told + 24, heading + 24, PITCH * (ends + 1))


def _chain(rows: Rows, src: Spot, dst: Spot) -> list[Spot]:
    """The spots of a line from its upper end to its lower one, with a passing spot in each row between."""
    if src.row == dst.row:
        return [src, dst]
    upper, lower = (src, dst) if src.row < dst.row else (dst, src)
    owner = lower if upper.row in rows.wide else upper
    chain = [upper]
    for row in range(upper.row + 1, lower.row):
        spot = Spot(row, owner.group, PASSING, None, len(rows.spots))
        rows.spots.append(spot)
        chain.append(spot)
    chain.append(lower)
    for a, b in itertools.pairwise(chain):
        a.below.append(b)
        b.above.append(a)
    return chain


def _place_group(held: list[Spot], carried: bool) -> None:
    """Order and x of the spots of one group, by its own lines."""
    by_row: dict[int, list[Spot]] = defaultdict(list)
    for spot in held:
        by_row[spot.row].append(spot)
    inside = set(map(id, held))
    for row in by_row.values():
        row.sort(key=lambda spot: spot.order)
        _pack(row, [0.0] * len(row), carried)
    for sweep in range(SWEEPS):
        downwards = sweep % 2 == 0
        for number in sorted(by_row, reverse=not downwards):
            row = by_row[number]
            wanted = {id(s): _mean([n for n in (s.above if downwards else s.below) if id(n) in inside], s) for s in row}
            if sweep < SWEEPS - 2:
                row.sort(key=lambda spot: (round(wanted[id(spot)], 3), spot.order))
            _pack(row, [wanted[id(spot)] for spot in row], carried)
    for number in sorted(by_row):
        row = by_row[number]
        _pack(row, [_mean([n for n in (*s.above, *s.below) if id(n) in inside], s) for s in row], carried)


def _place_wide(rows: Rows) -> None:
    """Rows that stand over all groups, from the inside outwards."""
    by_row: dict[int, list[Spot]] = defaultdict(list)
    for spot in rows.spots:
        if spot.row in rows.wide:
            by_row[spot.row].append(spot)
    inner = [row for row in range(rows.count) if row not in rows.wide]
    middle = inner[0] if inner else rows.count
    above = [row for row in sorted(by_row, reverse=True) if row < middle]
    for row in [*above, *(row for row in sorted(by_row) if row >= middle)]:
        spots = by_row[row]
        wanted = {id(spot): _mean(spot.below if row < middle else spot.above, spot) for spot in spots}
        spots.sort(key=lambda spot: (round(wanted[id(spot)], 3), spot.order))
        _pack(spots, [wanted[id(spot)] for spot in spots], rows.carried)


def _mean(near: list[Spot], spot: Spot) -> float:
    return sum(other.x for other in near) / len(near) if near else spot.x


def _pack(row: list[Spot], wanted: list[float], carried: bool) -> None:
    """Sets x as near to what is wanted as the order and the widths allow: least squares by pooling what violates it."""
    gap = ROOMY[carried] if sum(spot.box is not None for spot in row) <= 3 else GAP
    offset, offsets = 0.0, []
    for number, spot in enumerate(row):
        if number:
            offset += (row[number - 1].width + spot.width) / 2 + (gap if row[number - 1].box and spot.box else GAP)
        offsets.append(offset)
    pools: list[list[float]] = []  # [sum of wanted places, their number]
    for want, at in zip(wanted, offsets, strict=True):
        pools.append([want - at, 1])
        while len(pools) > 1 and pools[-2][0] * pools[-1][1] >= pools[-1][0] * pools[-2][1]:
            total, number_ = pools.pop()
            pools[-1][0] += total
            pools[-1][1] += number_
    places = [total / count for total, count in pools for _ in range(int(count))]
    for spot, place, at in zip(row, places, offsets, strict=True):
        spot.x = place + at
