"""Rows and arenas -> the prediction: bytes an edge, resident bytes a device, dispatches, times where rated."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from fleet.machine import Fleet
from fleet.model import Model
from fleet.placement import Placement
from fleet.workload import Workload
from planner.footprint import ArenaFootprint, arenas, footprint
from planner.machine import machine_graph
from planner.orders import ArenaOrder
from planner.placed import placement_graph
from planner.program import dispatches_per_pass
from planner.route import Routed, route, route_transfers
from planner.rows import Edge, Row, sum_edges
from planner.worker_plan import worker_arenas, worker_transfers


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a placement would move and hold. Bytes are exact; `seconds` on rows are None where a rate is unknown."""

    routed: Routed
    arenas: tuple[ArenaOrder, ...]
    footprints: tuple[ArenaFootprint, ...]
    edges: tuple[Edge, ...]
    dispatches: tuple[int, int] | None
    passes: tuple[int, int]

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.routed.rows

    @property
    def handoff_rows(self) -> tuple[Row, ...]:
        """The device-to-device rows of k and v: one traversal."""
        return tuple(row for row in self.rows if row.phase == "handoff" and row.kind in ("p2p", "d2d"))

    @property
    def handoff_seconds(self) -> Fraction | None:
        """Sum over k and v; None when there is no handoff or a leg is unpriced."""
        times = [row.seconds for row in self.handoff_rows]
        return None if not times or None in times else sum((t for t in times if t is not None), Fraction(0))


def predict(
    fleet: Fleet, model: Model, workload: Workload, placement: Placement, reading: str | None = None
) -> Prediction:
    """The prediction for a placement on named devices. `reading` settles unknown peer access one way."""
    machine = machine_graph(fleet)
    if placement.is_split:
        moved = worker_transfers(fleet, model, workload, placement)
        routed = route_transfers(moved, fleet, machine, model, workload, reading)
        listed = worker_arenas(model, workload, placement, routed)
    else:
        placed = placement_graph(fleet, model, workload, placement)
        routed = route(placed, fleet, machine, model, workload, reading)
        listed = arenas(model, workload, placement, routed.chunk)
    return Prediction(
        routed=routed, arenas=listed, footprints=tuple(footprint(fleet, arena, model) for arena in listed),
        edges=sum_edges(routed.rows), dispatches=_dispatches(model, workload, placement),
        passes=(workload.prefill_passes, workload.decode_passes),
    )  # fmt: skip


def _dispatches(model: Model, workload: Workload, placement: Placement) -> tuple[int, int] | None:
    """7L a forward call, +1 where logits are computed: each pass in host mode, the last prefill one in device mode.

    None for a model whose layers have other matrices than the seven, and for workers of several ranks: nobody counted
    their steps.
    """
    per_call = dispatches_per_pass(model)
    if per_call is None or placement.is_split:
        return None
    prompt_passes, decode_passes = workload.prefill_passes, workload.decode_passes
    if workload.attention == "host":
        return prompt_passes * (per_call + 1), decode_passes * (per_call + 1)
    calls = -(-prompt_passes // workload.prefill_chunk)
    logits = 1 if workload.passes >= workload.prompt_tokens else 0
    return calls * per_call + logits, decode_passes * (per_call + 1)
