"""The one admission, taken apart so that a pair costs little: what a device decides alone, and what the way decides.

What a device decides alone is asked of `planner.admit.admit` itself, on a stand-in fleet whose devices have the same
figures, once for each kind of device and rank. The way is asked of `planner.route`, the same as in a plan, for the
handoff alone. Pairs that have a memory in common, or totals near 2^63, are admitted whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fleet.machine import Device, Fleet, Host, Link
from fleet.placement import PHASES, Placement
from fleet.workload import Workload
from planner.admit import Admission, Ask, Verdict, admit
from planner.machine import MachineGraph, NoWay, UnknownWay, Way, machine_graph
from planner.place.classes import FleetClasses, classes_of
from planner.placed import placement_graph
from planner.placement_time import Pricing, calls_of, parts_of_phase
from planner.predict import Prediction
from planner.request import MAX_BYTES, resolve
from planner.roofline import phase_time
from planner.route import Transfer, route_transfers, transfers
from planner.times import Time, handoff_time
from planner.worker_plan import worker_transfers
from planner.workers import rank_model, ranks_of

PREFILL, DECODE = PHASES
_JOINT = ("EXCEEDS_SHARED_MEMORY", "CARD_AND_SLICE", "NO_ROUTE", "PEER_ACCESS_UNKNOWN", "PINNED_POOL_TOO_SMALL")
"""What a device does not decide alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """A device as one rank of a phase: what stands against it, and what it leaves of its budget (None = unknown)."""

    errors: tuple[str, ...]
    unknowns: tuple[str, ...]
    slack_bytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Screened:
    """What the admission of a pair of workers comes to. `handoff`: None where nothing is handed over or not admitted.

    `slack_bytes` is the least of all devices'; `staged` says that the handoff goes over a host.
    """

    verdict: Verdict
    codes: tuple[str, ...]
    handoff: Time | None = None
    staged: bool = False
    slack_bytes: int | None = None


