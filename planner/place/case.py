"""One batch and one pair of degrees: which devices have room, pairs of workers, and what a pool of them comes to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from fleet.placement import PHASES
from planner.admit import Ask, Verdict
from planner.place.bounds import Bounds
from planner.place.candidate import seconds_of
from planner.place.classes import FleetClasses
from planner.place.regions import Worker
from planner.place.screen import Screen, Screened
from planner.place.symmetry import Symmetry
from planner.placement_time import answers
from planner.times import Time, longest, scaled, total

Ends = tuple[str, str]
Room = tuple[tuple[bool, ...], tuple[bool, ...]]
"""By phase and rank, whether a device has room for it."""
MOST_WORKERS = 64
"""Unlike workers of one phase that are told apart by their times; of more, only the fastest devices are looked at."""
MOST_TRIED = 4_000
"""Devices that are tried for them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a pool comes to: the verdict and handoff of its worst pair of workers (`ends`), times over all of them.

    `ttft` is the longest of any two that serve one request, `tpot` that of the slowest decode worker, `throughput`
    generated tokens a second and device. Times are None where they were not asked for, or nothing of the kind is there.
    """

    verdict: Verdict
    codes: tuple[str, ...]
    staged: bool
    slack_bytes: int | None
    ends: Ends
    handoff: Time | None
    ttft: Time | None = None
    tpot: Time | None = None
    throughput: Fraction | None = None
    is_timed: bool = False


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


class Alike:
    """Which workers, and pairs of workers, swaps turn into each other; the same for every batch."""

    def __init__(self, symmetry: Symmetry) -> None:
        self.symmetry = symmetry
        self._pairs: dict[tuple[Worker, Worker], object] = {}
        self._workers: dict[Worker, object] = {}
        self._unlike: dict[object, list[tuple[Worker, Worker]]] = {}
        self._counted: dict[tuple[Worker, ...], list[tuple[Worker, int]]] = {}
        self._numbers: dict[object, int] = {}

    def pair(self, prefill: Worker, decode: Worker) -> object:
        """Equal for pairs that are alike."""
        found = self._pairs.get((prefill, decode))
        if found is None:
            key = self.symmetry.tuple_class((*prefill, *decode))
            found = self._pairs[prefill, decode] = self._numbers.setdefault((len(prefill), key), len(self._numbers))
        return found

    def worker(self, worker: Worker) -> object:
        """Equal for workers that are alike."""
        found = self._workers.get(worker)
        if found is None:
            key = self.symmetry.tuple_class(worker)
            found = self._workers[worker] = self._numbers.setdefault(key, len(self._numbers))
        return found

    def unlike_pairs(self, prefill: tuple[Worker, ...], decode: tuple[Worker, ...]) -> list[tuple[Worker, Worker]]:
        """The pairs of a pool, of each kind the first."""
        found = self._unlike.get((prefill, decode))
        if found is None:
            kinds: dict[object, tuple[Worker, Worker]] = {}
            for other in decode:
                for one in prefill:
                    kinds.setdefault(self.pair(one, other), (one, other))
            found = self._unlike[prefill, decode] = list(kinds.values())
        return found

    def counted(self, side: tuple[Worker, ...]) -> list[tuple[Worker, int]]:
        """The workers of a side, of each kind the first and how many."""
        found = self._counted.get(side)
        if found is None:
            kinds: dict[object, list[Worker]] = {}
            for worker in side:
                kinds.setdefault(self.worker(worker), []).append(worker)
            found = self._counted[side] = [(held[0], len(held)) for held in kinds.values()]
        return found


class Case:
    """Everything about one batch and one pair of degrees that pools of different sizes have in common."""

    def __init__(self, ask: Ask, classes: FleetClasses, alike: Alike, batch: int, ranks: tuple[int, int]) -> None:
        self.alike = alike
        self.screen = Screen(replace(ask, request=replace(ask.request, batch=batch)), tp=ranks, classes=classes)
        self.bounds = Bounds(self.screen, classes)
        self.classes, self.symmetry, self.names = classes, classes.symmetry, classes.symmetry.names
        self.batch, self.ranks = batch, ranks
        self.is_known = not ask.model.unknown
        self.rooms = self._rooms()
        self._pairs: dict[object, tuple[Ends, Screened]] = {}
        self._times: dict[object, Time] = {}
        self._ttfts: dict[object, Time] = {}
        self._fastest: dict[object, Fastest] = {}

    def _rooms(self) -> list[Room]:
        """Whether nothing that a device decides alone stands against it; alike for all that swaps turn into it."""
        if not self.is_known:
            return [((True,) * self.ranks[0], (True,) * self.ranks[1])] * len(self.names)
        of: dict[int, Room] = {}
        for like in dict.fromkeys(self.symmetry.like):
            sites = [
                [self.screen.site(self.names[like], phase, rank) for rank in range(count)]
                for phase, count in zip(PHASES, self.ranks, strict=True)
            ]
            up, down = (tuple(not (site.errors or site.unknowns) for site in side) for side in sites)
            of[like] = (up, down)
        return [of[like] for like in self.symmetry.like]

    def pair(self, prefill: Worker, decode: Worker) -> tuple[Ends, Screened]:
        """The screen of two workers, once for all that swaps turn into them."""
        key = self.alike.pair(prefill, decode)
        found = self._pairs.get(key)
        if found is None:
            ends = (",".join(self.names[d] for d in prefill), ",".join(self.names[d] for d in decode))
            found = self._pairs[key] = (ends, self.screen.pair(*ends))
        return found

    def time(self, phase: int, worker: Worker) -> Time:
        """Seconds of a phase (0 prefill, 1 decode) on a worker."""
        key = (phase, self.alike.worker(worker))
        found = self._times.get(key)
        if found is None:
            names = ",".join(self.names[device] for device in worker)
            found = self._times[key] = self.screen.worker_time(PHASES[phase], names)
        return found

    def served(self, prefill: Sequence[Worker], decode: Worker, *, nearest: bool) -> list[Worker]:
        """The prefill workers that hand over to a decode worker: all, or the nearest one."""
        if not nearest:
            return list(prefill)
        return [min(prefill, key=lambda one: (*weight(self.pair(one, decode)[1])[:3], late(self.time_of(0, one))))]

    def _nearest(self, prefill: Sequence[Worker], decode: Sequence[Worker]) -> list[tuple[Worker, Worker]]:
        """Each decode worker with the one that serves it; and prefill workers that none can be served by, each once."""
        pairs = [(one, other) for other in decode for one in self.served(prefill, other, nearest=True)]
        for one in prefill:
            best = min(decode, key=lambda other, one=one: weight(self.pair(one, other)[1]))  # type: ignore[misc]
            if self.pair(one, best)[1].verdict != "admitted":
                pairs.append((one, best))
        return pairs

    def time_of(self, phase: int, worker: Worker) -> Fraction | None:
        """Seconds alone; None where unpriced, or nothing is known of the model."""
        return seconds_of(self.time(phase, worker)) if self.is_known else None

    def measure(
        self, prefill: tuple[Worker, ...], decode: tuple[Worker, ...], *, nearest: bool, timed: bool
    ) -> Measured:  # fmt: skip
        """What a pool comes to; `timed`: with all times, where it is admitted."""
        pairs = self._nearest(prefill, decode) if nearest else self.alike.unlike_pairs(prefill, decode)
        ends, worst = max((self.pair(*pair) for pair in pairs), key=lambda found: weight(found[1]))
        measured = Measured(
            verdict=worst.verdict, codes=worst.codes, staged=worst.staged, slack_bytes=worst.slack_bytes, ends=ends,
            handoff=worst.handoff,
        )  # fmt: skip
        if not timed or worst.verdict != "admitted":
            return measured
        firsts, steps = (
            [(self.time(phase, one), count) for one, count in self.alike.counted(side)]
            for phase, side in enumerate((prefill, decode))
        )
        passes, rates = self.screen.workload.decode_passes, (self._rate(firsts), self._rate(steps))
        known = [rate for rate in rates if rate is not None]
        devices = len(prefill) * self.ranks[0] + len(decode) * self.ranks[1]
        return replace(
            measured, is_timed=True, ttft=self._longest_ttft(pairs),
            tpot=scaled(longest(time for time, _ in steps), Fraction(1, passes)) if passes else None,
            throughput=min(known) * (passes + 1) / devices if len(known) == 2 else None,
        )  # fmt: skip

    def _longest_ttft(self, pairs: Iterable[tuple[Worker, Worker]]) -> Time | None:
        if not answers(self.screen.workload):
            return None
        found: dict[object, Time] = {}
        for pair in pairs:
            key = self.alike.pair(*pair)
            if key not in self._ttfts:
                handoff = self.pair(*pair)[1].handoff
                self._ttfts[key] = total((self.time(0, pair[0]), *((handoff,) if handoff is not None else ())))
            found[key] = self._ttfts[key]
        return longest(found.values())

    def _rate(self, times: Iterable[tuple[Time, int]]) -> Fraction | None:
        """Sequences a second of workers that are busy all the time; None where one is unpriced or takes no time."""
        rate = Fraction(0)
        for time, count in times:
            if not time.seconds:
                return None
            rate += count * self.batch / time.seconds
        return rate

    def fastest(self, phase: int, able: Sequence[Sequence[bool]], symmetry: Symmetry) -> Fastest:
        """The least time of a phase on workers of devices that are `able` by rank, up to swaps of `symmetry`.

        Of too many unlike workers: what the fastest device takes for each rank, without what ranks exchange.
        """
        key = (phase, tuple(map(tuple, able)))
        if key not in self._fastest:
            self._fastest[key] = self._found_fastest(phase, able, symmetry)
        return self._fastest[key]

    def _found_fastest(self, phase: int, able: Sequence[Sequence[bool]], symmetry: Symmetry) -> Fastest:
        found = _Workers(self.classes, able, symmetry)
        if found.complete:
            times = {self.time_of(phase, worker) for worker in found.workers}
            known = [time for time in times if time is not None]
            best = self._rates(phase, able[0]) if len(able) == 1 and len(times) > 1 else ()
            return Fastest(min(known, default=None), len(times) <= 1, best)
        return Fastest(self.screen.least_time(PHASES[phase]), is_only=False)

    def _rates(self, phase: int, able: Sequence[bool]) -> tuple[Fraction, ...]:
        times = (self.time_of(phase, (device,)) for device, yes in enumerate(able) if yes)
        return tuple(sorted((1 / time for time in times if time), reverse=True))


def late(seconds: Fraction | None) -> tuple[bool, Fraction]:
    """Least is best, unpriced last."""
    return seconds is None, seconds or Fraction(0)


_ORDER = {"admitted": 0, "unverified": 1, "refused": 2}


def weight(found: Screened) -> tuple[int, bool, Fraction, int]:
    """What makes a pair of workers the worst of a pool: its verdict, no price, its time, the least room."""
    seconds = seconds_of(found.handoff)
    unpriced = found.handoff is not None and seconds is None
    return _ORDER[found.verdict], unpriced, seconds or Fraction(0), -(found.slack_bytes or 0)


class _Workers:
    """Workers of one phase that swaps do not turn into each other. `complete`: all of them are there."""

    def __init__(self, classes: FleetClasses, able: Sequence[Sequence[bool]], symmetry: Symmetry) -> None:
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
        for device, able in enumerate(self.able[len(chosen)]):
            more = (*chosen, device)
            if not able or device in chosen or not self._is_joined(more):
                continue
            self.tried += 1
            kept.setdefault(self.symmetry.tuple_class(more), more)
        return self.tried <= MOST_TRIED and all(self._extend(more) for more in kept.values())

    def _is_joined(self, devices: Worker) -> bool:
        held = (self.domains.get(self.names[device], frozenset()) for device in devices)
        return len(devices) == 1 or bool(frozenset.intersection(*held))
