"""Whether orders can be carried out with these weights: every reason why not, at once, before anything is allocated.

What the executor cannot do is refused in words although it may have been priced: batch above 1, types that it does not
compute, layouts that it does not have, prompts of which only the count is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from executor.check_stored import check_checkpoint, check_types
from executor.packed.layout import LAYOUT, packs_weight
from executor.room import check_room
from fleet.errors import DescriptionError, Fault
from fleet.model import Model
from planner.orders import Orders, Step

_LLAMA2C = ("llama2c-v0", "llama2c-v1", "seeded")
_ROPE_THETA, _NORM_EPS = 10000.0, 1e-5


def check_orders(orders: Orders, model: Model) -> None:
    """Raises DescriptionError with every fault of the orders, of the model, and of the two together."""
    found = [*_workload(orders, model), *_model(model)]
    if not found:
        found = [*_devices(orders), *_buffers(orders, model)]
    if not found:  # steps are measured by the buffers
        found = [*_steps(orders, model), *check_room(orders, model)]
    if found:
        raise DescriptionError([Fault(source="orders", field=field, message=message) for field, message in found])


def _workload(orders: Orders, model: Model) -> Iterator[tuple[str, str]]:
    work = orders.workload
    if work.batch != 1:
        yield "workload.batch", f"{work.batch} sequences at once are priced, not run; admit with --batch 1"
    if model.recipe is not None:
        yield from check_types(orders, model)
    else:
        for field, dtype in (("weights_dtype", work.weights_dtype), ("kv_dtype", work.kv_dtype)):
            if dtype != "fp32":
                yield f"workload.{field}", f"the executor computes fp32, not {dtype}; admit with fp32"
    if work.layout not in ("plain", LAYOUT):
        yield "workload.layout", f"layout {work.layout!r} is not known to this executor; admit with --layout plain"
    if work.layout == LAYOUT and work.attention == "host":
        yield "workload.layout", f"layout {LAYOUT} needs attention on the device; admit with --layout plain"
    if work.attention == "host" and work.prefill_chunk != 1:
        yield "workload.prefill_chunk", f"{work.prefill_chunk}: attention on the host runs token by token; use 1"
    if min(work.passes, work.prefill_chunk) < 1 or not work.passes <= work.positions <= model.seq_len:
        yield (
            "workload.positions",
            (
                f"{work.passes} passes, {work.positions} positions and a model of {model.seq_len} do not fit; "
                "passes <= positions <= seq_len must hold"
            ),
        )
    ids = work.prompt_ids
    if ids is None:
        yield "workload.prompt_ids", f"only a count of {work.prompt_tokens} is known; give a prompt of that many tokens"
    elif len(ids) != work.prompt_tokens or not ids:
        yield "workload.prompt_ids", f"{len(ids)} ids where {work.prompt_tokens} are ordered; admit again"
    elif bad := [token for token in ids if not 0 <= token < model.vocab_size]:
        yield "workload.prompt_ids", f"id {bad[0]} is outside the vocabulary of {model.vocab_size}; use its tokenizer"


def _model(model: Model) -> Iterator[tuple[str, str]]:
    if model.unknown:
        yield "model", "; ".join(model.unknown)
    if model.recipe is not None:
        yield from check_checkpoint(model)
        return
    if model.format not in _LLAMA2C:
        yield (
            "model",
            f"{model.name} is {model.format}: run are llama2.c checkpoints and folders of safetensors with config.json",
        )
    if (model.rope_theta, model.norm_eps) != (_ROPE_THETA, _NORM_EPS):
        yield "model", f"rope_theta {model.rope_theta:g} and norm_eps {model.norm_eps:g} are not llama2.c's"


def _devices(orders: Orders) -> Iterator[tuple[str, str]]:
    listed = {arena.arena: arena for arena in orders.arenas}
    fenced = {fence.arena for fence in orders.fences}
    ids = [device.id for device in orders.devices]
    for phase, device in (("prefill", orders.prefill), ("decode", orders.decode)):
        if device not in ids:
            yield phase, f"{device!r} is not among the devices {', '.join(ids)}"
    if len({device.host for device in orders.devices}) > 1:
        yield "devices", "they sit on several hosts; this executor runs on one"
    for device in ids:
        if device not in listed or listed[device].device != device:
            yield "arenas", f"{device} has no arena of its name"
    for arena in listed:
        if arena not in fenced:
            yield "fences", f"arena {arena} has none; admit again"


def needed_buffers(orders: Orders, model: Model) -> dict[str, dict[str, tuple[tuple[int, ...], str]]]:
    """(shape, dtype) of every buffer that a run reads or writes, by arena and name, from the model and the modes.

    A cache's and a scratch row's positions are given as -1: any number from `passes` on will do.
    """
    work = orders.workload
    needed: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {}
    for phase, device in (("prefill", orders.prefill), ("decode", orders.decode)):
        held = needed.setdefault(device, {})
        held |= {f"weights/{t.name}": (t.shape, t.dtype) for t in model.staged_tensors(work.attention)}
        caches = {f"kv/{phase}/{t}": ((model.n_layers, -1, model.kv_dim), work.kv_dtype) for t in ("k", "v")}
        held |= caches
        if work.attention == "host":
            needed[f"host:{phase}"] = dict(caches)
            held |= {"act/in": ((-1,), "fp32"), "act/out": ((-1,), "fp32")}
        else:
            held |= _activations(model, work.layout)
    if any(step.mode == "staged" for step in orders.steps):
        needed["host:bounce"] = {"bounce": ((-1, model.kv_dim), work.kv_dtype)}
    return needed


def _activations(model: Model, layout: str) -> dict[str, tuple[tuple[int, ...], str]]:
    table = (-1, model.head_dim // 2)
    # A paged cache cannot be computed in place, so its rows come first.
    paged = {f"act/{name}": ((-1, model.kv_dim), "fp32") for name in ("k", "v")} if layout == LAYOUT else {}
    return paged | {
        "act/tokens": ((-1,), "int32"),
        **{f"act/{name}": ((-1, model.dim), "fp32") for name in ("x", "xb2")},
        "act/xb": ((-1, max(model.dim, model.q_dim)), "fp32"),
        "act/q": ((-1, model.q_dim), "fp32"),
        **{f"act/{name}": ((-1, model.hidden_dim), "fp32") for name in ("hb", "hb2")},
        "act/att": ((model.n_heads, -1), "fp32"),
        "act/logits": ((model.vocab_size,), "fp32"),
        "act/next": ((1,), "int32"),
        "work/rope_cos": (table, "fp32"),
        "work/rope_sin": (table, "fp32"),
    }


def _buffers(orders: Orders, model: Model) -> Iterator[tuple[str, str]]:
    listed = {arena.arena: {b.name: b for b in arena.buffers} for arena in orders.arenas}
    for arena, wanted in needed_buffers(orders, model).items():
        least = _least(orders, model, arena)
        for name, (shape, dtype) in wanted.items():
            buffer = listed.get(arena, {}).get(name)
            if buffer is None:
                yield f"arenas[{arena}]", f"lists no buffer {name}, which this run needs; admit again"
            elif (buffer.dtype, buffer.layout) != (dtype, layout := _layout(orders, model, name)):
                yield f"arenas[{arena}].{name}", f"is {buffer.dtype} {buffer.layout}; the run needs {dtype} {layout}"
            elif not _fits(buffer.shape, shape, least.get(name, 0)):
                told = [str(extent) if extent >= 0 else f">= {least.get(name, 0)}" for extent in shape]
                yield f"arenas[{arena}].{name}", f"has shape {list(buffer.shape)}; the model needs [{', '.join(told)}]"


def _layout(orders: Orders, model: Model, name: str) -> str:
    """The layout that a buffer must have: caches and weights with rows follow the orders, all else is plain."""
    prefix, _, tensor = name.partition("/")
    packs = prefix == "kv" or (prefix == "weights" and packs_weight(model, tensor))
    return orders.workload.layout if packs else "plain"


def _least(orders: Orders, model: Model, arena: str) -> dict[str, int]:
    """The least extent of each buffer's open axis."""
    work = orders.workload
    rows = min(work.prefill_chunk, work.passes, work.prompt_tokens) if arena == orders.prefill else 1
    least: dict[str, int] = dict.fromkeys(("tokens", "x", "xb", "xb2", "q", "k", "v", "hb", "hb2"), rows)
    least |= {"att": work.passes, "in": max(model.dim, model.q_dim, model.hidden_dim)}
    least["out"] = max(model.dim, model.q_dim, model.hidden_dim, model.kv_dim, model.vocab_size)
    named = {f"act/{name}": extent for name, extent in least.items()}
    named |= {f"kv/{phase}/{t}": work.passes for phase in ("prefill", "decode") for t in ("k", "v")}
    return named | {"work/rope_cos": work.passes, "work/rope_sin": work.passes, "bounce": 1}


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...], least: int) -> bool:
    return len(shape) == len(wanted) and all(
        got >= least if extent < 0 else got == extent for got, extent in zip(shape, wanted, strict=True)
    )


