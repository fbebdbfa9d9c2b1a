"""How a forward pass of a dense decoder is computed, as its config says it: what shapes and tensors do not tell.

Only facts are read here, for whoever runs the model. What no program of ours computes stands in `cannot`, each with the
field that says it; a model that is only priced is none the worse for it. RoPE scaling: the names and defaults of
transformers' `modeling_rope_utils` (YaRN: arXiv 2309.00071; llama3: the Llama 3.1 model card's rotary scaling).
"""

from __future__ import annotations

import math
import re
from typing import Any

from fleet.checkpoints.json_text import shorten
from fleet.model import Model
from fleet.models.config import Config
from fleet.models.recipe import Recipe, Rope

__all__ = ["RUN_FAMILIES", "read_recipe"]

RUN_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose forward pass is the program text's, with biases and norms of queries and keys where they have them."""

_LIBRARY_EPS = 1e-6
_FACTORS = {
    "linear": {"factor"},
    "dynamic": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {"factor"},
}
"""Fields that a kind of scaling cannot do without."""
_OF_LAYER = re.compile(r"model\.layers\.[0-9]+\.(.+)")
_LEAST, _MOST = 1e-9, 1e12
_ALL_KINDS = "default, linear, dynamic, llama3, yarn"
_NUMBERS = (
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "attention_factor",
    "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
)  # fmt: skip

_BESIDE = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "truncate", "finetuned", *_NUMBERS}
"""What a scaling may say; `finetuned` is for people."""

Cannot = list[tuple[str, str]]


def read_recipe(cfg: Config, model: Model) -> Recipe:
    """The recipe of a config that was understood as `model`. Raises nothing: see `Recipe.cannot`."""
    cannot: Cannot = []
    notes: list[str] = []
    if model.family not in RUN_FAMILIES:
        cannot.append(("model_type", f"{model.family}: priced, not run; run are {', '.join(RUN_FAMILIES)}"))
    act = cfg.document.get("hidden_act")
    if act not in (None, "silu", "swish"):
        cannot.append((cfg.path("hidden_act"), f"is {shorten(act)}: run is silu alone; it would need another gate"))
    if model.quantisation is not None:
        cannot.append(("quantization_config", f"{model.quantisation}: run are fp32, bf16 and fp16 weights"))
    if model.layers and not model.is_plain_cache:
        kinds = ", ".join(sorted({layer.kind for layer in model.layers}))
        told = f"layers of kind {kinds}: run is full attention alone; windows would need caches of their own"
        cannot.append((cfg.path("sliding_window"), told))
    rope = _rope(cfg, model, cannot, notes)
    eps = cfg.document.get("rms_norm_eps")
    named = (_OF_LAYER.match(spec.name) for spec in model.tensors)
    return Recipe(
        rope=rope, norm_eps=_LIBRARY_EPS if eps is None else model.norm_eps, cannot=tuple(cannot), notes=tuple(notes),
        layer_tensors=frozenset(matched[1] for matched in named if matched),
    )  # fmt: skip


def _rope(cfg: Config, model: Model, cannot: Cannot, notes: list[str]) -> Rope:
    plain = Rope(theta=model.rope_theta)
    part = cfg.document.get("partial_rotary_factor")
    field, scaling = _scaling(cfg)
    if scaling is None:
        scaling = {}
    if not isinstance(scaling, dict):
        cannot.append((cfg.path(field), f"is {shorten(scaling)}: must be an object"))
        return plain
    for value in (part, scaling.get("partial_rotary_factor")):
        if value is not None and value != 1:
            told = f"is {shorten(value)}: run are heads that are turned whole"
            cannot.append((cfg.path("partial_rotary_factor"), told))
    other = cfg.document.get("rope_parameters")
    if field == "rope_scaling" and other is not None and other != scaling:
        cannot.append((cfg.path("rope_parameters"), "stands beside another rope_scaling; keep one"))
    theta = scaling.get("rope_theta")
    if theta is not None and theta != model.rope_theta:
        told = f"is {shorten(theta)}, rope_theta beside it {model.rope_theta:g}; keep one"
        cannot.append((cfg.path(f"{field}.rope_theta"), told))
    named = (scaling.get("rope_type"), scaling.get("type"))
    kind = next((word for word in named if word is not None), "default")
    if beside := sorted(map(str, scaling.keys() - _BESIDE)):
        cannot.append((cfg.path(field), f"says {shorten(', '.join(beside))}: not understood, so not computed"))
    if kind == "default":
        if given := sorted(name for name in _NUMBERS if scaling.get(name) is not None):
            cannot.append((cfg.path(field), f"says {', '.join(given)} and no kind of scaling; name rope_type"))
        return plain
    if not isinstance(kind, str) or kind not in _FACTORS:
        cannot.append((cfg.path(field), f"kind {shorten(kind)} is not computed; run are {_ALL_KINDS}"))
        return plain
    numbers = _numbers(cfg, field, scaling, cannot)
    if missing := sorted(_FACTORS[kind] - numbers.keys()):
        cannot.append((cfg.path(field), f"{kind} lacks {', '.join(missing)}; correct the config"))
        return plain
    return _scaled(kind, numbers, scaling, (cfg.path(field), model), cannot, notes)


