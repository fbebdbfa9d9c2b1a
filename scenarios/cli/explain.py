"""`kvwaybill explain`: how any number of a plan came about."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import NO, YES, Format, FormatOption, command, wrong_use
from scenarios.cli.kinds import refuse_other_kinds

Beside = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="PLAN2", help="What its handoff shares with PLAN's when both run at once; repeat."),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "explain")
    def explain(
        console: Console,
        plan: Annotated[str, typer.Argument(metavar="PLAN.json", help="A plan; `-` reads stdin.")],
        subject: Annotated[
            str | None, typer.Argument(metavar="SUBJECT", help="gpu:1, 'gpu:0->gpu:1', handoff, kv_cache, ...")
        ] = None,
        beside: Beside = None,
        output: FormatOption = Format.text,
    ) -> int:
        """Show how a plan's numbers came about. 0 when each follows from its parts, 1 when one does not.

        SUBJECT is a device (gpu:1), an edge (gpu:0->gpu:1), a phase (stage, prefill, handoff, decode), a tensor (k), a
        line of the memory table (kv_cache) or the code of a reason (EXCEEDS_BUDGET). Left out: everything.
        """
        refuse_other_kinds(plan, ("plan",), "explain takes a plan")
        from scenarios.documents import read_document
        from scenarios.explain import explain as derive
        from scenarios.explain import explanation_document, explanation_text

        document = read_document(plan, ("plan",))
        if beside:
            from scenarios.together import explain_together

            for path in beside:
                refuse_other_kinds(path, ("plan",), "--with takes a plan")
            if subject is not None or [plan, *beside].count("-") > 1:
                wrong_use("--with takes no SUBJECT beside it, and one plan at most comes from stdin")
            derivations = explain_together([document, *(read_document(path, ("plan",)) for path in beside)])
        else:
            derivations = derive(document, subject)
        if output is Format.json:
            console.document(explanation_document(document, derivations))
        else:
            console.result(explanation_text(document, derivations, **console.look))
        return YES if all(derivation.follows for derivation in derivations) else NO
