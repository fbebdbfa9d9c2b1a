"""How a number of a plan came about: its formula, the numbers put in, and where each came from.

Everything is recomputed here from the plan's inputs and orders and set beside the plan's own figure; a figure that
does not follow from its parts is told so.
"""

from __future__ import annotations

import math
import re

from fleet.errors import DescriptionError
from fleet.model import DTYPE_BYTES
from fleet.units import UnitError, parse_utilization
from scenarios.derivation import Derivation, Document
from scenarios.explain_times import explain_times
from scenarios.shapes import shown
from scenarios.words import mapping

CODES = {
    "EXCEEDS_CAPACITY": "A device's total is larger than its memory. No budget helps; hold less or take another.",
    "EXCEEDS_BUDGET": "A device's total fits its memory but not the share that may be used (utilization, reserve).",
    "EXCEEDS_SHARED_MEMORY": "Devices of the plan lie in one memory (`physical`), and together they exceed its budget.",
    "CARD_AND_SLICE": "A card and a slice of it are both filled. Their bytes are the same: take slices, or the card.",
    "NO_ROUTE": "No chain of declared one-way links leads from one memory to the other. Links are never invented.",
    "PINNED_POOL_TOO_SMALL": "A staged copy must pass the host's pinned pool, and the pool does not hold one position.",
    "CAPACITY_UNKNOWN": "The fleet does not state the capacity. Nothing is admitted on an unknown.",
    "PEER_ACCESS_UNKNOWN": "The fleet does not say whether peer copies go direct. Both readings are in `alternatives`.",
    "MODEL_UNKNOWN": "The model's layout is not understood, so its weights and cache are not priced.",
    "DIVISION_UNKNOWN": "How a tensor is divided among ranks is not known, so no rank's weights are priced.",
    "ENGINE_UNKNOWN": "What the engine does with some layers or flags is not known, so its bytes are not admitted.",
    "SIZE_OVERFLOW": "A total passes 2^63 - 1 bytes, which no machine integer holds.",
}
"""Every code that a reason may carry, in words."""


def explain(plan: Document, subject: str | None) -> list[Derivation]:
    """The derivations of all figures, or those of one device, edge (`gpu:0->gpu:1`), phase, tensor, line or code.

    Raises DescriptionError for a subject that this plan does not have.
    """
    found = [*_memory(plan), *_rows(plan), *_handoff(plan), *explain_times(plan), *_work(plan), *_reasons(plan)]
    if subject is None:
        return found
    wanted = "->".join(part.strip() for part in subject.split("->"))
    told = [each for each in found if wanted in each.about or wanted == each.subject]
    if told:
        return told
    if wanted in CODES:
        return [Derivation(subject=wanted, terms=(f"{CODES[wanted]} This plan has no such reason.",), bytes=None)]
    known = dict.fromkeys(word for each in found for word in sorted(each.about))
    raise DescriptionError.at(
        "explain", shown(subject), f"is nothing that this plan tells of; ask for {', '.join(known)}"
    )


def _memory(plan: Document) -> list[Derivation]:
    out: list[Derivation] = []
    for entry in plan.get("memory") or []:
        buffers = _buffers(plan, entry["device"])
        out += _lines(plan, entry, buffers)
        out += _padding(plan, entry, buffers)
        out += _totals(plan, entry)
    return out


def _buffers(plan: Document, arena: str) -> list[Document] | None:
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
            out.append(_without_buffers(plan, entry["device"], line, nbytes))
            continue
        mine = [b for b in buffers if _LINES.get(b["name"].split("/")[0]) == line]
        terms = _sum_terms(mine) or ("nothing of this kind",)
        follows = sum(_nbytes(b) for b in mine) == nbytes
        if mine or nbytes or not follows:
            out.append(Derivation(subject=subject, terms=terms, bytes=nbytes, follows=follows, about=about))
    return out


def _without_buffers(plan: Document, device: str, line: str, nbytes: int | None) -> Derivation:
    """A line of a plan without orders; the weights of a rank are told by the workers."""
    subject, about = f"{device} {line}", frozenset((device, line))
    rank = _rank_of(plan, device)
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
    wire = sum(_nbytes(buffer) for buffer in buffers)
    padded = [(order, held_bytes(order, sizes) - _nbytes(b)) for order, b in zip(orders, buffers, strict=True)]
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
        alike.setdefault((name, _product(buffer)), []).append(buffer)
    terms = []
    for (name, product), same in alike.items():
        times = f"{len(same)} layers x " if len(same) > 1 else ""
        terms.append(f"{times}{name} {product} = {sum(_nbytes(b) for b in same):,} B")
    return tuple(terms)


