"""One call from documents to a finished report: what the command `report` and every `-o` of a report do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scenarios.documents import pretty
from scenarios.reports.figures import figures_of
from scenarios.reports.gates import Suite, suites_of
from scenarios.reports.github import github_text
from scenarios.reports.junit import junit_text
from scenarios.reports.markdown import markdown_text
from scenarios.reports.sections import page_of
from scenarios.reports.trace import trace_text

Document = dict[str, Any]
WORDS = ("md", "github", "junit")
"""Formats that need nothing but what is installed always."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """A document, its kind (`scenarios.reports.read`), and how it was named."""

    kind: str
    document: Document
    source: str


def report_text(output: str, given: Sequence[Given], *, fleets: Sequence[Any] = ()) -> str:
    """The report as text: `md`, `github`, `junit`, `json`, `chrome-trace`, `html`, `svg`.

    `fleets` are those that topologies may be drawn of; plans name theirs by digest. InconclusiveError where a picture
    cannot be drawn here.
    """
    if output == "md":
        return markdown_text([page_of(each.kind, each.document, each.source) for each in given])
    if output == "chrome-trace":
        return trace_text([(each.kind, each.document, each.source) for each in given])
    if output == "json":
        return pretty(report_document(given))
    if output in WORDS:
        suites = [suite for each in given for suite in suites_of(each.kind, each.document, each.source)]
        return suites_text(output, suites)
    return _drawn(output, given, fleets)


def suites_text(output: str, suites: Sequence[Suite]) -> str:
    """Suites as `github` or `junit`."""
    return github_text(suites) if output == "github" else junit_text(suites)


def report_document(given: Sequence[Given]) -> Document:
    """What the report says, as data: `kvwaybill/report/1`, with the numbers of every picture."""
    pages = [page_of(each.kind, each.document, each.source) for each in given]
    return {
        "schema": "kvwaybill/report/1",
        "documents": [
            asdict(page) | {"kind": each.kind, "figures": [asdict(f) for f in figures_of(each.kind, each.document)]}
            for each, page in zip(given, pages, strict=True)
        ],
        "limits": list(dict.fromkeys(limit for page in pages for limit in page.limits)),
    }


def _drawn(output: str, given: Sequence[Given], fleets: Sequence[Any]) -> str:
    from scenarios.reports.html import html_text
    from scenarios.reports.render import svg_of
    from scenarios.reports.specs import joined_spec

    if output == "svg":
        return svg_of(joined_spec(given))
    return html_text(given, fleets)
