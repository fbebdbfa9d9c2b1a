"""`kvwaybill audit LOG`."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import CANNOT_SAY, NO, YES, Format, FormatOption, command, wrong_use

LogArgument = Annotated[
    str, typer.Argument(metavar="LOG", help="A log, metrics, profile or CSV of an engine; `-` reads a text from stdin.")
]
Version = Annotated[str | None, typer.Option("--engine-version", metavar="V", help="The engine's version.")]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="MODEL", help="Narrow the readings to cuts of this model.")
]
Tp = Annotated[int | None, typer.Option("--tp", metavar="N", help="With --model: this tensor-parallel degree only.")]
KvDtype = Annotated[str | None, typer.Option("--kv-dtype", metavar="T", help="With --model: this type of cache only.")]
Block = Annotated[int | None, typer.Option("--block-size", metavar="B", help="Blocks or pages of B tokens only.")]
Link = Annotated[
    str | None, typer.Option("--link", metavar="KIND", help="The kind of link that it is said to have gone over.")
]
_CODES = {"consistent": YES, "contradicted": NO, "inconclusive": CANNOT_SAY}
MOST_TOKENS = 1 << 20


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "audit")
    def audit(
        console: Console,
        log: LogArgument,
        engine_version: Version = None,
        model: ModelOption = None,
        tp: Tp = None,
        kv_dtype: KvDtype = None,
        block_size: Block = None,
        link: Link = None,
        output: FormatOption = Format.text,
    ) -> int:
        """Audit what an engine printed, without a plan. 0 consistent, 1 cannot be true, 3 tells nothing.

        Lists every size, number of layers, blocks and ranks that the printed figures allow; none is chosen.
        """
        from fleet.checkpoints import load_model
        from scenarios.auditing import Asked, Narrowed
        from scenarios.auditing import audit as audited
        from scenarios.auditing.text import audit_text

        _check(model, tp, kv_dtype, block_size)
        loaded = None if model is None else load_model(model)
        narrowed = Narrowed(tp=tp, kv_dtype=kv_dtype, block=block_size)
        asked = Asked(version=engine_version, model=loaded, narrowed=narrowed, link=link)
        document = audited(log, asked)
        if output is Format.json:
            console.document(document)
        else:
            console.result(audit_text(document, **console.look))
        return _CODES[document["verdict"]]


def _check(model: str | None, tp: int | None, kv_dtype: str | None, block: int | None) -> None:
    """Wrong usage is told before a log is read."""
    from fleet.models.kv import KV_TYPES

    for flag, value in (("--tp", tp), ("--kv-dtype", kv_dtype)):
        if value is not None and model is None:
            wrong_use(f"{flag} narrows a model; name it with --model")
    if kv_dtype is not None and kv_dtype not in KV_TYPES:
        wrong_use(f"--kv-dtype {kv_dtype[:40]}: there is {', '.join(KV_TYPES)}")
    for flag, value in (("--tp", tp), ("--block-size", block)):
        if value is not None and not 1 <= value <= MOST_TOKENS:
            wrong_use(f"{flag} {value}: wanted 1 or more, {MOST_TOKENS:,} at most")
