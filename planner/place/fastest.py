"""The least time that a phase takes on any worker of some devices, and the most that several of them do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.place.classes import FleetClasses
from planner.place.regions import Worker
from planner.place.symmetry import Symmetry

MOST_WORKERS = 64
"""Unlike workers of one phase that are told apart by their times; of more, only the fastest devices are looked at."""
MOST_TRIED = 4_000
"""Devices that are tried for them."""
Able = Sequence[Sequence[int]]
"""By rank, the devices that may be that."""


@dataclass(frozen=True, slots=True)
class Fastest:
    """The least time of a phase on any worker (None: unpriced), and whether all workers take that."""

    seconds: Fraction | None
    is_only: bool
    best: tuple[Fraction, ...] = ()
    """Of single devices: sequences a second and batch of one, the fastest first."""

    def rate(self, count: int) -> Fraction | None:
        """The most sequences a second, a batch of one each, of so many workers; None where unpriced or without time."""
        if not count:
            return Fraction(0)
        if not self.seconds:
            return None
        return sum(self.best[:count], Fraction(0)) if self.best else count / self.seconds


NOT_TIMED = Fastest(None, is_only=True)


def fastest_of(
    classes: FleetClasses, able: Able, symmetry: Symmetry, time_of: Callable[[Worker], Fraction | None],
    least: Callable[[], Fraction | None],
) -> Fastest:  # fmt: skip
    """The fastest of workers of devices that are `able` by rank, up to swaps of `symmetry`.

    Of too many unlike workers: `least`, what the fastest device takes for each rank, without what ranks exchange.
    """
    found = _Workers(classes, able, symmetry)
    if not found.complete:
        return Fastest(least(), is_only=False)
    times = {time_of(worker) for worker in found.workers}
    known = [time for time in times if time is not None]
    best: tuple[Fraction, ...] = ()
    if len(able) == 1 and len(times) > 1:
        each = (time_of((device,)) for device in able[0])
        best = tuple(sorted((1 / time for time in each if time), reverse=True))
    return Fastest(min(known, default=None), len(times) <= 1, best)


class _Workers:
    """Workers of one phase that swaps do not turn into each other. `complete`: all of them are there."""

    def __init__(self, classes: FleetClasses, able: Able, symmetry: Symmetry) -> None:
        self.domains, self.names = classes.near.domains, symmetry.names
        self.able, self.symmetry = able, symmetry
        self.workers: list[Worker] = []
        self.tried = 0
        self.complete = self._extend(())

    def _extend(self, chosen: Worker) -> bool:
        if len(chosen) == len(self.able):
            self.workers.append(chosen)
            return len(self.workers) <= MOST_WORKERS
        kept: dict[object, Worker] = {}
        for device in self.able[len(chosen)]:
            more = (*chosen, device)
            if device in chosen or not self._is_joined(more):
                continue
            self.tried += 1
            kept.setdefault(self.symmetry.tuple_class(more), more)
        return self.tried <= MOST_TRIED and all(self._extend(more) for more in kept.values())

    def _is_joined(self, devices: Worker) -> bool:
        held = (self.domains.get(self.names[device], frozenset()) for device in devices)
        return len(devices) == 1 or bool(frozenset.intersection(*held))
