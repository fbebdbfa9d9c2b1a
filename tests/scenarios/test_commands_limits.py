"""What every command keeps to: limits with each result, defaults never silent, and a start that loads little."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

from scenarios.cli.__main__ import make_app
from tests.checkpoint_files import Dims, write_checkpoint
from tests.command_line import Ask, Document, asker, fleet, write_json

SHORT = ["--prompt", "hey", "--steps", "9"]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def files(tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> Path:
    """plan.json, run.json, and a model of a family that is not understood; the current folder is theirs."""
    monkeypatch.chdir(tmp_path)
    assert ask("admit", "two-gpu", *SHORT, "--plan-out", "plan.json").code == 0
    assert ask("run", "plan.json", "--run-out", "run.json").code == 0
    line = "KV Transfer metrics: Num successful transfers=4, Avg MB per transfer=2.25, Avg number of descriptors=72.0"
    (tmp_path / "engine.log").write_text(line)
    write_json(tmp_path / "config.json", {"model_type": "never_heard_of", "architectures": ["NeverForCausalLM"]})
    return tmp_path


PLANNED, FILE, ANY, SIMULATED = "planned", "file", "any", "simulated"
TIMED, HISTORY, AUDITED, IMPORTED = "timed", "history", "audited", "imported"
"""What the limits of a result are about: what the executor computes and where, what is declared, or anything."""
RESULTS: list[tuple[list[str], int, str]] = [
    (["admit", "two-gpu"], 0, PLANNED),
    (["admit", "two-gpu-host"], 0, PLANNED),
    (["admit", "two-gpu-tight"], 1, PLANNED),
    (["admit", "two-gpu-unknown"], 3, PLANNED),
    (["admit", "--fleet", "two-gpu-nvlink", "--fleet", "two-gpu-tight"], 1, PLANNED),
    (["admit", "two-gpu", "--model", "config.json", "--prompt-tokens", "4"], 3, ANY),
    (["place", "two-gpu"], 0, PLANNED),
    (["place", "two-gpu-tight"], 1, PLANNED),
    (["place", "--fleet", "hgx-h100", "--batch", "1,2"], 0, PLANNED),
    (["place", "two-gpu", "--model", "config.json", "--prompt-tokens", "4"], 3, ANY),
    (["run", "two-gpu", *SHORT], 0, PLANNED),
    (["run", "plan.json"], 0, PLANNED),
    (["run", "plan.json", "--without", "handoff"], 1, PLANNED),
    (["run", "two-gpu", "--prompt", "hey", "--steps", "3"], 3, PLANNED),
    (["run", "two-gpu-tight"], 1, PLANNED),
    (["prove", "one-gpu", "--prompt", "Carry it all over.", "--steps", "30"], 0, PLANNED),
    (["prove", "two-gpu-unknown"], 3, PLANNED),
    (["compare", "plan.json", "run.json"], 0, PLANNED),
    (["compare", "plan.json", "plan.json"], 0, PLANNED),
    (["compare", "run.json", "run.json"], 0, PLANNED),
    (["compare", "plan.json", "engine.log"], 3, IMPORTED),
    (["history", "run.json"], 0, HISTORY),
    (["audit", "engine.log"], 0, AUDITED),
    (["explain", "plan.json"], 0, PLANNED),
    (["explain", "plan.json", "gpu:0->gpu:1"], 0, PLANNED),
    (["model", "show"], 0, ANY),
    (["model", "show", "config.json"], 3, ANY),
    (["scenario", "list"], 0, ANY),
    (["scenario", "show", "two-gpu"], 0, ANY),
    (["backends"], 0, ANY),
    (["simulate", "chat"], 0, SIMULATED),
    (["sweep", "chat-pools", "--jobs", "1"], 0, SIMULATED),
    (["calibrate"], 0, TIMED),
    (["fleet", "check", "two-gpu-nvlink"], 0, FILE),
    (["fleet", "show", "two-gpu-nvlink"], 0, FILE),
    (["fleet", "catalog"], 0, FILE),
]
ABOUT: dict[str, Callable[[str], bool]] = {
    PLANNED: lambda words: all(word in words for word in ("f32", "batch 1", "attention: ", "host")),
    ANY: lambda words: "f32" in words and "batch 1" in words,
    FILE: lambda words: "declared" in words,
    TIMED: lambda words: "no contention" in words,
    AUDITED: lambda words: "none is chosen" in words and "does not see" in words,
    IMPORTED: lambda words: "witness import" in words and "does not see" in words,
    HISTORY: lambda words: "order given" in words and "emulated" in words,
    SIMULATED: lambda words: "unscored" in words and "not simulated" in words,
}
SCHEMAS = [["fleet", "schema"], ["scenario", "schema"]]
WRITTEN = [["fleet", "import"], ["fleet", "discover"], ["report"]]
"""Commands whose text is a file, for other commands or for a browser: it holds nothing else."""
DRIVEN = [["witness"]]
"""Commands whose answer depends on the driver that is there; their limits are tested beside the driver's."""


