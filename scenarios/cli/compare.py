"""`kvwaybill compare A B`."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import Format, FormatOption, command, exit_code, wrong_use


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "compare")
    def compare(
        console: Console,
        a: Annotated[str, typer.Argument(metavar="A", help="A plan, or a run. `-` reads stdin.")],
        b: Annotated[str, typer.Argument(metavar="B", help="A run of that plan, another plan, or another run.")],
        output: FormatOption = Format.text,
    ) -> int:
        """Predicted beside observed: plan with run, plan with plan, run with run. 0 equal, 1 different, 3 unknown."""
        from scenarios import compare as comparing
        from scenarios.documents import read_document

        if a == b == "-":
            wrong_use("only one of the two documents can come from stdin")
        kinds = ("plan", "run")
        document = comparing.compare(read_document(a, kinds), read_document(b, kinds))
        if output is Format.json:
            console.document(document)
        else:
            from scenarios.report import comparison_text

            console.result(comparison_text(document, color=console.color))
        return exit_code(document["verdict"])
