"""How the tensors of a checkpoint are divided among tensor-parallel ranks and pipeline stages. Shapes only.

The division is Megatron's (arXiv 1909.08053), as vLLM and SGLang load it: a projection that reads the hidden state is
split by its outputs, one that gives it back by its inputs, so that a layer needs one sum each for attention and MLP.
KV heads are split, or copied where ranks exceed them; vocabulary rows are split; norms, routers, the projections into
MLA's latents and its indexer lie whole on every rank. A tensor whose division is not known, or that does not divide, is
told in words and never rounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fleet.model import Model, TensorSpec
from fleet.models.layers import CacheLayer, split_or_copied
from fleet.same import Same

How = Literal["outputs", "inputs", "heads", "qkv", "grouped", "vocabulary", "copied"]

_BY_NAME: dict[How, tuple[str, ...]] = {
    "outputs": (
        "q_proj", "gate_proj", "up_proj", "gate_up_proj", "w1", "w3", "wq", "q_b_proj", "kv_b_proj", "in_proj_z",
        "in_proj_a", "in_proj_b", "in_proj_ba", "dt_proj", "A_log", "D", "dt_bias", "sinks", "attention_sink_bias",
        "input_linear", "dense_h_to_4h",
    ),
    "inputs": ("o_proj", "down_proj", "w2", "wo", "out_proj", "output_linear", "x_proj", "dense", "dense_4h_to_h",
               "c_proj"),
    "heads": ("k_proj", "v_proj", "wk", "wv"),
    "qkv": ("qkv_proj", "query_key_value", "c_attn"),
    "grouped": ("in_proj", "in_proj_qkvz", "in_proj_qkv", "conv1d"),
    "copied": ("q_a_proj", "kv_a_proj_with_mqa", "fc1_latent_proj", "fc2_latent_proj"),
}  # fmt: skip
_HOW: dict[str, How] = {name: how for how, names in _BY_NAME.items() for name in names}
_SUFFIX = re.compile(
    r"(?:\.(?:weight|bias|weight_scale_inv|weight_scale_2|weight_scale|input_scale|SCB|weight_format)"
    r"|_(?:blocks|scales|bias))$"
)
_LAYER = re.compile(r"\.(\d{1,9})\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """Which rank of how many, and which layers its stage holds; `first` and `last`: of all stages."""

    ranks: int
    rank: int
    layers: tuple[int, int]
    first: bool
    last: bool


def layer_of(tensor: TensorSpec) -> int | None:
    """The layer that a name states; None for the embedding, the head and the last norm."""
    found = _LAYER.search(tensor.name)
    return None if found is None else int(found[1])


def how_divided(tensor: TensorSpec) -> How | None:
    """The rule for a tensor; None when its name is none that is understood."""
    if tensor.role in ("embedding", "classifier"):
        return "vocabulary"
    if tensor.role == "vision" or ".indexer." in tensor.name or tensor.role == "router":
        return "copied"
    stem = tensor.name.rsplit(".", 1)[-1]
    stem = stem if stem in _HOW else _SUFFIX.sub("", tensor.name).rsplit(".", 1)[-1]
    if tensor.role == "norm":
        return "outputs" if tensor.name.endswith(".mixer.norm.weight") else "copied"
    if not tensor.shape or tensor.role == "buffer" or "norm" in stem or stem in ("router", "gate"):
        return "copied"
    if stem == "w2" and tensor.name.endswith("mlp.w2.weight"):
        return "outputs"  # the first Qwen: w1 and w2 go up, c_proj comes down
    return _HOW.get(stem)


def cut_tensor(tensor: TensorSpec, model: Model, cut: Cut) -> TensorSpec | None:
    """What one rank holds of a tensor that lies on its stage; None when that is not known or does not divide."""
    shape = tensor.shape
    if tensor.per_layer:
        shape = (cut.layers[1] - cut.layers[0], *shape[1:])
    if cut.ranks == 1:
        return replace(tensor, shape=shape)
    how = how_divided(tensor)
    if how is None:
        return None
    if how == "copied":
        return replace(tensor, shape=shape)
    if how == "vocabulary":
        return replace(tensor, shape=(_rows_of(shape[0], cut), *shape[1:]))
    axis = _axis(tensor, how)
    if axis is None:  # a bias, or a scale a row, of what is split by its inputs
        return replace(tensor, shape=shape)
    held = _length(shape[axis], how, tensor, model, cut)
    return None if held is None else replace(tensor, shape=(*shape[:axis], held, *shape[axis + 1 :]))


def _rows_of(rows: int, cut: Cut) -> int:
    """Rows of a vocabulary on one rank: ceil(V / ranks), and what is left on the last."""
    each = -(-rows // cut.ranks)
    return max(0, min(rows, each * (cut.rank + 1)) - each * cut.rank)


def _axis(tensor: TensorSpec, how: How) -> int | None:
    """The axis that is cut. Weights are [.., out, in]; experts in one tensor [E, in, out], packed [E, out, in..]."""
    name, lead = tensor.name, 1 if tensor.per_layer else 0
    by_inputs = how == "inputs"
    if name.endswith(("_blocks", "_scales")):
        return 2 if by_inputs else 1
    if name.endswith((".bias", ".SCB", "_proj_bias")) or len(tensor.shape) - lead == 1:
        return None if by_inputs else len(tensor.shape) - 1
    if len(tensor.shape) == 3 and not lead and "." in name and not name.endswith((".weight", ".conv1d.weight")):
        return 1 if by_inputs else 2
    if name.endswith("conv1d.weight"):
        return 0
    if len(tensor.shape) == 3:
        return 2 if by_inputs else 1
    return lead + 1 if by_inputs else lead


def _length(whole: int, how: How, tensor: TensorSpec, model: Model, cut: Cut) -> int | None:
    """Elements of the cut axis on one rank; None where it does not come out whole."""
    if how in ("outputs", "inputs"):
        return _share(whole, 1, cut.ranks)
    layer = _cache_of(tensor, model)
    if layer is None:
        return None
    if how == "heads":
        held = split_or_copied(layer.heads, cut.ranks) if layer.heads else None
        return None if held is None else _share(whole, held, layer.heads)
    if how == "qkv":
        return _query_key_value(whole, layer, model, cut)
    return _grouped(whole, layer, cut)


def _share(whole: int, part: int, of: int) -> int | None:
    return whole * part // of if whole * part % of == 0 else None


def _cache_of(tensor: TensorSpec, model: Model) -> CacheLayer | None:
    layers = model.caches
    index = 0 if tensor.per_layer else layer_of(tensor)
    return layers[index] if index is not None and index < len(layers) else None


def _query_key_value(whole: int, layer: CacheLayer, model: Model, cut: Cut) -> int | None:
    """Query heads split, KV heads split or copied; of one matrix that holds all three."""
    heads = model.n_heads + 2 * layer.heads
    held = split_or_copied(layer.heads, cut.ranks) if layer.heads else None
    if held is None or model.n_heads % cut.ranks:
        return None
    return _share(whole, model.n_heads // cut.ranks + 2 * held, heads)


def _grouped(whole: int, layer: CacheLayer, cut: Cut) -> int | None:
    """Channels and heads split, groups split or copied; of one matrix or convolution that holds them all."""
    groups = split_or_copied(layer.conv_groups, cut.ranks) if layer.conv_groups else 0
    if groups is None:
        return None
    rest = _share(whole - layer.conv_groups * layer.conv_group_dim, 1, cut.ranks)
    return None if rest is None else rest + groups * layer.conv_group_dim


def on_stage(tensor: TensorSpec, model: Model, cut: Cut) -> bool:
    """Whether a stage holds (its part of) a tensor. A tied embedding is the first stage's, and the head of the last."""
    if tensor.per_layer:
        return True
    layer = layer_of(tensor) if tensor.role != "vision" else None
    if layer is not None:
        return cut.layers[0] <= layer < cut.layers[1] or (cut.last and layer >= len(model.caches))
    if tensor.role in ("embedding", "vision"):
        return cut.first or (cut.last and tensor.role == "embedding" and model.shared_classifier)
    return cut.last


