"""TTFT and TPOT of a placement: roofline times of its phases, its rows, sums over ranks, and the handoff between.

TTFT = prompt up + prefill + first token down + handoff: engines of the field stream the first token from the decode
side, once the cache is there. TPOT = (decode passes + their rows) / passes. Nothing overlaps, and no queue is in it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fleet.machine import Fleet
from fleet.model import Model
from fleet.placement import Placement
from fleet.workload import Workload
from planner.machine import MachineGraph, Way, machine_graph
from planner.roofline import AS_TABLED, Efficiencies, PhaseTime, Rates, Used, phase_time, time_of
from planner.rows import Leg, Row, Staging
from planner.times import NOTHING, Time, handoff_time, leg_time, longest, row_time, scaled, total, unpriced
from planner.work import Calls, Work
from planner.workers import Rank, rank_model, ranks_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Pricing:
    """How times are made: which figures, how staged legs follow each other, and shares that somebody gave."""

    rates: Rates = "declared"
    staging: Staging = "sequential"
    given: Efficiencies = AS_TABLED


DECLARED = Pricing()


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementTime:
    """`ttft`, `tpot` and the parts that they are sums of; None where there is none (no token, no decode pass).

    `compute` are the roofline times by phase, one a device, stage by stage; `sums` what ranks exchange.
    """

    pricing: Pricing
    ttft: Time | None
    tpot: Time | None
    prefill: Time
    handoff: Time
    decode: Time
    compute: dict[str, tuple[PhaseTime, ...]]
    moved: dict[str, Time]
    sums: dict[str, Time]
    calls: dict[str, Calls]


def calls_of(workload: Workload, phase: str) -> Calls:
    """The forward calls of a phase: the prompt in chunks, or token by token."""
    if phase == "prefill":
        logits = workload.prefill_passes if workload.attention == "host" else 1 if answers(workload) else 0
        return Calls(
            first=0, tokens=workload.prefill_passes, chunk=workload.prefill_chunk, batch=workload.batch, logits=logits
        )
    passes = workload.decode_passes
    return Calls(first=workload.prompt_tokens, tokens=passes, batch=workload.batch, logits=passes)


def answers(workload: Workload) -> bool:
    """Whether prefill gives a token: what TTFT is the time of."""
    return workload.passes >= workload.prompt_tokens


def placement_time(
    fleet: Fleet, model: Model, workload: Workload, placement: Placement, rows: Sequence[Row],
    pricing: Pricing = DECLARED,
) -> PlacementTime:  # fmt: skip
    """All times of a placement on named devices; `rows` are those of its prediction. Verdicts are not looked at."""
    machine = machine_graph(fleet)
    prefill, decode = (
        parts_of_phase(machine, model, workload, placement, phase, rows, pricing) for phase in ("prefill", "decode")
    )
    both = {"prefill": prefill, "decode": decode}
    handoff = _handed_over(machine, [row for row in rows if row.phase == "handoff"], pricing)
    passes = workload.decode_passes
    return PlacementTime(
        pricing=pricing,
        ttft=total((prefill.whole, handoff)) if answers(workload) else None,
        tpot=scaled(decode.whole, Fraction(1, passes)) if passes else None,
        prefill=prefill.whole, handoff=handoff, decode=decode.whole,
        compute={phase: parts.compute for phase, parts in both.items()},
        moved={phase: parts.moved for phase, parts in both.items()},
        sums={phase: parts.sums for phase, parts in both.items()},
        calls={phase: parts.calls for phase, parts in both.items()},
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseParts:
    """One phase of a placement: roofline times by device, its rows, what its ranks exchange, and all of it."""

    calls: Calls
    compute: tuple[PhaseTime, ...]
    moved: Time
    sums: Time
    whole: Time


def parts_of_phase(
    machine: MachineGraph, model: Model, workload: Workload, placement: Placement, phase: str, rows: Iterable[Row],
    pricing: Pricing,
) -> PhaseParts:  # fmt: skip
    """The times of one phase; it rests on the devices of that phase alone. Rows of other phases are passed over."""
    calls = calls_of(workload, phase)
    ranks = ranks_of(model, placement, phase)
    compute, on_ranks = _computed(machine, model, workload, ranks, calls, pricing)
    moved = total(row_time(row, pricing.rates) for row in rows if row.phase == phase)
    sums = _exchanged(machine, model, workload, ranks, calls, pricing)
    whole = total((on_ranks, sums, moved)) if calls.tokens else NOTHING
    return PhaseParts(calls=calls, compute=compute, moved=moved, sums=sums, whole=whole)


def _handed_over(machine: MachineGraph, rows: Sequence[Row], pricing: Pricing) -> Time:
    """The handoff over links; within one device it is read and written in its memory, at the share of phases."""
    inside = [row for row in rows if row.kind == "d2d"]
    over = handoff_time([row for row in rows if row.kind != "d2d"], pricing.rates, pricing.staging)
    if not inside:
        return over
    copies = (
        time_of(
            machine.devices[row.src], [Work(name="copy", numbers="", flops=0, bytes=2 * row.bytes)], pricing.rates,
            pricing.given,
        )
        for row in inside
    )  # fmt: skip
    # What a copy takes to start is stated by no link.
    return total([over, *(time_of_phase(replace(copy, lower_bound=copy.seconds is not None)) for copy in copies)])


def _computed(
    machine: MachineGraph, model: Model, workload: Workload, ranks: Sequence[Rank], calls: Calls, pricing: Pricing
) -> tuple[tuple[PhaseTime, ...], Time]:
    """(one a device, stages one after another and their ranks side by side)."""
    found: list[PhaseTime] = []
    stages: dict[int, list[Time]] = {}
    for rank in ranks:
        held = model if len(ranks) == 1 else rank_model(model, rank.cut)
        one = phase_time(machine.devices[rank.device], held, workload, calls, rates=pricing.rates, given=pricing.given)
        found.append(one)
        stages.setdefault(rank.stage, []).append(time_of_phase(one))
    return tuple(found), total(longest(times) for times in stages.values())


def time_of_phase(phase: PhaseTime) -> Time:
    """A roofline time: never scored, for no run was compared with its efficiencies."""
    if phase.seconds is None:
        return unpriced(*phase.unpriced)
    origins = {used.origin for used in phase.used}
    basis = "declared and observed" if len(origins) > 1 else next(iter(origins), None)
    policy = any("policy" in (used.figure.provenance, used.efficiency.provenance) for used in phase.used)
    return Time(seconds=phase.seconds, basis=basis, policy=policy, lower_bound=phase.lower_bound)


def _exchanged(
    machine: MachineGraph, model: Model, workload: Workload, ranks: Sequence[Rank], calls: Calls, pricing: Pricing
) -> Time:
    """What ranks exchange: two sums a layer in a ring of each stage, and the hidden state from stage to stage.

    A ring moves 2 (n - 1) / n of the size over each link in 2 (n - 1) steps (Patarasuk and Yuan, JPDC 69(2), 2009).
    """
    if len(ranks) == 1:
        return NOTHING
    width = 4 if workload.weights_dtype == "fp32" else 2
    stages: dict[int, list[Rank]] = {}
    for rank in ranks:
        stages.setdefault(rank.stage, []).append(rank)
    parts = []
    for times, size in calls.sizes():
        hidden = size * calls.batch * model.dim * width
        for held in stages.values():
            first, end = held[0].layers
            steps = 2 * (len(held) - 1) * 2 * (end - first) * times
            parts.append(_ring(machine, held, -(-hidden // len(held)), steps, pricing))
        heads = [held[0].device for held in stages.values()]
        parts += [_sent(machine, a, b, hidden * times, times, pricing) for a, b in itertools.pairwise(heads)]
    return total(parts)


def _ring(machine: MachineGraph, ranks: Sequence[Rank], nbytes: int, steps: int, pricing: Pricing) -> Time:
    """`steps` rounds in which every rank sends `nbytes` to the next: as long as the slowest of them."""
    if len(ranks) == 1 or not steps:
        return NOTHING
    names = [rank.device for rank in ranks]
    around = zip(names, [*names[1:], names[0]], strict=True)
    return longest(_sent(machine, src, dst, nbytes * steps, steps, pricing) for src, dst in around)


def _sent(machine: MachineGraph, src: str, dst: str, nbytes: int, copies: int, pricing: Pricing) -> Time:
    way = machine.way(src, dst, nbytes, copies)
    if not isinstance(way, Way):
        return unpriced(f"the way of sums from {src} to {dst} is unknown")
    return total(
        leg_time(
            Leg(
                src=hop.src, dst=hop.dst, kind="p2p", link=hop.kind, bytes=nbytes, copies=copies, through=hop.links
            ),
            pricing.rates,
        )
        for hop in way.hops
    )  # fmt: skip


def used_rates(time: PlacementTime) -> tuple[Used, ...]:
    """Every rate and share that the phases rest on, each device's once."""
    held: Iterable[PhaseTime] = (one for phases in time.compute.values() for one in phases)
    return tuple(dict.fromkeys(used for phase in held for used in phase.used))
