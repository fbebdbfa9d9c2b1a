"""Where a command's words go: results to stdout, everything else to stderr; colour only where somebody sees it."""

from __future__ import annotations

import os
import sys
from typing import Any

Document = dict[str, Any]


class Console:
    """Handed to each command by the frame."""

    def __init__(self, *, quiet: bool = False, no_color: bool = False) -> None:
        self.quiet = quiet
        # NO_COLOR counts when it is set to anything but nothing (no-color.org).
        self.color = not no_color and not os.environ.get("NO_COLOR") and sys.stdout.isatty()

    def result(self, text: str) -> None:
        """A finished result, to stdout."""
        sys.stdout.write(text if text.endswith("\n") else text + "\n")

    def document(self, document: Document) -> None:
        """A result as JSON, to stdout."""
        from scenarios.documents import pretty

        sys.stdout.write(pretty(document))

    def note(self, text: str) -> None:
        """Progress or a remark, to stderr; `-q` silences it."""
        if not self.quiet:
            sys.stderr.write(text + "\n")

    def warn(self, text: str) -> None:
        """A warning, to stderr, also with `-q`."""
        sys.stderr.write(f"warning: {text}\n")
