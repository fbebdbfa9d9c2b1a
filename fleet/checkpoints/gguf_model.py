"""A model from GGUF metadata and tensors: caches by layer for the architectures listed here, words for all others.

Weights are the bytes of the tensor table, read and not computed. What the metadata says of each layer's heads is set
beside the shape of that layer's key projection; where the two differ nothing is priced. Windows and their patterns
are those of llama.cpp (src/llama-model.cpp, `load_hparams`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from fleet.checkpoints.agree import some
from fleet.checkpoints.gguf_cursor import Skipped
from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.source import shown
from fleet.checkpoints.stored import Stored
from fleet.checkpoints.stored_model import specs, unpriced
from fleet.errors import DescriptionError, Fault
from fleet.model import Model
from fleet.models.layers import CacheLayer

Pattern = Literal["full", "windowed", "mla"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """How an architecture caches: all layers full; or `period` - 1 layers of a window, then one full; or latents."""

    pattern: Pattern = "full"
    period: int = 0


_FULL = (
    "llama mistral3 qwen2 qwen2moe qwen3 qwen3moe gemma granite granitemoe internlm2 smollm3 deci olmo2 phi3 "
    "stablelm command-r glm4 glm4moe seed_oss minimax-m2 arcee"
)
ARCHITECTURES: dict[str, Architecture] = {
    **dict.fromkeys(_FULL.split(), Architecture()),
    "gemma2": Architecture("windowed", 2),
    "gemma3": Architecture("windowed", 6),
    "gpt-oss": Architecture("windowed", 2),
    "cohere2": Architecture("windowed", 4),
    "deepseek2": Architecture("mla"),
}
"""Architectures whose caches are priced, by `general.architecture`."""

_ENCODERS = (
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert t5encoder gemma-embedding "
    "llama-embed"
)
_NOT_DECODERS = {
    **dict.fromkeys(_ENCODERS.split(), "an encoder"),
    "t5": "an encoder-decoder",
    "clip": "a vision tower",
    "wavtokenizer-dec": "a speech model",
}
_NOT_MODELS = {
    "adapter": "a LoRA adapter",
    "mmproj": "a vision tower beside a model",
    "imatrix": "an importance matrix",
    "vocab": "a vocabulary",
}
_WANTED = "give the GGUF file of a decoder language model"
_LARGEST = 1 << 31
_MAX_LAYERS = 1 << 12


def gguf_model(stored: Stored, path: str, name: str) -> Model:
    """The model of GGUF files. Raises DescriptionError: no decoder language model, or metadata of a wrong form."""
    told = shown(path)
    keys = _Keys(stored.metadata, told)
    arch = keys.word("general.architecture")
    _refuse_others(arch, stored, told)
    base = replace(
        unpriced(name, arch or "unknown", "gguf", path, stored), shared_classifier=not _has(stored, "output.weight")
    )
    if arch not in ARCHITECTURES:
        kind = "the file names no general.architecture" if arch is None else f"architecture {shorten(arch)}"
        return _finished(base, (f"{kind}{' is not understood' if arch else ''}: bytes read, KV unknown",), stored)
    sizes = _sizes(keys, arch)
    keys.raise_faults()
    layers, words = _layers(keys, arch, sizes, stored)
    keys.raise_faults()
    model = replace(
        base,
        dim=sizes["embedding_length"],
        hidden_dim=max(keys.per_layer(f"{arch}.feed_forward_length", sizes["block_count"], 0)),
        n_layers=sizes["block_count"],
        n_heads=max(keys.per_layer(f"{arch}.attention.head_count", sizes["block_count"], 0)),
        n_kv_heads=max((layer.heads for layer in layers), default=0),
        head_dim=max((layer.key_dim for layer in layers), default=0),
        vocab_size=_vocabulary(keys, arch, stored),
        seq_len=sizes["context_length"],
        layers=layers,
    )
    keys.raise_faults()
    return _finished(model, words, stored)


class _Keys:
    """Reads metadata; what has a wrong form becomes a fault and a harmless value."""

    def __init__(self, metadata: Mapping[str, object], told: str) -> None:
        self.metadata, self.told = metadata, told
        self.faults: dict[str, Fault] = {}

    def fault(self, key: str, words: str) -> None:
        self.faults.setdefault(key, Fault(self.told, shorten(key), f"{words}; convert the model again"))

    def raise_faults(self) -> None:
        if self.faults:
            raise DescriptionError(self.faults.values())

    def word(self, key: str) -> str | None:
        value = self.metadata.get(key)
        if value is None or (isinstance(value, str) and 0 < len(value) <= 64):
            return value
        self.fault(key, f"is {shorten(value)}: must be a word")
        self.raise_faults()
        return None

    def number(self, key: str, default: int | None = None, *, largest: int = _LARGEST) -> int:
        """A whole number from 0 up; `default` when it is left out, a fault when there is no default."""
        value = self.metadata.get(key, default)
        if type(value) is int and 0 <= value <= largest:
            return value
        words = "is missing" if value is None else f"is {shorten(value)}: must be a whole number up to {largest:,}"
        self.fault(key, words)
        return 1

    def per_layer(self, key: str, count: int, default: int) -> tuple[int, ...]:
        """A number for each of `count` layers: the file gives one for all, or a list of `count`."""
        value = self.metadata.get(key, default)
        if not isinstance(value, tuple):
            return (self.number(key, default),) * count
        if len(value) == count and all(type(n) is int and 0 <= n <= _LARGEST for n in value):
            return value
        self.fault(key, f"is a list of {len(value):,} values: must be one whole number for each of {count:,} layers")
        return (default,) * count


def _refuse_others(arch: str | None, stored: Stored, told: str) -> None:
    kind = stored.metadata.get("general.type")
    other = _NOT_MODELS.get(kind) if isinstance(kind, str) else None
    other = other or _NOT_DECODERS.get(arch or "")
    if other is None and not stored.tensors:
        other = "a vocabulary without tensors"
    if other is not None:
        field = "general.type" if isinstance(kind, str) and kind in _NOT_MODELS else "general.architecture"
        raise DescriptionError.at(told, field, f"is {other}, not a decoder language model; {_WANTED}")


def _sizes(keys: _Keys, arch: str) -> dict[str, int]:
    found = {
        "block_count": keys.number(f"{arch}.block_count", largest=_MAX_LAYERS),
        "embedding_length": keys.number(f"{arch}.embedding_length"),
        "context_length": keys.number(f"{arch}.context_length"),
    }
    for field, value in found.items():
        if value == 0:
            keys.fault(f"{arch}.{field}", "is 0: must be 1 or more")
    return found


def _layers(
    keys: _Keys, arch: str, sizes: dict[str, int], stored: Stored
) -> tuple[tuple[CacheLayer, ...], tuple[str, ...]]:
    """What each layer keeps, and words for what is not understood of it; with words the layers are void."""
    if ARCHITECTURES[arch].pattern == "mla":
        layers, words = _latents(keys, arch, sizes["block_count"], stored)
    else:
        layers, words = _attention(keys, arch, sizes, stored)
    foreign = [f"{arch}.{key}" for key in _FOREIGN if keys.metadata.get(f"{arch}.{key}")]
    if foreign:
        words += (f"keys not understood: {some(foreign)}",)
    return (() if words or keys.faults else layers), words


_FOREIGN = (
    "ssm.conv_kernel",
    "ssm.state_size",
    "nextn_predict_layers",
    "attention.shared_kv_layers",
    "attention.key_length_swa",
    "attention.value_length_swa",
    "full_attention_interval",
    "attention.chunk_size",
    "attention.indexer.head_count",
    "altup.num_inputs",
)
"""Keys that change what a layer keeps in ways that are not written here."""


def _attention(
    keys: _Keys, arch: str, sizes: dict[str, int], stored: Stored
) -> tuple[tuple[CacheLayer, ...], tuple[str, ...]]:
    count = sizes["block_count"]
    query = keys.per_layer(f"{arch}.attention.head_count", count, 0)
    given = keys.metadata.get(f"{arch}.attention.head_count_kv")
    heads = query if given is None else keys.per_layer(f"{arch}.attention.head_count_kv", count, 0)
    widest = max(query, default=0)
    if widest == 0:
        keys.fault(f"{arch}.attention.head_count", "is missing or 0: must be 1 or more")
        return (), ()
    default = sizes["embedding_length"] // widest
    key_dim = keys.number(f"{arch}.attention.key_length", default)
    value_dim = keys.number(f"{arch}.attention.value_length", default)
    windows, words = _windows(keys, arch, count)
    origin = (("nk", f"{arch}.attention.head_count_kv"), ("dk", f"{arch}.attention.key_length"))
    layers = tuple(
        CacheLayer(kind="none")
        if n == 0
        else CacheLayer(
            kind="full" if window is None else "sliding",
            heads=n,
            key_dim=key_dim,
            value_dim=value_dim,
            window=window,
            sources=origin,
        )
        for n, window in zip(heads, windows, strict=True)
    )
    return layers, words + _shape_words(layers, stored)


def _windows(keys: _Keys, arch: str, count: int) -> tuple[tuple[int | None, ...], tuple[str, ...]]:
    """The window of each layer, None for a full one."""
    key = f"{arch}.attention.sliding_window"
    window = keys.number(key, 0)
    pattern = keys.metadata.get(f"{key}_pattern")
    row = ARCHITECTURES[arch]
    if isinstance(pattern, tuple):
        if len(pattern) != count or not all(isinstance(flag, bool) for flag in pattern):
            keys.fault(f"{key}_pattern", f"must list true or false for each of {count:,} layers")
            return (None,) * count, ()
        return tuple(window if flag and window else None for flag in pattern), ()
    if row.pattern == "full":
        words = (f"{key} {window:,} is not understood in architecture {arch}",) if window else ()
        return (None,) * count, words
    if not window:
        return (None,) * count, (f"architecture {arch} has windows, but {key} is missing",)
    period = keys.number(f"{key}_pattern", row.period)
    return tuple(window if period == 0 or n % period < period - 1 else None for n in range(count)), ()


def _shape_words(layers: tuple[CacheLayer, ...], stored: Stored) -> tuple[str, ...]:
    """Words where a layer's K or V projection has other rows than its heads say, or is there for a layer without."""
    shapes = {tensor.name: tensor.shape for tensor in stored.tensors}
    wrong = []
    for number, layer in enumerate(layers):
        for letter, width in (("k", layer.key_dim), ("v", layer.value_dim)):
            shape = shapes.get(f"blk.{number}.attn_{letter}.weight")
            fused = f"blk.{number}.attn_qkv.weight" in shapes
            found = 0 if shape is None else shape[0] if shape else 1
            if found != layer.heads * width and not (fused and shape is None):
                wrong.append(
                    f"blk.{number}.attn_{letter}.weight has {found:,} rows, metadata says {layer.heads * width:,}"
                )
    return (f"metadata and tensors disagree: {some(wrong, 3, '; ')}",) if wrong else ()


