"""`-o md|html|svg|github|junit` of the commands whose result a report can be made of."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import wrong_use


class Report(StrEnum):
    """How a result is printed: as everywhere, or as a report."""

    text = "text"
    json = "json"
    md = "md"
    html = "html"
    svg = "svg"
    github = "github"
    junit = "junit"
    chrome_trace = "chrome-trace"


ReportOption = Annotated[
    Report,
    typer.Option("-o", "--output", "--format", help="How the result is printed; html and svg need kvwaybill[report]."),
]


def check_report(output: Report, *, timed: bool = False) -> None:
    """Raises InconclusiveError now, before work is done, where a picture is asked for that cannot be drawn here.

    `timed`: the result has a timeline; else a trace of it is wrong usage.
    """
    if output is Report.chrome_trace and not timed:
        wrong_use("-o chrome-trace: a trace is of a run, a plan or a simulation; this result has no timeline")
    if output in (Report.html, Report.svg):
        from scenarios.reports.render import check_drawable

        check_drawable()


def show_report(console: Console, output: Report, document: dict[str, Any], source: str) -> bool:
    """Prints `document` as a report and says so; False where text or JSON is wanted, which the command prints."""
    if output in (Report.text, Report.json):
        return False
    from scenarios.reports.making import Given, report_text
    from scenarios.reports.read import kind_of

    print_report(report_text(str(output), [Given(kind=kind_of(document), document=document, source=source)]))
    return True


def show_refusal(output: Report, source: str, verdict: str, words: str) -> bool:
    """Prints a refusal that is words and no document, where something gates on it; False where the command prints."""
    from scenarios.reports.gates import Gate, Suite, located, result_of

    if output not in (Report.github, Report.junit):
        return False
    from scenarios.reports.making import suites_text

    file, line = located(words.strip())
    gate = Gate(name="verdict", result=result_of(verdict), detail=words.strip(), file=file, line=line)
    print_report(suites_text(str(output), [Suite(name=f"{verdict}: {source}", gates=(gate,))]))
    return True


def print_report(text: str) -> None:
    """A finished report to stdout. It escapes by the rules of its own format, so nothing is escaped a second time."""
    import sys

    sys.stdout.write(text)