def _steps(orders: Orders, model: Model) -> Iterator[tuple[str, str]]:
    shapes = {(a.arena, b.name): b.shape for a in orders.arenas for b in a.buffers}
    names = {t.name for t in model.tensors}
    phases = [step.op for step in orders.steps if step.op in ("prefill", "decode")]
    if phases not in (["prefill"], ["prefill", "decode"]):
        yield "steps", f"run {', '.join(phases) or 'no phase'}; one prefill, and at most one decode after it"
    for number, step in enumerate(orders.steps):
        where = f"steps[{number}]"
        if step.op == "stage" and (step.tensor not in names or (step.dst, f"weights/{step.tensor}") not in shapes):
            yield where, f"stages {step.tensor!r} to {step.dst}, which the model or the arena does not have"
        elif step.op in ("prefill", "decode") and step.dst != getattr(orders, step.op):
            yield where, f"runs {step.op} on {step.dst}; the placement says {getattr(orders, step.op)}"
        elif step.op == "handoff":
            yield from ((where, message) for message in _handoff(orders, step, shapes))


def _handoff(orders: Orders, step: Step, shapes: dict[tuple[str, str], tuple[int, ...]]) -> Iterator[str]:
    prefill, decode = orders.prefill, orders.decode
    across = ("local",) if prefill == decode else ("direct", "staged")
    hops = dict.fromkeys(across, (prefill, decode))
    if orders.workload.attention == "host":
        hops |= {"up": ("host:prefill", prefill), "down": (decode, "host:decode")}
    if (step.src, step.dst) != hops.get(step.mode or ""):
        yield f"{step.mode} from {step.src} to {step.dst} is no hop of this placement"
    elif step.tensor not in ("k", "v") or step.layers is None or step.positions is None:
        yield "names no tensor k or v, layers and positions"
    else:
        src_phase, dst_phase = (
            "decode" if step.mode == "down" else "prefill",
            "prefill" if step.mode == "up" else "decode",
        )
        ends = [(step.src, f"kv/{src_phase}/{step.tensor}"), (step.dst, f"kv/{dst_phase}/{step.tensor}")]
        yield from _extent(step, step.layers, step.positions, [shapes[arena or "", name] for arena, name in ends])
        if step.mode == "staged" and not 0 < (step.chunk or 0) <= shapes["host:bounce", "bounce"][0]:
            yield f"is staged {step.chunk} positions at a time, which the bounce buffer does not hold"
    if step.layout != orders.workload.layout:
        yield f"layout {step.layout!r} is not that of the workload, {orders.workload.layout!r}"


def _extent(
    step: Step, layers: tuple[int, int], positions: tuple[int, int], shapes: list[tuple[int, ...]]
) -> Iterator[str]:
    (l0, l1), (p0, p1) = layers, positions
    held_layers, held_positions = (min(extents) for extents in list(zip(*shapes, strict=True))[:2])
    if not (0 <= l0 < l1 <= held_layers and 0 <= p0 < p1 <= held_positions):
        yield f"copies layers {l0}..{l1 - 1} and positions {p0}..{p1 - 1} of {held_layers} and {held_positions}"
    if step.unit == "block" and (step.block or 0) < 1:
        yield "copies by blocks of no size"
    if step.unit == "array" and any((l0, l1, p0, p1) != (0, shape[0], 0, shape[1]) for shape in shapes):
        yield "copies an array, but not all of it; use the layer as unit"
