"""Plan = orders + prediction: the document that `admit` writes, and the orders in it that an executor is handed."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from fleet.identity import topology_id
from fleet.machine import Link
from planner.admit import Admission, Reason, shared_budget
from planner.contention import contention_document
from planner.footprint import LINES, ArenaFootprint
from planner.ledger import ledger_document
from planner.ledger_bounds import DeviceBudget
from planner.machine import PICOSECONDS
from planner.orders import (
    CopyUnit,
    Fence,
    HandoffMode,
    OrderedDevice,
    OrderedWorkload,
    Orders,
    Step,
    orders_to_document,
)
from planner.predict import Prediction
from planner.route import with_unknown_edges
from planner.rows import Edge, Leg, Row, staged_as
from planner.shared_memory import shared_memories
from planner.time_document import time_document, untimed
from planner.times import leg_time
from planner.workers_json import not_run_words, part_document, workers_document

SCHEMA = "kvwaybill/plan/1"


def topology_ids(admission: Admission) -> dict[str, int]:
    """Topology ids of the placed devices: the bands of one node, or hashed where the plan spans several nodes."""
    devices = [d for d in admission.ask.fleet.devices if d.id in admission.ask.placement.devices]
    one_node = len({device.host for device in devices}) == 1
    return {d.id: topology_id(d.id, d.kind, d.index, one_node=one_node) for d in devices}


def make_orders(admission: Admission) -> Orders:
    """The orders of an admission: devices, arenas, fences and the sequence of steps. No predicted figure is in them."""
    ask, workload, prediction = admission.ask, admission.workload, admission.prediction
    assert workload is not None
    assert prediction is not None
    devices, ids = [], topology_ids(admission)
    for name in ask.placement.devices:
        device = ask.fleet.device(name)
        assert device is not None
        devices.append(OrderedDevice(
            id=device.id, topology_id=ids[device.id], kind=device.kind, index=device.index, host=device.host,
            uuid=device.uuid, pci=device.pci,
        ))  # fmt: skip
    return Orders(
        prefill=ask.placement.prefill,
        decode=ask.placement.decode,
        devices=tuple(devices),
        arenas=prediction.arenas,
        fences=tuple(Fence(arena=f.arena, bytes=f.fence_bytes) for f in prediction.footprints),
        steps=tuple(_steps(admission)),
        workload=OrderedWorkload(
            prompt_ids=workload.prompt_ids, prompt_tokens=workload.prompt_tokens, passes=workload.passes,
            positions=workload.positions, batch=workload.batch, attention=workload.attention,
            kv_extent=workload.kv_extent, kv_dtype=workload.kv_dtype, weights_dtype=workload.weights_dtype,
            prefill_chunk=workload.prefill_chunk, layout=workload.layout, sampling=workload.sampling,
        ),
        expect=ask.expect,
    )  # fmt: skip


def _steps(admission: Admission) -> list[Step]:
    """Weights to every device, prefill, the handoff hop by hop, decode."""
    ask, workload = admission.ask, admission.workload
    assert workload is not None
    steps = [
        Step(op="stage", dst=device, tensor=tensor.line)
        for device in ask.placement.devices
        for tensor in ask.model.staged_tensors(workload.attention)
    ]
    steps.append(Step(op="prefill", dst=ask.placement.prefill))
    if workload.hands_over:
        # The steps of a handoff speak of k and v of one shape; no executor takes any other cache.
        steps.extend(_handoff_steps(admission) if ask.model.is_plain_cache else ())
        steps.append(Step(op="decode", dst=ask.placement.decode))
    return steps


def _handoff_steps(admission: Admission) -> list[Step]:
    ask, workload, prediction = admission.ask, admission.workload, admission.prediction
    assert workload is not None
    assert prediction is not None
    prefill, decode = ask.placement.prefill, ask.placement.decode
    across: HandoffMode = "local" if prefill == decode else "staged" if prediction.routed.staged else "direct"
    hops: list[tuple[str, str, HandoffMode]] = [(prefill, decode, across)]
    if workload.attention == "host":
        hops = [("host:prefill", prefill, "up"), *hops, (decode, "host:decode", "down")]
    unit, block, end = _unit(workload.kv_extent, workload.prompt_tokens, workload.cache_positions)
    return [
        Step(
            op="handoff", src=src, dst=dst, tensor=tensor, layers=(0, ask.model.n_layers), positions=(0, end),
            unit=unit, block=block, mode=mode, chunk=prediction.routed.chunk if mode == "staged" else None,
            layout=workload.layout,
        )
        for src, dst, mode in hops
        for tensor in ("k", "v")
    ]  # fmt: skip


def _unit(extent: str, prompt: int, positions: int) -> tuple[CopyUnit, int | None, int]:
    if extent == "allocated":
        return "array", None, positions
    if extent.startswith("blocks:"):
        block = int(extent.removeprefix("blocks:"))
        return "block", block, -(-prompt // block) * block
    return "layer", None, prompt


def plan_document(
    admission: Admission, inputs: dict[str, Any], alternatives: list[dict[str, Any]], limits: list[str]
) -> dict[str, Any]:
    """The contract's **plan**, without its `id`. Orders only where admitted; `not_run` tells why there are none
    though it may be admitted.
    """
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": admission.verdict,
        "inputs": inputs,
        "placement": {"prefill": admission.ask.placement.prefill, "decode": admission.ask.placement.decode},
        "orders": None,
    }
    if not_run := not_run_words(admission):
        document["not_run"] = not_run
    elif admission.verdict == "admitted":
        document["orders"] = orders_to_document(make_orders(admission))
    if admission.prediction is not None:
        document |= prediction_document(admission)
        if admission.verdict == "refused":
            document |= untimed(document)
    document["alternatives"] = alternatives + _readings(admission)
    document["reasons"] = [reason_document(reason) for reason in admission.reasons]
    document["limits"] = limits
    return document


def _readings(admission: Admission) -> list[dict[str, Any]]:
    """What either answer to an unknown peer access would carry; of what is refused without times, as in the plan."""
    staging = admission.ask.pricing.staging
    read = {name: _carried(staged_as(each.rows, staging), each.edges) for name, each in admission.readings.items()}
    is_refused = admission.verdict == "refused"
    return [{"reading": name} | part | (untimed(part) if is_refused else {}) for name, part in read.items()]


def prediction_document(admission: Admission) -> dict[str, Any]:
    """memory, waybill, edges, handoff, contention where there is any, dispatches, passes and time of an admission."""
    prediction = admission.prediction
    assert prediction is not None
    rows, edges, counts = prediction.rows, prediction.edges, prediction.dispatches
    if admission.readings:
        direct, staged = admission.readings["direct"], admission.readings["staged"]
        rows = with_unknown_edges(rows, direct.routed, staged.routed)
        edges = _edges_of_readings(direct, staged)
    rows = staged_as(rows, admission.ask.pricing.staging)
    return {
        **workers_document(admission),
        "memory": [memory_document(admission, f) for f in prediction.footprints],
        **_carried(rows, edges),
        **({"contention": shared} if (shared := contention_document(rows)) else {}),
        "dispatches": None if counts is None else {"prefill": counts[0], "decode": counts[1]},
        "passes": {"prefill": prediction.passes[0], "decode": prediction.passes[1]},
        "time": time_document(admission, rows),
    }


def _carried(rows: tuple[Row, ...], edges: tuple[Edge, ...]) -> dict[str, Any]:
    return {
        "waybill": [row_document(row) for row in rows],
        "edges": [{"src": e.src, "dst": e.dst, "kind": e.kind, "bytes": e.bytes, "copies": e.copies} for e in edges],
        "handoff": handoff_document(rows),
    }


def _edges_of_readings(direct: Prediction, staged: Prediction) -> tuple[Edge, ...]:
    """Edges on which both readings agree; the others are unknown."""
    sums: dict[tuple[str, str, str], list[tuple[int | None, int | None]]] = {}
    for reading in (direct, staged):
        for edge in reading.edges:
            sums.setdefault((edge.src, edge.dst, edge.kind), []).append((edge.bytes, edge.copies))
    out = []
    for (src, dst, kind), held in sorted(sums.items()):
        agreed = held[0] if len(held) == 2 and held[0] == held[1] else (None, None)
        out.append(Edge(src=src, dst=dst, kind=kind, bytes=agreed[0], copies=agreed[1]))
    return tuple(out)


def memory_document(admission: Admission, footprint: ArenaFootprint) -> dict[str, Any]:
    """One device (or host arena) of the memory ledger. slack = budget - total; null where a figure is unknown."""
    device = None if footprint.device is None else admission.ask.fleet.device(footprint.device)
    budget = admission.budgets[footprint.arena]
    return {
        "device": footprint.arena,
        "topology_id": None if device is None else topology_ids(admission)[device.id],
        "capacity_bytes": budget.capacity_bytes,
        "budget_bytes": budget.budget_bytes,
        "resident": {line: footprint.lines[line] for line in LINES},
        "rounding_bytes": footprint.rounding_bytes,
        "total_bytes": footprint.total_bytes,
        "slack_bytes": None if budget.budget_bytes is None else budget.budget_bytes - footprint.total_bytes,
        **_in_use(admission, budget),
        **_shared(admission, footprint, budget.budget_bytes),
        "ledger": ledger_document(admission, footprint),
    }


def _in_use(admission: Admission, budget: DeviceBudget) -> dict[str, Any]:
    """`in_use_bytes` of a device where anything of the fleet is said to be in use; null = unknown."""
    said = any(device.in_use != 0 for device in admission.ask.fleet.devices)
    return {"in_use_bytes": budget.in_use_bytes} if said and budget.capacity_bytes is not None else {}


def _shared(admission: Admission, footprint: ArenaFootprint, budget: int | None) -> dict[str, Any]:
    """`shared`: the memory that the arena has in common with another of the plan, and what both leave of it."""
    assert admission.prediction is not None
    for memory in shared_memories(admission.ask.fleet, admission.prediction.footprints):
        if footprint.arena in memory.devices:
            total = memory.total_bytes
            joint = shared_budget(admission.ask, admission.prediction, admission.budgets, memory)
            slack = None if budget is None or joint is None else joint - total
            told: dict[str, Any] = {"physical": memory.physical, "devices": list(memory.devices)}
            told |= {} if joint == budget else {"budget_bytes": joint}
            return {"shared": told | {"total_bytes": total, "slack_bytes": slack}}
    return {}


def row_document(row: Row) -> dict[str, Any]:
    """One row; `per_pass` is absent where passes differ, `legs` null where the way is unknown.

    `lower_bound` is there (true) where a link without latency makes `seconds` less than it will be.
    """
    document: dict[str, Any] = {
        "phase": row.phase, "tensor": row.tensor, "src": row.src, "dst": row.dst, "kind": row.kind,
        "legs": None if row.legs is None else [_leg_document(leg) for leg in row.legs],
        "payload_bytes": row.payload_bytes, "bytes": row.bytes, "copies": row.copies, "seconds": _seconds(row.seconds),
    }  # fmt: skip
    if row.is_pipelined:
        document["staging"] = row.staging
    if row.part is not None:
        document["part"] = part_document(row)
    if row.per_pass is not None:
        document["per_pass"] = {"bytes": row.per_pass[0], "copies": row.per_pass[1]}
    return document | _bound([row])


def _bound(rows: Iterable[Row]) -> dict[str, Any]:
    """`lower_bound` of rows that are priced, one of them over a link without latency; nothing otherwise."""
    rows = list(rows)
    priced = all(row.seconds is not None for row in rows)
    return {"lower_bound": True} if priced and any(leg.lower_bound for row in rows for leg in row.legs or ()) else {}


def _leg_document(leg: Leg) -> dict[str, Any]:
    document: dict[str, Any] = {
        "src": leg.src, "dst": leg.dst, "kind": leg.kind, "link": leg.link, "bytes": leg.bytes, "copies": leg.copies,
        "seconds": _seconds(leg.seconds), **_rate_of(leg),
    }  # fmt: skip
    if len(leg.through) > 1:
        document["segments"] = [
            {"src": link.src, "dst": link.dst, "kind": link.kind, **_figures_of(link), **_driven(link)}
            for link in leg.through
        ]
    elif leg.through:
        document |= _driven(leg.through[0])
    document |= {"assumed": True} if leg.assumed else {}
    return document | ({"lower_bound": True} if leg.lower_bound else {})


def _figures_of(link: Link) -> dict[str, Any]:
    latency = link.latency.value
    return {
        "bandwidth_bytes_per_s": link.bandwidth.value,
        "latency_s": None if latency is None else float(Fraction(latency, PICOSECONDS)),
    }


def _driven(link: Link) -> dict[str, Any]:
    """What is stated of directions and copies at the same time."""
    stated = {"duplex": link.duplex, "copy_engines": link.copy_engines}
    return {name: value for name, value in stated.items() if value is not None}


def _rate_of(leg: Leg) -> dict[str, Any]:
    """What a leg's time rests on: the slowest link's rate, all links' latencies, and where that rate comes from.

    Absent inside one device. `latency_s` sums what is stated; null when no link states one.
    """
    if not leg.through:
        return {}
    rates = [link.bandwidth.declared for link in leg.through]
    slowest = None if None in rates else min((f for f in rates if f is not None), key=lambda figure: figure.value)
    latencies = [link.latency.value for link in leg.through if link.latency.value is not None]
    document: dict[str, Any] = {
        "bandwidth_bytes_per_s": None if slowest is None else slowest.value,
        "latency_s": float(Fraction(sum(latencies), PICOSECONDS)) if latencies else None,
    }
    if slowest is None:
        return document
    document |= {"provenance": slowest.provenance, "verified": slowest.verified}
    standing = leg_time(leg, "observed" if _taken_from_observation(leg) else "declared")
    document |= {} if standing.basis is None else {"basis": standing.basis}
    return document if standing.error is None else document | {"error": float(standing.error)}


def _taken_from_observation(leg: Leg) -> bool:
    """Whether the fleet was priced at what was observed: a link's figure is then its observation itself."""
    figures = [figure for link in leg.through for figure in (link.bandwidth, link.latency)]
    return any(figure.observed is not None and figure.declared == figure.observed for figure in figures)


