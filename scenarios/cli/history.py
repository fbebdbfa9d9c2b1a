"""`kvwaybill history`: how far predictions were off over many runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import command, wrong_use
from scenarios.cli.reporting import Report, ReportOption, check_report, show_report

if TYPE_CHECKING:
    from scenarios.reports.history import Seen

PlanOption = Annotated[
    list[str] | None,
    typer.Option("--plan", metavar="PLAN.json", help="A plan of the runs, for errors of seconds; repeatable."),
]
ByOption = Annotated[str, typer.Option("--by", metavar="plan|fleet", help="What runs are put together by.")]
FailOption = Annotated[bool, typer.Option("--fail-on-drift", help="Code 1 where any class drifts.")]
MOST = 1000


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "history")
    def history(
        console: Console,
        runs: Annotated[
            list[str],
            typer.Argument(metavar="RUN|DIR...", help="Runs or comparisons in their order, or folders of them."),
        ],
        plan: PlanOption = None,
        by: ByOption = "plan",
        fail_on_drift: FailOption = False,
        output: ReportOption = Report.text,
    ) -> int:
        """Prediction errors by class of edge over many runs. 0 told, 1 drifts (--fail-on-drift).

        Spread and drift of each class. Of a folder, every run and comparison in it is read, in the order of their
        names; other files are left out.
        """
        check_report(output)
        if by not in ("plan", "fleet"):
            wrong_use(f"--by {by}: there is plan and fleet")
        if output in (Report.github, Report.junit) and not fail_on_drift:
            wrong_use(f"-o {output}: a history is no gate; ask for one with --fail-on-drift")
        from scenarios.reports.history import history_document

        document = history_document(_seen(console, runs, plan or []), by)
        if output is Report.json:
            console.document(document)
        elif not show_report(console, output, document, "history"):
            from scenarios.reports.history_text import history_text

            console.result(history_text(document, **console.look))
        drifts = any(row["drift"] in ("up", "down") for group in document["groups"] for row in group["classes"])
        return int(fail_on_drift and drifts)


def _seen(console: Console, named: list[str], plans: list[str]) -> list[Seen]:
    """The runs, each with its plan where it was given. DescriptionError for what is neither run nor comparison."""
    from fleet.errors import DescriptionError
    from scenarios.cli.kinds import in_words
    from scenarios.documents import read_document
    from scenarios.reports.history import Seen
    from scenarios.reports.read import read_report_document

    known = {document["id"]: document for document in (read_document(path, ("plan",)) for path in plans)}
    seen = []
    for path, from_folder in _paths(console, named):
        kind, document = read_report_document(path)
        if from_folder and kind == "run" and not document.get("comparison"):
            console.note(f"{path}: left out, it was set beside no plan")
            continue
        if kind not in ("run", "comparison"):
            raise DescriptionError.at(path, "", f"is {in_words(kind)}; history takes runs and comparisons")
        seen.append(Seen(source=path, document=document, plan=known.get(document.get("plan_id"))))
    if not seen:
        wrong_use("none of these runs was set beside a plan, so there is no error to tell")
    return seen


def _paths(console: Console, named: list[str]) -> list[tuple[str, bool]]:
    """(file, whether a folder held it): as given; of a folder runs and comparisons by name, numbers in their order."""
    import os

    from fleet.errors import DescriptionError
    from fleet.identity import natural_order
    from scenarios.cli.kinds import kind_in

    found: list[tuple[str, bool]] = []
    for path in named:
        if not os.path.isdir(path):
            found.append((path, False))
            continue
        try:
            names = sorted((name for name in os.listdir(path) if name.endswith(".json")), key=natural_order)
        except OSError as error:
            raise DescriptionError.at(path, "", f"cannot be read: {error.strerror}") from error
        inside = [os.path.join(path, name) for name in names]
        taken = [each for each in inside if os.path.isfile(each) and kind_in(each) in ("run", "comparison")]
        if not taken:
            raise DescriptionError.at(path, "", "holds no run and no comparison (*.json)")
        if len(taken) < len(inside):
            console.note(f"{path}: {len(inside) - len(taken)} other documents left out")
        found += [(each, True) for each in taken]
    if len(found) > MOST:
        wrong_use(f"{len(found)} runs; at most {MOST:,} are set side by side")
    return found