def rank_tensors(model: Model, cut: Cut) -> tuple[TensorSpec, ...]:
    """The tensors of one rank, in the order of the checkpoint. What `division_unknown` tells of is left out."""
    return _rank_tensors(Same(model), cut)


@lru_cache(maxsize=128)
def _rank_tensors(same: Same[Model], cut: Cut) -> tuple[TensorSpec, ...]:
    model = same.value
    held = (cut_tensor(tensor, model, cut) for tensor in model.tensors if on_stage(tensor, model, cut))
    return tuple(tensor for tensor in held if tensor is not None)


def division_unknown(model: Model, cut: Cut) -> tuple[str, ...]:
    """In words, each sort of tensor on a stage whose part on one rank is not known."""
    return _division_unknown(Same(model), cut)


@lru_cache(maxsize=128)
def _division_unknown(same: Same[Model], cut: Cut) -> tuple[str, ...]:
    return tuple(_unknown_sorts(same.value, cut))


def _unknown_sorts(model: Model, cut: Cut) -> Iterator[str]:
    told = set()
    for tensor in model.tensors:
        if not on_stage(tensor, model, cut) or cut_tensor(tensor, model, cut) is not None:
            continue
        sort = _LAYER.sub(".N.", tensor.name)
        if sort not in told:
            told.add(sort)
            yield f"how {sort} {list(tensor.shape)} is divided among {cut.ranks} ranks is not known" + (
                "" if how_divided(tensor) is None else ": it does not divide, and an engine may pad it"
            )