def _nbytes(buffer: Document) -> int:
    return math.prod(buffer["shape"]) * DTYPE_BYTES[buffer["dtype"]]


def _product(buffer: Document) -> str:
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
            terms=tuple(f"{name} {_told(nbytes)} B" for name, nbytes in parts.items() if nbytes != 0),
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
    formula = f"floor(capacity {_told(entry['capacity_bytes'])} B x utilization {share}) - reserve {_told(reserve)} B"
    out = [
        Derivation(
            subject=f"{device} budget",
            terms=(formula,),
            bytes=budget,
            follows=_budget(entry["capacity_bytes"], share, reserve) in (None, budget),
            about=frozenset((device, "budget")),
        ),
        _slack(f"{device} slack", budget, total, entry["slack_bytes"], frozenset((device, "slack"))),
    ]
    shared = entry.get("shared")
    if shared is not None:
        subject, about = f"{device} slack of {shared['physical']}", frozenset((device, "slack", shared["physical"]))
        out.append(_slack(subject, budget, shared["total_bytes"], shared["slack_bytes"], about))
    return out


def _slack(subject: str, budget: int, total: int | None, stated: int | None, about: frozenset[str]) -> Derivation:
    difference = f"budget {_told(budget)} B - total {_told(total)} B; admitted when not negative"
    right = None if total is None else budget - total
    return Derivation(subject=subject, terms=(difference,), bytes=stated, follows=right == stated, about=about)


