"""The picture of a plan's devices and links with the KV handoff: of its fleet where that is at hand, else of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.units import format_rate
from scenarios.pictures.shape import Box, Line, Scene
from scenarios.words import count_of, exact_bytes, mapping, placed

Document = dict[str, Any]
MOST_ENDS = 40
"""Boxes of a picture that is made of the plan alone; a plan of more is shown by its tables."""


def topology_of(plan: Document, fleets: Sequence[Any]) -> tuple[str, str] | None:
    """(SVG, caption). None where the plan names no way for anything, or more ends than a picture holds."""
    from scenarios import pictures

    digest = mapping(mapping(plan.get("inputs")).get("fleet")).get("digest")
    fleet = next((fleet for fleet in fleets if fleet.digest == digest), None)
    if fleet is not None:
        drawn = pictures.draw(pictures.scene_of(fleet, plan, "plan"))
        return pictures.svg_text(drawn), "The fleet of the plan; the thick line carries K and V."
    scene = own_scene(plan)
    if scene is None:
        return None
    return pictures.svg_text(
        pictures.draw(scene)
    ), "What the plan moves over; links that it does not use are not in it."


def own_scene(plan: Document) -> Scene | None:
    """The ends and links that a plan's rows pass, without its fleet."""
    legs: dict[tuple[str, str], list[tuple[Document, Document]]] = {}
    for row in plan.get("waybill") or []:
        for leg in row.get("legs") or []:
            legs.setdefault((leg["src"], leg["dst"]), []).append((row, leg))
    ends = list(dict.fromkeys(end for pair in legs for end in pair))
    if not ends or len(ends) > MOST_ENDS:
        return None
    roles = mapping(plan.get("placement"))
    named = {phase: str(roles.get(phase) or "").split(",") for phase in ("prefill", "decode")}
    return Scene(
        heading="Topology", under=placed(mapping(plan.get("inputs")), roles),
        boxes=tuple(_box(end, named) for end in ends),
        lines=tuple(_line(src, dst, found) for (src, dst), found in legs.items() if src != dst),
        legend=(), notes=(), frames={},
    )  # fmt: skip


def _box(end: str, named: dict[str, list[str]]) -> Box:
    host = end.split("/")[-1].split(":")[0] == "host"
    phases = [phase for phase, names in named.items() if end in names]
    role: Any = None if not phases else "both" if len(phases) > 1 else phases[0]
    words = (
        end,
        *(("prefill and decode",) if role == "both" else (role,) if role else ("host memory",) if host else ()),
    )
    return Box(name=end, kind="host" if host else "device", group="", rank=(2, 0) if host else (4, 0), lines=words,
               title=end, role=role)  # fmt: skip


def _line(src: str, dst: str, found: list[tuple[Document, Document]]) -> Line:
    carried = [leg for row, leg in found if row["phase"] == "handoff"]
    rate = found[0][1].get("bandwidth_bytes_per_s")
    kind = str(found[0][1].get("link") or found[0][1]["kind"])
    kv = None
    if carried:
        nbytes, copies = (_total([leg[name] for leg in carried]) for name in ("bytes", "copies"))
        kv = f"KV {exact_bytes(nbytes)} in {count_of(copies)} copies"
    told = f"{kind} {format_rate(rate, digits=4)}" if rate is not None else f"{kind}, unpriced"
    return Line(src=src, dst=dst, kind=kind, links=1, both=False, words=told, title=f"{src} -> {dst}: {told}",
                key="", priced=rate is not None, kv=kv)  # fmt: skip


def _total(found: list[int | None]) -> int | None:
    return None if None in found else sum(count or 0 for count in found)
