"""The frequencies by which the pairs of a head are turned, scaled as a recipe says. Plain Python, no array.

Computed once on the host and handed to the device number by number, so that processors and cards turn by the same ones.
Sources: RoFormer (arXiv 2104.09864); linear: arXiv 2306.15595; YaRN: arXiv 2309.00071, its ramp and its factor of
attention as in transformers' `modeling_rope_utils`; llama3: the rotary scaling published with Llama 3.1.
"""

from __future__ import annotations

import math

from fleet.models.recipe import Rope

__all__ = ["frequencies"]


def frequencies(rope: Rope, head_dim: int) -> list[float]:
    """Radians a position for each of the head_dim / 2 pairs, in the order of the pairs."""
    plain = [rope.theta ** (-2.0 * i / head_dim) for i in range(head_dim // 2)]
    if rope.kind == "linear":
        return [one / rope.factor for one in plain]
    if rope.kind == "llama3":
        return [_llama3(one, rope) for one in plain]
    if rope.kind == "yarn":
        return _yarn(plain, rope, head_dim)
    return plain


def _llama3(one: float, rope: Rope) -> float:
    """Long waves are slowed by the factor, short ones stay, those in between are mixed."""
    turns = rope.original * one / (2 * math.pi)
    if turns > rope.high:
        return one
    if turns < rope.low:
        return one / rope.factor
    smooth = (turns - rope.low) / (rope.high - rope.low)
    return (1 - smooth) * one / rope.factor + smooth * one


def _yarn(plain: list[float], rope: Rope, head_dim: int) -> list[float]:
    """Pairs that turn more than `beta_fast` times over the original positions stay, those below `beta_slow` are slowed
    by the factor, a ramp over the number of the pair lies between.
    """
    low, high = (_pair_of(turns, rope, head_dim) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # else the ramp has no length
    ramp = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(len(plain))]
    return [one / rope.factor * share + one * (1 - share) for one, share in zip(plain, ramp, strict=True)]


def _pair_of(turns: float, rope: Rope, head_dim: int) -> float:
    """The pair, as a real number, that makes so many turns over the original positions."""
    return head_dim * math.log(rope.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
