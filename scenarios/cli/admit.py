"""`kvwaybill admit`: the verdict, with exact bytes, before anything runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scenarios.cli import options as opt
from scenarios.cli.console import Console
from scenarios.cli.frame import command, exit_code, exit_code_of, wrong_use
from scenarios.cli.kinds import refuse_other_kinds
from scenarios.cli.reporting import Report, ReportOption, check_report, show_report

ROOM: dict[str, Any] = {
    "max_sequences": Annotated[
        str | None,
        typer.Option(
            "--max-sequences", metavar="N|max", help="Sequences at once, or as many as fit; tells how many do."
        ),
    ],
    "utilization_of": Annotated[
        str | None,
        typer.Option(
            "--utilization-of",
            metavar="total|free",
            help="What --utilization is a share of: the capacity (default), or what the rest leaves for the cache.",
        ),
    ],
    "in_use": Annotated[
        list[str] | None,
        typer.Option(
            "--in-use",
            metavar="FILE|DEVICE=SIZE",
            help="In use: an admitted plan, nvidia-smi --query-gpu CSV, kubectl get pods -o json, or gpu:1=12GiB."
            " Repeatable.",
        ),
    ],
    "solve": Annotated[
        str | None,
        typer.Option(
            "--solve",
            metavar="link|capacity",
            help="What it would need: rates of the handoff's links for --ttft, or room.",
        ),
    ],
    "ttft": Annotated[
        str | None, typer.Option("--ttft", metavar="T", help="The time to first token to solve for: 800ms.")
    ],
    "explain": Annotated[
        bool, typer.Option("--explain", help="Each line of the memory ledger with its formula and source.")
    ],
}
"""Options on room: they go to `scenarios.room_asked`, and `explain` to the text."""
_SOLVED = {"solved": "valid", "impossible": "refused", "unverified": "unverified"}
PlanOut = Annotated[
    str | None, typer.Option("--plan-out", metavar="PLAN.json", help="Write the plan here, if it is admitted.")
]


def register(app: typer.Typer) -> None:
    """Adds the command."""

    @command(app, "admit", ROOM)
    def admit(
        console: Console,
        asked: dict[str, Any],
        scenario: Annotated[
            str | None, typer.Argument(metavar="SCENARIO", help="Scenario file, or shipped name.")
        ] = None,
        fleet: opt.FleetOption = None,
        sku: opt.SkuOption = None,
        assume_host_return: opt.HostReturnOption = False,
        strict: opt.StrictOption = False,
        model: opt.ModelOption = None,
        mtp: opt.MtpOption = False,
        tokenizer: opt.TokenizerOption = None,
        prompt: opt.PromptOption = None,
        prompt_ids: opt.PromptIdsOption = None,
        prompt_tokens: opt.PromptTokensOption = None,
        prefill: opt.PrefillOption = None,
        decode: opt.DecodeOption = None,
        new_tokens: opt.NewTokensOption = None,
        steps: opt.StepsOption = None,
        positions: opt.PositionsOption = None,
        batch: opt.BatchOption = None,
        weights_dtype: opt.WeightsDtypeOption = None,
        kv_dtype: opt.KvDtypeOption = None,
        kv_extent: opt.ExtentOption = None,
        block_size: opt.BlockSizeOption = None,
        engine: opt.EngineOption = None,
        engine_version: opt.EngineVersionOption = None,
        prefix_hit: opt.PrefixHitOption = None,
        kv_buffer: opt.KvBufferOption = None,
        engine_args: opt.EngineArgsOption = None,
        available: opt.AvailableOption = None,
        attention: opt.AttentionOption = None,
        layout: opt.LayoutOption = None,
        prefill_chunk: opt.ChunkOption = None,
        temperature: opt.TemperatureOption = None,
        top_p: opt.TopPOption = None,
        seed: opt.SeedOption = None,
        utilization: opt.UtilizationOption = None,
        rates: opt.RatesOption = None,
        staging: opt.StagingOption = None,
        efficiency: opt.EfficiencyOption = None,
        tp: opt.TensorParallelOption = None,
        prefill_tp: opt.PrefillTpOption = None,
        decode_tp: opt.DecodeTpOption = None,
        pp: opt.PipelineOption = None,
        prefill_pp: opt.PrefillPpOption = None,
        decode_pp: opt.DecodePpOption = None,
        plan_out: PlanOut = None,
        output: ReportOption = Report.text,
    ) -> int:
        """Admit or refuse a placement, with exact bytes and reasons. 0 admitted, 1 refused, 3 unverified.

        Name a SCENARIO, or a --fleet; flags stand for what the scenario says. Several --fleet are set side by side.
        """
        if scenario is not None:
            refuse_other_kinds(scenario, ("scenario",), "admit takes a scenario")
        for path in fleet or []:
            refuse_other_kinds(path, ("fleet",), "--fleet takes a fleet")
        words = opt.given(
            sku=sku, assume_host_return=assume_host_return or None, strict=strict or None,
            model=model, mtp=mtp or None, tokenizer=tokenizer, prompt=prompt, prompt_tokens=prompt_tokens,
            prompt_ids=prompt_ids, prefill=prefill, decode=decode, new_tokens=new_tokens, steps=steps,
            positions=positions, batch=batch,
            weights_dtype=weights_dtype, kv_dtype=kv_dtype, kv_extent=kv_extent, block_size=block_size,
            attention=attention, layout=layout, prefill_chunk=prefill_chunk, temperature=temperature, top_p=top_p,
            seed=seed, utilization=utilization, rates=rates, staging=staging,
            efficiency=efficiency,
            tp=tp, prefill_tp=prefill_tp, decode_tp=decode_tp, pp=pp,
            prefill_pp=prefill_pp, decode_pp=decode_pp, engine=engine, engine_version=engine_version,
            prefix_hit=prefix_hit, kv_buffer=kv_buffer,
        ) | _room(asked)  # fmt: skip
        check_report(output, timed=len(fleet or []) < 2)
        if plan_out is not None:
            _check_plan_out(plan_out, fleet or [])
        plans = _plans(scenario, fleet or [], words, engine_args, available)
        if plan_out == "-":
            _write_alone(console, plans[0], output)
        else:
            _print(console, plans, output, explain=bool(asked.get("explain")))
        if plan_out is not None and plan_out != "-":
            _write(console, plans, plan_out)
        verdicts = [plan["verdict"] for plan in plans]
        return exit_code_of(verdicts + [_SOLVED[plan["solved"]["verdict"]] for plan in plans if "solved" in plan])


def _room(asked: dict[str, Any]) -> dict[str, Any]:
    """The words on room that were given."""
    words = {name: asked[name] for name in ("max_sequences", "utilization_of", "solve", "ttft") if name in asked}
    return words | ({"in_use": tuple(asked["in_use"])} if asked.get("in_use") else {})


def _plans(
    scenario: str | None, fleets: list[str], words: dict[str, Any], engine_args: str | None, available: str | None
) -> list[dict[str, Any]]:
    from scenarios.planning import make_plan
    from scenarios.wanted import prepare, wanted_of

    if scenario is None and not fleets:
        wrong_use("name a SCENARIO, or a --fleet (kvwaybill scenario list, kvwaybill fleet catalog)")
    if fleets.count("-") > 1:
        wrong_use("only one fleet can come from stdin")
    questions = [wanted_of(scenario, words | {"fleet": fleet}) for fleet in fleets] or [wanted_of(scenario, words)]
    if engine_args is None:
        if available is not None:
            wrong_use("--available-kv-cache-memory is of --engine-args; give both")
        return [make_plan(prepare(question)) for question in questions]
    return _by_launch_lines(questions, engine_args, available)


def _by_launch_lines(questions: list[Any], path: str, available: str | None) -> list[dict[str, Any]]:
    from fleet.launch import read_launches
    from scenarios.launching import stated_pool, with_launches
    from scenarios.planning import make_plan
    from scenarios.wanted import prepare

    launches, stated = read_launches(path), stated_pool(available)
    source = "<stdin>" if path == "-" else path
    questions = [with_launches(question, launches, source) for question in questions]
    return [make_plan(prepare(question), launches, stated) for question in questions]


def _print(console: Console, plans: list[dict[str, Any]], output: Report, *, explain: bool) -> None:
    for plan in plans:
        for warning in plan["warnings"]:
            console.warn(warning)
    if output is not Report.text:
        from scenarios.admissions import admissions_document

        document = plans[0] if len(plans) == 1 else admissions_document(plans)
        if not show_report(console, output, document, "admit"):
            console.document(document)
        return
    from scenarios.report import admissions_text, plan_text

    text = plan_text(plans[0], **console.look) if len(plans) == 1 else admissions_text(plans, **console.look)
    if explain:
        from scenarios.ledger_text import ledger_text

        text = "\n".join([text, *(ledger_text(plan, **console.look) for plan in plans)])
    console.result(text)


def _write_alone(console: Console, plan: dict[str, Any], output: Report) -> None:
    """`--plan-out -`: an admitted plan, and not a word beside it, on stdout. Why another is none goes to stderr."""
    from scenarios.report import plan_text

    for warning in plan["warnings"]:
        console.warn(warning)
    if exit_code(plan["verdict"]) == 0 or output is Report.json:
        console.document(plan)
    else:
        console.note(plan_text(plan).rstrip("\n"))


def _check_plan_out(path: str, fleets: list[str]) -> None:
    """Before anything is printed: an answer that ends with code 2 would be no answer."""
    if len(fleets) > 1:
        wrong_use("--plan-out takes the plan of one fleet")
    opt.check_out("--plan-out", path)


def _write(console: Console, plans: list[dict[str, Any]], path: str) -> None:
    from scenarios.documents import write_document

    if exit_code(plans[0]["verdict"]) != 0:
        aside = "to keep and explain it: the same with -o json > refused.json, then kvwaybill explain refused.json"
        console.note(f"{plans[0]['verdict']}: no plan was written to {path}; {aside}")
        return
    write_document(path, plans[0])
    console.note(f"plan written to {path}; {_next(plans[0], path)}")


def _next(plan: dict[str, Any], path: str) -> str:
    """What can be done with a plan: one that the executor could not carry out is not said to be runnable."""
    from scenarios.stored_request import holds_weights, stored_faults

    work = plan["inputs"].get("workload") or {}
    obstacles = [str(words) for words in plan.get("not_run") or []]
    form = plan["inputs"]["model"].get("format")
    if form == "hf-config" and holds_weights(plan["inputs"]["model"]["path"]):
        obstacles += stored_faults(work["weights_dtype"], work["kv_dtype"], plan["inputs"]["model"]["weights_dtype"])
    elif form in ("hf-config", "safetensors", "gguf"):
        obstacles.append("a config.json holds no weights" if form == "hf-config" else f"{form} is not executed")
    else:
        other = [what for what in ("weights", "kv") if work.get(f"{what}_dtype") != "fp32"]
        obstacles += [f"{what} in {work.get(f'{what}_dtype')}" for what in other]
    if work.get("batch", 1) > 1:
        obstacles.append(f"batch {work['batch']}")
    explain = f"explain it with: kvwaybill explain {path}"
    if obstacles:
        return f"it is for admission only ({', '.join(obstacles)}); {explain}"
    ids = (plan.get("orders") or {}).get("workload", {}).get("prompt_ids")
    word = "--prompt-ids IDS" if form == "hf-config" else "--prompt TEXT"
    prompt = "" if ids is not None else f" {word} (of {work['prompt_tokens']:,} tokens)"
    return f"run it with: kvwaybill run {path}{prompt}"
