"""The smallest tensor-parallel degree that would be admitted, on devices that are free.

A phase whose device is short gets more ranks: its own devices and free ones. Degrees are tried upwards, each on two
groups: the free devices in the order of the fleet, those of the same host first, and the largest. The smallest degree
is exact over these groups; every set of named devices is `place`'s affair.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fleet.machine import Device
from fleet.placement import PHASES, Placement
from planner.admit import Admission, Ask
from planner.counterfactual import MOST_DEVICES, Change, is_admitted, joined, phases_short
from planner.workers import degrees


def degree(admission: Admission) -> Iterator[Change]:
    """The first degree that is admitted for the phases that are short, in one stage each."""
    ask, placed, short = admission.ask, admission.ask.placement, phases_short(admission)
    if not short or placed.is_oracle or placed.pp != (1, 1) or ask.model.unknown:
        return
    now = {phase: placed.tensor_parallel(phase) for phase in PHASES}
    if placed.is_split:
        if now["prefill"] != now["decode"]:
            return  # one --tp speaks of both phases
        short = PHASES
    most = min(len(ask.fleet.devices), MOST_DEVICES)
    for tp in (n for n in degrees(ask.model, most) if n > max(now[phase] for phase in short)):
        for placement in _placements(ask, short, tp):
            changed = replace(ask, placement=placement)
            if is_admitted(changed):
                yield Change(document=_document(placed, placement, short, tp), ask=changed)
                return


def _document(placed: Placement, placement: Placement, short: tuple[str, ...], tp: int) -> dict[str, object]:
    changes = [
        {"flag": f"--{phase}", "from": getattr(placed, phase), "to": getattr(placement, phase)}
        for phase in ("decode", "prefill")
        if phase in short
    ]
    if placed.is_split:
        changes.insert(0, {"flag": "--tp", "from": placed.tensor_parallel("prefill"), "to": tp})
    return joined(changes)


def _placements(ask: Ask, short: tuple[str, ...], tp: int) -> Iterator[Placement]:
    """The groups of this degree, each placement once."""
    placed, seen = ask.placement, set()
    for largest in (False, True):
        taken = set(placed.devices)
        named = {"prefill": placed.prefill, "decode": placed.decode}
        for phase in short:
            own = placed.ranks(phase)
            more = _free(ask, own[0], taken, largest=largest)[: tp - len(own)]
            if len(more) < tp - len(own):
                return
            taken |= set(more)
            named[phase] = ",".join((*own, *more))
        degrees_of = [tp if phase in short else placed.tensor_parallel(phase) for phase in PHASES]
        placement = Placement(prefill=named["prefill"], decode=named["decode"], tp=(degrees_of[0], degrees_of[1]))
        if placement not in seen:
            seen.add(placement)
            yield placement


def _free(ask: Ask, like: str, taken: set[str], *, largest: bool) -> list[str]:
    """Devices that no phase has, of one kind with `like`: those of its host first, or the largest first."""
    first = ask.fleet.device(like)
    assert first is not None
    free = [d for d in ask.fleet.devices if d.id not in taken and d.kind == first.kind]

    def key(device: Device) -> tuple[int, bool]:
        room = (device.memory.capacity.value or 0) - (device.in_use or 0) if largest else 0
        return -room, device.host != first.host

    return [device.id for device in sorted(free, key=key)]