def _latents(keys: _Keys, arch: str, count: int, stored: Stored) -> tuple[tuple[CacheLayer, ...], tuple[str, ...]]:
    """MLA: one latent and one rotary part a token. Older files hold no absorbed projections: they cache every head."""
    rank = keys.number(f"{arch}.attention.kv_lora_rank", 0)
    rope = keys.number(f"{arch}.rope.dimension_count", 0)
    if not rank or not rope:
        return (), (f"{arch} without attention.kv_lora_rank and rope.dimension_count is not understood",)
    if f"{arch}.attention.key_length_mla" not in keys.metadata:
        return (), ("a file from before MLA latents were cached: what an engine keeps of it is not known",)
    shapes = {tensor.name: tensor.shape for tensor in stored.tensors}
    wrong = [
        f"blk.{number}.attn_kv_a_mqa.weight has {found[0] if found else 0:,} rows, metadata says {rank + rope:,}"
        for number in range(count)
        if (found := shapes.get(f"blk.{number}.attn_kv_a_mqa.weight", ()))[:1] != (rank + rope,)
    ]
    words = (f"metadata and tensors disagree: {some(wrong, 3, '; ')}",) if wrong else ()
    origin = (("r", f"{arch}.attention.kv_lora_rank"), ("p", f"{arch}.rope.dimension_count"))
    return (CacheLayer(kind="mla", latent_dim=rank, rope_dim=rope, sources=origin),) * count, words


def _vocabulary(keys: _Keys, arch: str, stored: Stored) -> int:
    """Pieces: the key, else the length of the token list, else the rows of the embedding."""
    if f"{arch}.vocab_size" in keys.metadata:
        return keys.number(f"{arch}.vocab_size")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Skipped):
        return tokens.count
    shape = next((tensor.shape for tensor in stored.tensors if tensor.name == "token_embd.weight"), ())
    return shape[0] if shape else 0


def _has(stored: Stored, name: str) -> bool:
    return any(tensor.name == name for tensor in stored.tensors)


def _finished(model: Model, words: tuple[str, ...], stored: Stored) -> Model:
    unknown = (*words, *stored.unknown)
    types = stored.by_dtype()
    widest = max(types, key=lambda dtype: (types[dtype].nbytes or 0, dtype), default=None)
    return replace(
        model,
        tensors=() if stored.unknown else specs(stored),
        quantisation=widest if widest not in ("F32", "F16", "BF16", None) else None,
        layers=None if words else model.layers,
        weights_dtype="fp16",
        kv_dtype="fp16",
        unknown=unknown,
        warnings=(*stored.warnings, "a GGUF file names no type of the KV cache: fp16 is assumed, llama.cpp's default"),
    )
