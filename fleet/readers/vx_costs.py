"""What a Vx machine file means in numbers: dispatch ids, costs of edges in picoseconds, routes.

Sources of the rules: vx-lang/Vx src/arch.rs (costs, routes, ids) and src/hir/memory.rs (containment). Verdicts are in
`fleet.readers.vx_verdicts`. Times are exact integers without a latency term; None is Vx's null: not known, never 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fleet.identity import MAX_INDEX, fnv1a32, hashed_id
from fleet.readers.vx_machine import BUILT_IN_SPACES, U64, Rate, VxEdge, VxMachine, VxSpace
from fleet.units import PS_PER_SECOND
from fleet.yaml_source import printable

HOST_SPACE = "CPU_DRAM"
BUILT_IN_TOPOLOGIES = {
    "CPU": 0, "Current": 0, "AMX": 300, "ANE": 400,
    "CpuAvx512": 600, "CPU_AVX512": 600, "CpuNeon": 700, "CPU_Neon": 700,
}  # fmt: skip
"""Names that a declaration may not take, and their dispatch ids."""
INDEXED_TOPOLOGIES = {"NPU": 100, "AccCore": 200, "GPU": 500}

_PROBE = 2**30
_ATTO_PER_PICO = 10**6
_FIRST_SLICE, _SLICES = 2000, 1000


class Cost(NamedTuple):
    """A time: `value` picoseconds, or cycles where nothing on the way has a clock."""

    value: int
    unit: str


# ---- dispatch ids


def topology_dispatch_id(name: str) -> int:
    """The id by which Vx dispatches to `GPU[1]`, `NPU[0..72]`, `CPU` or a declared name.

    Raises ValueError for an index outside 0..99: GPU[100] would be 600, which is CpuAvx512.
    """
    if name in BUILT_IN_TOPOLOGIES:
        return BUILT_IN_TOPOLOGIES[name]
    base, bracket, inside = name.partition("[")
    if base not in INDEXED_TOPOLOGIES or (bracket and not inside.endswith("]")):
        return hashed_id(name)
    band = INDEXED_TOPOLOGIES[base]
    start, dots, end = inside.removesuffix("]").partition("..")
    if dots:
        first, last = _index(name, start), _index(name, end, MAX_INDEX + 1)
        return _FIRST_SLICE + fnv1a32(f"{band}:{first}:{last}") % _SLICES
    return band + (_index(name, start) if bracket else 0)


def _index(name: str, text: str, bound: int = MAX_INDEX) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and int(text) <= bound):
        raise ValueError(f"{printable(name)}: an index must lie in 0..{bound}")
    return int(text)


def space_dispatch_id(name: str) -> int:
    """The id of a space: a built-in one has its topology's, any other its hashed name."""
    return BUILT_IN_SPACES.get(name, hashed_id(name))


# ---- costs


def by_name(machine: VxMachine) -> dict[str, VxSpace]:
    """The declared spaces by name."""
    return {space.name: space for space in machine.spaces}


def chain_of(spaces: Mapping[str, VxSpace], name: str) -> list[str]:
    """A space and its ancestors, nearest first; ends where a cycle would begin again."""
    chain: dict[str, None] = {}
    at: str | None = name
    while at is not None and at not in chain:
        chain[at] = None
        space = spaces.get(at)
        at = space.within if space is not None else None
    return list(chain)


def derived_cost(machine: VxMachine, src: str, dst: str, nbytes: int) -> Cost | None:
    """What the containment tree gives: the sum (or, where dst is `crossing: streamed`, the slowest) of the legs.

    None: src is dst, no common ancestor, or a leg without bandwidth or clock.
    """
    return derived(by_name(machine), src, dst, nbytes)


def derived(spaces: Mapping[str, VxSpace], src: str, dst: str, nbytes: int) -> Cost | None:
    """`derived_cost` over spaces by name."""
    if src == dst:
        return None
    up, down = chain_of(spaces, src), chain_of(spaces, dst)
    nearest = next((name for name in down if name in set(up)), None)
    if nearest is None:
        return None
    names = [*up[: up.index(nearest)], *down[: down.index(nearest)]]
    if nearest in (src, dst):
        names.append(nearest)
    charged = [spaces[name] for name in names if name in spaces]
    rates = _per_instance(charged)
    if len(charged) < len(names) or rates is None:
        return None
    target = spaces.get(dst)
    fold = max if target is not None and target.crossing == "streamed" else sum
    if all(rate.per_cycle for rate in rates):
        return _bounded(fold([_ceil(nbytes, rate.value) for rate in rates]), "cycles")
    legs = [_leg(rate, space.clock, nbytes) for rate, space in zip(rates, charged, strict=True)]
    times = [leg for leg in legs if leg is not None]
    return _bounded(fold(times), "ps") if len(times) == len(legs) else None


