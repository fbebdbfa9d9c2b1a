"""Whether the program text can compute a Hugging Face checkpoint: every reason why not, at once and in words."""

from __future__ import annotations

from collections.abc import Iterator

from executor.naming import expected_tensors
from executor.rotation import frequencies
from fleet.model import DTYPE_BYTES, Model, TensorSpec
from fleet.models.recipe import Recipe
from planner.orders import Orders

__all__ = ["RUN_DTYPES", "check_checkpoint", "check_types"]

RUN_DTYPES = ("fp32", "bf16", "fp16")
_TOLD = 8
_SMALLEST, _FASTEST = 1e-30, 1e3

Faults = Iterator[tuple[str, str]]


def check_checkpoint(model: Model) -> Faults:
    """(field, message) of what its config asks for and nobody computes, and of tensors that do not fit the program."""
    assert model.recipe is not None
    if model.read is None:
        yield "model", f"{model.name} holds no weights, only a config; give the folder with its safetensors"
        return
    yield from model.recipe.cannot
    if not model.recipe.cannot:
        yield from _numbers(model, model.recipe)
        yield from _few(list(_tensors(model)))


def _numbers(model: Model, recipe: Recipe) -> Faults:
    """Numbers that are handed to devices as f32 and would be 0 or infinite there, or turn heads beyond all sense."""
    if not _SMALLEST <= recipe.norm_eps <= 1.0:
        yield "rms_norm_eps", f"is {recipe.norm_eps:g}; run are {_SMALLEST:g} to 1"
    if not 1 / _FASTEST <= recipe.rope.theta <= 1 / _SMALLEST:
        yield "rope_theta", f"is {recipe.rope.theta:g}; run are {1 / _FASTEST:g} to {1 / _SMALLEST:g}"
        return
    turned = frequencies(recipe.rope, model.head_dim)
    if not (min(turned) >= _SMALLEST and max(turned) <= _FASTEST):
        told = f"turns pairs by {min(turned):g} to {max(turned):g} a position; run are {_SMALLEST:g} to {_FASTEST:g}"
        yield "rope_theta", told
    if not 1 / _FASTEST <= recipe.rope.attention <= _FASTEST:
        yield "rope_scaling", f"multiplies q and k by {recipe.rope.attention:g}; run are factors to {_FASTEST:g}"


def _few(faults: list[tuple[str, str]]) -> Faults:
    """The first of them, and how many more there are: a checkpoint has thousands of tensors."""
    yield from faults[:_TOLD]
    if len(faults) > _TOLD:
        yield "model", f"and {len(faults) - _TOLD:,} more tensors are not what the program reads"


def _tensors(model: Model) -> Faults:
    held = {spec.name: spec for spec in model.tensors}
    optional = set() if model.recipe is None else model.recipe.layer_tensors
    for wanted in expected_tensors(model):
        if wanted.optional and wanted.suffix not in optional:
            continue  # where a file holds it all the same, it stays among those that nobody reads
        spec = held.pop(wanted.name, None)
        if spec is None:
            yield wanted.name, f"is not in the checkpoint; the program reads {list(wanted.shape)} under this name"
        elif spec.shape != wanted.shape or spec.repeat != 1:
            yield wanted.name, f"has shape {list(spec.shape)}; the program reads {list(wanted.shape)}"
        else:
            yield from _type(spec)
    for name in held:
        yield name, "is read by no operation of the program: neither the config nor the family has it"


def _type(spec: TensorSpec) -> Faults:
    if spec.dtype not in RUN_DTYPES or spec.packed is not None:
        yield spec.name, f"is {spec.dtype}; the executor reads {', '.join(RUN_DTYPES)}; convert the checkpoint"
    elif spec.n_elements * DTYPE_BYTES[spec.dtype] % 4:
        yield (
            spec.name,
            f"has {spec.n_elements:,} elements of two bytes; witnesses look at words of four: an odd number is not run",
        )


def check_types(orders: Orders, model: Model) -> Faults:
    """(field, message) of types, layouts and sizes of a request that a checkpoint with types of its own cannot have."""
    work = orders.workload
    if work.weights_dtype != model.weights_dtype:
        told = f"{work.weights_dtype}: the wire carries the file's own {model.weights_dtype}; leave --weights-dtype out"
        yield "workload.weights_dtype", told
    if work.kv_dtype not in RUN_DTYPES:
        yield "workload.kv_dtype", f"{work.kv_dtype}: K and V are kept in {', '.join(RUN_DTYPES)}; use --kv-dtype bf16"
    if work.layout != "plain":
        yield "workload.layout", f"{work.layout} packs llama2.c's f32; admit with --layout plain"
    if work.kv_dtype in ("bf16", "fp16") and work.attention == "device" and model.kv_dim > model.hidden_dim:
        told = (
            f"{work.kv_dtype}: rows of K ({model.kv_dim}) are computed where those of the feed-forward part"
            f" ({model.hidden_dim}) lie; use --kv-dtype fp32"
        )
        yield "workload.kv_dtype", told
