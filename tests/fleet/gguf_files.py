"""GGUF files for tests, written field by field so that every field can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fleet.checkpoints.gguf_types import GGML_TYPES

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
U16 = 2
_LETTERS = {U16: "H", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q"}


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, what: Any) -> bytes:
    """A value with its type; a list is (element type, [elements])."""
    return struct.pack("<I", kind) + _bare(kind, what)


def _bare(kind: int, what: Any) -> bytes:
    if kind == STRING:
        return text(what)
    if kind == ARRAY:
        inner, items = what
        return struct.pack("<IQ", inner, len(items)) + b"".join(_bare(inner, item) for item in items)
    return struct.pack(f"<{_LETTERS[kind]}", what)


def guess(what: Any) -> tuple[int, Any]:
    """The type that a writer would choose for a Python value."""
    if isinstance(what, bool):
        return BOOL, what
    if isinstance(what, str):
        return STRING, what
    if isinstance(what, float):
        return F32, what
    if isinstance(what, (list, tuple)):
        return ARRAY, (guess(what[0])[0] if what else U32, list(what))
    return U32, what


def info(name: str, shape: Sequence[int], kind: int, offset: int) -> bytes:
    """A line of the tensor table; `shape` outermost first."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, offset)


def header(n_tensors: int, n_keys: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, n_tensors, n_keys)


def gguf_bytes(
    keys: dict[str, Any], tensors: dict[str, tuple[Sequence[int], int]], *, alignment: int = 32, data: bool = True
) -> bytes:
    """A good file: `tensors` name to (shape, type number), zeros as data; without `data` the header alone."""
    table, offset = b"", 0
    for name, (shape, kind) in tensors.items():
        table += info(name, shape, kind, offset)
        row = GGML_TYPES[kind]
        size = row.nbytes
        for axis in shape:
            size *= axis
        offset += -(-(size // row.block) // alignment) * alignment
    head = header(len(tensors), len(keys)) + b"".join(text(k) + value(*guess(v)) for k, v in keys.items()) + table
    head += bytes(-len(head) % alignment)
    return head + bytes(offset) if data else head


def data_bytes(tensors: dict[str, tuple[Sequence[int], int]], alignment: int = 32) -> int:
    """Bytes of data of `gguf_bytes`."""
    whole, alone = (
        gguf_bytes({}, tensors, alignment=alignment),
        gguf_bytes({}, tensors, alignment=alignment, data=False),
    )
    return len(whole) - len(alone)


def llama_keys(arch: str = "llama", **changes: Any) -> dict[str, Any]:
    """Metadata of a decoder of 4 layers; a change of None leaves a key out, `__` in a name stands for a dot."""
    keys = {
        "general.architecture": arch,
        f"{arch}.block_count": 4,
        f"{arch}.context_length": 512,
        f"{arch}.embedding_length": 64,
        f"{arch}.feed_forward_length": 128,
        f"{arch}.attention.head_count": 8,
        f"{arch}.attention.head_count_kv": 2,
        "tokenizer.ggml.tokens": [f"t{n}" for n in range(96)],
    }
    keys |= {name.replace("__", "."): what for name, what in changes.items()}
    return {name: what for name, what in keys.items() if what is not None}


def llama_tensors(
    heads: Sequence[int] = (2, 2, 2, 2), *, key: int = 8, value: int = 8, kind: int = 1, head: bool = True
) -> dict[str, tuple[Sequence[int], int]]:
    """Tensors that go with `llama_keys`; `heads` are KV heads of each layer."""
    found: dict[str, tuple[Sequence[int], int]] = {"token_embd.weight": ((96, 64), kind)}
    for n, count in enumerate(heads):
        found[f"blk.{n}.attn_norm.weight"] = ((64,), 0)
        if count:
            found[f"blk.{n}.attn_q.weight"] = ((8 * key, 64), kind)
            found[f"blk.{n}.attn_k.weight"] = ((count * key, 64), kind)
            found[f"blk.{n}.attn_v.weight"] = ((count * value, 64), kind)
            found[f"blk.{n}.attn_output.weight"] = ((64, 8 * value), kind)
        found[f"blk.{n}.ffn_up.weight"] = ((128, 64), kind)
        found[f"blk.{n}.ffn_gate.weight"] = ((128, 64), kind)
        found[f"blk.{n}.ffn_down.weight"] = ((64, 128), kind)
    found["output_norm.weight"] = ((64,), 0)
    if head:
        found["output.weight"] = ((96, 64), kind)
    return found
