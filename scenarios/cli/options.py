"""The options that say what is asked, shared by the commands that ask; and how they become a question."""

from __future__ import annotations

from typing import Annotated, Any

import typer

FleetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--fleet",
        metavar="F",
        help="Fleet file, shipped name (kvwaybill fleet catalog), or - for stdin; repeat to compare.",
    ),
]
SkuOption = Annotated[
    str | None,
    typer.Option("--sku", metavar="S", help="The card of a fleet that names none, e.g. a topology matrix."),
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse a fleet with a link faster than its kind, in place of a warning.")
]
HostReturnOption = Annotated[
    bool,
    typer.Option(
        "--assume-host-return",
        help="Assume host links that the fleet lacks, both ways, without a rate (policy); for Vx machine files.",
    ),
]
OneFleet = Annotated[str | None, typer.Option("--fleet", metavar="F", help="Fleet file or shipped name.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="M",
        help="llama2.c .bin, config.json, safetensors, GGUF, a folder, or org/name in the HF cache; default: embedded.",
    ),
]
TokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", metavar="T", help="Tokenizer .bin of llama2.c, or a tokenizer.json.")
]
PromptOption = Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The prompt in words.")]
PromptIdsOption = Annotated[
    str | None,
    typer.Option("--prompt-ids", metavar="IDS", help="The prompt as token ids: 1,15,7; of checkpoints without T."),
]
PrefillOption = Annotated[
    str | None, typer.Option("--prefill", metavar="D", help="Device of prefill; several: gpu:0-1 or gpu:0,gpu:2.")
]
DecodeOption = Annotated[str | None, typer.Option("--decode", metavar="D", help="Device of decode; several: gpu:2-3.")]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", metavar="N", help="Forward passes, prompt included; 0: the model's seq_len; default 256."),
]
NewTokensOption = Annotated[
    int | None,
    typer.Option("--new-tokens", "--osl", metavar="N", help="Tokens to sample, in place of --steps; never cut."),
]
PromptTokensOption = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens", "--isl", metavar="N", help="A count in place of a prompt, BOS included; not to run."
    ),
]
PositionsOption = Annotated[
    int | None,
    typer.Option(
        "--positions",
        "--context",
        "--max-model-len",
        metavar="N",
        help="Positions that a KV cache is allocated for; default: as many as passes.",
    ),
]
BatchOption = Annotated[
    int | None, typer.Option("--batch", "--max-num-seqs", metavar="N", help="Sequences at once; only 1 can be run.")
]
WeightsDtypeOption = Annotated[
    str | None, typer.Option("--weights-dtype", metavar="T", help="fp32, bf16, fp16 or fp8; default: as stored.")
]
KvDtypeOption = Annotated[
    str | None, typer.Option("--kv-dtype", metavar="T", help="fp32, bf16, fp16 or fp8; default: as stored.")
]
ExtentOption = Annotated[
    str | None,
    typer.Option("--kv-extent", metavar="E", help="What the handoff moves: filled (default), allocated or blocks:N."),
]
BlockSizeOption = Annotated[
    int | None,
    typer.Option("--block-size", metavar="N", help="Short for --kv-extent blocks:N; with --engine its block or page."),
]
MtpOption = Annotated[bool, typer.Option("--mtp", help="Count the multi-token-prediction layers, too.")]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="E", help="What this engine moves: exact, vllm-nixl, sglang, trtllm or mooncake."),
]
EngineVersionOption = Annotated[
    str | None, typer.Option("--engine-version", metavar="V", help="Its version, kept with the plan.")
]
PrefixHitOption = Annotated[
    int | None, typer.Option("--prefix-hit", metavar="N", help="Tokens of the prompt that decode has already.")
]
EngineArgsOption = Annotated[
    str | None,
    typer.Option(
        "--engine-args", metavar="FILE", help="Text of vllm serve or sglang.launch_server commands: read, never run."
    ),
]
AvailableOption = Annotated[
    str | None,
    typer.Option(
        "--available-kv-cache-memory", metavar="M", help="The engine's own figure of a rank, for what it should print."
    ),
]
KvBufferOption = Annotated[
    str | None,
    typer.Option("--kv-buffer", metavar="WHERE", help="device (default), or host: the handoff goes by host memory."),
]
AttentionOption = Annotated[
    str | None,
    typer.Option("--attention", metavar="A", help="device (default): all on the device; host: only the matmuls."),
]
LayoutOption = Annotated[
    str | None,
    typer.Option("--layout", metavar="L", help="How a device keeps its buffers: plain (default) or packed16."),
]
TemperatureOption = Annotated[
    float | None,
    typer.Option("--temperature", metavar="T", help="Draw ids at this temperature on the host; default 0: greedy."),
]
TopPOption = Annotated[
    float | None,
    typer.Option("--top-p", metavar="P", help="Draw from the likeliest ids that exceed this share; default 0.9."),
]
SeedOption = Annotated[
    int | None, typer.Option("--seed", metavar="N", help="Seed of llama2.c's generator, 1 and up; default 1.")
]
ChunkOption = Annotated[
    int | None,
    typer.Option("--prefill-chunk", metavar="N", help="Positions that one prefill call computes; default 1."),
]
UtilizationOption = Annotated[
    str | None,
    typer.Option(
        "--utilization",
        "--gpu-memory-utilization",
        metavar="X",
        help="Share of each capacity that may be used; default: the fleet's, else 0.9.",
    ),
]


