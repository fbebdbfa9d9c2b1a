"""Where a command's words go: results to stdout, everything else to stderr; colour only where somebody sees it."""

from __future__ import annotations

import os
import sys
from typing import Any

from scenarios.cli.streams import fit, tell

Document = dict[str, Any]


LEAST_COLUMNS = 40
"""A narrower terminal is written to as if it had these: broken any further, text can no longer be read."""


def _columns() -> int:
    from shutil import get_terminal_size

    return max(LEAST_COLUMNS, get_terminal_size().columns)


class Console:
    """Handed to each command by the frame."""

    def __init__(self, *, quiet: bool = False, no_color: bool = False) -> None:
        self.quiet = quiet
        # NO_COLOR counts when it is set to anything but nothing (no-color.org).
        self.color = not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()

    @property
    def look(self) -> dict[str, Any]:
        """How a text is laid out here: colour, and the columns of the terminal; piped text is never broken."""
        return {"color": self.color, "width": _columns() if sys.stdout.isatty() else None}

    def result(self, text: str) -> None:
        """A finished result, to stdout."""
        sys.stdout.write(fit(text if text.endswith("\n") else text + "\n", color=self.color))

    def document(self, document: Document) -> None:
        """A result as JSON, to stdout."""
        from scenarios.documents import pretty

        sys.stdout.write(pretty(document))

    def note(self, text: str) -> None:
        """Progress or a remark, to stderr; `-q` silences it."""
        if not self.quiet:
            tell(text)

    def warn(self, text: str) -> None:
        """A warning, to stderr, also with `-q`."""
        tell(f"warning: {text}")
