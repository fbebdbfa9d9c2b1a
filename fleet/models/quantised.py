"""What a quantised checkpoint stores: the plain tensor table with packed weights and scales in place of its matrices.

A scheme is compared per family: where the bytes of a family in a scheme equal a published total the family says so
(`Family.compared`); elsewhere the sum is shown as computed and never given as the weights' bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fleet.checkpoints.json_text import shorten
from fleet.model import TensorSpec

_MAX_PATTERNS = 4096
_KV_ALGORITHMS = {"FP8": "fp8", "NVFP4": "nvfp4"}
_PLAIN_PATTERN = re.compile(r"[A-Za-z0-9_.*\-]{1,256}")
_LITERAL_RE = re.compile(r"(?:\.\*|\\\.|[A-Za-z0-9_\-.])*\$?")

Store = Callable[[TensorSpec], list[TensorSpec]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scheme:
    """A quantisation: `key` as `Family.compared` names it, `title` for people, `store` makes a matrix's tensors.

    `ignore` are patterns of modules left plain; `only_experts`: matrices outside experts are plain. `axes`: those
    that a matrix must have to be stored so.
    """

    key: str
    title: str
    store: Store
    ignore: tuple[str, ...] = ()
    only_experts: bool = False
    axes: int | None = None


def read_scheme(config: Any, beside: Any) -> tuple[Scheme | None, list[str], str | None]:
    """The scheme of a `quantization_config` and of an `hf_quant_config.json` beside it; words; the cache's type.

    The cache's type is None when neither sets one; it is known also where the weights are not understood.
    """
    found: Scheme | None = None
    words: list[str] = []
    kv_dtype: str | None = None
    if beside is not None:
        found, words, kv_dtype = _modelopt(beside)
    if config:
        inner, told = _of_config(config)
        if found is not None and inner is not None and inner.key != found.key:
            words.append(f"quantization_config says {inner.title}, hf_quant_config.json says {found.title}")
        found, words = (inner, told + words) if found is None else (found, words)
        if kv_dtype is None and isinstance(config, dict):
            kv_dtype, told = _kv_dtype(config)
            words = words + told
    return found, words, kv_dtype


def _of_config(config: Any) -> tuple[Scheme | None, list[str]]:
    if not isinstance(config, dict):
        return None, ["the weights are quantised: quantization_config is no object"]
    method = config.get("quant_method")
    if method is None and "quant_algo" in config:
        method = "modelopt"
    readers = {"fp8": _fp8, "mxfp4": _mxfp4, "bitsandbytes": _bitsandbytes, "modelopt": _modelopt_inner}
    reader = readers.get(method) if isinstance(method, str) else None
    if reader is None:
        named = f" ({shorten(method)})" if isinstance(method, str) else ""
        return None, [f"the weights are quantised{named}: their bytes are not understood"]
    ignore, words = _patterns(config)
    if words:
        return None, words
    return reader(config, ignore)


def _kv_dtype(config: dict[str, Any]) -> tuple[str | None, list[str]]:
    """The cache type that `kv_cache_scheme`, or modelopt's `kv_cache_quant_algo`, sets; words where it is not known."""
    scheme, algorithm = config.get("kv_cache_scheme"), config.get("kv_cache_quant_algo")
    is_fp8 = isinstance(scheme, dict) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float")
    found = {
        ("FP8" if is_fp8 else scheme if isinstance(scheme, str) else None),
        algorithm if isinstance(algorithm, str) else None,
    }
    found.discard(None)
    if len(found) == 1 and (known := _KV_ALGORITHMS.get(next(iter(found)) or "")) is not None:
        return known, []
    given = {"kv_cache_scheme": scheme, "kv_cache_quant_algo": algorithm}
    told = ", ".join(f"{name} {shorten(value)}" for name, value in given.items() if value)
    return None, [f"the type of the cache is not understood: {told}"] if told else []


def _patterns(config: dict[str, Any]) -> tuple[tuple[str, ...], list[str]]:
    """Patterns of modules that stay plain, from the three fields that schemes use."""
    found: list[str] = []
    for name in ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules"):
        value = config.get(name)
        if value is None:
            continue
        if not (isinstance(value, list) and len(value) <= _MAX_PATTERNS and all(isinstance(v, str) for v in value)):
            return (), [f"the weights are quantised: {name} is no list of names"]
        found += value
    bad = [p for p in found if not (_PLAIN_PATTERN.fullmatch(p) or _is_simple_expression(p))]
    if bad:
        return (), [f"the weights are quantised: pattern {shorten(bad[0])} is not understood"]
    return tuple(dict.fromkeys(found)), []


