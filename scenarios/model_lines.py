"""The text of `model show`: one table, what is unknown in words, the layers, what was read from weight files."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from scenarios.read_text import read_lines
from scenarios.table import Paint, Table, safe
from scenarios.words import joined, limits_block, listing

Document = dict[str, Any]
_UNKNOWN = "unknown"


def model_text(document: Document, *, color: bool = False, width: int | None = None) -> str:
    """The document for people."""
    paint = Paint(color, width)
    head = [safe(f"{document['name']}  {document['family']}, read as {document['format']}")]
    told = listing("Unverified", document["unknown"], paint)
    blocks = [head, told]
    if document["parameters"] is not None or document["layers"]:
        blocks += [_summary(document).lines(paint), _contexts(document, paint)]
    blocks.append(read_lines(document, paint))
    if "explain" in document:
        from scenarios.model_explain import explain_lines

        blocks.append(explain_lines(document["explain"], paint))
    return joined([*blocks, limits_block(document, paint)])


def _summary(document: Document) -> Table:
    table = Table("Model", "")
    for name, words in _weight_rows(document):
        table.add(name, words)
    layers = ", ".join(f"{layer['count']} {layer['kind']}{_window(layer)}" for layer in document["layers"])
    positions = document["seq_len"]
    table.add("layers", f"{layers or _UNKNOWN}{f'; {positions:,} positions' if positions else ''}")
    for name, words in _kv_rows(document["kv"]):
        table.add(name, words)
    if document["mtp_layers"]:
        table.add("left out", f"{document['mtp_layers']} MTP layers; --mtp counts them")
    return table


def _window(layer: Document) -> str:
    return f" of {layer['window']:,} tokens" if layer["window"] else ""


def _weight_rows(document: Document) -> list[tuple[str, str]]:
    weights, parameters = document["weights"], document["parameters"]
    vision = weights["vision_parameters"]
    also = f", and {vision:,} of the vision tower" if vision else ""
    rows = [("parameters", _UNKNOWN if parameters is None else f"{parameters:,}{also}")]
    kind = weights["quantisation"] or document["weights_dtype"]
    rows.append(("weights", f"{_bytes(document['weights_bytes'])}{f' in {kind}' if kind else ''}"))
    if document["weights_bytes"] is None and weights["computed_bytes"] is not None:
        rows.append(("", f"{_bytes(weights['computed_bytes'])} computed, compared with nothing"))
    if weights["buffer_bytes"]:
        apart = "in them" if weights["quantisation"] else "apart"
        rows.append(("buffers", f"{_bytes(weights['buffer_bytes'])} of router biases, counted {apart}"))
    rows += [("not counted", safe(part)) for part in weights["excludes"]]
    resident = document["resident"]
    for row in resident["measured"]:
        ranks = f", each of {row['ranks']} ranks" if row["ranks"] > 1 else ""
        rows.append(("loaded", f"{row['loaded_gib']} GiB by {row['engine']}{ranks}{_padding(row)} ({row['source']})"))
    if resident["words"]:
        rows.append(("loaded", resident["words"]))
    return rows


def _padding(row: Document) -> str:
    if row["padding_bytes_least"] is None:
        return ""
    return f", padding {row['padding_bytes_least']:,} to {row['padding_bytes_most']:,} B"


def _kv_rows(cache: Document) -> list[tuple[str, str]]:
    each = cache["bytes_per_token"]
    rows = [("KV of a token", f"{_bytes(each)} in {cache['dtype']}")]
    if each is None:
        return rows
    if cache["growing_bytes_per_token"] != each:
        rows.append(("past windows", f"{_bytes(cache['growing_bytes_per_token'])} a token"))
    rows.append(("KV of a block", f"{_bytes(cache['bytes_per_block'])}, {cache['block_tokens']} tokens"))
    if cache["fp8_ds_mla_bytes_per_token"] is not None:
        rows.append(("in fp8_ds_mla", f"{_bytes(cache['fp8_ds_mla_bytes_per_token'])} a token"))
    state = cache["state"]
    if state:
        assumed = "" if state["config_says"] else "; the config names no type"
        rows.append(("state", f"{_bytes(cache['state_bytes_per_sequence'])} a sequence, {state['reading']}{assumed}"))
        rows.append(("", f"{state['bytes_all_16bit']:,} B all in 16 bit, {state['bytes_all_fp32']:,} B all in fp32"))
    ranks = cache["tensor_parallel"] or {}
    shown = [
        f"{n}: {'unknown' if held is None else format(held['bytes_per_token_per_rank'], ',')}"
        for n, held in ranks.items()
    ]
    rows.append(("B a token a rank", ", ".join(shown)))
    return rows


def _contexts(document: Document, paint: Paint) -> list[str]:
    """A line a context; the second reading of windows only where it differs."""
    cache = document["kv"]
    if not cache["by_context"] or cache["bytes_per_token"] is None:
        return []
    two = any(layer["window"] for layer in document["layers"])
    blocks = f"in blocks of {cache['block_tokens']}"
    headings = [">windows", ">every token", f">{blocks}"] if two else [">bytes", f">{blocks}"]
    table = Table("KV of tokens", *headings)
    for context, held in cache["by_context"].items():
        in_blocks = cache["by_context_in_blocks"][context]["full"]
        figures = [held["window"], held["full"], in_blocks] if two else [held["full"], in_blocks]
        table.add(f"{int(context):,}", *map(format_bytes, figures))
    lines = table.lines(paint)
    if two:
        lines.append(
            "  windows: min(tokens, window) in window layers; every token: an engine that evicts none, also in blocks"
        )
    if cache["by_context_open_chunk"] is not None:
        exact = ", ".join(f"{int(c):,}: {held:,} B" for c, held in cache["by_context_open_chunk"].items())
        lines += paint.fold(f"  chunked layers hold the open chunk alone (windows is their upper bound): {exact}")
    return lines


def _bytes(figure: int | None) -> str:
    return _UNKNOWN if figure is None else format_bytes(figure)
