"""Model -> the program graph of one forward pass: one node a stage kind, an edge is a tensor, no device in it.

`repeat` says how often a node runs in a pass: the layers, or once. Matmul stages are the dispatches; their operands are
what `attention: host` stages up and down, which is why every operand is an edge of its own here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import networkx as nx

from fleet.model import Model

MATMULS_PER_LAYER = ("q", "k", "v", "o", "w1", "w3", "w2")
"""The seven projections, in the order in which a pass dispatches them."""


def program_graph(model: Model) -> Any:
    """The stages of one forward pass as a networkx MultiDiGraph. Shared and cached: read it, do not change it.

    Node attributes: `op` (embed, norm, matmul, rope, attention, add, swiglu, argmax) and `repeat`.
    Edge attributes: `tensor`, `elements` of one token at one repeat.
    """
    return _program(model.dim, model.hidden_dim, model.q_dim, model.kv_dim, model.n_layers, model.vocab_size)


@lru_cache(maxsize=64)
def _program(dim: int, hidden: int, query: int, kv: int, layers: int, vocab: int) -> Any:
    graph: Any = nx.MultiDiGraph()
    for name, op, repeat in (
        ("embed", "embed", 1),
        ("attention_norm", "norm", layers),
        *((name, "matmul", layers) for name in MATMULS_PER_LAYER),
        ("rope", "rope", layers),
        ("attention", "attention", layers),
        ("attention_add", "add", layers),
        ("ffn_norm", "norm", layers),
        ("swiglu", "swiglu", layers),
        ("ffn_add", "add", layers),
        ("final_norm", "norm", 1),
        ("classifier", "matmul", 1),
        ("argmax", "argmax", 1),
    ):
        graph.add_node(name, op=op, repeat=repeat)
    for src, dst, tensor, elements in (
        ("embed", "attention_norm", "x", dim),
        ("attention_norm", "q", "xb", dim),
        ("attention_norm", "k", "xb", dim),
        ("attention_norm", "v", "xb", dim),
        ("q", "rope", "q", query),
        ("k", "rope", "k", kv),
        ("v", "attention", "v", kv),
        ("rope", "attention", "q,k", query + kv),
        ("attention", "o", "xb", query),
        ("o", "attention_add", "xb2", dim),
        ("attention_add", "ffn_norm", "x", dim),
        ("ffn_norm", "w1", "xb", dim),
        ("ffn_norm", "w3", "xb", dim),
        ("w1", "swiglu", "hb", hidden),
        ("w3", "swiglu", "hb2", hidden),
        ("swiglu", "w2", "hb", hidden),
        ("w2", "ffn_add", "xb", dim),
        ("ffn_add", "final_norm", "x", dim),
        ("final_norm", "classifier", "x", dim),
        ("classifier", "argmax", "logits", vocab),
    ):
        graph.add_edge(src, dst, tensor=tensor, elements=elements)
    return graph


def dispatches_per_pass(model: Model) -> int | None:
    """Matmul steps of one pass without the classifier: 7L; None where a layer has other matrices than the seven."""
    if not has_seven_projections(model):
        return None
    nodes = program_graph(model).nodes(data=True)
    steps: int = sum(data["repeat"] for name, data in nodes if data["op"] == "matmul" and name != "classifier")
    return steps


def has_seven_projections(model: Model) -> bool:
    """Seven plain matrices in each layer: no experts, no fused or packed ones, no latents."""
    if model.format in ("llama2c-v0", "llama2c-v1", "seeded"):
        return True
    matrices = [t for t in model.tensors if t.role == "projection"]
    if any(t.repeat > 1 or t.packed is not None for t in matrices):
        return False
    return model.is_plain_cache and len(matrices) == len(MATMULS_PER_LAYER) * model.n_layers
