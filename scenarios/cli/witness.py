"""`kvwaybill witness`: any Python program on CUDA under the driver's witness, beside a plan where one is given."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import BROKE, CANNOT_SAY, NO, YES, Format, FormatOption, command

PlanOption = Annotated[str | None, typer.Option("--plan", metavar="PLAN.json", help="Set what was seen beside it.")]
Program = Annotated[list[str], typer.Argument(metavar="-- python PROGRAM ...", help="What to run.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "witness")
    def witness(console: Console, program: Program, plan: PlanOption = None, output: FormatOption = Format.text) -> int:
        """Run a program and list the copies CUDA made for it.

        By kind, bytes and devices, each beside the plan where one is given.

        0 seen (and as the plan says), 1 other than the plan, 3 nobody could look, 4 the program failed.
        """
        from scenarios.documents import read_document
        from scenarios.witness_tool import against_plan, witness_program

        planned = None if plan is None else read_document(plan, ("plan",))
        seen = witness_program(program)
        if planned is not None and seen["witness"] != "none":
            seen["plan_id"], seen["rows"] = planned["id"], against_plan(seen, planned)
        if output is Format.json:
            console.document(seen)
        else:
            console.result(_text(seen))
        if seen["program_code"]:
            console.note(f"the program ended with code {seen['program_code']}")
            return BROKE
        if seen["witness"] == "none":
            return CANNOT_SAY
        return NO if any(row["verdict"] != "match" for row in seen.get("rows", ())) else YES


def _text(seen: dict[str, Any]) -> str:
    limits = ["", "Limits", *(f"  - {limit}" for limit in seen["limits"])]
    if seen["witness"] == "none":
        return "\n".join([f"witness: none ({seen['why_not']})", *limits]) + "\n"
    lines = [f"witness: {seen['witness']}"]
    for row in seen["copies"]:
        ends = f"{_end(row, 'src')} -> {_end(row, 'dst')}"
        looks = "  looks of the program's own witness" if row.get("looks") else ""
        lines.append(f"{row['kind']:4} {ends:64} {row['copies']:>8,} copies {row['bytes']:>18,} B{looks}")
    lines.append(f"memsets: {seen['memsets']['count']:,}, {seen['memsets']['bytes']:,} B")
    for row in seen.get("rows", ()):
        told = f"predicted {row['predicted_bytes']:,} B, observed {row['observed_bytes']:,} B"
        lines.append(f"plan {row['src']} -> {row['dst']} ({row['kind']}): {told}: {row['verdict']}")
    return "\n".join([*lines, *limits]) + "\n"


def _end(row: dict[str, Any], end: str) -> str:
    if row[f"{end}_ordinal"] is None:
        return f"host ({row[f'{end}_memory']})"
    return row[f"{end}_uuid"] or f"cuda:{row[f'{end}_ordinal']}"
