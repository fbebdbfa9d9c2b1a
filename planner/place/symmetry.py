"""Which pairs of devices cannot be told apart: swaps of like parts of a fleet, each one proven link by link.

A fleet falls into parts when the nodes that join them (the fewest of a kind first: spines, leaves, hosts) are taken
out. Two parts may be swapped when a bijection keeps every figure and every link, those to the rest of the fleet
included. Swaps inside a part leave the rest in place, so a pair is described by the innermost part that holds both of
its devices and by what each device is within its half. A bijection that is not found only makes more classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fleet.machine import Device, Fleet, Link, Quantity

MAX_DEPTH = 16
"""Levels of parts; below them devices are told apart by name."""
MOST_FIRSTS = 64
"""Unlike parts of one look that a further one is compared with: where more are unlike, so is the rest, as a rule."""
_ROUNDS = 2
"""Rounds in which colours are refined: they only guide what is then proven."""

Ends = dict[int, int]
"""The other end -> the number of the figures of all links to it."""


@dataclass(slots=True)
class Part:
    """A part of the fleet. `like` is the number of the part that stands for it; `parent` -1 for the whole fleet."""

    parent: int
    like: int


@dataclass(slots=True)
class Symmetry:
    """Devices by number, in the order of the fleet.

    `like` is the device that stands for it, `chain` the parts that hold it, outermost first; the last one holds no
    other device. Pairs are alike when the innermost part that holds both and both devices are alike.
    """

    names: tuple[str, ...]
    like: list[int]
    chains: list[tuple[int, ...]]
    parts: list[Part]
    number: dict[str, int] = field(default_factory=dict)

    def pair_class(self, first: int, second: int) -> tuple[int, int, int]:
        """(part, device, device) that stand for an ordered pair of unlike devices."""
        one, other = self.chains[first], self.chains[second]
        level = next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
        return self.parts[one[level - 1]].like, self.like[first], self.like[second]

    def tuple_class(self, devices: Sequence[int]) -> tuple[object, ...]:
        """Equal for two ordered tuples of devices that swaps turn into each other.

        Swaps move parts of one likeness freely and keep what lies in each of them together, so all that counts is how
        every device is within its part, and which devices share a part at each level.
        """
        chains = [self.chains[device] for device in devices]
        key: list[object] = [self.like[device] for device in devices]
        for level in range(1, max(map(len, chains))):
            seen: dict[int, int] = {}
            key.append(tuple(
                seen.setdefault(chain[level], len(seen)) if level < len(chain) else -1 for chain in chains
            ))  # fmt: skip
        return tuple(key)


def symmetry_of(fleet: Fleet, marks: Sequence[object] = ()) -> Symmetry:
    """The proven symmetry of a fleet. Deterministic; O(links) for each level of parts.

    `marks`: one a device, in the order of the fleet; devices of different marks are not alike.
    """
    return _Finder(fleet, marks).run()


class _Finder:
    def __init__(self, fleet: Fleet, marks: Sequence[object]) -> None:
        self.names = tuple(device.id for device in fleet.devices)
        nodes: dict[object, int] = {}
        kept: dict[object, int] = {}
        self.own: list[int] = []

        def node(key: object, figures: object) -> None:
            nodes[key] = len(self.own)
            self.own.append(kept.setdefault(figures, len(kept)))

        for at, device in enumerate(fleet.devices):
            node(device.id, (_figures_of(device), marks[at] if marks else None))
        for host in fleet.hosts:
            node(host.id, ("host", host.pinned_pool.value))
        for relay in [switch.id for switch in fleet.switches] + [nic.id for nic in fleet.nics]:
            node(relay, ("relay",))
        for domain in fleet.domains:
            node(("domain", domain.id), ("domain", domain.kind))
        for name in dict.fromkeys(host.node for host in fleet.hosts if host.node is not None):
            node(("node", name), ("node",))
        for memory in sorted({m.physical for d in fleet.devices for m in d.memories if m.physical is not None}):
            node(("memory", memory), ("memory",))
        self.out: list[Ends] = [{} for _ in self.own]
        self.into: list[Ends] = [{} for _ in self.own]
        self._join(fleet, nodes)
        self.color = self._colors()
        self.parts: list[Part] = []
        self.like = list(range(len(self.names)))
        self.chains: list[list[int]] = [[] for _ in self.names]

    def _join(self, fleet: Fleet, nodes: dict[object, int]) -> None:
        """All links between two nodes become one number; what a device lies in or belongs to is a link, too."""
        held: dict[tuple[int, int], list[object]] = {}
        for link in fleet.links:
            held.setdefault((nodes[link.src], nodes[link.dst]), []).append(_figures_of_link(link))
        for device in fleet.devices:
            at = nodes[device.id]
            held.setdefault((at, nodes[device.host]), []).append("host")
            if device.parent is not None:
                held.setdefault((at, nodes[device.parent]), []).append("slice")
            for memory in device.memories:
                if memory.physical is not None:
                    held.setdefault((at, nodes["memory", memory.physical]), []).append(memory.name)
        for host in fleet.hosts:
            if host.node is not None:
                held.setdefault((nodes[host.id], nodes["node", host.node]), []).append("node")
        for domain in fleet.domains:
            for member in domain.members:
                held.setdefault((nodes[member], nodes["domain", domain.id]), []).append("member")
        kept: dict[tuple[object, ...], int] = {}
        for (src, dst), figures in held.items():
            key = tuple(figures) if len(figures) == 1 else tuple(sorted(figures, key=repr))
            label = kept.setdefault(key, len(kept))
            self.out[src][dst] = label
            self.into[dst][src] = label

    def _colors(self) -> list[int]:
        color = list(self.own)
        for _ in range(_ROUNDS):
            kept: dict[tuple[int, int, int], int] = {}
            fresh = []
            for at, (out, into) in enumerate(zip(self.out, self.into, strict=True)):
                key = (
                    color[at],
                    sum(hash((label, color[end])) for end, label in out.items()),
                    sum(hash((label, color[end])) for end, label in into.items()),
                )
                fresh.append(kept.setdefault(key, len(kept)))
            color = fresh
        return color

    def run(self) -> Symmetry:
        self.parts.append(Part(-1, 0))
        whole = list(range(len(self.own)))
        for device in range(len(self.names)):
            self.chains[device].append(0)
        self._divide(whole, 0, 0)
        return Symmetry(
            names=self.names, like=self.like, chains=[tuple(chain) for chain in self.chains], parts=self.parts,
            number={name: at for at, name in enumerate(self.names)},
        )  # fmt: skip

    def _is_device(self, node: int) -> bool:
        return node < len(self.names)

    def _divide(self, nodes: list[int], part: int, depth: int) -> None:
        """The parts of a part: of those that may be swapped, the first is divided further and the others copy it."""
        if sum(map(self._is_device, nodes)) < 2:
            return
        firsts: dict[tuple[int, ...], list[tuple[list[int], int]]] = {}
        for child in self._split(nodes, depth):
            ordered = sorted(child, key=lambda node: (self.color[node], node))
            known = firsts.setdefault(tuple(self.color[node] for node in ordered), [])
            for first, number in known[-MOST_FIRSTS:]:
                if self._swap(first, ordered):
                    self._copy(dict(zip(first, ordered, strict=True)), number, part)
                    break
            else:
                number = self._new_part(part, len(self.parts), child)
                known.append((ordered, number))
                self._divide(sorted(child), number, depth + 1)

    def _new_part(self, parent: int, like: int, nodes: Iterable[int]) -> int:
        self.parts.append(Part(parent, like))
        number = len(self.parts) - 1
        for node in nodes:
            if self._is_device(node):
                self.chains[node].append(number)
        return number

    def _copy(self, to: dict[int, int], first: int, parent: int) -> None:
        """Devices of a part get the chains of the part that they may be swapped with, over parts of their own."""
        level = self._level_of(first)
        made: dict[int, int] = {}
        for node, other in to.items():
            if not self._is_device(node):
                continue
            self.like[other] = self.like[node]
            above = parent
            for number in self.chains[node][level:]:
                if number not in made:
                    self.parts.append(Part(above, self.parts[number].like))
                    made[number] = len(self.parts) - 1
                above = made[number]
                self.chains[other].append(above)

    def _level_of(self, part: int) -> int:
        level = 0
        while self.parts[part].parent >= 0:
            part, level = self.parts[part].parent, level + 1
        return level

    def _split(self, nodes: list[int], depth: int) -> list[list[int]]:
        """Parts with devices, after the nodes that join them are out: those of few of a kind first, of these those with
        the most links; never a device.

        Devices that are linked directly are parts of their own each.
        """
        counts = Counter(self.color[node] for node in nodes)
        joins = {node: (counts[self.color[node]], -len(self.out[node]) - len(self.into[node])) for node in nodes}
        sorts = sorted({joins[node] for node in nodes if not self._is_device(node)})
        left = set(nodes)
        for sort in sorts if depth < MAX_DEPTH else ():
            left = {node for node in left if self._is_device(node) or joins[node] != sort}
            found = [part for part in self._islands(left) if any(map(self._is_device, part))]
            if len(found) > 1:
                return found
        return [[node] for node in nodes if self._is_device(node)]

    def _islands(self, left: set[int]) -> list[list[int]]:
        islands = []
        waiting = set(left)
        for start in sorted(left):
            if start not in waiting:
                continue
            waiting.discard(start)
            island, ready = [start], [start]
            while ready:
                at = ready.pop()
                for ends in (self.out[at], self.into[at]):
                    for end in ends:
                        if end in waiting:
                            waiting.discard(end)
                            island.append(end)
                            ready.append(end)
            islands.append(island)
        return islands

    def _swap(self, first: Sequence[int], second: Sequence[int]) -> bool:
        """Whether swapping the two, node by node, leaves every figure and every link of the fleet as it was."""
        there = dict(zip(first, second, strict=True))
        there.update(zip(second, first, strict=True))
        for node, other in zip(first, second, strict=True):
            if self.own[node] != self.own[other]:
                return False
            for ends in (self.out, self.into):
                if len(ends[node]) != len(ends[other]):
                    return False
                held = ends[other]
                for end, label in ends[node].items():
                    if held.get(there.get(end, end)) != label:
                        return False
        return True


def _figures_of(device: Device) -> tuple[object, ...]:
    """All of a device that a verdict or a time may rest on."""
    memories = tuple((m.name, *map(_stated, (m.capacity, m.bandwidth, m.granule))) for m in device.memories)
    rates = tuple((name, _stated(rate)) for name, rate in device.compute)
    return (
        "device", device.kind, device.sku, device.arch, device.profile, device.default_memory,
        _stated(device.runtime), device.in_use, rates, memories,
    )  # fmt: skip


def _figures_of_link(link: Link) -> tuple[object, ...]:
    figures = (_stated(link.bandwidth), _stated(link.latency))
    return link.kind, *figures, link.peer_access, link.duplex, link.copy_engines, link.assumed


def _stated(quantity: Quantity) -> tuple[object, ...]:
    """A figure and its standing, declared and observed."""
    figures = (quantity.declared, quantity.observed)
    return tuple(None if figure is None else (figure.value, figure.provenance, figure.error) for figure in figures)
