"""TensorRT-LLM's Python transceiver: a row, or a line of its log, for each send of a cache, with its bytes.

`TLLM_KV_TRANSFER_PERF_LOG_FILE` makes CSV of it (`kv_transfer_perf_*.csv`), without it the same stands in the log
(NVIDIA/TensorRT-LLM, its own aggregate_kv_perf.py reads both). Sends of metadata (AuxSendTask) and receives, which tell
no bytes, are not read. Whether a request is one send of each pair of ranks, or several, was not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from fleet.errors import DescriptionError, Fault
from scenarios.observations.lines import Line, without_repeats
from scenarios.observations.observation import Interval, Observation, Reading, printed, summed

NAME = "TensorRT-LLM transfer log"
ENGINE = "trtllm"
MARKS = ("KVSendTask",)
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)"
_ROW = re.compile(
    rf"(?:^|,)\s*KVSendTask,\s*[0-9]{{1,20}},\s*[0-9]{{1,10}},\s*{_NUMBER},\s*{_NUMBER},\s*{_NUMBER},"
    rf"\s*{_NUMBER},\s*{_NUMBER},\s*{_NUMBER},"
)
_LINE = re.compile(
    rf"KVSendTask\.print_perf_info:.{{0,200}}?transfer_size={_NUMBER}\s*byte,.{{0,200}}?entry_count=[0-9.]{{1,40}},"
    rf".{{0,200}}?transfer_latency={_NUMBER}\s*ms"
)
_MS = Fraction(1, 1000)


def knows(text: str) -> bool:
    """Whether it is a row or a line of a send, whole or cut."""
    return ",KVSendTask," in text.replace(" ", "") or "KVSendTask.print_perf_info" in text


def read(lines: Sequence[Line], source: str, version: str | None) -> Reading:
    """All sends together: bytes are exact, times as they are printed. Entries may be runs of blocks: not read."""
    sizes: list[Interval] = []
    times: list[Interval] = []
    faults: list[Fault] = []
    warnings: list[str] = []
    for number, text in without_repeats(((line.number, line.text) for line in lines), warnings):
        row, told = _ROW.search(text), _LINE.search(text)
        if row is None and told is None:
            message = "the line is cut: no size, entries and latency of a send; take it out, or give all of it"
            faults.append(Fault(source=source, field="", message=message, line=number, column=1))
            continue
        size, time = (row[1], row[6]) if row is not None else told.groups()  # type: ignore[union-attr]
        sizes.append(Interval.exact(Fraction(size)))
        times.append(printed(time, _MS))
    if faults:
        raise DescriptionError(faults)
    one = Observation(
        source=source, engine=ENGINE, version=version, side="prefill", transfers=Interval.exact(len(sizes)),
        bytes=summed(sizes), seconds=summed(times), requests_unknown=True,
        lines=tuple(line.number for line in lines[:20]),
    )  # fmt: skip
    blind = (
        "requests: a request may be several sends",
        "descriptors: entries may be runs of blocks",
        "sends of metadata",
        "transfers of ranks with another log",
    )
    return Reading(format=NAME, engine=ENGINE, observations=(one,), blind=blind, warnings=tuple(warnings))
