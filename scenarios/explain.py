"""How a number of a plan came about: its formula, the numbers put in, and where each came from.

Everything is recomputed here from the plan's inputs and orders and set beside the plan's own figure; a figure that
does not follow from its parts is told so.
"""

from __future__ import annotations

from fleet.errors import DescriptionError
from fleet.model import DTYPE_BYTES
from scenarios.derivation import Derivation, Document
from scenarios.explain_memory import buffers_of, counted, explain_memory, nbytes_of, product_of, rank_of
from scenarios.explain_times import explain_times
from scenarios.shapes import shown
from scenarios.words import mapping

CODES = {
    "EXCEEDS_CAPACITY": "A device's total is larger than its memory. No budget helps; hold less or take another.",
    "EXCEEDS_BUDGET": "A device's total fits its memory but not the share that may be used (utilization, reserve).",
    "EXCEEDS_FREE": "A device's total fits its memory, but not beside what others hold of it (--in-use).",
    "IN_USE_UNKNOWN": "How much others hold of the device is not said (--in-use). Nothing is admitted on an unknown.",
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
    found = [*explain_memory(plan), *_rows(plan), *_handoff(plan), *explain_times(plan), *_work(plan), *_reasons(plan)]
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


def _rows(plan: Document) -> list[Derivation]:
    out = []
    for row in plan.get("waybill") or []:
        legs = row.get("legs") or [row]
        formula, expected = _row_formula(plan, row)
        ways = " then ".join(f"{leg['src']}->{leg['dst']} {leg['kind']} x{counted(leg['copies'])}" for leg in legs)
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
            terms=tuple(f"{row['tensor']} {counted(row['bytes'])} B" for row in rows),
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
        if of_rank := rank_of(plan, row["dst"]):
            place = f"stage {of_rank['stage']}, rank {of_rank['rank']}"
            words = f"the parts of {counted(row['copies'])} tensors that {place} holds, one copy each"
            return words, of_rank["weights_bytes"] if work["weights_dtype"] == model.get("weights_dtype") else None
        weights = [b for b in buffers_of(plan, row["dst"]) or () if b["name"].startswith("weights/")]
        words = f"the {counted(row['copies'])} tensors that attention: {work['attention']} reads there, one copy each"
        return words, sum(nbytes_of(b) for b in weights) if weights else None
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
        f"{passes} passes x {counted(nbytes)} B and {counted(copies)} copies a pass"
        f" (operands of 7 x {model['n_layers']} projections and the classifier, 4 B an element)",
        None if nbytes is None else passes * nbytes,
    )


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
    buffer = next((b for b in buffers_of(plan, row["dst"]) or () if b["name"].endswith(name)), None)
    extent = work["kv_extent"]
    if buffer is None:
        return f"{row['tensor']}, kv_extent {extent}", None
    if extent == "allocated":
        return f"the whole buffer {product_of(buffer)}", nbytes_of(buffer)
    copies = counted(row["copies"])
    return f"{copies} copies of what kv_extent {extent} fills of {product_of(buffer)}: windows and states whole", None


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
