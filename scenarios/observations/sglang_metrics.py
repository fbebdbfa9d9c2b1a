"""SGLang's Prometheus text of a prefill server: gauges of the last transfer in older versions, histograms in newer.

`total_mb` is bytes / 2^20 (seen in several stored versions of its request statistics; the gauge's own help text calls
it tokens). The latency counts from a request's entry into the transfer queue, not from the first byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from scenarios.observations.lines import Line
from scenarios.observations.observation import MIB, Interval, Observation, Reading
from scenarios.observations.samples import Labels, Scrapes, has_mark, model_of, rank_of, scrapes_of

NAME = "SGLang metrics"
ENGINE = "sglang"
MARKS = ("sglang:kv_transfer_", "sglang_kv_transfer_", "sglang:num_transfer_failed_reqs")
_SIZE, _TIME, _SPEED = (f"sglang:kv_transfer_{name}" for name in ("total_mb", "latency_ms", "speed_gb_s"))
_FAILED = ("sglang:num_transfer_failed_reqs_total", "sglang:num_transfer_failed_reqs")


def knows(text: str) -> bool:
    """Whether the line is a sample of one of these names."""
    return has_mark(text, MARKS)


def read(lines: Sequence[Line], source: str, version: str | None) -> Reading:
    """One observation a set of labels (a rank)."""
    renamed = [Line(line.number, line.text.replace("sglang_kv_", "sglang:kv_", 1)) for line in lines]
    scrapes = scrapes_of(renamed, source, MARKS)
    found: list[Observation] = []
    gauges, histograms = scrapes.label_sets([_SIZE]), scrapes.label_sets([f"{_SIZE}_sum", f"{_SIZE}_count"])
    if gauges and histograms:
        scrapes.warnings.append(f"{_SIZE} is a gauge and a histogram: the gauge tells of the same transfers, left out")
        gauges = []
    if gauges:
        scrapes.warnings.append(f"{_SIZE} is a gauge: the last transfer of each rank alone; earlier ones are not seen")
    for labels in gauges:
        found.append(_gauge(scrapes, labels, source, version))
    for labels in histograms:
        found.append(_histogram(scrapes, labels, source, version))
    return Reading(
        format=NAME,
        engine=ENGINE,
        observations=tuple(found),
        blind=("the wire's own time: the latency begins with the queue", "the first token and metadata", "descriptors"),
        warnings=tuple(scrapes.warnings),
        unknown=tuple(scrapes.unknown),
    )


def _gauge(scrapes: Scrapes, labels: Labels, source: str, version: str | None) -> Observation:
    size, time = scrapes.last(_SIZE, labels), scrapes.last(_TIME, labels)
    nothing = size is not None and size.high == 0
    return Observation(
        source=source, engine=ENGINE, version=version, side="prefill", rank=rank_of(labels), model=model_of(labels),
        transfers=Interval.exact(0 if nothing else 1), bytes=_scaled(size, Fraction(MIB)),
        seconds=_scaled(time, Fraction(1, 1000)), failed=scrapes.first_rise(_FAILED, labels),
        lines=scrapes.first_line((_SIZE,), labels),
    )  # fmt: skip


def _histogram(scrapes: Scrapes, labels: Labels, source: str, version: str | None) -> Observation:
    return Observation(
        source=source, engine=ENGINE, version=version, side="prefill", rank=rank_of(labels), model=model_of(labels),
        transfers=scrapes.rise(f"{_SIZE}_count", labels),
        bytes=_scaled(scrapes.rise(f"{_SIZE}_sum", labels), Fraction(MIB)),
        seconds=_scaled(scrapes.rise(f"{_TIME}_sum", labels), Fraction(1, 1000)),
        failed=scrapes.first_rise(_FAILED, labels),
        lines=scrapes.first_line((f"{_SIZE}_sum", f"{_SIZE}_count"), labels),
    )  # fmt: skip


def _scaled(value: Interval | None, unit: Fraction) -> Interval | None:
    return None if value is None else value.times(unit)
