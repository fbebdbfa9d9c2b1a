"""Hugging Face `config.json`: opened, parsed and refused here; what it says of a model is understood in `fleet.models`.

Three answers. A family of `fleet.models.families` whose every field is understood gives a priced model. A decoder that
is not understood gives a model with `unknown` words: nothing about it is priced, least of all as a Llama. A file that
is wrong, or no decoder language model, is refused with all its faults.
"""

from __future__ import annotations

import hashlib
import os
import sys
from typing import Any, BinaryIO

from fleet.checkpoints.hf_kinds import NOT_DECODERS
from fleet.checkpoints.json_text import MAX_BYTES, parse_object, shorten
from fleet.checkpoints.source import model_name, open_regular, read_exactly, shown
from fleet.errors import DescriptionError
from fleet.model import Model, unsized_model
from fleet.models.understand import understand

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
_QUANT_FILE = "hf_quant_config.json"


def read_config(handle: BinaryIO, size: int, path: str) -> Model:
    """The model of an open `config.json` of `size` bytes. Raises DescriptionError with every fault."""
    if size > MAX_BYTES:
        raise DescriptionError.at(shown(path), "", f"is larger than {MAX_BYTES:,} bytes: no config; check the path")
    folder, base = os.path.split(os.path.abspath(path))
    is_usual = base == "config.json"
    name = shown(os.path.basename(folder)) if is_usual else model_name(path)
    beside = _quantisation_beside(folder) if is_usual else None
    return _understand(read_exactly(handle, size, path), path, name, beside)


def _quantisation_beside(folder: str) -> tuple[bytes, dict[str, Any]] | None:
    """The `hf_quant_config.json` of a folder: its bytes, which count in the digest, and the object in it."""
    path = os.path.join(folder, _QUANT_FILE)
    if not os.path.exists(path):
        return None
    handle, size = open_regular(path)
    with handle:
        if size > MAX_BYTES:
            raise DescriptionError.at(shown(path), "", f"is larger than {MAX_BYTES:,} bytes: no config")
        data = read_exactly(handle, size, path)
    return data, parse_object(data, shown(path))[0]


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
    return _understand(sys.stdin.buffer.read(MAX_BYTES + 1), "-", "stdin", None)


def _understand(data: bytes, path: str, name: str, beside: tuple[bytes, dict[str, Any]] | None) -> Model:
    told = shown(path)
    document, text = parse_object(data, told)
    _refuse_other_files(document, told)
    digest = hashlib.sha256(data if beside is None else data + beside[0]).hexdigest()
    return understand(document, text, told, _empty(name, path, digest), None if beside is None else beside[1])


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


def _empty(name: str, path: str, digest: str) -> Model:
    """A model of which nothing is known but its name: every dimension is 0 and no tensor is listed."""
    return unsized_model(name=name, family="", form="hf-config", path=path, digest=digest, layers=())
