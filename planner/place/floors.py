"""Below what a pair of devices cannot be, before it is looked at: from each device's links, times and price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from planner.machine import PICOSECONDS
from planner.place.candidate import Candidate, Objective, cost_of, seconds_of, value_of
from planner.place.cuts import OPEN, Cut
from planner.place.screen import Screen
from planner.times import Time

Key = tuple[int, bool, Fraction | int, bool, Fraction]
"""Broken preferences; whether the objective is unpriced, and its value; the same of the handoff. Least is best."""
Phase = Callable[[str, str], Time]
Raw = tuple[int, tuple[Cut, ...], Fraction | None, Fraction | None]


def key_of(candidate: Candidate, objective: Objective) -> Key:
    """The key of a candidate that was looked at."""
    value, handoff = value_of(candidate, objective), seconds_of(candidate.figures.handoff)
    return len(candidate.broken), value is None, value or 0, handoff is None, handoff or Fraction(0)


class Floors:
    """Least keys of pairs: all of a handoff passes each cut between its ends over some link; other figures are known.

    `phase`: the time of a phase on a device; `broken`: preferences that a pair breaks.
    """

    def __init__(
        self, screen: Screen, objective: Objective, prices: Mapping[str, Fraction], phase: Phase,
        broken: Callable[[str, str], int],
    ) -> None:  # fmt: skip
        self.screen, self.objective, self.prices = screen, objective, prices
        self.phase, self.broken = phase, broken
        self.nbytes, self.copies = screen.handoff_size
        self.cuts = screen.classes.cuts(screen.ask.fleet)

    def order(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[Key, int]]:
        """The least keys of pairs with their places, best first; equal ones in the order that they came in."""
        raws = [self._raw(*pair) for pair in pairs]
        keys = {raw: self._key(raw) for raw in dict.fromkeys(raws)}
        places: dict[Raw, int] = {}
        place, before = -1, None
        for raw in sorted(keys, key=keys.__getitem__):
            if keys[raw] != before:  # unlike cuts may make one key
                place, before = place + 1, keys[raw]
            places[raw] = place
        return [(keys[raws[at]], at) for at in sorted(range(len(raws)), key=lambda at: (places[raws[at]], at))]

    def least(self, names: Sequence[str]) -> Key:
        """Below what no pair of these devices is, whatever its links and preferences."""
        ends = []
        for cuts in (self.cuts.out, self.cuts.into):
            known = [cuts.get(name, OPEN) for name in names]
            rate = 0 if OPEN in known else max((rate for rate, _ in known), default=0)
            ends.append((rate, min((latency for _, latency in known), default=0)))
        first, second = (self._best([self._figures(name, name)[at] for name in names]) for at in (0, 1))
        return self._key((0, tuple(ends), first, second))

    def _over(self, cut: Cut) -> Fraction:
        """Seconds that a handoff takes over a cut at least."""
        rate, latency = cut
        return Fraction(self.nbytes, rate) + Fraction(latency * self.copies, PICOSECONDS) if rate else Fraction(0)

    def _best(self, values: Sequence[Fraction | None]) -> Fraction | None:
        return min((value for value in values if value is not None), default=None)

    def _raw(self, prefill: str, decode: str) -> Raw:
        cuts, (home, other) = self.cuts, (self.screen.devices[name].host for name in (prefill, decode))
        passed: tuple[Cut, ...] = (cuts.out.get(prefill, OPEN), cuts.into.get(decode, OPEN))
        if home != other:
            passed += (cuts.leave.get(home, OPEN), cuts.enter.get(other, OPEN))
        return self.broken(prefill, decode), passed, *self._figures(prefill, decode)

    def _figures(self, prefill: str, decode: str) -> tuple[Fraction | None, Fraction | None]:
        """What the objective adds of either end: seconds of its phase, or its price."""
        if self.objective in ("ttft", "throughput"):
            return self.phase("prefill", prefill).seconds, self.phase("decode", decode).seconds
        if self.objective == "cost":
            fleet = self.screen.ask.fleet
            return cost_of(fleet, (prefill,), self.prices), cost_of(fleet, (decode,), self.prices)
        return None, None

    def _key(self, raw: Raw) -> Key:
        broken, passed, prefill, decode = raw
        handoff = max(self._over(cut) for cut in passed)
        if self.objective == "devices":
            return broken, False, 2, False, handoff
        if self.objective == "handoff":
            return broken, False, handoff, False, handoff
        if self.objective == "ttft":
            return broken, prefill is None, (prefill or 0) + handoff if prefill is not None else 0, False, handoff
        if self.objective == "cost":
            known = prefill is not None and decode is not None
            return broken, not known, (prefill or 0) + (decode or 0) if known else 0, False, handoff
        if not prefill or not decode:
            return broken, True, 0, False, handoff
        batch, passes = self.screen.ask.request.batch, self.screen.workload.decode_passes
        return broken, False, -Fraction(batch * (passes + 1), 2) / max(prefill, decode), False, handoff


def bound_of(objective: Objective, key: Key) -> Fraction | None:
    """Seconds of the objective, or of the handoff where it is no time; tokens a second and device; None: unpriced."""
    _, missing, value, _, handoff = key
    if objective in ("devices", "cost"):
        return handoff
    if missing:
        return None
    return Fraction(-value if objective == "throughput" else value)
