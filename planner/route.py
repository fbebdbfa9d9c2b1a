"""The placement graph on the machine graph -> rows with their physical legs, or the reasons why there is no way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fleet.machine import Device, Fleet
from fleet.model import Model
from fleet.workload import Workload
from planner.caches import CachePart, held_parts, least_staged_bytes, part_staged_copies
from planner.machine import Hop, MachineGraph, NoWay, UnknownWay, Way
from planner.rows import Leg, Row


@dataclass(frozen=True, kw_only=True, slots=True)
class Routed:
    """Rows in waybill order, and what stands against them.

    `no_way` lists rows that no declared links carry; `unknown` rows whose peer access nobody declared; `pool_short` is
    (host, needed bytes, pool bytes) where not even one position fits the pinned pool; `chunk` is how many positions a
    staged copy carries at most, None when nothing is staged.
    """

    rows: tuple[Row, ...]
    no_way: tuple[NoWay, ...] = ()
    unknown: tuple[UnknownWay, ...] = ()
    pool_short: tuple[tuple[str, int, int], ...] = ()
    chunk: int | None = None
    staged: bool = False


@dataclass(kw_only=True, slots=True)
class Transfer:
    """What makes one row: edges of the placement graph, or what one rank hands to another."""

    phase: str
    tensor: str
    src: str
    dst: str
    order: int
    payload: int = 0
    bytes: int = 0
    copies: int = 0
    per_pass: tuple[int, int] | None = None
    part: CachePart | None = None
    """What a handoff carries, where it is not that part of the cache whole."""


def transfers(placed: Any) -> list[Transfer]:
    """The edges of a placement graph that cross spaces, and handoffs, summed into rows and put in waybill order."""
    rows: dict[tuple[str, str, str, str], Transfer] = {}
    space = dict(placed.nodes.data("space"))
    for start, end, edge in placed.edges(data=True):
        src, dst, phase, tensor = space[start], space[end], edge["phase"], edge["tensor"]
        if src == dst and phase != "handoff":
            continue
        key = (phase, tensor, src, dst)
        row = rows.get(key)
        if row is None:
            row = rows[key] = Transfer(phase=phase, tensor=tensor, src=src, dst=dst, order=edge["order"])
        row.payload += edge["payload"]
        row.bytes += edge["bytes"]
        row.copies += edge["copies"]
        if edge["per_pass"] is not None:
            held = row.per_pass or (0, 0)
            row.per_pass = (held[0] + edge["per_pass"][0], held[1] + edge["per_pass"][1])
    return sorted(rows.values(), key=lambda row: row.order)


def route(
    placed: Any, fleet: Fleet, machine: MachineGraph, model: Model, workload: Workload, reading: str | None = None
) -> Routed:
    """Every row with its legs. `reading` (`direct` or `staged`) decides what unknown peer access is taken for."""
    return route_transfers(transfers(placed), fleet, machine, model, workload, reading)


def route_transfers(
    listed: list[Transfer], fleet: Fleet, machine: MachineGraph, model: Model, workload: Workload, reading: str | None
) -> Routed:
    """The rows of transfers that are in waybill order."""
    rows: list[Row] = []
    no_way: list[NoWay] = []
    unknown: list[UnknownWay] = []
    pools: set[tuple[str, int, int]] = set()
    chunk: int | None = None
    parts = {part.name: part for part in held_parts(model, workload)}
    for transfer in listed:
        by_host = workload.host_buffer and transfer.phase == "handoff"
        way = machine.way(transfer.src, transfer.dst, transfer.bytes, transfer.copies, by_host=by_host)
        if isinstance(way, UnknownWay):
            if reading is None:
                unknown.append(way)
                rows.append(_row(transfer, "p2p", None))
                continue
            way = way.direct if reading == "direct" else way.staged
        if isinstance(way, NoWay):
            no_way.append(way)
            rows.append(_row(transfer, _end_kind(machine, transfer.src, transfer.dst), None))
            continue
        copies = transfer.copies
        if way.staged:
            own, short = staging_chunk(fleet, way, model, workload, transfer.part)
            chunk = own if chunk is None else max(chunk, own)
            pools |= short
            copies = part_staged_copies(transfer.part or parts[transfer.tensor], workload, own)
        kind = _end_kind(machine, transfer.src, transfer.dst)
        rows.append(_row(transfer, kind, _legs(machine, way, transfer.bytes, copies)))
    return Routed(
        rows=tuple(rows), no_way=tuple(dict.fromkeys(no_way)), unknown=tuple(dict.fromkeys(unknown)),
        pool_short=tuple(sorted(pools)), chunk=chunk, staged=chunk is not None,
    )  # fmt: skip


def _row(transfer: Transfer, kind: str, legs: tuple[Leg, ...] | None) -> Row:
    return Row(
        phase=transfer.phase, tensor=transfer.tensor, src=transfer.src, dst=transfer.dst, kind=kind, legs=legs,
        payload_bytes=transfer.payload, bytes=transfer.bytes, copies=transfer.copies, per_pass=transfer.per_pass,
        part=transfer.part,
    )  # fmt: skip


def _end_kind(machine: MachineGraph, src: str, dst: str) -> str:
    """Kind of a row, end to end."""
    if src == dst:
        return "d2d"
    if src not in machine.devices:
        return "h2d"
    return "d2h" if dst not in machine.devices else "p2p"


def _leg_kind(src: Device | None, dst: Device | None) -> str:
    """The driver's kind of one leg: between unlike devices a copy is d2h or h2d, as the GPU's side sees it."""
    if src is None:
        return "h2d" if dst is not None else "h2h"
    if dst is None:
        return "d2h"
    if src.id == dst.id:
        return "d2d"
    if src.kind == "cpu" and dst.kind != "cpu":
        return "h2d"
    return "d2h" if dst.kind == "cpu" and src.kind != "cpu" else "p2p"


def _legs(machine: MachineGraph, way: Way, nbytes: int, copies: int) -> tuple[Leg, ...]:
    devices = machine.devices
    if not way.hops:  # inside one device: no link, and no rate of a link to price it with
        kind = _leg_kind(devices[way.src], devices[way.src])
        return (Leg(src=way.src, dst=way.dst, kind=kind, link=None, bytes=nbytes, copies=copies),)
    return tuple(_leg(hop, _leg_kind(devices.get(hop.src), devices.get(hop.dst)), nbytes, copies) for hop in way.hops)


def _leg(hop: Hop, kind: str, nbytes: int, copies: int) -> Leg:
    seconds = hop.seconds(nbytes, copies)
    return Leg(
        src=hop.src, dst=hop.dst, kind=kind, link=hop.kind, bytes=nbytes, copies=copies, seconds=seconds,
        lower_bound=seconds is not None and hop.lower_bound, through=hop.links,
    )  # fmt: skip


def staging_chunk(
    fleet: Fleet, way: Way, model: Model, workload: Workload, part: CachePart | None = None
) -> tuple[int, set[tuple[str, int, int]]]:
    """How many positions one staged copy carries, and the pinned pools that cannot hold a single one.

    All that the copy carries where the pool allows it: P positions (filled), a block (blocks:N), the array (allocated).
    """
    position, state = least_staged_bytes(model, workload)
    if part is not None:
        position, state = (1, part.position_bytes) if part.is_state else (part.position_bytes, 0)
    wanted = {"filled": workload.prompt_tokens, "allocated": model.n_layers * workload.cache_positions}.get(
        workload.kv_extent, workload.block_tokens or 1
    )
    short: set[tuple[str, int, int]] = set()
    for hop in way.hops:
        host = fleet.host(hop.dst)
        pool = None if host is None else host.pinned_pool.value
        if host is None or pool is None:
            continue
        if pool < max(position, state):
            short.add((host.id, max(position, state), pool))
        wanted = max(1, min(wanted, pool // position))
    return wanted, short


def with_unknown_edges(rows: tuple[Row, ...], direct: Routed, staged: Routed) -> tuple[Row, ...]:
    """Rows for a plan of unknown peer access: end to end as asked, without legs where the readings differ."""
    return tuple(
        replace(row, legs=None) if one.legs != other.legs else row
        for row, one, other in zip(rows, direct.rows, staged.rows, strict=True)
    )