def _is_simple_expression(pattern: str) -> bool:
    """`re:` and only literals, `.*` and an end mark: anything else is somebody's program."""
    return pattern.startswith("re:") and len(pattern) <= 256 and _LITERAL_RE.fullmatch(pattern[3:]) is not None


def _fp8(config: dict[str, Any], ignore: tuple[str, ...]) -> tuple[Scheme | None, list[str]]:
    tile = config.get("weight_block_size")
    if tile is None:
        return Scheme(key="fp8 tensor", title="fp8, a scale a tensor", store=_store_fp8_tensor, ignore=ignore), []
    if not (
        isinstance(tile, list)
        and len(tile) == 2
        and all(isinstance(t, int) and not isinstance(t, bool) and 1 <= t <= 1 << 16 for t in tile)
    ):
        return None, ["the weights are quantised (fp8): weight_block_size is no pair of whole numbers"]
    rows, columns = tile

    def store(spec: TensorSpec) -> list[TensorSpec]:
        *lead, n_out, n_in = spec.shape
        scales = (*lead, -(-n_out // rows), -(-n_in // columns))
        return [replace(spec, dtype="fp8"), _scale(spec, "weight_scale_inv", scales, "fp32")]

    return Scheme(key="fp8", title=f"fp8 in tiles of {rows}x{columns}", store=store, ignore=ignore), []


def _store_fp8_tensor(spec: TensorSpec) -> list[TensorSpec]:
    return [
        replace(spec, dtype="fp8"),
        _scale(spec, "weight_scale", (), "fp32"),
        _scale(spec, "input_scale", (), "fp32"),
    ]


def _mxfp4(config: dict[str, Any], ignore: tuple[str, ...]) -> tuple[Scheme | None, list[str]]:
    return Scheme(key="mxfp4", title="mxfp4 experts", store=_store_mxfp4, ignore=ignore, only_experts=True, axes=3), []


def _store_mxfp4(spec: TensorSpec) -> list[TensorSpec]:
    """Blocks of 32 values in 16 bytes and a byte of scale; values run along the input, which is put last."""
    count, n_in, n_out = spec.shape
    groups = -(-n_in // 32)
    blocks = replace(
        spec, name=f"{spec.name}_blocks", shape=(count, n_out, groups, 16), dtype="u8", packed=count * n_in * n_out
    )
    return [
        blocks,
        replace(spec, name=f"{spec.name}_scales", shape=(count, n_out, groups), dtype="u8", role="scale", packed=0),
    ]


def _bitsandbytes(config: dict[str, Any], ignore: tuple[str, ...]) -> tuple[Scheme | None, list[str]]:
    if config.get("load_in_8bit") is not True or config.get("load_in_4bit"):
        return None, ["the weights are quantised (bitsandbytes, 4 bit): their bytes are not understood"]

    def store(spec: TensorSpec) -> list[TensorSpec]:
        rows = _scale(spec, "SCB", (spec.shape[0],), "fp32")
        return [replace(spec, dtype="int8"), rows, _scale(spec, "weight_format", (), "u8")]

    return Scheme(key="bitsandbytes int8", title="bitsandbytes int8", store=store, ignore=ignore, axes=2), []


def _modelopt(document: Any) -> tuple[Scheme | None, list[str], str | None]:
    """`hf_quant_config.json`: {"quantization": {quant_algo, group_size, exclude_modules, kv_cache_quant_algo}}."""
    inner = document.get("quantization") if isinstance(document, dict) else None
    if not isinstance(inner, dict):
        return None, ["the weights are quantised: hf_quant_config.json has no object quantization"], None
    kv = inner.get("kv_cache_quant_algo")
    ignore, words = _patterns(inner)
    if kv not in (None, "FP8", "NVFP4"):
        words.append(f"kv_cache_quant_algo {shorten(kv)} of hf_quant_config.json is not understood")
    scheme, told = (None, []) if words else _modelopt_inner(inner, ignore)
    return scheme, words + told, _KV_ALGORITHMS.get(str(kv))


def _modelopt_inner(inner: dict[str, Any], ignore: tuple[str, ...]) -> tuple[Scheme | None, list[str]]:
    algorithm = inner.get("quant_algo")
    if algorithm == "FP8":
        return Scheme(key="fp8 tensor", title="fp8, a scale a tensor", store=_store_fp8_tensor, ignore=ignore), []
    if algorithm == "NVFP4":
        group = inner.get("group_size", 16)
        if group == 16:
            return Scheme(key="nvfp4", title="nvfp4, a scale for 16", store=_store_nvfp4, ignore=ignore), []
    return None, [f"the weights are quantised ({shorten(algorithm)}): their bytes are not understood"]


def _store_nvfp4(spec: TensorSpec) -> list[TensorSpec]:
    *lead, n_in = spec.shape
    packed = spec.n_elements // spec.repeat
    return [
        replace(spec, shape=(*lead, -(-n_in // 2)), dtype="u8", packed=packed),
        _scale(spec, "weight_scale", (*lead, -(-n_in // 16)), "fp8"),
        _scale(spec, "weight_scale_2", (), "fp32"),
        _scale(spec, "input_scale", (), "fp32"),
    ]


def _scale(spec: TensorSpec, suffix: str, shape: tuple[int, ...], dtype: str) -> TensorSpec:
    name = spec.name.removesuffix("weight").removesuffix(".")
    return replace(spec, name=f"{name}.{suffix}", shape=shape, dtype=dtype, role="scale", packed=0)


def misfit(tensors: tuple[TensorSpec, ...], scheme: Scheme) -> list[str]:
    """Words where a scheme meets matrices that it has no form for; nothing where it fits."""
    for spec in tensors:
        if scheme.axes is not None and _takes(spec, scheme) and len(spec.shape) != scheme.axes:
            return [f"the weights are quantised ({scheme.title}): no form is known for {spec.line}"]
    return []


def _takes(spec: TensorSpec, scheme: Scheme) -> bool:
    """Whether a scheme is for this tensor, exclusions aside."""
    is_matrix = spec.role == "projection" and len(spec.shape) >= 2
    return is_matrix and (".experts" in spec.name or not scheme.only_experts)


def stored(tensors: tuple[TensorSpec, ...], scheme: Scheme) -> tuple[TensorSpec, ...]:
    """The table as the checkpoint stores it: matrices that the scheme takes, replaced; all others as they were."""
    kept = _Kept(scheme.ignore)
    table: list[TensorSpec] = []
    for spec in tensors:
        if _takes(spec, scheme) and not kept.holds(spec.name):
            table += scheme.store(spec)
        else:
            table.append(spec)
    return tuple(table)


class _Kept:
    """Names of modules that stay plain: whole runs of a name's parts, or patterns with stars.

    Stars are matched from left to right without going back, never as a regular expression: a file's pattern could make
    one run for ever.
    """

    def __init__(self, patterns: tuple[str, ...]) -> None:
        bodies = [(_plain(pattern), pattern.startswith("re:")) for pattern in patterns]
        self._runs = {body for body, is_free in bodies if "*" not in body and not is_free}
        self._stars = [(body.split("*"), is_free) for body, is_free in bodies if "*" in body or is_free]

    def holds(self, name: str) -> bool:
        parts = name.split(".")
        ends = range(1, len(parts) + 1)
        if self._runs and any(".".join(parts[i:j]) in self._runs for j in ends for i in range(j)):
            return True
        return any(_fits(literals, is_free, name) for literals, is_free in self._stars)


def _plain(pattern: str) -> str:
    """A pattern with one sort of star, without marks and without a wrapper's part of the name."""
    body = pattern.removeprefix("re:").removesuffix("$").replace("language_model.", "")
    if pattern.startswith("re:"):
        body = body.replace(".*", "*").replace("\\.", ".")
    return body


def _fits(literals: list[str], is_free: bool, name: str) -> bool:
    """Whether the literals occur in order; without `is_free` they begin and end where a part of the name does."""
    starts = [0] if is_free else [0, *(i + 1 for i, char in enumerate(name) if char == ".")]
    return any(_fits_from(literals, is_free, name, start) for start in starts)


def _fits_from(literals: list[str], is_free: bool, name: str, start: int) -> bool:
    first, *rest = literals
    at = name.find(first, start) if is_free else (start if name.startswith(first, start) else -1)
    for literal in (first, *rest):
        if literal is not first:
            at = name.find(literal, at)
        if at < 0:
            return False
        at += len(literal)
    if is_free or not literals[-1]:
        return True
    while at >= 0:
        if at == len(name) or name[at] == ".":
            return True
        later = name.find(literals[-1], at - len(literals[-1]) + 1)
        at = later + len(literals[-1]) if later >= 0 else -1
    return False
