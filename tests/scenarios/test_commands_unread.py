"""A refusal beside what nobody read of an engine: its changes are applied by flags and in the launch text, and hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.command_line import Ask, Document, asker, fleet, write_json
from tests.scenarios.test_commands_fixes import admit, applied

SHAPE = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 8,
    "intermediate_size": 160, "vocab_size": 512, "max_position_embeddings": 512, "torch_dtype": "bfloat16",
}  # fmt: skip
WINDOWS = SHAPE | {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "sliding_window": 16}
PLAIN = SHAPE | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
LAUNCH = """vllm serve here --max-num-seqs 400 --max-model-len 256 \\
    --enable-lora --enable-expert-parallel=true
"""


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def parts(fix: Document) -> list[Document]:
    return [fix, *fix.get("and", [])]


@pytest.mark.parametrize("unit", [{}, {"--block-size": "8"}])
@pytest.mark.parametrize("engine", ["trtllm", "sglang", "mooncake"])
def test_every_change_beside_an_unread_engine_is_admitted_as_told(
    engine: str, unit: dict[str, str], tmp_path: Path, ask: Ask
) -> None:
    model = str(write_json(tmp_path / "config.json", WINDOWS))
    flags = {"--model": model, "--engine": engine, "--prompt-tokens": "100", "--new-tokens": "20", "--batch": "64"}
    described = fleet("2 MiB")
    answer = admit(ask, tmp_path, described, flags | unit)
    assert answer.code == 1
    told = [each for each in answer.document["alternatives"] if "reading" not in each]
    assert told
    assert f"fix: --engine exact (was {engine})" in admit_text(ask, tmp_path, flags | unit)
    for change in [answer.document["reasons"][0]["fix"], *told]:
        first = parts(change)[0]
        assert (first["flag"], first["from"], first["to"]) == ("--engine", engine, "exact")
        assert admit(ask, tmp_path, *applied(described, flags | unit, change)).code == 0, change


def admit_text(ask: Ask, folder: Path, flags: dict[str, str]) -> str:
    words = [part for flag, value in flags.items() for part in (flag, value)]
    return ask("admit", "--fleet", folder / "fleet.yaml", *words).out


def test_flags_of_a_launch_line_that_are_not_priced_are_told_with_their_line_and_left_out(
    tmp_path: Path, ask: Ask
) -> None:
    launch = tmp_path / "serve.sh"
    launch.write_text(LAUNCH)
    model = str(write_json(tmp_path / "config.json", PLAIN))
    flags = {"--model": model, "--engine-args": str(launch), "--prompt-tokens": "100", "--new-tokens": "20"}
    described = fleet("2 MiB")
    answer = admit(ask, tmp_path, described, flags)
    assert answer.code == 1
    fix = answer.document["reasons"][0]["fix"]
    lora, experts, *rest = parts(fix)
    for part, flag in ((lora, "--enable-lora"), (experts, "--enable-expert-parallel")):
        assert (part["from"], part["to"]) == (flag, None)
        assert part["field"].endswith(f"serve.sh:1 {flag}")
    assert f"without {lora['field']}" in " ".join(admit_text(ask, tmp_path, flags).split())
    launch.write_text(LAUNCH.replace(" --enable-lora", "").replace("--enable-expert-parallel=true", ""))
    smaller = rest[0] | ({"and": rest[1:]} if rest[1:] else {})
    assert admit(ask, tmp_path, described, flags).code == 1
    assert admit(ask, tmp_path, *applied(described, flags, smaller)).code == 0
