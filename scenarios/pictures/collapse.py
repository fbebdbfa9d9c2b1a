"""Which parts of a large fleet are alike and drawn once.

Colours are refined until they no longer split (Weisfeiler and Leman, one dimension): two things of one colour have the
same figures and the same links to things of the same colours. What is drawn stands for all of its colour.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.machine import Device, Fleet, Link

MAX_BOXES = 48
"""More things than these are no longer told apart in a picture of a page."""
MAX_LINES = 240
MOST_APART, MOST_OF_ROLE = 12, 4
"""Marked things of a plan that are each drawn apart; of more, those of a role that do alike are drawn once."""
SEVERAL = "several rates"
"""In place of a rate where links of different rates are drawn as one."""
ROUNDS = 12
"""Depth of a fleet's tree, more or less; rounds end earlier where no colour splits."""

Colours = dict[str, int]
LinkKey = tuple[Any, ...]


def link_key(link: Link) -> LinkKey:
    """What must be equal for two links to look alike."""
    return (link.kind, link.count, link.bandwidth.value, link.peer_access)


def group_of(name: str) -> str:
    """The node that a stamped id belongs to: `rack0/n3` of `rack0/n3/gpu:0`; empty for an id of the top."""
    return name.rpartition("/")[0]


@dataclass(frozen=True, slots=True)
class Marks:
    """What a plan marks. `names`: an id that it places or passes -> what tells it from the others that are marked.

    `carried`: the place of a link among the fleet's -> the words of what it carries.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    carried: Mapping[int, str] = field(default_factory=dict)


def marks_of(roles: Mapping[str, str], carried: Mapping[int, str]) -> Marks:
    """Each marked id for itself, where they are few; else those of a role of many (prefill, decode) together."""
    counts = Counter(roles.values())
    together = {role for role, count in counts.items() if count > MOST_OF_ROLE and len(roles) > MOST_APART}
    return Marks({name: role if role in together else name for name, role in roles.items()}, carried)


def first_colours(fleet: Fleet, marks: Marks) -> Colours:
    """A number for each kind of thing, marked ones apart."""
    looks: dict[str, Any] = {}
    for host in fleet.hosts:
        looks[host.id] = ("host", host.numa_nodes)
    for switch in fleet.switches:
        looks[switch.id] = ("switch", switch.kind, switch.tier)
    for nic in fleet.nics:
        looks[nic.id] = ("nic",)
    for device in fleet.devices:
        looks[device.id] = _device_look(device)
    for name, mark in marks.names.items():
        looks[name] = ("marked", mark, looks.get(name))
    return _numbered(looks)


def _device_look(device: Device) -> tuple[Any, ...]:
    memory = tuple((m.name, m.capacity.value) for m in device.memories)
    return ("device", device.kind, device.sku, device.profile, memory)


def _numbered(looks: Mapping[str, Any]) -> Colours:
    """The looks as numbers, given in the order in which they are met: equal input gives equal numbers."""
    numbers: dict[Any, int] = {}
    return {name: numbers.setdefault(look, len(numbers)) for name, look in looks.items()}


def refined(fleet: Fleet, colours: Colours, carried: Mapping[int, str]) -> Colours:
    """Colours split by the colours of the other ends of their links, until nothing splits."""
    kinds: dict[LinkKey, int] = {}
    ends: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for place, link in enumerate(fleet.links):
        number = kinds.setdefault((*link_key(link), carried.get(place)), len(kinds))
        ends[link.src].append((2 * number, link.dst))
        ends[link.dst].append((2 * number + 1, link.src))
    count = len(set(colours.values()))
    for _ in range(ROUNDS):
        looks = {}
        for name, colour in colours.items():
            seen = Counter((way, colours[other]) for way, other in ends[name])
            looks[name] = (colour, tuple(sorted(seen.items())))
        colours = _numbered(looks)
        if len(set(colours.values())) == count:
            break
        count = len(set(colours.values()))
    return colours


def by_nodes(colours: Colours, shared: bool) -> Callable[[str], Any]:
    """A key that is equal for the same place of alike nodes; with `shared`, for alike things of the top as well."""
    parts: dict[str, list[tuple[str, int]]] = defaultdict(list)
    for name, colour in colours.items():
        group = group_of(name)
        parts[group].append((name[len(group) :], colour))
    shapes = {group: tuple(sorted(rows)) for group, rows in parts.items() if group}

    def key(name: str) -> Any:
        group = group_of(name)
        if group:
            return (shapes[group], name[len(group) :])
        return colours[name] if shared else name

    return key


@dataclass(frozen=True, slots=True)
class Drawn:
    """What stands for what. `first`: each id -> the id that is drawn for it.

    `exact` says that those drawn as one are alike in figures and links; else they are only of one kind, because more
    differ than a page holds.
    """

    first: dict[str, str]
    exact: bool = True
    uniform: frozenset[str] = frozenset()
    """Kinds of link of which all have the same figures."""

    def key(self, link: Link) -> LinkKey:
        """What links drawn as one have in common."""
        if self.exact or link.kind in self.uniform:
            return link_key(link)
        return (link.kind, 1, None if link.bandwidth.value is None else SEVERAL, None)


def representatives(fleet: Fleet, marks: Marks) -> Drawn:
    """Everything for itself in a small fleet, else the first of those that are alike, else of those of one kind."""
    plain = first_colours(fleet, marks)
    if _fits(fleet, {name: name for name in plain}):
        return Drawn({name: name for name in plain})
    colours = refined(fleet, plain, marks.carried)
    for key in (by_nodes(colours, False), by_nodes(colours, True), colours.__getitem__):
        drawn = _first_of(plain, key)
        if _fits(fleet, drawn):
            return Drawn(drawn)
    kinds = _kinds(fleet)
    kinds |= {name: ("marked", mark, kinds.get(name)) for name, mark in marks.names.items()}
    figures: dict[str, set[LinkKey]] = defaultdict(set)
    for link in fleet.links:
        figures[link.kind].add(link_key(link))
    uniform = frozenset(kind for kind, found in figures.items() if len(found) == 1)
    return Drawn(_first_of(kinds, kinds.__getitem__), exact=False, uniform=uniform)


def _kinds(fleet: Fleet) -> dict[str, Any]:
    kinds: dict[str, Any] = {host.id: "host" for host in fleet.hosts}
    kinds |= {switch.id: ("switch", switch.kind) for switch in fleet.switches}
    kinds |= {nic.id: "nic" for nic in fleet.nics}
    return kinds | {device.id: ("device", device.kind) for device in fleet.devices}


def _first_of(names: Collection[str], key: Callable[[str], Any]) -> dict[str, str]:
    first: dict[Any, str] = {}
    return {name: first.setdefault(key(name), name) for name in names}


def _fits(fleet: Fleet, drawn: dict[str, str]) -> bool:
    if len(set(drawn.values())) > MAX_BOXES:
        return False
    pairs = {(drawn[link.src], drawn[link.dst], *link_key(link)) for link in fleet.links}
    return len(pairs) <= 2 * MAX_LINES
