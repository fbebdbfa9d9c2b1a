"""What is waiting, running, held and moved over time: means of equal bins, whose width the result states.

Levels come from the event loop as exact integrals over each bin. Bytes of a leg are spread evenly from its first byte
to its last, and rounded so that the bins of an edge add up to its bytes. The last bin ends with the run.
"""

from __future__ import annotations

from typing import Any

from scenarios.simulation import columns as col
from scenarios.simulation.curves import floats
from scenarios.simulation.engine import Outcome
from scenarios.simulation.moved import by_pair, units_of
from scenarios.simulation.plant import Plant
from scenarios.simulation.traffic import PICOSECONDS, Traffic

Document = dict[str, Any]
MOST = 64
"""Workers, and edges, that are told one by one."""
ABOUT = "means over each bin, the last of which ends with the run; waiting, running and in_system count requests"
PREFILL = {"waiting": col.NEWCOMERS, "running": col.RUNNING}
DECODE = {
    "waiting_for_blocks": col.NEWCOMERS, "waiting_for_slot": col.ARRIVED, "preempted": col.RETURNING,
    "running": col.RUNNING,
}  # fmt: skip


def series(plant: Plant, traffic: Traffic, outcome: Outcome, last: int) -> Document:
    """`series` of the summary: both pools, then the first workers one by one and the edges that carry most."""
    edges = edges_over_time(plant, traffic, outcome, last)
    most = sorted(edges, key=lambda edge: (-sum(edges[edge][0]), edge))[:MOST]
    roles = [worker.role for worker in plant.workers]
    levels, n = outcome.levels, len(roles)
    rows = [
        {"device": worker.name, "phase": _phase(worker.role)} | _levels(plant, row, worker.role, worker.blocks)
        for worker, row in zip(plant.workers[:MOST], levels, strict=False)
    ]
    pools = {_phase(role): _pool(plant, levels, role) for role in dict.fromkeys(roles)}
    return {
        "about": ABOUT, "bin_s": outcome.bin_ps / PICOSECONDS, "in_system": _told(levels[n, col.RUNNING]),
        "without_prefill_worker": _told(levels[n, col.NEWCOMERS]),
        "without_decode_worker": _told(levels[n + 1, col.NEWCOMERS]),
        **pools, "workers": rows, "workers_left_out": n - len(rows),
        "edges": [
            {"src": src, "dst": dst, "kind": kind, "bytes": edges[src, dst, kind][0],
             "utilisation": edges[src, dst, kind][1]}
            for src, dst, kind in most
        ],
        "edges_left_out": len(edges) - len(most),
    }  # fmt: skip


def _phase(role: int) -> str:
    return "prefill" if role == col.PREFILL else "decode"


def _pool(plant: Plant, levels: Any, role: int) -> Document:
    members = [number for number, worker in enumerate(plant.workers) if worker.role == role]
    blocks = sum(plant.workers[number].blocks for number in members)
    return _levels(plant, levels[members].sum(axis=0), role, blocks)


def _levels(plant: Plant, rows: Any, role: int, blocks: int) -> Document:
    names = PREFILL if role == col.PREFILL else DECODE
    names = names | {"kv_bytes" if plant.is_bent else "kv_blocks": col.HELD}
    told = {name: _told(rows[kind]) for name, kind in names.items()}
    return told | {"kv_share": _told(rows[col.HELD] / blocks)}


def _told(values: Any) -> list[float]:
    """Rounded to six decimals: what is beyond is the rounding of sums."""
    return [round(float(value), 6) + 0.0 for value in values]


def edges_over_time(
    plant: Plant, traffic: Traffic, outcome: Outcome, last: int
) -> dict[tuple[str, str, str], tuple[list[int], list[float]]]:
    """By physical edge: bytes of each bin, and the share of it that its legs would take alone."""
    import numpy as np

    units, width, bins = units_of(plant, traffic), outcome.bin_ps, outcome.levels.shape[2]
    spans: dict[tuple[str, str, str], list[Any]] = {}
    for p, d, group, taken in by_pair(plant, outcome):
        n = units[group]
        for number, leg in enumerate(plant.ways.ways[plant.ways.pair[p, d]]):
            begin, end = taken[:, number].T
            alone = floats(leg.time).over(n)
            for part in leg.parts:
                edge = (part.src, part.dst, part.kind)
                spans.setdefault(edge, []).append((begin, end, part.bytes.over(n), alone))
    wide = np.full(bins, float(width))
    wide[-1] = max(1, last - (bins - 1) * width)
    out = {}
    for edge, parts in spans.items():
        begin, end, nbytes, alone = (np.concatenate([part[i] for part in parts]) for i in range(4))
        gone = np.maximum.accumulate(np.rint(np.cumsum(spread(begin, end, nbytes, width, bins)))).astype(np.int64)
        gone = np.minimum(gone, nbytes.sum())
        gone[-1] = nbytes.sum()
        out[edge] = (np.diff(gone, prepend=0).tolist(), _told(spread(begin, end, alone, width, bins) / wide))
    return out


def spread(begin: Any, end: Any, amounts: Any, width: int, bins: int) -> Any:
    """(bins,) what of `amounts`, each spread evenly from its `begin` to its `end` (ps), falls into each bin."""
    import numpy as np

    end = np.maximum(end, begin + 1)
    rates = amounts / (end - begin)
    steps, parts = np.zeros(bins + 1), np.zeros(bins + 1)
    for times, change in ((begin, rates), (end, -rates)):
        at = np.minimum(times // width, bins)
        steps += np.bincount(at, change, bins + 1)
        parts += np.bincount(at, change * ((at + 1) * width - times), bins + 1)
    parts[1:] += width * np.cumsum(steps)[:-1]
    return np.maximum(0.0, parts[:bins])
