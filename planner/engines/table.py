"""The table of engines: units, direction, descriptors, and what of each was read where. Adding one is a row.

A figure of an engine is its block or page size and a rule; the bytes come from `planner.caches`, as all bytes do.
`status` of each is `seen` (read in the named source) or `memory` (general knowledge, not read again). What was not read
is in `unknown_of`, and leaves a plan unverified rather than priced by a guess.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from fleet.model import Model
from fleet.models.layers import KINDS
from fleet.placement import Placement

Direction = Literal["push", "pull", "as told"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One engine. `unit` is what it moves whole; `unit_tokens` its size where nobody says another; 1: exact tokens.

    `descriptors`: whether copies of the waybill are the engine's descriptors (one a layer, tensor and unit); False:
    it merges them, and their number is unknown. `whole_windows`: layers with a window are moved and held in full.
    `skips_prefix`: whether tokens that decode has already are left out. `unknown_of`: growth of layers -> what was
    not read about them. `divides`: degrees of the phases must divide one another.
    """

    name: str
    unit: Literal["block", "page", "token"]
    unit_tokens: int
    unit_status: str
    direction: Direction
    descriptors: bool
    whole_windows: bool
    skips_prefix: bool
    divides: bool
    read: str
    unknown_of: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


_WINDOWS = "what it moves of layers with a window was not read"
_STATES = "what it moves of recurrent state was not read"

_ROWS = (
    Engine(
        name="exact", unit="token", unit_tokens=1, unit_status="by definition", direction="as told", descriptors=True,
        whole_windows=False, skips_prefix=True, divides=False, read="no engine: the tokens of the prompt and no more",
    ),
    Engine(
        name="vllm-nixl", unit="block", unit_tokens=16, unit_status="seen (vLLM's default block size)",
        direction="pull", descriptors=True, whole_windows=True, skips_prefix=True, divides=True,
        read="one stored version of vLLM's nixl_connector.py (its release is not known)",
        unknown_of=(("constant", "versions with the hybrid allocator, which keep recurrent state, were not read"),),
        notes=(
            "decode reads after prefill has finished, all layers in one transfer (seen)",
            "the last, partly filled block is moved whole (seen); an older version rounded the prompt down (memory)",
            "blocks that decode has by prefix are not read; a full hit moves 0 B and only notifies (seen)",
            "decode computes the last prompt token again (memory)",
            "layers with a window: the full block list, unless block_window_per_layer is set (seen)",
        ),
    ),
    Engine(
        name="sglang", unit="page", unit_tokens=1, unit_status="memory (default page size)", direction="push",
        descriptors=False, whole_windows=False, skips_prefix=False, divides=False,
        read="send_kv_chunk in stored versions of SGLang's disaggregation/prefill.py",
        unknown_of=(("bounded", _WINDOWS),),
        notes=(
            "every prefill chunk but the last is cut down to whole pages, the last rounded up (seen)",
            "the first token and metadata go by a buffer of their own, not counted here (seen)",
            "hybrids send their state with the last chunk (seen); MLA goes to every decode rank (seen, PR 30351)",
            "neighbouring pages are merged: descriptors depend on where pages lie",
        ),
    ),
    Engine(
        name="trtllm", unit="block", unit_tokens=32, unit_status="memory (default tokens_per_block)", direction="push",
        descriptors=False, whole_windows=False, skips_prefix=False, divides=False,
        read="TensorRT-LLM's tests of its transfer times; no source of its sender",
        unknown_of=(("bounded", _WINDOWS), ("constant", _STATES)),
        notes=("sent block by block over UCX, NIXL or MPI (seen)",),
    ),
    Engine(
        name="mooncake", unit="token", unit_tokens=1, unit_status="what the engine above gives it",
        direction="as told", descriptors=False, whole_windows=False, skips_prefix=True, divides=False,
        read="a transfer engine: moves what it is given",
        unknown_of=(("bounded", _WINDOWS), ("constant", _STATES)),
        notes=(
            "give the block or page size of the engine above with --block-size; exact tokens otherwise",
            "batches are bounded to 1,024 indices in a recent change of SGLang (seen, PR 32758)",
        ),
    ),
)  # fmt: skip
ENGINES: dict[str, Engine] = {row.name: row for row in _ROWS}
"""The engines by name."""


def engine_extent(name: str, unit_tokens: int | None) -> str:
    """The `kv_extent` of an engine: `filled` where it moves exact tokens, else its whole blocks or pages."""
    engine = ENGINES[name]
    size = engine.unit_tokens if unit_tokens is None else unit_tokens
    return "filled" if size == 1 and unit_tokens is None else f"blocks:{size}"


def engine_faults(name: str, prefix_hit: int, placement: Placement | None = None) -> Iterator[tuple[str, str]]:
    """(field, words) of what an engine is not asked."""
    engine = ENGINES[name]
    if prefix_hit and not engine.skips_prefix:
        yield "prefix_hit", f"whether {name} leaves out what decode has already was not read; leave it out"
    if placement is not None and engine.divides:
        prefill, decode = (placement.tensor_parallel(phase) for phase in ("prefill", "decode"))
        if max(prefill, decode) % min(prefill, decode):
            yield "decode_tp", f"{name} pairs ranks of degrees that divide one another, not {prefill} and {decode}"


def engine_unknown(name: str, model: Model) -> tuple[str, ...]:
    """In words, what was not read of an engine about the layers that this model has."""
    kinds = {KINDS[layer.kind].growth: layer.kind for layer in model.caches}
    return tuple(
        f"{name}: {words} ({kinds[growth]} layers); --engine exact prices them by their layers"
        for growth, words in ENGINES[name].unknown_of
        if growth in kinds
    )


def block_fault(prefill: int, decode: int) -> str | None:
    """In words, why two block sizes cannot meet; None where one divides the other (vllm-project/vllm#42895)."""
    if max(prefill, decode) % min(prefill, decode) == 0:
        return None
    return f"blocks of {prefill} tokens on prefill and of {decode} on decode: neither divides the other"
