"""Another device in place of one: every device of the fleet is judged, those that swaps make equal once.

Devices are alike when a proven swap of like parts of the fleet turns one into the other and leaves the devices that
stay where they are (`planner.place.symmetry`). One of each class is screened, so the answer is that of all of them.
The smallest change is the one with the least time of the handoff (unpriced last); of equal ones decode's, then the
first in the order of the fleet. Both phases moved are two changes, and not told here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fleet.placement import PHASES, Placement
from planner.admit import Admission, Ask
from planner.counterfactual import SHORT, Change, Found, accepted
from planner.counterfactual_screen import MOST_TOLD, ShapedScreen, Time, classes_for, screen_of, shapes_of
from planner.place.classes import FleetClasses
from planner.shared_memory import cards_beside_slices

MOST_CLASSES = 2_000
"""Classes of devices that are screened; a fleet with more has too little symmetry, and that is told."""
_BY_PREFERENCE = ("decode", "prefill")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Move:
    """A device in place of one rank, the first of `alike` that cannot be told apart."""

    phase: str
    rank: int
    number: int
    alike: int


def other_devices(admission: Admission) -> Found:
    """Another device for one phase, or for one rank of a worker: the request stays split."""
    if admission.ask.placement.is_oracle:
        return Found()
    return _best(admission, [(phase, rank) for phase in _BY_PREFERENCE for rank in _ranks_to_move(admission, phase)])


def one_device(admission: Admission) -> Found:
    """Both phases on one of the two devices: it needs no peer, but it is no split any more. Of one device: a split."""
    placed = admission.ask.placement
    if placed.is_split:
        return Found()
    if placed.is_oracle:
        return _best(admission, [(phase, 0) for phase in _BY_PREFERENCE])
    ways = (("decode", placed.prefill), ("prefill", placed.decode))
    return Found(changes=tuple(_change(admission.ask, phase, name) for phase, name in ways))


def apart(admission: Admission) -> Iterator[Change]:
    """Of a card and its slice, one phase on the roomiest device beside the other; else both on one of the two.

    What is short there is short still: this mends that both would be filled, and no more.
    """
    ask, placed = admission.ask, admission.ask.placement
    if not cards_beside_slices(ask.fleet, placed.devices):
        return
    roomy = sorted(
        (d for d in ask.fleet.devices if d.id not in placed.devices), key=lambda d: -(d.memory.capacity.value or 0)
    )
    for phase in _BY_PREFERENCE:
        ranks = range(len(placed.ranks(phase)))
        for prefill, decode in (_ends(placed, phase, rank, device.id) for device in roomy for rank in ranks):
            if not cards_beside_slices(ask.fleet, [*prefill.split(","), *decode.split(",")]):
                yield _change(ask, phase, prefill if phase == "prefill" else decode)
                break
    yield from one_device(admission)


def _ranks_to_move(admission: Admission, phase: str) -> Iterable[int]:
    """The ranks of a phase whose move alone could help: whatever is short by itself must move."""
    # What lies in one memory with others may be short for their sake.
    alone = {r.device for r in admission.reasons if r.code in SHORT and r.code != "EXCEEDS_SHARED_MEMORY"}
    return [number for number, name in enumerate(admission.ask.placement.ranks(phase)) if alone <= {name}]


def _best(admission: Admission, ranks: list[tuple[str, int]]) -> Found:
    ask = admission.ask
    if not ranks or len(ask.fleet.devices) <= len(ask.placement.devices):
        return Found()
    classes = classes_for(ask.fleet)
    screen = screen_of(ask, shapes_of(ask.placement), classes)
    if screen is None:
        return Found()
    moves = [move for phase, rank in ranks for move in _moves(ask.placement, classes, phase, rank)]
    goal = accepted(admission)
    able = [move for move in moves if _has_room(screen, classes, move)]
    of: list[tuple[Time, int, int, _Move]] = []
    for move in able[:MOST_CLASSES]:
        found = screen.pair(*_ends(ask.placement, move.phase, move.rank, classes.symmetry.names[move.number]))
        if found.verdict in goal:
            time = found.handoff and found.handoff.seconds
            of.append(((time is None, time or 0), _BY_PREFERENCE.index(move.phase), move.number, move))
    of.sort(key=lambda row: row[:3])
    words = "" if len(able) <= MOST_CLASSES else (
        f"searched {MOST_CLASSES:,} of {len(able):,} devices with room that cannot be told apart; another may be nearer"
    )  # fmt: skip
    changes = (_told(ask, classes.symmetry.names[move.number], move) for *_, move in of[:MOST_TOLD])
    return Found(changes=tuple(changes), searched=words, more=max(0, len(of) - MOST_TOLD))


def _moves(placed: Placement, classes: FleetClasses, phase: str, rank: int) -> Iterator[_Move]:
    """The classes of devices that no phase has, in the order of the fleet."""
    symmetry = classes.symmetry
    moving = placed.ranks(phase)[rank]
    taken = {symmetry.number[name] for name in placed.devices}
    stay = tuple(symmetry.number[name] for name in placed.devices if name != moving or placed.is_oracle)
    held: dict[object, list[int]] = {}
    for number in range(len(symmetry.names)):
        if number not in taken:
            key: object = (
                symmetry.pair_class(stay[0], number) if len(stay) == 1 else symmetry.tuple_class((*stay, number))
            )
            held.setdefault(key, []).append(number)
    for numbers in held.values():
        yield _Move(phase=phase, rank=rank, number=numbers[0], alike=len(numbers))


def _has_room(screen: ShapedScreen, classes: FleetClasses, move: _Move) -> bool:
    """Whether nothing that the device decides alone stands against it: a look that costs next to nothing."""
    return screen.is_whole or not screen.site(classes.symmetry.names[move.number], move.phase, move.rank).errors


def _ends(placed: Placement, phase: str, rank: int, name: str) -> tuple[str, str]:
    """(prefill, decode) with this device as that rank."""
    ranks = {each: list(placed.ranks(each)) for each in PHASES}
    ranks[phase][rank] = name
    return ",".join(ranks["prefill"]), ",".join(ranks["decode"])


def _told(ask: Ask, name: str, move: _Move) -> Change:
    ends = dict(zip(PHASES, _ends(ask.placement, move.phase, move.rank, name), strict=True))
    change = _change(ask, move.phase, ends[move.phase])
    return change if move.alike == 1 else replace(change, document=change.document | {"alike": move.alike})


def _change(ask: Ask, phase: str, names: str) -> Change:
    changed: dict[str, Any] = {phase: names}
    document = {"flag": f"--{phase}", "from": getattr(ask.placement, phase), "to": names}
    return Change(document=document, ask=replace(ask, placement=replace(ask.placement, **changed)))
