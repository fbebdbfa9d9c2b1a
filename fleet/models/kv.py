"""Bytes of caches: the one place where layers are multiplied with tokens and types. Exact integers.

Two readings of a window, never mixed: `window` holds min(T, W) tokens, `full` every token as an engine without window
eviction does. `open_chunk` is the exact figure of chunked layers (T mod W), `window` their upper bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from fleet.models.layers import KINDS, CacheLayer, layers_on_rank

Reading = Literal["window", "full", "open_chunk"]


@dataclass(frozen=True, kw_only=True, slots=True)
class KvType:
    """How a cache stores an element. `words` says it; `only_mla`: no other layer can be stored so."""

    name: str
    element_bytes: int
    words: str
    only_mla: bool = False


_ROWS = (
    KvType(name="bf16", element_bytes=2, words="2 B an element"),
    KvType(name="fp16", element_bytes=2, words="2 B an element"),
    KvType(name="fp32", element_bytes=4, words="4 B an element"),
    KvType(name="fp8", element_bytes=1, words="1 B an element; scales are of a tensor, none a token"),
    KvType(
        name="fp8_token_head", element_bytes=1, words="1 B an element and 4 B of scale a token, head and tensor (vLLM)"
    ),
    KvType(
        name="int8_token_head", element_bytes=1, words="1 B an element and 4 B of scale a token, head and tensor (vLLM)"
    ),
    KvType(
        name="nvfp4", element_bytes=0, words="half a byte an element and 1 B of scale for 16, a token and head (vLLM)"
    ),
    KvType(
        name="fp8_ds_mla",
        element_bytes=1,
        only_mla=True,
        words="latent in fp8 with 4 B of scale for 128, rope part in bf16, indexer key in fp8 with 4 B for 128 (vLLM)",
    ),
)
KV_TYPES: dict[str, KvType] = {row.name: row for row in _ROWS}
"""Types of `--kv-dtype`, by name (vLLM: vllm/v1/kv_cache_interface.py)."""

_SCALE_BYTES = 4
_MLA_SCALE_GROUP = 128
_NVFP4_GROUP = 16
_STATE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def token_bytes(layer: CacheLayer, dtype: str) -> int:
    """Bytes of one cached token in one layer; 0 where a layer keeps no tokens. Raises ValueError: type not for it."""
    kind = KV_TYPES[dtype]
    if KINDS[layer.kind].growth in ("constant", "none"):
        return 0
    if layer.latent_dim:
        return _latent_bytes(layer, dtype)
    if kind.only_mla:
        raise ValueError(f"{dtype} stores latents of MLA only, not {layer.kind} layers")
    if dtype == "nvfp4":
        widths = (layer.key_dim, layer.value_dim)
        return layer.heads * sum(-(-width // 2) + -(-width // _NVFP4_GROUP) for width in widths)
    scales = 2 * layer.heads * _SCALE_BYTES if dtype.endswith("_token_head") else 0
    return layer.heads * (layer.key_dim + layer.value_dim) * kind.element_bytes + scales


def _latent_bytes(layer: CacheLayer, dtype: str) -> int:
    latent, rope, index = layer.latent_dim, layer.rope_dim, layer.index_dim
    if dtype == "fp8_ds_mla":
        scales = -(-latent // _MLA_SCALE_GROUP) + -(-index // _MLA_SCALE_GROUP)
        return latent + 2 * rope + index + scales * _SCALE_BYTES
    if KV_TYPES[dtype].element_bytes == 0 or dtype.endswith("_token_head"):
        raise ValueError(f"{dtype} stores heads of K and V, not latents of MLA; use bf16, fp8 or fp8_ds_mla")
    return layer.token_elements * KV_TYPES[dtype].element_bytes


def tokens_held(layer: CacheLayer, tokens: int, reading: Reading = "window") -> int:
    """Tokens that a layer keeps of `tokens` in this reading."""
    if KINDS[layer.kind].growth in ("constant", "none"):
        return 0
    if reading == "full" or layer.window is None:
        return tokens
    if reading == "open_chunk" and layer.kind == "chunked":
        return tokens % layer.window
    return min(tokens, layer.window)


def layer_bytes(layer: CacheLayer, tokens: int, dtype: str, *, reading: Reading = "window", block: int = 1) -> int:
    """Bytes of the tokens that one layer keeps, rounded up to whole blocks of `block` tokens; state not included."""
    held = tokens_held(layer, tokens, reading)
    return -(-held // block) * block * token_bytes(layer, dtype)


def kv_bytes(
    layers: Iterable[CacheLayer], tokens: int, dtype: str, *, reading: Reading = "window", block: int = 1
) -> int:
    """Bytes of the tokens that all layers keep of one sequence; state is `state_bytes`."""
    return sum(
        count * layer_bytes(layer, tokens, dtype, reading=reading, block=block)
        for layer, count in Counter(layers).items()
    )


def bytes_per_token(layers: Iterable[CacheLayer], dtype: str, *, growing_only: bool = False) -> int:
    """Bytes of one more token in all layers, or only in those that grow without bound."""
    wanted = ("growing",) if growing_only else ("growing", "bounded")
    return sum(
        count * token_bytes(layer, dtype)
        for layer, count in Counter(layers).items()
        if KINDS[layer.kind].growth in wanted
    )


def state_bytes(layers: Iterable[CacheLayer], *, state: str | None = None, conv: str = "bf16") -> int:
    """Recurrent state of one sequence, any number of tokens. `state` None: the config's type, else fp32.

    fp32 is what the reference kernels keep; who serves with another type names it.
    """
    return sum(count * layer_state_bytes(layer, state=state, conv=conv) for layer, count in Counter(layers).items())


def layer_state_bytes(layer: CacheLayer, *, state: str | None = None, conv: str = "bf16") -> int:
    """Recurrent state and convolution window of one layer and sequence."""
    kept = state or layer.state_dtype or "fp32"
    return layer.state_elements * _STATE_BYTES[kept] + layer.conv_elements * _STATE_BYTES[conv]


def sequence_bytes(layers: tuple[CacheLayer, ...], tokens: int, dtype: str, *, reading: Reading = "window") -> int:
    """All that one sequence of `tokens` keeps: tokens and state."""
    conv = dtype if dtype in _STATE_BYTES else "bf16"
    return kv_bytes(layers, tokens, dtype, reading=reading) + state_bytes(layers, conv=conv)


def rank_bytes_per_token(layers: tuple[CacheLayer, ...], dtype: str, ranks: int) -> int | None:
    """Bytes of one token on one of `ranks` tensor-parallel ranks; None where heads and ranks do not divide."""
    held = layers_on_rank(layers, ranks)
    return None if held is None else bytes_per_token(held, dtype)


def attention_block_tokens(layers: Iterable[CacheLayer], dtype: str, *, state: str, step: int = 16) -> int | None:
    """vLLM's attention block of a hybrid: raised until a page is no smaller than one layer's state; None if no hybrid.

    step * ceil(state page / (step * bytes of a token in one attention layer)).
    """
    unique = dict.fromkeys(layers)
    conv = dtype if dtype in _STATE_BYTES else "bf16"
    page = max((layer_state_bytes(layer, state=state, conv=conv) for layer in unique), default=0)
    token = max((token_bytes(layer, dtype) for layer in unique), default=0)
    return step * -(-page // (step * token)) if page and token else None


def tokens_that_fit(
    layers: tuple[CacheLayer, ...], budget: int, dtype: str, *, limit: int, reading: Reading = "window"
) -> int:
    """The longest sequence, up to `limit` tokens, that `budget` bytes hold; 0 where not even its state fits.

    A search over whole bytes: budget / bytes of one token is false once windows stop growing.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_bytes(layers, middle, dtype, reading=reading) <= budget:
            low = middle
        else:
            high = middle - 1
    return low if sequence_bytes(layers, low, dtype, reading=reading) <= budget else 0
