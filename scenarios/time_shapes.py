"""The shape of a plan's `time`. A plan from anybody may hold anything; what passes here can be reckoned with."""

from __future__ import annotations

from typing import Any

from scenarios.shapes import Sink, choice, flag, integer, listing, number, record, text

_MOST_SECONDS = 1e60
_MOST_WORK = 2**200
"""Operations and bytes of a phase: products of bounded counts, far above any 64-bit figure."""
_MOST = 100_000


def _seconds(value: Any, path: str, sink: Sink) -> None:
    number(null=True)(value, path, sink)
    if type(value) in (int, float) and value > _MOST_SECONDS:
        sink.add(path, f"more than {_MOST_SECONDS:g} s is no time")


def _share(value: Any, path: str, sink: Sink) -> None:
    number()(value, path, sink)
    if type(value) in (int, float) and not 1e-12 <= value <= 1:
        sink.add(path, "lies outside 0 < share <= 1")


def _known_seconds(value: Any, path: str, sink: Sink) -> None:
    number()(value, path, sink)
    _seconds(value, path, sink)


_piece = record(
    {
        "name": text(64), "numbers": text(16), "flops": integer(0, _MOST_WORK), "bytes": integer(0, _MOST_WORK),
        "times": integer(1), "seconds": _known_seconds, "bound": choice("compute", "memory"),
    }
)  # fmt: skip
_compute = record({"device": text(64), "seconds": _seconds, "pieces": listing(_piece, most=_MOST)})
_phase = record(
    {
        "seconds": _seconds, "calls": integer(), "chunk": integer(1), "compute": listing(_compute, most=_MOST),
        "rows_s": _seconds, "sums_s": _seconds,
    }
)  # fmt: skip
_handoff = record(
    {"seconds": _seconds, "lower_bound": flag()},
    {
        "staging": choice("sequential", "pipelined"),
        "pipelined_s": _seconds,
        "sequential_s": _seconds,
        "within_memory": flag(),
    },
)
_used = record(
    {
        "device": text(64), "what": text(16), "per_second": integer(1), "rates": choice("declared", "observed"),
        "provenance": text(16), "source": text(), "verified": flag(), "share": _share,
        "share_provenance": text(16), "share_source": text(),
    }
)  # fmt: skip

TIME = record(
    {},
    {
        "ttft_s": _seconds, "tpot_s": _seconds, "basis": text(), "rates": choice("declared", "observed"),
        "error": number(null=True), "ttft_lower_bound": flag(), "tpot_lower_bound": flag(), "policy": flag(),
        "unpriced": listing(text(), most=_MOST), "prefill": _phase, "handoff": _handoff, "decode": _phase,
        "used": listing(_used, most=_MOST), "left_out": text(),
    },
    null=True,
)  # fmt: skip
