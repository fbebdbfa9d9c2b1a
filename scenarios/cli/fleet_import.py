"""`kvwaybill fleet import`: a text that another tool printed as a fleet file, or laid over one."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import YES, Format, FormatOption, command

FromOption = Annotated[str | None, typer.Option("--from", metavar="FORMAT", help="Format; default: by content.")]
SkuOption = Annotated[
    str | None, typer.Option("--sku", metavar="NAME", help="The card that the text leaves out (fleet catalog).")
]
OntoOption = Annotated[
    str | None, typer.Option("--onto", metavar="FLEET", help="Lay measurements over this fleet, as observed figures.")
]
OutOption = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the result here, not to stdout.")]


def register(group: typer.Typer) -> None:
    """Adds the command to the group `fleet`."""

    @command(group, "import")
    def import_(
        console: Console,
        file: Annotated[str, typer.Argument(metavar="FILE", help="Text of another tool, or `-` for stdin.")],
        format: FromOption = None,
        sku: SkuOption = None,
        onto: OntoOption = None,
        out: OutOption = None,
        output: FormatOption = Format.text,
    ) -> int:
        """Turn topology or bandwidth output into a fleet file. 0 imported, 2 faulty."""
        from fleet.importing import import_fleet
        from fleet.render import fleet_document
        from scenarios.documents import check_writable, pretty, write_text

        if out is not None:
            check_writable(out)
        imported = import_fleet(file, format=format, sku=sku, onto=onto)
        for warning in imported.warnings:
            console.warn(warning)
        text = imported.text if output is Format.text else pretty(_document(fleet_document(imported.fleet)))
        write_text("-" if out is None else out, text)
        if out is not None:
            console.note(f"fleet {imported.fleet.name} written to {out}")
        return YES


def _document(document: dict[str, object]) -> dict[str, object]:
    from scenarios.limits import fleet_limits

    return document | {"limits": fleet_limits()}
