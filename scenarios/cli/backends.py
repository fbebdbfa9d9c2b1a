"""`kvwaybill backends`: what can run here, or one sentence why not."""

from __future__ import annotations

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import CANNOT_SAY, YES, Format, FormatOption, command

HIDDEN = ("null",)
"""Answers everything and moves nothing: for tests, not for users."""


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "backends")
    def backends(console: Console, output: FormatOption = Format.text) -> int:
        """List what can run here, or say why not. 0 when something can, else 3."""
        from executor.discovery import find_backends, probe
        from scenarios.limits import backend_limits

        rows = []
        for name in find_backends():
            if name in HIDDEN:
                continue
            answer = probe(name)
            devices = None if isinstance(answer, str) else list(answer)
            rows.append({"name": name, "devices": devices, "why_not": answer if isinstance(answer, str) else None})
        document = {"schema": "kvwaybill/backends/1", "backends": rows, "limits": backend_limits()}
        if output is Format.json:
            console.document(document)
        else:
            from scenarios.report import backends_text

            console.result(backends_text(document, **console.look))
        return YES if any(row["devices"] for row in rows) else CANNOT_SAY
