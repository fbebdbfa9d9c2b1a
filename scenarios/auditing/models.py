"""Readings narrowed by a model: degrees, types and block sizes of it that a log's sizes allow."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fleet.model import Model
from fleet.models.kv import KV_TYPES, token_bytes
from fleet.models.layers import KINDS, CacheLayer, layers_on_rank
from scenarios.auditing.arithmetic import BLOCKS, Sizes, each, whole_total
from scenarios.auditing.parts import Part
from scenarios.observations.observation import Interval

Document = dict[str, Any]
DEGREES = (1, 2, 4, 8, 16, 32, 64)
STAGES = (1, 2, 4, 8, 16)
DTYPES = ("bf16", "fp8", "fp32", "fp8_ds_mla", "nvfp4", "fp8_token_head", "int8_token_head")
"""bf16 stands for fp16, too: the same bytes."""
MOST_TOLD = 200
_LOOKED_FOR = set(BLOCKS)
_OF_CACHES = ("vLLM log", "vLLM metrics", "SGLang metrics", "TensorRT-LLM transfer log")
"""Formats whose figures are of caches alone: others count all that is copied."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """One way to cut a model: what a rank of one stage keeps, tensor-parallel degree, stages, type, tokens a block."""

    tp: int
    pp: int
    dtype: str
    block: int
    layers: int
    regions: int
    block_bytes: int
    """Of one block in all regions of the rank."""
    joined: bool = False
    """K and V of a layer in one region, as some layouts have them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowed:
    """What a user says of the cut: each None where nothing is said."""

    tp: int | None = None
    kv_dtype: str | None = None
    block: int | None = None


def why_not(model: Model) -> str | None:
    """In words, why the sizes of a model's transfers are not known; None where they are."""
    if not model.caches:
        words = model.unknown[0] if model.unknown else "it keeps nothing"
        return f"{model.name}: {words}"
    growths = {KINDS[layer.kind].growth: layer.kind for layer in model.caches}
    if "constant" in growths:
        return f"{model.name} keeps state ({growths['constant']} layers), and how it is transferred was not read"
    if any(layer.index_dim for layer in model.caches):
        return f"{model.name} keeps keys of an indexer, and whether they are a region of their own was not read"
    return None


def versions_differ(model: Model) -> bool:
    """Whether versions of an engine group the layers of a model in ways that were not read (windows)."""
    return any(KINDS[layer.kind].growth == "bounded" for layer in model.caches)


