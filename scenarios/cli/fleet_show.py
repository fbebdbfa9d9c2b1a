"""`kvwaybill fleet show`: a fleet as text, picture or data, with the handoff of a plan marked in it."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import YES, command, wrong_use
from scenarios.cli.kinds import refuse_other_kinds

if TYPE_CHECKING:
    from fleet.machine import Fleet

Document = dict[str, Any]


class Picture(StrEnum):
    """How a fleet is shown."""

    text = "text"
    json = "json"
    svg = "svg"
    mermaid = "mermaid"


FleetArgument = Annotated[
    str, typer.Argument(metavar="FLEET", help="Fleet file, shipped name, text of another tool, or `-` for stdin.")
]
OutputOption = Annotated[
    Picture,
    typer.Option("-o", "--output", "--format", help="Text, a picture, or data with the places of the picture."),
]
PlanOption = Annotated[
    str | None, typer.Option("--plan", metavar="PLAN.json", help="Mark where this plan's phases run, and its handoff.")
]
OutOption = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the result here, not to stdout.")]
SkuOption = Annotated[
    str | None, typer.Option("--sku", metavar="S", help="The card of a fleet that names none, e.g. a topology matrix.")
]


def register(group: typer.Typer) -> None:
    """Adds the command to the group `fleet`."""

    @command(group, "show")
    def show(
        console: Console,
        fleet: FleetArgument,
        plan: PlanOption = None,
        sku: SkuOption = None,
        out: OutOption = None,
        output: OutputOption = Picture.text,
    ) -> int:
        """Show or draw what a fleet file says. 0 shown, 2 faulty."""
        from scenarios.documents import check_writable, read_document, write_text

        refuse_other_kinds(fleet, ("fleet",), "fleet show takes a fleet")
        if plan is not None:
            refuse_other_kinds(plan, ("plan",), "--plan takes a plan")
            if plan == fleet == "-":
                wrong_use("only one of FLEET and --plan can come from stdin")
        if out is not None:
            check_writable(out)
        made = None if plan is None else read_document(plan, ("plan",))
        loaded = _loaded(fleet, sku, made)
        if output is Picture.text and out is None:
            console.result(_text(loaded, made, plan, **console.look))
            return YES
        write_text("-" if out is None else out, _written(output, loaded, made, plan))
        if out is not None:
            console.note(f"fleet {loaded.name} drawn to {out}")
        return YES


def _loaded(name: str, sku: str | None, plan: Document | None) -> Fleet:
    """The fleet as the plan had it: with its card where no --sku is given, and with the links that it assumed."""
    from fleet.host_return import assume_host_return
    from fleet.load import find_text, is_native, load_fleet

    asked = ((plan or {}).get("inputs") or {}).get("fleet") or {}
    text = None
    if sku is None and isinstance(asked.get("sku"), str):
        text, _ = find_text(name)
        sku = None if is_native(text) else asked["sku"]
    fleet = load_fleet(name, text=text, sku=sku)
    return assume_host_return(fleet) if asked.get("assume_host_return") is True else fleet


def _written(output: Picture, fleet: Fleet, plan: Document | None, source: str | None) -> str:
    if output is Picture.text:
        return _text(fleet, plan, source)
    from scenarios import pictures

    scene = pictures.scene_of(fleet, plan, source or "plan")
    if output is Picture.mermaid:
        return pictures.mermaid_text(scene)
    placed = pictures.draw(scene)
    if output is Picture.svg:
        return pictures.svg_text(placed)
    from scenarios.documents import pretty

    return pretty(_document(fleet) | {"picture": pictures.picture_document(placed)})


def _document(fleet: Fleet) -> Document:
    from fleet.render import fleet_document
    from scenarios.limits import fleet_limits

    return fleet_document(fleet) | {"limits": fleet_limits()}


def _text(fleet: Fleet, plan: Document | None, source: str | None, **look: Any) -> str:
    from scenarios.fleet_matrix import shown_part
    from scenarios.fleet_text import fleet_text

    notes: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()
    if plan is not None:
        from scenarios.pictures.handoff import handoff_of

        handoff = handoff_of(plan, fleet, source or "plan")
        notes, marked = handoff.notes, (*handoff.ranks["prefill"], *handoff.ranks["decode"], *sorted(handoff.passed))
    return fleet_text(_document(fleet), shown_part(fleet, marked), notes, **look)
