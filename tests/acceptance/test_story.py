"""The story that the project tells, by the command line alone: admit, run, compare, and what the README shows of it.

Golden tokens equal single-device tokens equal split tokens; the devices switch at the phase boundary and nowhere else;
without the handoff the tokens differ. Once on llama2.c's own model and once on the embedded one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.readme_proof import README, SHOWN, matrix_place, printed_lines, written_anew
from tests.command_line import Ask, Document, asker, write_json
from tests.executor.requests import GOLDEN, GOLDEN_ABSENT

golden_only = pytest.mark.skipif(not GOLDEN.is_dir(), reason=GOLDEN_ABSENT)
MODES = ["device", "host"]
PLACES = {"there": ("gpu:0", "gpu:1"), "back": ("gpu:1", "gpu:0")}


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def golden_run(name: str, steps: int) -> Document:
    runs: list[Document] = json.loads((GOLDEN / "golden.json").read_text())
    return next(run for run in runs if run["name"] == name and run["n_arg"] == steps)


def scenario(folder: Path, run: Document, **more: Any) -> Path:
    """A golden run as a scenario that expects what llama2.c walked."""
    document = {
        "schema": "kvwaybill/scenario/1", "name": run["name"], "fleet": "two-gpu-nvlink",
        "model": str(GOLDEN / "stories260K.bin"), "tokenizer": str(GOLDEN / "tok512.bin"),
        "workload": {"prompt": run["prompt"], "steps": str(run["n_arg"])},
        "expect": [str(token) for token in run["token_ids"]],
    }  # fmt: skip
    return write_json(folder / f"{run['name']}.yaml", document | more)


def check(document: Document, name: str) -> str:
    result: str = next(c["result"] for c in document["comparison"]["checks"] if c["name"] == name)
    return result


def devices_in_order(run: Document) -> list[tuple[str, str]]:
    return [(stretch["phase"], stretch["device"]) for stretch in run["dispatches"]]


@golden_only
@pytest.mark.shared
@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ["once_upon_a_time", "lily_tom_park", "unicode_emoji", "spaces_newline"])
def test_golden_tokens_equal_single_device_tokens_equal_split_tokens(
    name: str, place: str, attention: str, tmp_path: Path, ask: Ask
) -> None:
    golden = golden_run(name, 32)
    prefill, decode = PLACES[place]
    case = scenario(tmp_path, golden, attention=attention, placement={"prefill": prefill, "decode": decode})
    single = ask("run", case, "--fleet", "one-gpu", "--prefill", "gpu:0", "--decode", "gpu:0", "-o", "json")
    split = ask("run", case, "-o", "json")
    assert (single.code, split.code) == (0, 0)
    for run in (single.document, split.document):
        assert run["tokens"] == golden["token_ids"]
        assert run["generated_tokens"] == golden["generated_token_ids"]
        assert run["n_prompt_tokens"] == len(golden["prompt_tokens"])
        assert run["text_hex"] == golden["text_hex"]
        assert check(run, "tokens_equal_reference") == "passed"
    assert single.document["logits_top1_bits"] == split.document["logits_top1_bits"]
    assert devices_in_order(split.document) == [("prefill", prefill), ("decode", decode)]
    first, second = split.document["dispatches"]
    assert (first["last_step"] + 1, second["last_step"]) == (second["first_step"], golden["forward_calls"] - 1)
    lost = ask("run", case, "--without", "handoff", "-o", "json")
    assert lost.code == 1
    assert lost.document["tokens"] != golden["token_ids"]
    assert (
        lost.document["tokens"][: len(golden["prompt_tokens"]) + 1]
        == golden["token_ids"][: len(golden["prompt_tokens"]) + 1]
    )
    assert check(lost.document, "tokens_equal_reference") == "failed"


@golden_only
@pytest.mark.shared
def test_the_golden_run_that_bos_ends_is_equal_and_its_text_is_whole(tmp_path: Path, ask: Ask) -> None:
    golden = golden_run("empty", 0)
    assert golden["stopped_on_bos"]
    case = scenario(tmp_path, golden | {"prompt": ""})
    answer = ask("run", case, "-o", "json")
    assert answer.code == 0
    assert answer.document["stopped"] == "bos"
    assert answer.document["tokens"] == golden["token_ids"]
    assert answer.document["text_hex"] == golden["text_hex"]
    assert sum(answer.document["passes"].values()) == golden["forward_calls"]


WALK_PROMPT = "Lily and Tom went to the park. They"
WALKED: dict[tuple[str, str], dict[str, tuple[int, int]]] = {
    ("two-gpu-nvlink", "device"): {
        "host->gpu:0": (1_040_184, 25), "host->gpu:1": (1_040_132, 12), "gpu:0->gpu:1": (17_920, 10),
        "gpu:0->host": (4, 1), "gpu:1->host": (104, 26),
    },
    ("two-gpu-staged", "device"): {
        "host->gpu:0": (1_040_184, 25), "host->gpu:1": (1_058_052, 22), "gpu:0->host": (17_924, 11),
        "gpu:1->host": (104, 26),
    },
    ("two-gpu-nvlink", "host"): {
        "host->gpu:0": (1_214_496, 522), "gpu:0->host": (196_672, 504), "gpu:0->gpu:1": (17_920, 10),
        "host->gpu:1": (1_333_088, 944), "gpu:1->host": (383_168, 946),
    },
}  # fmt: skip
"""The case walked by hand: 14 prompt ids, 40 passes of stories260K; bytes and copies of every edge."""


@golden_only
@pytest.mark.shared
@pytest.mark.parametrize(("fleet", "attention"), WALKED)
def test_the_case_walked_by_hand_is_planned_counted_and_observed_so(fleet: str, attention: str, ask: Ask) -> None:
    words = [
        "two-gpu", "--fleet", fleet, "--attention", attention, "--prompt", WALK_PROMPT, "--steps", "40",
        "--model", str(GOLDEN / "stories260K.bin"), "--tokenizer", str(GOLDEN / "tok512.bin"), "-o", "json",
    ]  # fmt: skip
    plan, answer = ask("admit", *words).document, ask("run", *words)
    assert answer.code == 0
    for document in (plan, answer.document):
        edges = {f"{e['src']}->{e['dst']}": (e["bytes"], e["copies"]) for e in document["edges"]}
        assert edges == WALKED[fleet, attention]
    assert (plan["handoff"]["bytes"], plan["handoff"]["copies"]) == (17_920, 10)
    dispatches = {"device": {"prefill": 491, "decode": 936}, "host": {"prefill": 504, "decode": 936}}[attention]
    assert plan["dispatches"] == dispatches
    assert {stretch["phase"]: stretch["count"] for stretch in answer.document["dispatches"]} == dispatches
    moved = [row for row in answer.document["comparison"]["rows"] if row["phase"] in ("stage", "handoff")]
    assert all(row["observed_bytes"] == row["counted_bytes"] == row["predicted_bytes"] for row in moved)


@pytest.mark.parametrize("name", ["two-gpu", "two-gpu-staged", "two-gpu-host", "gpu-and-cpu"])
def test_on_the_embedded_model_the_split_walks_what_one_device_walks(name: str, ask: Ask) -> None:
    split = ask("run", name, "-o", "json").document
    attention = "host" if name == "two-gpu-host" else "device"
    single = ask("run", "one-gpu", "--attention", attention, "-o", "json").document
    assert split["tokens"] == single["tokens"]
    assert split["logits_top1_bits"] == single["logits_top1_bits"]
    assert len(devices_in_order(split)) == 2
    assert {device for _, device in devices_in_order(single)} == {"gpu:0"}
    for place in (name, "one-gpu"):
        lost = ask("run", place, "--without", "handoff", "-o", "json")
        assert lost.code == 1
        assert lost.document["tokens"] != single["tokens"]
    assert split["tier"] == "emulated"
    assert len(split["physical_devices"]) == 1
    assert (split["physical_devices"][0]["uuid"], split["physical_devices"][0]["pci"]) == (None, None)
    assert check(split, "two_physical_devices") == "inconclusive"
    assert check(single, "two_physical_devices") == "waived"


def sessions() -> Iterator[tuple[list[str], list[str]]]:
    """(command, the lines that the README shows below it) of every session in it; `...` stands for lines left out."""
    for block in re.findall(r"(?:^    .*\n|^\n)+", README.read_text(), re.MULTILINE):
        for part in re.split(r"^    \$ ", block, flags=re.MULTILINE)[1:]:
            first, *shown = part.splitlines()
            words = shlex.split(first.split("#")[0])
            if words[:1] == ["kvwaybill"]:
                yield words[1:], [line[4:] for line in shown]


def plain(lines: list[str]) -> str:
    """Lines as words: the README may break a long line."""
    return " ".join(" ".join(lines).split())


def test_the_readme_shows_what_the_commands_print(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every session that needs no file of the reader's; so that the README cannot go stale."""
    monkeypatch.chdir(tmp_path)
    told = 0
    for arguments, shown in sessions():
        if "--model" in arguments or not any(shown):
            if arguments[:2] == ["admit", "two-gpu"]:
                assert ask(*arguments).code == 0  # the plan that the next session runs
            continue
        printed = plain(ask(*arguments).out.splitlines())
        parts: list[list[str]] = [[]]
        for line in shown:
            if line.strip() == "...":
                parts.append([])
            else:
                parts[-1].append(line)
        for part in parts:
            assert plain(part) in printed, part
            told += len(part)
    assert told > 40


def test_the_matrix_of_the_readme_is_the_one_that_prove_prints(ask: Ask) -> None:
    answer = ask("prove", SHOWN)
    assert answer.code == 0

    readme = README.read_text()
    assert written_anew(readme, answer.out) == readme, "python -m tests.acceptance.readme_proof"
    first, last = matrix_place(printed_lines(answer.out))
    assert last - first > 25
