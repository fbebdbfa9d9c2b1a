"""What joins links to the rest of a fleet file: ends, patterns, repeated links, and the members of domains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from fleet.identity import ID_PATTERN
from fleet.reference_nodes import Stamps, pattern
from fleet.yaml_source import Path, printable

if TYPE_CHECKING:
    from fleet.references import Part

MAX_HINTED = 5000
"""Among more ids than this the nearest is not searched for."""
MAX_PATTERNS = 500


def check_links(state: Part, stamps: Stamps) -> None:
    """Ends exist and differ, a link is written once, peer access stands only where it means something."""
    ends = stamps.ends(state)
    known = [name for name in ends if re.fullmatch(ID_PATTERN, name, re.ASCII)]
    known = known if len(known) <= MAX_HINTED else [name for name in known if "/" not in name]
    seen: dict[Any, Path] = {}
    patterns = 0
    for path, row in state.rows("links"):
        src, dst = row.get("from"), row.get("to")
        found = [_end(state, stamps, (*path, key), end, ends, known) for key, end in (("from", src), ("to", dst))]
        if not isinstance(src, str) or not isinstance(dst, str):
            continue
        if "*" in src + dst:
            patterns += 1
            if patterns > MAX_PATTERNS:
                state.tell(path, f"is one of more than {MAX_PATTERNS} links with *; write templates")
                return
        _each(state, path, row, src, dst)
        if src == dst and "*" not in src:
            state.tell((*path, "to"), "is where the link begins; copies within a device need no link: remove it")
            continue
        if row.get("peer_access") is not None and True in found:
            told = "is for links between two devices, or a device and a switch; remove it from this link with a host"
            state.tell((*path, "peer_access"), f"{told} or NIC end")
        if "*" not in src + dst:
            _once(state, seen, path, row, src, dst)


def _end(state: Part, stamps: Stamps, path: Path, end: Any, ends: dict[str, bool], known: list[str]) -> bool | None:
    """Whether the end is a host or NIC; None where that cannot be said. A missing end is told."""
    if not isinstance(end, str):
        return None
    if "*" in end:
        matched = [through for name, through in ends.items() if pattern(end).fullmatch(name)]
        if not matched and not stamps.too_many and not stamps.told_cycles:
            state.tell(path, f"{printable(end)} matches no host, device, switch or NIC here")
        return all(matched) if matched else None
    if end in ends:
        return ends[end]
    inside = end in state.owners  # a node: what it stamps has the ids that links may name
    if inside or not (stamps.too_many or stamps.told_cycles):
        told = f"is a node; name what is in it, e.g. {printable(end)}/host" if inside else ""
        hint = "" if inside else state.hint(end, known)
        state.tell(path, f"{printable(end)} {told or f'is no device, host, switch or NIC of this file{hint}'}")
    return None


def _each(state: Part, path: Path, row: dict[str, Any], src: str, dst: str) -> None:
    both = "*" in src and "*" in dst
    if both and row.get("each") is None:
        told = (
            "both ends have *; add each: pair (the first with the first and so on) or each: all (every one with every)"
        )
        state.tell(path, told)
    elif not both and row.get("each") is not None:
        state.tell((*path, "each"), "is for links with * at both ends; remove it")


def _once(state: Part, seen: dict[Any, Path], path: Path, row: dict[str, Any], src: str, dst: str) -> None:
    kind = row["kind"] if isinstance(row.get("kind"), str) else ""
    ways = [(src, dst), (dst, src)] if row.get("bidirectional") == "true" else [(src, dst)]
    for way in ways:
        what = f"{printable(way[0])} -> {printable(way[1])} ({printable(kind)}) is the link"
        if not state.claim(seen, (*way, kind), path, what, "remove one, or write its lanes as count"):
            break


def check_fabric(state: Part, stamps: Stamps) -> None:
    """The members of domains exist."""
    fabric = state.data.get("fabric")
    domains = fabric.get("domains") if isinstance(fabric, dict) else None
    if not isinstance(domains, dict):
        return
    ends = stamps.ends(state)
    known = list(ends) if len(ends) <= MAX_HINTED else []
    for name, domain in domains.items():
        members = domain.get("members") if isinstance(domain, dict) else None
        for position, member in enumerate(members if isinstance(members, list) else ()):
            _end(state, stamps, ("fabric", "domains", name, "members", position), member, ends, known)
