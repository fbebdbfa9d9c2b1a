"""A slow reference of llama2.c's forward pass in NumPy, float32, for tests only. It shares nothing with the executor.

Every sum runs over rising indices (`cumsum` is sequential), multiply and add apart. exp, pow, sin and cos are NumPy's,
so last bits may differ from llama2.c's where its C library rounds otherwise. `fast=True` uses BLAS: for searches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

F32 = np.float32


@dataclass
class Walk:
    """`tokens` as in golden.json (BOS first, one more a pass); `margins[i]`: the top-2 logit gap of pass i."""

    tokens: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    top1: list[Any] = field(default_factory=list)
    stopped_on_bos: bool = False


class NumpyTransformer:
    """One sequence; `k` and `v` are its caches, (n_layers, positions, kv_dim) float32."""

    def __init__(self, model: Any, tensor: Callable[[str], Any], positions: int, fast: bool = False) -> None:
        self.model, self.fast = model, fast
        names = ["token_embedding", "rms_att", "wq", "wk", "wv", "wo", "rms_ffn", "w1", "w2", "w3", "rms_final"]
        self.w = {name: np.asarray(tensor(name)) for name in names}
        self.w["wcls"] = np.asarray(tensor(model.classifier_name))
        self.k = np.zeros((model.n_layers, positions, model.kv_dim), F32)
        self.v = np.zeros_like(self.k)
        half = np.arange(0, model.head_dim, 2).astype(F32) / F32(model.head_dim)
        freq = F32(1) / np.power(F32(10000), half)
        angle = np.arange(positions).astype(F32)[:, None] * freq[None, :]
        self.cos, self.sin = np.cos(angle), np.sin(angle)

    def sum(self, products: Any) -> Any:
        return np.cumsum(products, axis=-1, dtype=F32)[..., -1]

    def matmul(self, w: Any, x: Any) -> Any:
        return w @ x if self.fast else self.sum(w * x)

    def norm(self, x: Any, weight: Any) -> Any:
        scale = F32(1) / np.sqrt(self.sum(x * x) / F32(x.size) + F32(1e-5))
        return weight * (scale * x)

    def rotate(self, x: Any, position: int) -> Any:
        pairs = x.reshape(-1, self.model.head_dim // 2, 2)
        cos, sin = self.cos[position], self.sin[position]
        a, b = pairs[..., 0], pairs[..., 1]
        return np.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(-1)

    def attend(self, q: Any, layer: int, position: int) -> Any:
        m = self.model
        group = m.n_heads // m.n_kv_heads
        keys = self.k[layer, : position + 1].reshape(position + 1, m.n_kv_heads, m.head_dim).repeat(group, axis=1)
        values = self.v[layer, : position + 1].reshape(position + 1, m.n_kv_heads, m.head_dim).repeat(group, axis=1)
        scores = self.sum(q.reshape(1, m.n_heads, m.head_dim) * keys) / np.sqrt(F32(m.head_dim))
        scores = np.exp(scores - scores.max(axis=0))
        scores = scores / np.cumsum(scores, axis=0, dtype=F32)[-1]
        return np.cumsum(scores[:, :, None] * values, axis=0, dtype=F32)[-1].reshape(-1)

    def forward(self, token: int, position: int) -> Any:
        """Logits (vocab_size,) after `token` at `position`; its k and v are stored."""
        w = self.w
        x = w["token_embedding"][token].copy()
        for layer in range(self.model.n_layers):
            h = self.norm(x, w["rms_att"][layer])
            q = self.rotate(self.matmul(w["wq"][layer], h), position)
            self.k[layer, position] = self.rotate(self.matmul(w["wk"][layer], h), position)
            self.v[layer, position] = self.matmul(w["wv"][layer], h)
            x = x + self.matmul(w["wo"][layer], self.attend(q, layer, position))
            h = self.norm(x, w["rms_ffn"][layer])
            h1, h3 = self.matmul(w["w1"][layer], h), self.matmul(w["w3"][layer], h)
            h1 = h1 * (F32(1) / (F32(1) + np.exp(-h1))) * h3
            x = x + self.matmul(w["w2"][layer], h1)
        return self.matmul(w["wcls"], self.norm(x, w["rms_final"]))


def walk(
    transformer: NumpyTransformer,
    prompt: Sequence[int],
    passes: int,
    before_decode: Callable[[NumpyTransformer], None] | None = None,
    stop_on_bos: bool = True,
) -> Walk:
    """Greedy, with run.c's rules. `before_decode` may spoil the caches after the prompt's last pass."""
    done = Walk(tokens=[prompt[0]])
    token = prompt[0]
    for position in range(passes):
        if position == len(prompt) and before_decode is not None:
            before_decode(transformer)
        with np.errstate(invalid="ignore"):
            logits = transformer.forward(token, position)
        token = prompt[position + 1] if position + 1 < len(prompt) else first_largest(logits)
        two = np.partition(logits, -2)[-2:]
        done.margins.append(float(two[1] - two[0]))
        done.top1.append(logits[first_largest(logits)])
        done.tokens.append(token)
        if token == 1 and stop_on_bos:
            done.stopped_on_bos = True
            break
    return done


def first_largest(logits: Any) -> int:
    """llama2.c's loop: start at 0, move on strictly greater; so NaN at index 0 stays, and NaN elsewhere never wins."""
    if np.isnan(logits[0]):
        return 0
    return int(np.nanargmax(logits))
