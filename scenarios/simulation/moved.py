"""Bytes that handoffs moved: by pair, by physical edge, over time. Sums of the planner's rows, unit by unit."""

from __future__ import annotations

from typing import Any

from scenarios.simulation.engine import Outcome
from scenarios.simulation.plant import Plant
from scenarios.simulation.traffic import PICOSECONDS, Traffic

Document = dict[str, Any]
BINS = 20
"""Equal parts of the duration, for bytes over time."""


def units_of(plant: Plant, traffic: Traffic) -> Any:
    """Units of transfer of each request: tokens of its prompt, or whole blocks."""
    return -(-traffic.prompt // plant.spec.block_tokens) if plant.spec.extent == "blocks" else traffic.prompt


def by_pair(plant: Plant, outcome: Outcome) -> list[tuple[str, str, Any, Any]]:
    """(prefill, decode, requests, (n, legs, 2) ps) of the handoffs that were completed, pair by pair.

    A request whose decode worker failed afterwards is there once a handoff.
    """
    import numpy as np

    names, moves = plant.device_of, outcome.moves
    code = moves[:, 1] * len(names) + moves[:, 2]
    order = np.argsort(code, kind="stable")
    keys, starts = np.unique(code[order], return_index=True)
    groups = np.split(moves[order], starts[1:]) if len(keys) else []
    return [
        (
            names[int(key) // len(names)],
            names[int(key) % len(names)],
            group[:, 0],
            group[:, 3:].reshape(len(group), -1, 2),
        )
        for key, group in zip(keys, groups, strict=True)
    ]


def handoffs(plant: Plant, traffic: Traffic, outcome: Outcome) -> list[Document]:
    """Count, bytes and copies of completed handoffs by pair of devices: one traversal each, as rows count."""
    units = units_of(plant, traffic)
    rows = []
    for p, d, group, _ in by_pair(plant, outcome):
        parts = [part for leg in plant.ways.ways[plant.ways.pair[p, d]] for part in leg.parts]
        nbytes = sum(part.bytes.total(units[group]) for part in parts if part.src in p.split(","))
        rows.append({"src": p, "dst": d, "count": len(group), "bytes": nbytes})
    return rows


def edges(plant: Plant, traffic: Traffic, outcome: Outcome, last: int) -> list[Document]:
    """Bytes and copies of each physical edge, and over time in equal parts of the duration.

    Over time a handoff's bytes are spread evenly from its first byte to its last. `utilisation` is the time that the
    legs would take alone, over the duration: what links were taken for.
    """
    import numpy as np

    units = units_of(plant, traffic)
    found: dict[tuple[str, str, str], Any] = {}
    for p, d, group, spans in by_pair(plant, outcome):
        n, way = units[group], plant.ways.ways[plant.ways.pair[p, d]]
        spread = {
            curve: _spread(spans[:, 0, 0], spans[:, len(way) - 1, 1], curve.over(n), last)
            for curve in dict.fromkeys(part.bytes for leg in way for part in leg.parts)
        }
        for leg in way:
            for part in leg.parts:
                row = found.setdefault((part.src, part.dst, part.kind), [0, 0, 0.0, np.zeros(BINS)])
                row[0] += part.bytes.total(n)
                row[1] += part.copies.total(n)
                row[2] += float(leg.time.total(n))
                row[3] += spread[part.bytes]
    return [
        {
            "src": src, "dst": dst, "kind": kind, "bytes": row[0], "copies": row[1],
            "utilisation": row[2] / last if last else 0.0, "bytes_per_s_over_time": _rates(row[3], last),
        }
        for (src, dst, kind), row in sorted(found.items())
    ]  # fmt: skip


def _spread(first: Any, end: Any, amounts: Any, last: int) -> Any:
    """What passes in each part of the duration, each handoff's evenly from its first byte to its end."""
    import numpy as np

    bounds = np.linspace(0, max(last, 1), BINS + 1)
    begin = first.astype(np.float64)
    took = np.maximum(end - begin, 1.0)
    gone = [float((np.clip((bound - begin) / took, 0, 1) * amounts).sum()) for bound in bounds]
    gone[-1] = float(amounts.sum())
    return np.diff(gone)


def _rates(parts: Any, last: int) -> list[float]:
    each = last / PICOSECONDS / BINS
    return [round(float(part) / each) if each else 0.0 for part in parts]
