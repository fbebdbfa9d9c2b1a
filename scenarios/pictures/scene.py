"""Fleet -> scene: which boxes and lines a picture has, and the words on them."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

from fleet.identity import natural_order
from fleet.machine import Device, Fleet, Link, Switch
from fleet.units import format_bytes, format_rate, format_seconds
from scenarios.pictures.collapse import Drawn, LinkKey, Marks, group_of, link_key, marks_of, representatives
from scenarios.pictures.handoff import Handoff
from scenarios.pictures.shape import Box, Entry, Line, Role, Scene
from scenarios.words import plural

NEAR_DEVICES = ("nvlink", "xgmi", "c2c")
"""Switches of these kinds stand below the devices, those of the others above."""
WIDE_ABOVE, NICS, HOSTS, BRIDGES, DEVICES, PEERS, WIDE_BELOW = range(7)
LONGEST = 36
KV = "kv"


def scene(fleet: Fleet, handoff: Handoff | None = None) -> Scene:
    """What a picture of the fleet shows; with a handoff, where the phases run and what carries K and V."""
    found = representatives(fleet, _marks(handoff))
    drawn = found.first
    counts = Counter(drawn.values())
    boxes = _boxes(fleet, found, counts, handoff)
    lines, legend = _lines(fleet, found, handoff)
    collapsed = len(counts) < len(drawn)
    digest = f"digest {fleet.digest[:12]}"
    return Scene(
        heading=fleet.name,
        under=f"{fleet.label}; {digest}" if fleet.label else digest,
        boxes=boxes,
        lines=lines,
        legend=legend,
        notes=_notes(fleet, boxes, lines, handoff, None if not collapsed else found.exact),
        frames=_frames(boxes, drawn),
        collapsed=collapsed,
    )


def _marks(handoff: Handoff | None) -> Marks:
    """Every id that a plan places or passes, with its role."""
    if handoff is None:
        return Marks()
    placed = {name: _role(name, handoff) or "passed" for names in handoff.ranks.values() for name in names}
    roles = dict.fromkeys(sorted(handoff.passed), "passed") | placed
    return marks_of(roles, handoff.carried)


def cut(text: str, longest: int = LONGEST) -> str:
    """The text, its end left out where it is too long for a box."""
    return text if len(text) <= longest else text[: longest - 1] + "\u2026"


def _boxes(fleet: Fleet, found: Drawn, counts: Counter[str], handoff: Handoff | None) -> tuple[Box, ...]:
    drawn = found.first
    last: dict[str, str] = {}
    for name in sorted(drawn, key=natural_order) if len(counts) < len(drawn) else drawn:
        last[drawn[name]] = name
    depth = _depths(fleet)
    made: list[Box] = []
    for host in fleet.hosts:
        told = [host.label or "host memory"]
        made.append(_box(host.id, "host", (HOSTS, 0), told))
    for switch in fleet.switches:
        made.append(_box(switch.id, "switch", _rank(switch, depth), [switch.label or f"{switch.kind} switch"]))
    for nic in fleet.nics:
        made.append(_box(nic.id, "nic", (NICS, 0), [nic.label or "network card"]))
    for device in fleet.devices:
        box = _box(device.id, "device", (DEVICES, 0), _device_lines(device), title=_device_title(device))
        made.append(replace(box, role=_role(device.id, handoff)))
    return tuple(
        _counted(box, counts[box.name], last[box.name], found.exact) for box in made if drawn[box.name] == box.name
    )


def _box(name: str, kind: Any, rank: tuple[int, int], told: list[str], title: str = "") -> Box:
    lines = (cut(name, 40), *(cut(line) for line in told))
    return Box(name=name, kind=kind, group=group_of(name), rank=rank, lines=lines, title=title or f"{name}: {told[0]}")


def _counted(box: Box, count: int, last: str, exact: bool) -> Box:
    role = {None: (), "both": ("prefill and decode",)}.get(box.role, (box.role,))
    if count == 1:
        return replace(box, lines=(*box.lines, *role)) if box.role else box
    if not exact:
        kind = f"\u00d7 {count:,} of this kind, which differ"
        return replace(box, count=count, lines=(box.lines[0], "and others", *role, kind), title=f"{box.name}; {kind}")
    alike = f"\u00d7 {count:,} alike, to {last}"
    return replace(box, count=count, lines=(*box.lines, *role, cut(alike, 40)), title=f"{box.title}; {alike}")


def _role(name: str, handoff: Handoff | None) -> Role | None:
    phases = [] if handoff is None else [phase for phase, names in handoff.ranks.items() if name in names]
    if not phases:
        return None
    if len(phases) > 1:
        return "both"
    return "prefill" if phases[0] == "prefill" else "decode"


def _rank(switch: Switch, depth: dict[str, int]) -> tuple[int, int]:
    if switch.kind in NEAR_DEVICES:
        return (WIDE_BELOW if switch.host is None else PEERS, 0)
    if switch.kind == "net":
        return (WIDE_ABOVE, -(switch.tier or 1))
    return (BRIDGES, depth.get(switch.id, 0))


def _depths(fleet: Fleet) -> dict[str, int]:
    """How many links each switch lies from a host: the levels of a PCIe tree."""
    near: dict[str, list[str]] = defaultdict(list)
    bridges = {switch.id for switch in fleet.switches if switch.kind not in (*NEAR_DEVICES, "net")}
    for link in fleet.links:
        if link.dst in bridges:
            near[link.src].append(link.dst)
    depth: dict[str, int] = {}
    front = [host.id for host in fleet.hosts]
    level = 0
    while front:
        found = dict.fromkeys(name for at in front for name in near[at] if name not in depth)
        depth.update(dict.fromkeys(found, level))
        front = list(found)
        level += 1
    return depth


def _device_lines(device: Device) -> list[str]:
    memory = device.memory
    size = format_bytes(memory.capacity.value)
    short = size.partition("(")[2].rstrip(")") or size
    more = len(device.memories) - 1
    beside = f" +{more} {plural(more, 'memory').replace('memorys', 'memories')}" if more else ""
    kind = device.sku or device.label or device.kind
    return [
        kind if device.profile is None else f"{device.profile} of {device.parent}",
        f"{memory.name} {short}{beside}",
    ]


def _device_title(device: Device) -> str:
    memories = ", ".join(f"{memory.name} {format_bytes(memory.capacity.value)}" for memory in device.memories)
    known = [f"{name} {value}" for name, value in (("uuid", device.uuid), ("pci", device.pci)) if value]
    return "; ".join([f"{device.id}: {device.sku or device.kind}", memories, *known])


def _frames(boxes: tuple[Box, ...], drawn: dict[str, str]) -> dict[str, str]:
    """Words for each node that is framed, with how many are like it."""
    alike: dict[str, set[str]] = defaultdict(set)
    for name, first in drawn.items():
        alike[group_of(first)].add(group_of(name))
    groups = dict.fromkeys(box.group for box in boxes if box.group)
    return {g: g if len(alike[g]) < 2 else f"{g}, one of {len(alike[g]):,} alike" for g in groups}


def _lines(fleet: Fleet, found: Drawn, handoff: Handoff | None) -> tuple[tuple[Line, ...], tuple[Entry, ...]]:
    carried, drawn = {} if handoff is None else handoff.carried, found.first
    bundles: dict[tuple[Any, ...], list[Link]] = defaultdict(list)
    for place, link in enumerate(fleet.links):
        bundles[(drawn[link.src], drawn[link.dst], found.key(link), carried.get(place))].append(link)
    keys = _letters(bundles)
    lines: list[Line] = []
    for (src, dst, key, kv), links in bundles.items():
        back = bundles.get((dst, src, key, None)) if kv is None and src != dst else None
        both = back is not None and len(back) == len(links)
        if both and natural_order(dst) < natural_order(src):
            continue  # drawn with the other direction
        lines.append(_line((src, dst), key, links, back if both else None, keys[key], kv))
    if handoff is not None and handoff.unknown is not None:
        first, last = (handoff.ranks[phase][0] for phase in ("prefill", "decode"))
        lines.append(Line(
            src=first, dst=last, kind=KV, links=0, both=False, words="", title=handoff.unknown, key="",
            priced=False, kv=handoff.unknown,
        ))  # fmt: skip
    legend = [_entry(key, letter, bundles) for key, letter in keys.items()]
    return tuple(lines), tuple(legend)


def _letters(bundles: dict[tuple[Any, ...], list[Link]]) -> dict[Any, str]:
    """A, B, ... for each kind of link with its figures; then A1, B1, ..."""
    keys = dict.fromkeys(key for _, _, key, _ in bundles)
    return {key: chr(65 + i % 26) + (str(i // 26) if i >= 26 else "") for i, key in enumerate(keys)}


def figures(key: Any) -> str:
    """`nvlink x18 450 GB/s` of a link's figures; peer access where it is not direct."""
    kind, count, rate, access = key
    lanes = f" \u00d7{count}" if count > 1 else ""
    peers = {"staged": ", staged", "unknown": ", peer?"}.get(access, "")
    told = "no rate" if rate is None else rate if isinstance(rate, str) else format_rate(rate)
    return f"{kind}{lanes} {told}{peers}"


