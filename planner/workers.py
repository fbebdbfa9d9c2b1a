"""Workers of several GPUs: which rank holds what, and which rank hands what to which. Arithmetic for admission only.

A worker serves one phase on tp x pp devices, stage by stage: device number stage * tp + rank. Layers are divided among
stages in runs as even as can be, the first stages taking one more. Within a stage each cached unit (a KV head, a head
of recurrent state, a latent) lies on one rank, or is copied to tp / units ranks. `planner.sharding` divides weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from fleet.model import Model
from fleet.models.layers import KINDS, CacheLayer, layers_on_rank, split_or_copied
from fleet.placement import PHASES, Placement
from fleet.same import Same
from planner.caches import CachePart, PartKey, part_keys, part_names
from planner.sharding import Cut, division_unknown, rank_tensors

MOST_RANKS = 1024
"""More ranks in one worker are a slip, not a placement."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One device of a worker, and its part of the model."""

    device: str
    stage: int
    cut: Cut

    @property
    def layers(self) -> tuple[int, int]:
        """[first, end) of the layers that its stage holds."""
        return self.cut.layers


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """What one rank of prefill hands to one rank of decode of one part of the cache."""

    src: str
    dst: str
    part: CachePart


def stage_bounds(layers: int, stages: int) -> tuple[tuple[int, int], ...]:
    """[first, end) of each stage: even runs, the first layers % stages of them one longer."""
    each, more = divmod(layers, stages)
    starts = [stage * each + min(stage, more) for stage in range(stages + 1)]
    return tuple(itertools.pairwise(starts))


def ranks_of(model: Model, placement: Placement, phase: str) -> tuple[Rank, ...]:
    """The ranks of a phase, stage by stage."""
    devices, tp, pp = placement.ranks(phase), placement.tensor_parallel(phase), placement.pipeline(phase)
    return tuple(
        Rank(
            device=devices[stage * tp + rank], stage=stage,
            cut=Cut(ranks=tp, rank=rank, layers=bounds, first=stage == 0, last=stage == pp - 1),
        )
        for stage, bounds in enumerate(stage_bounds(model.n_layers, pp))
        for rank in range(tp)
    )  # fmt: skip


def rank_model(model: Model, cut: Cut) -> Model:
    """The model as one rank holds it: its layers, heads and tensors; all widths that are not divided stay."""
    return _rank_model(Same(model), cut)


