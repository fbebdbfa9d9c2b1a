"""`kvwaybill scenario list|show|schema`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import YES, Format, FormatOption, command, new_app
from scenarios.cli.kinds import refuse_other_kinds


class Kind(StrEnum):
    """Files of which a JSON Schema is printed."""

    scenario = "scenario"
    simulation = "simulation"
    sweep = "sweep"


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = new_app("List, show and check scenario files.")
    app.add_typer(group, name="scenario")
    _register_list(group)
    _register_show(group)
    _register_schema(group)


def _print(console: Console, output: Format, document: dict[str, Any], text: str) -> int:
    if output is Format.json:
        console.document(document)
    else:
        console.result(text)
    return YES


def _register_list(group: typer.Typer) -> None:
    @command(group, "list")
    def list_(console: Console, output: FormatOption = Format.text) -> int:
        """List the shipped scenarios."""
        from scenarios.limits import scenario_limits
        from scenarios.report import scenarios_text
        from scenarios.scenario import scenario_rows

        limits = scenario_limits()
        document = {"schema": "kvwaybill/scenarios/1", "scenarios": scenario_rows(), "limits": limits}
        return _print(console, output, document, scenarios_text(document, **console.look))


def _register_show(group: typer.Typer) -> None:
    @command(group, "show")
    def show(
        console: Console,
        scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="A file, or the name of a shipped one.")],
        output: FormatOption = Format.text,
    ) -> int:
        """Check a scenario and show what it asks for. 0 valid, 2 faulty: every fault is told."""
        from dataclasses import asdict

        from scenarios.limits import scenario_limits
        from scenarios.report import scenario_text_of
        from scenarios.scenario import load_scenario

        refuse_other_kinds(scenario, ("scenario",), "scenario show takes a scenario")
        hidden = ("places", "given")
        loaded = asdict(load_scenario(scenario)).items()
        asked = {key: value for key, value in loaded if value is not None and key not in hidden}
        document = {"schema": "kvwaybill/scenario-report/1", "asked": asked, "limits": scenario_limits()}
        return _print(console, output, document, scenario_text_of(document, **console.look))


def _register_schema(group: typer.Typer) -> None:
    @command(group, "schema")
    def schema(
        console: Console,
        of: Annotated[Kind, typer.Option("--of", help="Of which files.")] = Kind.scenario,
        output: FormatOption = Format.json,
    ) -> int:
        """Print the JSON Schema of scenario files, or --of others. JSON in either format."""
        if of is Kind.scenario:
            from scenarios.scenario import scenario_schema as asked
        elif of is Kind.simulation:
            from scenarios.simulation.schema import simulation_schema as asked
        else:
            from scenarios.sweeping.schema import sweep_schema as asked
        console.document(asked())
        return YES
