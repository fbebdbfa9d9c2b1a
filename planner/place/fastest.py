"""The least time that a phase takes on any worker of some devices, and the most that several of them do together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property

from planner.place.classes import FleetClasses
from planner.place.regions import Worker
from planner.place.symmetry import Symmetry

MOST_WORKERS = 64
"""Unlike workers of one phase that are told apart by their times; of more, only the fastest devices are looked at."""
MOST_TRIED = 4_000
"""Devices that are tried for them."""
Able = Sequence[Sequence[int]]
"""By rank, the devices that may be that."""


class Fastest:
    """The least time of a phase on any of some workers, found when it is asked for.

    `workers`: those that swaps do not turn into each other; `singles`: devices that are workers on their own. None:
    there are too many, and `least` is what no worker is faster than.
    """

    def __init__(
        self, workers: Sequence[Worker] | None, singles: Sequence[int], time_of: Callable[[Worker], Fraction | None],
        least: Callable[[], Fraction | None],
    ) -> None:  # fmt: skip
        self._workers, self._singles, self._time_of, self._least = workers, singles, time_of, least
        self._rates: dict[int, Fraction] = {}

    @cached_property
    def _times(self) -> set[Fraction | None]:
        return set(map(self._time_of, self._workers or ()))

    @cached_property
    def seconds(self) -> Fraction | None:
        """The least time; None: unpriced."""
        if self._workers is None:
            return self._least()
        return min((time for time in self._times if time is not None), default=None)

    @cached_property
    def is_only(self) -> bool:
        """Whether all workers take that."""
        return self._workers is not None and (len(self._workers) <= 1 or len(self._times) <= 1)

    @cached_property
    def _best(self) -> tuple[Fraction, ...]:
        """Of single devices that are not alike: sequences a second and batch of one, the fastest first."""
        if self.is_only or self._workers is None:
            return ()
        each = (self._time_of((device,)) for device in self._singles)
        return tuple(sorted((1 / time for time in each if time), reverse=True))

    def rate(self, count: int) -> Fraction | None:
        """The most sequences a second, a batch of one each, of so many workers; None where unpriced or without time."""
        if not count:
            return Fraction(0)
        if not self.seconds:
            return None
        if count not in self._rates:
            self._rates[count] = sum(self._best[:count], Fraction(0)) if self._best else count / self.seconds
        return self._rates[count]


def unlike_workers(classes: FleetClasses, able: Able, symmetry: Symmetry) -> list[Worker] | None:
    """Workers of devices that are `able` by rank, of those that swaps of `symmetry` turn into each other the first.

    None: too many to tell apart.
    """
    found = _Workers(classes, able, symmetry)
    return found.workers if found.complete else None


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
