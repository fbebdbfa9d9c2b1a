"""Writes llama2.c checkpoints and tokenizers for tests, independently of the readers: plain struct, plain order."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Dims:
    dim: int = 8
    hidden_dim: int = 12
    n_layers: int = 2
    n_heads: int = 4
    n_kv_heads: int = 2
    vocab_size: int = 10
    seq_len: int = 6
    shared: bool = True

    def header(self) -> tuple[int, ...]:
        return (self.dim, self.hidden_dim, self.n_layers, self.n_heads, self.n_kv_heads, self.vocab_size, self.seq_len)

    def counts(self) -> dict[str, int]:
        """Elements of each tensor, by llama2.c's own arithmetic."""
        d, h, layers, s = self.dim, self.hidden_dim, self.n_layers, self.seq_len
        head = d // self.n_heads
        return {
            "token_embedding": self.vocab_size * d,
            "rms_att": layers * d,
            "wq": layers * d * self.n_heads * head,
            "wk": layers * d * self.n_kv_heads * head,
            "wv": layers * d * self.n_kv_heads * head,
            "wo": layers * self.n_heads * head * d,
            "rms_ffn": layers * d,
            "w1": layers * d * h,
            "w2": layers * h * d,
            "w3": layers * d * h,
            "rms_final": d,
            "freq_cis_real": s * (head // 2),
            "freq_cis_imag": s * (head // 2),
            "wcls": 0 if self.shared else self.vocab_size * d,
        }


V0_ORDER = tuple(Dims().counts())
V1_ORDER = (
    *("rms_att", "rms_ffn", "rms_final", "token_embedding", "wq", "wk", "wv", "wo", "w1", "w2", "w3"),
    "wcls",
)


def checkpoint_bytes(dims: Dims, version: int, seed: int = 0) -> tuple[bytes, dict[str, bytes]]:
    """The file of `version` 0 or 1, and the bytes of each tensor in it; the values are drawn from `seed`."""
    draw = random.Random(seed)
    counts = dims.counts()
    order = V0_ORDER if version == 0 else V1_ORDER
    tensors = {
        name: struct.pack(f"<{counts[name]}f", *(draw.uniform(-1, 1) for _ in range(counts[name])))
        for name in order
        if counts[name]
    }
    if version == 0:
        values = list(dims.header())
        values[5] *= 1 if dims.shared else -1
        head = struct.pack("<7i", *values)
    else:
        head = struct.pack("<Ii7iB", 0x616B3432, 1, *dims.header(), dims.shared).ljust(256, b"\0")
    return head + b"".join(tensors.values()), tensors


def write_checkpoint(folder: Path, dims: Dims | None = None, version: int = 0, seed: int = 0) -> Path:
    path = folder / "model.bin"
    path.write_bytes(checkpoint_bytes(dims or Dims(), version, seed)[0])
    return path


def tokenizer_bytes(pieces: list[tuple[float, bytes]]) -> bytes:
    """llama2.c's tokenizer file."""
    longest = max((len(piece) for _, piece in pieces), default=1)
    rows = (struct.pack("<fi", score, len(piece)) + piece for score, piece in pieces)
    return struct.pack("<i", longest) + b"".join(rows)