@lru_cache(maxsize=128)
def _rank_model(same: Same[Model], cut: Cut) -> Model:
    model = same.value
    first, end = cut.layers
    n_kv_heads = split_or_copied(model.n_kv_heads, cut.ranks) if model.n_kv_heads else 0
    layers = None if model.layers is None else layers_on_rank(model.layers[first:end], cut.ranks)
    return replace(
        model,
        n_layers=end - first,
        n_heads=max(1, model.n_heads // cut.ranks),
        n_kv_heads=n_kv_heads or model.n_kv_heads,
        hidden_dim=-(-model.hidden_dim // cut.ranks),
        layers=layers,
        tensors=rank_tensors(model, cut),
    )


def worker_faults(model: Model, placement: Placement) -> Iterator[tuple[str, str]]:
    """(field, words) of degrees that this model cannot be divided by."""
    for phase in PHASES:
        tp, pp = placement.tensor_parallel(phase), placement.pipeline(phase)
        if pp > model.n_layers:
            yield f"{phase}_pp", f"{pp} pipeline stages for {model.n_layers} layers; use {model.n_layers} or fewer"
        if words := degree_fault(model, tp):
            yield f"{phase}_tp", words


def degree_fault(model: Model, tp: int) -> str | None:
    """In words, why a model cannot be divided among so many tensor-parallel ranks; None where it can."""
    if tp == 1:
        return None
    usable = ", ".join(str(n) for n in degrees(model, 64)) or "1"
    if model.n_heads % tp:
        return f"{model.n_heads} query heads of {model.name} do not divide by {tp} ranks; use {usable}"
    if layers_on_rank(model.caches, tp) is not None:
        return None
    bad = next(layer for layer in dict.fromkeys(model.caches) if layers_on_rank((layer,), tp) is None)
    units = bad.heads or bad.state_heads
    return f"{units} heads of the {bad.kind} layers of {model.name} and {tp} ranks do not divide; use {usable}"


def degrees(model: Model, most: int) -> tuple[int, ...]:
    """The tensor-parallel degrees up to `most` that divide the heads of a model."""
    kinds = tuple(dict.fromkeys(model.caches))
    return tuple(tp for tp in range(1, most + 1) if model.n_heads % tp == 0 and layers_on_rank(kinds, tp) is not None)


def worker_unknown(model: Model, placement: Placement) -> tuple[str, ...]:
    """In words, the tensors whose part on one rank is not known."""
    cuts = {replace(rank.cut, rank=0) for phase in PHASES for rank in ranks_of(model, placement, phase)}
    words = (
        told for cut in sorted(cuts, key=lambda cut: (cut.ranks, cut.layers)) for told in division_unknown(model, cut)
    )
    return tuple(dict.fromkeys(words))


def shared_units(units: int, sources: int, receivers: int) -> dict[tuple[int, int], int]:
    """{(source rank, receiver rank): units handed over}, of units split or copied on either side.

    A receiver takes each of its units from one rank that has it; of several copies from the one that stands where it
    stands among the copies of its own side, so that the copies share the work.
    """
    taken: dict[tuple[int, int], int] = {}
    copies_out, copies_in = max(1, sources // units), max(1, receivers // units)
    for receiver in range(receivers):
        held = range(
            receiver * units // receivers, max((receiver + 1) * units // receivers, receiver * units // receivers + 1)
        )
        if sources > units:
            turn = receiver % copies_in * copies_out // copies_in
            taken |= {(unit * copies_out + turn, receiver): 1 for unit in held}
            continue
        size = units // sources  # a source has so many in a row
        for source in range(held.start // size, (held.stop - 1) // size + 1):
            taken[source, receiver] = min(held.stop, (source + 1) * size) - max(held.start, source * size)
    return taken


def slices(model: Model, kv_dtype: str, placement: Placement) -> tuple[Slice, ...]:
    """Everything that is handed over for one sequence, rank to rank; in the order of parts, sources and receivers."""
    names = part_names(model, kv_dtype)
    sources, receivers = ranks_of(model, placement, "prefill"), ranks_of(model, placement, "decode")
    widths: dict[tuple[str, str, str, PartKey, int], int] = {}
    for src_stage, dst_stage, layer, count in _layer_runs(model, sources, receivers):
        for key in part_keys(layer, kv_dtype):
            for pair, width in _widths(layer, key, sources[0].cut.ranks, receivers[0].cut.ranks).items():
                src = sources[src_stage * sources[0].cut.ranks + pair[0]].device
                dst = receivers[dst_stage * receivers[0].cut.ranks + pair[1]].device
                one = (names[key], src, dst, key, width)
                widths[one] = widths.get(one, 0) + count
    order = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    return tuple(
        Slice(src=src, dst=dst, part=CachePart(
            name=name, layers=count, width=width, dtype=key.dtype, window=key.window, is_state=key.is_state,
        ))
        for (name, src, dst, key, width), count in sorted(widths.items(), key=lambda item: order[item[0][0]])
    )  # fmt: skip


def _layer_runs(
    model: Model, sources: tuple[Rank, ...], receivers: tuple[Rank, ...]
) -> Iterator[tuple[int, int, CacheLayer, int]]:
    """(prefill stage, decode stage, layer, how many equal layers) of each pair of stages that share layers."""
    layers = model.caches
    for src in {rank.stage: rank for rank in sources}.values():
        for dst in {rank.stage: rank for rank in receivers}.values():
            counts: dict[CacheLayer, int] = {}
            for layer in layers[max(src.layers[0], dst.layers[0]) : min(src.layers[1], dst.layers[1])]:
                counts[layer] = counts.get(layer, 0) + 1
            for layer, count in counts.items():
                yield src.stage, dst.stage, layer, count


def _widths(layer: CacheLayer, key: PartKey, sources: int, receivers: int) -> dict[tuple[int, int], int]:
    """{(source rank, receiver rank): elements of one position (or state)} of one part of one layer."""
    out: dict[tuple[int, int], int] = {}
    for units, width in unit_widths(layer, key):
        for pair, count in shared_units(units, sources, receivers).items():
            out[pair] = out.get(pair, 0) + count * width
    return out


def unit_widths(layer: CacheLayer, key: PartKey) -> tuple[tuple[int, int], ...]:
    """(units, elements of one) of a part: what ranks divide or copy whole. Their products sum to the part's width."""
    if not key.is_state:
        return ((layer.heads, key.width // layer.heads),) if layer.heads else ((1, key.width),)
    if key.name == "state":
        return ((layer.state_heads, layer.state_unit),)
    channels = layer.conv_columns * layer.conv_channels // layer.state_heads
    groups = layer.conv_columns * layer.conv_group_dim
    return ((layer.state_heads, channels), *(((layer.conv_groups, groups),) if layer.conv_groups else ()))


def copies_of(layers: tuple[CacheLayer, ...], tp: int) -> dict[str, int]:
    """How many ranks hold each unit, by kind of layer; kinds that keep nothing are left out."""
    found: dict[str, int] = {}
    for layer in dict.fromkeys(layers):
        if KINDS[layer.kind].growth != "none":
            units = layer.heads or layer.state_heads or 1
            found[layer.kind] = max(1, tp // units)
    return found
