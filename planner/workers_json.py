"""What a plan says of workers of several ranks: who holds what, the slowest pair, and why nobody runs it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from fleet.placement import PHASES
from planner.admit import Admission
from planner.engines.transfer import transfer_document
from planner.rows import Row, staged_as
from planner.workers import Rank, copies_of, rank_model, ranks_of

SPLIT_WORDS = "workers of several ranks are arithmetic for admission; nothing is split in the executor"


def not_run_words(admission: Admission) -> list[str]:
    """In words, why an admission has no orders though it may be admitted; empty where it has."""
    request, words = admission.ask.request, [SPLIT_WORDS] if admission.ask.placement.is_split else []
    if request.prefix_hit:
        words.append("a prefix hit is priced: the executor starts with empty caches")
    if request.host_buffer:
        words.append("a host buffer is priced: the executor takes the way that the fleet declares")
    return words


def workers_document(admission: Admission) -> dict[str, Any]:
    """`workers`: for each phase its degrees and ranks; `transfer`; nothing for single devices that ask for neither.

    `handoff_together_s`: what the slowest pair of ranks takes by itself, the least that all take at the same time;
    null where a way is unpriced. `handoff.seconds` is one pair after another.
    """
    ask, prediction, workload = admission.ask, admission.prediction, admission.workload
    if prediction is None or workload is None:
        return {}
    transfer: dict[str, Any] = {}
    if workload.engine or workload.prefix_hit or workload.host_buffer or ask.placement.is_split:
        rows = prediction.handoff_rows
        transfer = {"transfer": transfer_document(ask.model, workload, ask.placement, rows, ask.request.engine_version)}
    if not ask.placement.is_split:
        return transfer
    document: dict[str, Any] = {
        phase: {
            "tensor_parallel": ask.placement.tensor_parallel(phase),
            "pipeline": ask.placement.pipeline(phase),
            "copies": copies_of(ask.model.caches, ask.placement.tensor_parallel(phase)),
            "ranks": [_rank(admission, rank) for rank in ranks_of(ask.model, ask.placement, phase)],
        }
        for phase in PHASES
    }
    together = slowest_pair(staged_as(prediction.handoff_rows, admission.ask.pricing.staging))
    return transfer | {"workers": document | {"handoff_together_s": None if together is None else float(together)}}


def _rank(admission: Admission, rank: Rank) -> dict[str, Any]:
    held = rank_model(admission.ask.model, rank.cut)
    return {
        "device": rank.device, "stage": rank.stage, "rank": rank.cut.rank,
        "layers": {"first": rank.layers[0], "end": rank.layers[1]},
        "kv_heads": sorted({layer.heads for layer in held.caches if layer.heads}),
        "weights_bytes": sum(tensor.nbytes for tensor in held.staged_tensors("device")),
    }  # fmt: skip


def slowest_pair(rows: tuple[Row, ...]) -> Fraction | None:
    """Seconds of the slowest (src, dst) of rows, its rows one after another; None without rows or where unpriced."""
    pairs: dict[tuple[str, str], Fraction] = {}
    for row in rows:
        if row.seconds is None:
            return None
        pairs[row.src, row.dst] = pairs.get((row.src, row.dst), Fraction(0)) + row.seconds
    return max(pairs.values(), default=None)


def part_document(row: Row) -> dict[str, Any]:
    """What a handoff row carries: layers x tokens x elements x the type's bytes, times the batch."""
    part = row.part
    assert part is not None
    return {"layers": part.layers, "elements": part.width, "dtype": part.dtype, "is_state": part.is_state}
