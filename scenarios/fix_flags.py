"""A change of workers in the flags of the question it is told for: degrees that were stated must not contradict it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.placement import PHASES, Placement
from planner.counterfactual import joined, parts_of

Document = dict[str, Any]
_NAMES = ("tp", "pp")


def with_degrees(fix: Document, placed: Placement, stated: Mapping[str, int]) -> Document:
    """The change with the degrees that it needs beside those of `stated` (by field, as `tp` or `decode_pp`).

    A flag that has to go, because the phases are no longer divided alike, is told as `to: null`.
    """
    patch: Document = {"patch": fix["patch"]} if "patch" in fix else {}
    parts = parts_of({name: value for name, value in fix.items() if name != "patch"})
    flags = {part["flag"]: part["to"] for part in parts if "flag" in part}
    degrees = {f"--{name}" for name in _NAMES} | {f"--{phase}-{name}" for phase in PHASES for name in _NAMES}
    if not stated or not ({*degrees, *(f"--{phase}" for phase in PHASES)} & set(flags)):
        return fix
    kept = [part for part in parts if part.get("flag") not in degrees]
    shapes = {phase: _shape(phase, flags, placed) for phase in PHASES}
    more: list[Document] = []
    for at, name in enumerate(_NAMES):
        more += _flags_of(name, [shapes[phase][at] for phase in PHASES], stated)
    return joined([*more, *kept]) | patch


def in_words(fix: Document, flags: Mapping[str, str]) -> Document:
    """The change with these flags (by the name that a change gives them) called as the question calls them."""
    parts = [part | ({"flag": flags[part["flag"]]} if part.get("flag") in flags else {}) for part in parts_of(fix)]
    return joined(parts)


def _shape(phase: str, flags: Mapping[str, Any], placed: Placement) -> tuple[int, int]:
    """(ranks of a stage, stages) of a phase after the change."""
    count = len(str(flags.get(f"--{phase}", getattr(placed, phase))).split(","))
    stages = flags.get(f"--{phase}-pp", flags.get("--pp", placed.pipeline(phase)))
    return count // stages, stages


def _flags_of(name: str, wanted: list[int], stated: Mapping[str, int]) -> list[Document]:
    """What must be said of one degree so that it is `wanted` (prefill, decode)."""
    both, alike = stated.get(name), wanted[0] == wanted[1]
    target = wanted[0] if alike else None
    own = {phase: stated.get(f"{phase}_{name}") for phase in PHASES}
    parts: list[Document] = []
    if both is not None and both != target:
        parts.append({"flag": f"--{name}", "from": both, "to": target})
    for phase, value in zip(PHASES, wanted, strict=True):
        is_said = own[phase] is not None or not alike or (both is None and value > 1 and name == "pp")
        if is_said and own[phase] != value:
            parts.append({"flag": f"--{phase}-{name}", "from": own[phase], "to": value})
    return parts
