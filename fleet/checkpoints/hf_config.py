"""Hugging Face `config.json`: enough of it to admit a dense Llama-like decoder, and words for everything else.

Three answers. A family of `hf_families` whose every field is understood gives a priced model. A decoder that is not
understood gives a model with `unknown` words: nothing about it is priced, least of all as a Llama. A file that is
wrong, or no decoder language model, is refused with all its faults.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from dataclasses import replace
from typing import Any, BinaryIO

from fleet.checkpoints.hf_families import FAMILIES, NOT_DECODERS, Family, Shape, tensor_table
from fleet.checkpoints.hf_fields import Fields
from fleet.checkpoints.json_text import MAX_BYTES, parse_object, shorten
from fleet.checkpoints.source import model_name, open_regular, read_exactly, shown
from fleet.errors import DescriptionError
from fleet.model import Model

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

# Fields of families that are not the dense decoder assumed here. A false, zero or empty value is harmless.
_FOREIGN = re.compile(
    r"expert|moe|router|lora|mamba|ssm|conv_|conv1d|linear_(attn|key|value|num)|index_(topk|head|n)|indexer|nextn|mtp"
    r"|vision|audio|text_config|cross_attention|hybrid|block_configs|attention_chunk|no_rope_layer|kv_shared|share_"
    r"|global_(head|key|num)|num_global|n_heads_in_group|attn_layer|expert_layer|recurrent|rwkv|altup|laurel|per_layer"
    r"|multi_query|parallel_attn|v_head_dim|value_head_dim|qk_rope|qk_nope|compress|quantiz|sparse_attention|num_kv_heads"
)
_HANDLED = {"quantization_config", "output_router_logits"}
_TOLD_FIELDS = 8

_TASK_HEADS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
    "ForMaskedLM",
    "ForImageClassification",
    "ForReward",
)
_WANTED = "give the config.json of a decoder language model"


def read_config(handle: BinaryIO, size: int, path: str) -> Model:
    """The model of an open `config.json` of `size` bytes. Raises DescriptionError with every fault."""
    if size > MAX_BYTES:
        raise DescriptionError.at(shown(path), "", f"is larger than {MAX_BYTES:,} bytes: no config; check the path")
    folder, base = os.path.split(os.path.abspath(path))
    is_usual = base == "config.json"
    name = shown(os.path.basename(folder)) if is_usual else model_name(path)
    beside = is_usual and os.path.exists(os.path.join(folder, "hf_quant_config.json"))
    return _understand(read_exactly(handle, size, path), path, name, quantised_beside=beside)


def read_config_folder(folder: str) -> Model:
    """The model of a folder as it is downloaded. Raises DescriptionError for an adapter, a pipeline, no config.json."""
    told = shown(folder)
    for marker, words in (
        ("adapter_config.json", "is a LoRA adapter, not a model; give the folder of its base model"),
        ("model_index.json", f"is a diffusion pipeline, not a decoder language model; {_WANTED}"),
    ):
        if os.path.exists(os.path.join(folder, marker)):
            raise DescriptionError.at(told, "", words)
    path = os.path.join(folder, "config.json")
    if not os.path.exists(path):
        raise DescriptionError.at(told, "", f"is a folder without config.json; {_WANTED}, or a llama2.c checkpoint")
    handle, size = open_regular(path)
    with handle:
        return read_config(handle, size, path)


def read_config_stream() -> Model:
    """The model of a `config.json` on standard input."""
    return _understand(sys.stdin.buffer.read(MAX_BYTES + 1), "-", "stdin", quantised_beside=False)


def _understand(data: bytes, path: str, name: str, *, quantised_beside: bool) -> Model:
    told = shown(path)
    document, text = parse_object(data, told)
    _refuse_other_files(document, told)
    model_type = document["model_type"]
    digest = hashlib.sha256(data).hexdigest()
    unknown = _unknown_words(document, quantised_beside)
    family = FAMILIES.get(model_type)
    if family is None:
        kind = shorten(model_type)
        words = (f"family {kind} is not understood: KV and weights are not priced", *unknown)
        return _unpriced(name, kind, path, digest, words)
    fields = Fields(document, text, told)
    model = _dense(fields, family, _unpriced(name, model_type, path, digest, ()), unknown)
    fields.raise_faults()
    return model


def _dense(fields: Fields, family: Family, model: Model, unknown: list[str]) -> Model:
    """`model` filled in for a listed family; the result is void when `fields` has collected a fault."""
    sizes = fields.sizes()
    tied = fields.flag("tie_word_embeddings", family.tied)
    attention_bias = fields.flag("attention_bias", family.qkv_bias is True)
    mlp_bias = fields.flag("mlp_bias", False)
    rope_theta, norm_eps = fields.rope_theta(), fields.positive("rms_norm_eps", 1e-5)
    fields.check_architecture(family, FAMILIES)
    dtype = fields.dtype()
    weights_dtype = _DTYPES.get(dtype or "bfloat16", "bf16")
    words = unknown + fields.window_words(family, model.family)
    words += _family_words(family, model.family, fields.architecture(), attention_bias, mlp_bias)
    if dtype is not None and dtype not in _DTYPES:
        words.append(f"weights of type {shorten(dtype)} are not understood")
    shape = _shape(sizes, family, tied, attention_bias, mlp_bias)
    return replace(
        _with_sizes(model, sizes),
        shared_classifier=tied,
        tensors=() if words or fields.faults else tensor_table(shape, weights_dtype),
        weights_dtype=weights_dtype,
        kv_dtype=weights_dtype,
        rope_theta=rope_theta,
        norm_eps=norm_eps,
        unknown=tuple(words),
        warnings=() if dtype else ("the config names no dtype: bf16 is assumed",),
    )


def _shape(sizes: dict[str, int], family: Family, tied: bool, attention_bias: bool, mlp_bias: bool) -> Shape:
    return Shape(
        dim=sizes["hidden_size"],
        hidden_dim=sizes["intermediate_size"],
        n_layers=sizes["num_hidden_layers"],
        q=sizes["num_attention_heads"] * sizes["head_dim"],
        kv=sizes["num_key_value_heads"] * sizes["head_dim"],
        head_dim=sizes["head_dim"],
        vocab_size=sizes["vocab_size"],
        tied=tied,
        qkv_bias=attention_bias,
        o_bias=attention_bias and family.qkv_bias is None,
        mlp_bias=mlp_bias,
        qk_norm=family.qk_norm,
    )


def _with_sizes(model: Model, sizes: dict[str, int]) -> Model:
    return replace(
        model,
        dim=sizes["hidden_size"],
        hidden_dim=sizes["intermediate_size"],
        n_layers=sizes["num_hidden_layers"],
        n_heads=sizes["num_attention_heads"],
        n_kv_heads=sizes["num_key_value_heads"],
        head_dim=sizes["head_dim"],
        vocab_size=sizes["vocab_size"],
        seq_len=sizes["max_position_embeddings"],
    )


def _family_words(
    family: Family, model_type: str, architecture: str | None, attention_bias: bool, mlp_bias: bool
) -> list[str]:
    words = []
    if family.qkv_bias is not None and attention_bias is not family.qkv_bias:
        words.append(f"attention_bias {str(attention_bias).lower()} is not understood in family {model_type}")
    if mlp_bias and not family.mlp_bias:
        words.append(f"mlp_bias true is not understood in family {model_type}")
    if architecture is not None and architecture != family.architecture:
        words.append(f"architecture {shorten(architecture)} is not understood in family {model_type}")
    return words


def _unknown_words(document: dict[str, Any], quantised_beside: bool) -> list[str]:
    words = []
    quantization = document.get("quantization_config")
    if quantization or quantised_beside:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        named = f" ({shorten(method)})" if isinstance(method, str) else ""
        words.append(f"the weights are quantised{named}: their bytes are not understood")
    if isinstance(document.get("auto_map"), dict) and document["auto_map"].get("AutoModelForCausalLM"):
        words.append("auto_map names program code of the model's own: not understood")
    foreign = sorted(key for key in document if _FOREIGN.search(key) and key not in _HANDLED and document[key])
    if foreign:
        more = f" and {len(foreign) - _TOLD_FIELDS} more" if len(foreign) > _TOLD_FIELDS else ""
        words.append(f"fields not understood: {', '.join(map(shorten, foreign[:_TOLD_FIELDS]))}{more}")
    return words


def _refuse_other_files(document: dict[str, Any], told: str) -> None:
    """Raises DescriptionError when the JSON is no config of a decoder language model."""
    for key, words in (
        ("_class_name", "is part of a diffusion pipeline"),
        ("peft_type", "is the config of a LoRA adapter"),
        ("weight_map", "is an index of safetensors files"),
        ("tokenizer_class", "is a tokenizer's config"),
    ):
        if key in document and not document.get("model_type"):
            raise DescriptionError.at(told, key, f"{words}, not a decoder language model; {_WANTED}")
    model_type = document.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        found = "is missing" if "model_type" not in document else f"is {shorten(model_type)}: must be a word"
        raise DescriptionError.at(told, "model_type", f"{found}; {_WANTED}")
    kind = NOT_DECODERS.get(model_type)
    if kind is None and document.get("is_encoder_decoder") is True:
        kind = "an encoder-decoder"
    if kind is not None:
        raise DescriptionError.at(
            told, "model_type", f"{shorten(model_type)} is {kind}, not a decoder language model; {_WANTED}"
        )
    names = document.get("architectures")
    for name in names if isinstance(names, list) else ():
        if isinstance(name, str) and any(head in name for head in _TASK_HEADS):
            raise DescriptionError.at(
                told, "architectures", f"{shorten(name)} chooses no next token: not a decoder language model; {_WANTED}"
            )


def _unpriced(name: str, family: str, path: str, digest: str, words: tuple[str, ...]) -> Model:
    """A decoder that is not understood: every dimension is 0 and no tensor is listed."""
    return Model(
        name=name,
        family=family,
        format="hf-config",
        dim=0,
        hidden_dim=0,
        n_layers=0,
        n_heads=0,
        n_kv_heads=0,
        head_dim=0,
        vocab_size=0,
        seq_len=0,
        shared_classifier=False,
        tensors=(),
        weights_dtype="bf16",
        kv_dtype="bf16",
        path=path,
        digest=digest,
        unknown=words,
    )
