"""What `model show` says: the contract's document of a model. Its text is `scenarios.model_lines`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fleet.errors import DescriptionError, Fault
from fleet.model import Model
from fleet.models import kv
from fleet.models.layers import KINDS, CacheLayer, run_lengths
from fleet.models.resident import loaded_of, padding_bounds
from scenarios.limits import model_limits
from scenarios.read_text import read_document

Document = dict[str, Any]
BLOCK_TOKENS = 16
"""vLLM's default block; policy."""
MAX_CONTEXT = 2**40
MAX_BLOCK = 2**20
RANKS = (1, 2, 4, 8, 16)


def model_document(
    model: Model, contexts: list[int], kv_dtype: str | None, *, block: int = BLOCK_TOKENS, explain: bool = False
) -> Document:
    """name, family, parameters, weights and KV bytes; null where it is not understood or was never compared.

    Raises DescriptionError for contexts, blocks and types that make no sense for this model.
    """
    _check(model, contexts, kv_dtype, block)
    dtype = kv_dtype or model.kv_dtype
    parameters = model.parameters or None
    document = {
        "schema": "kvwaybill/model/1",
        "name": model.name,
        "family": model.family,
        "format": model.format,
        "digest": model.digest,
        "parameters": parameters,
        "weights_bytes": model.weights_bytes,
        "weights_dtype": model.weights_dtype if parameters or model.caches else None,
        "weights": _weights(model),
        "layers": _layers(model.caches, dtype),
        "order": [{"kind": kind, "count": count} for kind, count in run_lengths(model.caches)],
        "seq_len": model.seq_len or None,
        "kv": _kv(model, contexts, dtype, block),
        "mtp_layers": len(model.mtp_layers),
        "resident": _resident(model),
        "read": read_document(model),
        "unknown": list(model.unknown),
        "limits": model_limits(),
    }
    if explain:
        from scenarios.model_explain import explain_document

        document["explain"] = explain_document(model, dtype)
    return document


def _check(model: Model, contexts: list[int], kv_dtype: str | None, block: int) -> None:
    faults = []

    def fault(field: str, message: str) -> None:
        faults.append(Fault(source="command line", field=field, message=message))

    if kv_dtype is not None and kv_dtype not in kv.KV_TYPES:
        fault("--kv-dtype", f"{kv_dtype!r} is unknown; use {', '.join(kv.KV_TYPES)}")
    elif kv_dtype is not None:
        try:
            kv.bytes_per_token(model.caches, kv_dtype)
        except ValueError as error:
            fault("--kv-dtype", str(error))
    for context in contexts:
        if not 1 <= context <= MAX_CONTEXT:
            fault("--context", f"{context} is out of range; use 1 or more")
    if not 1 <= block <= MAX_BLOCK:
        fault("--block-size", f"{block} is out of range; use 1 to {MAX_BLOCK:,}")
    if faults:
        raise DescriptionError(faults)


def _weights(model: Model) -> Document:
    """How the weights' bytes are made up, and what they are where they were never compared."""
    known = bool(model.tensors)
    return {
        "quantisation": model.quantisation,
        "computed_bytes": model.computed_weights_bytes,
        "compared": model.weights_compared if known else None,
        "bytes_if_16_bit": model.bytes_if(2) if known else None,
        "buffer_bytes": model.buffer_bytes if known else None,
        "vision_parameters": model.vision_parameters if known else None,
        "tied_embeddings": model.shared_classifier if known else None,
        "excludes": list(model.excludes),
    }


def _layers(layers: tuple[CacheLayer, ...], dtype: str) -> list[Document]:
    """Kind and count, the first seen first; bytes of one more token in one layer where all of a kind are equal."""
    by_kind: dict[str, list[CacheLayer]] = {}
    for layer in layers:
        by_kind.setdefault(layer.kind, []).append(layer)
    rows = []
    for kind, same in by_kind.items():
        figures = {kv.token_bytes(layer, dtype) for layer in dict.fromkeys(same)}
        windows = {layer.window for layer in same}
        rows.append(
            {
                "kind": kind,
                "count": len(same),
                "bytes_per_token": figures.pop() if len(figures) == 1 else None,
                "window": windows.pop() if len(windows) == 1 else None,
            }
        )
    return rows