class Screen:
    """Every pair of one question. The placement of `ask` is not looked at; `tp` are the ranks of both workers.

    A worker is told as in a placement: ids joined by commas, in the order of their ranks.
    """

    def __init__(self, ask: Ask, tp: tuple[int, int] = (1, 1), classes: FleetClasses | None = None) -> None:
        self.ask = ask
        self.classes = classes or classes_of(ask.fleet)
        self.tp = tp
        self.machine = machine_graph(ask.fleet)
        self.devices = self.classes.devices_of(ask.fleet)  # a graph is kept without what is in use
        self._known: Any = _Once(self.machine)
        self._kinds: dict[tuple[object, ...], Site] = {}
        self._sites: dict[tuple[str, str, int], Site] = {}
        self._pairs: dict[tuple[str, str], Screened] = {}
        self._stands = {PREFILL: [f"p{i}" for i in range(tp[0])], DECODE: [f"d{i}" for i in range(tp[1])]}
        self._whole = bool(ask.model.unknown) or not self.devices
        if not self._whole:
            self.workload: Workload = resolve(ask.request, ask.model)
            listed = self._transfers()
            self._handoff = [each for each in listed if each.phase == "handoff"]
            self._own = {phase: [each for each in listed if each.phase == phase] for phase in PHASES}
            self._rows = {(each.src, each.dst) for each in listed}
            self._whole = self._most_bytes(listed) > MAX_BYTES // 4

    @property
    def handoff_size(self) -> tuple[int, int]:
        """Bytes and copies of one traversal from device to device, over all ranks; 0 where that is not known."""
        if self._whole:
            return 0, 0
        ends = {*self._stands[PREFILL]}, {*self._stands[DECODE]}
        across = [each for each in self._handoff if each.src in ends[0] and each.dst in ends[1]]
        return sum(each.bytes for each in across), sum(each.copies for each in across)

    @property
    def most_rank_bytes(self) -> int:
        """The most that one rank sends, or receives, in a handoff."""
        if self._whole:
            return 0
        ends: dict[str, int] = {}
        for each in self._handoff:
            for name in (each.src, each.dst):
                ends[name] = ends.get(name, 0) + each.bytes
        return max((ends.get(name, 0) for names in self._stands.values() for name in names), default=0)

    def rank_pairs(self) -> list[list[Transfer]]:
        """What two ranks exchange, for each pair of ranks that do; equal ones once."""
        held: dict[tuple[str, str], list[Transfer]] = {}
        for each in [] if self._whole else self._handoff:
            held.setdefault((each.src, each.dst), []).append(each)
        kept = {tuple((e.tensor, e.bytes, e.copies) for e in listed): listed for listed in held.values()}
        return list(kept.values())

    def time_of(self, listed: list[Transfer]) -> Fraction | None:
        """Seconds of transfers between named devices; None where they have no known way, or no rate."""
        routed = route_transfers(listed, self.ask.fleet, self._known, self.ask.model, self.workload, None)
        if routed.unknown or routed.no_way or routed.pool_short:
            return None
        return handoff_time(routed.rows, self.ask.pricing.rates, self.ask.pricing.staging).seconds

    def worker_time(self, phase: str, worker: str) -> Time:
        """Seconds of a whole phase on a worker, rows to its hosts included: as in every plan that it is part of."""
        names, real = worker.split(","), {}
        for stand, device in zip(self._stands[phase], names, strict=True):
            real[stand], real[f"host:{stand}"] = device, self.devices[device].host
        listed = [replace(each, src=real[each.src], dst=real[each.dst]) for each in self._own[phase]]
        routed = route_transfers(listed, self.ask.fleet, self._known, self.ask.model, self.workload, None)
        other = ",".join(self._stands[DECODE if phase == PREFILL else PREFILL])
        placed = self.placement(worker, other) if phase == PREFILL else self.placement(other, worker)
        parts = parts_of_phase(self._known, self.ask.model, self.workload, placed, phase, routed.rows, self.ask.pricing)
        return parts.whole

    def least_times(self, phase: str) -> dict[str | None, Fraction | None]:
        """By SKU, below what no worker's phase is: what its fastest device takes for each rank, nothing exchanged or
        moved. None: unpriced.
        """
        stands = self._stands[phase]
        other = self._stands[DECODE if phase == PREFILL else PREFILL]
        sides = (stands, other) if phase == PREFILL else (other, stands)
        ranks = ranks_of(self.ask.model, self.placement(*(",".join(names) for names in sides)), phase)
        models = [self.ask.model if len(ranks) == 1 else rank_model(self.ask.model, rank.cut) for rank in ranks]
        calls, pricing = calls_of(self.workload, phase), self.ask.pricing
        kinds = {
            (device.kind, device.sku, device.compute, device.memory.bandwidth): device
            for device in self.devices.values()
        }
        of: dict[str | None, list[Device]] = {}
        for device in kinds.values():
            of.setdefault(device.sku, []).append(device)
        least: dict[str | None, Fraction | None] = {}
        for sku, devices in of.items():
            longest: Fraction | None = Fraction(0)
            for held in models:
                found = (
                    phase_time(one, held, self.workload, calls, rates=pricing.rates, given=pricing.given).seconds
                    for one in devices
                )
                time = min((seconds for seconds in found if seconds is not None), default=None)
                longest = None if longest is None or time is None else max(longest, time)
            least[sku] = longest
        return least

    def placement(self, prefill: str, decode: str) -> Placement:
        """The placement that a plan of these workers has."""
        if self.tp == (1, 1):
            return Placement(prefill=prefill, decode=decode)
        return Placement(prefill=prefill, decode=decode, tp=self.tp)

    def admission(self, prefill: str, decode: str) -> Admission:
        """The admission itself."""
        return admit(replace(self.ask, placement=self.placement(prefill, decode)))

    def pair(self, prefill: str, decode: str) -> Screened:
        """The verdict, codes and time that `admit` has for two workers without a device in common."""
        key = (prefill, decode)
        if key not in self._pairs:
            self._pairs[key] = self._screened(prefill.split(","), decode.split(","), key)
        return self._pairs[key]

    def site(self, device: str, phase: str, rank: int = 0) -> Site:
        """What a device decides as a rank of a phase."""
        key = (device, phase, rank)
        if key not in self._sites:
            found = self.devices[device]
            kind = self._kind(found, phase, rank)
            lost = self._lost_rows(found, self._stands[phase][rank])
            self._sites[key] = replace(kind, errors=(*kind.errors, "NO_ROUTE")) if lost else kind
        return self._sites[key]

    def _screened(self, prefill: list[str], decode: list[str], key: tuple[str, str]) -> Screened:
        if self._whole or self._have_memory_in_common((*prefill, *decode)):
            return told(self.admission(*key))
        sites = [self.site(device, PREFILL, rank) for rank, device in enumerate(prefill)]
        sites += [self.site(device, DECODE, rank) for rank, device in enumerate(decode)]
        errors = [code for site in sites for code in site.errors]
        unknowns = [code for site in sites for code in site.unknowns]
        found = self._route(prefill, decode)
        if found.routed.unknown:
            unknowns.append("PEER_ACCESS_UNKNOWN")
        errors += ["PINNED_POOL_TOO_SMALL"] * bool(found.routed.pool_short)
        errors += ["NO_ROUTE"] * bool(found.routed.no_way)
        verdict: Verdict = "refused" if errors else "unverified" if unknowns else "admitted"
        codes = tuple(sorted({*errors, *unknowns}))
        slack = least(site.slack_bytes for site in sites)
        return _of(verdict, codes, found, slack, self.ask.pricing)

    def _have_memory_in_common(self, names: Iterable[str]) -> bool:
        placed = [self.devices[name] for name in names]
        physical = [d.memory.physical for d in placed if d.memory.physical is not None]
        ids = {device.id for device in placed}
        return len(set(physical)) < len(physical) or any(device.parent in ids for device in placed)

    def _route(self, prefill: list[str], decode: list[str]) -> Prediction:
        """The handoff's rows as a plan has them, in a prediction without anything else."""
        real: dict[str, str] = {}
        for stand, device in zip((*self._stands[PREFILL], *self._stands[DECODE]), (*prefill, *decode), strict=True):
            real[stand], real[f"host:{stand}"] = device, self.devices[device].host
        listed = [replace(each, src=real[each.src], dst=real[each.dst]) for each in self._handoff]
        routed = route_transfers(listed, self.ask.fleet, self._known, self.ask.model, self.workload, None)
        passes = (self.workload.prefill_passes, self.workload.decode_passes)
        return Prediction(routed=routed, arenas=(), footprints=(), edges=(), dispatches=None, passes=passes)

    def _stand_ins(self, like: Device) -> Fleet:
        """Devices like one, each on a host of its own, everything linked with everything: only memory can be short."""
        names = (*self._stands[PREFILL], *self._stands[DECODE])
        devices = tuple(
            replace(like, id=name, host=f"host:{name}", parent=None, memories=_apart(like, name)) for name in names
        )
        ends = [pair for name in names for pair in ((f"host:{name}", name), (name, f"host:{name}"))]
        links = [Link(src=a, dst=b, kind="pcie") for a, b in ends]
        links += [
            Link(src=a, dst=b, kind="pcie", peer_access="direct")
            for a, b in itertools.product(self._stands[PREFILL], self._stands[DECODE])
        ]
        return replace(
            self.ask.fleet, devices=devices, hosts=tuple(Host(id=f"host:{name}") for name in names),
            links=tuple(links), switches=(), nics=(), domains=(), digest="",
        )  # fmt: skip

    def _stand_placement(self) -> Placement:
        return self.placement(",".join(self._stands[PREFILL]), ",".join(self._stands[DECODE]))

    def _kind(self, device: Device, phase: str, rank: int) -> Site:
        kind = _kind_of(device)
        if (*kind, phase, rank) not in self._kinds:
            self._stand_in_answer(device)
        return self._kinds[*kind, phase, rank]

    def _stand_in_answer(self, like: Device) -> Admission:
        """The admission of stand-ins of one kind of device; what it says of each is kept."""
        answer = admit(replace(self.ask, fleet=self._stand_ins(like), placement=self._stand_placement()))
        kind = _kind_of(like)
        for of, names in self._stands.items():
            for number, name in enumerate(names):
                self._kinds[*kind, of, number] = _site(answer, name)
        return answer

    def _transfers(self) -> list[Transfer]:
        """All rows of the question, with stand-ins in place of devices."""
        fleet, placement = self._stand_ins(next(iter(self.devices.values()))), self._stand_placement()
        if placement.is_split:
            return worker_transfers(fleet, self.ask.model, self.workload, placement)
        return transfers(placement_graph(fleet, self.ask.model, self.workload, placement))

    def _lost_rows(self, device: Device, stand: str) -> bool:
        """Whether a row between the device and its host has no way."""
        up, down = (f"host:{stand}", stand), (stand, f"host:{stand}")
        ends = [(device.host, device.id)] * (up in self._rows) + [(device.id, device.host)] * (down in self._rows)
        return any(not self._is_linked(src, dst) for src, dst in ends)

    def _is_linked(self, src: str, dst: str) -> bool:
        return bool(self.machine.links(src, dst)) or not isinstance(self.machine.way(src, dst, 1, 1), NoWay)

    def _most_bytes(self, listed: list[Transfer]) -> int:
        """More than any total or edge: all rows, and a device of each rank."""
        answer = self._stand_in_answer(next(iter(self.devices.values())))
        held = 0 if answer.prediction is None else sum(f.total_bytes for f in answer.prediction.footprints)
        return held + self.classes.most_beside * sum(self.tp) + sum(each.bytes for each in listed)


