"""Random f32 checkpoints in llama2.c's format, for acceptance at sizes of which no trained file is shipped."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

__all__ = ["SHAPES", "write_random_checkpoint"]

SHAPES: dict[str, tuple[int, ...]] = {
    "15M": (288, 768, 6, 6, 6, 32000, 256),
    "7B": (4096, 11008, 32, 32, 32, 32000, 4096),
}
"""dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len. Sources: karpathy/llama2.c README, table of
models; config.json of Llama-2-7b-hf, with a classifier of its own. Negative vocab_size in the file says so."""

_BLOCK_FLOATS = 1 << 24


def write_random_checkpoint(path: str, name: str, seed: int = 1) -> int:
    """Writes a version 0 checkpoint of a shape of SHAPES; gives its bytes.

    Norms are 1; matrices have mean 0 and deviation 0.02, from a block of 2^24 values that is read from another place
    for every tensor. OSError as `open` raises it.
    """
    import numpy as np

    dim, hidden, layers, heads, kv_heads, vocab, seq_len = SHAPES[name]
    shared = name != "7B"
    rng = np.random.default_rng(seed)
    block = (rng.standard_normal(_BLOCK_FLOATS, dtype=np.float32) * np.float32(0.02)).astype("<f4")
    with open(path, "wb", buffering=0) as file:
        file.write(struct.pack("<7i", dim, hidden, layers, heads, kv_heads, vocab if shared else -vocab, seq_len))
        for number, (count, is_norm) in enumerate(_tensors(dim, hidden, layers, heads, kv_heads, vocab)):
            source: Any = np.ones(min(count, _BLOCK_FLOATS), "<f4") if is_norm else np.roll(block, 97 * number)
            _write(file, source, count)
        _write(file, np.zeros(_BLOCK_FLOATS, "<f4"), seq_len * (dim // heads // 2) * 2)
        if not shared:
            _write(file, block, vocab * dim)
        return file.tell()


def _tensors(dim: int, hidden: int, layers: int, heads: int, kv_heads: int, vocab: int) -> Iterator[tuple[int, bool]]:
    """(elements, whether it is a norm) of each tensor, in the order of the file."""
    kv_dim = dim // heads * kv_heads
    yield vocab * dim, False
    yield layers * dim, True
    for rows in (dim, kv_dim, kv_dim, dim):
        yield layers * rows * dim, False
    yield layers * dim, True
    for _ in range(3):
        yield layers * hidden * dim, False
    yield dim, True


def _write(file: Any, source: Any, count: int) -> None:
    while count:
        part = source[: min(count, len(source))]
        view = memoryview(part).cast("B")
        while view:  # a raw file may take less than it is given
            view = view[file.write(view) :]
        count -= len(part)
