"""How a forward pass of a dense decoder is computed, where a config says it: what shapes and tensors do not tell.

Data alone, and no import of this package: every Model may carry it. `fleet.models.read_recipe` reads it from a config.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Recipe", "Rope"]

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """The rotation of queries and keys. `original`: positions before scaling; `attention` multiplies cos and sin."""

    kind: RopeKind = "default"
    theta: float
    factor: float = 1.0
    original: float = 0.0
    low: float = 1.0
    high: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """`rope` turns element i of a head with i + head_dim / 2. `norm_eps` is added to the mean of squares of each norm.

    `layer_tensors`: what follows the layer's number in the names of the tensors that the config computes. `cannot`:
    (field, words) of what no program of ours computes. `notes`: what readers of such a config do differently.
    """

    rope: Rope
    norm_eps: float
    layer_tensors: frozenset[str] = frozenset()
    cannot: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
