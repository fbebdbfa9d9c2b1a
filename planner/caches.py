"""The parts of a model's cache: what is laid out in an arena and handed over alike, whatever kinds of layers keep it.

A dense decoder has two parts, k and v, of one shape: the wire layout that the executor runs. Any other model has a part
for each sort of layer (`k.sliding`, `latent`, `state`): priced here, run by nobody. Bytes are those of
`fleet.models.kv`, part by part; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from fleet.model import DTYPE_BYTES, Model
from fleet.models.layers import KINDS, CacheLayer
from fleet.same import Same
from fleet.workload import Workload
from planner.orders import BufferOrder

_PLAIN = ("k", "v")


@dataclass(frozen=True, kw_only=True, slots=True)
class CachePart:
    """`layers` layers of `width` elements a position; a window keeps `window` positions at most.

    `is_state`: `width` elements a layer however many positions there are.
    """

    name: str
    layers: int
    width: int
    dtype: str
    window: int | None = None
    is_state: bool = False

    @property
    def position_bytes(self) -> int:
        """Bytes of one position (or of the state) in one layer."""
        return self.width * DTYPE_BYTES[self.dtype]

    def held(self, positions: int) -> int:
        """Positions that one layer keeps of so many; a state counts as one."""
        if self.is_state:
            return 1
        return positions if self.window is None else min(positions, self.window)


class PartKey(NamedTuple):
    """What makes two layers keep the same part: `width` elements a position, or in all where `is_state`."""

    name: str
    width: int
    dtype: str
    window: int | None
    is_state: bool


def cache_parts(model: Model, kv_dtype: str) -> tuple[CachePart, ...]:
    """The parts of one sequence's cache, in the order of the layers that keep them first."""
    if model.is_plain_cache:
        return _plain_parts(model.n_layers, model.kv_dim, kv_dtype)
    return _parts(Same(model.caches), kv_dtype)


@lru_cache(maxsize=64)
def _plain_parts(layers: int, width: int, kv_dtype: str) -> tuple[CachePart, ...]:
    return tuple(CachePart(name=name, layers=layers, width=width, dtype=kv_dtype) for name in _PLAIN)


def held_parts(model: Model, workload: Workload) -> tuple[CachePart, ...]:
    """`cache_parts` as a workload keeps them: without windows where its engine does not use them."""
    parts = cache_parts(model, workload.kv_dtype)
    return tuple(held_part(part, workload) for part in parts) if workload.whole_windows else parts


def held_part(part: CachePart, workload: Workload) -> CachePart:
    """A part without its window where the workload's engine does not use it."""
    return replace(part, window=None) if workload.whole_windows and part.window is not None else part


@lru_cache(maxsize=64)
def _parts(layers: Same[tuple[CacheLayer, ...]], kv_dtype: str) -> tuple[CachePart, ...]:
    counts: dict[PartKey, int] = {}
    for layer in layers.value:
        for key in part_keys(layer, kv_dtype):
            counts[key] = counts.get(key, 0) + 1
    names = _named(tuple(counts))
    return tuple(
        CachePart(
            name=names[key], layers=count, width=key.width, dtype=key.dtype, window=key.window, is_state=key.is_state
        )
        for key, count in counts.items()
    )


def _named(keys: tuple[PartKey, ...]) -> dict[PartKey, str]:
    """The name of each part: that of its key, numbered from the second of one name on."""
    seen: dict[str, int] = {}
    names = {}
    for key in keys:
        number = seen[key.name] = seen.get(key.name, 0) + 1
        names[key] = key.name if number == 1 else f"{key.name}.{number}"
    return names


def part_names(model: Model, kv_dtype: str) -> dict[PartKey, str]:
    """The name in `cache_parts` of each part that a layer of the model keeps, in their order."""
    keys = tuple(dict.fromkeys(key for layer in model.caches for key in part_keys(layer, kv_dtype)))
    return dict(zip(keys, _PLAIN, strict=True)) if model.is_plain_cache else _named(keys)


def part_keys(layer: CacheLayer, kv_dtype: str) -> Iterator[PartKey]:
    """The parts that one layer keeps."""
    growth = KINDS[layer.kind].growth
    if growth == "none":
        return
    if growth == "constant":
        yield PartKey("state", layer.state_elements, layer.state_dtype or "fp32", None, True)
        if layer.conv_elements:
            conv = kv_dtype if kv_dtype in ("bf16", "fp16", "fp32") else "bf16"
            yield PartKey("conv", layer.conv_elements, conv, None, True)
    elif layer.latent_dim:
        yield PartKey("latent", layer.latent_dim + layer.rope_dim, kv_dtype, layer.window, False)
        if layer.index_dim:
            yield PartKey("index", layer.index_dim, kv_dtype, layer.window, False)
    else:
        for name, width in (("k", layer.key_dim), ("v", layer.value_dim)):
            yield PartKey(f"{name}.{layer.kind}", layer.heads * width, kv_dtype, layer.window, False)