def _entry(key: Any, letter: str, bundles: dict[tuple[Any, ...], list[Link]]) -> Entry:
    kind, _, rate, access = key
    number = sum(len(links) for (_, _, held, _), links in bundles.items() if held == key)
    peers = "" if access is None else f", peer access {access}"
    words = (
        f"{figures(key).removesuffix(', staged').removesuffix(', peer?')}{peers}; {number:,} {plural(number, 'link')}"
    )
    return Entry(key=letter, kind=kind, words=words, priced=rate is not None)


def _line(
    ends: tuple[str, str], key: LinkKey, links: list[Link], back: list[Link] | None, letter: str, kv: str | None
) -> Line:
    (src, dst), first = ends, links[0]
    words = figures(key)
    number = len(links) * (1 if back is None else 2)
    if number > (1 if back is None else 2):
        words += f" \u00b7 {number:,} links"
    told = [_link_title(link) for link in (first, *(back or ())[:1])]
    return Line(
        src=src, dst=dst, kind=first.kind, links=len(links), both=back is not None, words=words, title="; ".join(told),
        key=letter, priced=first.bandwidth.value is not None, kv=f"{kv} each" if kv and len(links) > 1 else kv,
    )  # fmt: skip


def _link_title(link: Link) -> str:
    latency = "latency unknown" if link.latency.value is None else f"latency {format_seconds(link.latency.value)}"
    seen = link.bandwidth.observed
    observed = [] if seen is None else [f"observed {format_rate(seen.value)}"]
    access = [] if link.peer_access is None else [f"peer access {link.peer_access}"]
    return ", ".join([f"{link.src} -> {link.dst} {figures(link_key(link))}", latency, *access, *observed])


def _notes(
    fleet: Fleet, boxes: tuple[Box, ...], lines: tuple[Line, ...], handoff: Handoff | None, alike: bool | None
) -> tuple[str, ...]:
    """Sentences below a picture. `alike` is None where everything is drawn for itself."""
    notes = ["Rates are declared, one direction of all lanes together; 1 GB/s = 1,000,000,000 bytes per second."]
    if any(line.both for line in lines):
        notes.append(
            "A line with two heads stands for two one-way links of equal rate; with one head, for one direction."
        )
    if not all(line.priced for line in lines if line.links):
        notes.append("Dashed: no rate is declared; what moves over it is unpriced.")
    if alike is not None:
        shared = "is alike in figures and links" if alike else "is of one kind (more differ than a page holds)"
        things = len(fleet.devices) + len(fleet.hosts) + len(fleet.switches) + len(fleet.nics)
        notes.append(
            f"{things:,} things ({len(fleet.devices):,} devices) and {len(fleet.links):,} one-way links: what "
            f"{shared} is drawn once, with its number ({len(boxes)} boxes)."
        )
    return tuple(notes) + (() if handoff is None else handoff.notes)
