"""What the benchmarks say first, the machine that they ran on, and their tables, printed and written."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the repository is no package

from executor.processor import processor_name  # noqa: E402

BOUNDED = ("| what | median | bound |", "|---|---|---|")
"""The head of a table of medians beside what they must not exceed."""


def machine(load: float | None = None) -> str:
    """Processor, cores, Python and date; and the load before the start, where it is told."""
    told = (
        f"{processor_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')}"
    )
    return told if load is None else f"{told}, load average {load:.1f} before the start"


def show(lines: Iterable[str], out: Path | None) -> None:
    """Print the lines, and write them to a file where one is named."""
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text + "\n")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