def cache_buffers(model: Model, workload: Workload, phase: str, layout: str) -> tuple[BufferOrder, ...]:
    """The buffers of a phase: `kv/<phase>/k` and `v` of a dense decoder, else `cache/<phase>/<part>`, never run."""
    plain = model.is_plain_cache
    buffers = []
    for part in held_parts(model, workload):
        shape: tuple[int, ...] = (part.layers, part.held(workload.cache_positions), part.width)
        if workload.batch > 1:
            shape = (workload.batch, *shape)  # priced only: the executor runs batch 1
        name = f"{'kv' if plain else 'cache'}/{phase}/{part.name}"
        buffers.append(BufferOrder(name=name, shape=shape, dtype=part.dtype, layout=layout if plain else "plain"))
    return tuple(buffers)


def part_transfer(part: CachePart, workload: Workload) -> tuple[int, int, int]:
    """(payload bytes, bytes moved, copies) of one traversal of a part.

    filled: a copy a layer of the positions that it keeps of the P of the prompt. allocated: the whole array at once.
    blocks:N: whole blocks, one copy a layer and block. Payload is always what the filled positions take. Of positions
    that decode has already none is moved: `filled` leaves out each, `blocks:N` those that fill whole blocks.
    """
    batch, prompt = workload.batch, asked_positions(part, workload)
    position = part.position_bytes * batch
    payload = part.layers * prompt * position
    if not prompt:
        return 0, 0, 0
    if workload.kv_extent == "allocated":
        return payload, part.layers * part.held(workload.cache_positions) * position, batch
    block = None if part.is_state else workload.block_tokens
    if block is None:
        return payload, payload, part.layers * batch
    blocks = blocks_moved(part, workload, block)
    return payload, part.layers * blocks * block * position, part.layers * blocks * batch


def asked_positions(part: CachePart, workload: Workload) -> int:
    """Positions of the prompt that one layer keeps and decode does not have yet; a state counts as one."""
    missing = workload.prompt_tokens - workload.prefix_hit
    return min(part.held(workload.prompt_tokens), missing) if missing else 0


def blocks_moved(part: CachePart, workload: Workload, block: int) -> int:
    """The last blocks of the prompt that decode does not hold whole, and no more than the layer keeps."""
    if not asked_positions(part, workload):
        return 0
    missing = -(-workload.prompt_tokens // block) - workload.prefix_hit // block
    return min(-(-part.held(workload.prompt_tokens) // block), missing)


def part_staged_copies(part: CachePart, workload: Workload, chunk: int) -> int:
    """Copies of one staged leg: L * ceil(P / chunk); a block is cut in chunks, the array only when it does not fit."""
    batch, layers = workload.batch, part.layers
    prompt = asked_positions(part, workload)
    if not prompt:
        return 0
    if part.is_state:
        return layers * batch
    if workload.kv_extent == "allocated":
        positions = part.held(workload.cache_positions)
        return batch if chunk >= layers * positions else layers * -(-positions // chunk) * batch
    if workload.block_tokens is not None:
        blocks = blocks_moved(part, workload, workload.block_tokens)
        return layers * blocks * -(-workload.block_tokens // chunk) * batch
    return layers * -(-prompt // chunk) * batch


def bounce_buffer(model: Model, workload: Workload, chunk: int) -> BufferOrder:
    """The host buffer of a staged handoff: `chunk` positions of the widest part, or one layer's state."""
    if model.is_plain_cache:
        return BufferOrder(name="bounce", shape=(chunk, model.kv_dim), dtype=workload.kv_dtype)
    widest = max(bounce_bytes(part, chunk) for part in held_parts(model, workload))
    return BufferOrder(name="bounce", shape=(widest,), dtype="u8")


def bounce_bytes(part: CachePart, chunk: int) -> int:
    """Bytes of `chunk` positions of a part, or of one layer's state."""
    return part.position_bytes * (1 if part.is_state else chunk)


def least_staged_bytes(model: Model, workload: Workload) -> tuple[int, int]:
    """(bytes of one position of the widest part, bytes of the largest state of a layer): what a bounce must hold."""
    parts = held_parts(model, workload)
    positions = [part.position_bytes for part in parts if not part.is_state]
    states = [part.position_bytes for part in parts if part.is_state]
    return max(positions, default=1), max(states, default=0)


def cache_faults(model: Model, workload: Workload) -> Iterator[tuple[str, str]]:
    """(field, words) of what cannot be asked of quantised weights, or of caches other than k and v of one shape."""
    if model.quantisation is not None and workload.weights_dtype != model.weights_dtype:
        yield "weights_dtype", f"the weights are stored in {model.quantisation} and priced so; leave weights_dtype out"
    if not model.is_plain_cache and workload.attention == "host":
        yield "attention", f"host stages k and v of one shape; {model.name} has other caches; use device"
