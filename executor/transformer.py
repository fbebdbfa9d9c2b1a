"""The program text: one forward call of llama2.c's transformer, top to bottom in the order of the computation.

Prefill and decode are two instances of this one body; they differ in the device alone. `device` brings the operations
and the rows that they work on (`executor.instance`): on the device, or, with attention on the host, on host arrays with
only the matmuls on the device. Shapes: T tokens of the call, D dim, Q all heads (D in llama2.c), H hidden_dim,
KD kv_dim, V vocabulary.
Source of the order of operations: karpathy/llama2.c, run.c, commit 350e04f.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Tensor:
    """One layer of a named weight tensor (layer -1: it has no layers), where the phase's device reads it."""

    name: str
    layer: int
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightSet:
    """The tensors of a checkpoint by llama2.c's names; a tuple has one entry a layer, None where there is no such.

    What llama2.c has not: biases `b*` of the projections, and norms of each head of queries and keys.
    """

    token_embedding: Tensor
    rms_att: tuple[Tensor, ...]
    wq: tuple[Tensor, ...]
    wk: tuple[Tensor, ...]
    wv: tuple[Tensor, ...]
    wo: tuple[Tensor, ...]
    rms_ffn: tuple[Tensor, ...]
    w1: tuple[Tensor, ...]
    w2: tuple[Tensor, ...]
    w3: tuple[Tensor, ...]
    rms_final: Tensor
    classifier: Tensor
    bq: tuple[Tensor | None, ...]
    bk: tuple[Tensor | None, ...]
    bv: tuple[Tensor | None, ...]
    bo: tuple[Tensor | None, ...]
    b1: tuple[Tensor | None, ...]
    b2: tuple[Tensor | None, ...]
    b3: tuple[Tensor | None, ...]
    q_norm: tuple[Tensor | None, ...]
    k_norm: tuple[Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class Cache:
    """The KV cache of one phase: one entry a layer, each (positions, KD), f32 or as narrow as it was admitted."""

    k: Sequence[Any]
    v: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The activations of one forward call of T tokens."""

    x: Any  # (T, D) f32
    xb: Any  # (T, D) f32
    xb2: Any  # (T, D) f32
    att: Any  # (T, Q) f32; lies where xb does
    q: Any  # (T, Q) f32
    hb: Any  # (T, H) f32
    hb2: Any  # (T, H) f32


class Instance(Protocol):
    """What the program text needs of the device that it is instantiated on."""

    n_layers: int
    wants_logits: bool

    def rows(self) -> Rows: ...
    def at(self, cache: Any, position: int) -> Any: ...
    def last(self, x: Any) -> Any: ...
    def embed(self, x: Any, table: Tensor, tokens: Any) -> None: ...
    def rmsnorm(self, out: Any, x: Any, weight: Tensor) -> None: ...
    def matmul(self, out: Any, x: Any, weight: Tensor) -> None: ...
    def bias(self, rows: Any, weight: Tensor | None) -> None: ...
    def head_norm(self, rows: Any, weight: Tensor | None) -> None: ...
    def rope(self, q: Any, k: Any, layer: int, position: int) -> None: ...
    def attention(self, out: Any, q: Any, k: Any, v: Any, layer: int, position: int) -> None: ...
    def add(self, x: Any, y: Any, layer: int) -> None: ...
    def swiglu(self, h1: Any, h3: Any, layer: int) -> None: ...
    def logits(self) -> Any: ...
    def argmax(self, logits: Any) -> None: ...


def transformer(device: Instance, weights: WeightSet, kv: Cache, tokens: Any, position: int) -> None:
    """T tokens from `position` on: fills the caches at their positions and, where asked for, the logits of the last.

    tokens: (T,) int32. Residence: everything on the device; with attention on the host, only the weights that `matmul`
    reads. Leaves the sampled id (the first largest logit) in the instance. A bias or a head's norm that a checkpoint
    does not have is no step.
    """
    act = device.rows()
    device.embed(act.x, weights.token_embedding, tokens)  # x: (T, D) f32
    for layer in range(device.n_layers):
        k = device.at(kv.k[layer], position)  # k: rows for the cache (positions, KD), this phase's own
        v = device.at(kv.v[layer], position)  # v: likewise
        device.rmsnorm(act.xb, act.x, weights.rms_att[layer])  # xb: (T, D) f32
        device.matmul(act.q, act.xb, weights.wq[layer])  # q: (T, Q) f32; wq: (Q, D)
        device.matmul(k, act.xb, weights.wk[layer])  # k: (T, KD) f32; wk: (KD, D)
        device.matmul(v, act.xb, weights.wv[layer])  # v: (T, KD) f32; wv: (KD, D)
        device.bias(act.q, weights.bq[layer])  # bq: (Q,)
        device.bias(k, weights.bk[layer])  # bk: (KD,)
        device.bias(v, weights.bv[layer])  # bv: (KD,)
        device.head_norm(act.q, weights.q_norm[layer])  # q_norm: (head_dim,)
        device.head_norm(k, weights.k_norm[layer])  # k_norm: (head_dim,)
        device.rope(act.q, k, layer, position)  # q, k: rotated in place
        device.attention(act.att, act.q, kv.k[layer], kv.v[layer], layer, position)  # att: (T, Q) f32
        device.matmul(act.xb2, act.att, weights.wo[layer])  # xb2: (T, D) f32; wo: (D, Q)
        device.bias(act.xb2, weights.bo[layer])  # bo: (D,)
        device.add(act.x, act.xb2, layer)  # x: (T, D) f32
        device.rmsnorm(act.xb, act.x, weights.rms_ffn[layer])  # xb: (T, D) f32
        device.matmul(act.hb, act.xb, weights.w1[layer])  # hb: (T, H) f32; w1: (H, D)
        device.matmul(act.hb2, act.xb, weights.w3[layer])  # hb2: (T, H) f32; w3: (H, D)
        device.bias(act.hb, weights.b1[layer])  # b1: (H,)
        device.bias(act.hb2, weights.b3[layer])  # b3: (H,)
        device.swiglu(act.hb, act.hb2, layer)  # hb: (T, H) f32
        device.matmul(act.xb2, act.hb, weights.w2[layer])  # xb2: (T, D) f32; w2: (D, H)
        device.bias(act.xb2, weights.b2[layer])  # b2: (D,)
        device.add(act.x, act.xb2, layer)  # x: (T, D) f32
    if not device.wants_logits:
        return
    x = device.last(act.x)  # x: (1, D) f32
    device.rmsnorm(x, x, weights.rms_final)
    logits = device.logits()  # logits: (1, V) f32
    device.matmul(logits, x, weights.classifier)  # classifier: (V, D)
    device.argmax(logits)
