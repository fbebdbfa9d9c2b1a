"""How the memory figures of a plan came about: buffers, lines, sums and bounds, recomputed beside its own figures."""

from __future__ import annotations

import math
import re

from fleet.model import DTYPE_BYTES
from fleet.units import UnitError, parse_utilization
from planner.ledger_bounds import BASES, CACHE_LINES, Terms, allowed
from scenarios.derivation import Derivation, Document
from scenarios.words import mapping


def explain_memory(plan: Document) -> list[Derivation]:
    out: list[Derivation] = []
    for entry in plan.get("memory") or []:
        buffers = buffers_of(plan, entry["device"])
        out += _lines(plan, entry, buffers)
        out += _padding(plan, entry, buffers)
        out += _totals(plan, entry)
    return out


def buffers_of(plan: Document, arena: str) -> list[Document] | None:
    """The buffers of an arena; None where the plan has no orders."""
    arenas = (plan.get("orders") or {}).get("arenas", [])
    return next((each["buffers"] for each in arenas if each["arena"] == arena), None)


_LINES = {
    "weights": "weights", "kv": "kv_cache", "cache": "kv_cache", "act": "activations", "work": "workspace",
    "bounce": "workspace",
}  # fmt: skip


def _lines(plan: Document, entry: Document, buffers: list[Document] | None) -> list[Derivation]:
    out = []
    for line, nbytes in entry["resident"].items():
        about = frozenset((entry["device"], line))
        subject = f"{entry['device']} {line}"
        if line == "layout_padding" and buffers is not None:
            continue
        if line == "runtime":
            terms: tuple[str, ...] = ("what the driver takes, as the fleet declares it (0 B where it does not)",)
            out.append(Derivation(subject=subject, terms=terms, bytes=nbytes, about=about))
            continue
        if buffers is None:
            out.append(_without_buffers(plan, entry, line, nbytes))
            continue
        mine = [b for b in buffers if _LINES.get(b["name"].split("/")[0]) == line]
        terms = _sum_terms(mine) or ("nothing of this kind",)
        follows = sum(nbytes_of(b) for b in mine) == nbytes
        if mine or nbytes or not follows:
            out.append(Derivation(subject=subject, terms=terms, bytes=nbytes, follows=follows, about=about))
    return out


def _without_buffers(plan: Document, entry: Document, line: str, nbytes: int | None) -> Derivation:
    """A line of a plan without orders, by the terms of its ledger; the weights of a rank are told by the workers."""
    device = entry["device"]
    subject, about = f"{device} {line}", frozenset((device, line))
    if listed := next((each for each in entry.get("ledger") or () if each["line"] == line), None):
        parts = listed.get("terms") or ()
        told = tuple(f"{part['what']} {part['formula']} = {part['bytes']:,} B" for part in parts)
        follows = sum(part["bytes"] for part in parts) == nbytes and all(_gives(part) for part in parts)
        return Derivation(
            subject=subject, terms=told or (listed["formula"],), bytes=nbytes, follows=follows, about=about
        )
    rank = rank_of(plan, device)
    if rank is None or line != "weights":
        terms: tuple[str, ...] = ("its buffers are listed only in plans that have orders",)
        return Derivation(subject=subject, terms=terms, bytes=nbytes, about=about)
    work, model = (mapping((plan.get("inputs") or {}).get(name)) for name in ("workload", "model"))
    layers = rank["layers"]
    terms = (
        f"stage {rank['stage']}, rank {rank['rank']}: its part of layers {layers['first']} to {layers['end'] - 1},"
        " split or whole by the rules of docs/workers.md",
    )
    same = work.get("weights_dtype") == model.get("weights_dtype")
    follows = not same or nbytes == rank["weights_bytes"]
    return Derivation(subject=subject, terms=terms, bytes=nbytes, follows=follows, about=about)


_FORMULA = re.compile(r"(?:([0-9]+) x )?\[([0-9]+(?: x [0-9]+)*)\] x ([0-9]+) B", re.ASCII)


