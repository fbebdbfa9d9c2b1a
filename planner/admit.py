"""The one admission: a request on named devices -> Admitted, Refused or Unverified, each with its prediction.

A device admits when total <= budget, budget = floor(capacity * utilization) - reserve; equal fits. What is unknown is
never admitted: capacity, peer access, a model that is not understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from fleet.errors import PlacementError
from fleet.identity import natural_order
from fleet.laws import island_of
from fleet.machine import Device, Fleet
from fleet.model import Model
from fleet.placement import PHASES, Placement
from fleet.workload import Workload
from planner.engines import engine_unknown
from planner.footprint import LINES, ArenaFootprint
from planner.placement_time import DECLARED, Pricing
from planner.predict import Prediction, predict
from planner.request import MAX_BYTES, Request, resolve
from planner.shared_memory import cards_beside_slices, shared_memories
from planner.vx_codes import overflow_codes, route_codes, tile_codes
from planner.worker_plan import check_workers
from planner.workers import worker_unknown

DEFAULT_UTILIZATION = Fraction(9, 10)
"""Policy: vLLM's default of --gpu-memory-utilization; used where neither the flag nor the fleet says otherwise."""

Verdict = Literal["admitted", "refused", "unverified"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Everything that a verdict depends on."""

    fleet: Fleet
    model: Model
    request: Request
    placement: Placement
    utilization: Fraction | None = None
    expect: tuple[int, ...] | None = None
    pricing: Pricing = DECLARED


@dataclass(frozen=True, kw_only=True, slots=True)
class Reason:
    """Why a verdict is what it is. `severity` error refuses, unknown leaves unverified, warning changes nothing."""

    code: str
    severity: Literal["error", "unknown", "warning"]
    message: str
    device: str | None = None
    edge: tuple[str, str] | None = None
    line: str | None = None
    needed_bytes: int | None = None
    available_bytes: int | None = None
    fix: dict[str, Any] | None = None
    vx_codes: tuple[str, ...] = ()
    """Vx's codes for the same thing, the one that weighs most first."""

    @property
    def shortfall_bytes(self) -> int | None:
        if self.needed_bytes is None or self.available_bytes is None:
            return None
        return self.needed_bytes - self.available_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceBudget:
    """What a device has and what the plan may use of it; None = unknown."""

    capacity_bytes: int | None
    budget_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """A verdict with everything it rests on. `prediction` is None only when the model is not understood."""

    verdict: Verdict
    ask: Ask
    workload: Workload | None
    utilization: Fraction
    prediction: Prediction | None
    budgets: dict[str, DeviceBudget] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    readings: dict[str, Prediction] = field(default_factory=dict)


def utilization_of(ask: Ask) -> Fraction:
    """The flag, else the fleet's budget, else 0.9."""
    if ask.utilization is not None:
        return ask.utilization
    return DEFAULT_UTILIZATION if ask.fleet.budget.utilization is None else ask.fleet.budget.utilization


def check_placement(fleet: Fleet, placement: Placement) -> None:
    """Raises PlacementError when a phase names a device that the fleet does not describe."""
    import difflib

    known = [device.id for device in fleet.devices]
    wrong = []
    ranks = [(phase, name) for phase in PHASES for name in placement.ranks(phase)]
    described = set(known)
    for phase, name in ranks:
        if name not in described:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "."
            listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
            wrong.append(f"{phase}: {name!r} is not a device of fleet {fleet.name}{hint} It has {listed or 'none'}")
    if wrong:
        raise PlacementError("\n".join(wrong))


def admit(ask: Ask) -> Admission:
    """The verdict. Raises DescriptionError or PlacementError when the request itself is wrong; never for a refusal."""
    check_placement(ask.fleet, ask.placement)
    utilization = utilization_of(ask)
    if ask.model.unknown:
        unpriced = tuple(
            Reason(code="MODEL_UNKNOWN", severity="unknown", message=words, vx_codes=("W1029",))
            for words in ask.model.unknown
        )
        return Admission(
            verdict="unverified", ask=ask, workload=None, utilization=utilization, prediction=None, reasons=unpriced
        )
    check_workers(ask.model, ask.placement, ask.request.attention, ask.request.layout, engine=ask.request.engine)
    workload = resolve(ask.request, ask.model)
    prediction = predict(ask.fleet, ask.model, workload, ask.placement)
    readings: dict[str, Prediction] = {}
    reasons: list[Reason] = []
    if prediction.routed.unknown:
        for reading in ("direct", "staged"):
            readings[reading] = predict(ask.fleet, ask.model, workload, ask.placement, reading)
        prediction = readings["direct"]  # the arenas without a bounce buffer; edges are worded as unknown by the plan
    budgets = {f.arena: _budget(ask, f, utilization) for f in prediction.footprints}
    reasons += _memory_reasons(ask, prediction, budgets, utilization)
    reasons += _shared_reasons(ask, prediction, budgets)
    reasons += _way_reasons(ask.fleet, prediction, readings)
    reasons += _size_reasons(prediction)
    reasons += _division_reasons(ask)
    severities = {reason.severity for reason in reasons}
    verdict: Verdict = "refused" if "error" in severities else "unverified" if "unknown" in severities else "admitted"
    return Admission(
        verdict=verdict, ask=ask, workload=workload, utilization=utilization, prediction=prediction,
        budgets=budgets, reasons=tuple(reasons), readings=readings,
    )  # fmt: skip


def _budget(ask: Ask, footprint: ArenaFootprint, utilization: Fraction) -> DeviceBudget:
    device = None if footprint.device is None else ask.fleet.device(footprint.device)
    capacity = None if device is None else device.memory.capacity.value
    if capacity is None:
        return DeviceBudget(capacity_bytes=None, budget_bytes=None)
    allowed = capacity * utilization.numerator // utilization.denominator - ask.fleet.budget.reserve
    return DeviceBudget(capacity_bytes=capacity, budget_bytes=max(allowed, 0))


def short_line(footprint: ArenaFootprint, available: int) -> str:
    """The line that first passes the budget when the lines are laid down in the order of the ledger, runtime first."""
    held = 0
    for line in ("runtime", *(name for name in LINES if name != "runtime")):
        held += footprint.lines[line]
        if held > available:
            return line
    return "rounding"


def _memory_reasons(
    ask: Ask, prediction: Prediction, budgets: dict[str, DeviceBudget], utilization: Fraction
) -> list[Reason]:
    reasons = []
    for footprint in prediction.footprints:
        device = None if footprint.device is None else ask.fleet.device(footprint.device)
        if device is None:
            continue
        budget = budgets[footprint.arena]
        if budget.capacity_bytes is None or budget.budget_bytes is None:
            reasons.append(_capacity_unknown(device, footprint))
        elif footprint.total_bytes > budget.budget_bytes:
            reasons.append(_too_small(device, footprint, budget, utilization))
    return reasons


def _shared_reasons(ask: Ask, prediction: Prediction, budgets: dict[str, DeviceBudget]) -> list[Reason]:
    """A memory that several devices lie in is there once; a card and its slice cannot both be used."""
    reasons = []
    for shared in shared_memories(ask.fleet, prediction.footprints):
        available = min((b for name in shared.devices if (b := budgets[name].budget_bytes) is not None), default=None)
        if available is not None and shared.total_bytes > available:
            names = " and ".join(shared.devices)
            short = shared.total_bytes - available
            reasons.append(Reason(
                code="EXCEEDS_SHARED_MEMORY", severity="error", device=shared.devices[0], line="total",
                needed_bytes=shared.total_bytes, available_bytes=available,
                message=f"{names} lie in one memory, {shared.physical}, which is short by {short:,} B: together they"
                f" need {shared.total_bytes:,} B of its budget of {available:,} B",
            ))  # fmt: skip
    for card, part in cards_beside_slices(ask.fleet, ask.placement.devices):
        reasons.append(Reason(
            code="CARD_AND_SLICE", severity="error", device=part.id,
            message=f"{part.id} is a slice of {card.id}, and the plan would fill both: the memory of the slice is the"
            f" card's ({part.where}); place both phases on slices, or both on the card",
        ))  # fmt: skip
    return reasons


def _capacity_unknown(device: Device, footprint: ArenaFootprint) -> Reason:
    return Reason(
        code="CAPACITY_UNKNOWN", severity="unknown", device=device.id, needed_bytes=footprint.total_bytes,
        message=f"{device.id} needs {footprint.total_bytes:,} B, but the capacity of its memory "
        f"{device.default_memory!r} is unknown ({device.where}); state {device.capacity_field}",
    )  # fmt: skip


def _too_small(device: Device, footprint: ArenaFootprint, budget: DeviceBudget, utilization: Fraction) -> Reason:
    assert budget.capacity_bytes is not None
    assert budget.budget_bytes is not None
    over_capacity = footprint.total_bytes > budget.capacity_bytes
    available = budget.budget_bytes
    line = short_line(footprint, available)
    why = "more than the whole capacity" if over_capacity else "which fits the capacity but not the budget"
    return Reason(
        code="EXCEEDS_CAPACITY" if over_capacity else "EXCEEDS_BUDGET", severity="error", device=device.id, line=line,
        needed_bytes=footprint.total_bytes, available_bytes=available,
        vx_codes=tile_codes(footprint, budget.capacity_bytes),
        message=f"{device.id} is short by {footprint.total_bytes - available:,} B: it needs"
        f" {footprint.total_bytes:,} B, {why}; the budget is {available:,} B ({_percent(utilization)} of"
        f" {budget.capacity_bytes:,} B, less reserve);"
        f" the line that no longer fits is {line} ({device.where})",
    )  # fmt: skip


def _percent(fraction: Fraction) -> str:
    return f"{float(fraction * 100):g} %"


def _some(names: Iterable[str]) -> str:
    """The first few names, in natural order."""
    ordered = sorted(names, key=natural_order)
    return ", ".join(ordered[:8]) + (f" and {len(ordered) - 8} more" if len(ordered) > 8 else "")


def _islands(fleet: Fleet, src: str, dst: str) -> str:
    """Both groups, where no links at all join them."""
    first = island_of(fleet, src)
    if dst in first:
        return ""
    return f"; the fleet falls apart there: {_some(first)} | {_some(island_of(fleet, dst))}"


def _way_reasons(fleet: Fleet, prediction: Prediction, readings: dict[str, Prediction]) -> list[Reason]:
    reasons = []
    hosts = {host.id for host in fleet.hosts}
    for way in prediction.routed.no_way:
        reaches = _some(way.reachable) or "nothing"
        reasons.append(Reason(
            code="NO_ROUTE", severity="error", edge=(way.src, way.dst), vx_codes=route_codes(way.src, hosts),
            message=f"no declared links lead from {way.src} to {way.dst}; the links from {way.src} lead to {reaches}"
            + _islands(fleet, way.src, way.dst),
        ))  # fmt: skip
    for host, needed, pool in prediction.routed.pool_short:
        reasons.append(Reason(
            code="PINNED_POOL_TOO_SMALL", severity="error", device=host, needed_bytes=needed, available_bytes=pool,
            message=f"staging one position needs {needed:,} B of the pinned pool of {host}; it has {pool:,} B",
        ))  # fmt: skip
    if readings:
        unknown = readings["direct"].handoff_rows
        edge = (unknown[0].src, unknown[0].dst) if unknown else None
        staged_fails = bool(readings["staged"].routed.no_way)
        reasons.append(Reason(
            code="PEER_ACCESS_UNKNOWN", severity="unknown", edge=edge,
            message="peer access between the devices is unknown: direct is one copy, staged goes over the host"
            + (", for which links are missing" if staged_fails else "") + "; state peer_access: direct or staged",
        ))  # fmt: skip
    return reasons


def _division_reasons(ask: Ask) -> list[Reason]:
    """What nobody knows how to divide among ranks, or how an engine moves it, leaves bytes unknown."""
    words = worker_unknown(ask.model, ask.placement) if ask.placement.is_split else ()
    engine = () if ask.request.engine is None else engine_unknown(ask.request.engine, ask.model)
    divided = [Reason(code="DIVISION_UNKNOWN", severity="unknown", message=told, vx_codes=("W1029",)) for told in words]
    return divided + [Reason(code="ENGINE_UNKNOWN", severity="unknown", message=told) for told in engine]


def _size_reasons(prediction: Prediction) -> list[Reason]:
    """Totals beyond 2^63 - 1 are refused before any machine integer could wrap."""
    largest = max((f.total_bytes for f in prediction.footprints), default=0)
    largest = max(largest, max((edge.bytes or 0 for edge in prediction.edges), default=0))
    if largest <= MAX_BYTES:
        return []
    return [Reason(
        code="SIZE_OVERFLOW", severity="error", needed_bytes=largest, available_bytes=MAX_BYTES,
        vx_codes=overflow_codes(prediction.footprints),
        message=f"a total of {largest:,} B passes 2^63 - 1",
    )]  # fmt: skip
