"""What an engine prints of its cache at start: tokens of the pool, and how many requests of full length it holds.

vLLM: blocks = floor(available / bytes of one block in all layers of a rank), tokens = blocks * block, concurrency =
blocks / ceil(length / block), the least over pipeline stages. Layers with a window are grouped and padded as a version
likes, and state shares pages with attention: their pool has an upper bound alone, and `unknown` says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from fleet.model import Model
from fleet.models.kv import layer_bytes, state_bytes, token_bytes
from fleet.models.layers import KINDS, CacheLayer, layers_on_rank
from planner.workers import stage_bounds

_STATED = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?\s*(B|KiB|MiB|GiB|KB|MB|GB)")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_WINDOWS = "how the version groups and pads layers with a window: no more than they need is sure"
_STATES = "how the version pads state to pages of attention: no more than they need is sure"


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """A figure that is known to lie in [least, most]; `least` None: no lower bound is known."""

    least: Fraction | None
    most: Fraction

    @property
    def exact(self) -> Fraction | None:
        """The figure where both bounds are one."""
        return self.most if self.least == self.most else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Tokens and concurrency of a pool, and in words what keeps them from being exact."""

    tokens: Range
    concurrency: Range
    unknown: tuple[str, ...]


def stated_memory(text: str) -> Range:
    """The bytes that a figure can stand for: `28.20 GiB` is printed rounded, `30279519436 B` is exact.

    Raises ValueError for anything else.
    """
    found = _STATED.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text[:64]!r} is no memory; copy the engine's own (28.20 GiB), or give bytes (1024 B)")
    unit, digits = _UNITS[found[3]], found[2] or ""
    value = Fraction(int(found[1] + digits), 10 ** len(digits)) * unit
    half = Fraction(unit, 2 * 10 ** len(digits)) if digits else Fraction(0)
    return Range(least=max(Fraction(0), value - half), most=value + half)


def pool_of(model: Model, kv_dtype: str, *, tp: int, pp: int, block: int, length: int, available: Range) -> Pool:
    """The pool of a worker whose fullest rank has `available` bytes for its cache, with requests of `length` tokens."""
    stages = []
    for first, end in stage_bounds(model.n_layers, pp):
        layers = layers_on_rank(model.caches[first:end], tp)
        if layers is None:
            raise ValueError(f"{tp} ranks do not divide the heads of {model.name}")
        stages.append(_stage_pool(layers, kv_dtype, block, length, available))
    leasts = [stage.tokens.least for stage in stages]
    turns = [stage.concurrency.least for stage in stages]
    return Pool(
        tokens=Range(least=_least(leasts), most=min(stage.tokens.most for stage in stages)),
        concurrency=Range(least=_least(turns), most=min(stage.concurrency.most for stage in stages)),
        unknown=tuple(dict.fromkeys(words for stage in stages for words in stage.unknown)),
    )


def _least(values: list[Fraction | None]) -> Fraction | None:
    known = [value for value in values if value is not None]
    return min(known) if len(known) == len(values) else None


def _stage_pool(layers: tuple[CacheLayer, ...], dtype: str, block: int, length: int, available: Range) -> Pool:
    growths = {KINDS[layer.kind].growth for layer in layers}
    if not growths & {"bounded", "constant"}:
        full = _at_full_rate(layers, dtype, block, length, available.most)
        least = None if available.least is None else _at_full_rate(layers, dtype, block, length, available.least)
        return Pool(
            tokens=Range(least=None if least is None else least[0], most=full[0]),
            concurrency=Range(least=None if least is None else least[1], most=full[1]),
            unknown=(),
        )
    conv = dtype if dtype in ("bf16", "fp16", "fp32") else "bf16"
    request = sum(layer_bytes(layer, length, dtype) for layer in layers) + state_bytes(layers, conv=conv)
    most = available.most / request if request else Fraction(0)
    words = tuple(w for growth, w in (("bounded", _WINDOWS), ("constant", _STATES)) if growth in growths)
    return Pool(
        tokens=Range(least=None, most=Fraction(int(most * length))),
        concurrency=Range(least=None, most=most),
        unknown=words,
    )


def _at_full_rate(
    layers: tuple[CacheLayer, ...], dtype: str, block: int, length: int, available: Fraction
) -> tuple[Fraction, Fraction]:
    """(tokens, concurrency) where every layer keeps every token."""
    one = block * sum(token_bytes(layer, dtype) for layer in layers)
    blocks = int(available // one) if one else 0
    return Fraction(blocks * block), Fraction(blocks, -(-length // block))