def _gives(part: Document) -> bool:
    """Whether a product of sizes gives the bytes beside it; words that are no product say nothing against them."""
    found = _FORMULA.fullmatch(part["formula"]) if len(part["formula"]) < 200 else None
    if found is None:
        return True
    sizes = [int(size) for size in found[2].split(" x ")]
    return bool(int(found[1] or 1) * math.prod(sizes) * int(found[3]) == part["bytes"])


def _padding(plan: Document, entry: Document, buffers: list[Document] | None) -> list[Derivation]:
    """What the layout of an arena takes beyond wire bytes: padded rows, and gaps to whole cache lines."""
    stated = entry["resident"].get("layout_padding")
    if buffers is None or stated is None:
        return []
    try:
        terms, total = _padding_terms(buffers, plan["inputs"]["model"])
    except (IndexError, KeyError, TypeError, ValueError):
        terms, total = ("its buffers do not have the shapes that their layout packs",), -1
    if not terms and not stated:
        return []
    subject, about = f"{entry['device']} layout_padding", frozenset((entry["device"], "layout_padding"))
    return [Derivation(subject=subject, terms=terms, bytes=stated, follows=total == stated, about=about)]


def _padding_terms(buffers: list[Document], model: Document) -> tuple[tuple[str, ...], int]:
    from types import SimpleNamespace
    from typing import cast

    from fleet.model import Model
    from planner.layouts import arena_bytes, held_bytes
    from planner.orders import ArenaOrder, BufferOrder

    sizes = cast(Model, SimpleNamespace(n_kv_heads=model["n_kv_heads"], head_dim=model["head_dim"]))
    orders = tuple(
        BufferOrder(name=b["name"], shape=tuple(b["shape"]), dtype=b["dtype"], layout=b["layout"]) for b in buffers
    )
    wire = sum(nbytes_of(buffer) for buffer in buffers)
    padded = [(order, held_bytes(order, sizes) - nbytes_of(b)) for order, b in zip(orders, buffers, strict=True)]
    terms = [f"{order.name} in {order.layout}, rows padded to sixteen = {more:,} B" for order, more in padded if more]
    total = arena_bytes(ArenaOrder(arena="", device=None, buffers=orders), sizes) - wire
    gaps = total - sum(more for _, more in padded)
    if gaps:
        terms.append(f"gaps, so that each buffer starts on a cache line = {gaps:,} B")
    return tuple(terms), total


_LAYER = re.compile(r"(?<=[./])[0-9]+(?=[./])")
"""The number of a layer within a tensor's name."""


def _sum_terms(buffers: list[Document]) -> tuple[str, ...]:
    """A term a buffer; buffers of one shape that differ in the number of their layer only are one term."""
    alike: dict[tuple[str, str], list[Document]] = {}
    for buffer in buffers:
        name = _LAYER.sub("*", buffer["name"].partition("/")[2] or buffer["name"])
        alike.setdefault((name, product_of(buffer)), []).append(buffer)
    terms = []
    for (name, product), same in alike.items():
        times = f"{len(same)} layers x " if len(same) > 1 else ""
        terms.append(f"{times}{name} {product} = {sum(nbytes_of(b) for b in same):,} B")
    return tuple(terms)


def nbytes_of(buffer: Document) -> int:
    return math.prod(buffer["shape"]) * DTYPE_BYTES[buffer["dtype"]]


def product_of(buffer: Document) -> str:
    factors = [str(size) for size in buffer["shape"]]
    return f"[{' x '.join(factors)}] x {DTYPE_BYTES[buffer['dtype']]} B"


def _totals(plan: Document, entry: Document) -> list[Derivation]:
    device, resident, total = entry["device"], entry["resident"], entry["total_bytes"]
    parts = {**resident, "rounding": entry["rounding_bytes"]}
    whole = None if None in parts.values() else sum(parts.values())
    about = {name: frozenset((device, name)) for name in ("rounding", "total", "capacity")}
    out = [
        Derivation(
            subject=f"{device} rounding",
            terms=("the buffers up to the next whole granule of the memory, once",),
            bytes=entry["rounding_bytes"],
            about=about["rounding"],
        ),
        Derivation(
            subject=f"{device} total",
            terms=tuple(f"{name} {counted(nbytes)} B" for name, nbytes in parts.items() if nbytes != 0),
            bytes=total,
            follows=total == whole,
            about=about["total"],
        ),
    ]
    if entry["budget_bytes"] is not None:
        out += _bounds(plan, entry)
    elif ":" in device and not device.startswith("host:"):
        unknown = ("unknown: the fleet does not state it",)
        out.append(Derivation(subject=f"{device} capacity", terms=unknown, bytes=None, about=about["capacity"]))
    return out


