"""`kvwaybill compare A B`."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Annotated, Any

import typer

from fleet.errors import DescriptionError
from scenarios.cli.console import Console
from scenarios.cli.frame import command, exit_code, wrong_use
from scenarios.cli.kinds import kind_in, refuse_other_kinds
from scenarios.cli.reporting import Report, ReportOption, check_report, show_report


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "compare")
    def compare(
        console: Console,
        a: Annotated[str, typer.Argument(metavar="A", help="A plan, or a run. `-` reads stdin.")],
        b: Annotated[
            str,
            typer.Argument(
                metavar="B",
                help="A run of that plan, another plan or run, or what an engine printed: log, metrics, CSV.",
            ),
        ],
        output: ReportOption = Report.text,
        version: Annotated[
            str | None, typer.Option("--engine-version", metavar="V", help="Of an observation: the engine's version.")
        ] = None,
        requests: Annotated[
            int | None,
            typer.Option("--requests", metavar="N", min=1, help="Of an observation: requests that it covers."),
        ] = None,
    ) -> int:
        """Set a plan beside its run or an observation, or two of a kind. 0 equal, 1 different, 3 cannot say.

        An observation (vLLM, SGLang, NIXL, Mooncake, TensorRT-LLM, Nsight Systems) is recognised by content.
        """
        from scenarios import compare as comparing

        check_report(output)
        if a == b == "-":
            wrong_use("only one of the two documents can come from stdin")
        if (document := _observed(a, b, requests, version)) is not None:
            return _shown(console, output, document)
        if version is not None or requests is not None:
            wrong_use("--engine-version and --requests are of an observation: B is a document of kvwaybill")
        kinds = ("plan", "run")
        for path in (a, b):
            refuse_other_kinds(path, kinds, "compare takes plans and runs")
        first, second = _document(a, kinds), _document(b, kinds)
        document = comparing.compare(first, second)
        if document["compared"] == ["plan", "plan"]:
            from scenarios.reports.changes import plan_changes

            document["changes"] = plan_changes(first, second)
        document["documents"] = [_named(a, first), _named(b, second)]
        return _shown(console, output, document)


def _shown(console: Console, output: Report, document: dict[str, Any]) -> int:
    if output is Report.json:
        console.document(document)
    elif not show_report(console, output, document, "compare"):
        from scenarios.report_run import comparison_text

        console.result(comparison_text(document, **console.look))
    return exit_code(document["verdict"])


def _document(path: str, kinds: tuple[str, ...]) -> dict[str, Any]:
    """A document, also out of a pipe. What an engine printed is known by a look at its beginning, which a pipe gives
    once and stdin alone gives back: DescriptionError says so.
    """
    from scenarios.documents import read_document

    try:
        return read_document(path, kinds)
    except DescriptionError as error:
        if "not JSON" not in str(error) or path == "-" or not pathlib.Path(path).is_fifo():
            raise
        told = "is a pipe and no document; what an engine printed comes from stdin: ... | kvwaybill compare PLAN -"
        raise DescriptionError.at(path, "", told) from error


def _observed(a: str, b: str, requests: int | None, version: str | None) -> dict[str, Any] | None:
    """The comparison of a plan with an observation; None where B is a document of kvwaybill, or not there."""
    from scenarios.observations.opening import observation_at

    first, opened = observation_at(a), observation_at(b)
    if first is not None and a != "-" and kind_in(a) is None:
        told = ""
        with contextlib.suppress(DescriptionError):
            told = first(None).format
        if told:
            wrong_use(f"{a} is an observation ({told}); a plan stands first: compare PLAN OBSERVATION")
    if opened is None:
        return None
    from scenarios.documents import read_document
    from scenarios.observations.comparing import compare_observation

    refuse_other_kinds(a, ("plan",), "compare sets a plan beside an observation")
    plan = read_document(a, ("plan",))
    reading = opened(version)
    document = compare_observation(plan, reading, requests=requests, version=version)
    entry: dict[str, Any] = {
        "path": "<stdin>" if b == "-" else b,
        "kind": "observation",
        "plan_id": None,
        "verdict": None,
    }
    about = f"{reading.format} of {reading.engine}" + (f" {version}" if version else "")
    document["documents"] = [_named(a, plan), entry | {"about": about, "asked": None}]
    return document


def _named(path: str, document: dict[str, Any]) -> dict[str, Any]:
    """Which document stood there: path as given, kind, plan, verdict, and what it is about."""
    from scenarios.words import mapping, placed, request_words

    kind = str(document["schema"]).split("/")[1]
    inputs = mapping(document.get("inputs"))
    placement = mapping(document.get("placement") or inputs.get("placement"))
    verdict = document.get("verdict") or mapping(document.get("comparison")).get("verdict")
    return {
        "path": "<stdin>" if path == "-" else path,
        "kind": kind,
        "plan_id": document.get("id") if kind == "plan" else document.get("plan_id"),
        "verdict": verdict,
        "about": placed(inputs, placement) or None,
        "asked": ", ".join(request_words(inputs)) or None,
    }
