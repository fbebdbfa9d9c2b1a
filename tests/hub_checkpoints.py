"""Tiny random checkpoints as they lie on Hugging Face: a config.json and safetensors, in one file or in parts."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
MARKS = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Hub:
    """Sizes and options of one checkpoint; `extra` goes into the config as it stands."""

    family: str = "llama"
    dtype: str = "bf16"
    dim: int = 32
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int | None = None
    vocab: int = 96
    positions: int = 64
    tied: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    eps: float = 1e-5
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def head(self) -> int:
        return self.head_dim or self.dim // self.heads

    def config(self) -> dict[str, Any]:
        head = {} if self.head_dim is None else {"head_dim": self.head_dim}
        return {
            "model_type": self.family, "architectures": [ARCHITECTURES[self.family]], "hidden_size": self.dim,
            "intermediate_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "vocab_size": self.vocab, "rms_norm_eps": self.eps,
            "max_position_embeddings": self.positions, "torch_dtype": WORDS[self.dtype], "hidden_act": "silu",
            "tie_word_embeddings": self.tied, "sliding_window": None, **head, **self.extra,
        }  # fmt: skip


def rounded(values: Any, dtype: str) -> Any:
    """f32 values as `dtype` holds them, again in f32; bf16 to the nearest, ties to even, by whole numbers."""
    values = np.asarray(values, np.float32)
    if dtype == "fp16":
        return values.astype(np.float16).astype(np.float32)
    return (bf16_bits(values).astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else values


def bf16_bits(values: Any) -> Any:
    """The upper halves of f32 words, rounded to the nearest, ties to even. Finite values only."""
    words = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)


def tensors_of(hub: Hub, seed: int = 0) -> dict[str, Any]:
    """Tensor -> f32 values that the checkpoint's type can hold."""
    rng = np.random.default_rng(seed)
    found: dict[str, Any] = {}

    def add(name: str, *shape: int, scale: float = 0.0, offset: float = 0.0) -> None:
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale or 2 * shape[-1] ** -0.5)
        found[name] = rounded(values + np.float32(offset), hub.dtype)

    def linear(name: str, out: int, given: int, biased: bool) -> None:
        add(f"{name}.weight", out, given)
        if biased:
            add(f"{name}.bias", out, scale=0.5)

    add("model.embed_tokens.weight", hub.vocab, hub.dim, scale=1.0)
    for layer in range(hub.layers):
        prefix = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(f"{prefix}{name}.weight", hub.dim, scale=0.2, offset=1.0)
        for name, heads in (("q", hub.heads), ("k", hub.kv_heads), ("v", hub.kv_heads)):
            linear(f"{prefix}self_attn.{name}_proj", heads * hub.head, hub.dim, hub.qkv_bias)
        linear(f"{prefix}self_attn.o_proj", hub.dim, hub.heads * hub.head, hub.o_bias)
        for name in ("q_norm", "k_norm") if hub.qk_norm else ():
            add(f"{prefix}self_attn.{name}.weight", hub.head, scale=0.2, offset=1.0)
        for name, out, given in (
            ("gate", hub.hidden, hub.dim),
            ("up", hub.hidden, hub.dim),
            ("down", hub.dim, hub.hidden),
        ):
            linear(f"{prefix}mlp.{name}_proj", out, given, hub.mlp_bias)
    add("model.norm.weight", hub.dim, scale=0.2, offset=1.0)
    if not hub.tied:
        add("lm_head.weight", hub.vocab, hub.dim)
    return found


def safetensors_bytes(tensors: dict[str, Any], dtype: str) -> bytes:
    """A file of the format: the length of a header, the header as JSON, the data."""
    header: dict[str, Any] = {}
    data = bytearray()
    for name, values in tensors.items():
        raw = (
            bf16_bits(values) if dtype == "bf16" else np.asarray(values, np.float16 if dtype == "fp16" else np.float32)
        )
        span = [len(data), len(data) + raw.nbytes]
        header[name] = {"dtype": MARKS[dtype], "shape": list(values.shape), "data_offsets": span}
        data += raw.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(data)


def write_hub(folder: Path, hub: Hub, tensors: dict[str, Any] | None = None, *, parts: int = 1) -> Path:
    """Write a checkpoint. `tensors`: by default those of `tensors_of`; `parts` above 1 come with an index."""
    tensors = tensors_of(hub) if tensors is None else tensors
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hub.config()))
    if parts == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, hub.dtype))
        return folder
    names = sorted(tensors)
    where: dict[str, str] = {}
    for part in range(parts):
        file = f"model-{part + 1:05}-of-{parts:05}.safetensors"
        mine = {name: tensors[name] for name in names[part::parts]}
        (folder / file).write_bytes(safetensors_bytes(mine, hub.dtype))
        where |= dict.fromkeys(mine, file)
    size = sum(values.size for values in tensors.values()) * (4 if hub.dtype == "fp32" else 2)
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
