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
        from scenarios.limits import fleet_limits
        from scenarios.report import with_limits

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
            console.document(document | {"warnings": list(loaded.warnings), "limits": fleet_limits()})
        else:
            console.result(with_limits(f"valid: {loaded.name}: {counts}; digest {loaded.digest[:12]}", fleet_limits()))
        return YES

    @command(group, "show")
    def show(console: Console, fleet: FleetArgument, output: FormatOption = Format.text) -> int:
        """Devices, memories and links with where each figure comes from."""
        from fleet.load import load_fleet
        from fleet.render import fleet_document
        from scenarios.limits import fleet_limits

        document = fleet_document(load_fleet(fleet)) | {"limits": fleet_limits()}
        if output is Format.json:
            console.document(document)
        else:
            from scenarios.fleet_text import fleet_text
            from scenarios.report import with_limits

            console.result(with_limits(fleet_text(document, color=console.color), document["limits"]))
        return YES

    @command(group, "catalog")
    def catalog(console: Console, output: FormatOption = Format.text) -> int:
        """The shipped fleets."""
        from fleet.catalog import catalog_names
        from fleet.load import load_fleet
        from scenarios.limits import fleet_limits
        from scenarios.report import with_limits

        fleets = [load_fleet(name) for name in catalog_names()]
        if output is Format.json:
            rows = [{"name": f.name, "label": f.label, "digest": f.digest} for f in fleets]
            console.document({"schema": "kvwaybill/fleet-catalog/1", "fleets": rows, "limits": fleet_limits()})
        else:
            width = max(len(f.name) for f in fleets)
            lines = [f"{f.name:<{width}}  {f.label or ''}".rstrip() for f in fleets]
            console.result(with_limits("\n".join(lines), fleet_limits()))
        return YES

    @command(group, "schema")
    def schema(console: Console, output: FormatOption = Format.json) -> int:
        """The JSON Schema of fleet files: JSON in either format."""
        from fleet.schema import fleet_schema

        dialect = "https://json-schema.org/draft/2020-12/schema"
        console.document({"$schema": dialect} | fleet_schema())
        return YES
