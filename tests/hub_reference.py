"""The forward pass of a Llama-like checkpoint, slow and plain: whole sequences at once in f64, written from the papers.

It shares nothing with the executor: it keeps no cache, turns heads by complex numbers, and knows checkpoints by their
names on Hugging Face. K and V are rounded to the type of a cache where one is given.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tests.hub_checkpoints import Hub, rounded

Array = Any
ORIGINAL = "original_max_position_embeddings"


def inverse_frequencies(hub: Hub) -> tuple[Array, float]:
    """(radians a position for each pair, what cos and sin are multiplied by), as the config scales them."""
    scaling = dict(hub.extra.get("rope_scaling") or {})
    theta, half = float(hub.extra.get("rope_theta", 10000.0)), hub.head // 2
    plain = 1.0 / theta ** (np.arange(half) / half)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        return plain / scaling["factor"], 1.0
    if kind == "llama3":
        old, low, high = (scaling[n] for n in (ORIGINAL, "low_freq_factor", "high_freq_factor"))
        waves = 2 * math.pi / plain
        smooth = np.clip((old / waves - low) / (high - low), 0.0, 1.0)
        return (1 - smooth) * plain / scaling["factor"] + smooth * plain, 1.0
    if kind == "yarn":
        old, factor = scaling.get(ORIGINAL, hub.positions), scaling["factor"]

        def turning(times: float) -> float:
            return half * math.log(old / (times * 2 * math.pi)) / math.log(theta)

        first, last = math.floor(turning(scaling.get("beta_fast", 32))), math.ceil(turning(scaling.get("beta_slow", 1)))
        first, last = max(first, 0), min(last, 2 * half - 1)
        slowed = np.clip((np.arange(half) - first) / max(last - first, 0.001), 0.0, 1.0)
        attention = scaling.get("attention_factor") or 0.1 * math.log(factor) + 1.0
        return plain * (1 - slowed) + plain / factor * slowed, attention
    return plain, 1.0


def turned(x: Array, hub: Hub) -> Array:
    """x: (T, heads, head_dim), turned by position: element i with element i + head_dim / 2."""
    frequencies, scale = inverse_frequencies(hub)
    angles = np.outer(np.arange(len(x)), frequencies.astype(np.float32))
    half = hub.head // 2
    z = (x[..., :half] + 1j * x[..., half:]) * (scale * np.exp(1j * angles))[:, None, :]
    return np.concatenate([z.real, z.imag], axis=-1)


def normed(x: Array, gain: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * gain


def hub_logits(hub: Hub, tensors: dict[str, Array], ids: list[int], kv_dtype: str = "fp32") -> Array:
    """Logits (T, V) at every position of `ids`."""
    w = {name: np.asarray(values, np.float64) for name, values in tensors.items()}

    def project(name: str, x: Array) -> Array:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)

    x, count = w["model.embed_tokens.weight"][ids], len(ids)
    mask = np.triu(np.full((count, count), -np.inf), 1)
    for layer in range(hub.layers):
        at = f"model.layers.{layer}."
        h = normed(x, w[at + "input_layernorm.weight"], hub.eps)
        q, k, v = (project(f"{at}self_attn.{n}_proj", h).reshape(count, -1, hub.head) for n in "qkv")
        if hub.qk_norm:
            q = normed(q, w[at + "self_attn.q_norm.weight"], hub.eps)
            k = normed(k, w[at + "self_attn.k_norm.weight"], hub.eps)
        k = rounded(turned(k, hub), kv_dtype).astype(np.float64)
        v = rounded(v, kv_dtype).astype(np.float64)
        k, v = (np.repeat(part, hub.heads // hub.kv_heads, axis=1) for part in (k, v))
        scores = np.einsum("thd,shd->hts", turned(q, hub), k) / math.sqrt(hub.head) + mask
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        x = x + project(f"{at}self_attn.o_proj", np.einsum("hts,shd->thd", shares, v).reshape(count, -1))
        h = normed(x, w[at + "post_attention_layernorm.weight"], hub.eps)
        gate = project(f"{at}mlp.gate_proj", h)
        x = x + project(f"{at}mlp.down_proj", gate / (1 + np.exp(-gate)) * project(f"{at}mlp.up_proj", h))
    x = normed(x, w["model.norm.weight"], hub.eps)
    return x @ w["model.embed_tokens.weight" if hub.tied else "lm_head.weight"].T