def _bounds(plan: Document, entry: Document) -> list[Derivation]:
    """Budget and slack of a device, and what is left of a memory that it has in common with another."""
    device, total, budget = entry["device"], entry["total_bytes"], entry["budget_bytes"]
    inputs = plan.get("inputs") or {}
    share, reserve = inputs.get("utilization", "?"), inputs.get("reserve_bytes")
    reserve = reserve if type(reserve) is int else None  # another's document may hold anything here
    used = entry.get("in_use_bytes", 0)
    in_use = "" if used == 0 else f" - in use {counted(used)} B"
    formula = (
        f"floor(capacity {counted(entry['capacity_bytes'])} B x utilization {share}) - reserve {counted(reserve)} B"
    )
    if inputs.get("utilization_of") == "free":
        rest = None if total is None else total - _cache(entry)
        formula = (
            f"all but the cache {counted(rest)} B + floor((capacity {counted(entry['capacity_bytes'])} B - reserve"
            f" {counted(reserve)} B{in_use} - all but the cache) x utilization {share})"
        )
    else:
        formula += in_use
    out = [
        Derivation(
            subject=f"{device} budget",
            terms=(formula,),
            bytes=budget,
            follows=_budget(inputs, entry, reserve) in (None, budget),
            about=frozenset((device, "budget")),
        ),
        _slack(f"{device} slack", budget, total, entry["slack_bytes"], frozenset((device, "slack"))),
    ]
    if used != 0:
        words = ("what others hold now (--in-use)",)
        out.append(Derivation(subject=f"{device} in use", terms=words, bytes=used, about=frozenset((device, "in use"))))
    shared = entry.get("shared")
    if shared is not None:
        subject, about = f"{device} slack of {shared['physical']}", frozenset((device, "slack", shared["physical"]))
        joint = shared.get("budget_bytes", budget)
        out.append(_slack(subject, joint, shared["total_bytes"], shared["slack_bytes"], about))
    return out


def _cache(entry: Document) -> int:
    return sum(entry["resident"].get(line) or 0 for line in CACHE_LINES)


def _slack(subject: str, budget: int, total: int | None, stated: int | None, about: frozenset[str]) -> Derivation:
    difference = f"budget {counted(budget)} B - total {counted(total)} B; admitted when not negative"
    right = None if total is None else budget - total
    return Derivation(subject=subject, terms=(difference,), bytes=stated, follows=right == stated, about=about)


def _budget(inputs: Document, entry: Document, reserve: int | None) -> int | None:
    """The budget that follows from the plan's inputs; None where the plan does not say enough to tell."""
    capacity, total, used = entry["capacity_bytes"], entry["total_bytes"], entry.get("in_use_bytes", 0)
    share, basis = inputs.get("utilization", "?"), inputs.get("utilization_of", "total")
    if None in (capacity, total, reserve, used) or not isinstance(share, str) or reserve is None:
        return None
    try:
        part = parse_utilization(share)
    except UnitError:
        return -1  # no share at all: nothing follows from it
    if basis not in BASES:
        return -1
    return allowed(capacity, total, _cache(entry), Terms(utilization=part, reserve=reserve, in_use=used, basis=basis))


def rank_of(plan: Document, device: str) -> Document | None:
    """What the plan says of the rank on a device; None for plans of single devices."""
    workers = plan.get("workers") or {}
    ranks = (rank for phase in ("prefill", "decode") for rank in (workers.get(phase) or {}).get("ranks", ()))
    return next((rank for rank in ranks if rank["device"] == device), None)


def counted(figure: int | None) -> str:
    return "unknown" if figure is None else f"{figure:,}"
