"""Activations of a model that no program of ours computes: a bound from above, from the shapes of its matrices.

A dense decoder of seven matrices a layer has the buffers that the executor allocates (`planner.footprint`). Any other
layer (experts, latents, states, fused matrices) is not squeezed into that form: its line is what one forward call
makes at most, if every output of every matrix of its widest layer is kept at once, f32. A program that keeps them all
needs no more; one that reuses them needs less.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from fleet.model import Model, TensorSpec
from fleet.models.layers import CacheLayer
from fleet.same import Same
from planner.program import has_seven_projections
from planner.sharding import layer_of

SOURCE = (
    "at most: all outputs of all matrices of the widest layer kept at once, f32, with scores and logits; a bound from"
    " the shapes of the checkpoint, for no program of ours computes this model"
)

_PLAIN = ("fp32", "bf16", "fp16")
_MAKES = ("projection", "router", "recurrent")


def is_bound(model: Model) -> bool:
    """Whether the activations of a model are a bound; False where they are the buffers of a program that exists."""
    return not has_seven_projections(model)


def widest_layer(model: Model) -> int:
    """Elements that one position makes in the layer that makes most: never fewer than any order of work keeps."""
    return _widest_layer(Same(model))


def scores_heads(model: Model) -> int:
    """Rows of scores that attention keeps of one position: its query heads, or an indexer's where it has more."""
    index = [t.shape[0] for t in model.tensors if t.name.endswith("indexer.weights_proj.weight")]
    return max([model.n_heads, *index])


@lru_cache(maxsize=128)
def _widest_layer(same: Same[Model]) -> int:
    model = same.value
    made: Counter[int | None] = Counter()
    for tensor in model.tensors:
        if tensor.role in _MAKES:
            made[layer_of(tensor)] += _outputs(tensor, model.experts_per_token)
    least = max(model.dim, model.q_dim, model.hidden_dim)
    inside = max((_beside_matrices(layer, model) for layer in dict.fromkeys(model.caches)), default=0)
    return max([least, *made.values()]) + inside


def _outputs(tensor: TensorSpec, routed: int | None) -> int:
    """Outputs of the matrices of one line. Of experts as many as a token goes through, all where nobody says."""
    shape = tensor.shape
    if tensor.name.endswith("_blocks"):  # packed: [experts, out, groups, bytes]
        count, width = shape[0], shape[1]
    elif len(shape) >= 3 and "conv" not in tensor.name:
        # Files write stacked experts [experts, in, out] and [experts, out, in]: the wider is a bound of either.
        count, width = shape[0], max(shape[1:])
    elif tensor.dtype not in _PLAIN and shape:
        count, width = 1, max(shape)  # packed along either axis
    else:
        count, width = 1, shape[0] if shape else 1
    count *= tensor.repeat
    return width * (count if routed is None or count == 1 else min(count, routed))


def _beside_matrices(layer: CacheLayer, model: Model) -> int:
    """What no matrix of the table makes: queries and results within a latent, and a state's inputs once more."""
    within_latent = 2 * model.n_heads * layer.latent_dim
    return within_latent + layer.conv_channels + layer.conv_groups * layer.conv_group_dim + layer.state_heads
