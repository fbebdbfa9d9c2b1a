"""What `model show` says: the contract's document of a model, and its text."""

from __future__ import annotations

from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.model import DTYPE_BYTES, Model
from fleet.units import format_bytes
from scenarios.limits import model_limits
from scenarios.read_text import read_document, read_lines
from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block, listing

Document = dict[str, Any]
BLOCK_TOKENS = 16
"""vLLM's default block; policy."""
MAX_CONTEXT = 2**40


def model_document(model: Model, contexts: list[int], kv_dtype: str | None) -> Document:
    """name, family, parameters, weights and KV bytes; null where the layout is not understood."""
    faults = []
    if kv_dtype is not None and (kv_dtype not in DTYPE_BYTES or kv_dtype == "int32"):
        faults.append(
            Fault(
                source="command line",
                field="--kv-dtype",
                message=f"{kv_dtype!r} is unknown; use bf16, fp16, fp32 or fp8",
            )
        )
    for context in contexts:
        if not 1 <= context <= MAX_CONTEXT:
            faults.append(
                Fault(source="command line", field="--context", message=f"{context} is out of range; use 1 or more")
            )
    if faults:
        raise DescriptionError(faults)
    known = not model.unknown
    dtype = kv_dtype or model.kv_dtype
    per_token = 2 * model.n_layers * model.kv_dim * DTYPE_BYTES[dtype] if known else None
    by_context = {
        str(context): {
            "window": None if per_token is None else per_token * context,
            "full": None if per_token is None else per_token * context,
        }
        for context in contexts
    }
    return {
        "schema": "kvwaybill/model/1",
        "name": model.name,
        "family": model.family,
        "format": model.format,
        "digest": model.digest,
        "parameters": model.parameters if known else None,
        "weights_bytes": sum(t.nbytes for t in model.tensors if t.role != "unread") if known else None,
        "weights_dtype": model.weights_dtype if known else None,
        "layers": [{"kind": "full", "count": model.n_layers}] if known else [],
        "seq_len": model.seq_len if known else None,
        "kv": {
            "dtype": dtype,
            "bytes_per_token": per_token,
            "by_context": by_context,
            "block_tokens": BLOCK_TOKENS,
            "bytes_per_block": None if per_token is None else per_token * BLOCK_TOKENS,
            "state_bytes_per_sequence": 0 if known else None,
        },
        "read": read_document(model),
        "unknown": list(model.unknown),
        "limits": model_limits(),
    }


def model_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The document for people."""
    paint = Paint(color, width)
    kv = document["kv"]
    head = [safe(f"{document['name']}  {document['family']}, read as {document['format']}")]
    if document["unknown"]:
        told = listing("Unverified: nothing of it is priced", document["unknown"], paint)
        return joined([head, told, read_lines(document, paint), limits_block(document, paint)])
    table = Table("Model", "")
    layers = ", ".join(f"{layer['count']} {layer['kind']}" for layer in document["layers"])
    table.add("parameters", f"{document['parameters']:,}")
    table.add("weights", f"{format_bytes(document['weights_bytes'])} in {document['weights_dtype']}")
    table.add("layers", f"{layers} attention; {document['seq_len']:,} positions")
    table.add("KV of a token", f"{format_bytes(kv['bytes_per_token'])} in {kv['dtype']}")
    table.add("KV of a block", f"{format_bytes(kv['bytes_per_block'])}, {kv['block_tokens']} tokens")
    for context, held in kv["by_context"].items():
        table.add(f"KV of {int(context):,} tokens", format_bytes(held["full"]))
    return joined([head, table.lines(paint), read_lines(document, paint), limits_block(document, paint)])
