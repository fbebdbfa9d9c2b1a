"""Requests of checkpoints that are not llama2.c's: prompts as ids or by their own tokenizer; words about types."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from fleet.errors import DescriptionError
from fleet.model import Model
from planner.orders import Orders

if TYPE_CHECKING:
    from scenarios.wanted import Wanted

__all__ = [
    "Speaks",
    "given_ids",
    "holds_weights",
    "ids_of_words",
    "ids_read",
    "read_ids",
    "spoken_by",
    "stored_faults",
    "stored_words",
    "with_prompt_ids",
]

MAX_PROMPT_IDS = 1 << 20
_RUN_DTYPES = ("fp32", "bf16", "fp16")


class Speaks(Protocol):
    """A tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: list[int] | tuple[int, ...]) -> bytes: ...


def read_ids(text: str) -> tuple[int, ...]:
    """The ids of `--prompt-ids 1,15,7`. Raises DescriptionError for anything but whole numbers from 0."""
    told = ("command line", "--prompt-ids")
    if len(text) > 12 * MAX_PROMPT_IDS:
        raise DescriptionError.at(*told, f"more than {MAX_PROMPT_IDS:,} ids; give fewer")
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and len(part) <= 10):
            raise DescriptionError.at(*told, f"{part[:24]!r} is no token id; give whole numbers from 0, like 1,15,7")
    return tuple(map(int, parts))


def ids_read(words: dict[str, Any]) -> dict[str, Any]:
    """The words of a command line, `prompt_ids` read."""
    given = words.get("prompt_ids")
    return words | {"prompt_ids": read_ids(given)} if isinstance(given, str) else words


def given_ids(wanted: Wanted, model: Model) -> tuple[int, ...] | None:
    """The ids of a question, each in the vocabulary. None where the model is unknown."""
    assert wanted.prompt_ids is not None
    if wanted.prompt is not None or wanted.prompt_tokens is not None:
        raise DescriptionError.at(wanted.source, "prompt_ids", "stand beside a prompt or a count; give one of them")
    if model.unknown:
        return None
    if bad := [token for token in wanted.prompt_ids if token >= model.vocab_size]:
        words = f"id {bad[0]:,} is outside the vocabulary of {model.vocab_size:,}"
        raise DescriptionError.at(wanted.source, "prompt_ids", words)
    if model.recipe is None and wanted.prompt_ids[:1] != (1,):
        words = f"begin with {wanted.prompt_ids[0]:,}; a prompt of {model.name} begins with BOS, 1"
        raise DescriptionError.at(wanted.source, "prompt_ids", words)
    return wanted.prompt_ids


def ids_of_words(wanted: Wanted, model: Model) -> tuple[int, ...] | None:
    """The prompt by the checkpoint's own tokenizer."""
    from executor.hub_tokenizer import load_hub_tokenizer

    assert wanted.tokenizer is not None
    tokenizer = load_hub_tokenizer(wanted.tokenizer, model.vocab_size, model.name)
    if wanted.prompt is None:
        return None
    try:
        return tuple(tokenizer.encode(wanted.prompt))
    except DescriptionError as error:
        faults = [replace(f, source=wanted.source, field="prompt") if f.source == "prompt" else f for f in error.faults]
        raise DescriptionError(faults) from error


def with_prompt_ids(orders: Orders, ids: tuple[int, ...], prompt: str | None) -> Orders:
    """The orders with another prompt of as many ids. DescriptionError for another number, or words beside them."""
    work = orders.workload
    told = ("command line", "--prompt-ids")
    if prompt is not None:
        raise DescriptionError.at(*told, "stand beside --prompt; give one of them")
    if len(ids) != work.prompt_tokens:
        words = f"are {len(ids):,} ids, the plan is for exactly {work.prompt_tokens:,}; admit again"
        raise DescriptionError.at(*told, words)
    return replace(orders, workload=replace(work, prompt_ids=ids), expect=None)


def spoken_by(model: Model, path: str | None, prompt: str | None, *, knows_ids: bool) -> Speaks | None:
    """The tokenizer that reads the prompt and prints the run; None where ids alone are known.

    A prompt in words without a tokenizer file was read by the byte tokenizer; so the run is printed by it.
    """
    from executor.tokenizer import BYTE_VOCABULARY, load_tokenizer

    if model.recipe is None:
        by_bytes = model.vocab_size == BYTE_VOCABULARY and knows_ids
        if path is None and not by_bytes and prompt is None:
            return None
        return load_tokenizer(path, model.vocab_size, model.path or model.name)
    if path is None:
        if prompt is not None:
            words = "needs the checkpoint's tokenizer.json; give it with --tokenizer, or give --prompt-ids"
            raise DescriptionError.at("command line", "--prompt", words)
        return None
    from executor.hub_tokenizer import load_hub_tokenizer

    return load_hub_tokenizer(path, model.vocab_size, model.name)


def holds_weights(path: str | None) -> bool:
    """Whether what was given as a model is or has safetensors; of an id of the local cache it is taken so."""
    if path is None or not os.path.isdir(path):
        return path is not None and (not os.path.exists(path) or path.endswith((".safetensors", ".index.json")))
    return any(name.endswith(".safetensors") for name in os.listdir(path))


def stored_faults(weights_dtype: str, kv_dtype: str, stored: str) -> Iterator[str]:
    """In words, types that a checkpoint in `stored` is not run in."""
    if weights_dtype != stored:
        yield f"weights in {weights_dtype}: the wire carries the checkpoint's own {stored}; leave --weights-dtype out"
    if kv_dtype not in _RUN_DTYPES:
        yield f"kv in {kv_dtype}: K and V are kept in {', '.join(_RUN_DTYPES)}; use --kv-dtype"


def stored_words(kv_dtype: str) -> str:
    """What a run of such a checkpoint computes, for its limits."""
    return (
        f"batch 1, weights in the checkpoint's own types and K and V in {kv_dtype}, every sum in f32: not the"
        " arithmetic of a program that rounds activations too. No id ends a run: it makes the passes that were planned."
    )
