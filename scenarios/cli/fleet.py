"""`kvwaybill fleet check|catalog|schema`: what a fleet file says."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.errors import DescriptionError
from scenarios.cli import discover, fleet_import, fleet_show
from scenarios.cli.console import Console
from scenarios.cli.frame import YES, Format, FormatOption, command, new_app
from scenarios.cli.kinds import refuse_other_kinds
from scenarios.cli.options import StrictOption

if TYPE_CHECKING:
    from fleet.errors import Fault
    from fleet.machine import Fleet

FleetArgument = Annotated[str, typer.Argument(metavar="FLEET", help="Fleet file, shipped name, or `-` for stdin.")]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = new_app("Check, show and list fleet files.")
    app.add_typer(group, name="fleet")
    fleet_import.register(group)
    fleet_show.register(group)
    discover.register(group)

    @command(group, "check")
    def check(
        console: Console, fleet: FleetArgument, strict: StrictOption = False, output: FormatOption = Format.text
    ) -> int:
        """Check a fleet file; every fault is told at once. 0 valid, 2 faulty."""
        from fleet.load import load_fleet
        from scenarios.limits import fleet_limits
        from scenarios.words import with_limits

        refuse_other_kinds(fleet, ("fleet",), "fleet check takes a fleet")
        try:
            loaded = load_fleet(fleet, strict=strict)
        except DescriptionError as error:
            if output is Format.json:
                console.document(_checked("faulty", faults=[_fault(fault) for fault in error.faults], warnings=[]))
            raise
        for warning in loaded.warnings:
            console.warn(warning)
        if output is Format.json:
            named = {"name": loaded.name, "digest": loaded.digest}
            console.document(_checked("valid", **named, faults=[], warnings=list(loaded.warnings)))
        else:
            text = f"valid: {loaded.name}: {_counts(loaded)}; digest {loaded.digest[:12]}"
            console.result(with_limits(text, fleet_limits(), **console.look))
        return YES

    @command(group, "catalog")
    def catalog(
        console: Console,
        word: Annotated[str | None, typer.Argument(metavar="WORD", help="Only what holds this word.")] = None,
        output: FormatOption = Format.text,
    ) -> int:
        """List the shipped fleets and SKUs, or those that hold a word."""
        from fleet.catalog.listing import listed
        from scenarios.limits import fleet_limits

        fleets, skus = listed(word)
        if not fleets and not skus:
            console.note(f"nothing that is shipped holds {word}; without a word everything is listed")
        document = {"schema": "kvwaybill/fleet-catalog/1", "fleets": fleets, "skus": skus, "limits": fleet_limits()}
        if output is Format.json:
            console.document(document)
        else:
            from scenarios.fleet_text import catalog_text

            console.result(catalog_text(document, **console.look))
        return YES

    @command(group, "schema")
    def schema(console: Console, output: FormatOption = Format.json) -> int:
        """Print the JSON Schema of fleet files (JSON in either format)."""
        from fleet.schema import fleet_schema

        console.document(fleet_schema())
        return YES


def _counts(fleet: Fleet) -> str:
    from scenarios.words import plural

    parts = (("host", len(fleet.hosts)), ("device", len(fleet.devices)), ("one-way link", len(fleet.links)))
    return ", ".join(f"{count} {plural(count, what)}" for what, count in parts)


def _fault(fault: Fault) -> dict[str, Any]:
    """A fault as data; without the code of Vx where it has none."""
    return {name: value for name, value in asdict(fault).items() if name != "vx_code" or value is not None}


def _checked(verdict: str, **found: Any) -> dict[str, Any]:
    """`kvwaybill/fleet-check/1`. Faults stand on stderr in words as well, and their code is 2 in either format."""
    from scenarios.limits import fleet_limits

    return {"schema": "kvwaybill/fleet-check/1", "verdict": verdict, **found, "limits": fleet_limits()}