def handoff_document(rows: tuple[Row, ...]) -> dict[str, Any] | None:
    """One traversal of k and v between the devices; None when there is no handoff."""
    across = [row for row in rows if row.phase == "handoff" and row.kind in ("p2p", "d2d")]
    if not across:
        return None
    times = [row.seconds for row in across]
    known = None not in times and all(row.legs is not None for row in across)
    return {
        "payload_bytes": sum(row.payload_bytes for row in across),
        "bytes": sum(row.bytes for row in across),
        "copies": sum(row.copies for row in across),
        "kind": across[0].kind,
        "legs": _summed_legs(across) if all(row.legs is not None for row in across) else None,
        "seconds": _seconds(sum((t for t in times if t is not None), Fraction(0))) if known else None,
        **({"staging": "pipelined"} if any(row.is_pipelined for row in across) else {}),
        **_bound(across),
        **_stated_error(across),
    }


def _stated_error(rows: list[Row]) -> dict[str, Any]:
    """The largest error stated of the rows' legs, where each of them states one."""
    errors = [_leg_document(leg).get("error") for row in rows for leg in row.legs or ()]
    known = [error for error in errors if error is not None]
    return {"error": max(known)} if known and len(known) == len(errors) else {}


def _summed_legs(rows: list[Row]) -> list[dict[str, Any]]:
    sums: dict[tuple[str, str, str, str | None], list[int]] = {}
    for row in rows:
        for leg in row.legs or ():
            held = sums.setdefault((leg.src, leg.dst, leg.kind, leg.link), [0, 0])
            held[0] += leg.bytes
            held[1] += leg.copies
    return [
        {"src": src, "dst": dst, "kind": kind, "link": link, "bytes": held[0], "copies": held[1]}
        for (src, dst, kind, link), held in sums.items()
    ]


def _seconds(value: Fraction | None) -> float | None:
    return None if value is None else float(value)


def reason_document(reason: Reason) -> dict[str, Any]:
    """One reason. What does not apply is absent: figures, and `vx_code` (`vx_also`: more of them) where Vx has none."""
    document: dict[str, Any] = {"code": reason.code, "severity": reason.severity, "message": reason.message}
    if reason.device is not None:
        document["device"] = reason.device
    if reason.edge is not None:
        document["edge"] = f"{reason.edge[0]}->{reason.edge[1]}"
    if reason.line is not None:
        document["line"] = reason.line
    if reason.needed_bytes is not None:
        document["needed_bytes"] = reason.needed_bytes
        document["available_bytes"] = reason.available_bytes
        document["shortfall_bytes"] = reason.shortfall_bytes
    if reason.vx_codes:
        document["vx_code"] = reason.vx_codes[0]
        document |= {"vx_also": list(reason.vx_codes[1:])} if reason.vx_codes[1:] else {}
    if reason.severity == "error":
        document["fix"] = reason.fix
    return document
