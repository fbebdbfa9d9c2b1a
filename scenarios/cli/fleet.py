"""`kvwaybill fleet check|show|catalog|schema`: what a fleet file says."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import YES, Format, FormatOption, command, new_app

FleetArgument = Annotated[str, typer.Argument(metavar="FLEET", help="Fleet file, shipped name, or `-` for stdin.")]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = new_app("Fleet descriptions: check them, show them, list the shipped ones, print the schema.")
    app.add_typer(group, name="fleet")

    @command(group, "check")
    def check(console: Console, fleet: FleetArgument, output: FormatOption = Format.text) -> int:
        """Every fault of a fleet file at once. 0 valid, 2 faulty."""
        from fleet.load import load_fleet

        loaded = load_fleet(fleet)
        for warning in loaded.warnings:
            console.warn(warning)
        counts = f"{len(loaded.hosts)} hosts, {len(loaded.devices)} devices, {len(loaded.links)} one-way links"
        if output is Format.json:
            document = {
                "schema": "kvwaybill/fleet-check/1",
                "verdict": "valid",
                "name": loaded.name,
                "digest": loaded.digest,
            }
            console.document(document | {"warnings": list(loaded.warnings), "limits": _limits()})
        else:
            console.result(f"valid: {loaded.name}: {counts}; digest {loaded.digest[:12]}")
        return YES

    @command(group, "show")
    def show(console: Console, fleet: FleetArgument, output: FormatOption = Format.text) -> int:
        """Devices, memories and links with where each figure comes from."""
        from fleet.load import load_fleet
        from fleet.render import fleet_document

        document = fleet_document(load_fleet(fleet))
        if output is Format.json:
            console.document(document)
        else:
            from scenarios.fleet_text import fleet_text

            console.result(fleet_text(document, color=console.color))
        return YES

    @command(group, "catalog")
    def catalog(console: Console, output: FormatOption = Format.text) -> int:
        """The shipped fleets."""
        from fleet.catalog import catalog_names
        from fleet.load import load_fleet

        fleets = [load_fleet(name) for name in catalog_names()]
        if output is Format.json:
            rows = [{"name": f.name, "label": f.label, "digest": f.digest} for f in fleets]
            console.document({"schema": "kvwaybill/fleet-catalog/1", "fleets": rows, "limits": _limits()})
        else:
            width = max(len(f.name) for f in fleets)
            console.result("\n".join(f"{f.name:<{width}}  {f.label or ''}" for f in fleets))
        return YES

    @command(group, "schema")
    def schema(console: Console) -> int:
        """The JSON Schema of fleet files."""
        from fleet.schema import fleet_schema

        console.document(fleet_schema())
        return YES


def _limits() -> list[str]:
    return ["A fleet file says what is declared; nothing in it was probed or measured here."]
