"""What the library takes for a size that a config leaves out, by family: transformers 5.24.0's config classes.

Only fields that its configs are known to leave out or that would otherwise be read as "none": an engine builds the
library's config first, so a field that is missing is not a field that is zero. Each that is taken is told.
"""

from __future__ import annotations

from collections.abc import Mapping

_LATENT = {"q_lora_rank": 1536, "n_shared_experts": 1, "first_k_dense_replace": 3}

LEFT_OUT: Mapping[str, Mapping[str, int]] = {
    "bamba": {"num_key_value_heads": 8},
    "deepseek_v2": {"q_lora_rank": 1536, "n_shared_experts": 2},
    "deepseek_v3": _LATENT,
    "deepseek_v32": _LATENT,
    "exaone4": {"num_key_value_heads": 32},
    "gemma": {"num_key_value_heads": 16},
    "gemma2": {"num_key_value_heads": 4},
    "gemma4_text": {"num_key_value_heads": 4},
    "glm": {"num_key_value_heads": 2},
    "glm4": {"num_key_value_heads": 2},
    "glm4_moe": {"num_key_value_heads": 8, "n_shared_experts": 1},
    "glm4_moe_lite": {"q_lora_rank": 768, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "glm_moe_dsa": _LATENT | {"q_lora_rank": 2048},
    "gpt_oss": {"num_key_value_heads": 8},
    "granitemoehybrid": {"num_local_experts": 8, "shared_intermediate_size": 1024},
    "jamba": {"num_key_value_heads": 8},
    "kimi_k2": _LATENT,
    "kimi_k3": {"num_shared_experts": 1},
    "kimi_linear": {"num_shared_experts": 1},
    "llama4_text": {"num_key_value_heads": 8},
    "mimo": {"num_key_value_heads": 32},
    "minimax_m2": {"num_key_value_heads": 8, "head_dim": 128},
    "ministral3": {"num_key_value_heads": 8, "head_dim": 128},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8},
    "qwen2": {"num_key_value_heads": 32},
    "qwen2_moe": {"num_key_value_heads": 16},
    "qwen3": {"num_key_value_heads": 32, "head_dim": 128},
    "qwen3_5_moe_text": {"num_key_value_heads": 2},
    "qwen3_5_text": {"num_key_value_heads": 4},
    "qwen3_moe": {"num_key_value_heads": 4},
    "qwen3_next": {"num_key_value_heads": 2, "intermediate_size": 5632},
    "qwen3_vl_moe_text": {"num_key_value_heads": 16, "head_dim": 128},
    "qwen3_vl_text": {"num_key_value_heads": 32, "head_dim": 128},
    "seed_oss": {"num_key_value_heads": 8, "head_dim": 128},
    "smollm3": {"num_key_value_heads": 4},
}
"""Field -> value, by `model_type`. Families that are not here take query heads for KV heads."""

INSIDE: Mapping[str, Mapping[str, int]] = {
    "llama": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 32000, "max_position_embeddings": 2048,
    },
    "mistral": {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
        "vocab_size": 32000, "max_position_embeddings": 131072,
    },
    "cohere2": {"max_position_embeddings": 8192},
    "gemma": {"max_position_embeddings": 8192},
    "qwen2": {"max_position_embeddings": 32768},
}  # fmt: skip
"""Sizes that text configs of published wrappers leave out (LLaVA, PaliGemma). Alone, such a config is a fault."""
