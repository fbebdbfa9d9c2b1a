"""The best pools of workers: P of prefill and D of decode, each of so many ranks inside one link domain.

Any worker of prefill hands over to any of decode, so a pool is admitted when every pair of them is, and its handoff is
that of its worst pair. Pools are looked for in every part of the fleet, the smallest first; a pool that reaches the
lower bound of its sizes is proven best, of any other the bound is told.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from fleet.errors import DescriptionError, Fault
from fleet.placement import PHASES
from planner.admit import Admission
from planner.place.bounds import Bounds
from planner.place.candidate import Candidate, Figures, cost_of, ranked, seconds_of, times_of, tokens_per_second
from planner.place.classes import classes_of
from planner.place.constraints import COMMAND_LINE, contradictions
from planner.place.pairs import Answer, Question
from planner.place.regions import Sizes, Worker, cells_of, halves_of, packed, regions_of
from planner.place.screen import Screen, Screened, told
from planner.placement_time import PlacementTime
from planner.workers import degree_fault

MOST_POOLS = 100_000
"""Sizes that are tried, batches counted: more are a slip, not a search."""
Kinds = tuple[str | None, str | None]
Ends = tuple[str, str]
Routing = Literal["any", "nearest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolQuestion(Question):
    """Numbers of workers, ranks of a worker and sequences of a worker to try; `most_devices` None: the whole fleet.

    `routing`: any prefill worker hands over to any decode worker, or each decode worker is served by its nearest one.
    """

    prefill_workers: tuple[int, ...] = (1,)
    decode_workers: tuple[int, ...] = (1,)
    prefill_tp: tuple[int, ...] = (1,)
    decode_tp: tuple[int, ...] = (1,)
    batches: tuple[int, ...] = (1,)
    most_devices: int | None = None
    routing: Routing = "any"

    def sizes(self) -> Iterator[Sizes]:
        """All combinations of workers and ranks."""
        for ranks in itertools.product(self.prefill_tp, self.decode_tp):
            for workers in itertools.product(self.prefill_workers, self.decode_workers):
                yield Sizes(workers=workers, ranks=ranks)

    @property
    def combinations(self) -> int:
        """How many, batches counted."""
        parts = (self.prefill_workers, self.decode_workers, self.prefill_tp, self.decode_tp, self.batches)
        total = 1
        for part in parts:
            total *= len(part)
        return total


@dataclass(slots=True)
class _Case:
    """One batch and one pair of degrees: its screen, its bounds, and what was found of pairs of workers."""

    screen: Screen
    bounds: Bounds
    batch: int
    usable: list[tuple[bool, bool]]
    """By device, whether it is allowed, and has room for any rank, of each phase."""
    pairs: dict[tuple[Worker, Worker], tuple[Ends, Screened]]
    kept: dict[object, tuple[Ends, Screened]]
    able: dict[object, tuple[tuple[bool, bool], ...]]
    times: dict[Ends, tuple[PlacementTime, int] | None]


class PoolSearch:
    """The pools of one question. Raises DescriptionError where it contradicts itself or the model."""

    def __init__(self, question: PoolQuestion) -> None:
        self.question = question
        self._check()
        self.classes = classes_of(question.ask.fleet)
        self.names = self.classes.symmetry.names
        constraints = question.constraints
        self.able = [
            (constraints.allows(name, "prefill"), constraints.allows(name, "decode")) for name in self.names
        ]  # fmt: skip
        self.sku = [device.sku for device in question.ask.fleet.devices]
        self._packs: dict[object, tuple[list[Worker], list[Worker]] | None] = {}
        self._cuts: list[tuple[tuple[int, ...], ...]] = []
        self._cases: dict[tuple[int, tuple[int, int]], _Case] = {}

    def _check(self) -> None:
        question, faults = self.question, []
        faults += [("", words) for words in contradictions(question.constraints, of_pair=False)]
        if question.combinations > MOST_POOLS:
            faults.append(("", f"{question.combinations:,} sizes of pools; name fewer than {MOST_POOLS:,}"))
        for flag, degrees in (("--prefill-tp", question.prefill_tp), ("--decode-tp", question.decode_tp)):
            told_words = (degree_fault(question.ask.model, tp) for tp in degrees if not question.ask.model.unknown)
            faults += [(flag, words) for words in told_words if words]
        if faults:
            raise DescriptionError([Fault(source=COMMAND_LINE, field=flag, message=words) for flag, words in faults])

    def run(self) -> Answer:
        """The answer: one candidate for each size that fits on the fleet, the best of its kind.

        Avoided devices are in it only where no pool of that size and kind of cards is admitted without them.
        """
        answer, spared = self._run(), self._sparing()
        if not spared:
            return answer
        kinds = {self._kind(each) for each in spared}
        rest = [each for each in answer.admitted if self._kind(each) not in kinds]
        sizes = {self._kind(each)[:-1] for each in spared}
        others = tuple(each for each in answer.others if self._kind(each)[:-1] not in sizes)
        admitted = ranked([*spared, *rest], self.question.objective)
        exact = all(each.bound is None for each in admitted)
        return replace(answer, admitted=tuple(admitted), others=others, exact=exact, bound=admitted[0].bound)

    def _sparing(self) -> tuple[Candidate, ...]:
        """The admitted pools of the same question without the avoided devices."""
        constraints = self.question.constraints
        if not constraints.avoided:
            return ()
        narrow = replace(constraints, avoided=frozenset(), excluded=constraints.excluded | constraints.avoided)
        try:
            return PoolSearch(replace(self.question, constraints=narrow)).run().admitted
        except DescriptionError:  # too few devices are left
            return ()

    def _kind(self, pool: Candidate) -> tuple[object, ...]:
        """Batch, sizes, and last the kinds of cards."""
        cards = tuple(self.sku[self.classes.symmetry.number[side[0][0]]] for side in (pool.prefill, pool.decode))
        sizes = (len(pool.prefill), len(pool.decode), len(pool.prefill[0]), len(pool.decode[0]))
        return (pool.batch, *sizes, cards)

    def _run(self) -> Answer:
        """The same, avoided devices taken like any."""
        question = self.question
        count = sum(up or down for up, down in self.able)
        most = min(count, question.most_devices or count)
        listed = [sizes for sizes in question.sizes() if sizes.devices <= most]
        if not listed:
            least = min(sizes.devices for sizes in question.sizes())
            limit = f"the fleet has {most}"
            if most < len(self.names):
                words = ", ".join(question.constraints.words) if count == most else "--max-devices"
                limit = f"{words} leaves {most}"
            words = f"the smallest pool of these takes {least} devices, and {limit}; ask for fewer workers or ranks"
            raise DescriptionError.at(COMMAND_LINE, "", words)
        regions = [self._kept_to(region) for region in regions_of(self.classes, lambda device: self._allowed(device))]
        regions = [region for region in regions if region]
        self._cuts = []
        if question.routing == "nearest":
            self._cuts = halves_of(self.classes, lambda device: self._allowed(device))
        found: list[Candidate] = []
        for batch in question.batches:
            for ranks, group in itertools.groupby(listed, key=lambda sizes: sizes.ranks):
                case = self._case(batch, ranks)
                found += [each for sizes in group for each in self._of_sizes(case, sizes, regions)]
        if not found:
            raise self._nothing_left()
        admitted = ranked((each for each in found if each.verdict == "admitted"), question.objective)
        others = tuple(each for each in found if each.verdict != "admitted")
        exact = bool(admitted) and all(each.bound is None for each in admitted)
        return Answer(
            question=question, admitted=tuple(admitted), others=others, considered=len(listed) * len(question.batches),
            possible=question.combinations, exact=exact, bound=admitted[0].bound if admitted else None,
        )  # fmt: skip

    def _nothing_left(self) -> DescriptionError:
        """Which constraints leave no pool, whatever the memory; without any, what a pool is made of does."""
        faults = []
        for word in self.question.constraints.words:
            narrow = replace(self.question, constraints=self.question.constraints.without(word))
            try:
                PoolSearch(narrow)._run()
                told_words = "without it there are some"
            except DescriptionError:
                told_words = "without it there is none, too"
            faults.append(Fault(source=COMMAND_LINE, field=word, message=f"excludes every pool; {told_words}"))
        if faults:
            return DescriptionError(faults)
        words = (
            "no pool of these sizes has every worker in one link domain and of one kind of card; ask for fewer ranks,"
            " or state domains or peer_access: direct in the fleet file"
        )
        return DescriptionError.at(COMMAND_LINE, "", words)

    def _allowed(self, device: int) -> tuple[bool, bool] | None:
        return self.able[device] if any(self.able[device]) else None

    def _kept_to(self, region: tuple[int, ...]) -> tuple[int, ...]:
        """The region if it keeps to what is required of all devices together, else nothing."""
        names = [self.names[device] for device in region]
        rules = [rule for rule in self.question.constraints.required if rule != "spread"]
        return region if all(self.classes.near.keeps(rule, names) for rule in rules) else ()

    def _case(self, batch: int, ranks: tuple[int, int]) -> _Case:
        if (batch, ranks) not in self._cases:
            self._cases[batch, ranks] = self._new_case(batch, ranks)
        return self._cases[batch, ranks]

    def _new_case(self, batch: int, ranks: tuple[int, int]) -> _Case:
        ask = replace(self.question.ask, request=replace(self.question.ask.request, batch=batch))
        screen = Screen(ask, tp=ranks, classes=self.classes)
        usable = [
            (allowed[0] and self._has_room(screen, name, 0), allowed[1] and self._has_room(screen, name, 1))
            for name, allowed in zip(self.names, self.able, strict=True)
        ]
        return _Case(screen, Bounds(screen, self.classes), batch, usable, {}, {}, {}, {})

    def _has_room(self, screen: Screen, name: str, phase: int) -> bool:
        """Whether nothing that a device decides alone stands against it, whichever rank it is."""
        if self.question.ask.model.unknown:
            return True
        sites = (screen.site(name, PHASES[phase], rank) for rank in range(screen.tp[phase]))
        return not any(site.errors or site.unknowns for site in sites)

    def _of_sizes(self, case: _Case, sizes: Sizes, regions: list[tuple[int, ...]]) -> Iterable[Candidate]:
        """The best pool of each pair of kinds of cards: admitted ones, or else one that says why not."""
        kinds = sorted({self.sku[device] for region in regions for device in region}, key=str)
        failed: list[Candidate] = []
        found: list[Candidate] = []
        for pair in itertools.product(kinds, kinds):
            best = self._best(case, sizes, regions, pair)
            (found if best is not None and best.verdict == "admitted" else failed).extend([best] if best else [])
        return found or failed[:1]

    def _best(self, case: _Case, sizes: Sizes, regions: list[tuple[int, ...]], kinds: Kinds) -> Candidate | None:
        best: Candidate | None = None
        failed: Candidate | None = None
        nearest = self.question.routing == "nearest"
        floor = case.bounds.floor(replace(sizes, workers=(1, 1)) if nearest else sizes)
        packs = (self._packed(case, sizes, region, kinds) for region in regions)
        for pack in itertools.chain(self._cut_packs(case, sizes, kinds), packs):
            if pack is None:
                continue
            pool = self._pool(case, pack)
            if pool.verdict != "admitted":
                failed = failed or pool
            elif best is None or self._is_better(pool, best):
                best = pool
            if best is not None and not best.broken and seconds_of(best.figures.handoff) == floor:
                break
        if best is None:
            return failed or self._short(case, sizes, regions, kinds)
        seconds = seconds_of(best.figures.handoff)
        proven = seconds is None or floor is None or seconds == floor
        return self._timed(case, replace(best, bound=None if proven and not best.broken else floor))

    def _is_better(self, pool: Candidate, best: Candidate) -> bool:
        """The worst handoff decides: other objectives see no difference between pools of these sizes and cards."""

        def key(each: Candidate) -> tuple[int, bool, Fraction]:
            seconds = seconds_of(each.figures.handoff)
            return len(each.broken), seconds is None, seconds or Fraction(0)

        return key(pool) < key(best)

    def _cut_packs(self, case: _Case, sizes: Sizes, kinds: Kinds) -> Iterator[tuple[list[Worker], list[Worker]] | None]:
        """Packs in which every decode worker lies in one piece of a cut with a prefill worker; evenly first."""
        kept = (tuple(piece for piece in cut if self._kept_to(piece)) for cut in self._cuts)
        for cut in kept:
            region = tuple(device for piece in cut for device in piece)
            if len(region) < sizes.devices:
                continue
            usable = dict(zip(region, self._usable(case, region, kinds, room=True), strict=True))
            by = "domain" if max(sizes.ranks) > 1 else "whole"
            cells = [cell for piece in cut for cell in cells_of(self.classes, piece, usable.__getitem__, by=by)]
            even = -(-sizes.workers[1] // sizes.workers[0])
            yield packed(cells, sizes, served=even) or packed(cells, sizes, served=sizes.workers[1])

    def _short(
        self, case: _Case, sizes: Sizes, regions: list[tuple[int, ...]], kinds: Kinds
    ) -> Candidate | None:  # fmt: skip
        """Where no devices with room are enough: the first pool of allowed ones, which says what is short."""
        packs = (self._packed(case, sizes, region, kinds, room=False) for region in regions)
        pack = next((pack for pack in packs if pack is not None), None)
        return None if pack is None else self._pool(case, pack)

    def _packed(
        self, case: _Case, sizes: Sizes, region: tuple[int, ...], kinds: Kinds, *, room: bool = True
    ) -> tuple[list[Worker], list[Worker]] | None:
        if len(region) < sizes.devices:
            return None
        usable = self._usable(case, region, kinds, room=room)
        key = (sizes, region, usable)
        if key not in self._packs:
            spread = "spread" in self.question.constraints.required
            by = "node" if spread else "domain" if max(sizes.ranks) > 1 else "whole"
            of = dict(zip(region, usable, strict=True))
            cells = cells_of(self.classes, region, lambda device: of[device], by=by)
            self._packs[key] = packed(cells, sizes, one_each=spread)
        return self._packs[key]

    def _usable(
        self, case: _Case, region: tuple[int, ...], kinds: Kinds, *, room: bool
    ) -> tuple[tuple[bool, bool], ...]:  # fmt: skip
        """Which phases each device may serve: a card of that kind, allowed there, with `room` for any rank."""
        asked = (region, kinds, room)
        if asked not in case.able:
            able = case.usable if room else self.able
            case.able[asked] = tuple(
                (able[d][0] and self.sku[d] == kinds[0], able[d][1] and self.sku[d] == kinds[1]) for d in region
            )
        return case.able[asked]

    def _pool(self, case: _Case, pack: tuple[list[Worker], list[Worker]]) -> Candidate:
        """The candidate of a pack: the verdict of its worst pair of workers, and the longest handoff."""
        _, worst = self._worst_of(case, *pack)
        prefills, decodes = (tuple(tuple(self.names[d] for d in worker) for worker in side) for side in pack)
        names = [name for worker in (*prefills, *decodes) for name in worker]
        constraints = self.question.constraints
        broken = self.classes.near.broken(constraints, names) if constraints.preferred or constraints.avoided else ()
        prices = self.question.prices
        figures = Figures(
            devices=len(names), handoff=worst.handoff, slack_bytes=worst.slack_bytes,
            cost=cost_of(self.question.ask.fleet, names, prices) if prices else None,
        )  # fmt: skip
        return Candidate(
            prefill=prefills, decode=decodes, verdict=worst.verdict, codes=worst.codes, figures=figures, alike=None,
            broken=broken, staged=worst.staged, batch=case.batch,
        )  # fmt: skip

    def _pair(self, case: _Case, prefill: Worker, decode: Worker) -> tuple[Ends, Screened]:
        """The screen of two workers, once for all that swaps turn into them."""
        known = case.pairs.get((prefill, decode))
        if known is None:
            key = self.classes.symmetry.tuple_class((*prefill, *decode))
            if key not in case.kept:
                ends = (",".join(self.names[d] for d in prefill), ",".join(self.names[d] for d in decode))
                case.kept[key] = (ends, case.screen.pair(*ends))
            known = case.pairs[prefill, decode] = case.kept[key]
        return known

    def shown(self, pool: Candidate) -> Candidate:
        """A pool with its times, and its worst pair of workers admitted once more."""
        return self._with_times(self._case_of(pool), pool) if pool.verdict == "admitted" else pool

    def admission(self, pool: Candidate) -> Admission:
        """The admission of the worst pair of workers of a pool."""
        case = self._case_of(pool)
        ends, _ = self._worst(case, pool)
        return case.screen.admission(*ends)

    def _case_of(self, pool: Candidate) -> _Case:
        return self._case(pool.batch, (len(pool.prefill[0]), len(pool.decode[0])))

    def _timed(self, case: _Case, pool: Candidate) -> Candidate:
        """The same with TTFT, TPOT and throughput of its worst pair of workers, where the objective asks for them."""
        return self._with_times(case, pool) if self.question.objective in ("ttft", "throughput") else pool

    def _worst(self, case: _Case, pool: Candidate) -> tuple[Ends, Screened]:
        number = self.classes.symmetry.number
        workers = [[tuple(number[name] for name in worker) for worker in side] for side in (pool.prefill, pool.decode)]
        return self._worst_of(case, *workers)

    def _worst_of(self, case: _Case, prefill: list[Worker], decode: list[Worker]) -> tuple[Ends, Screened]:
        """The pair of workers that counts: the worst of all, or of each decode worker with its nearest one."""
        nearest = self.question.routing == "nearest"
        kinds: dict[int, tuple[Ends, Screened]] = {}  # few, however many pairs there are
        for other in decode:
            known = {id(pair): pair for one in prefill for pair in (self._pair(case, one, other),)}
            if nearest:
                least = min(known.values(), key=lambda pair: _weight(pair[1]))
                known = {id(least): least}
            kinds |= known
        return max(kinds.values(), key=lambda pair: _weight(pair[1]))

    def _with_times(self, case: _Case, pool: Candidate) -> Candidate:
        """TTFT and TPOT of the pair of workers with the longest handoff; throughput of all of them together."""
        ends, found = self._worst(case, pool)
        if ends not in case.times:
            case.times[ends] = self._times(case, ends, found)
        held = case.times[ends]
        if held is None:
            return pool
        times, passes = held
        counts = (len(pool.prefill), len(pool.decode))
        rate = tokens_per_second(times.prefill, times.decode, counts, case.batch, passes)
        throughput = None if rate is None else rate / pool.figures.devices
        figures = replace(pool.figures, ttft=times.ttft, tpot=times.tpot, throughput=throughput)
        return replace(pool, figures=figures)

    def _times(self, case: _Case, ends: Ends, found: Screened) -> tuple[PlacementTime, int] | None:
        """All times of two workers, and decode passes of a sequence. A screen that was wrong never goes unnoticed."""
        answer = case.screen.admission(*ends)
        if told(answer) != found:
            raise RuntimeError(f"the screen and the admission of {ends} disagree")
        times = times_of(answer)
        return None if times is None or answer.workload is None else (times, answer.workload.decode_passes)


_ORDER = {"admitted": 0, "unverified": 1, "refused": 2}


def _weight(found: Screened) -> tuple[int, bool, Fraction, int]:
    """What makes a pair of workers the worst of a pool: its verdict, no price, its time, the least room."""
    seconds = seconds_of(found.handoff)
    unpriced = found.handoff is not None and seconds is None
    return _ORDER[found.verdict], unpriced, seconds or Fraction(0), -(found.slack_bytes or 0)
