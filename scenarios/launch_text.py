"""What launch lines should make an engine print, as text. Takes a finished plan and adds nothing to it."""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes
from scenarios.table import Paint, safe

Document = dict[str, Any]


def launch_block(launches: list[Document], paint: Paint) -> list[str]:
    """For each command what its log should say, or the bounds and what is unknown; nothing without launch lines."""
    lines: list[str] = []
    for launch in launches:
        role = f" ({launch['role']})" if launch.get("role") else ""
        lines += paint.fold(safe(f"Engine      {launch['server']}{role}, line {launch['line']}, should print"), 12)
        lines += [line for told in launch["prints"] for line in paint.fold(safe(f"  {told}"), 4)]
        if not launch["prints"]:
            lines += _bounds(launch, paint)
        lines += [line for words in launch["unknown"] for line in paint.fold(safe(f"  unknown: {words}"), 4)]
    return lines


def _bounds(launch: Document, paint: Paint) -> list[str]:
    memory, tokens, turns = launch["available_bytes"], launch["pool_tokens"], launch["max_concurrency"]
    told = (
        f"  between {_count(tokens['least'])} and {_count(tokens['most'])} tokens, {turns['least'] or 'unknown'}x to"
        f" {turns['most'] or 'unknown'}x for {launch['request_tokens']:,} tokens per request; available memory"
        f" {_size(memory['least'])} to {_size(memory['most'])} ({memory['origin']})"
    )
    return paint.fold(safe(told), 4)


def _count(value: int | None) -> str:
    return "unknown" if value is None else f"{value:,}"


def _size(value: int | None) -> str:
    return "unknown" if value is None else format_bytes(value)