def _budget(capacity: int | None, share: object, reserve: int | None) -> int | None:
    """floor(capacity * utilization) - reserve, at least 0; None where the plan does not say enough to tell."""
    if capacity is None or reserve is None or not isinstance(share, str):
        return None
    try:
        part = parse_utilization(share)
    except UnitError:
        return -1  # no share at all: nothing follows from it
    return max(capacity * part.numerator // part.denominator - reserve, 0)


def _told(figure: int | None) -> str:
    return "unknown" if figure is None else f"{figure:,}"


def _rows(plan: Document) -> list[Derivation]:
    out = []
    for row in plan.get("waybill") or []:
        legs = row.get("legs") or [row]
        formula, expected = _row_formula(plan, row)
        ways = " then ".join(f"{leg['src']}->{leg['dst']} {leg['kind']} x{_told(leg['copies'])}" for leg in legs)
        unknown = "" if row.get("legs") is not None else " (the physical way is unknown)"
        edges = {f"{part['src']}->{part['dst']}" for part in (row, *legs)}
        out.append(
            Derivation(
                subject=f"{row['phase']} {row['tensor']} {row['src']}->{row['dst']}",
                terms=(f"{formula}; carried {ways}{unknown}",),
                bytes=row["bytes"],
                follows=expected is None or expected == row["bytes"],
                about=frozenset((row["phase"], row["tensor"], *edges)),
            )
        )
    return out


def _handoff(plan: Document) -> list[Derivation]:
    """One traversal of k and v, however many legs it takes."""
    handoff = plan.get("handoff")
    if not handoff:
        return []
    rows = [r for r in plan.get("waybill") or [] if r["phase"] == "handoff" and r["kind"] in ("p2p", "d2d")]
    figures = [row["bytes"] for row in rows]
    whole = None if None in figures else sum(figures)
    return [
        Derivation(
            subject="handoff",
            terms=tuple(f"{row['tensor']} {_told(row['bytes'])} B" for row in rows),
            bytes=handoff["bytes"],
            follows=whole == handoff["bytes"],
            about=frozenset(("handoff",)),
        )
    ]


def _work(plan: Document) -> list[Derivation]:
    """Passes and dispatches of a phase: counts, not bytes."""
    inputs = plan.get("inputs") or {}
    model, work, passes = inputs.get("model"), inputs.get("workload"), plan.get("passes")
    if not model or not work or not passes:
        return []
    prompt, n_passes = work["prompt_tokens"], work["passes"]
    told = {
        "prefill": f"min(prompt tokens {prompt:,}, passes {n_passes:,}) = {min(prompt, n_passes):,}",
        "decode": f"max(0, passes {n_passes:,} - prompt tokens {prompt:,}) = {max(0, n_passes - prompt):,}",
    }
    right = {"prefill": min(prompt, n_passes), "decode": max(0, n_passes - prompt)}
    out = [
        Derivation(
            subject=f"{phase} passes",
            terms=(told[phase],),
            bytes=None,
            follows=passes[phase] == right[phase],
            about=frozenset((phase, "passes")),
        )
        for phase in ("prefill", "decode")
    ]
    dispatches = plan.get("dispatches")
    if dispatches is None:
        return out
    for phase in ("prefill", "decode"):
        formula, count = _dispatches(phase, passes[phase], model, work)
        out.append(
            Derivation(
                subject=f"{phase} dispatches",
                terms=(formula,),
                bytes=None,
                follows=dispatches.get(phase) in (None, count),
                about=frozenset((phase, "dispatches")),
            )
        )
    return out


def _dispatches(phase: str, passes: int, model: Document, work: Document) -> tuple[str, int]:
    """7 matmuls a layer and forward call, and the classifier where logits are computed."""
    layers = model["n_layers"]
    if phase == "decode" or work["attention"] == "host":
        count = passes * (7 * layers + 1)
        return f"{passes:,} passes x (7 x {layers} layers + 1 classifier) = {count:,}", count
    chunk = work.get("prefill_chunk")
    calls = -(-passes // (chunk if type(chunk) is int and chunk > 0 else 1))
    last = 1 if work["passes"] >= work["prompt_tokens"] else 0
    count = calls * 7 * layers + last
    return f"{calls:,} forward calls x 7 x {layers} layers + {last} classifier (the last position) = {count:,}", count


def _row_formula(plan: Document, row: Document) -> tuple[str, int | None]:
    """(formula with numbers, bytes it gives) of one row; the numbers come from the plan's inputs."""
    model, work = plan["inputs"]["model"], plan["inputs"]["workload"]
    batch, tensor, phase = work["batch"], row["tensor"], row["phase"]
    times = f" x batch {batch}" if batch > 1 else ""
    passes = plan["passes"].get(phase, 0)
    if tensor == "weights":
        if of_rank := _rank_of(plan, row["dst"]):
            place = f"stage {of_rank['stage']}, rank {of_rank['rank']}"
            words = f"the parts of {_told(row['copies'])} tensors that {place} holds, one copy each"
            return words, of_rank["weights_bytes"] if work["weights_dtype"] == model.get("weights_dtype") else None
        weights = [b for b in _buffers(plan, row["dst"]) or () if b["name"].startswith("weights/")]
        words = f"the {_told(row['copies'])} tensors that attention: {work['attention']} reads there, one copy each"
        return words, sum(_nbytes(b) for b in weights) if weights else None
    if isinstance(row.get("part"), dict):
        return _slice_formula(row, row["part"], work, times)
    if tensor in ("k", "v"):
        return _kv_formula(model, work, times, mapping(plan["inputs"].get("engine")).get("prefix_hit_tokens") or 0)
    if phase == "handoff":
        return _part_formula(plan, row, work)
    if tensor in ("tokens", "next_token"):
        drawn = bool(work.get("sampling"))
        every = (phase, tensor) in (("prefill", "tokens"), ("decode", "next_token")) or (drawn and phase == "decode")
        count = passes if every else 1
        told = _DRAWN if drawn and phase == "decode" else _IDS.get((phase, tensor), "of no phase known")
        return f"{count} ids x 4 B{times} ({told})", 4 * count * batch
    if tensor == "logits":
        count, vocab = passes if phase == "decode" else 1, model["vocab_size"]
        return f"{count} x {vocab} logits x 4 B{times} (the host draws an id from each)", 4 * count * vocab * batch
    per_pass = row.get("per_pass") or {}
    nbytes, copies = per_pass.get("bytes"), per_pass.get("copies")
    return (
        f"{passes} passes x {_told(nbytes)} B and {_told(copies)} copies a pass"
        f" (operands of 7 x {model['n_layers']} projections and the classifier, 4 B an element)",
        None if nbytes is None else passes * nbytes,
    )


def _rank_of(plan: Document, device: str) -> Document | None:
    """What the plan says of the rank on a device; None for plans of single devices."""
    workers = plan.get("workers") or {}
    ranks = (rank for phase in ("prefill", "decode") for rank in (workers.get(phase) or {}).get("ranks", ()))
    return next((rank for rank in ranks if rank["device"] == device), None)


def _slice_formula(row: Document, part: Document, work: Document, times: str) -> tuple[str, int | None]:
    """What one rank hands to another, of one part of the cache."""
    element = DTYPE_BYTES.get(part["dtype"], 0)
    one = part["layers"] * part["elements"] * element * work["batch"]
    tokens, rest = divmod(row["bytes"] or 0, one) if one else (0, 1)
    held = "a state" if part["is_state"] else f"{tokens:,} positions (kv_extent {work['kv_extent']})"
    formula = f"{part['layers']} layers x {held} x {part['elements']:,} elements x {element} B{times}"
    return formula, None if rest else one * tokens


def _part_formula(plan: Document, row: Document, work: Document) -> tuple[str, int | None]:
    """A part of a cache that is no k and v: its buffer, as far as the extent carries it."""
    name = f"/decode/{row['tensor']}"
    buffer = next((b for b in _buffers(plan, row["dst"]) or () if b["name"].endswith(name)), None)
    extent = work["kv_extent"]
    if buffer is None:
        return f"{row['tensor']}, kv_extent {extent}", None
    if extent == "allocated":
        return f"the whole buffer {_product(buffer)}", _nbytes(buffer)
    copies = _told(row["copies"])
    return f"{copies} copies of what kv_extent {extent} fills of {_product(buffer)}: windows and states whole", None


_IDS = {
    ("prefill", "tokens"): "the prompt ids walked",
    ("prefill", "next_token"): "the first sampled id",
    ("decode", "tokens"): "the first sampled id; later ones stay on the device",
    ("decode", "next_token"): "the sampled id of every pass",
}


_DRAWN = "the id that the host drew, every pass"


def _kv_formula(model: Document, work: Document, times: str, hit: int = 0) -> tuple[str, int]:
    layers, width = model["n_layers"], model["n_kv_heads"] * model["head_dim"]
    element = DTYPE_BYTES[work["kv_dtype"]]
    extent, prompt = work["kv_extent"], work["prompt_tokens"]
    if extent == "allocated":
        moved, words = work["positions"], f"{work['positions']} allocated positions, the array in one copy"
    elif extent.startswith("blocks:"):
        block = int(extent.removeprefix("blocks:"))
        blocks = -(-prompt // block) - hit // block if hit < prompt else 0
        moved, words = blocks * block, f"{blocks} blocks of {block} positions, one copy a layer and block"
    else:
        moved, words = prompt - hit, f"{prompt - hit} filled positions, one copy a layer"
    formula = f"{layers} layers x {moved} positions x {width} x {element} B{times} ({words})"
    return formula, layers * moved * width * element * work["batch"]


def _reasons(plan: Document) -> list[Derivation]:
    return [
        Derivation(
            subject=reason["code"],
            terms=(f"{CODES.get(reason['code'], '')} Here: {reason['message']}",),
            bytes=reason.get("shortfall_bytes"),
            about=frozenset((reason["code"],)),
        )
        for reason in plan.get("reasons") or []
    ]


def explanation_document(plan: Document, derivations: list[Derivation]) -> Document:
    """`kvwaybill/explanation/1`: the derivations as data."""
    return {
        "schema": "kvwaybill/explanation/1",
        "plan_id": plan.get("id"),
        "derivations": [
            {"subject": d.subject, "formula": d.formula, "terms": list(d.terms), "bytes": d.bytes, "follows": d.follows}
            | ({} if d.figure is None else {"figure": d.figure})
            for d in derivations
        ],
        "limits": plan.get("limits") or [],
    }


def explanation_text(
    plan: Document, derivations: list[Derivation], *, color: bool = False, width: int | None = None
) -> str:
    """The derivations for people: one figure a paragraph, one term a line."""
    from fleet.units import format_bytes
    from scenarios.table import Paint, safe
    from scenarios.words import asked, joined, limits_block, placed, verdict_word

    paint = Paint(color, width)
    inputs = plan.get("inputs") or {}
    head = f"{verdict_word(plan['verdict'], paint)}  {placed(inputs, plan.get('placement') or {})}"
    lines = []
    for derivation in derivations:
        told = derivation.figure if derivation.bytes is None else format_bytes(derivation.bytes)
        figure = "" if told is None else f" = {told}"
        broken = "" if derivation.follows else f"   {paint('DOES NOT FOLLOW from its parts', 'red')}"
        lines += paint.fold(f"{paint(safe(derivation.subject), 'bold')}{figure}{broken}", 2)
        for index, term in enumerate(derivation.terms):
            lines += paint.fold(f"    {'+ ' if index else '  '}{safe(term)}", 8)
    head_lines = [*paint.fold(head), *asked(inputs, plan.get("id"), paint)]
    return joined([head_lines, lines, limits_block(plan, paint)])
