"""The table of layer kinds: what one layer keeps of a sequence, by which formula, and what tensor parallelism does.

A kind says which numbers of a `CacheLayer` count; `fleet.models.kv` multiplies them. A layout that no kind describes is
not squeezed into one: its model has no layers and says so in `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

Growth = Literal["growing", "bounded", "constant", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheLayer:
    """What one layer keeps. Numbers that its kind does not use are 0; counts are of elements unless said.

    Attention: `heads` KV heads of `key_dim` + `value_dim`; `window` is the tokens a sliding or chunked layer holds.
    MLA: one latent of `latent_dim` + `rope_dim`; `index_dim` is an indexer's key of its own (0: none).
    Recurrent: `state_heads` matrices of `state_unit` elements; `conv_columns` columns of `conv_channels` split channels
    and `conv_groups` groups of `conv_group_dim`. `state_dtype` is what the config says of the state, None = nothing.
    `sources`: (number, config field it came from).
    """

    kind: str
    heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    window: int | None = None
    latent_dim: int = 0
    rope_dim: int = 0
    index_dim: int = 0
    state_heads: int = 0
    state_unit: int = 0
    conv_columns: int = 0
    conv_channels: int = 0
    conv_groups: int = 0
    conv_group_dim: int = 0
    state_dtype: str | None = None
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def state_elements(self) -> int:
        """Elements of the recurrent state of one sequence."""
        return self.state_heads * self.state_unit

    @property
    def conv_elements(self) -> int:
        """Elements of the convolution's window of one sequence: kernel - 1 columns, as vLLM keeps it."""
        return self.conv_columns * (self.conv_channels + self.conv_groups * self.conv_group_dim)

    @property
    def token_elements(self) -> int:
        """Elements of one cached token."""
        return self.heads * (self.key_dim + self.value_dim) + self.latent_dim + self.rope_dim + self.index_dim


def _heads_on_rank(layer: CacheLayer, ranks: int) -> CacheLayer | None:
    """Heads are split; with more ranks than heads each rank holds one whole head."""
    heads = split_or_copied(layer.heads, ranks)
    return None if heads is None else replace(layer, heads=heads)


def _whole_on_rank(layer: CacheLayer, ranks: int) -> CacheLayer | None:
    return layer


def _state_on_rank(layer: CacheLayer, ranks: int) -> CacheLayer | None:
    """State heads and their channels are split, groups split or copied."""
    groups = split_or_copied(layer.conv_groups, ranks) if layer.conv_groups else 0
    if layer.state_heads % ranks or layer.conv_channels % ranks or groups is None:
        return None
    return replace(
        layer,
        state_heads=layer.state_heads // ranks,
        conv_channels=layer.conv_channels // ranks,
        conv_groups=groups,
    )


def split_or_copied(heads: int, ranks: int) -> int | None:
    """Heads that one of `ranks` holds: heads / ranks, or one copied head; None where neither divides the other."""
    if heads % ranks == 0:
        return heads // ranks
    return 1 if ranks % heads == 0 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerKind:
    """One row of the table. `formula` is bytes for T tokens in the symbols of docs/models.md.

    `numbers` gives the symbols of a layer but T and e. `on_rank` gives what one of n ranks holds.
    """

    name: str
    growth: Growth
    formula: str
    numbers: Callable[[CacheLayer], dict[str, int]]
    tensor_parallel: str
    on_rank: Callable[[CacheLayer, int], CacheLayer | None]
    note: str = ""


def _heads(layer: CacheLayer) -> dict[str, int]:
    window = {} if layer.window is None else {"W": layer.window}
    return {"nk": layer.heads, "dk": layer.key_dim, "dv": layer.value_dim, **window}


def _latent(layer: CacheLayer) -> dict[str, int]:
    index = {"i": layer.index_dim} if layer.index_dim else {}
    return {"r": layer.latent_dim, "p": layer.rope_dim, **index}


def _delta(layer: CacheLayer) -> dict[str, int]:
    return {
        "nv": layer.state_heads,
        "nk": layer.conv_groups,
        "dk": layer.conv_group_dim // 2,
        "dv": layer.conv_channels // layer.state_heads,
        "kc": layer.conv_columns + 1,
    }


def _kda(layer: CacheLayer) -> dict[str, int]:
    return {"n": layer.state_heads, "d": math.isqrt(layer.state_unit), "kc": layer.conv_columns + 1}


def _mamba2(layer: CacheLayer) -> dict[str, int]:
    return {
        "n": layer.state_heads,
        "hd": layer.conv_channels // layer.state_heads,
        "N": layer.conv_group_dim // 2,
        "g": layer.conv_groups,
        "kc": layer.conv_columns + 1,
    }


def _mamba1(layer: CacheLayer) -> dict[str, int]:
    return {"inner": layer.state_heads, "N": layer.state_unit, "kc": layer.conv_columns + 1}