def _scaling(cfg: Config) -> tuple[str, Any]:
    """The field that scales RoPE, and what it says: `rope_scaling`, or newer `rope_parameters`."""
    for field in ("rope_scaling", "rope_parameters"):
        if cfg.document.get(field) is not None:
            return field, cfg.document[field]
    return "rope_scaling", None


def _numbers(cfg: Config, field: str, scaling: dict[str, Any], cannot: Cannot) -> dict[str, float]:
    """Those of `_NUMBERS` that are given, in sane bounds; the rest are told."""
    found = {}
    for name in _NUMBERS:
        value = scaling.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not _LEAST <= value <= _MOST:
            cannot.append(
                (cfg.path(f"{field}.{name}"), f"is {shorten(value)}: must be a number from {_LEAST:g} to {_MOST:g}")
            )
            continue
        found[name] = float(value)
    return found


def _scaled(
    kind: str, numbers: dict[str, float], scaling: dict[str, Any], where: tuple[str, Model], cannot: Cannot,
    notes: list[str],
) -> Rope:  # fmt: skip
    field, model = where
    theta, factor = model.rope_theta, numbers["factor"]
    original = numbers.get("original_max_position_embeddings", float(model.seq_len))
    if kind == "linear":
        return Rope(kind="linear", theta=theta, factor=factor)
    if kind == "dynamic":
        # It changes the base only beyond the positions that the config allows, and no run goes there.
        if original < model.seq_len:
            told = f"dynamic from {original:,.0f} of {model.seq_len:,} positions on: keys that were turned would change"
            cannot.append((field, told))
        return Rope(theta=theta)
    if kind == "llama3":
        low, high = numbers["low_freq_factor"], numbers["high_freq_factor"]
        if not low < high:
            cannot.append((field, f"low_freq_factor {low:g} must be below high_freq_factor {high:g}"))
        return Rope(kind="llama3", theta=theta, factor=factor, original=original, low=low, high=high)
    return _yarn(numbers, scaling, (original, field, model), cannot, notes)


def _yarn(
    numbers: dict[str, float], scaling: dict[str, Any], where: tuple[float, str, Model], cannot: Cannot,
    notes: list[str],
) -> Rope:  # fmt: skip
    original, field, model = where
    factor = numbers["factor"]
    if not model.rope_theta > 1:
        cannot.append((field, f"yarn needs a rope_theta above 1, not {model.rope_theta:g}"))
    truncate = scaling.get("truncate", True)
    if not isinstance(truncate, bool):
        cannot.append((f"{field}.truncate", f"is {shorten(truncate)}: must be true or false"))
    if "original_max_position_embeddings" in numbers and not math.isclose(factor, model.seq_len / original):
        notes.append(
            f"{field}.factor {factor:g} is not max_position_embeddings / original_max_position_embeddings "
            f"({model.seq_len / original:g}): versions of the library differ in which they take; run is the factor"
        )
    return Rope(
        kind="yarn", theta=model.rope_theta, factor=factor, original=original,
        beta_fast=numbers.get("beta_fast", 32.0), beta_slow=numbers.get("beta_slow", 1.0),
        attention=_yarn_attention(numbers), truncate=truncate is not False,
    )  # fmt: skip


def _yarn_attention(numbers: dict[str, float]) -> float:
    """What cos and sin are multiplied by: `attention_factor`, else by the factor and the two mscales."""
    if "attention_factor" in numbers:
        return numbers["attention_factor"]
    factor = numbers["factor"]
    if "mscale" in numbers and "mscale_all_dim" in numbers:
        return _mscale(factor, numbers["mscale"]) / _mscale(factor, numbers["mscale_all_dim"])
    return _mscale(factor, 1.0)


def _mscale(factor: float, by: float) -> float:
    return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0
