"""`kvwaybill model show`: what a checkpoint or config says, in exact bytes."""

from __future__ import annotations

from typing import Annotated

import typer

from scenarios.cli.console import Console
from scenarios.cli.frame import CANNOT_SAY, YES, Format, FormatOption, command, new_app

ModelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="llama2.c .bin, config.json, safetensors, GGUF, a folder, or org/name in the HF cache; default: embedded.",
    ),
]
Contexts = Annotated[list[int] | None, typer.Option("--context", metavar="N", help="Tokens in the cache; repeatable.")]
KvDtype = Annotated[str | None, typer.Option("--kv-dtype", metavar="T", help="bf16, fp16, fp32 or fp8.")]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = new_app("Show parameters, weight bytes and KV bytes of a model.")
    app.add_typer(group, name="model")

    @command(group, "show")
    def show(
        console: Console,
        model: ModelArgument = None,
        context: Contexts = None,
        kv_dtype: KvDtype = None,
        output: FormatOption = Format.text,
    ) -> int:
        """Show parameters, weight bytes and KV bytes of a model. 0 shown, 3 where its layout is not understood."""
        from fleet.checkpoints import load_model
        from scenarios.model_text import model_document, model_text

        loaded = load_model(model)
        document = model_document(loaded, context or [], kv_dtype)
        for warning in loaded.warnings:
            console.warn(warning)
        if output is Format.json:
            console.document(document)
        else:
            console.result(model_text(document, **console.look))
        return CANNOT_SAY if document["unknown"] else YES
