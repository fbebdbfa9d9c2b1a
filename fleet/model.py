"""What a checkpoint or a config says about a decoder language model: dimensions and the tensor table.

The tensor table is the wire layout as data: name, shape and dtype in file order. The planner prices it, the
executor stages it, and neither needs the other's arithmetic. Names of dimensions are llama2.c's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int32": 4}
"""Bytes of one element, by the names of `--weights-dtype` and `--kv-dtype`."""

Role = Literal["embedding", "norm", "projection", "classifier", "bias", "unread"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One named tensor of a checkpoint. `offset` is its first byte in the file, None when only a config is known.

    `role` says how a forward pass reads it: `unread` tensors (llama2.c v0's freq_cis) are never staged or counted.
    `per_layer` is True when the first axis of `shape` is the layer.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    role: Role
    per_layer: bool = False
    offset: int | None = None

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.n_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A decoder language model as its file describes it.

    D = dim, H = hidden_dim, L = n_layers, KD = n_kv_heads * head_dim, V = vocab_size, S = seq_len.
    `unknown` lists in words what could not be understood; when it is not empty nothing about the model is priced.
    """

    name: str
    family: str
    format: Literal["llama2c-v0", "llama2c-v1", "hf-config", "seeded"]
    dim: int
    hidden_dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    seq_len: int
    shared_classifier: bool
    tensors: tuple[TensorSpec, ...]
    weights_dtype: str = "fp32"
    kv_dtype: str = "fp32"
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5
    path: str | None = None
    digest: str = ""
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def kv_dim(self) -> int:
        """Elements of one position of K (and of V) in one layer."""
        return self.n_kv_heads * self.head_dim

    @property
    def q_dim(self) -> int:
        """Elements of one position's query; equals `dim` in llama2.c, may differ where head_dim is explicit."""
        return self.n_heads * self.head_dim

    @property
    def parameters(self) -> int:
        return sum(t.n_elements for t in self.tensors if t.role != "unread")

    @property
    def classifier_name(self) -> str:
        """The tensor that turns the last hidden state into logits: the embedding where it is shared."""
        wanted = "embedding" if self.shared_classifier else "classifier"
        return next(t.name for t in self.tensors if t.role == wanted)

    def staged_tensors(self, attention: Literal["device", "host"]) -> tuple[TensorSpec, ...]:
        """The tensors that a device reads in this attention mode, in file order, each once."""
        if attention == "device":
            return tuple(t for t in self.tensors if t.role != "unread")
        wanted = self.classifier_name
        return tuple(t for t in self.tensors if t.role == "projection" or t.name == wanted)
