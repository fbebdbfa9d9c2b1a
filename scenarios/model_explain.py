"""`model show --explain`: how each figure came about: formula, numbers, and the config field of every number."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from fleet.model import Model
from fleet.models import kv
from fleet.models.layers import KINDS, CacheLayer
from scenarios.table import Paint, Table, safe

Document = dict[str, Any]
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def explain_document(model: Model, dtype: str) -> Document:
    """`kinds`: formula, numbers with fields, bytes; `weights`: tensors by name, shape and type, and their sums."""
    counts = Counter(model.caches)
    return {
        "kinds": [_kind(layer, count, dtype) for layer, count in counts.items()],
        "element_bytes": kv.KV_TYPES[dtype].words,
        "weights": _weights(model),
    }


def _kind(layer: CacheLayer, count: int, dtype: str) -> Document:
    kind = KINDS[layer.kind]
    fields = dict(layer.sources)
    numbers = kind.numbers(layer)
    return {
        "kind": layer.kind,
        "count": count,
        "formula": kind.formula,
        "note": kind.note or None,
        "growth": kind.growth,
        "tensor_parallel": kind.tensor_parallel,
        "numbers": [
            {"symbol": symbol, "value": value, "field": fields.get(symbol)} for symbol, value in numbers.items()
        ],
        "bytes_per_token": kv.token_bytes(layer, dtype),
        "state_bytes": kv.layer_state_bytes(layer),
        "state_dtype": layer.state_dtype,
    }


def _weights(model: Model) -> list[Document]:
    """One line for all tensors that differ in numbers alone; the first seen first."""
    groups: dict[tuple[str, tuple[int, ...], str], list[int]] = {}
    for spec in model.tensors:
        name = _NUMBER.sub(".*", spec.name).replace("{}", "*")
        held = groups.setdefault((name, spec.shape, spec.dtype), [0, 0, 0])
        held[0] += spec.repeat
        held[1] += spec.n_parameters
        held[2] += spec.nbytes
    return [
        {"name": name, "shape": list(shape), "dtype": dtype, "tensors": n, "parameters": parameters, "bytes": nbytes}
        for (name, shape, dtype), (n, parameters, nbytes) in groups.items()
    ]


def explain_lines(document: Document, paint: Paint) -> list[str]:
    """The explanation for people."""
    lines = [paint("How it came about", "bold")]
    for kind in document["kinds"]:
        lines.append(safe(f"  {kind['count']} {kind['kind']}: {kind['formula']}  ({kind['tensor_parallel']})"))
        if kind["note"]:
            lines.append(f"      {kind['note']}")
        for number in kind["numbers"]:
            lines.append(safe(f"      {number['symbol']} = {number['value']:,}  from {number['field'] or 'the file'}"))
        if kind["bytes_per_token"]:
            lines.append(f"      = {kind['bytes_per_token']:,} B a token a layer")
        if kind["state_bytes"]:
            named = kind["state_dtype"] or "fp32, for the config names no type"
            lines.append(f"      = {kind['state_bytes']:,} B a sequence a layer; state {named}, convolution 16 bit")
    lines.append(f"  e: {document['element_bytes']}")
    table = Table("Weights", "", "", ">tensors", ">parameters", ">bytes")
    for row in document["weights"]:
        shape = "x".join(map(str, row["shape"])) or "1"
        table.add(
            safe(row["name"]), shape, row["dtype"], f"{row['tensors']:,}", f"{row['parameters']:,}", f"{row['bytes']:,}"
        )
    return [*lines, "", *table.lines(paint)]
