"""`kvwaybill prove`: split, oracle, sabotages; checks x sabotages; an evidence folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import command, exit_code
from scenarios.cli.kinds import refuse_other_kinds
from scenarios.cli.reporting import Report, ReportOption, check_report, show_report
from scenarios.cli.run import not_admitted

SaveDir = Annotated[
    str | None, typer.Option("--save-dir", metavar="DIR", help="Folder for plan, runs and proof as JSON.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "prove", opt.ASKED)
    def prove(
        console: Console,
        scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="Scenario file or shipped name.")],
        asked: dict[str, Any],
        backend: opt.BackendOption = "numba",
        emulate: opt.EmulateOption = False,
        path: opt.PathOption = None,
        save_dir: SaveDir = None,
        output: ReportOption = Report.text,
    ) -> int:
        """Run the split, its oracle and every sabotage. 0 proved, 1 not proved or refused, 3 cannot say.

        The oracle is the same request on one device. Each check is shown to fail under some sabotage.
        """
        refuse_other_kinds(scenario, ("scenario",), "prove takes a scenario")
        check_report(output)
        opt.check_path(path)
        from scenarios.wanted import prepare, wanted_of

        prepared = prepare(wanted_of(scenario, asked))
        if save_dir is not None:
            _check_folder(save_dir)
        from scenarios.prove import prove as make_proof

        proof, plan = make_proof(
            prepared, backend=backend, emulate=emulate, path=path, progress=_progress(console), say=console.note
        )
        if plan["verdict"] != "admitted":
            return not_admitted(console, plan, output)
        if save_dir is not None:
            _save(save_dir, plan, proof)
            files = " ".join(os.path.join(save_dir, name) for name in ("plan.json", "run-split.json"))
            console.note(f"evidence written to {save_dir}; compare again with: kvwaybill compare {files}")
        if output is Report.json:
            console.document(proof)
        elif not show_report(console, output, proof, "prove"):
            from scenarios.report_proof import proof_text

            console.result(proof_text(proof, **console.look))
        if save_dir is None:
            console.note("keep the evidence with: --save-dir DIR")
        return exit_code(proof["verdict"])


def _progress(console: Console) -> Callable[[str, int, int], None] | None:
    """A line on the terminal that is rewritten; nothing where nobody looks."""
    if console.quiet or not sys.stderr.isatty():
        return None

    def tell(what: str, done: int, parts: int) -> None:
        filled = 24 * done // parts
        bar = "#" * filled + "-" * (24 - filled)
        sys.stderr.write("\r\x1b[K" + (f"[{bar}] {done}/{parts} {what}" if done < parts else ""))
        sys.stderr.flush()

    return tell


def _check_folder(path: str) -> None:
    """Made now, so that minutes of work are not lost to a folder that cannot be written."""
    from fleet.errors import DescriptionError
    from scenarios.documents import check_writable

    if not path:
        raise DescriptionError.at("command line", "--save-dir ''", "an empty path; name a folder")
    try:
        os.makedirs(path, exist_ok=True)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or str(error)
        if isinstance(error, FileExistsError | NotADirectoryError):
            words = "a file stands there; name a folder"
        raise DescriptionError.at(path, "--save-dir", f"cannot be made: {words}") from error
    check_writable(os.path.join(path, "proof.json"))


def _save(path: str, plan: dict[str, Any], proof: dict[str, Any]) -> None:
    from scenarios.documents import write_document, write_text
    from scenarios.report_proof import proof_text

    write_document(os.path.join(path, "plan.json"), plan)
    for name, run in proof["runs"].items():
        write_document(os.path.join(path, f"run-{name.replace('_', '-')}.json"), run)
    write_document(os.path.join(path, "proof.json"), proof)
    write_text(os.path.join(path, "proof.txt"), proof_text(proof))
