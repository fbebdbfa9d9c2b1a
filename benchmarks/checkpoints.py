"""Seeded random llama2.c checkpoints of the published shapes, and a tokenizer for them, for speed only.

Trained checkpoints of these sizes are not shipped; speed does not depend on the values, and bits are compared anyway.
Shapes: karpathy/llama2.c README, table of models. The grouped shape has the heads of a larger model in small.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

SHAPES = {
    "260K": (64, 172, 5, 8, 4, 512, 512),
    "15M": (288, 768, 6, 6, 6, 32000, 256),
    "grouped": (512, 1376, 8, 16, 4, 4096, 512),
    "110M": (768, 2048, 12, 12, 12, 32000, 1024),
}
"""dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len; the classifier is shared."""


def write_checkpoint(path: Path, shape: tuple[int, ...], seed: int = 1) -> None:
    """A version 0 checkpoint of `shape`: weights of mean 0 and deviation 1 / sqrt(columns), norms of 1."""
    dim, hidden, layers, heads, kv_heads, vocab, seq_len = shape
    kv_dim = dim // heads * kv_heads
    rng = np.random.default_rng(seed)
    with path.open("wb") as file:
        file.write(struct.pack("<7i", *shape))

        def matrices(count: int, rows: int, columns: int) -> None:
            for _ in range(count):
                values = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
                file.write(values.astype("<f4").tobytes())

        def ones(count: int) -> None:
            file.write(np.ones(count, "<f4").tobytes())

        matrices(1, vocab, dim)
        ones(layers * dim)
        for rows in (dim, kv_dim, kv_dim, dim):
            matrices(layers, rows, dim)
        ones(layers * dim)
        matrices(layers, hidden, dim)
        matrices(layers, dim, hidden)
        matrices(layers, hidden, dim)
        ones(dim)
        file.write(bytes(seq_len * (dim // heads // 2) * 2 * 4))


def write_tokenizer(path: Path, vocab: int) -> None:
    """llama2.c's tokenizer file with `vocab` different printable pieces."""
    pieces = [f"<{i}>".encode() for i in range(vocab)]
    with path.open("wb") as file:
        file.write(struct.pack("<i", max(map(len, pieces))))
        for piece in pieces:
            file.write(struct.pack("<fi", 0.0, len(piece)) + piece)
