"""`kvwaybill place`: the best placements on named devices, ranked, with why each lower one lost."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import Format, FormatOption, command, exit_code, wrong_use
from scenarios.cli.kinds import refuse_other_kinds

if TYPE_CHECKING:
    from scenarios.placing_question import Placing

Rules = list[str] | None
InUse = Annotated[
    Rules,
    typer.Option(
        "--in-use",
        metavar="FILE|DEVICE=SIZE",
        help="In use: an admitted plan, nvidia-smi --query-gpu CSV, kubectl get pods -o json, or gpu:1=12GiB."
        " Repeatable.",
    ),
]
OneFleet = Annotated[Rules, typer.Option("--fleet", metavar="F", help="Fleet file or shipped name.")]
ShareOf = Annotated[
    str | None,
    typer.Option("--utilization-of", metavar="total|free", help="What --utilization is a share of; default: total."),
]
Objective = Annotated[
    Rules,
    typer.Option("--objective", metavar="O", help="handoff (default), ttft, throughput, devices or cost."),
]
Require = Annotated[Rules, typer.Option("--require", metavar="R", help="same-node, same-domain or spread; repeat.")]
Prefer = Annotated[
    Rules, typer.Option("--prefer", metavar="R", help="The same, where it can be kept: before the objective.")
]
Exclude = Annotated[
    Rules, typer.Option("--exclude", metavar="D", help="Not these devices: ids, gpu:0-3, node0/*; repeat.")
]
Avoid = Annotated[Rules, typer.Option("--avoid", metavar="D", help="Not these where others are left; repeat.")]
Only = "Only these devices for {}: ids, gpu:0-3, node0/*."
Prefill = Annotated[str | None, typer.Option("--prefill", metavar="D", help=Only.format("prefill"))]
Decode = Annotated[str | None, typer.Option("--decode", metavar="D", help=Only.format("decode"))]
Price = Annotated[Rules, typer.Option("--price", metavar="SKU=X", help="What an hour of a card costs; repeat.")]
Workers = "{} workers of a pool: 4, 1,2,4 or 1-8."
PrefillWorkers = Annotated[str | None, typer.Option("--prefill-workers", metavar="N", help=Workers.format("Prefill"))]
DecodeWorkers = Annotated[str | None, typer.Option("--decode-workers", metavar="N", help=Workers.format("Decode"))]
Ranks = "Devices of a {} worker, in one link domain: 2, or 1,2,4."
PrefillTp = Annotated[str | None, typer.Option("--prefill-tp", metavar="N", help=Ranks.format("prefill"))]
DecodeTp = Annotated[str | None, typer.Option("--decode-tp", metavar="N", help=Ranks.format("decode"))]
Batch = Annotated[
    str | None,
    typer.Option("--batch", "--max-num-seqs", metavar="N", help="Sequences at once of a worker: 8, or 1,8,64."),
]
MaxDevices = Annotated[int | None, typer.Option("--max-devices", metavar="N", help="No pool of more devices.")]
Routing = Annotated[
    str | None,
    typer.Option(
        "--routing", metavar="R", help="any (default): any prefill worker serves any decode worker; or nearest."
    ),
]
Top = Annotated[
    int | None, typer.Option("--top", metavar="N", help="How many placements are told; default: 5, of --pareto all.")
]
Pareto = Annotated[
    bool, typer.Option("--pareto", help="Only those that no other one beats in one figure and equals in the rest.")
]
SimulationOut = Annotated[
    str | None,
    typer.Option("--simulation-out", metavar="FILE", help="Write the best as a scenario of simulate, if admitted."),
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "place")
    def place(
        console: Console,
        scenario: Annotated[
            str | None, typer.Argument(metavar="SCENARIO", help="Scenario file, or shipped name.")
        ] = None,
        fleets: OneFleet = None,
        sku: opt.SkuOption = None,
        assume_host_return: opt.HostReturnOption = False,
        strict: opt.StrictOption = False,
        model: opt.ModelOption = None,
        mtp: opt.MtpOption = False,
        tokenizer: opt.TokenizerOption = None,
        prompt: opt.PromptOption = None,
        prompt_tokens: opt.PromptTokensOption = None,
        new_tokens: opt.NewTokensOption = None,
        steps: opt.StepsOption = None,
        positions: opt.PositionsOption = None,
        weights_dtype: opt.WeightsDtypeOption = None,
        kv_dtype: opt.KvDtypeOption = None,
        kv_extent: opt.ExtentOption = None,
        block_size: opt.BlockSizeOption = None,
        engine: opt.EngineOption = None,
        engine_version: opt.EngineVersionOption = None,
        prefix_hit: opt.PrefixHitOption = None,
        kv_buffer: opt.KvBufferOption = None,
        attention: opt.AttentionOption = None,
        layout: opt.LayoutOption = None,
        prefill_chunk: opt.ChunkOption = None,
        utilization: opt.UtilizationOption = None,
        utilization_of: ShareOf = None,
        in_use: InUse = None,
        rates: opt.RatesOption = None,
        staging: opt.StagingOption = None,
        efficiency: opt.EfficiencyOption = None,
        objective: Objective = None,
        require: Require = None,
        prefer: Prefer = None,
        exclude: Exclude = None,
        avoid: Avoid = None,
        prefill: Prefill = None,
        decode: Decode = None,
        price: Price = None,
        prefill_workers: PrefillWorkers = None,
        decode_workers: DecodeWorkers = None,
        prefill_tp: PrefillTp = None,
        decode_tp: DecodeTp = None,
        batch: Batch = None,
        max_devices: MaxDevices = None,
        routing: Routing = None,
        top: Top = None,
        pareto: Pareto = False,
        simulation_out: SimulationOut = None,
        output: FormatOption = Format.text,
    ) -> int:
        """Rank where to place a split on a fleet, and say why.

        Name a --fleet, or a SCENARIO (its own placement is told beside the best). Workers, ranks or several batches
        make pools. 0 found, 1 none fits, 3 only unverified ones.
        """
        from scenarios.place_document import place_document
        from scenarios.placing_question import Asked, placing_of

        if fleets is not None and len(fleets) > 1:
            wrong_use(f"--fleet is given {len(fleets)} times: one fleet is searched; kvwaybill admit compares several")
        fleet = fleets[0] if fleets else None
        if scenario is None and fleet is None:
            wrong_use("name a --fleet, or a SCENARIO (kvwaybill fleet catalog, kvwaybill scenario list)")
        if scenario is not None:
            refuse_other_kinds(scenario, ("scenario",), "place takes a scenario")
        if fleet is not None:
            refuse_other_kinds(fleet, ("fleet",), "--fleet takes a fleet")
        words = opt.given(
            fleet=fleet, sku=sku, assume_host_return=assume_host_return or None, strict=strict or None, model=model,
            mtp=mtp or None, tokenizer=tokenizer, prompt=prompt, prompt_tokens=prompt_tokens, new_tokens=new_tokens,
            steps=steps, positions=positions, weights_dtype=weights_dtype, kv_dtype=kv_dtype, kv_extent=kv_extent,
            block_size=block_size, engine=engine, engine_version=engine_version, prefix_hit=prefix_hit,
            kv_buffer=kv_buffer, attention=attention, layout=layout, prefill_chunk=prefill_chunk,
            utilization=utilization, utilization_of=utilization_of, in_use=tuple(in_use) if in_use else None,
            rates=rates, staging=staging, efficiency=efficiency,
        )  # fmt: skip
        asked = Asked(
            objective=objective or (), require=require or (), prefer=prefer or (), exclude=exclude or (),
            avoid=avoid or (), prefill=prefill, decode=decode, prices=price or (), prefill_workers=prefill_workers,
            decode_workers=decode_workers, prefill_tp=prefill_tp, decode_tp=decode_tp, batches=batch,
            max_devices=max_devices, routing=routing, top=top, pareto=pareto,
        )  # fmt: skip
        placing = placing_of(scenario, words, asked)
        if simulation_out is not None:
            _check_out(placing, simulation_out)
        document = place_document(placing, front=pareto)
        text = None
        if simulation_out is not None and document["placements"]:
            from scenarios.place_simulation import simulation_text

            text = simulation_text(placing, document, simulation_out)
        for warning in document["warnings"]:
            console.warn(warning)
        if output is Format.json:
            console.document(document)
        else:
            from scenarios.place_text import place_text

            console.result(place_text(document, **console.look))
        if simulation_out is not None:
            _write(console, text, simulation_out, placing.prepared.ask.request.prefill_chunk)
        return exit_code(document["verdict"])


def _check_out(placing: Placing, path: str) -> None:
    """Before anything is searched or printed."""
    from scenarios.place_simulation import check_sayable

    opt.check_out("--simulation-out", path)
    if path == "-":
        wrong_use("--simulation-out takes a file: stdout has the placements")
    check_sayable(placing.wanted)


def _write(console: Console, text: str | None, path: str, chunk: int) -> None:
    from scenarios.documents import write_text

    if text is None:
        console.note(f"nothing is admitted: no scenario was written to {path}")
        return
    write_text(path, text)
    if chunk == 1:
        console.warn(
            f"{path}: its rate of arrivals is that of a prefill of one position a call, which no engine does; "
            "--prefill-chunk N prices it with the chunk of yours"
        )
    console.note(f"scenario written to {path}; kvwaybill simulate {shlex.quote(str(path))}")