def _kv(model: Model, contexts: list[int], dtype: str, block: int) -> Document:
    layers = model.caches
    known = bool(layers)
    return {
        "dtype": dtype,
        "bytes_per_token": kv.bytes_per_token(layers, dtype) if known else None,
        "growing_bytes_per_token": kv.bytes_per_token(layers, dtype, growing_only=True) if known else None,
        "by_context": {str(context): _context(layers, context, dtype, 1) for context in contexts},
        "by_context_in_blocks": {str(context): _context(layers, context, dtype, block) for context in contexts},
        "by_context_open_chunk": _open_chunks(layers, contexts, dtype),
        "block_tokens": block,
        "bytes_per_block": kv.kv_bytes(layers, block, dtype, reading="full") if known else None,
        "state_bytes_per_sequence": kv.state_bytes(layers) if known else None,
        "state": _state(layers, dtype),
        "tensor_parallel": {str(ranks): _ranks(layers, dtype, ranks) for ranks in RANKS} if known else None,
        "fp8_ds_mla_bytes_per_token": _ds_mla(layers),
    }


def _context(layers: tuple[CacheLayer, ...], tokens: int, dtype: str, block: int) -> Document:
    """Both readings of windows, in whole blocks of `block` tokens (1: exact)."""
    if not layers:
        return {"window": None, "full": None}
    return {
        "window": kv.kv_bytes(layers, tokens, dtype, block=block),
        "full": kv.kv_bytes(layers, tokens, dtype, reading="full", block=block),
    }


def _open_chunks(layers: tuple[CacheLayer, ...], contexts: list[int], dtype: str) -> dict[str, int] | None:
    """The exact figure of chunked layers, of which `window` is the upper bound; None where there are none."""
    if not any(layer.kind == "chunked" for layer in layers):
        return None
    return {str(tokens): kv.kv_bytes(layers, tokens, dtype, reading="open_chunk") for tokens in contexts}


def _state(layers: tuple[CacheLayer, ...], dtype: str) -> Document | None:
    """The recurrent state in every type that it may be kept in; None where no layer keeps one."""
    recurrent = [layer for layer in layers if KINDS[layer.kind].growth == "constant"]
    if not recurrent:
        return None
    said = recurrent[0].state_dtype
    return {
        "layers": len(recurrent),
        "config_says": said,
        "reading": f"state {said or 'fp32'}, convolution 16 bit",
        "state_elements": sum(layer.state_elements for layer in recurrent),
        "conv_elements": sum(layer.conv_elements for layer in recurrent),
        "bytes_state_fp32_conv_16bit": kv.state_bytes(layers, state="fp32"),
        "bytes_all_16bit": kv.state_bytes(layers, state="bf16"),
        "bytes_all_fp32": kv.state_bytes(layers, state="fp32", conv="fp32"),
        "attention_block_tokens": {
            "state_16bit": kv.attention_block_tokens(layers, dtype, state="bf16"),
            "state_fp32": kv.attention_block_tokens(layers, dtype, state="fp32"),
        },
    }


def _ranks(layers: tuple[CacheLayer, ...], dtype: str, ranks: int) -> Document | None:
    held = kv.rank_bytes_per_token(layers, dtype, ranks)
    return None if held is None else {"bytes_per_token_per_rank": held, "bytes_per_token_all_ranks": held * ranks}


def _ds_mla(layers: tuple[CacheLayer, ...]) -> int | None:
    """Bytes of a token in vLLM's fp8_ds_mla slots; None where a layer is not MLA."""
    counts = Counter(layers)
    if not counts or not all(layer.latent_dim for layer in counts):
        return None
    return kv.bytes_per_token(layers, "fp8_ds_mla")


def _resident(model: Model) -> Document:
    """What an engine was seen to load; in words where nobody published it."""
    rows = []
    for row in loaded_of(model):
        bounds = None if model.weights_bytes is None else padding_bounds(row, model.weights_bytes)
        rows.append(
            {
                "engine": row.engine,
                "ranks": row.ranks,
                "loaded_gib": row.gib,
                "padding_bytes_least": bounds and bounds[0],
                "padding_bytes_most": bounds and bounds[1],
                "source": row.source,
            }
        )
    return {"measured": rows, "words": None if rows else "checkpoint bytes; the engine may pad"}
