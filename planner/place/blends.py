"""Mixtures of cards: how many workers of each kind either phase of a pool has, and what no such pool goes below.

A worker is of one kind of card; the workers of a phase need not be. A mixture says how many of each kind there are, so
it fixes the cost, and bounds the times before any device is looked at.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from planner.place.candidate import Objective
from planner.place.fastest import Fastest

Kind = str | None
"""A SKU; None: cards without a name."""
Mix = tuple[tuple[Kind, int], ...]
"""Workers of one phase by kind, in the order of the names."""


@dataclass(frozen=True, slots=True)
class Blend:
    """How many workers of each kind prefill and decode have."""

    prefill: Mix
    decode: Mix

    @property
    def is_mixed(self) -> bool:
        """Whether a phase has workers of unlike cards."""
        return len(self.prefill) > 1 or len(self.decode) > 1

    @property
    def parts(self) -> Iterator[tuple[Kind, tuple[int, int]]]:
        """Each kind with its prefill and decode workers."""
        up, down = dict(self.prefill), dict(self.decode)
        for kind in sorted({*up, *down}, key=order_of):
            yield kind, (up.get(kind, 0), down.get(kind, 0))


def order_of(kind: Kind) -> tuple[bool, str]:
    """Kinds by name, cards without one last."""
    return kind is None, kind or ""


@dataclass(frozen=True, slots=True)
class Side:
    """Workers of one phase: the least seconds of the fastest and of the slowest kind, and their sequences a second, a
    batch of one each. None: unpriced, or without time.
    """

    mix: Mix
    fast: Fraction | None
    slow: Fraction | None
    rate: Fraction | None


class Sides:
    """All mixtures of one phase, by the number of workers. `room`: so many workers of a kind have devices."""

    def __init__(self, fastest: Mapping[Kind, Fastest], room: Mapping[Kind, int]) -> None:
        self.fastest, self.room = fastest, {kind: count for kind, count in room.items() if count}
        self.kinds = sorted(self.room, key=order_of)
        self._counts: dict[int, int] = {}
        self._listed: dict[tuple[int, int, int], list[Side]] = {}
        self._sides: dict[Mix, Side] = {}

    def count(self, workers: int) -> int:
        """How many mixtures of so many workers there are."""
        if workers not in self._counts:
            ways = [1] + [0] * workers
            for room in self.room.values():
                sums = [0]
                for way in ways:
                    sums.append(sums[-1] + way)
                ways = [sums[at + 1] - sums[max(0, at - room)] for at in range(workers + 1)]
            self._counts[workers] = ways[workers]
        return self._counts[workers]

    def pure(self, workers: int) -> list[Kind]:
        """Kinds that all workers may be of."""
        return [kind for kind in self.kinds if self.room[kind] >= workers]

    def listed(
        self, workers: int, most: int, by: Objective, prices: Mapping[str, Fraction], beside: int
    ) -> list[Side]:  # fmt: skip
        """All mixtures of so many workers; of more than `most` those of the kinds that are best by an objective.

        The best kinds have to be enough for `beside` workers of the other phase, too.
        """
        key = (workers, most, beside)
        if key not in self._listed:
            kinds = self.kinds
            if self.count(workers) > most:
                ranked = sorted(kinds, key=lambda kind: self._rank(kind, by, prices))
                few, room = 1, self.room[ranked[0]]
                while few < len(kinds) and (room < workers + beside or math.comb(few + workers, workers) <= most):
                    few, room = few + 1, room + self.room[ranked[few]]
                kinds = sorted(ranked[:few], key=order_of)
            self._listed[key] = [self.side(mix) for mix in itertools.islice(self._mixes(kinds, workers), most)]
        return self._listed[key]

    def side(self, mix: Mix) -> Side:
        """A mixture with its bounds."""
        if mix not in self._sides:
            self._sides[mix] = self._side(mix)
        return self._sides[mix]

    def _side(self, mix: Mix) -> Side:
        times = [self.fastest[kind].seconds for kind, _ in mix]
        rates = [self.fastest[kind].rate(count) for kind, count in mix]
        known = [time for time in times if time is not None]
        whole = len(known) == len(times)
        held = [rate for rate in rates if rate is not None]
        return Side(
            mix, min(known) if whole else None, max(known) if whole else None,
            sum(held, Fraction(0)) if len(held) == len(rates) else None,
        )  # fmt: skip

    def best(self, workers: int) -> Side:
        """What no mixture of so many workers goes below."""
        times = [self.fastest[kind].seconds for kind in self.kinds]
        least = min((time for time in times if time is not None), default=None)
        singles = [self.fastest[kind].rate(1) for kind in self.kinds]
        most = max((rate for rate in singles if rate is not None), default=None)
        return Side((), least, least, None if most is None else most * workers)

    def _rank(self, kind: Kind, by: Objective, prices: Mapping[str, Fraction]) -> tuple[object, ...]:
        seconds, price = self.fastest[kind].seconds, prices.get(kind or "")
        time = (seconds is None, seconds or 0)
        first = (price is None, price or 0) if by == "cost" else time if by in ("ttft", "throughput") else (False, 0)
        return (*first, -self.room[kind], *time, order_of(kind))

    def _mixes(self, kinds: Sequence[Kind], workers: int) -> Iterator[Mix]:
        """The most of the first kinds first."""
        after = [0]
        for kind in reversed(kinds):
            after.append(after[-1] + self.room[kind])
        after.reverse()
        waiting: list[tuple[int, int, Mix]] = [(0, workers, ())]
        while waiting:
            at, left, mix = waiting.pop()
            if not left:
                yield mix
            elif after[at] >= left:
                kind = kinds[at]
                for count in range(min(left, self.room[kind]) + 1):
                    waiting.append((at + 1, left - count, (*mix, (kind, count)) if count else mix))


def cost_floor(blend: Blend, ranks: tuple[int, int], prices: Mapping[str, Fraction]) -> Fraction | None:
    """The cost of an hour of a blend; None where a card has no price."""
    total = Fraction(0)
    for mix, size in ((blend.prefill, ranks[0]), (blend.decode, ranks[1])):
        for kind, count in mix:
            price = prices.get(kind or "")
            if price is None:
                return None
            total += price * count * size
    return total