def told(answer: Admission) -> Screened:
    """The same figures of a whole admission."""
    codes = tuple(sorted({r.code for r in answer.reasons if r.severity != "warning"}))
    if answer.prediction is None:
        return Screened(verdict=answer.verdict, codes=codes)
    slack = least(
        None if (budget := answer.budgets[f.arena].budget_bytes) is None else budget - f.total_bytes
        for f in answer.prediction.footprints
        if f.device is not None
    )
    return _of(answer.verdict, codes, answer.prediction, slack, answer.ask.pricing)


def _of(
    verdict: Verdict, codes: tuple[str, ...], found: Prediction, slack: int | None, pricing: Pricing
) -> Screened:  # fmt: skip
    """No time is told of what is not admitted."""
    if verdict != "admitted":
        return Screened(verdict=verdict, codes=codes, slack_bytes=slack)
    rows = [row for row in found.rows if row.phase == "handoff"]
    time = handoff_time(rows, pricing.rates, pricing.staging) if rows else None
    return Screened(verdict=verdict, codes=codes, handoff=time, staged=found.routed.staged, slack_bytes=slack)


def least(slacks: Iterable[int | None]) -> int | None:
    """The least; None where one is unknown, or there is none."""
    held = list(slacks)
    known = [slack for slack in held if slack is not None]
    return min(known) if known and len(known) == len(held) else None


