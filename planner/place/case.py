"""One batch and one pair of degrees: which devices have room, pairs of workers, and what a pool of them comes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fleet.placement import PHASES
from planner.admit import Ask, Verdict
from planner.place.alike import Alike, Pack
from planner.place.bounds import Bounds
from planner.place.candidate import seconds_of
from planner.place.classes import FleetClasses
from planner.place.regions import Worker
from planner.place.screen import Screen, Screened, least
from planner.placement_time import answers
from planner.times import Time, longest, scaled, total

Ends = tuple[str, str]
Room = tuple[tuple[bool, ...], tuple[bool, ...]]
"""By phase and rank, whether a device has room for it."""
MOST_LIKES = 512
"""Unlike devices that are all asked for their room before a search; of more, those that it comes to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a pool comes to: verdict and handoff of its worst pair of workers, times over all of them.

    `ttft` is the longest of any two that serve one request, `tpot` that of the slowest decode worker, `throughput`
    generated tokens a second and device. Times are None where they were not asked for, or nothing of the kind is there.
    """

    verdict: Verdict
    codes: tuple[str, ...]
    staged: bool
    slack_bytes: int | None
    handoff: Time | None
    ttft: Time | None = None
    tpot: Time | None = None
    throughput: Fraction | None = None
    is_timed: bool = False


class Case:
    """Everything about one batch and one pair of degrees that pools of different sizes have in common."""

    def __init__(self, ask: Ask, classes: FleetClasses, alike: Alike, batch: int, ranks: tuple[int, int]) -> None:
        self.alike = alike
        self.screen = Screen(replace(ask, request=replace(ask.request, batch=batch)), tp=ranks, classes=classes)
        self.bounds = Bounds(self.screen, classes)
        self.classes, self.symmetry, self.names = classes, classes.symmetry, classes.symmetry.names
        self.batch, self.ranks = batch, ranks
        self.is_known = not ask.model.unknown
        self.is_small = len(set(self.symmetry.like)) <= MOST_LIKES
        self._rooms: dict[int, Room] = {}
        self._least: dict[int, dict[str | None, Fraction | None]] = {}
        self._pairs: dict[int, Screened] = {}
        self._times: dict[tuple[int, int], Time] = {}
        self._ttfts: dict[int, Time] = {}
        self._worst: dict[tuple[int, ...], int] = {}
        self._plain: dict[tuple[int, ...], Measured] = {}
        self._longest: dict[tuple[int, ...], Time | None] = {}
        self._slowest: dict[tuple[tuple[int, int], ...], Time | None] = {}
        self._rates: dict[tuple[int, tuple[tuple[int, int], ...]], Fraction | None] = {}

    def room(self, device: int) -> Room:
        """Whether nothing that a device decides alone stands against it; alike for all that swaps turn into it."""
        like = self.symmetry.like[device]
        found = self._rooms.get(like)
        if found is None:
            up, down = ((True,) * count for count in self.ranks)
            if self.is_known:
                up, down = (
                    tuple(self._has_room(like, phase, rank) for rank in range(count))
                    for phase, count in zip(PHASES, self.ranks, strict=True)
                )
            found = self._rooms[like] = (up, down)
        return found

    def _has_room(self, device: int, phase: str, rank: int) -> bool:
        site = self.screen.site(self.names[device], phase, rank)
        return not (site.errors or site.unknowns)

    def has_room(self, device: int, phase: int) -> bool:
        """Whether there is room for any rank; of too many unlike devices that is left open."""
        return not self.is_small or any(self.room(device)[phase])

    @property
    def has_no_ttft(self) -> bool:
        """Whether no request of the case gives a first token."""
        return not (self.is_known and answers(self.screen.workload))

    def least_time(self, phase: int, sku: str | None) -> Fraction | None:
        """Seconds of a phase that no worker of such cards goes below."""
        if phase not in self._least:
            self._least[phase] = self.screen.least_times(PHASES[phase])
        return self._least[phase][sku]

    def pair(self, prefill: Worker, decode: Worker) -> Screened:
        """The screen of two workers, once for all that swaps turn into them."""
        return self._pair(self.alike.pair(prefill, decode))

    def _pair(self, number: int) -> Screened:
        found = self._pairs.get(number)
        if found is None:
            found = self._pairs[number] = self.screen.pair(*self._ends(*self.alike.first_pair[number]))
        return found

    def _ends(self, prefill: Worker, decode: Worker) -> Ends:
        return ",".join(self.names[d] for d in prefill), ",".join(self.names[d] for d in decode)

    def time(self, phase: int, worker: Worker) -> Time:
        """Seconds of a phase (0 prefill, 1 decode) on a worker."""
        return self._time(phase, self.alike.worker(worker))

    def _time(self, phase: int, number: int) -> Time:
        found = self._times.get((phase, number))
        if found is None:
            names = ",".join(self.names[device] for device in self.alike.first_worker[number])
            found = self._times[phase, number] = self.screen.worker_time(PHASES[phase], names)
        return found

    def time_of(self, phase: int, worker: Worker) -> Fraction | None:
        """Seconds alone; None where unpriced, or nothing is known of the model."""
        return seconds_of(self.time(phase, worker)) if self.is_known else None

    def served(self, prefill: Sequence[Worker], decode: Worker, *, nearest: bool) -> list[Worker]:
        """The prefill workers that hand over to a decode worker: all, or the nearest one."""
        if not nearest:
            return list(prefill)
        return [min(prefill, key=lambda one: (*weight(self.pair(one, decode))[:3], late(self.time_of(0, one))))]

    def _nearest(self, prefill: Sequence[Worker], decode: Sequence[Worker]) -> list[tuple[Worker, Worker]]:
        """Each decode worker with the one that serves it; and prefill workers that none can be served by, each once."""
        pairs = [(one, other) for other in decode for one in self.served(prefill, other, nearest=True)]
        for one in prefill:
            best = min(decode, key=lambda other, one=one: weight(self.pair(one, other)))  # type: ignore[misc]
            if self.pair(one, best).verdict != "admitted":
                pairs.append((one, best))
        return pairs

    def _serving(self, pack: Pack, *, nearest: bool) -> tuple[int, ...]:
        """The kinds of pairs that serve one request."""
        if not nearest:
            return pack.pairs
        return tuple(dict.fromkeys(self.alike.pair(*pair) for pair in self._nearest(pack.prefill, pack.decode)))

    def _worst_of(self, pairs: tuple[int, ...]) -> int:
        """Of kinds of pairs the worst, the first of equal ones."""
        found = self._worst.get(pairs)
        if found is None:
            found = self._worst[pairs] = max(pairs, key=lambda number: weight(self._pair(number)))
        return found

    def ends(self, pack: Pack, *, nearest: bool) -> Ends:
        """The worst pair of workers of a pool, by the names of its own devices."""
        worst = self._worst_of(self._serving(pack, nearest=nearest))
        pairs = ((one, other) for other in pack.decode for one in pack.prefill)
        return self._ends(*next(pair for pair in pairs if self.alike.pair(*pair) == worst))

    def measure(self, pack: Pack, *, nearest: bool, timed: bool) -> Measured:
        """What a pool comes to; `timed`: with all times, where it is admitted."""
        pairs = self._serving(pack, nearest=nearest)
        plain = self._plain.get(pairs)
        if plain is None:
            worst = self._pair(self._worst_of(pairs))
            plain = self._plain[pairs] = Measured(
                verdict=worst.verdict, codes=worst.codes, staged=worst.staged, handoff=worst.handoff,
                slack_bytes=least(self._pair(number).slack_bytes for number in pairs),
            )  # fmt: skip
        if not timed or plain.verdict != "admitted":
            return plain
        passes, rates = self.screen.workload.decode_passes, (self._rate(0, pack.ups), self._rate(1, pack.downs))
        devices = len(pack.prefill) * self.ranks[0] + len(pack.decode) * self.ranks[1]
        return Measured(
            verdict=plain.verdict, codes=plain.codes, staged=plain.staged, slack_bytes=plain.slack_bytes,
            handoff=plain.handoff, ttft=self._longest_ttft(pairs), tpot=self._slowest_tpot(pack.downs, passes),
            throughput=None if None in rates else min(rates) * Fraction(passes + 1, devices),  # type: ignore[type-var, operator]
            is_timed=True,
        )  # fmt: skip

    def _longest_ttft(self, pairs: tuple[int, ...]) -> Time | None:
        if pairs not in self._longest:
            timed = answers(self.screen.workload)
            self._longest[pairs] = longest(map(self._ttft, pairs)) if timed else None
        return self._longest[pairs]

    def _ttft(self, number: int) -> Time:
        if number not in self._ttfts:
            handoff, first = self._pair(number).handoff, self.time(0, self.alike.first_pair[number][0])
            self._ttfts[number] = total((first, *((handoff,) if handoff is not None else ())))
        return self._ttfts[number]

    def _slowest_tpot(self, side: tuple[tuple[int, int], ...], passes: int) -> Time | None:
        if side not in self._slowest:
            times = (self._time(1, number) for number, _ in side)
            self._slowest[side] = scaled(longest(times), Fraction(1, passes)) if passes else None
        return self._slowest[side]

    def _rate(self, phase: int, side: tuple[tuple[int, int], ...]) -> Fraction | None:
        """Sequences a second of workers that are busy all the time; None where one is unpriced or takes no time."""
        key = (phase, side)
        if key not in self._rates:
            times = [(self._time(phase, number).seconds, count) for number, count in side]
            known = [count * self.batch / seconds for seconds, count in times if seconds]
            self._rates[key] = sum(known, Fraction(0)) if len(known) == len(times) else None
        return self._rates[key]


def late(seconds: Fraction | None) -> tuple[bool, Fraction]:
    """Least is best, unpriced last."""
    return seconds is None, seconds or Fraction(0)


_ORDER = {"admitted": 0, "unverified": 1, "refused": 2}


def weight(found: Screened) -> tuple[int, bool, Fraction, int]:
    """What makes a pair of workers the worst of a pool: its verdict, no price, its time, the least room."""
    seconds = seconds_of(found.handoff)
    unpriced = found.handoff is not None and seconds is None
    return _ORDER[found.verdict], unpriced, seconds or Fraction(0), -(found.slack_bytes or 0)
