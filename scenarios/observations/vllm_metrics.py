"""vLLM's Prometheus text: the NIXL connector's histograms, of which `_sum` and `_count` are exact.

All ranks of an engine are pooled in one series, recorded where blocks are read (decode). Counters may end in `_total`.
"""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.observations.lines import Line
from scenarios.observations.observation import Interval, Observation, Reading
from scenarios.observations.samples import Labels, Scrapes, has_mark, model_of, rank_of, scrapes_of

NAME = "vLLM metrics"
ENGINE = "vllm-nixl"
MARKS = ("vllm:nixl_", "vllm_nixl_", "vllm:cache_config_info")
_BYTES, _TIME, _PIECES = "nixl_bytes_transferred", "nixl_xfer_time_seconds", "nixl_num_descriptors"
_FAILED = ("vllm:nixl_num_failed_transfers_total", "vllm:nixl_num_failed_transfers")


def knows(text: str) -> bool:
    """Whether the line is a sample of one of these names."""
    return has_mark(text, MARKS)


def read(lines: Sequence[Line], source: str, version: str | None) -> Reading:
    """One observation a set of labels (an engine of a model)."""
    renamed = [Line(line.number, line.text.replace("vllm_nixl_", "vllm:nixl_", 1)) for line in lines]
    scrapes = scrapes_of(renamed, source, MARKS)
    names = [f"vllm:{_BYTES}_{end}" for end in ("sum", "count")]
    found = tuple(_observation(scrapes, labels, source, version) for labels in scrapes.label_sets(names))
    return Reading(
        format=NAME,
        engine=ENGINE,
        observations=found,
        blind=("transfers of another connector than NIXL's",),
        sizing=_sizing(scrapes),
        warnings=tuple(scrapes.warnings),
        unknown=tuple(scrapes.unknown),
    )


def _observation(scrapes: Scrapes, labels: Labels, source: str, version: str | None) -> Observation:
    sums = {base: scrapes.rise(f"vllm:{base}_sum", labels) for base in (_BYTES, _TIME, _PIECES)}
    failed = scrapes.first_rise(_FAILED, labels)
    return Observation(
        source=source, engine=ENGINE, version=version, side="decode", rank=rank_of(labels), model=model_of(labels),
        transfers=scrapes.rise(f"vllm:{_BYTES}_count", labels), bytes=sums[_BYTES], seconds=sums[_TIME],
        descriptors=sums[_PIECES], failed=failed,
        lines=scrapes.first_line((f"vllm:{_BYTES}_sum", f"vllm:{_BYTES}_count"), labels),
    )  # fmt: skip


def _sizing(scrapes: Scrapes) -> dict[str, Interval]:
    """Blocks of the cache, which are labels of a sample of value 1; nothing where engines differ."""
    found: dict[str, set[str]] = {"block_tokens": set(), "pool_blocks": set()}
    for labels in scrapes.label_sets(["vllm:cache_config_info"]):
        told = dict(labels)
        found["block_tokens"].add(told.get("block_size", ""))
        found["pool_blocks"].add(told.get("num_gpu_blocks", ""))
    return {
        name: Interval.exact(int(next(iter(values))))
        for name, values in found.items()
        if len(values) == 1 and all(value.isascii() and value.isdigit() and len(value) < 16 for value in values)
    }
