"""What a checkpoint or a config says about a decoder language model: dimensions and the tensor table.

The tensor table is the wire layout as data: name, shape and dtype in file order. The planner prices it, the
executor stages it, and neither needs the other's arithmetic. Names of dimensions are llama2.c's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fleet.models.layers import CacheLayer, full_layers
from fleet.models.recipe import Recipe
from fleet.same import Same

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int32": 4, "int8": 1, "u8": 1}
"""Bytes of one stored element. `u8` holds packed values or scales of a quantised checkpoint."""

PRICED_DTYPES = ("bf16", "fp16", "fp32", "fp8")
"""The names of `--weights-dtype` and `--kv-dtype` in an admission."""

Role = Literal[
    "embedding", "norm", "projection", "classifier", "bias", "router", "recurrent", "buffer", "scale", "vision",
    "unread",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """One named tensor of a checkpoint. `offset` is its first byte in the file, None when only a config is known.

    `role` says how a forward pass reads it: `unread` tensors (llama2.c v0's freq_cis) are never staged or counted.
    `per_layer` is True when the first axis of `shape` is the layer. `repeat` tensors of one shape may stand as one
    line: `{}` in `name` is then the number 0..repeat-1 (the experts of a layer). `packed` is how many parameters one
    tensor stands for where that is not its elements: quantised weights, and 0 for their scales.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    role: Role
    per_layer: bool = False
    offset: int | None = None
    repeat: int = 1
    packed: int | None = None

    @property
    def n_elements(self) -> int:
        """Stored elements of all `repeat` tensors."""
        return math.prod(self.shape) * self.repeat

    @property
    def n_parameters(self) -> int:
        """Parameters that the `repeat` tensors stand for."""
        return self.n_elements if self.packed is None else self.packed * self.repeat

    @property
    def line(self) -> str:
        """The name of the whole line: `experts.[0:8].w1` for eight experts."""
        return self.name if self.repeat == 1 else self.name.replace("{}", f"[0:{self.repeat}]")

    def names(self) -> Iterator[str]:
        """The name of each tensor in the checkpoint."""
        if self.repeat == 1:
            yield self.name
            return
        yield from (self.name.replace("{}", str(index)) for index in range(self.repeat))

    @property
    def nbytes(self) -> int:
        return self.n_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadWeights:
    """What the headers of weight files say, to be set beside what a config computes; no figure here is computed.

    `nbytes` is None when a type's size is not known. `by_dtype`: (type in the format's word, tensors, bytes).
    `differences`: in words with both figures, where the files and the config disagree; empty when they agree.
    """

    format: Literal["safetensors", "gguf"]
    n_files: int
    n_tensors: int
    nbytes: int | None
    by_dtype: tuple[tuple[str, int, int | None], ...]
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A decoder language model as its file describes it.

    D = dim, H = hidden_dim, L = n_layers, KD = n_kv_heads * head_dim, V = vocab_size, S = seq_len.
    `unknown` lists in words what could not be understood or was never compared; when it is not empty no plan is priced.
    `layers` is what each layer keeps, in order; None: the dense decoder of the dimensions; with `unknown`: not known.
    `tensors` is empty when the weights are not understood; `weights_compared` False: computed, but compared with no
    published total of this family and type. `counted_parameters`: known though the packing is not; 0: not known.
    `quantisation` names the scheme of quantised weights; `excludes` what the table leaves out. `read`: what weight
    files say, where there are any; `tensors` then has their bytes. `experts_per_token`: routed
    experts that a token goes through in a layer that has any; None: none, or not known. `mtp_layers`, `mtp_tensors`:
    the layers of multi-token prediction, counted by `with_mtp` only. `recipe`: how a pass is computed, where a config
    of a known family says it; None of llama2.c's own formats, whose one program it is.
    """

    name: str
    family: str
    format: Literal["llama2c-v0", "llama2c-v1", "hf-config", "safetensors", "gguf", "seeded"]
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
    layers: tuple[CacheLayer, ...] | None = None
    mtp_layers: tuple[CacheLayer, ...] = ()
    mtp_tensors: tuple[TensorSpec, ...] = ()
    mtp_unknown: tuple[str, ...] = ()
    quantisation: str | None = None
    weights_compared: bool = True
    counted_parameters: int | None = None
    excludes: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()
    read: ReadWeights | None = None
    experts_per_token: int | None = None
    recipe: Recipe | None = None

    @property
    def caches(self) -> tuple[CacheLayer, ...]:
        """What each layer keeps of a sequence, in order; empty when the layout is not understood."""
        if self.layers is not None:
            return self.layers
        if self.unknown or not self.n_layers:
            return ()
        return full_layers(self.n_layers, self.n_kv_heads, self.head_dim, self.head_dim)

    @property
    def is_plain_cache(self) -> bool:
        """True for equal full-attention layers with K as wide as V: the wire layout [tensor][layer][position][KD]."""
        if self.layers is None:
            return bool(self.caches)
        first = self.layers[0] if self.layers else None
        return (
            first is not None
            and (first.kind, first.heads, first.key_dim, first.value_dim)
            == ("full", self.n_kv_heads, self.head_dim, self.head_dim)
            and _are_alike(Same(self.layers))
        )

    @property
    def weights_bytes(self) -> int | None:
        """Bytes of all tensors as the checkpoint stores them; None when not understood or never compared."""
        return self.computed_weights_bytes if self.weights_compared else None

    @property
    def computed_weights_bytes(self) -> int | None:
        """The same sum whether or not it was ever compared with a published total; None when not understood.

        Of unquantised weights the buffers are left out, as the library's counts leave them out: see `buffer_bytes`.
        """
        if not self.tensors:
            return None
        apart = ("unread",) if self.quantisation else ("unread", "buffer")
        return sum(t.nbytes for t in self.tensors if t.role not in apart)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of router correction biases and the like, which a library keeps as buffers beside its parameters."""
        return sum(t.nbytes for t in self.tensors if t.role == "buffer")

    def bytes_if(self, width: int) -> int:
        """Bytes of all parameters, buffers left out, at `width` bytes each: an unquantised checkpoint."""
        return width * sum(t.n_parameters for t in self.tensors if t.role not in ("unread", "buffer"))

    @property
    def vision_parameters(self) -> int:
        """Parameters of a vision tower that the tensor table holds."""
        return sum(t.n_parameters for t in self.tensors if t.role == "vision")

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
        """Parameters of the language model; router correction biases count, scales do not."""
        if not self.tensors or self.counted_parameters is not None:
            return self.counted_parameters or 0
        return sum(t.n_parameters for t in self.tensors if t.role not in ("unread", "vision"))

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


@lru_cache(maxsize=256)
def _are_alike(layers: Same[tuple[CacheLayer, ...]]) -> bool:
    first = layers.value[0]
    return all(layer is first or layer == first for layer in layers.value)


def with_mtp(model: Model) -> Model:
    """`model` with its multi-token-prediction layers counted: their caches, their tensors, what is unknown of them."""
    if not model.mtp_layers and not model.mtp_unknown:
        return model
    known = bool(model.mtp_tensors)
    return replace(
        model,
        n_layers=model.n_layers + len(model.mtp_layers),
        layers=(*model.caches, *model.mtp_layers),
        tensors=(*model.tensors, *model.mtp_tensors) if known else model.tensors,
        weights_compared=model.weights_compared and known,
        unknown=(*model.unknown, *model.mtp_unknown),
        mtp_layers=(),
        mtp_tensors=(),
        mtp_unknown=(),
    )


def unsized_model(
    *,
    name: str,
    family: str,
    form: Literal["hf-config", "safetensors", "gguf"],
    path: str,
    digest: str,
    layers: tuple[CacheLayer, ...] | None = None,
) -> Model:
    """A model of which no dimension is known: every one is 0 and no tensor is listed."""
    return Model(
        name=name,
        family=family,
        format=form,
        dim=0,
        hidden_dim=0,
        n_layers=0,
        n_heads=0,
        n_kv_heads=0,
        head_dim=0,
        vocab_size=0,
        seq_len=0,
        shared_classifier=False,
        tensors=(),
        weights_dtype="bf16",
        kv_dtype="bf16",
        path=path,
        digest=digest,
        layers=layers,
    )