def shapes_of(
    model: Model, sizes: Sequence[int] | None, *, tp: int | None, dtype: str | None, block: int | None
) -> Iterator[Shape]:
    """Every cut of the model that is asked for; whole stages of equal depth only.

    `sizes`: bytes that a descriptor can have, of which the tokens of a block follow; None: nobody tells blocks apart.
    """
    degrees = DEGREES if tp is None else (tp,)
    types = DTYPES if dtype is None else ("bf16" if dtype == "fp16" else dtype,)
    for degree, stages in itertools.product(degrees, STAGES):
        held = layers_on_rank(model.caches, degree)
        if held is None or len(held) % stages:
            continue
        stage = held[: len(held) // stages]
        if stages > 1 and any(held[i : i + len(stage)] != stage for i in range(0, len(held), len(stage))):
            continue
        for kind in types:
            size = _token_bytes(stage, kind)
            if size is None:
                continue
            apart = sum(1 if layer.latent_dim else 2 for layer in stage)
            # Without descriptors nobody tells regions apart, and both are one reading.
            for regions in dict.fromkeys((apart, len(stage)) if sizes is not None else (apart,)):
                for tokens in (block,) if block is not None else _blocks_of(size, regions, sizes):
                    yield Shape(
                        tp=degree, pp=stages, dtype=kind, block=tokens, layers=len(stage), regions=regions,
                        block_bytes=size * tokens, joined=regions < apart,
                    )  # fmt: skip


def _blocks_of(token: int, regions: int, sizes: Sequence[int] | None) -> list[int]:
    """Tokens of a block that give a descriptor one of these sizes, regions being of one mean size."""
    if sizes is None:
        return [1]
    return sorted({size * regions // token for size in sizes if size * regions % token == 0} & _LOOKED_FOR)


def _token_bytes(layers: Sequence[CacheLayer], dtype: str) -> int | None:
    """None for a type that the layers cannot be kept in."""
    if dtype not in KV_TYPES:
        return None
    try:
        return sum(token_bytes(layer, dtype) for layer in layers) or None
    except ValueError:
        return None


def fits(shape: Shape, parts: Sequence[Part]) -> list[Document] | None:
    """Blocks and tokens of one transfer for each part, [least, most]; None as soon as one part cannot be of the shape.

    Descriptors must be whole blocks of all regions, and bytes those of as many blocks. A part without descriptors needs
    a whole number of blocks in its bytes, of all its transfers together.
    """
    found: list[Document] = []
    for part in parts:
        blocks = _blocks(shape, part)
        if blocks is None:
            return None
        if blocks[1] > 0:
            low, high = blocks
            found.append({"blocks": [low, high], "tokens": [max(0, (low - 1) * shape.block) + 1, high * shape.block]})
    return found


def _blocks(shape: Shape, part: Part) -> tuple[int, int] | None:
    """Blocks of one transfer, rounded outwards where transfers of a part differ; (0, 0) where a part tells nothing."""
    size, count = part.seen.bytes, part.seen.transfers
    if size is None or size.high == 0:
        return 0, 0
    total = size.times(Fraction(1, shape.block_bytes)).whole()
    pieces = whole_total(part)
    if pieces is not None and total is not None:
        low, high = -(-pieces[0] // shape.regions), pieces[1] // shape.regions
        total = (max(low, total[0]), min(high, total[1]))
    if total is None or total[0] > total[1] or total[1] < 1:
        return None
    n = int(count.low) if count is not None and count.is_exact and count.low >= 1 else 1
    alike = each(part) if pieces is not None else None
    if alike is not None and alike[0] == alike[1] and alike[0] % shape.regions == 0:
        return alike[0] // shape.regions, alike[0] // shape.regions
    return total[0] // n, -(-total[1] // n)


def model_document(
    model: Model, source: str, parts: Sequence[Part], sizes: Sizes, pool: Interval | None, asked: Narrowed
) -> Document:
    """{name, unknown, readings, tried}: each reading has tp, pp, kv_dtype, block_tokens, layers, regions, transfers.

    `source`: the format that was read. `pool`: bytes of one token on a rank by the sizing lines of a log, which narrow
    it further.
    """
    told = [part for part in parts if part.seen.bytes is not None and part.seen.bytes.high > 0]
    unknown = why_not(model)
    if told and source not in _OF_CACHES:
        unknown = f"{source} counts all that is copied, not a cache alone: nothing of a model divides it"
    if told and sizes.interval is not None and sizes.list is None:
        unknown = "the figures are rounded so far that sizes of a descriptor cannot be told apart"
    document: Document = {"name": model.name, "unknown": unknown, "readings": [], "tried": 0}
    document["versions_differ"] = versions_differ(model)
    if unknown is not None or not (told or pool):
        return document
    divided = sizes.list if any(part.seen.descriptors is not None for part in told) else None
    for shape in shapes_of(model, divided, tp=asked.tp, dtype=asked.kv_dtype, block=asked.block):
        document["tried"] += 1
        if pool is not None and Fraction(shape.block_bytes, shape.block) not in pool:
            continue
        found = fits(shape, told)
        if found is not None:
            document["readings"].append(_reading(shape, found))
    return document


def _reading(shape: Shape, found: list[Document]) -> Document:
    return {
        "tp": shape.tp, "pp": shape.pp, "kv_dtype": shape.dtype, "block_tokens": shape.block,
        "layers": shape.layers, "regions": shape.regions, "kv_joined": shape.joined,
        "descriptor_bytes": shape.block_bytes / shape.regions,
        "block_bytes": shape.block_bytes, "transfers": found[:MOST_TOLD],
    }  # fmt: skip
