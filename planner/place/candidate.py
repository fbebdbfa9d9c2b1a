"""A candidate with what it is judged by, the order of candidates under an objective, and the Pareto set."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from fleet.machine import Fleet
from planner.admit import Admission, Verdict
from planner.placement_time import PlacementTime, placement_time
from planner.times import Time

Objective = Literal["handoff", "ttft", "throughput", "devices", "cost"]
OBJECTIVES: dict[Objective, str] = {
    "handoff": "least time of the handoff",
    "ttft": "least time to the first token",
    "throughput": "most generated tokens a second and GPU",
    "devices": "fewest devices",
    "cost": "least cost an hour",
}
Worker = tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What a candidate is judged by; None = unpriced, or nothing of the kind. Only admitted candidates have times.

    `throughput` is generated tokens a second and device, an upper bound: nothing waits for anything. `cost` an hour.
    """

    devices: int
    handoff: Time | None = None
    ttft: Time | None = None
    tpot: Time | None = None
    throughput: Fraction | None = None
    cost: Fraction | None = None
    slack_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """Workers of both phases on named devices. `alike` placements, this one counted, cannot be told apart from it.

    `codes` are those of the reasons against it; `broken` the preferences that it breaks. `batch`: sequences a worker.
    """

    prefill: tuple[Worker, ...]
    decode: tuple[Worker, ...]
    verdict: Verdict
    codes: tuple[str, ...]
    figures: Figures
    alike: int | None = 1
    broken: tuple[str, ...] = ()
    staged: bool = False
    batch: int = 1
    bound: Fraction | None = None
    """What no pool of these sizes is better than: seconds (of the handoff where the objective is no time), or tokens a
    second and device; None where the figure itself is that."""
    cost_bound: Fraction | None = None
    """What no pool of these sizes costs less than, where the cost is the objective and another may cost less."""
    proven: bool = True
    """Whether no pool of these sizes and kinds of cards is better under the objective."""

    @property
    def devices(self) -> tuple[str, ...]:
        """All devices, prefill's first."""
        return tuple(name for worker in (*self.prefill, *self.decode) for name in worker)


def seconds_of(time: Time | None) -> Fraction | None:
    """Seconds, None where there is no time or no rate."""
    return None if time is None else time.seconds


_VALUES: dict[str, Callable[[Figures], Fraction | int | None]] = {
    "handoff": lambda figures: seconds_of(figures.handoff),
    "ttft": lambda figures: seconds_of(figures.ttft),
    "throughput": lambda figures: None if figures.throughput is None else -figures.throughput,
    "devices": lambda figures: figures.devices,
    "cost": lambda figures: figures.cost,
}
"""Least is best."""
_TIES: dict[str, tuple[str, ...]] = {
    "handoff": ("devices", "cost"), "ttft": ("handoff", "devices", "cost"),
    "throughput": ("handoff", "devices", "cost"), "devices": ("handoff", "cost"), "cost": ("handoff", "devices"),
}  # fmt: skip
"""What decides, in this order, where the objective leaves candidates equal; room in memory and the fleet come last."""


def value_of(candidate: Candidate, objective: str) -> Fraction | int | None:
    """The figure of an objective, least is best; None where unpriced."""
    return _VALUES[objective](candidate.figures)


def deciders(objective: Objective) -> tuple[str, ...]:
    """The objective, and what decides after it."""
    return (objective, *_TIES[objective])


def rank_key(candidate: Candidate, objective: Objective) -> tuple[object, ...]:
    """Preferences first (fewest broken), then the objective, unpriced last; then ties and the most room in memory."""
    values: list[object] = [len(candidate.broken)]
    for name in deciders(objective):
        value = value_of(candidate, name)
        # Of numbers the nearest floats never stand the other way round, and are compared much faster.
        values += [True, 0, 0] if value is None else [False, float(value), value]
    slack = candidate.figures.slack_bytes
    return (*values, slack is None, 0 if slack is None else -slack)


def ranked(candidates: Iterable[Candidate], objective: Objective) -> list[Candidate]:
    """Best first. Equal ones stay as they came: in the order of the fleet."""
    return sorted(candidates, key=lambda each: rank_key(each, objective))


_FRONT = ("handoff", "ttft", "throughput", "devices", "cost")


def pareto(candidates: Sequence[Candidate]) -> list[bool]:
    """Whether no other one is as good in every priced objective and better in one. Unpriced figures do not compete.

    An objective that is not priced for all of them is left out.
    """
    axes = [name for name in _FRONT if all(value_of(each, name) is not None for each in candidates)]
    points = [tuple(value_of(each, name) for name in axes) for each in candidates]
    distinct = sorted(set(points))
    front: list[tuple[object, ...]] = []
    for point in distinct:  # a point that dominates another comes before it in this order
        if not any(all(a <= b for a, b in zip(other, point, strict=True)) for other in front):  # type: ignore[operator]  # numbers
            front.append(point)
    kept = set(front)
    return [point in kept for point in points]


def cost_of(fleet: Fleet, devices: Iterable[str], prices: Mapping[str, Fraction]) -> Fraction | None:
    """The sum of the prices of an hour; None where a card has none."""
    total = Fraction(0)
    skus = {device.id: device.sku for device in fleet.devices} if prices else {}
    for name in devices:
        price = prices.get(skus.get(name) or "")
        if price is None:
            return None
        total += price
    return total


def times_of(answer: Admission) -> PlacementTime | None:
    """All times of an admitted placement; None for any other."""
    if answer.verdict != "admitted" or answer.prediction is None or answer.workload is None:
        return None
    ask = answer.ask
    return placement_time(ask.fleet, ask.model, answer.workload, ask.placement, answer.prediction.rows, ask.pricing)


def tokens_per_second(
    prefill: Time, decode: Time, workers: tuple[int, int], batch: int, decode_passes: int
) -> Fraction | None:
    """Generated tokens a second of P and D workers, each busy all the time with `batch` sequences: the slower side.

    A sequence gives decode passes + 1 tokens. None where a phase is unpriced or takes no time.
    """
    if not prefill.seconds or not decode.seconds:
        return None
    sequences = min(workers[0] * batch / prefill.seconds, workers[1] * batch / decode.seconds)
    return sequences * (decode_passes + 1)
