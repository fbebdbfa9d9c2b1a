"""How far a sweep is and how long it will take, on stderr, where a terminal is looking."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from scenarios.sweeping.run import Tick

if TYPE_CHECKING:
    from scenarios.cli.console import Console


@contextmanager
def progress(console: Console) -> Iterator[Tick]:
    """A function to tell (answered, of). It shows a bar with the time left; nothing with `-q` or without a terminal."""
    if console.quiet or not sys.stderr.isatty():
        yield lambda answered, of: None
        return
    from rich.console import Console as Screen
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("sweep"), BarColumn(), MofNCompleteColumn(), TextColumn("cases, left"),
        TimeRemainingColumn(elapsed_when_finished=True), TextColumn("after"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Screen(stderr=True, no_color=not console.color), transient=True) as bar:
        task = bar.add_task("sweep", total=None)
        yield lambda answered, of: bar.update(task, completed=answered, total=of)
