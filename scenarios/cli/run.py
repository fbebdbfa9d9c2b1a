"""`kvwaybill run`: carry an admitted plan out, and set observed bytes beside predicted ones."""

from __future__ import annotations

import os
import stat
import sys
from typing import Annotated, Any

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import command, exit_code, wrong_use
from scenarios.cli.kinds import refuse_other_kinds
from scenarios.cli.reporting import Report, ReportOption, check_report, show_report

RunOut = Annotated[str | None, typer.Option("--run-out", metavar="RUN.json", help="Write the run here as JSON.")]
Without = Annotated[
    str | None,
    typer.Option("--without", metavar="handoff", help="Leave the device-to-device rows out, to see it matter."),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "run", opt.ASKED)
    def run(
        console: Console,
        target: Annotated[str, typer.Argument(metavar="SCENARIO|PLAN.json", help="What to run; `-` reads stdin.")],
        asked: dict[str, Any],
        backend: opt.BackendOption = "numba",
        emulate: opt.EmulateOption = False,
        path: opt.PathOption = None,
        fast: opt.FastOption = False,
        threads: opt.ThreadsOption = 1,
        compute_dtype: opt.ComputeDtypeOption = "fp32",
        without: Without = None,
        run_out: RunOut = None,
        output: ReportOption = Report.text,
    ) -> int:
        """Run a scenario or a plan, and compare with the prediction. 0 equal, 1 different or refused, 3 cannot say.

        With a plan only paths, and a prompt of as many tokens, may be given: everything else was settled by admit.
        """
        refuse_other_kinds(target, ("scenario", "plan"), "run takes a scenario or a plan")
        check_report(output, timed=True)
        opt.check_path(path)
        if without not in (None, "handoff"):
            wrong_use(f"--without {without}: only the handoff can be left out")
        if run_out is not None:
            opt.check_out("--run-out", run_out)
        from_plan = is_document(target)  # asked before stdin is read
        plan, paths = planned(target, asked)
        if plan["verdict"] != "admitted":
            return not_admitted(console, plan, output, aside=run_out == "-")
        from scenarios.documents import write_document
        from scenarios.runner import run_and_compare, set_up

        pace: dict[str, Any] = {"path": path, "fast": fast, "threads": threads, "compute_dtype": compute_dtype}
        bench = set_up(plan, backend=backend, emulate=emulate, tell=console.note, **pace, **paths)
        # What a plan document warns of was told when it was admitted.
        told = () if from_plan and console.quiet else plan.get("warnings") or ()
        for warning in dict.fromkeys((*told, *bench.warnings)):
            console.warn(warning)
        document = run_and_compare(bench, without=() if without is None else (without,))
        if run_out is not None and run_out != "-":
            write_document(run_out, document)
        if output is Report.json or run_out == "-":  # `--run-out -`: the document alone, with no text beside it
            console.document(document)
        elif not show_report(console, output, document, "run"):
            from scenarios.report_run import run_text

            console.result(run_text(document, **console.look))
        _hint(console, target, run_out, document, from_plan=from_plan)
        return exit_code(document["comparison"]["verdict"])


def _hint(console: Console, target: str, run_out: str | None, run: dict[str, Any], *, from_plan: bool) -> None:
    """What to do next."""
    if run_out == "-":
        return
    if run_out is not None:
        plan = target if from_plan and target != "-" else "PLAN.json"
        console.note(f"run written to {run_out}; compare it later with: kvwaybill compare {plan} {run_out}")
    elif run["comparison"]["verdict"] == "equal" and not from_plan:
        console.note(f"next: kvwaybill prove {target} shows that the handoff matters and that each check can fail")


PLAN_OVERRIDES = ("fleet", "model", "tokenizer", "prompt", "prompt_ids")
"""What may be given beside a PLAN: paths, and a prompt of exactly P tokens. Anything else asks for another plan."""


_HEAD = 4096
"""Bytes of a target that are looked at to tell a plan from a scenario."""


def planned(target: str, words: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(plan, paths to run it with) of a plan document, or of a scenario that is admitted now."""
    if is_document(target):
        from scenarios.documents import read_document

        plan = read_document(target, ("plan",))
        if others := [name for name in words if name not in PLAN_OVERRIDES]:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
            wrong_use(f"{flags}: a plan is fixed; admit again with these flags")
        from scenarios.stored_request import ids_read

        return plan, ids_read(words)
    from scenarios.planning import make_plan
    from scenarios.wanted import prepare, wanted_of

    return make_plan(prepare(wanted_of(target, words))), {}


def is_document(target: str) -> bool:
    """Whether the target is a plan and not a scenario: JSON that does not name a scenario's schema; `-` is stdin.

    A named pipe is taken for a plan, unread: it can be read once only.
    """
    try:
        if target == "-":
            peek = getattr(sys.stdin.buffer, "peek", None)
            head = b"{" if peek is None else peek(_HEAD)
        elif stat.S_ISFIFO(os.stat(target).st_mode):
            return True
        else:
            with open(target, "rb") as file:
                head = file.read(_HEAD)
    except (OSError, ValueError):
        return False
    # A scenario may be written as JSON too, which is YAML.
    is_json = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{"
    return is_json and b'"kvwaybill/scenario/' not in head[:_HEAD]


def not_admitted(console: Console, plan: dict[str, Any], output: Report, *, aside: bool = False) -> int:
    """Shows the refusal: only an admitted plan is run. The verdict's code. `aside`: on stderr, stdout is for a run."""
    if output is Report.json:
        console.document(plan)
    elif aside or not show_report(console, output, plan, "admit"):
        from scenarios.report import plan_text

        if aside:
            console.note(plan_text(plan).rstrip("\n"))
        else:
            console.result(plan_text(plan, **console.look))
    console.note(f"{plan['verdict']}: nothing was run")
    return exit_code(plan["verdict"])
