"""How a number of a plan came about: its formula, the numbers put in, and where each came from.

Everything is recomputed here from the plan's inputs and orders and set beside the plan's own figure; a figure that
does not follow from its parts is told so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from fleet.errors import DescriptionError
from fleet.model import DTYPE_BYTES

Document = dict[str, Any]

CODES = {
    "EXCEEDS_CAPACITY": "A device's total is larger than its memory. No budget helps; hold less or take another.",
    "EXCEEDS_BUDGET": "A device's total fits its memory but not the share that may be used (utilization, reserve).",
    "NO_ROUTE": "No chain of declared one-way links leads from one memory to the other. Links are never invented.",
    "PINNED_POOL_TOO_SMALL": "A staged copy must pass the host's pinned pool, and the pool does not hold one position.",
    "CAPACITY_UNKNOWN": "The fleet does not state the capacity. Nothing is admitted on an unknown.",
    "PEER_ACCESS_UNKNOWN": "The fleet does not say whether peer copies go direct. Both readings are in `alternatives`.",
    "MODEL_UNKNOWN": "The model's layout is not understood, so its weights and cache are not priced.",
    "SIZE_OVERFLOW": "A total passes 2^63 - 1 bytes, which no machine integer holds.",
}
"""Every code that a reason may carry, in words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Derivation:
    """One figure: what it is, its formula with the numbers put in, the figure, and whether it follows."""

    subject: str
    formula: str
    bytes: int | None
    follows: bool = True


def explain(plan: Document, subject: str | None) -> list[Derivation]:
    """The derivations of all figures, or those of one device, edge (`gpu:0->gpu:1`) or code."""
    if subject is None:
        return _memory(plan, None) + _rows(plan, None) + _reasons(plan, None)
    if subject in CODES:
        found = _reasons(plan, subject)
        return found or [
            Derivation(subject=subject, formula=f"{CODES[subject]} This plan has no such reason.", bytes=None)
        ]
    if "->" in subject:
        src, _, dst = subject.partition("->")
        found = _rows(plan, (src.strip(), dst.strip()))
        if not found:
            raise DescriptionError.at("explain", subject, f"is no edge of this plan; it has {_edges(plan)}")
        return found
    devices = [entry["device"] for entry in plan.get("memory") or []]
    if subject not in devices:
        known = ", ".join([*devices, _edges(plan), *CODES])
        raise DescriptionError.at("explain", subject, f"is no device, edge or code here; there are {known}")
    return _memory(plan, subject)


def _edges(plan: Document) -> str:
    return ", ".join(f"{edge['src']}->{edge['dst']}" for edge in plan.get("edges") or []) or "no edges"


def _memory(plan: Document, device: str | None) -> list[Derivation]:
    out: list[Derivation] = []
    buffers = {a["arena"]: a["buffers"] for a in (plan.get("orders") or {}).get("arenas", [])}
    for entry in plan.get("memory") or []:
        if device is None or entry["device"] == device:
            out += _lines(entry, buffers.get(entry["device"]))
            out += _totals(plan, entry)
    return out


_LINES = {"weights": "weights", "kv": "kv_cache", "act": "activations", "work": "workspace", "bounce": "workspace"}


def _lines(entry: Document, buffers: list[Document] | None) -> list[Derivation]:
    out = []
    for line, nbytes in entry["resident"].items():
        subject = f"{entry['device']} {line}"
        if line == "runtime":
            out.append(Derivation(subject=subject, formula="declared by the fleet (0 where it is not)", bytes=nbytes))
            continue
        if buffers is None:
            out.append(Derivation(subject=subject, formula="buffers are listed in admitted plans only", bytes=nbytes))
            continue
        mine = [b for b in buffers if _LINES.get(b["name"].split("/")[0]) == line]
        terms = [f"{b['name']} {_product(b)}" for b in mine]
        total = sum(math.prod(b["shape"]) * DTYPE_BYTES[b["dtype"]] for b in mine)
        formula = " + ".join(terms) or "nothing of this kind"
        out.append(Derivation(subject=subject, formula=formula, bytes=nbytes, follows=total == nbytes))
    return out


def _product(buffer: Document) -> str:
    factors = [str(size) for size in buffer["shape"]]
    return f"[{' x '.join(factors)}] x {DTYPE_BYTES[buffer['dtype']]} B"


def _totals(plan: Document, entry: Document) -> list[Derivation]:
    device, resident = entry["device"], entry["resident"]
    total = entry["total_bytes"]
    held = [*resident.values(), entry["rounding_bytes"]]
    parts = " + ".join(_told(nbytes) for nbytes in resident.values())
    out = [
        Derivation(
            subject=f"{device} rounding",
            formula="to the next whole granule of the arena, once",
            bytes=entry["rounding_bytes"],
        ),
        Derivation(
            subject=f"{device} total",
            formula=f"{parts} + rounding {_told(entry['rounding_bytes'])}",
            bytes=total,
            follows=total == (None if None in held else sum(held)),
        ),
    ]
    if entry["budget_bytes"] is not None:
        share = (plan.get("inputs") or {}).get("utilization", "?")
        formula = f"floor(capacity {_told(entry['capacity_bytes'])} x utilization {share}) - reserve of the fleet"
        out.append(Derivation(subject=f"{device} budget", formula=formula, bytes=entry["budget_bytes"]))
        slack = None if total is None else entry["budget_bytes"] - total
        out.append(
            Derivation(
                subject=f"{device} slack",
                formula="budget - total; admitted when not negative",
                bytes=entry["slack_bytes"],
                follows=slack == entry["slack_bytes"],
            )
        )
    elif ":" in device and not device.startswith("host:"):
        out.append(Derivation(subject=f"{device} capacity", formula="unknown: the fleet does not state it", bytes=None))
    return out


