"""Stored tensors as a Model's table: the bytes of the files, in the vocabulary of the planner."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from fleet.checkpoints.stored import Stored, StoredTensor
from fleet.model import Model, ReadWeights, Role, TensorSpec, unsized_model

_SAME = {
    "F32": "fp32",
    "BF16": "bf16",
    "F16": "fp16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I32": "int32",
    "I8": "int8",
    "U8": "u8",
}
"""Types whose elements the planner prices as they are; all others stand as their bytes."""

# Names of Hugging Face checkpoints and of GGUF files; the first that fits decides.
_ROLES: tuple[tuple[re.Pattern[str], Role], ...] = tuple(
    (re.compile(pattern), role)  # type: ignore[misc]
    for pattern, role in (
        (r"rotary_emb|inv_freq|rope_freqs|rope_factors", "buffer"),
        (r"^(v\.|mm\.)|vision|visual|multi_modal_projector|mm_projector", "vision"),
        (r"_scale(_inv|_)?$|_scales$|\.scales$|(input|weight)_scale|absmax|quant_map|quant_state", "scale"),
        (r"norm\.weight$|norm$|layernorm|ln_f|ln_\.", "norm"),
        (r"\.bias$", "bias"),
        (r"(^|\.)(embed_tokens|wte|token_embd|word_embeddings|tok_embeddings)\b", "embedding"),
        (r"(^|\.)lm_head\b|^output\.weight$", "classifier"),
        (r"ffn_gate_inp|router|mlp\.gate\.|block_sparse_moe\.gate\.", "router"),
    )
)


_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))


def role_of(name: str) -> Role:
    """What a forward pass makes of a tensor of this name; a projection where nothing else fits."""
    return _role(name.translate(_NO_DIGITS))


@lru_cache(maxsize=4096)
def _role(name: str) -> Role:
    """The role by a name without its numbers: the layers of a model share a few dozen."""
    return next((role for pattern, role in _ROLES if pattern.search(name)), "projection")


def specs(stored: Stored) -> tuple[TensorSpec, ...]:
    """One line a tensor, its `nbytes` those of the file. Every tensor must have known bytes."""
    return tuple(_spec(tensor) for tensor in stored.tensors)


def _spec(tensor: StoredTensor) -> TensorSpec:
    role = role_of(tensor.name)
    packed = 0 if role in ("buffer", "scale") else tensor.n_elements
    dtype = _SAME.get(tensor.dtype)
    if dtype is not None:
        same = packed == tensor.n_elements
        return TensorSpec(name=tensor.name, shape=tensor.shape, dtype=dtype, role=role, packed=None if same else packed)
    nbytes = tensor.nbytes or 0
    rows = math.prod(tensor.shape[:-1])
    # A row of blocks where the bytes divide so, else the bytes as they lie.
    shape = (*tensor.shape[:-1], nbytes // rows) if tensor.shape and rows and nbytes % rows == 0 else (nbytes,)
    return TensorSpec(name=tensor.name, shape=shape, dtype="u8", role=role, packed=packed)


def read_weights(stored: Stored, differences: tuple[str, ...] = ()) -> ReadWeights:
    """The totals of `stored` as a Model carries them."""
    return ReadWeights(
        format=stored.format,
        n_files=len(stored.files),
        n_tensors=len(stored.tensors),
        nbytes=stored.nbytes,
        by_dtype=tuple((dtype, row.count, row.nbytes) for dtype, row in stored.by_dtype().items()),
        differences=differences,
    )


def unpriced(name: str, family: str, form: Literal["safetensors", "gguf"], path: str, stored: Stored) -> Model:
    """A model of which only tensors are known: every dimension is 0, and no layer is."""
    empty = unsized_model(name=name, family=family, form=form, path=path, digest=stored.digest)
    return replace(empty, read=read_weights(stored))
