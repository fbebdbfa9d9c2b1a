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
Contexts = Annotated[
    list[str] | None, typer.Option("--context", metavar="N[,N...]", help="Tokens in the cache; repeatable.")
]
KvDtype = Annotated[
    str | None,
    typer.Option(
        "--kv-dtype",
        metavar="T",
        help="bf16, fp16, fp32, fp8; also fp8_token_head, int8_token_head, nvfp4, fp8_ds_mla.",
    ),
]
BlockSize = Annotated[int, typer.Option("--block-size", metavar="B", help="Tokens of a block that bytes round up to.")]
Mtp = Annotated[bool, typer.Option("--mtp", help="Count the multi-token-prediction layers, too.")]
Explain = Annotated[bool, typer.Option("--explain", help="Formula, numbers and config field of every figure.")]


def register(app: typer.Typer) -> None:
    """Adds the group."""
    group = new_app("Show parameters, weight bytes and KV bytes of a model.")
    app.add_typer(group, name="model")

    @command(group, "show")
    def show(
        console: Console,
        model: ModelArgument = None,
        context: Contexts = None,
        block_size: BlockSize = 16,
        kv_dtype: KvDtype = None,
        mtp: Mtp = False,
        explain: Explain = False,
        output: FormatOption = Format.text,
    ) -> int:
        """Show parameters, weight bytes and KV bytes of a model. 0 shown, 3 where something of it is unknown."""
        from fleet.checkpoints import load_model
        from fleet.model import with_mtp
        from scenarios.model_lines import model_text
        from scenarios.model_text import model_document

        contexts = _contexts(context or [])
        loaded = load_model(model)
        if mtp and not (loaded.mtp_layers or loaded.mtp_unknown):
            console.warn(f"{loaded.name} has no multi-token-prediction layers that are known: --mtp changes nothing")
        document = model_document(
            with_mtp(loaded) if mtp else loaded, contexts, kv_dtype, block=block_size, explain=explain
        )
        for warning in loaded.warnings:
            console.warn(warning)
        if output is Format.json:
            console.document(document)
        else:
            console.result(model_text(document, **console.look))
        return CANNOT_SAY if document["unknown"] else YES


def _contexts(given: list[str]) -> list[int]:
    """`4096` and `1,1000,4096`, each once, in the order given. Raises DescriptionError for what is no whole number."""
    from fleet.errors import DescriptionError, Fault

    parts = [part.strip() for text in given for part in text.split(",")]
    wrong = [part for part in parts if not (part.isascii() and part.isdigit() and len(part) <= 19)]
    if wrong:
        raise DescriptionError(
            Fault(
                source="command line", field="--context", message=f"{part[:40]!r} is no count of tokens; use e.g. 4096"
            )
            for part in wrong
        )
    return list(dict.fromkeys(map(int, parts)))