def _told(figure: int | None) -> str:
    return "unknown" if figure is None else f"{figure:,}"


def _rows(plan: Document, edge: tuple[str, str] | None) -> list[Derivation]:
    out = []
    for row in plan.get("waybill") or []:
        legs = row.get("legs") or [row]
        if edge is not None and edge not in {(leg["src"], leg["dst"]) for leg in legs}:
            continue
        formula, expected = _row_formula(plan, row)
        ways = " then ".join(f"{leg['src']}->{leg['dst']} {leg['kind']} x{leg['copies']}" for leg in legs)
        unknown = "" if row.get("legs") is not None else " (the physical way is unknown)"
        out.append(
            Derivation(
                subject=f"{row['phase']} {row['tensor']} {row['src']}->{row['dst']}",
                formula=f"{formula}; carried {ways}{unknown}",
                bytes=row["bytes"],
                follows=expected is None or expected == row["bytes"],
            )
        )
    return out


def _row_formula(plan: Document, row: Document) -> tuple[str, int | None]:
    """(formula with numbers, bytes it gives) of one row; the numbers come from the plan's inputs."""
    model, work = plan["inputs"]["model"], plan["inputs"]["workload"]
    batch, tensor, phase = work["batch"], row["tensor"], row["phase"]
    times = f" x batch {batch}" if batch > 1 else ""
    passes = plan["passes"].get(phase, 0)
    if tensor == "weights":
        return f"the {row['copies']} named tensors that attention: {work['attention']} reads, one copy each", None
    if tensor in ("k", "v"):
        return _kv_formula(model, work, times)
    if tensor in ("tokens", "next_token"):
        every = (phase, tensor) in (("prefill", "tokens"), ("decode", "next_token"))
        count = passes if every else 1
        return f"{count} ids x 4 B{times} ({_IDS.get((phase, tensor), 'of no phase known')})", 4 * count * batch
    per_pass = row.get("per_pass") or {}
    nbytes, copies = per_pass.get("bytes"), per_pass.get("copies")
    return (
        f"{passes} passes x {_told(nbytes)} B and {_told(copies)} copies a pass"
        f" (operands of 7 x {model['n_layers']} projections and the classifier, 4 B an element)",
        None if nbytes is None else passes * nbytes,
    )


_IDS = {
    ("prefill", "tokens"): "the prompt ids walked",
    ("prefill", "next_token"): "the first sampled id",
    ("decode", "tokens"): "the first sampled id; later ones stay on the device",
    ("decode", "next_token"): "the sampled id of every pass",
}


def _kv_formula(model: Document, work: Document, times: str) -> tuple[str, int]:
    layers, width = model["n_layers"], model["n_kv_heads"] * model["head_dim"]
    element = DTYPE_BYTES[work["kv_dtype"]]
    extent, prompt = work["kv_extent"], work["prompt_tokens"]
    if extent == "allocated":
        moved, words = work["positions"], f"{work['positions']} allocated positions, the array in one copy"
    elif extent.startswith("blocks:"):
        block = int(extent.removeprefix("blocks:"))
        blocks = -(-prompt // block)
        moved, words = blocks * block, f"{blocks} blocks of {block} positions, one copy a layer and block"
    else:
        moved, words = prompt, f"{prompt} filled positions, one copy a layer"
    formula = f"{layers} layers x {moved} positions x {width} x {element} B{times} ({words})"
    return formula, layers * moved * width * element * work["batch"]


def _reasons(plan: Document, code: str | None) -> list[Derivation]:
    return [
        Derivation(
            subject=reason["code"],
            formula=f"{CODES.get(reason['code'], '')} Here: {reason['message']}",
            bytes=reason.get("shortfall_bytes"),
        )
        for reason in plan.get("reasons") or []
        if code is None or reason["code"] == code
    ]


def explanation_document(plan: Document, derivations: list[Derivation]) -> Document:
    """`kvwaybill/explanation/1`: the derivations as data."""
    return {
        "schema": "kvwaybill/explanation/1",
        "plan_id": plan.get("id"),
        "derivations": [
            {"subject": d.subject, "formula": d.formula, "bytes": d.bytes, "follows": d.follows} for d in derivations
        ],
        "limits": plan.get("limits") or [],
    }


def explanation_text(plan: Document, derivations: list[Derivation]) -> str:
    """The derivations for people: one figure a paragraph."""
    from fleet.units import format_bytes

    lines = [f"plan {str(plan.get('id'))[:12]}, {plan['verdict']}", ""]
    for derivation in derivations:
        figure = "" if derivation.bytes is None else f" = {format_bytes(derivation.bytes)}"
        broken = "" if derivation.follows else "   DOES NOT FOLLOW from its parts"
        lines += [f"{derivation.subject}{figure}{broken}", f"    {derivation.formula}"]
    return "\n".join([*lines, "", "limits:", *(f"  {limit}" for limit in plan.get("limits") or [])])
