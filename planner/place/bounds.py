"""Below what the handoff of a pool cannot be, wherever it lies. Used to prove a pool best, never to choose one."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from planner.place.candidate import seconds_of
from planner.place.classes import FleetClasses, PairClass
from planner.place.regions import Sizes
from planner.place.screen import Screen
from planner.roofline import chosen
from planner.route import Transfer

MOST_CLASSES = 4_000
"""Classes of pairs that a bound is made of; of a fleet with more, only the rates of links are looked at."""

Kinds = tuple[str | None, str | None]
Step = tuple[Fraction, int, int, int]
"""A time; the most partners that a device has within it, as prefill and as decode; devices that such pairs join."""


class Bounds:
    """The bounds of one screen.

    Single devices: at some time a device of each phase has enough partners, and pairs join as many devices as a pool
    has (each worker of one phase hands over to each of the other, so all of them are joined). Workers of several
    ranks: what two ranks exchange joins two devices, the domain of a worker joins its ranks, and together they must
    join as many devices as the pool has; all that leaves or enters a rank goes over one of its links at a time.
    """

    def __init__(self, screen: Screen, classes: FleetClasses) -> None:
        self.screen = screen
        self.classes = classes
        listing = classes.pairs(None)
        self._few = listing.complete and len(listing.pairs) <= MOST_CLASSES
        self._steps: list[Step] | None = None
        self._rates: Fraction | None = None
        self._ranks: list[list[tuple[Fraction, int]]] | None = None
        self._sku = [device.sku for device in classes.fleet.devices]
        self._least: list[dict[Kinds, Fraction]] = []
        self._floors: dict[Sizes | int, Fraction | None] = {}

    def floor(self, sizes: Sizes) -> Fraction | None:
        """Seconds that no priced pool of these sizes goes below; None where none can be priced."""
        # Of workers of several ranks all that counts is how many devices they have.
        key = sizes if sizes.ranks == (1, 1) else sizes.devices
        if key not in self._floors:
            self._floors[key] = self._floor(sizes)
        return self._floors[key]

    def between(self, kinds: Kinds) -> Fraction | None:
        """Seconds that no priced handoff from one kind of card to another goes below; None: there is none."""
        if not self._few:
            return Fraction(0)
        if self.screen.tp == (1, 1):
            self._steps = self._steps or self._of_devices()
        else:
            self._by_rank_pairs(0)
        times = [least.get(kinds) for least in self._least]
        return None if None in times else max((time for time in times if time is not None), default=Fraction(0))

    def _note(self, least: dict[Kinds, Fraction], seconds: Fraction, each: PairClass) -> None:
        """Keeps the least time of each two kinds of cards; rows come in the order of their times."""
        least.setdefault((self._sku[each.prefill], self._sku[each.decode]), seconds)

    def _floor(self, sizes: Sizes) -> Fraction | None:
        if sizes.ranks != (1, 1) or not self._few:
            if self._rates is None:
                self._rates = self._by_rates()
            return max(self._rates, self._by_rank_pairs(sizes.devices) if self._few else Fraction(0))
        if self._steps is None:
            self._steps = self._of_devices()
        for seconds, out, into, joined in self._steps:
            if out >= sizes.workers[1] and into >= sizes.workers[0] and joined >= sizes.devices:
                return seconds
        return None

    def _of_devices(self) -> list[Step]:
        symmetry = self.classes.symmetry
        alike: dict[int, int] = {}
        for like in symmetry.like:
            alike[like] = alike.get(like, 0) + 1
        rows = []
        for each in self.classes.pairs(None).pairs:
            found = self.screen.pair(symmetry.names[each.prefill], symmetry.names[each.decode])
            seconds = seconds_of(found.handoff)
            if found.verdict == "admitted" and (seconds is not None or found.handoff is None):
                rows.append((seconds or Fraction(0), each))
        rows.sort(key=lambda row: row[0])
        joined = _Joined(self.classes)
        out: dict[int, int] = {}
        into: dict[int, int] = {}
        steps: list[Step] = []
        self._least = [{}]
        for seconds, each in rows:
            self._note(self._least[0], seconds, each)
            _, prefill, decode = each.key
            out[prefill] = out.get(prefill, 0) + each.count // alike[prefill]
            into[decode] = into.get(decode, 0) + each.count // alike[decode]
            joined.join(each.key)
            if steps and steps[-1][0] == seconds:
                steps.pop()
            steps.append((seconds, max(out.values()), max(into.values()), joined.most))
        return steps

    def _by_rates(self) -> Fraction:
        """What one rank sends, or receives, over the fastest of all links."""
        rates = self.screen.ask.pricing.rates
        figures = (chosen(link.bandwidth, rates)[0] for link in self.screen.ask.fleet.links)
        fastest = max((figure.value for figure in figures if figure is not None), default=0)
        return Fraction(self.screen.most_rank_bytes, fastest) if fastest else Fraction(0)

    def _by_rank_pairs(self, devices: int) -> Fraction:
        """The longest of what any two ranks exchange, each at the least time that joins so many devices."""
        if self._ranks is None:
            listed = self.screen.rank_pairs()
            self._least = [{} for _ in listed]
            self._ranks = [self._steps_of(*each) for each in zip(listed, self._least, strict=True)]
        least = Fraction(0)
        for steps in self._ranks:
            enough = (seconds for seconds, joined in steps if joined >= devices)
            least = max(least, next(enough, steps[-1][0] if steps else Fraction(0)))
        return least

    def _steps_of(self, listed: list[Transfer], least: dict[Kinds, Fraction]) -> list[tuple[Fraction, int]]:
        """(time, devices joined by pairs that exchange this within it, and by domains)."""
        names = self.classes.symmetry.names
        rows = []
        for each in self.classes.pairs(None).pairs:
            src, dst = names[each.prefill], names[each.decode]
            seconds = self.screen.time_of([replace(one, src=src, dst=dst) for one in listed])
            if seconds is not None:
                rows.append((seconds, each))
        rows.sort(key=lambda row: row[0])
        joined = _Joined(self.classes)
        joined.join_domains()
        steps: list[tuple[Fraction, int]] = []
        for seconds, each in rows:
            self._note(least, seconds, each)
            joined.join(each.key)
            if steps and steps[-1][0] == seconds:
                steps.pop()
            steps.append((seconds, joined.most))
        return steps


class _Joined:
    """Groups of devices that pairs join, added class by class; a group may be told too large, never too small."""

    def __init__(self, classes: FleetClasses) -> None:
        self.symmetry, self.domains = classes.symmetry, classes.near.domains
        self.group = list(range(len(self.symmetry.names)))
        self.size = [1] * len(self.group)
        self.most = min(1, len(self.group))
        self.inside: dict[int, list[int]] = {}
        for device, chain in enumerate(self.symmetry.chains):
            for part in chain[:-1]:
                self.inside.setdefault(part, []).append(device)

    def join(self, key: tuple[int, int, int]) -> None:
        """Joins all devices of both likenesses in each part that is like the class's."""
        like, prefill, decode = key
        for part, devices in self.inside.items():
            if self.symmetry.parts[part].like == like:
                ends = [device for device in devices if self.symmetry.like[device] in (prefill, decode)]
                for device in ends[1:]:
                    self._unite(ends[0], device)

    def join_domains(self) -> None:
        """Joins the devices of each link domain: the ranks of a worker lie in one."""
        first: dict[str, int] = {}
        for device, name in enumerate(self.symmetry.names):
            for domain in sorted(self.domains.get(name, ())):
                self._unite(first.setdefault(domain, device), device)

    def _root(self, device: int) -> int:
        while self.group[device] != device:
            self.group[device] = self.group[self.group[device]]
            device = self.group[device]
        return device

    def _unite(self, one: int, other: int) -> None:
        one, other = self._root(one), self._root(other)
        if one != other:
            self.group[other] = one
            self.size[one] += self.size[other]
            self.most = max(self.most, self.size[one])
