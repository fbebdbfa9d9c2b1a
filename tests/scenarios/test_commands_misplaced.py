"""A file in another's place is answered in one sentence: what it is, what was wanted there, what takes it."""

from __future__ import annotations

import inspect
import json
import re
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import typer

from scenarios.cli.__main__ import make_app
from scenarios.cli.file_kinds import kind_of_file, kind_of_name
from scenarios.cli.kinds import in_words
from scenarios.cli.misplaced import WANTED
from tests.command_line import Ask, asker

CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2}
LOG = "(EngineCore) KV Transfer metrics: Num successful transfers=4, Avg MB per transfer=2.25\n"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
SMI = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31\n\nLegend:\n\n  X    = Self\n"
TENSORS = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
TEXTS: dict[str, tuple[str, str | bytes]] = {
    "plan": ("plan.json", '{"schema": "kvwaybill/plan/1"}'),
    "run": ("run.json", '{"schema": "kvwaybill/run/1"}'),
    "comparison": ("comparison.json", '{"schema": "kvwaybill/comparison/1"}'),
    "audit": ("audit.json", '{"schema": "kvwaybill/audit/1"}'),
    "report": ("report.json", '{"schema": "kvwaybill/report/1"}'),
    "sweep-result": ("result.json", '{"schema": "kvwaybill/sweep-result/1"}'),
    "fleet": ("fleet.yaml", "# mine\nschema: kvwaybill/fleet/1\nname: mine\n"),
    "scenario": ("scenario.yaml", "schema: kvwaybill/scenario/1\nname: mine\n"),
    "simulation-scenario": ("chat.yaml", "schema: kvwaybill/simulation-scenario/1\nname: mine\n"),
    "sweep": ("sweep.yaml", "schema: kvwaybill/sweep/1\nname: mine\n"),
    "sweep-journal": ("s.journal.jsonl", '{"schema":"kvwaybill/sweep-journal/1"}\n{"case":1}\n'),
    "model-config": ("config.json", json.dumps(CONFIG, indent=2)),
    "checkpoint": ("model.safetensors", struct.pack("<Q", len(TENSORS)) + TENSORS + b"\0" * 8),
    "tokenizer": ("tokenizer.json", json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}}}, indent=1)),
    "topology": ("topo.txt", SMI),
    "in-use": ("used.csv", "index, memory.used [MiB]\n0, 5 MiB\n"),
    "observation": ("decode.log", "started\n" * 3 + LOG),
    "trace": ("trace.csv", AZURE),
    "records": ("records.jsonl", '{"request":0,"state":"finished","arrival_ps":1}\n{"request":1,"arrival_ps":2}\n'),
    "launch": ("serve.sh", "#!/bin/sh\nexport A=1\nvllm serve Qwen/Qwen3-8B --tensor-parallel-size 2\n"),
    "timeline": ("timeline.json", '{"traceEvents": []}'),
    "page": ("report.html", "<!DOCTYPE html>\n<html lang='en'></html>"),
    "junit": ("waybill.xml", '<?xml version="1.0"?>\n<testsuites></testsuites>'),
    "json-schema": ("fleet.schema.json", '{"$schema": "https://json-schema.org/draft/2020-12/schema"}'),
    "empty": ("empty.txt", " \n"),
}
QUESTION = ("--fleet", "two-gpu-nvlink", "--isl", "10", "--osl", "2")
COMMANDS: dict[str, tuple[str, ...]] = {
    "admit": ("admit", "*"),
    "admit --fleet": ("admit", "--fleet", "*", "--isl", "10", "--osl", "2"),
    "admit --model": ("admit", *QUESTION, "--model", "*"),
    "admit --tokenizer": ("admit", "two-gpu", "--tokenizer", "*"),
    "admit --in-use": ("admit", "two-gpu", "--in-use", "*"),
    "admit --engine-args": ("admit", *QUESTION, "--engine-args", "*"),
    "place": ("place", "*"),
    "place --fleet": ("place", "--fleet", "*"),
    "explain": ("explain", "*"),
    "run": ("run", "*"),
    "run --model": ("run", "two-gpu", "--model", "*"),
    "prove": ("prove", "*"),
    "compare": ("compare", "*", "run.json"),
    "audit": ("audit", "*"),
    "audit --model": ("audit", "decode.log", "--model", "*"),
    "history": ("history", "*"),
    "history --plan": ("history", "run.json", "--plan", "*"),
    "report": ("report", "*", "-o", "md"),
    "simulate": ("simulate", "*"),
    "simulate --trace": ("simulate", "chat", "--trace", "*"),
    "simulate --fleet": ("simulate", "chat", "--fleet", "*"),
    "sweep": ("sweep", "*", "--dry-run"),
    "sweep --journal": ("sweep", "chat-pools", "--resume", "--journal", "*"),
    "witness --plan": ("witness", "--plan", "*", "--", "python", "x.py"),
    "calibrate --onto": ("calibrate", "--onto", "*", "--overlay-out", "out.yaml"),
    "fleet import": ("fleet", "import", "*"),
    "fleet show": ("fleet", "show", "*"),
    "fleet show --plan": ("fleet", "show", "two-gpu-nvlink", "--plan", "*"),
    "fleet check": ("fleet", "check", "*"),
    "model show": ("model", "show", "*"),
    "scenario show": ("scenario", "show", "*"),
}


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in TEXTS.values():
        (tmp_path / name).write_bytes(text.encode() if isinstance(text, str) else text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", TEXTS)
def test_each_kind_is_known_by_content_whatever_its_name(kind: str, tmp_path: Path) -> None:
    text = TEXTS[kind][1]
    path = tmp_path / "anything"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    assert kind_of_file(str(path)) == kind


def test_binary_files_and_folders_are_known_too(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "nsys") as database:
        database.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY(bytes INTEGER)")
    (tmp_path / "gguf").write_bytes(b"GGUF" + bytes(20))
    (tmp_path / "llama2c").write_bytes(struct.pack("<7i", 64, 172, 5, 8, 4, 512, 512) + bytes(64))
    (tmp_path / "tok.bin").write_bytes(struct.pack("<ifi", 7, 0.0, 5) + b"<unk>" + bytes(8))
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    for name, file in (("model", "config.json"), ("trtllm", "rank_0_send.csv"), ("other", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    expected = {
        "nsys": "observation", "gguf": "checkpoint", "llama2c": "checkpoint", "tok.bin": "tokenizer", "noise": None,
        "model": "model-folder", "trtllm": "observation", "other": None, "gone": None,
    }  # fmt: skip
    assert {name: kind_of_file(str(tmp_path / name)) for name in expected} == expected


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_names_the_kind_that_stands_where_another_is_wanted(name: str, files: Path, ask: Ask) -> None:
    words = COMMANDS[name]
    at = list(TEXTS).index("model-config") if "model" not in name else list(TEXTS).index("fleet")
    turn = list(COMMANDS).index(name)
    for kind in (list(TEXTS)[at], list(TEXTS)[turn % len(TEXTS)]):
        file = TEXTS[kind][0]
        answer = ask(*(file if word == "*" else word for word in words))
        if kind in _taken(name):
            continue
        assert answer.code == 2, (name, kind, answer)
        lines = answer.err.strip().splitlines()
        assert len(lines) == 1, (name, kind, lines)
        assert f"{file}: is {in_words(kind)}" in lines[0], (name, kind, lines)
        assert " takes " in lines[0] or " take " in lines[0]
        assert answer.out == ""


def _taken(name: str) -> tuple[str, ...]:
    words = name.split()
    for wanted in (words[-1].strip("-").replace("-", "_"), "target", "a", "log", "runs", "documents", "file"):
        if wanted in WANTED and (words[-1].startswith("-") or wanted in ("fleet", "model", "scenario")):
            return WANTED[wanted][0]
    arguments = {
        "run": "target", "compare": "a", "audit": "log", "history": "runs", "report": "documents", "explain": "plan",
        "fleet import": "file", "fleet show": "fleet", "fleet check": "fleet", "model show": "model", "sweep": "sweep",
    }  # fmt: skip
    return (*WANTED[arguments.get(name, "scenario")][0], *(("simulation-scenario",) if name == "simulate" else ()))


def test_the_option_of_the_same_command_is_named_first(files: Path, ask: Ask) -> None:
    answer = ask("admit", "--fleet", "config.json")
    assert answer.err == "error: config.json: is a model config; --fleet takes a fleet (give it with --model)\n"
    answer = ask("audit", "config.json")
    assert "give it with --model" in answer.err
    answer = ask("explain", "config.json")
    assert "(--model takes it)" in answer.err


def test_all_files_of_another_kind_are_told_at_once(files: Path, ask: Ask) -> None:
    lines = ask("admit", "--fleet", "config.json", "--fleet", "plan.json").err.splitlines()
    assert sorted(lines) == [
        "config.json: is a model config; --fleet takes a fleet (give it with --model)",
        "plan.json: is a plan; --fleet takes a fleet (run, explain and compare take a plan)",
    ]


def test_a_tokenizer_json_is_no_tokenizer_of_a_llama2c_model(files: Path, ask: Ask) -> None:
    answer = ask("admit", "two-gpu", "--tokenizer", "tokenizer.json")
    assert answer.code == 2
    assert "tokenizer.json: is JSON (a tokenizer.json?); seeded-260K is a llama2.c model" in answer.err


def test_a_shipped_name_of_another_kind_is_told(files: Path, ask: Ask) -> None:
    assert ask("admit", "chat").err == (
        "error: chat: is a simulation scenario; admit takes a scenario "
        "(simulate takes a simulation; a sweep names it as its base)\n"
    )
    assert "is a fleet; admit takes a scenario (give it with --fleet)" in ask("admit", "hgx-h100").err


def test_a_name_of_two_shipped_things_is_what_is_wanted() -> None:
    assert kind_of_name("gpu-and-cpu", ("fleet", "topology")) == "fleet"
    assert kind_of_name("gpu-and-cpu", ("scenario",)) == "scenario"
    assert kind_of_name("no-such-thing") is None


def test_a_file_that_a_scenario_names_under_the_wrong_key_is_told(files: Path, ask: Ask) -> None:
    (files / "mine.yaml").write_text(
        "schema: kvwaybill/scenario/1\nname: mine\nfleet: config.json\nworkload: {prompt_tokens: 4, new_tokens: 2}\n"
        "placement: {prefill: gpu:0, decode: gpu:1}\n"
    )
    assert (
        ask("admit", "mine.yaml").err
        == "error: config.json: is a model config; fleet: takes a fleet (--model takes it)\n"
    )
    (files / "sub").mkdir()
    (files / "sub" / "mine.yaml").write_text(
        "schema: kvwaybill/scenario/1\nname: mine\nfleet: two-gpu-nvlink\nmodel: ../fleet.yaml\n"
        "workload: {prompt_tokens: 4, new_tokens: 2}\nplacement: {prefill: gpu:0, decode: gpu:1}\n"
    )
    answer = ask("admit", "sub/mine.yaml")
    assert answer.code == 2
    assert "is a fleet; model: takes a model" in answer.err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "sweep --journal"])
def test_a_missing_file_is_told_with_a_way_to_mend_it(name: str, files: Path, ask: Ask) -> None:
    answer = ask(*("decod.log" if word == "*" else word for word in COMMANDS[name]))
    assert answer.code == 2, answer
    line = answer.err.strip()
    assert "o such file" in line
    assert "\n" not in line
    assert "give the path" in line or "shipped" in line, line


def test_the_name_that_was_meant_is_offered_and_no_far_one(files: Path, ask: Ask) -> None:
    answer = ask("audit", "decod.log")
    assert answer.err.endswith("give the path of a file that exists; did you mean decode.log?\n")
    assert "did you mean" not in ask("audit", "gone.yaml").err
    (files / "logs").mkdir()
    (files / "logs" / "prefill.log").write_text(LOG)
    assert "did you mean logs/prefill.log?" in ask("audit", "logs/prefil.log").err


def test_faults_of_the_right_kind_are_all_told_as_before(files: Path, ask: Ask) -> None:
    (files / "faulty.yaml").write_text("schema: kvwaybill/scenario/1\nnamme: a\nfleet: two-gpu-nvlink\nplacment: 1\n")
    answer = ask("admit", "faulty.yaml")
    assert answer.code == 2
    assert "namme" in answer.err
    assert "placment" in answer.err


def _files(app: typer.Typer) -> Iterator[str]:
    """Names of all parameters of commands that read a file, by what the help calls their value."""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from _files(group.typer_instance)
    for each in app.registered_commands:
        assert each.callback is not None
        for name, parameter in inspect.signature(each.callback).parameters.items():
            words = str(get_args(parameter.annotation)[1].metavar)
            if re.search(r"FILE|\.json|PLAN|SCENARIO|FLEET|DOCUMENT", words) and not name.endswith("out"):
                yield name


def test_every_file_of_a_command_line_has_its_kinds() -> None:
    names = set(_files(make_app()))
    assert {"plan", "in_use", "engine_args", "trace", "documents", "onto"} <= names
    assert sorted(names - set(WANTED)) == [], "say in scenarios/cli/misplaced.py which kinds it takes"
