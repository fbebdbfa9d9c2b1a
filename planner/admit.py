"""The one admission: a request on named devices -> Admitted, Refused or Unverified, each with its prediction.

A device admits when total <= budget, budget = floor(capacity * utilization) - reserve; equal fits. What is unknown is
never admitted: capacity, peer access, a model that is not understood.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
from planner.footprint import ArenaFootprint
from planner.ledger_bounds import CACHE_LINES, Basis, DeviceBudget, Terms, allowed
from planner.placement_time import DECLARED, Pricing
from planner.predict import Prediction, predict
from planner.request import MAX_BYTES, Request, resolve
from planner.shared_memory import SharedMemory, cards_beside_slices, shared_memories
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
    share_of: Basis = "total"
    """What `utilization` is a share of."""


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
    budgets = {f.arena: _budget(ask, f) for f in prediction.footprints}
    reasons += _memory_reasons(ask, prediction, budgets)
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


def terms_of(ask: Ask, device: Device | None) -> Terms:
    """The terms of a device's bound under this request; what is in use counts 0 where unknown, and is told apart."""
    in_use = 0 if device is None else device.in_use or 0
    return Terms(utilization=utilization_of(ask), reserve=ask.fleet.budget.reserve, in_use=in_use, basis=ask.share_of)


def cache_bytes(footprint: ArenaFootprint) -> int:
    """What a share of the free memory bounds."""
    return sum(footprint.lines.get(line, 0) for line in CACHE_LINES)


def _budget(ask: Ask, footprint: ArenaFootprint) -> DeviceBudget:
    device = None if footprint.device is None else ask.fleet.device(footprint.device)
    if device is None:
        return DeviceBudget(capacity_bytes=None, budget_bytes=None)
    capacity, in_use = device.memory.capacity.value, device.in_use
    if capacity is None or in_use is None:
        return DeviceBudget(capacity_bytes=capacity, budget_bytes=None, in_use_bytes=in_use)
    bound = allowed(capacity, footprint.total_bytes, cache_bytes(footprint), terms_of(ask, device))
    return DeviceBudget(capacity_bytes=capacity, budget_bytes=bound, in_use_bytes=in_use)


def short_line(footprint: ArenaFootprint, available: int) -> str:
    """The line that first passes the budget when the lines are laid down in the order of the ledger, runtime first."""
    held = 0
    for line in ("runtime", *(name for name in footprint.lines if name != "runtime")):
        held += footprint.lines[line]
        if held > available:
            return line
    return "rounding"


def _memory_reasons(ask: Ask, prediction: Prediction, budgets: dict[str, DeviceBudget]) -> list[Reason]:
    reasons = []
    for footprint in prediction.footprints:
        device = None if footprint.device is None else ask.fleet.device(footprint.device)
        if device is None:
            continue
        budget = budgets[footprint.arena]
        if budget.capacity_bytes is None:
            reasons.append(_capacity_unknown(device, footprint))
        elif budget.budget_bytes is None:
            reasons.append(_in_use_unknown(ask, device, footprint, budget.capacity_bytes))
        elif footprint.total_bytes > budget.budget_bytes:
            reasons.append(_too_small(ask, device, footprint, budget.capacity_bytes, budget.budget_bytes))
    return reasons


def _shared_reasons(ask: Ask, prediction: Prediction, budgets: dict[str, DeviceBudget]) -> list[Reason]:
    """A memory that several devices lie in is there once; a card and its slice cannot both be used."""
    reasons = []
    for shared in shared_memories(ask.fleet, prediction.footprints):
        available = shared_budget(ask, prediction, budgets, shared)
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


def shared_budget(
    ask: Ask, prediction: Prediction, budgets: dict[str, DeviceBudget], shared: SharedMemory
) -> int | None:
    """What all arenas in one memory may take together; None where no capacity is known."""
    held = [f for f in prediction.footprints if f.arena in shared.devices]
    known = [b for f in held if (b := budgets[f.arena]).capacity_bytes is not None and b.in_use_bytes is not None]
    if not known:
        return None
    terms = replace(terms_of(ask, None), in_use=max(b.in_use_bytes or 0 for b in known))
    capacity = min(b.capacity_bytes or 0 for b in known)
    return allowed(capacity, shared.total_bytes, sum(cache_bytes(f) for f in held), terms)


def _capacity_unknown(device: Device, footprint: ArenaFootprint) -> Reason:
    return Reason(
        code="CAPACITY_UNKNOWN", severity="unknown", device=device.id, needed_bytes=footprint.total_bytes,
        message=f"{device.id} needs {footprint.total_bytes:,} B, but the capacity of its memory "
        f"{device.default_memory!r} is unknown ({device.where}); state {device.capacity_field}",
    )  # fmt: skip


def _in_use_unknown(ask: Ask, device: Device, footprint: ArenaFootprint, capacity: int) -> Reason:
    """Unknown use is never admitted; what would not fit an idle device is refused all the same."""
    idle = allowed(capacity, footprint.total_bytes, cache_bytes(footprint), terms_of(ask, device))
    if footprint.total_bytes > idle:
        return _too_small(ask, device, footprint, capacity, idle)
    return Reason(
        code="IN_USE_UNKNOWN", severity="unknown", device=device.id, needed_bytes=footprint.total_bytes,
        message=f"{device.id} needs {footprint.total_bytes:,} B, but how much of its {capacity:,} B others hold is"
        " unknown; give --in-use a text that says it for this device",
    )  # fmt: skip


def _too_small(ask: Ask, device: Device, footprint: ArenaFootprint, capacity: int, available: int) -> Reason:
    total, terms = footprint.total_bytes, terms_of(ask, device)
    code, why = "EXCEEDS_BUDGET", "which fits the capacity but not the budget"
    if total > capacity:
        code, why = "EXCEEDS_CAPACITY", "more than the whole capacity"
    elif total + terms.in_use > capacity:
        code, why = "EXCEEDS_FREE", "which fits the capacity but not beside what others hold"
    return Reason(
        code=code, severity="error", device=device.id, line=short_line(footprint, available),
        needed_bytes=total, available_bytes=available, vx_codes=tile_codes(footprint, capacity),
        message=f"{device.id} is short by {total - available:,} B: it needs {total:,} B, {why};"
        f" the budget is {available:,} B ({budget_words(capacity, terms)});"
        f" the line that no longer fits is {short_line(footprint, available)} ({device.where})",
    )  # fmt: skip


def budget_words(capacity: int, terms: Terms) -> str:
    """`90 % of 85,899,345,920 B, less reserve`: how a budget came about."""
    share = _percent(terms.utilization)
    used = f" and {terms.in_use:,} B in use" if terms.in_use else ""
    if terms.basis == "total":
        return f"{share} of {capacity:,} B, less reserve{used}"
    return f"the cache may take {share} of what is free of {capacity:,} B beside all else, less reserve{used}"


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
    unread = [*engine, *(each.told for each in ask.request.unpriced)]
    return divided + [Reason(code="ENGINE_UNKNOWN", severity="unknown", message=told) for told in unread]


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
