"""What the commands say: one line for a document of another kind, advice that can be followed, help that is whole."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import pytest

from scenarios.checks import CHECK_NAMES
from scenarios.checks_plain import CHANGES
from scenarios.cli.__main__ import COMMANDS
from scenarios.documents import plan_id
from tests.checkpoint_files import Dims, write_checkpoint
from tests.command_line import Ask, asker, fleet, write_json

SHORT = ["--prompt", "hey", "--steps", "9"]
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 512,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
    "max_position_embeddings": 128, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def here(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """plan.json, run.json, case.yaml and fleet.yaml; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    assert ask("admit", "two-gpu", *SHORT, "--plan-out", "plan.json").code == 0
    assert ask("run", "plan.json", "--run-out", "run.json").code == 0
    (tmp_path / "case.yaml").write_text("schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\n")
    write_json(tmp_path / "fleet.yaml", fleet())
    write_json(tmp_path / "config.json", CONFIG)
    return tmp_path


MISTAKEN = [
    (["prove", "plan.json"], "plan.json: is a plan; prove takes a scenario (run, explain and compare take a plan)"),
    (["admit", "plan.json"], "plan.json: is a plan; admit takes a scenario"),
    (["admit", "fleet.yaml"], "fleet.yaml: is a fleet; admit takes a scenario"),
    (["admit", "--fleet", "plan.json"], "plan.json: is a plan; --fleet takes a fleet"),
    (["admit", "--fleet", "two-gpu"], "two-gpu: is a scenario; --fleet takes a fleet"),
    (["run", "run.json"], "run.json: is a run; run takes a scenario or a plan (compare takes a run)"),
    (["explain", "run.json"], "run.json: is a run; explain takes a plan"),
    (["explain", "two-gpu"], "two-gpu: is a scenario; explain takes a plan"),
    (["explain", "case.yaml"], "kvwaybill admit case.yaml --plan-out plan.json"),
    (["compare", "two-gpu", "run.json"], "two-gpu: is a scenario; compare takes plans and runs"),
    (["compare", "plan.json", "fleet.yaml"], "fleet.yaml: is a fleet; compare takes plans and runs"),
    (["fleet", "check", "plan.json"], "plan.json: is a plan; fleet check takes a fleet"),
    (["fleet", "show", "case.yaml"], "case.yaml: is a scenario; fleet show takes a fleet"),
    (["simulate", "plan.json"], "plan.json: is a plan; simulate takes a simulation or a scenario"),
    (["scenario", "show", "fleet.yaml"], "fleet.yaml: is a fleet; scenario show takes a scenario"),
]


@pytest.mark.parametrize(("arguments", "told"), MISTAKEN, ids=[" ".join(words) for words, _ in MISTAKEN])
def test_a_document_of_another_kind_is_one_line(arguments: list[str], told: str, here: Path, ask: Ask) -> None:
    answer = ask(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert told in answer.err
    assert len(answer.err.splitlines()) == 1


def test_a_plan_is_run_out_of_a_named_pipe(here: Path, ask: Ask) -> None:
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path("plan.json").read_bytes()), daemon=True)
    writer.start()
    assert ask("run", "pipe", "-o", "json").code == 0
    writer.join(10)
    assert not writer.is_alive()


def test_a_name_that_is_a_scenario_and_a_fleet_is_what_the_command_takes(here: Path, ask: Ask) -> None:
    assert ask("fleet", "show", "gpu-and-cpu").code == 0
    assert ask("admit", "--fleet", "gpu-and-cpu").code == 0
    assert ask("scenario", "show", "gpu-and-cpu").code == 0


def test_faults_of_a_fleet_are_data_as_well(here: Path, ask: Ask) -> None:
    (here / "bad.yaml").write_text("schema: kvwaybill/fleet/1\nname: x\nfoo: 1\n")
    answer = ask("fleet", "check", "bad.yaml", "-o", "json")
    assert answer.code == 2
    assert answer.document["verdict"] == "faulty"
    told = [(fault["line"], fault["column"], fault["field"]) for fault in answer.document["faults"]]
    assert (3, 1, "foo") in told
    assert all(fault["message"] in answer.err for fault in answer.document["faults"])
    assert ask("fleet", "check", "fleet.yaml", "-o", "json").document["faults"] == []


