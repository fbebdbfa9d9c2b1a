"""Rates of this machine's copies as a document, and laid over a fleet file as observed figures.

What was measured on one card says nothing of another, and nothing of the links between two: those edges are left out
where there is one card. Declared figures are never touched.
"""

from __future__ import annotations

import hashlib
import math
import time
from fractions import Fraction
from typing import Any

from fleet.errors import InconclusiveError
from fleet.machine import Fleet
from fleet.overlay import lay_over
from fleet.readers import MeasuredCard, Observation

__all__ = ["calibrate", "overlay"]

Document = dict[str, Any]
TOOL = "kvwaybill calibrate"
_SIZES = tuple(1 << power for power in range(12, 29, 2))
_LIMITS = (
    "Rates of an otherwise idle machine, one card at a time, timed by the device's own events; no contention.",
    "An edge marked not a line is told as a range or with its error: no plan should rest on it.",
)


def calibrate(backend: str) -> Document:
    """`kvwaybill/calibration/1` of this machine. InconclusiveError where the backend cannot run."""
    from executor.discovery import load_backend, probe

    answer = probe(backend)
    if isinstance(answer, str):
        raise InconclusiveError(f"backend {backend} cannot run here: {answer}")
    load_backend(backend)
    edges, cards, versions = _cuda() if backend == "cupy" else _processor()
    identity = hashlib.sha256("|".join(sorted(f"{c['uuid']} {c['pci']}" for c in cards)).encode()).hexdigest()
    return {
        "schema": "kvwaybill/calibration/1", "backend": backend, "tool": TOOL, "machine": identity,
        "date": time.strftime("%Y-%m-%d"), "cards": [{k: c[k] for k in ("id", "name", "pci")} for c in cards],
        "versions": versions, "edges": edges, "limits": list(_LIMITS),
    }  # fmt: skip


def _cuda() -> tuple[list[Document], list[Document], Document]:
    from executor.backends import cupy_gpu
    from executor.cuda.driver import selected
    from executor.cuda.rates import measure_edges, measure_pair

    driver = cupy_gpu.make_driver()
    found = [driver.card(ordinal) for ordinal in range(driver.count())]
    cards = [{"id": f"gpu:{c.ordinal}", "name": c.name, "pci": c.pci, "uuid": c.uuid} for c in found]
    edges = []
    for number, card in enumerate(cards):
        ends = {"h2d": ("host", card["id"]), "d2h": (card["id"], "host"), "d2d": (card["id"], card["id"])}
        for name, edge in measure_edges(driver, number, _SIZES).items():
            kind, _, memory = name.partition("_")
            edges.append({"kind": kind, "src": ends[kind][0], "dst": ends[kind][1], "memory": memory or None, **edge})
    for a in range(len(cards)):
        for b in range(a + 1, len(cards)):
            direct = all(driver.can_access_peer(*pair) for pair in ((a, b), (b, a)))
            for one, other in ((a, b), (b, a)) if direct else ():
                with selected(driver, one):
                    driver.enable_peer(other)
            pair = measure_pair(driver, a, b, _SIZES)
            for one, other in ((a, b), (b, a)):
                ends_ = {"kind": "p2p", "src": f"gpu:{one}", "dst": f"gpu:{other}", "memory": None}
                edges.append(ends_ | {"access": "peer" if direct else "staged"} | pair[f"peer_{one}_to_{other}"])
    return edges, cards, driver.versions()


def _processor() -> tuple[list[Document], list[Document], Document]:
    """Copies within host memory, by NumPy: what the processor backend's own copies are."""
    from executor.host_rates import measure_host

    edge = measure_host(_SIZES)
    card = {"id": "cpu:0", "name": edge.pop("name"), "pci": None, "uuid": None}
    return [{"kind": "d2d", "src": "cpu:0", "dst": "cpu:0", "memory": None, **edge}], [card], edge.pop("versions")


def _stated(worst: float) -> Fraction | None:
    """The worst error on sizes that the line was not shown, rounded up to a millionth; None above 1: no line at all."""
    millionths = max(1, math.ceil(worst * 10**6)) if math.isfinite(worst) else 10**7
    return Fraction(millionths, 10**6) if millionths <= 10**6 else None


def overlay(calibration: Document, fleet: Fleet) -> tuple[str, tuple[str, ...]]:
    """(the fleet file with what was measured as observed figures, what is to be said of it).

    DescriptionError when another card was measured than the fleet has, or nothing fits.
    """
    from fleet.dump import fleet_yaml

    seen = []
    for edge in calibration["edges"]:
        if edge["src"] == edge["dst"] or edge.get("not_a_line") or edge["train"]["not_a_line"]:
            continue
        ends: dict[str, Any] = {"src": edge["src"], "dst": edge["dst"], "tool": TOOL, "access": edge.get("access")}
        note = f"fit over {edge['sizes'][0]:,} to {edge['sizes'][-1]:,} B, worst {edge['train']['worst_held_out']:.1%}"
        ends["error"] = _stated(edge["train"]["worst_held_out"])
        seen.append(
            Observation(quantity="bandwidth", value=round(edge["train"]["beta_bytes_per_s"]), note=note, **ends)
        )
        seen.append(Observation(quantity="latency", value=round(edge["single"]["alpha_s"] * 1e12), note=note, **ends))
    cards = [MeasuredCard(id=c["id"], name=c["name"], pci=c["pci"]) for c in calibration["cards"]]
    laid, told = lay_over(fleet, seen, cards=cards, source=TOOL)
    return fleet_yaml(laid), told
