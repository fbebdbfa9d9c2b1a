"""The prediction for workers of several GPUs: rows rank to rank, an arena a device. Priced, and run by nobody.

What is no row: the sums that ranks of one stage exchange in every layer, and the activations that stages pass on. They
stay within a worker and depend on how an engine makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet
from fleet.model import Model
from fleet.placement import PHASES, Placement
from fleet.workload import Workload
from planner.caches import bounce_bytes, held_part, part_transfer
from planner.engines import ENGINES, engine_faults
from planner.footprint import device_buffers
from planner.orders import ArenaOrder, BufferOrder
from planner.placed import LOGIT_BYTES, TOKEN_BYTES, weights_bytes
from planner.route import Routed, Transfer
from planner.workers import Rank, rank_model, ranks_of, slices, worker_faults


def check_workers(
    model: Model,
    placement: Placement,
    attention: str,
    layout: str,
    source: str = "placement",
    *,
    engine: str | None = None,
) -> None:
    """Raises DescriptionError with every fault of a placement of several ranks; does nothing for single devices.

    Degrees must divide the model, each phase needs tp * pp devices, and two workers share no device but all of them.
    """
    if not placement.is_split:
        return
    faults = [*_count_faults(placement)] or [*worker_faults(model, placement)]
    if placement.is_oracle and len({(placement.tensor_parallel(p), placement.pipeline(p)) for p in PHASES}) > 1:
        faults.append(("decode_tp", "both phases on one worker are divided alike; give one --tp and one --pp"))
    shared = sorted(set(placement.ranks("prefill")) & set(placement.ranks("decode")))
    if shared and not placement.is_oracle:
        faults.append(("decode", f"{shared[0]} is in both workers; let them share no device, or all in one order"))
    if engine in ENGINES and not faults:
        faults += engine_faults(engine, 0, placement)
    if attention == "host":
        faults.append(("attention", "host is priced for single devices; use device"))
    if layout != "plain":
        faults.append(("layout", f"{layout} is of single devices; use plain"))
    if len(faults) == 2 and faults[0][1] == faults[1][1]:
        faults = [(faults[0][0].removeprefix("prefill_"), faults[0][1])]  # both phases alike: told once
    if faults:
        raise DescriptionError([Fault(source=source, field=field, message=words) for field, words in faults])


def _count_faults(placement: Placement) -> Iterator[tuple[str, str]]:
    for phase in PHASES:
        count, tp, pp = len(placement.ranks(phase)), placement.tensor_parallel(phase), placement.pipeline(phase)
        if tp * pp != count:
            stages = f" in {pp} pipeline stages" if pp > 1 else ""
            yield phase, f"{count} devices for tensor-parallel degree {tp}{stages}, which takes {max(tp, 1) * pp}"


def worker_transfers(fleet: Fleet, model: Model, workload: Workload, placement: Placement) -> list[Transfer]:
    """Everything that crosses between memories, in waybill order."""
    listed = [*_weights(fleet, model, workload, placement), *_ids(fleet, model, workload, placement, "prefill")]
    if workload.hands_over:
        listed += _handoff(model, workload, placement)
    return [*listed, *_ids(fleet, model, workload, placement, "decode")]


def _host_of(fleet: Fleet, rank: Rank) -> str:
    device = fleet.device(rank.device)
    if device is None:
        raise KeyError(rank.device)
    return device.host


def placed_ranks(model: Model, placement: Placement) -> dict[str, Rank]:
    """The rank of each device; on one worker for both phases it is the same."""
    return {rank.device: rank for phase in PHASES for rank in ranks_of(model, placement, phase)}


def _weights(fleet: Fleet, model: Model, workload: Workload, placement: Placement) -> Iterator[Transfer]:
    for device, rank in placed_ranks(model, placement).items():
        nbytes, copies = weights_bytes(rank_model(model, rank.cut), workload)
        yield _row("stage", "weights", _host_of(fleet, rank), device, nbytes, copies)


def _ids(fleet: Fleet, model: Model, workload: Workload, placement: Placement, phase: str) -> Iterator[Transfer]:
    """Ids up to every rank of the first stage, the chosen id (or the logits) down from one rank of the last.

    With several stages the chosen id comes back to the first one over the host, a copy a pass.
    """
    ranks, batch, drawn = ranks_of(model, placement, phase), workload.batch, workload.sampling is not None
    down = (LOGIT_BYTES * model.vocab_size if drawn else TOKEN_BYTES) * batch
    passes = 1 if phase == "prefill" else workload.decode_passes
    if phase == "decode" and not passes:
        return
    for rank in (rank for rank in ranks if rank.cut.first):
        if phase == "prefill":
            calls = -(-workload.prefill_passes // workload.prefill_chunk)
            up, count = TOKEN_BYTES * workload.prefill_passes * batch, calls * batch
            per_pass = (TOKEN_BYTES * batch, batch) if workload.prefill_chunk == 1 else None
        else:
            each = drawn or placement.pipeline(phase) > 1
            count = batch * (passes if each else 1)
            up, per_pass = TOKEN_BYTES * count, (TOKEN_BYTES * batch, batch) if each else None
        yield replace(_row(phase, "tokens", _host_of(fleet, rank), rank.device, up, count), per_pass=per_pass)
    if phase == "decode" or workload.passes >= workload.prompt_tokens:
        rank = next(rank for rank in ranks if rank.cut.last)
        result = _row(
            phase,
            "logits" if drawn else "next_token",
            rank.device,
            _host_of(fleet, rank),
            down * passes,
            batch * passes,
        )
        yield replace(result, per_pass=(down, batch) if phase == "decode" else None)


def _handoff(model: Model, workload: Workload, placement: Placement) -> Iterator[Transfer]:
    for piece in slices(model, workload.kv_dtype, placement):
        part = held_part(piece.part, workload)
        payload, nbytes, copies = part_transfer(part, workload)
        row = _row("handoff", part.name, piece.src, piece.dst, nbytes, copies)
        yield replace(row, payload=payload, part=part)


def _row(phase: str, tensor: str, src: str, dst: str, nbytes: int, copies: int) -> Transfer:
    return Transfer(
        phase=phase, tensor=tensor, src=src, dst=dst, order=0, payload=nbytes, bytes=nbytes, copies=copies,
    )  # fmt: skip


def worker_arenas(model: Model, workload: Workload, placement: Placement, routed: Routed) -> tuple[ArenaOrder, ...]:
    """An arena a device, with what its rank holds; and the host's buffers of staged handoffs, one a pair of ranks."""
    out = []
    for device, rank in placed_ranks(model, placement).items():
        phases = [phase for phase in PHASES if device in placement.ranks(phase)]
        buffers = device_buffers(rank_model(model, rank.cut), workload, phases)
        if not rank.cut.last:
            buffers = tuple(b for b in buffers if b.name not in ("act/logits", "act/next"))
        out.append(ArenaOrder(arena=device, device=device, buffers=buffers))
    if routed.chunk is not None:
        out.append(ArenaOrder(arena="host:bounce", device=None, buffers=_bounces(model, workload, placement, routed)))
    return tuple(out)


def _bounces(model: Model, workload: Workload, placement: Placement, routed: Routed) -> tuple[BufferOrder, ...]:
    staged = {(row.src, row.dst) for row in routed.rows if row.phase == "handoff" and row.legs and len(row.legs) > 1}
    widest: dict[tuple[str, str], int] = {}
    for piece in slices(model, workload.kv_dtype, placement):
        pair = (piece.src, piece.dst)
        if pair in staged:
            widest[pair] = max(widest.get(pair, 0), bounce_bytes(piece.part, routed.chunk or 1))
    return tuple(
        BufferOrder(name=f"bounce/{src}->{dst}", shape=(nbytes,), dtype="u8") for (src, dst), nbytes in widest.items()
    )
