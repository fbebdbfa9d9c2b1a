"""Parts of a fleet in which a pool may lie, and how its workers are packed into one: whole groups in one link domain.

Packing is exact: for each cell (a domain, or a single device) the groups of both phases that fit are counted, and a
sum over cells finds whether so many of each fit together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from planner.place.classes import FleetClasses

Worker = tuple[int, ...]
"""Numbers of devices, in the order of their ranks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How many workers of each phase, and the devices of one of them."""

    workers: tuple[int, int]
    ranks: tuple[int, int]

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.workers[0] * self.ranks[0] + self.workers[1] * self.ranks[1]


@dataclass(slots=True)
class Cell:
    """Devices that may form groups with each other: for prefill alone, for decode alone, for either."""

    prefill: list[int]
    decode: list[int]
    either: list[int]

    def most_beside(self, prefill: int, ranks: tuple[int, int]) -> int:
        """The most decode groups beside so many of prefill; -1 where these do not fit."""
        either = len(self.either) - max(0, prefill * ranks[0] - len(self.prefill))
        return -1 if either < 0 else (len(self.decode) + either) // ranks[1]

    def fits(self, groups: tuple[int, int], ranks: tuple[int, int]) -> bool:
        """Whether so many groups of each phase fit."""
        more = max(0, groups[0] * ranks[0] - len(self.prefill)) + max(0, groups[1] * ranks[1] - len(self.decode))
        return more <= len(self.either)

    def take(self, groups: tuple[int, int], ranks: tuple[int, int]) -> tuple[list[Worker], list[Worker]]:
        """The groups, of the first devices; those that serve one phase only first, in the order of the fleet."""
        either = list(self.either)
        out: list[list[Worker]] = []
        for only, count, size in zip((self.prefill, self.decode), groups, ranks, strict=True):
            lacking = max(0, count * size - len(only))
            chosen = sorted([*only[: count * size], *either[:lacking]])
            either = either[lacking:]
            out.append([tuple(chosen[at : at + size]) for at in range(0, len(chosen), size)])
        return out[0], out[1]


def regions_of(classes: FleetClasses, able: Callable[[int], object]) -> list[tuple[int, ...]]:
    """Parts of the fleet by their devices, small ones first: nodes, domains, and every part that swaps know.

    `able` says what a device may serve (falsy: nothing). Of regions that look alike only the first is kept.
    """
    symmetry = classes.symmetry
    held: dict[tuple[str, int | str], list[int]] = {}
    for device, (name, chain) in enumerate(zip(symmetry.names, symmetry.chains, strict=True)):
        if not able(device):
            continue
        for part in chain[:-1] or chain:
            held.setdefault(("part", part), []).append(device)
        held.setdefault(("node", classes.near.node[name]), []).append(device)
        for domain in classes.near.domains.get(name, ()):
            held.setdefault(("domain", domain), []).append(device)
    kept: dict[object, tuple[int, ...]] = {}
    for (sort, at), devices in held.items():
        alike = symmetry.parts[at].like if isinstance(at, int) else None
        looks = tuple(sorted((symmetry.like[each], repr(able(each))) for each in devices))
        kept.setdefault((sort, alike, looks), tuple(devices))
    return sorted(dict.fromkeys(kept.values()), key=lambda devices: (len(devices), devices))


def halves_of(classes: FleetClasses, able: Callable[[int], object]) -> list[tuple[tuple[int, ...], ...]]:
    """Ways to cut the fleet: into its nodes, its domains, and all parts that are alike; the smallest pieces first."""
    symmetry, near = classes.symmetry, classes.near
    held: dict[object, dict[object, list[int]]] = {}
    for device, (name, chain) in enumerate(zip(symmetry.names, symmetry.chains, strict=True)):
        if not able(device):
            continue
        held.setdefault("node", {}).setdefault(near.node[name], []).append(device)
        for domain in near.domains.get(name, ()):
            held.setdefault("domain", {}).setdefault(domain, []).append(device)
        for level, part in enumerate(chain[:-1] or chain):
            held.setdefault(level, {}).setdefault(part, []).append(device)
    found = [tuple(tuple(piece) for piece in pieces.values()) for pieces in held.values()]
    return sorted(dict.fromkeys(found), key=lambda pieces: (-len(pieces), pieces))


def cells_of(
    classes: FleetClasses, region: Iterable[int], able: Callable[[int], tuple[bool, bool]], *, by: str
) -> list[Cell]:
    """The cells of a region: `by` node, domain (a device in none is a cell of its own), kind (a domain's cards of one
    kind) or whole.
    """
    names, near, devices = classes.symmetry.names, classes.near, classes.fleet.devices
    cells: dict[object, Cell] = {}
    for device in region:
        prefill, decode = able(device)
        if not (prefill or decode):
            continue
        name = names[device]
        domain = min(near.domains.get(name, ()), default=None)
        key: object = "whole"
        if by != "whole":
            home = domain or device
            key = near.node[name] if by == "node" else (home, devices[device].sku) if by == "kind" else home
        cell = cells.setdefault(key, Cell([], [], []))
        (cell.either if prefill and decode else cell.prefill if prefill else cell.decode).append(device)
    first: dict[str, int] = {}
    for device in region:
        first.setdefault(near.node[names[device]], device)
    for cell in cells.values():  # groups of one node first
        for held in (cell.prefill, cell.decode, cell.either):
            held.sort(key=lambda device: (first[near.node[names[device]]], device))
    return list(cells.values())


def packed(
    cells: Sequence[Cell], sizes: Sizes, *, one_each: bool = False, served: int | None = None
) -> tuple[list[Worker], list[Worker]] | None:  # fmt: skip
    """Workers of both phases, or None where they do not fit. `one_each`: no two workers in one cell. `served`: a cell
    holds at most so many decode workers for each of its prefill workers, and none without one.

    most[x] is the largest number of decode groups beside x prefill groups in the cells so far.
    """
    wanted, ranks = sizes.workers, sizes.ranks
    if len(cells) == 1 and not one_each and served is None:
        return cells[0].take(wanted, ranks) if cells[0].fits(wanted, ranks) else None
    most: list[int] = [0] + [-1] * wanted[0]
    steps: list[list[tuple[int, int] | None]] = []
    for cell in cells:
        options = _options(cell, sizes, one_each=one_each, served=served)
        fresh: list[int] = list(most)
        how: list[tuple[int, int] | None] = [(0, 0) if held >= 0 else None for held in most]
        for before, held in enumerate(most):
            if held < 0:
                continue
            for x, y in options[: wanted[0] - before + 1]:
                at, total = before + x, min(wanted[1], held + y)
                if total > fresh[at]:
                    fresh[at], how[at] = total, (x, total - held)
        most = fresh
        steps.append(how)
        if most[wanted[0]] >= wanted[1]:
            return _taken(cells, steps, wanted, ranks)
    return None


def _options(cell: Cell, sizes: Sizes, *, one_each: bool, served: int | None) -> list[tuple[int, int]]:
    """(prefill groups, most decode groups beside them) of one cell."""
    found = []
    for x in range(sizes.workers[0] + 1):
        y = cell.most_beside(x, sizes.ranks)
        if y < 0 or (one_each and x > 1):
            break
        most = max(0, 1 - x) if one_each else sizes.workers[1]
        found.append((x, min(y, most if served is None else min(most, served * x))))
    return found


def _taken(
    cells: Sequence[Cell], steps: list[list[tuple[int, int] | None]], wanted: tuple[int, int], ranks: tuple[int, int]
) -> tuple[list[Worker], list[Worker]]:
    at = wanted[0]
    prefill: list[Worker] = []
    decode: list[Worker] = []
    for cell, how in zip(reversed(cells[: len(steps)]), reversed(steps), strict=True):
        step = how[at]
        assert step is not None
        one, other = cell.take(step, ranks)
        prefill, decode, at = one + prefill, other + decode, at - step[0]
    return prefill, decode[: wanted[1]]
