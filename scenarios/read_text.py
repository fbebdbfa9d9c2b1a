"""What `model show` says of weight files: bytes read from headers, by type, and where they differ from the config."""

from __future__ import annotations

from typing import Any

from fleet.model import Model
from fleet.units import format_bytes
from scenarios.table import Paint, Table
from scenarios.words import listing

Document = dict[str, Any]


def read_document(model: Model) -> Document | None:
    """format, files, tensors, bytes, types and differences of the weight files; None where none were read."""
    read = model.read
    if read is None:
        return None
    return {
        "format": read.format,
        "files": read.n_files,
        "tensors": read.n_tensors,
        "bytes": read.nbytes,
        "by_dtype": [{"dtype": dtype, "tensors": count, "bytes": nbytes} for dtype, count, nbytes in read.by_dtype],
        "differences": list(read.differences),
    }


def read_lines(document: Document, paint: Paint) -> list[str]:
    """The `read` part of a model's document for people; no lines where it is null."""
    read = document.get("read")
    if read is None:
        return []
    files = f"{read['files']:,} {read['format']} {'file' if read['files'] == 1 else 'files'}"
    table = Table(f"Read from {files}", ">tensors", ">bytes")
    for row in read["by_dtype"]:
        table.add(row["dtype"], f"{row['tensors']:,}", _size(row["bytes"]))
    table.add("all", f"{read['tensors']:,}", _size(read["bytes"]))
    # What made the model unknown stands above already.
    fresh = [words for words in read["differences"] if not any(words in told for told in document["unknown"])]
    differ = listing("Files and config differ", fresh, paint)
    return [*table.lines(paint), *(["", *differ] if differ else [])]


def _size(nbytes: int | None) -> str:
    return "unknown" if nbytes is None else format_bytes(nbytes)
