"""`kvwaybill report`: one page, or pictures, of any documents."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import YES, command, wrong_use
from scenarios.cli.reporting import print_report

if TYPE_CHECKING:
    from scenarios.reports.making import Given


class Form(StrEnum):
    """What a report is written as."""

    html = "html"
    md = "md"
    svg = "svg"
    png = "png"
    github = "github"
    junit = "junit"
    json = "json"
    chrome_trace = "chrome-trace"


FormOption = Annotated[
    Form, typer.Option("-o", "--output", "--format", help="What is written; html, svg and png need kvwaybill[report].")
]
OutOption = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Write the report here, not to stdout.")]
FleetOption = Annotated[
    list[str] | None, typer.Option("--fleet", metavar="F", help="A plan's fleet, to draw it whole; repeatable.")
]
MOST = 64
"""Documents of one report."""


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "report")
    def report(
        console: Console,
        documents: Annotated[
            list[str],
            typer.Argument(
                metavar="DOCUMENT...",
                help="Plans, runs, comparisons, proofs, simulations and their records, sweep results; `-` reads stdin.",
            ),
        ],
        fleet: FleetOption = None,
        out: OutOption = None,
        output: FormOption = Form.html,
    ) -> int:
        """Make one report of any documents. 0 made, 2 faulty, 3 the extra [report] is missing.

        The HTML needs nothing else and fetches nothing. Verdicts in a report are those of the documents: the code
        does not judge them again.
        """
        from scenarios.reports.render import check_drawable

        if output in (Form.html, Form.svg, Form.png):
            check_drawable()
        _check_out(output, out)
        given = _given(documents)
        fleets = _fleets(fleet or [], given)
        if output is Form.png:
            _write_png(given, str(out))
        else:
            from scenarios.documents import write_text
            from scenarios.reports.making import report_text

            text = report_text(str(output), given, fleets=fleets)
            if out is None or out == "-":
                print_report(text)
            else:
                write_text(out, text)
        if out is not None and out != "-":
            console.note(f"report written to {out}")
        return YES


def _check_out(output: Form, out: str | None) -> None:
    from scenarios.cli.options import check_out

    if out is not None:
        check_out("--out", out)
    elif output is Form.png:
        wrong_use("a PNG is no text; name a file: --out FILE.png")
    if output is Form.png and out == "-":
        wrong_use("a PNG is not written to stdout; name a file: --out FILE.png")


def _given(paths: list[str]) -> list[Given]:
    from scenarios.reports.making import Given
    from scenarios.reports.read import read_report_document

    if paths.count("-") > 1:
        wrong_use("only one of the documents can come from stdin")
    if len(paths) > MOST:
        wrong_use(f"{len(paths)} documents; one report holds at most {MOST}")
    given = []
    for path in paths:
        kind, document = read_report_document(path)
        given.append(Given(kind=kind, document=document, source="<stdin>" if path == "-" else path))
    return given


def _fleets(named: list[str], given: list[Given]) -> list[Any]:
    """The fleets that topologies are drawn of: those named, and shipped ones that plans name; no other file is read."""
    from fleet.catalog import catalog_names
    from fleet.load import load_fleet

    fleets = [load_fleet(name) for name in named]
    asked = (((each.document.get("inputs") or {}).get("fleet") or {}) for each in given if each.kind == "plan")
    plain = dict.fromkeys(str(fleet.get("path")) for fleet in asked if not fleet.get("sku"))
    fleets += [load_fleet(name) for name in plain if name in catalog_names()]
    return fleets


def _write_png(given: list[Given], out: str) -> None:
    from scenarios.documents import write_data
    from scenarios.reports.render import png_of
    from scenarios.reports.specs import joined_spec

    write_data(out, png_of(joined_spec(given)))