def test_what_was_observed_stands_beside_what_is_declared_with_its_source(here: Path, ask: Ask) -> None:
    described = fleet()
    capacity = {"declared": "64 MiB", "observed": {"value": "63 MiB", "tool": "nvml", "source": "lab"}}
    card = described["skus"]["card"]
    card["memories"] = [{"name": "hbm", "capacity": capacity}, {"name": "slow", "capacity": "1 GiB"}]
    card["default_memory"] = "hbm"
    write_json(here / "seen.yaml", described)
    text = ask("fleet", "show", "seen.yaml").out
    row = next(line for line in text.splitlines() if line.startswith("  gpu:0 "))
    assert "67,108,864 B" in row
    assert "66,060,288 B" in row
    assert "hbm*" in row
    assert "* the memory that plans use" in text
    for number in re.findall(r"\[([0-9]+)\]", row):
        assert re.search(rf"^  \[{number}\] \w+", text, re.MULTILINE)
    assert re.search(r"^  \[[0-9]+\] measured.*lab", text, re.MULTILINE)


def test_files_that_a_plan_does_not_find_are_told_at_once_with_their_flags(
    here: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = json.loads((here / "plan.json").read_text())
    document["inputs"]["model"]["path"] = "away/model.bin"
    document["inputs"]["tokenizer"] = {"path": "away/tok.bin", "digest": "0" * 64}
    write_json(here / "moved.json", document | {"id": plan_id(document)})
    answer = ask("run", "moved.json")
    assert answer.code == 2
    assert [line.split()[0] for line in answer.err.splitlines()] == ["away/model.bin:", "away/tok.bin:"]
    assert "--model PATH" in answer.err
    assert "--tokenizer PATH" in answer.err


def test_a_plan_that_the_executor_cannot_carry_out_is_not_said_to_be_runnable(here: Path, ask: Ask) -> None:
    words = ["admit", "--fleet", "two-gpu-nvlink", "--model", "config.json", "--isl", "9", "--osl", "9"]
    answer = ask(*words, "--plan-out", "hf.json")
    assert answer.code == 0
    assert "kvwaybill run" not in answer.err
    assert "a config.json holds no weights" in answer.err
    refused = ask("run", "hf.json")
    assert refused.code == 2
    assert "holds no weights" in refused.err
    assert "dtype" not in refused.err  # no type that could be asked for would mend it
    batch = ask("admit", "two-gpu", "--batch", "2", "--plan-out", "batch.json")
    assert "for admission only (batch 2)" in batch.err


def test_a_plan_of_a_count_says_that_a_prompt_is_needed(here: Path, ask: Ask) -> None:
    made = str(write_checkpoint(here, Dims(seq_len=32)))
    words = ["admit", "--fleet", "two-gpu-nvlink", "--model", made, "--prompt-tokens", "4", "--steps", "9"]
    assert "--prompt TEXT (of 4 tokens)" in ask(*words, "--plan-out", "count.json").err


def test_a_prompt_beyond_the_model_is_not_answered_with_zero_new_tokens(here: Path, ask: Ask) -> None:
    words = ["admit", "--fleet", "two-gpu-nvlink", "--model", "config.json"]
    long = ask(*words, "--isl", "300", "--osl", "3")
    assert long.code == 2
    assert "0 new tokens" not in long.err
    assert "a prompt of 126 at most" in long.err
    assert ask(*words, "--isl", "126", "--osl", "3").code == 0
    assert "use 29 new tokens" in ask(*words, "--isl", "100", "--osl", "30").err
    assert ask(*words, "--isl", "100", "--osl", "29").code == 0


def test_a_refusal_says_how_it_can_be_kept_and_explained(here: Path, ask: Ask) -> None:
    answer = ask("admit", "two-gpu-tight", "--plan-out", "refused.json")
    assert "no plan was written" in answer.err
    assert "kvwaybill explain refused.json" in answer.err
    (here / "refused.json").write_text(ask("admit", "two-gpu-tight", "-o", "json").out)
    assert "EXCEEDS_BUDGET" in ask("explain", "refused.json").out


def test_what_to_do_next_is_told_on_stderr(here: Path, ask: Ask) -> None:
    assert "kvwaybill prove two-gpu" in ask("run", "two-gpu", *SHORT).err
    assert "kvwaybill compare plan.json r.json" in ask("run", "plan.json", "--run-out", "r.json").err
    assert ask("-q", "run", "two-gpu", *SHORT).err == ""


def test_passes_that_end_inside_the_prompt_are_warned_of_on_stderr(here: Path, ask: Ask) -> None:
    for command in ("admit", "run"):
        answer = ask(command, "two-gpu", "--steps", "20")
        assert "warning: 20 passes end inside the prompt of 41 tokens" in answer.err
        assert "--steps 42 or more" in answer.err


def test_a_long_prompt_without_an_answer_is_asked_how_long_it_is(here: Path, ask: Ask) -> None:
    write_json(here / "long.json", CONFIG | {"max_position_embeddings": 1024})
    answer = ask("admit", "--fleet", "two-gpu-nvlink", "--model", "long.json", "--isl", "400")
    assert "say how long the answer is: --osl N (or --steps 401 or more)" in answer.err


SUBJECTS = {
    "gpu:1": {"gpu:1 weights", "gpu:1 kv_cache", "gpu:1 total", "gpu:1 slack"},
    "gpu:0 -> gpu:1": {"handoff k gpu:0->gpu:1", "handoff v gpu:0->gpu:1"},
    "handoff": {"handoff k gpu:0->gpu:1", "handoff v gpu:0->gpu:1", "handoff"},
    "kv_cache": {"gpu:0 kv_cache", "gpu:1 kv_cache"},
    "gpu:1 kv_cache": {"gpu:1 kv_cache"},
    "decode": {
        "decode tokens host->gpu:1",
        "decode next_token gpu:1->host",
        "decode passes",
        "decode dispatches",
        "decode time",
        "decode compute gpu:1",
    },
    "ttft": {"TTFT"},
    "tpot": {"TPOT"},
    "next_token": {"prefill next_token gpu:0->host", "decode next_token gpu:1->host"},
    "dispatches": {"prefill dispatches", "decode dispatches"},
    "EXCEEDS_BUDGET": {"EXCEEDS_BUDGET"},
}


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_figure_can_be_asked_for(subject: str, here: Path, ask: Ask) -> None:
    answer = ask("explain", "plan.json", subject, "-o", "json")
    assert answer.code == 0
    told = {each["subject"] for each in answer.document["derivations"]}
    assert SUBJECTS[subject] <= told
    if subject != "gpu:1":
        # each figure of bytes has its time beside it, and the handoff its payload, copies and legs
        beside = {f"{each} time" for each in SUBJECTS[subject] if "->" in each} & told
        whole = {f"handoff {word}" for word in ("time", "payload", "copies", "legs")}
        beside |= whole if subject == "handoff" else set()
        assert told == SUBJECTS[subject] | beside
        assert subject in ("ttft", "tpot", "kv_cache", "gpu:1 kv_cache", "dispatches", "EXCEEDS_BUDGET") or beside


def test_an_unknown_subject_is_answered_with_those_that_are_there(here: Path, ask: Ask) -> None:
    answer = ask("explain", "plan.json", "gpu:7\x1b[31m")
    assert answer.code == 2
    assert "\x1b" not in answer.err
    assert all(word in answer.err for word in ("gpu:1", "gpu:0->gpu:1", "kv_cache", "handoff"))


def test_tensors_of_equal_shape_are_one_term(here: Path, ask: Ask) -> None:
    words = ["--fleet", "two-gpu-nvlink", "--model", "config.json", "--isl", "9", "--osl", "9"]
    assert ask("admit", *words, "--plan-out", "hf.json").code == 0
    answer = ask("explain", "hf.json", "gpu:0 weights", "-o", "json")
    (derivation,) = answer.document["derivations"]
    (term,) = [term for term in derivation["terms"] if "q_proj" in term]
    assert re.fullmatch(r"3 layers x \S+q_proj\S* \[256 x 256\] x 2 B = 393,216 B", term)
    shares = [int(each.rsplit(" = ", 1)[1].removesuffix(" B").replace(",", "")) for each in derivation["terms"]]
    assert sum(shares) == derivation["bytes"]
    text = ask("explain", "hf.json", "gpu:0 weights").out
    assert all(any(line.endswith(each) for line in text.splitlines()) for each in derivation["terms"])


def test_control_characters_of_a_plan_do_not_reach_the_terminal(here: Path, ask: Ask) -> None:
    document = json.loads((here / "plan.json").read_text())
    document["inputs"]["model"]["name"] = "x\x1b[2J"
    document["reasons"] = [{"code": "A\x1b[2J", "severity": "warning", "message": "m\x1b]0;t\x07"}]
    document["limits"] = ["l\x1b[2J"]
    write_json(here / "odd.json", document | {"id": plan_id(document)})
    for arguments in (["explain", "odd.json"], ["compare", "plan.json", "odd.json"]):
        answer = ask(*arguments)
        assert answer.code in (0, 1, 2)
        assert "\x1b" not in answer.out + answer.err
        assert "\x07" not in answer.out + answer.err


def test_the_page_of_commands_names_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    assert [name for name in (*CHECK_NAMES, *CHANGES) if f"`{name}`" not in page] == []


@pytest.mark.parametrize("group", [[], ["fleet"], ["model"], ["scenario"]])
def test_short_helps_are_whole(group: list[str], ask: Ask) -> None:
    listed = ask(*group, "--help").out.partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_the_help_says_where_to_start_and_what_the_codes_mean(ask: Ask) -> None:
    text = ask("--help").out
    for words in ("Start with:", "kvwaybill admit two-gpu", "Exit codes: 0 yes, 1 no"):
        assert words in text
    for command in COMMANDS:
        shown = ask(command, "--help").out
        assert "[[" not in shown
        assert re.search(r"\b0 \w+|COMMAND", shown)