def _site(answer: Admission, name: str) -> Site:
    """What an admission of stand-ins says of one of them."""
    own = [r for r in answer.reasons if r.device in (name, None) and r.edge is None and r.code not in _JOINT]
    footprints = () if answer.prediction is None else answer.prediction.footprints
    total = next((f.total_bytes for f in footprints if f.arena == name), None)
    budget = answer.budgets[name].budget_bytes if name in answer.budgets else None
    return Site(
        errors=tuple(r.code for r in own if r.severity == "error"),
        unknowns=tuple(r.code for r in own if r.severity == "unknown"),
        slack_bytes=None if budget is None or total is None else budget - total,
    )


def _kind_of(device: Device) -> tuple[object, ...]:
    """All that its memory's verdict may rest on."""
    held = (device.memory.capacity.value, device.memory.granule.value, device.runtime.value, device.in_use)
    return (device.kind, device.sku, *held)


def _apart(device: Device, name: str) -> tuple[Any, ...]:
    """The memories, none of them shared with another device."""
    return tuple(
        replace(memory, physical=None if memory.physical is None else f"{memory.physical}.{name}")
        for memory in device.memories
    )


class _Once:
    """A machine graph that looks for each way once: k and v are alike as a rule."""

    def __init__(self, machine: MachineGraph) -> None:
        self.machine = machine
        self.devices = machine.devices
        self._found: dict[tuple[Any, ...], Way | NoWay | UnknownWay] = {}

    def way(self, *ends: Any, **wishes: Any) -> Way | NoWay | UnknownWay:
        key = (*ends, *sorted(wishes.items()))
        if key not in self._found:
            self._found[key] = self.machine.way(*ends, **wishes)
        return self._found[key]
