"""Weight files for tests, written field by field so that every field can be wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any


def entry(dtype: str, shape: list[Any], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def safetensors_bytes(header: Any, data: int | bytes = 0) -> bytes:
    """A safetensors file of `header` (an object, text or bytes) and `data` (bytes, or a number of zeros)."""
    if not isinstance(header, (str, bytes)):
        header = json.dumps(header)
    raw = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(raw)) + raw + (data if isinstance(data, bytes) else bytes(data))


def laid_out(tensors: dict[str, tuple[str, list[int], int]]) -> tuple[dict[str, Any], int]:
    """Header entries of `name: (dtype, shape, bytes)` one after the other, and the bytes of data."""
    header, at = {}, 0
    for name, (dtype, shape, nbytes) in tensors.items():
        header[name] = entry(dtype, shape, at, at + nbytes)
        at += nbytes
    return header, at


def write_parts(folder: Path, parts: dict[str, dict[str, tuple[str, list[int], int]]], **index: Any) -> None:
    """A sharded checkpoint: file name to tensors, and its index; `index` replaces fields of the index."""
    weight_map, total = {}, 0
    for file, tensors in parts.items():
        header, size = laid_out(tensors)
        (folder / file).write_bytes(safetensors_bytes(header, size))
        weight_map |= dict.fromkeys(tensors, file)
        total += size
    document = {"metadata": {"total_size": total}, "weight_map": weight_map} | index
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))
