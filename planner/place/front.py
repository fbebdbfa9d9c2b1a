"""What pools of one size are weighed by: their figures side by side, those that no other pool beats, and the bounds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from planner.place.alike import Pack
from planner.place.candidate import Objective, seconds_of
from planner.place.case import Measured, late
from planner.place.constraints import Constraints, Neighbourhood
from planner.place.regions import Worker

Value = tuple[bool, Fraction]
"""Least is best; True goes before the number where there is none, and is worse than any."""
Vector = tuple[int, Value, Value, Value, Value]
"""Broken preferences, handoff, TTFT, throughput with its sign turned, and the cost of an hour."""
NOTHING: Value = (False, Fraction(0))
UNPRICED: Value = (True, Fraction(0))


def vector_of(broken: int, found: Measured, cost: Value, *, timed: bool) -> Vector:
    """The vector of an admitted pool; times that are the same for all pools of the size are left at nothing."""
    handoff = NOTHING if found.handoff is None else late(seconds_of(found.handoff))
    if not timed:
        return broken, handoff, NOTHING, NOTHING, cost
    ttft = NOTHING if found.ttft is None else late(seconds_of(found.ttft))
    rate = UNPRICED if found.throughput is None else (False, -found.throughput)
    return broken, handoff, ttft, rate, cost


@dataclass(slots=True)
class Front:
    """Pools that no other one beats; of equal ones the first that came.

    `only`: preferences and the figure of one objective alone are weighed.
    """

    floor: Vector
    only: Objective | None = None
    members: list[tuple[Vector, Pack, Measured]] = field(default_factory=list)

    def offer(self, vector: Vector, pool: Pack, found: Measured) -> None:
        """Takes a pool in, unless one that is here is as good; what it beats goes."""
        if self.is_beaten(vector):
            return
        self.members = [each for each in self.members if not self.beats(vector, each[0])]
        self.members.append((vector, pool, found))

    def is_beaten(self, vector: Vector) -> bool:
        """Whether a pool that is here is at least as good in everything."""
        return any(self.beats(each[0], vector) for each in self.members)

    def beats(self, one: Vector, other: Vector) -> bool:
        """At least as good in everything that is weighed."""
        if self.only is not None:
            return reaches(self.only, one, other)
        return (
            one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2] and one[3] <= other[3]
            and one[4] <= other[4]
        )  # fmt: skip

    @property
    def is_settled(self) -> bool:
        """Whether a pool reaches every bound: no other one can be better in anything."""
        return self.is_beaten(self.floor)


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is required and preferred of all devices of a pool together, workers taken as wholes."""

    constraints: Constraints
    near: Neighbourhood
    names: Sequence[str]

    @property
    def is_free(self) -> bool:
        """Whether nothing is."""
        return not (self.constraints.required or self.constraints.preferred or self.constraints.avoided)

    def keeps(self, rule: str, workers: Sequence[Worker]) -> bool:
        """Whether a pool, or the part of one, keeps to a rule; a part that does not can only grow worse."""
        named = [[self.names[device] for device in worker] for worker in workers]
        if rule == "same-domain":
            held = [self.near.domains.get(name, frozenset()) for worker in named for name in worker]
            return bool(frozenset.intersection(*held))
        homes = [{self.near.node[name] for name in worker} for worker in named]
        together = {home for each in homes for home in each}
        return len(together) == (1 if rule == "same-node" else sum(map(len, homes)))

    def allows(self, workers: Sequence[Worker]) -> bool:
        """Whether everything required is kept."""
        return all(self.keeps(rule, workers) for rule in self.constraints.required)

    def broken(self, workers: Sequence[Worker]) -> tuple[str, ...]:
        """The preferences that are broken, in words."""
        if not (self.constraints.preferred or self.constraints.avoided):
            return ()
        told = [rule for rule in self.constraints.preferred if not self.keeps(rule, workers)]
        names = (self.names[device] for worker in workers for device in worker)
        return (*told, *(f"avoid {name}" for name in names if name in self.constraints.avoided))

    def least_broken(self, able: Iterable[int], devices: int, workers: int) -> int:
        """Fewer preferences than this no pool of so many of these devices breaks."""
        names = [self.names[device] for device in able]
        spared = sum(name not in self.constraints.avoided for name in names)
        nodes: dict[str, int] = {}
        domains: dict[str, int] = {}
        for name in names:
            nodes[self.near.node[name]] = nodes.get(self.near.node[name], 0) + 1
            for domain in self.near.domains.get(name, ()):
                domains[domain] = domains.get(domain, 0) + 1
        hopeless = {
            "same-node": max(nodes.values(), default=0) < devices, "spread": len(nodes) < workers,
            "same-domain": max(domains.values(), default=0) < devices,
        }  # fmt: skip
        return max(0, devices - spared) + sum(hopeless[rule] for rule in self.constraints.preferred)


def bound_under(objective: Objective, floor: Vector) -> Fraction | None:
    """The floor of an objective: seconds, or tokens a second and device; for other objectives that of the handoff.

    None where nothing can be said, or nothing is priced.
    """
    missing, value = _under(objective, floor)[-1]
    if missing:
        return None
    return -value if objective == "throughput" else value


def cost_under(objective: Objective, floor: Vector, than: Vector) -> Fraction | None:
    """The floor of the cost of an hour, where it is the objective and may be less than that of a pool."""
    if objective != "cost" or floor[4] >= than[4]:
        return None
    return floor[4][1]


def reaches(objective: Objective, vector: Vector, floor: Vector) -> bool:
    """Whether nothing can be better under the objective, preferences before it."""
    return vector[0] <= floor[0] and _under(objective, vector) <= _under(objective, floor)


def key_under(objective: Objective, vector: Vector) -> tuple[object, ...]:
    """Least is best: broken preferences, the objective, the handoff."""
    return vector[0], *_under(objective, vector), vector[1]


def _under(objective: Objective, vector: Vector) -> tuple[Value, ...]:
    """What decides: of equal costs, and of sizes with as many devices, the handoff."""
    _, handoff, ttft, rate, cost = vector
    return {"ttft": (ttft,), "throughput": (rate,), "cost": (cost, handoff)}.get(objective, (handoff,))
