"""llama2.c's names of the program text's tensors, as the checkpoint at hand calls them.

llama2.c keeps all layers of a weight in one tensor; a Hugging Face checkpoint has a tensor a layer. The wire carries
the checkpoint's own, so this table is all that stands between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fleet.model import Model

__all__ = ["Named", "expected_tensors", "layer_tensor", "tensor_name"]

LAYERED = ("rms_att", "wq", "wk", "wv", "wo", "rms_ffn", "w1", "w2", "w3")
"""llama2.c's tensors whose first axis is the layer."""

_OF_LAYER = {
    "rms_att": "input_layernorm.weight",
    "wq": "self_attn.q_proj.weight",
    "wk": "self_attn.k_proj.weight",
    "wv": "self_attn.v_proj.weight",
    "wo": "self_attn.o_proj.weight",
    "rms_ffn": "post_attention_layernorm.weight",
    "w1": "mlp.gate_proj.weight",
    "w2": "mlp.down_proj.weight",
    "w3": "mlp.up_proj.weight",
}
_OPTIONAL = {
    "bq": "self_attn.q_proj.bias",
    "bk": "self_attn.k_proj.bias",
    "bv": "self_attn.v_proj.bias",
    "bo": "self_attn.o_proj.bias",
    "b1": "mlp.gate_proj.bias",
    "b2": "mlp.down_proj.bias",
    "b3": "mlp.up_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
}
"""What a family may have beside: biases, and norms of each head of queries and keys."""
OPTIONAL = tuple(_OPTIONAL)
_WHOLE = {"token_embedding": "model.embed_tokens.weight", "rms_final": "model.norm.weight", "wcls": "lm_head.weight"}


class Named(NamedTuple):
    """A tensor of the program text in a checkpoint: what the program calls it, its layer (or -1), name and shape."""

    key: str
    layer: int
    name: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def suffix(self) -> str:
        """What follows the layer's number in the name; empty where there is none."""
        return self.name.split(".", 3)[-1] if self.layer >= 0 else ""


def tensor_name(key: str, layer: int) -> str:
    """The name in a Hugging Face checkpoint of what the program text calls `key`."""
    if key in _WHOLE:
        return _WHOLE[key]
    return f"model.layers.{layer}.{_OF_LAYER.get(key) or _OPTIONAL[key]}"


def layer_tensor(model: Model, key: str, layer: int) -> tuple[str, int | None]:
    """(name of the tensor that holds a layer of `key`, index of that layer in it; None where it is the layer's own)."""
    return (key, layer) if model.recipe is None else (tensor_name(key, layer), None)


def expected_tensors(model: Model) -> Iterator[Named]:
    """Every tensor that the program text reads of a Hugging Face checkpoint of these sizes, optional ones too."""
    dim, hidden, q, kv = model.dim, model.hidden_dim, model.q_dim, model.kv_dim
    shapes: dict[str, tuple[int, ...]] = {
        "rms_att": (dim,), "wq": (q, dim), "wk": (kv, dim), "wv": (kv, dim), "wo": (dim, q), "rms_ffn": (dim,),
        "w1": (hidden, dim), "w2": (dim, hidden), "w3": (hidden, dim), "bq": (q,), "bk": (kv,), "bv": (kv,),
        "bo": (dim,), "b1": (hidden,), "b2": (dim,), "b3": (hidden,), "q_norm": (model.head_dim,),
        "k_norm": (model.head_dim,),
    }  # fmt: skip
    wide = (model.vocab_size, dim)
    for layer in range(model.n_layers):
        for key, shape in shapes.items():
            yield Named(key, layer, tensor_name(key, layer), shape, key in _OPTIONAL)
    yield Named("token_embedding", -1, _WHOLE["token_embedding"], wide)
    yield Named("rms_final", -1, _WHOLE["rms_final"], (dim,))
    if not model.shared_classifier:
        yield Named("wcls", -1, _WHOLE["wcls"], wide)
