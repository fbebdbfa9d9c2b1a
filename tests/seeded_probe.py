"""What the embedded model must show, measured with the NumPy reference: used by its test and by the seed's search."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.tokenizer import byte_tokenizer
from fleet.model import Model
from tests.numpy_reference import NumpyTransformer, Walk, walk

SHIPPED_PROMPT = "The waybill says what each leg carries."
SHIPPED_PASSES = 96

PROMPTS = (
    "a",
    "go",
    "bytes",
    "Hello, world",
    "Once upon a time",
    "The quick brown fox jumps over the lazy dog.",
    "Prefill here, decode there.",
    "What does the handoff carry?",
    "Two devices, one model.",
    "one two three four five six seven",
    "0123456789",
    "3.14159 and 2.71828",
    "SELECT name FROM fleet WHERE devices > 1;",
    "def add(a, b): return a + b",
    '{"verdict": "admitted"}',
    "<html><body>text</body></html>",
    "The rain in Spain stays mainly in the plain.",
    "To be or not to be",
    "In the beginning there was a cache",
    "k and v, layer by layer",
    "A longer prompt makes a longer prefill, and a longer prefill makes a larger handoff.",
    "UPPER CASE WORDS",
    "lower case words",
    "MiXeD cAsE",
    "spaces     between     words",
    "tab\tand line",
    "yes",
    "no",
    "maybe later",
    "Why is the sky blue?",
    "Write a poem about memory.",
    "Translate to French: good morning",
    "List three colours.",
    "12 + 30 =",
    "x = y * z",
    "gpu:0 to gpu:1",
    "host to device, device to host",
    "alpha beta gamma delta",
    "Monday Tuesday Wednesday",
    "the the the the the the",
    "!!!",
    "?",
    "(a) (b) (c)",
    "Größe und Maß",
    "naïve café",
    "日本語の文",
    "Dear Sir or Madam,",
    "It was a dark and stormy night.",
    "All work and no play",
    "End of the list",
)
"""Fifty prompts of other kinds: short, long, code, repeated, beyond ASCII."""


@dataclass(frozen=True)
class Probe:
    """One prompt walked clean and once for each spoiled cache; `first_change` counts decode passes from 1."""

    clean: Walk
    first_change: dict[str, int | None]

    @property
    def min_margin(self) -> float:
        return min(self.clean.margins)


def _zero(n: int) -> Callable[[NumpyTransformer], None]:
    def spoil(t: NumpyTransformer) -> None:
        t.k[:, :n], t.v[:, :n] = 0, 0

    return spoil


def _poison(n: int) -> Callable[[NumpyTransformer], None]:
    def spoil(t: NumpyTransformer) -> None:
        word = np.uint32(0x7FA12345).view(np.float32)
        t.k[:, :n], t.v[:, :n] = word, word

    return spoil


def _short(n: int) -> Callable[[NumpyTransformer], None]:
    def spoil(t: NumpyTransformer) -> None:
        t.k[:, n - 1], t.v[:, n - 1] = 0, 0

    return spoil


def _swapped(n: int) -> Callable[[NumpyTransformer], None]:
    def spoil(t: NumpyTransformer) -> None:
        t.k[:, :n], t.v[:, :n] = t.v[:, :n].copy(), t.k[:, :n].copy()

    return spoil


def _rotated(n: int) -> Callable[[NumpyTransformer], None]:
    def spoil(t: NumpyTransformer) -> None:
        t.k[:, :n], t.v[:, :n] = np.roll(t.k[:, :n], 1, axis=0), np.roll(t.v[:, :n], 1, axis=0)

    return spoil


SPOILERS = {
    "zeroed": _zero,
    "poisoned": _poison,
    "one position short": _short,
    "K and V swapped": _swapped,
    "wrong layer": _rotated,
}


def probe(
    model: Model,
    tensor: Callable[[str], Any],
    prompt: str,
    passes: int,
    *,
    fast: bool,
    spoilers: tuple[str, ...] = tuple(SPOILERS),
) -> Probe:
    """Walk `prompt`, and walk it again for each spoiled cache (8 decode passes are enough to see a change)."""
    ids = byte_tokenizer().encode(prompt)
    clean = walk(NumpyTransformer(model, tensor, passes, fast), ids, passes)
    changes: dict[str, int | None] = {}
    for name in spoilers:
        few = min(passes, len(ids) + 8)
        spoiled = walk(NumpyTransformer(model, tensor, few, fast), ids, few, SPOILERS[name](len(ids)))
        pairs = zip(clean.tokens[len(ids) + 1 :], spoiled.tokens[len(ids) + 1 :], strict=False)
        changes[name] = next((i for i, (a, b) in enumerate(pairs, 1) if a != b), None)
    return Probe(clean=clean, first_change=changes)