def commands(group: typer.Typer, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command line that the app knows, without arguments."""
    for command in group.registered_commands:
        assert command.name
        yield (*before, command.name)
    for inner in group.registered_groups:
        assert inner.name
        assert inner.typer_instance
        yield from commands(inner.typer_instance, (*before, inner.name))


def test_every_command_is_in_the_table_of_results() -> None:
    asked = [arguments for arguments, *_ in RESULTS] + SCHEMAS + WRITTEN + DRIVEN
    for command in commands(make_app()):
        assert any(tuple(arguments[: len(command)]) == command for arguments in asked), command


@pytest.mark.parametrize(
    ("arguments", "code", "about"), RESULTS, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_limits_are_printed_with_every_result_in_text_and_json(
    arguments: list[str], code: int, about: str, files: Path, ask: Ask
) -> None:
    found = ask(*arguments, "-o", "json")
    assert found.code == code
    assert re.fullmatch("kvwaybill/[a-z-]+/1", found.document["schema"])
    documents: list[Document] = found.document.get("plans") or [found.document]
    text = ask(*arguments)
    assert text.code == code
    for document in documents:
        assert ABOUT[about](" ".join(document["limits"]))
        assert "limits" in text.out.lower()
        assert all(limit in text.out for limit in document["limits"])


@pytest.mark.parametrize("arguments", SCHEMAS, ids=" ".join)
@pytest.mark.parametrize("output", ["text", "json"])
def test_a_schema_is_json_in_every_format(arguments: list[str], output: str, ask: Ask) -> None:
    assert ask(*arguments, "-o", output).document["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize("arguments", [["admit"], ["run"], ["prove"]], ids=" ".join)
@pytest.mark.parametrize("output", ["text", "json"])
def test_chosen_defaults_are_printed_by_every_command_that_chooses(
    arguments: list[str], output: str, tmp_path: Path, ask: Ask
) -> None:
    write_json(tmp_path / "fleet.yaml", fleet() | {"budget": {"reserve": "0 B"}})
    scenario = {
        "schema": "kvwaybill/scenario/1",
        "fleet": "fleet.yaml",
        "workload": {"prompt": "Carry it.", "steps": "32"},
    }
    found = ask(*arguments, write_json(tmp_path / "bare.yaml", scenario), "-o", output)
    assert found.code == 0
    told = " ".join(found.document["defaults"]) if output == "json" else found.out
    for choice in ("prefill: gpu:0", "decode: gpu:1", "embedded default", "utilization: 0.9 (no flag and no budget"):
        assert choice in told


def test_the_utilization_of_the_fleet_is_taken_and_named(tmp_path: Path, ask: Ask) -> None:
    described = write_json(tmp_path / "fleet.yaml", fleet(utilization="0.5"))
    defaults = ask("admit", "--fleet", described, "-o", "json").document["defaults"]
    assert "utilization: 0.5 (the fleet's budget)" in defaults
    given = ask("admit", "--fleet", described, "--utilization", "0.75", "-o", "json").document
    assert not [words for words in given["defaults"] if words.startswith("utilization")]
    assert {entry["budget_bytes"] for entry in given["memory"]} == {48 * 2**20}


def test_quiet_keeps_results_and_drops_remarks(tmp_path: Path, ask: Ask) -> None:
    loud = ask("admit", "two-gpu", "--plan-out", tmp_path / "plan.json")
    for arguments in (["-q", "admit", "two-gpu"], ["admit", "two-gpu", "--quiet"]):
        quiet = ask(*arguments, "--plan-out", tmp_path / "plan.json")
        assert (quiet.out, quiet.err) == (loud.out, "")
    assert loud.err


def test_version_is_one_line(ask: Ask) -> None:
    from importlib.metadata import version

    assert ask("--version").out == f"kvwaybill {version('kvwaybill')}\n"


def loaded_by(lines: list[list[str]], names: tuple[str, ...]) -> list[str]:
    """The modules of `names` that a fresh interpreter has loaded after these command lines."""
    code = (
        "import io, json, sys; from scenarios.cli.__main__ import main\n"
        "out, sys.stdout = sys.stdout, io.StringIO()\n"
        f"codes = [main(line) for line in {lines!r}]\n"
        "sys.stdout = out\n"
        f"assert set(codes) <= {{0, 1, 3}}, codes\n"
        f"print(json.dumps([name for name in {names!r} if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


HEAVY = ("numba", "llvmlite", "cupy", "networkx", "numpy", "ruamel.yaml", "rich")


def test_help_loads_no_heavy_module() -> None:
    assert loaded_by([["--help"]], (*HEAVY, "pydantic")) == []


def test_the_help_of_every_command_loads_no_heavy_module() -> None:
    """Typer itself takes pydantic to look at a command's parameters."""
    assert loaded_by([[*command, "--help"] for command in commands(make_app())], HEAVY) == []


def test_admit_loads_no_executor_library(tmp_path: Path) -> None:
    made = str(write_checkpoint(tmp_path, Dims(seq_len=32)))
    lines = [
        ["admit", "two-gpu"],
        ["admit", "two-gpu-tight", "-o", "json"],
        [
            "admit",
            "--fleet",
            "two-gpu-nvlink",
            "--fleet",
            "two-gpu-staged",
            "--attention",
            "host",
            "--prompt-tokens",
            "9",
        ],
        ["admit", "--fleet", "two-gpu-nvlink", "--model", made, "--steps", "9", "--plan-out", str(tmp_path / "p.json")],
        ["explain", str(tmp_path / "p.json")],
    ]
    assert loaded_by(lines, ("numba", "llvmlite", "cupy", "numpy")) == []