def _nothing(layer: CacheLayer) -> dict[str, int]:
    return {}


_HEADS_WORDS = "heads split; one copied head a rank when ranks exceed heads; unknown where neither divides the other"
_STATE_WORDS = "state heads and their channels split; groups split or copied"
_WHOLE_WORDS = "whole on every rank"

_ROWS: tuple[LayerKind, ...] = (
    LayerKind(
        name="full", growth="growing", formula="T*nk*(dk+dv)*e", numbers=_heads,
        tensor_parallel=_HEADS_WORDS, on_rank=_heads_on_rank,
    ),
    LayerKind(
        name="sliding", growth="bounded", formula="min(T,W)*nk*(dk+dv)*e", numbers=_heads,
        tensor_parallel=_HEADS_WORDS, on_rank=_heads_on_rank,
    ),
    LayerKind(
        name="chunked", growth="bounded", formula="min(T,W)*nk*(dk+dv)*e",
        note="an upper bound: the open chunk holds T mod W tokens", numbers=_heads,
        tensor_parallel=_HEADS_WORDS, on_rank=_heads_on_rank,
    ),
    LayerKind(
        name="mla", growth="growing", formula="T*(r+p)*e", numbers=_latent,
        tensor_parallel=_WHOLE_WORDS, on_rank=_whole_on_rank,
    ),
    LayerKind(
        name="mla+indexer", growth="growing", formula="T*(r+p+i)*e",
        numbers=_latent,
        tensor_parallel=_WHOLE_WORDS, on_rank=_whole_on_rank,
    ),
    LayerKind(
        name="gated-deltanet", growth="constant", formula="nv*dk*dv*e_s + (kc-1)*(2*nk*dk+nv*dv)*e",
        numbers=_delta, tensor_parallel=_STATE_WORDS, on_rank=_state_on_rank,
    ),
    LayerKind(
        name="kda", growth="constant", formula="n*d*d*e_s + (kc-1)*3*n*d*e",
        numbers=_kda, tensor_parallel=_STATE_WORDS, on_rank=_state_on_rank,
    ),
    LayerKind(
        name="mamba2", growth="constant", formula="n*hd*N*e_s + (kc-1)*(n*hd+2*g*N)*e",
        numbers=_mamba2, tensor_parallel=_STATE_WORDS, on_rank=_state_on_rank,
    ),
    LayerKind(
        name="mamba1", growth="constant", formula="inner*N*e_s + (kc-1)*inner*e",
        numbers=_mamba1, tensor_parallel=_STATE_WORDS, on_rank=_state_on_rank,
    ),
    LayerKind(
        name="mlp", growth="none", formula="0", numbers=_nothing, tensor_parallel="no cache", on_rank=_whole_on_rank,
    ),
    LayerKind(
        name="moe", growth="none", formula="0", numbers=_nothing, tensor_parallel="no cache", on_rank=_whole_on_rank,
    ),
    LayerKind(
        name="none", growth="none", formula="0", note="the attention was removed", numbers=_nothing,
        tensor_parallel="no cache", on_rank=_whole_on_rank,
    ),
)  # fmt: skip

KINDS: dict[str, LayerKind] = {row.name: row for row in _ROWS}
"""Every layer kind that is priced, by name."""


def on_rank(layer: CacheLayer, ranks: int) -> CacheLayer | None:
    """What one of `ranks` tensor-parallel ranks keeps of `layer`; None where heads and ranks do not divide.

    Raises ValueError for less than one rank.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks; give 1 or more")
    return layer if ranks == 1 else KINDS[layer.kind].on_rank(layer, ranks)


def layers_on_rank(layers: tuple[CacheLayer, ...], ranks: int) -> tuple[CacheLayer, ...] | None:
    """Every layer as one rank keeps it; None as soon as one cannot be divided."""
    cut = {layer: on_rank(layer, ranks) for layer in dict.fromkeys(layers)}
    found = tuple(held for layer in layers if (held := cut[layer]) is not None)
    return found if len(found) == len(layers) else None


@lru_cache(maxsize=256)
def full_layers(count: int, heads: int, key_dim: int, value_dim: int) -> tuple[CacheLayer, ...]:
    """`count` equal full-attention layers: the dense decoder."""
    return (CacheLayer(kind="full", heads=heads, key_dim=key_dim, value_dim=value_dim),) * count


def run_lengths(layers: tuple[CacheLayer, ...]) -> list[tuple[str, int]]:
    """The order of kinds as (kind, how many in a row)."""
    runs: list[tuple[str, int]] = []
    for layer in layers:
        if runs and runs[-1][0] == layer.kind:
            runs[-1] = (layer.kind, runs[-1][1] + 1)
        else:
            runs.append((layer.kind, 1))
    return runs
