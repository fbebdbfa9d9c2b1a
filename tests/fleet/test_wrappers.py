"""Multimodal wrappers as they are published: flat ones, and text configs that leave sizes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.models import kv

QWEN: dict[str, Any] = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "vision_config": {"depth": 32}, "use_sliding_window": False, "sliding_window": 32768,
    "vision_start_token_id": 151652, "image_token_id": 151655,
}  # fmt: skip
VICUNA = {"model_type": "llama", "max_position_embeddings": 4096, "torch_dtype": "float16", "vocab_size": 32064}
MISTRAL = {
    "model_type": "mistral", "intermediate_size": 14336, "max_position_embeddings": 32768, "num_key_value_heads": 8,
    "sliding_window": None, "torch_dtype": "bfloat16", "vocab_size": 32064,
}  # fmt: skip
GEMMA = {
    "model_type": "gemma", "hidden_size": 2048, "intermediate_size": 16384, "num_attention_heads": 8,
    "num_hidden_layers": 18, "num_image_tokens": 256, "num_key_value_heads": 1, "torch_dtype": "float32",
    "vocab_size": 257216,
}  # fmt: skip


def loaded(tmp_path: Path, config: object):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    return load_model(str(path))


@pytest.mark.parametrize(
    ("config", "parameters", "token_bytes"),
    [
        # transformers 5.24.0 on the meta device, without tower and projector; LLaVA 1.5 7B: the published 7,063,427,072
        # less CLIP's 303,507,456 and the projector's 20,979,712.
        (QWEN | {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}, 7615616512, 57344),
        (QWEN | {"model_type": "qwen2_5_vl"}, 7615616512, 57344),
        ({"model_type": "qwen2_5_vl", "text_config": QWEN | {"model_type": "qwen2_5_vl_text"}}, 7615616512, 57344),
        ({"model_type": "llava", "text_config": VICUNA, "vision_config": {"x": 1}}, 6738939904, 524288),
        ({"model_type": "llava_next", "text_config": MISTRAL, "vision_config": {"x": 1}}, 7242256384, 131072),
        ({"model_type": "paligemma", "text_config": GEMMA, "vision_config": {"x": 1}}, 2508662784, 18432),
    ],
)
def test_published_wrappers_give_their_language_model(tmp_path, config, parameters, token_bytes):
    if "text_config" in config and "vision_config" in config["text_config"]:
        text = {key: value for key, value in config["text_config"].items() if not key.startswith(("vision", "image"))}
        config = config | {"text_config": text}
    model = loaded(tmp_path, config)
    assert model.unknown == ()
    assert model.parameters == parameters
    assert kv.bytes_per_token(model.caches, "bf16") == token_bytes
    assert model.excludes


def test_sizes_that_a_text_config_leaves_out_are_told_and_are_a_fault_alone(tmp_path):
    model = loaded(tmp_path, {"model_type": "llava", "text_config": VICUNA, "vision_config": {"x": 1}})
    assert any("leaves out hidden_size: the library's 4,096" in words for words in model.warnings)
    with pytest.raises(DescriptionError, match="hidden_size is missing"):
        loaded(tmp_path, VICUNA)


def test_a_flat_wrapper_with_fields_of_another_family_is_unknown(tmp_path):
    model = loaded(tmp_path, QWEN | {"model_type": "qwen2_vl", "kv_lora_rank": 512})
    assert "fields not understood: kv_lora_rank" in model.unknown
