"""Workers of several ranks as text: who holds what. Takes a finished plan and adds nothing to it."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from scenarios.table import Paint, Table
from scenarios.words import time_words

Document = dict[str, Any]


def workers_block(workers: Document, paint: Paint) -> list[str]:
    """A line a rank: device, stage, layers, KV heads, weights; nothing for single devices."""
    if not workers:
        return []
    table = Table("Workers", "device", "stage", "rank", "layers", ">KV heads", ">weights")
    for phase in ("prefill", "decode"):
        for rank in workers[phase]["ranks"]:
            first, end = rank["layers"]["first"], rank["layers"]["end"]
            heads = ", ".join(str(count) for count in rank["kv_heads"]) or "-"
            table.add(
                phase, rank["device"], str(rank["stage"]), str(rank["rank"]), f"{first}..{end - 1}", heads,
                format_bytes(rank["weights_bytes"]),
            )  # fmt: skip
    lines = table.lines(paint)
    for phase in ("prefill", "decode"):
        for kind, copies in workers[phase]["copies"].items():
            if copies > 1:
                lines += paint.fold(f"  {phase}: caches of {kind} layers lie on {copies} ranks each, whole", 4)
    together = workers.get("handoff_together_s")
    if together is not None:
        words = f"  the slowest pair of ranks takes {time_words(together)}, unscored; all at the same time take no less"
        lines += paint.fold(words, 4)
    return lines
