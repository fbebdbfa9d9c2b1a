"""`kvwaybill sweep`: many admissions or simulations from one file."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import CANNOT_SAY, NO, YES, command, wrong_use
from scenarios.cli.reporting import Report, ReportOption, check_report, show_report

Engine = Annotated[str, typer.Option("--engine", metavar="local|dask", help="Where cases are run.")]
Scheduler = Annotated[
    str | None, typer.Option("--scheduler", metavar="ADDRESS", help="A running Dask scheduler: tcp://host:8786.")
]
Jobs = Annotated[
    int | None, typer.Option("--jobs", metavar="N", min=1, max=4096, help="Processes here; default: one a core.")
]
JournalFile = Annotated[
    str | None,
    typer.Option("--journal", metavar="FILE.jsonl", help="Finished cases; default: NAME.journal.jsonl, here."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Take the cases that the journal has from there.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Begin anew, also over an unfinished journal.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the cases, and which the journal has; run nothing.")]
Best = Annotated[bool, typer.Option("--best", help="The smallest fleet that keeps the SLOs: 0 found, 1 none.")]
ParetoOnly = Annotated[bool, typer.Option("--pareto", help="Show the rows of the Pareto front alone.")]
ResultOut = Annotated[str | None, typer.Option("--result-out", metavar="FILE", help="Write the result (JSON) here.")]
BEST_CODES = {"found": YES, "none": NO, "unknown": CANNOT_SAY}


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "sweep")
    def sweep(
        console: Console,
        sweep: Annotated[str, typer.Argument(metavar="SWEEP", help="Sweep file, or shipped name.")],
        engine: Engine = "local",
        scheduler: Scheduler = None,
        jobs: Jobs = None,
        journal: JournalFile = None,
        resume: Resume = False,
        fresh: Fresh = False,
        dry_run: DryRun = False,
        best: Best = False,
        pareto: ParetoOnly = False,
        result_out: ResultOut = None,
        output: ReportOption = Report.text,
    ) -> int:
        """Run many cases from one file and rank them. 0 all answered, 1 none kept the SLOs (--best), 3 cannot say.

        A grid or list over fleets, models, placements and requests: docs/sweep.md. A refused case is a row, not an
        error. What is finished is in the journal, and --resume goes on from there.
        """
        from scenarios.cli.kinds import refuse_other_kinds
        from scenarios.sweeping.read_sweep import load_sweep, sweep_names
        from scenarios.sweeping.run import How, listed, run_sweep

        check_report(output)
        _check(engine, scheduler, resume=resume, fresh=fresh)
        if sweep not in sweep_names():
            refuse_other_kinds(sweep, ("sweep",), "sweep takes a sweep")
        if result_out is not None:
            opt.check_out("--result-out", result_out)
        asked = load_sweep(sweep)
        if best and not asked.bounded:
            wrong_use("--best needs SLOs: write slo: {ttft_p99: 200 ms} in the sweep, or SLOs in its base")
        how = How(
            jobs=jobs or _cores(), scheduler=scheduler, journal=_journal(console, journal, asked.source),
            resume=resume, fresh=fresh,
        )  # fmt: skip
        if result_out is not None:
            _apart(result_out, {"the journal": how.journal, "the sweep": asked.source,
                                "the sweep's base": asked.base.document.source})  # fmt: skip
        if dry_run:
            if output not in (Report.text, Report.json):
                wrong_use(f"-o {output}: --dry-run lists cases as text or json; nothing is judged yet")
            document = listed(asked, how)
            _show(console, output, document, "cases_text")
            return YES
        from scenarios.sweeping.progress import progress

        with progress(console) as tick:
            document = run_sweep(asked, how, console.note, tick)
        if result_out is not None:
            from scenarios.documents import write_document

            write_document(result_out, document)
            console.note(f"result written to {result_out}")
        if result_out != "-":
            _show(console, output, document, "sweep_text", best=best, only_front=pareto)
        return _code(document) if best else YES


def _check(engine: str, scheduler: str | None, *, resume: bool, fresh: bool) -> None:
    from scenarios.sweeping.engines import check_address

    if engine not in ("local", "dask"):
        wrong_use(f"--engine {engine}: there is local and dask")
    if engine == "dask" and scheduler is None:
        wrong_use("--engine dask runs on an existing scheduler; name it: --scheduler tcp://host:8786")
    if engine == "local" and scheduler is not None:
        wrong_use("--scheduler is of --engine dask")
    if scheduler is not None:
        check_address(scheduler)
    if resume and fresh:
        wrong_use("--resume goes on and --fresh begins anew; keep one")


def _apart(result: str, others: dict[str, str | None]) -> None:
    from os.path import realpath

    for what, path in others.items():
        if path is not None and "\0" not in path + result and realpath(path) == realpath(result):
            wrong_use(f"--result-out names {what}; they are two files")


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _journal(console: Console, given: str | None, source: str) -> str | None:
    """Where the journal is. The default one is done without, in words, where the folder cannot be written."""
    import os

    from scenarios.sweeping.run import default_journal

    if given is not None:
        if given in ("", "-"):
            wrong_use("--journal wants a file")
        return given
    path = default_journal(source)
    if os.path.exists(path) or os.access(".", os.W_OK):
        return path
    console.warn("no journal: this folder cannot be written; an interrupted sweep begins anew (or name a --journal)")
    return None


def _show(console: Console, output: Report, document: dict[str, Any], text: str, **asked: bool) -> None:
    if output is Report.json:
        console.document(document)
        return
    if text == "sweep_text" and show_report(console, output, document, "sweep"):
        return
    from scenarios.sweeping import text as texts

    console.result(getattr(texts, text)(document, **asked, **console.look))


def _code(document: dict[str, object]) -> int:
    """Several answers at once: 0 if all demands have a fleet, 1 if any has none, else 3."""
    groups = document["groups"]
    assert isinstance(groups, list)
    codes = {BEST_CODES[group["best"]["verdict"]] for group in groups}
    return NO if NO in codes else CANNOT_SAY if CANNOT_SAY in codes else YES
