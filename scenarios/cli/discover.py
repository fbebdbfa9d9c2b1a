"""`kvwaybill fleet discover`: this machine as a fleet file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import YES, command

LIMITS = (
    "What the system and its drivers report. No copy was timed: rates are those of link speeds and of the catalog.",
)


class FileFormat(StrEnum):
    """How the fleet is written; `text` is another word for yaml."""

    yaml = "yaml"
    json = "json"
    text = "text"


OutputOption = Annotated[
    FileFormat, typer.Option("-o", "--output", "--format", help="How the fleet is written.", show_default=True)
]
OutOption = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the fleet here, not to stdout.")]
SerialsOption = Annotated[
    bool, typer.Option("--with-serials", help="Also serial numbers, host name and hardware addresses, as remarks.")
]
RootOption = Annotated[
    str, typer.Option("--root", metavar="DIR", help="Read proc and sys below DIR, a copy of another machine's.")
]


def register(group: typer.Typer) -> None:
    """Adds the command to the group `fleet`."""

    @command(group, "discover")
    def discover_(
        console: Console,
        out: OutOption = None,
        output: OutputOption = FileFormat.yaml,
        with_serials: SerialsOption = False,
        root: RootOption = "/",
    ) -> int:
        """Describe this machine as a fleet file. 0 described, 2 wrong use."""
        from fleet.discovery.discover import discover
        from scenarios.documents import check_writable, pretty, write_text

        if out is not None:
            check_writable(out)
        _check_root(root)
        found = discover(root, with_serials=with_serials)
        for note in found.notes:
            console.note(f"note: {note}")
        for warning in found.fleet.warnings:
            console.warn(warning)
        text = pretty(_document(found)) if output is FileFormat.json else found.text()
        write_text("-" if out is None else out, text)
        if out is not None:
            console.note(f"fleet {found.fleet.name} written to {out}")
        return YES


def _check_root(root: str) -> None:
    """A root without proc and sys would be a machine that tells nothing: refused."""
    import os

    if not any(os.path.isdir(os.path.join(root, name)) for name in ("proc", "sys")):
        from fleet.errors import DescriptionError
        from fleet.yaml_source import printable

        raise DescriptionError.at("--root", "", f"{printable(root, 200) or 'an empty name'} holds neither proc nor sys")


def _document(found: Any) -> dict[str, Any]:
    """The fleet document with the notes, and with the serial numbers where they were asked for."""
    from fleet.render import fleet_document

    document = fleet_document(found.fleet) | {"notes": list(found.notes), "limits": list(LIMITS)}
    return document if found.serials is None else document | {"serials": found.serials}
