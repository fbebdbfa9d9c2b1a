"""Which devices a question names for each phase: single ones, or workers of several ranks; defaults are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.errors import DescriptionError, Fault, PlacementError
from fleet.machine import Fleet
from fleet.model import Model
from fleet.placement import MOST_DEVICES, PHASES, Placement, device_list
from planner.admit import check_placement
from planner.worker_plan import check_workers

if TYPE_CHECKING:
    from scenarios.wanted import Wanted


def chosen_placement(wanted: Wanted, fleet: Fleet, model: Model, defaults: list[str]) -> Placement:
    """What was asked; else prefill on the first free devices and decode on the next, GPUs before others.

    Raises DescriptionError with every fault of devices, degrees and stages.
    """
    if not fleet.devices:
        raise DescriptionError.at(fleet.source or fleet.name, "devices", "has no device to place a phase on")
    faults: list[Fault] = []
    degrees = {phase: _degrees(wanted, phase, faults) for phase in PHASES}
    listed = {phase: _listed(wanted, fleet, phase, faults) for phase in PHASES}
    if faults:
        raise DescriptionError(faults)
    named = _named(wanted, fleet, listed, degrees, defaults)
    placement = Placement(prefill=named["prefill"], decode=named["decode"])
    try:
        check_placement(fleet, placement)
    except PlacementError as error:
        told = (line.partition(": ") for line in str(error).splitlines())
        raise DescriptionError(
            [Fault(source=wanted.source, field=phase, message=words) for phase, _, words in told]
        ) from error
    placement = _with_degrees(wanted, placement, degrees)
    check_workers(
        model, placement, wanted.attention or "device", wanted.layout or "plain", wanted.source, engine=wanted.engine
    )
    return placement


def _degrees(wanted: Wanted, phase: str, faults: list[Fault]) -> tuple[int | None, int | None]:
    """(tensor-parallel degree, stages) that were asked of a phase; None = not asked."""
    found: list[int | None] = []
    for name in ("tp", "pp"):
        own, both = getattr(wanted, f"{phase}_{name}"), getattr(wanted, name)
        value = both if own is None else own
        field = f"{phase}_{name}" if own is not None else name
        if own is not None and both is not None and own != both:
            words = f"{own}, but --{name} says {both} for both phases; keep one"
            faults.append(Fault(source=wanted.source, field=field, message=words))
        if value is not None and not 1 <= value <= MOST_DEVICES:
            fault = Fault(
                source=wanted.source, field=field, message=f"{value} is out of range; use 1 to {MOST_DEVICES}"
            )
            faults += [] if fault in faults else [fault]
        found.append(value)
    return found[0], found[1]


def _listed(wanted: Wanted, fleet: Fleet, phase: str, faults: list[Fault]) -> str | None:
    text = getattr(wanted, phase)
    if text is None:
        return None
    try:
        return device_list(text, {device.id for device in fleet.devices} if "-" in text else ())
    except ValueError as error:
        faults.append(Fault(source=wanted.source, field=phase, message=str(error)))
        return None


def _named(
    wanted: Wanted, fleet: Fleet, listed: dict[str, str | None], degrees: dict[str, tuple[int | None, int | None]],
    defaults: list[str],
) -> dict[str, str]:  # fmt: skip
    """Devices of each phase, those that nobody named chosen among the free ones in the fleet's order."""
    order = [d.id for d in fleet.devices if d.kind == "gpu"] + [d.id for d in fleet.devices if d.kind != "gpu"]
    named = dict(listed)
    for phase, other in (("prefill", "decode"), ("decode", "prefill")):
        if named[phase] is not None:
            continue
        tp, pp = degrees[phase]
        count = (tp or 1) * (pp or 1)
        taken = set((named[other] or "").split(","))
        free = _free(fleet, order, taken)
        if count == 1:
            named[phase] = free[0] if free else (named[other] or order[0]).split(",")[0]
        elif len(free) < count:
            told = f"takes {count} devices, and {len(free)} of {fleet.name} are free; name them or use a lower degree"
            raise DescriptionError.at(wanted.source, phase, told)
        else:
            named[phase] = ",".join(free[:count])
        defaults.append(f"{phase}: {named[phase]} (first free device{'s' if count > 1 else ''} of the fleet)")
    return {phase: name for phase, name in named.items() if name is not None}


def _free(fleet: Fleet, order: list[str], taken: set[str]) -> list[str]:
    """Devices that nothing is on; of a card and its slices, which lie in the same bytes, not both."""
    cards = {device.id: device.parent for device in fleet.devices}
    whole = {name for name in taken if cards.get(name) is None}
    cut = {card for name in taken if (card := cards.get(name)) is not None}
    free = []
    for name in order:
        card = cards[name]
        if name in taken or (name in cut if card is None else card in whole):
            continue
        free.append(name)
        if card is None:
            whole.add(name)
        else:
            cut.add(card)
    return free


def _with_degrees(wanted: Wanted, placement: Placement, degrees: dict[str, tuple[int | None, int | None]]) -> Placement:
    """The placement with the degrees that were asked; a degree left out is what the number of devices gives."""
    faults, pairs = [], []
    for phase in PHASES:
        count, (tp, pp) = len(placement.ranks(phase)), degrees[phase]
        stages = pp or 1
        ranks = tp or max(1, count // stages)
        if ranks * stages != count:
            asked = f"tensor-parallel degree {ranks} in {stages} stage{'s' if stages > 1 else ''}"
            told = f"names {count} device{'s' if count > 1 else ''}, but {asked} takes {ranks * stages}; name as many"
            faults.append(Fault(source=wanted.source, field=phase, message=told))
        pairs.append((ranks, stages))
    if faults:
        raise DescriptionError(faults)
    if not placement.is_split:
        return placement
    (prefill_tp, prefill_pp), (decode_tp, decode_pp) = pairs
    return Placement(
        prefill=placement.prefill, decode=placement.decode, tp=(prefill_tp, decode_tp), pp=(prefill_pp, decode_pp)
    )
