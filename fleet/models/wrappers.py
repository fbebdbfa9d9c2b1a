"""Multimodal wrappers: configs whose language model lies in `text_config`. The language model is priced; of the towers
only those are counted whose tensors are written down here, all others are named as left out.
"""

from __future__ import annotations

from fleet.models.blueprint import Blueprint, Row, linear, stamp
from fleet.models.config import Config

WRAPPERS: dict[str, str] = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "vipllava": "llama",
    "paligemma": "gemma",
    "aya_vision": "cohere2",
    "internvl": "qwen2",
    "internvl_chat": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "kimi_k25": "kimi_k2",
    "kimi_k3": "kimi_k3",
    "step3p7": "step3p5",
}
"""Wrapper -> the `model_type` of its text config where that names none."""

FLAT: dict[str, str] = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2"}
"""Wrappers that were published with the language model's fields beside the tower's, in no object of their own."""

OF_WRAPPER: dict[str, str] = {"kimi_k3": "kimi_k3"}
"""Wrappers whose text config names a family that it is not: this one is taken instead."""

NOT_PRICED: dict[str, str] = {
    "deepseek_v4": "window latents beside compressed latents and index keys; no formula of it was ever checked",
    "minimax_m3": "its index cache was never checked",
    "minimax_m3_vl": "its index cache was never checked",
    "mllama": "cross-attention layers keep image tokens",
    "mllama_text_model": "cross-attention layers keep image tokens",
    "gemma3n": "layers share caches and embeddings lie per layer",
    "gemma3n_text": "layers share caches and embeddings lie per layer",
}
"""Families that are known not to be understood, and why."""


def vision_rows(cfg: Config, plan: Blueprint) -> list[Row]:
    """The tensors of a vision tower, role `vision`; none when there is none or it is only named as excluded."""
    if not cfg.within and cfg.outer.get("model_type") in FLAT:
        plan.excludes.append("vision tower and projector")
    if not cfg.within:
        return []
    vision = cfg.outer.get("vision_config")
    if not isinstance(vision, dict):
        plan.excludes.append("whatever the wrapper holds beside its language model")
        return []
    if cfg.outer.get("model_type") == "gemma3" and vision.get("model_type") == "siglip_vision_model":
        tower = Config(cfg.outer, "", cfg.source, within="vision_config")
        rows = _siglip(tower, plan.dim)
        cfg.faults += tower.faults
        return rows
    plan.excludes.append("vision tower and projector")
    return []


def _siglip(cfg: Config, text_dim: int) -> list[Row]:
    """SigLIP without head, and Gemma 3's projector: one matrix and a norm."""
    dim, hidden, layers = cfg.count("hidden_size"), cfg.count("intermediate_size"), cfg.count("num_hidden_layers")
    patch, image, channels = cfg.count("patch_size"), cfg.count("image_size"), cfg.count("num_channels", 3)
    one = [
        row
        for name in ("q_proj", "k_proj", "v_proj", "out_proj")
        for row in linear(f"self_attn.{name}", dim, dim, True)
    ]
    one += linear("mlp.fc1", hidden, dim, True) + linear("mlp.fc2", dim, hidden, True)
    one += [(f"layer_norm{n}.{part}", (dim,), "norm", 1) for n in (1, 2) for part in ("weight", "bias")]
    rows: list[Row] = [
        ("embeddings.patch_embedding.weight", (dim, channels, patch, patch), "vision", 1),
        ("embeddings.patch_embedding.bias", (dim,), "vision", 1),
        ("embeddings.position_embedding.weight", ((image // patch) ** 2, dim), "vision", 1),
    ]
    for index in range(layers):
        rows += stamp(f"encoder.layers.{index}.", one)
    rows += [(f"post_layernorm.{part}", (dim,), "vision", 1) for part in ("weight", "bias")]
    rows = stamp("vision_tower.vision_model.", rows)
    rows.append(("multi_modal_projector.mm_input_projection_weight", (dim, text_dim), "vision", 1))
    rows.append(("multi_modal_projector.mm_soft_emb_norm.weight", (dim,), "vision", 1))
    return [(name, shape, "vision", repeat) for name, shape, _, repeat in rows]
