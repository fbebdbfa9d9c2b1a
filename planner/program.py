"""Model -> the program graph of one forward pass: one node a stage kind, an edge is a tensor, no device in it.

`repeat` says how often a node runs in a pass: the layers, or once. Matmul stages are the dispatches; their operands are
what `attention: host` stages up and down, which is why every operand is an edge of its own here. Plain tuples, kept
by shape: an admission asks for them in every call. `planner.placed` places them on a networkx graph.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from fleet.model import Model
from fleet.same import Same

MATMULS_PER_LAYER = ("q", "k", "v", "o", "w1", "w3", "w2")
"""The seven projections, in the order in which a pass dispatches them."""


class Stage(NamedTuple):
    """A node. `op`: embed, norm, matmul, rope, attention, add, swiglu, argmax."""

    op: str
    repeat: int


class Operand(NamedTuple):
    """An edge: `elements` of `tensor` of one token at one repeat, from stage to stage."""

    src: str
    dst: str
    tensor: str
    elements: int


class Program(NamedTuple):
    """The stages of one forward pass by name, in order, and what they hand to each other."""

    stages: dict[str, Stage]
    operands: tuple[Operand, ...]


def program_of(model: Model) -> Program:
    """The program of one forward pass. Shared and cached: read it, do not change it."""
    return _program(model.dim, model.hidden_dim, model.q_dim, model.kv_dim, model.n_layers, model.vocab_size)


@lru_cache(maxsize=64)
def _program(dim: int, hidden: int, query: int, kv: int, layers: int, vocab: int) -> Program:
    stages = {
        "embed": Stage("embed", 1),
        "attention_norm": Stage("norm", layers),
        **{name: Stage("matmul", layers) for name in MATMULS_PER_LAYER},
        "rope": Stage("rope", layers),
        "attention": Stage("attention", layers),
        "attention_add": Stage("add", layers),
        "ffn_norm": Stage("norm", layers),
        "swiglu": Stage("swiglu", layers),
        "ffn_add": Stage("add", layers),
        "final_norm": Stage("norm", 1),
        "classifier": Stage("matmul", 1),
        "argmax": Stage("argmax", 1),
    }
    operands = (
        Operand("embed", "attention_norm", "x", dim),
        Operand("attention_norm", "q", "xb", dim),
        Operand("attention_norm", "k", "xb", dim),
        Operand("attention_norm", "v", "xb", dim),
        Operand("q", "rope", "q", query),
        Operand("k", "rope", "k", kv),
        Operand("v", "attention", "v", kv),
        Operand("rope", "attention", "q,k", query + kv),
        Operand("attention", "o", "xb", query),
        Operand("o", "attention_add", "xb2", dim),
        Operand("attention_add", "ffn_norm", "x", dim),
        Operand("ffn_norm", "w1", "xb", dim),
        Operand("ffn_norm", "w3", "xb", dim),
        Operand("w1", "swiglu", "hb", hidden),
        Operand("w3", "swiglu", "hb2", hidden),
        Operand("swiglu", "w2", "hb", hidden),
        Operand("w2", "ffn_add", "xb", dim),
        Operand("ffn_add", "final_norm", "x", dim),
        Operand("final_norm", "classifier", "x", dim),
        Operand("classifier", "argmax", "logits", vocab),
    )
    return Program(stages, operands)


def dispatches_per_pass(model: Model) -> int | None:
    """Matmul steps of one pass without the classifier: 7L; None where a layer has other matrices than the seven."""
    if not has_seven_projections(model):
        return None
    stages = program_of(model).stages
    return sum(stages[name].repeat for name in MATMULS_PER_LAYER)


def has_seven_projections(model: Model) -> bool:
    """Seven plain matrices in each layer: no experts, no fused or packed ones, no latents."""
    if model.format in ("llama2c-v0", "llama2c-v1", "seeded"):
        return True
    return _seven_projections(Same(model))


@lru_cache(maxsize=128)
def _seven_projections(same: Same[Model]) -> bool:
    model = same.value
    matrices = [t for t in model.tensors if t.role == "projection"]
    if any(t.repeat > 1 or t.packed is not None for t in matrices):
        return False
    return model.is_plain_cache and len(matrices) == len(MATMULS_PER_LAYER) * model.n_layers