def _per_instance(charged: Sequence[VxSpace]) -> list[Rate] | None:
    """Each bandwidth; an aggregate one is shared among the replicas of the space that has some."""
    replicas = max((space.replicas or 1 for space in charged), default=1)
    rates = []
    for space in charged:
        rate = space.bandwidth
        if rate is None or rate.value == 0:
            return None
        shared = replicas > 1 and space.replicas is None
        rates.append(Rate(value=max(1, rate.value // replicas), per_cycle=rate.per_cycle) if shared else rate)
    return rates


def _leg(rate: Rate, clock: int | None, nbytes: int) -> int | None:
    if not rate.per_cycle:
        return _ceil(nbytes * PS_PER_SECOND, rate.value)
    return None if not clock else _ceil(_ceil(nbytes, rate.value) * PS_PER_SECOND, clock)


def _ceil(amount: int, unit: int) -> int:
    return -(-amount // unit)


def _bounded(value: int, unit: str) -> Cost | None:
    return Cost(value, unit) if value <= U64 else None


def edge_cost(machine: VxMachine, edge: VxEdge, nbytes: int) -> Cost | None:
    """What one edge takes: the link's own rate, else what the tree gives. A weight is no time: None."""
    return _edge_cost(by_name(machine), edge, nbytes)


def _edge_cost(spaces: Mapping[str, VxSpace], edge: VxEdge, nbytes: int) -> Cost | None:
    if edge.weight is not None:
        return None
    if edge.rate is None:
        return derived(spaces, edge.src, edge.dst, nbytes)
    if edge.rate.per_cycle:
        return _bounded(_ceil(nbytes, edge.rate.value), "cycles")
    return _bounded(_ceil(nbytes * PS_PER_SECOND, edge.rate.value), "ps")


def cost_ps(machine: VxMachine, src: str, dst: str, nbytes: int) -> int | None:
    """Picoseconds of `nbytes` from src to dst along Vx's route, the sum of its edges; 0 where src is dst.

    None: no route, or an edge of it is not priced in time.
    """
    hops = routed_edges(machine, src, dst)
    if hops is None:
        return None
    spaces = by_name(machine)
    costs = [_edge_cost(spaces, edge, nbytes) for edge in hops]
    times = [cost.value for cost in costs if cost is not None and cost.unit == "ps"]
    return sum(times) if len(times) == len(costs) else None


# ---- routes

_Key = tuple[int, int, int]


def edge_key(spaces: Mapping[str, VxSpace], edge: VxEdge) -> _Key:
    """(unpriced edges, attoseconds a byte, weight): what a route is chosen by, in this order."""
    if edge.rate is not None and not edge.rate.per_cycle:
        return 0, 10**18 // edge.rate.value, 1
    cost = _edge_cost(spaces, edge, _PROBE)
    if cost is None or cost.unit != "ps":
        return 1, 0, 1 if edge.weight is None else edge.weight
    return 0, cost.value * _ATTO_PER_PICO // _PROBE, 1


def route(machine: VxMachine, src: str, dst: str) -> tuple[str, ...] | None:
    """The spaces of Vx's route from src to dst, both included; None when no declared edges lead there."""
    hops = routed_edges(machine, src, dst)
    return None if hops is None else (src, *(edge.dst for edge in hops))


def routed_edges(machine: VxMachine, src: str, dst: str) -> tuple[VxEdge, ...] | None:
    """The edges of the route: fewest unpriced, then least time a byte, then least weight, then by name."""
    if src == dst:
        return ()
    came = _search(machine, src)
    return _walked(came, src, dst) if dst in came else None


def reachable(machine: VxMachine, src: str) -> set[str]:
    """Every space to which declared edges lead from `src`, itself included."""
    return {src, *_search(machine, src)}


def _search(machine: VxMachine, src: str) -> dict[str, tuple[str, VxEdge]]:
    """For every space that can be reached, the last step of the best way: (the space before, the edge)."""
    spaces = by_name(machine)
    out: dict[str, list[tuple[_Key, VxEdge]]] = {}
    for edge in machine.edges:
        out.setdefault(edge.src, []).append((edge_key(spaces, edge), edge))
    came: dict[str, tuple[str, VxEdge]] = {}
    best: dict[str, tuple[_Key, int, str]] = {src: ((0, 0, 0), 0, "")}
    queue: list[tuple[_Key, int, str]] = [((0, 0, 0), 0, src)]
    done: set[str] = set()
    while queue:
        key, hops, at = heapq.heappop(queue)
        if at in done:
            continue
        done.add(at)
        for step, edge in out.get(at, ()):
            total = (key[0] + step[0], key[1] + step[1], key[2] + step[2])
            if edge.dst not in done and (edge.dst not in best or (total, hops + 1, at) < best[edge.dst]):
                best[edge.dst] = (total, hops + 1, at)
                came[edge.dst] = (at, edge)
                heapq.heappush(queue, (total, hops + 1, edge.dst))
    return came


def _walked(came: Mapping[str, tuple[str, VxEdge]], src: str, dst: str) -> tuple[VxEdge, ...]:
    hops: list[VxEdge] = []
    while dst != src:
        dst, edge = came[dst]
        hops.append(edge)
    return tuple(reversed(hops))