def _degree(flag: str, words: str) -> Any:
    return Annotated[int | None, typer.Option(flag, metavar="N", help=words)]


RatesOption = Annotated[
    str | None,
    typer.Option("--rates", metavar="R", help="Rates of times: declared (default), or observed where there are any."),
]
StagingOption = Annotated[
    str | None,
    typer.Option(
        "--staging", metavar="S", help="Time of legs over a host: sequential (default), or pipelined in chunks."
    ),
]
EfficiencyOption = Annotated[
    str | None,
    typer.Option("--efficiency", metavar="S", help="Shares of rates that phases reach: compute=0.6,memory=0.8."),
]
TensorParallelOption = _degree("--tp", "Tensor-parallel degree of both phases; priced, not run.")
PrefillTpOption = _degree("--prefill-tp", "Tensor-parallel degree of prefill.")
DecodeTpOption = _degree("--decode-tp", "Tensor-parallel degree of decode.")
PipelineOption = _degree("--pp", "Pipeline stages of both phases; priced, not run.")
PrefillPpOption = _degree("--prefill-pp", "Pipeline stages of prefill.")
DecodePpOption = _degree("--decode-pp", "Pipeline stages of decode.")
_PATHS = "fused (default): a phase is one compiled call; dispatch: one operation at a time, as with attention: host."
PathOption = Annotated[str | None, typer.Option("--path", metavar="P", help=_PATHS)]
_COMPUTE = "fp32, or bf16 or fp16: cards of --backend cupy read weights so; ids are reported, not promised."
ComputeDtypeOption = Annotated[str, typer.Option("--compute-dtype", metavar="T", help=_COMPUTE)]
FastOption = Annotated[bool, typer.Option("--fast", help="Fuse multiplies with adds: other bits. Layout packed16.")]
ThreadsOption = Annotated[
    int,
    typer.Option("--threads", metavar="N", help="Threads that share a matmul, same bits. Not with --path dispatch."),
]
BackendOption = Annotated[str, typer.Option("--backend", metavar="B", help="What runs it (kvwaybill backends).")]
EmulateOption = Annotated[
    bool, typer.Option("--emulate", help="On CUDA, let one card play several: tier emulated, no two devices claimed.")
]


ASKED: dict[str, Any] = {
    "fleet": OneFleet,
    "assume_host_return": HostReturnOption,
    "model": ModelOption,
    "tokenizer": TokenizerOption,
    "prompt": PromptOption,
    "prompt_ids": PromptIdsOption,
    "steps": StepsOption,
    "prefill": PrefillOption,
    "decode": DecodeOption,
    "attention": AttentionOption,
    "kv_extent": ExtentOption,
    "layout": LayoutOption,
    "temperature": TemperatureOption,
    "top_p": TopPOption,
    "seed": SeedOption,
}
"""What `run` and `prove` take in place of what a scenario says."""


def check_out(flag: str, path: str) -> None:
    """Refuses a path that cannot be written before work is done. `-` is stdout, and then nothing else goes there."""
    from scenarios.cli.frame import wrong_use
    from scenarios.documents import check_writable

    if not path:
        wrong_use(f"{flag} '': an empty path; name a file, or - for stdout")
    check_writable(path)


def check_path(path: str | None) -> None:
    """Refuses a path that there is not."""
    from scenarios.cli.frame import wrong_use

    if path not in (None, "fused", "dispatch"):
        wrong_use(f"--path {path}: there is fused and dispatch")


def given(**values: Any) -> dict[str, Any]:
    """Only what was given on the command line."""
    return {key: value for key, value in values.items() if value is not None}
