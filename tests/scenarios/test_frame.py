"""Exit codes and the frame of the command line: a crash never reads as "no", and no traceback without --debug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from fleet.errors import (
    BackendError,
    DescriptionError,
    Fault,
    FenceError,
    InconclusiveError,
    LedgerOverflowError,
    PlacementError,
)
from scenarios.cli import frame
from scenarios.cli.__main__ import COMMANDS, main, make_app
from scenarios.cli.console import Console
from scenarios.documents import write_document
from tests.scenarios.made import plan, run_of

MODULE = [sys.executable, "-m", "scenarios.cli"]


def ending(outcome: BaseException | int | Callable[[Console], int] | None) -> Callable[[], typer.Typer]:
    """An app whose only command `go` ends in this way."""

    def make() -> typer.Typer:
        app = frame.new_app("An app for tests.")
        app.callback()(frame.global_options)

        @frame.command(app, "go")
        def go(console: Console) -> int:
            """Ends."""
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome(console) if callable(outcome) else outcome  # type: ignore[return-value]

        return app

    return make


RAISED: list[tuple[BaseException, int, str]] = [
    (DescriptionError.at("pair.yaml", "hbn", "no such field", 6, 5), 2, "pair.yaml:6:5 hbn no such field"),
    (PlacementError("gpu:9 is not described"), 2, "gpu:9"),
    (InconclusiveError("no GPU here"), 3, "no GPU here"),
    (BackendError("the device fell over"), 4, "fell over"),
    (FenceError("beyond the fence"), 4, "fence"),
    (LedgerOverflowError("too many"), 4, "too many"),
    (RuntimeError("a bug"), 4, "internal error: RuntimeError: a bug; run again with --debug for details"),
    (KeyError("x"), 4, "internal error"),
    (ValueError("two\nlines"), 4, "two lines"),
    (MemoryError(), 4, "out of memory"),
    (RecursionError("deep"), 4, "nested too deeply"),
    (ModuleNotFoundError("No module named 'x'"), 4, "internal error"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (BrokenPipeError(32, "Broken pipe"), 141, ""),
]


@pytest.mark.parametrize(("error", "code", "words"), RAISED, ids=[type(error).__name__ for error, *_ in RAISED])
def test_each_exception_has_its_code_and_one_sentence(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.main(ending(error), ["go"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert "Traceback" not in err
    assert err.count("\n") == (1 if words else 0)


@pytest.mark.parametrize("error", [RuntimeError("a bug"), DescriptionError.at("f", "", "wrong"), BackendError("fell")])
@pytest.mark.parametrize("arguments", [["--debug", "go"], ["go", "--debug"]])
def test_debug_shows_the_traceback_on_stderr(
    error: Exception, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    frame.main(ending(error), arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback (most recent call last)" in err


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4])
def test_the_code_that_a_command_returns_is_the_exit_code(code: int) -> None:
    assert frame.main(ending(code), ["go"]) == code


@pytest.mark.parametrize("value", [None, True, "0"])
def test_a_command_that_forgets_its_code_is_a_bug_and_not_a_yes(value: Any) -> None:
    assert frame.main(ending(value), ["go"]) == 4


def test_a_command_file_that_cannot_be_imported_is_code_4(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> typer.Typer:
        raise ImportError("no such thing")

    assert frame.main(broken, ["--help"]) == 4
    assert "internal error: ImportError" in capsys.readouterr().err


def test_several_faults_stand_one_a_line_without_a_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    faults = [Fault(source="a.yaml", field="x", message="wrong", line=line, column=1) for line in (1, 2)]
    assert frame.main(ending(DescriptionError(faults)), ["go"]) == 2
    assert capsys.readouterr().err == "a.yaml:1:1 x wrong\na.yaml:2:1 x wrong\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["compare"], ["compare", "a", "b", "c"], ["compare", "--nope"], ["--nope"], []]
)
def test_wrong_usage_is_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["admit", "two-gpu", "--steps", "ten"], "'ten' is no whole number; write digits, e.g. 8"),
        (["simulate", "two-gpu", "--rate", "fast"], "'fast' is no number; write e.g. 0.5"),
        (["simulate", "two-gpu", "--rate", "0"], "'0' is out of range; use 0.000001 or more"),
        (["simulate", "two-gpu", "--rate", "nan"], "'nan' is out of range; use 10000000 or less"),
        (["sweep", "chat-pools", "--jobs", "0"], "'0' is out of range; use 1 or more"),
        (["admit", "two-gpu", "-o", "xml"], "'--format': 'xml' is not one of 'text', 'json'"),
    ],
)
def test_a_value_that_cannot_be_read_is_told_with_how_to_write_it(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "Input should" not in told


def test_a_wrong_format_names_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "-o", "xml"]) == 2
    err = capsys.readouterr().err
    assert "text" in err
    assert "json" in err


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], *[[name, "--help"] for name in COMMANDS]])
def test_help_and_version_are_results(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out
    assert err == ""


def test_a_narrow_terminal_gets_whole_sentences_in_the_list_of_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["--help"]) == 0
    listed = capsys.readouterr().out.partition("Commands:")[2]
    assert "..." not in listed
    assert "with exact bytes and reasons." in " ".join(listed.split())


def test_every_verdict_has_a_code_and_no_other_word_has() -> None:
    assert [frame.exit_code(word) for word in ("admitted", "refused", "unverified")] == [0, 1, 3]
    assert [frame.exit_code(word) for word in ("equal", "different", "inconclusive")] == [0, 1, 3]
    with pytest.raises(KeyError):
        frame.exit_code("perhaps")


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (["admitted", "admitted"], 0),
        (["admitted", "refused", "unverified"], 1),
        (["admitted", "unverified"], 3),
        (["unverified"], 3),
    ],
)
def test_several_answers_have_one_code(verdicts: list[str], code: int) -> None:
    assert frame.exit_code_of(verdicts) == code


@pytest.mark.parametrize("arguments", [["-q", "go"], ["go", "-q"], ["--quiet", "go"]])
def test_quiet_silences_notes_and_keeps_results_and_warnings(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def talk(console: Console) -> int:
        console.note("progress")
        console.warn("careful")
        console.result("result")
        return 0

    assert frame.main(ending(talk), arguments) == 0
    assert capsys.readouterr() == ("result\n", "warning: careful\n")
    assert frame.main(ending(talk), ["go"]) == 0
    assert capsys.readouterr() == ("result\n", "progress\nwarning: careful\n")


def test_options_of_one_call_do_not_reach_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.main(ending(RuntimeError("a bug")), ["go", "--debug"]) == 4
    capsys.readouterr()
    assert frame.main(ending(RuntimeError("a bug")), ["go"]) == 4
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tty", "no_color", "arguments", "color"),
    [
        (True, None, ["go"], True),
        (True, "", ["go"], True),
        (True, "1", ["go"], False),
        (True, None, ["go", "--no-color"], False),
        (True, None, ["--no-color", "go"], False),
        (False, None, ["go"], False),
    ],
)
def test_colour_only_where_somebody_sees_it_and_wants_it(
    tty: bool, no_color: str | None, arguments: list[str], color: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty)
    seen: list[bool] = []

    def look(console: Console) -> int:
        seen.append(console.color)
        return 0

    assert frame.main(ending(look), arguments) == 0
    assert seen == [color]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """plan.json, run.json (equal), other.json (a run with a byte too many), short.json (N <= P) with its run."""
    planned = plan()
    run = run_of(planned)
    other = json.loads(json.dumps(run))
    for part in (other["waybill"][0], other["waybill"][0]["legs"][0], other["edges"][-1]):
        part["bytes"] += 1
    short = plan(steps=3)
    documents = {"plan": planned, "run": run, "other": other, "short": short, "short-run": run_of(short)}
    for name, document in documents.items():
        write_document(str(tmp_path / f"{name}.json"), document)
    return tmp_path


@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        ("plan", "run", 0),
        ("plan", "plan", 0),
        ("run", "run", 0),
        ("plan", "other", 1),
        ("run", "other", 1),
        ("plan", "short", 1),
        ("short", "short-run", 3),
        ("run", "plan", 2),
        ("plan", "missing", 2),
    ],
)
@pytest.mark.parametrize("output", ["text", "json"])
def test_compare_ends_with_the_code_of_its_verdict(
    first: str, second: str, code: int, output: str, written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(written / f"{name}.json") for name in (first, second)]
    assert main(["compare", *paths, "-o", output]) == code
    out, err = capsys.readouterr()
    assert (out == "") == (code == 2)
    assert (err == "") == (code != 2)
    if out:
        verdict = json.loads(out)["verdict"] if output == "json" else out.split()[0].lower()
        assert frame.exit_code(verdict) == code


@pytest.mark.parametrize("name", ["-o", "--output", "--format"])
def test_the_format_has_three_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenario", "list", name, "json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == "kvwaybill/scenarios/1"


def test_only_one_document_can_come_from_stdin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "-", "-"]) == 2
    assert "stdin" in capsys.readouterr().err


RESULTS: list[list[str]] = [
    ["backends"],
    ["scenario", "list"],
    ["scenario", "show", "two-gpu"],
    ["compare", "plan.json", "run.json"],
    ["compare", "plan.json", "plan.json"],
    ["compare", "run.json", "run.json"],
]


@pytest.mark.parametrize("arguments", RESULTS, ids=" ".join)
def test_limits_are_printed_with_every_result(
    arguments: list[str], written: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(written)
    assert main([*arguments, "-o", "json"]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    assert any("f32" in limit and "batch 1" in limit for limit in limits)
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "Limits" in text
    assert all(limit in text for limit in limits)


class TestProcess:
    """A few real processes, for what only a process shows."""

    def run(self, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*MODULE, *arguments], capture_output=True, text=True, check=False, **options)

    def test_help_loads_no_heavy_module(self) -> None:
        heavy = ("numba", "cupy", "networkx", "numpy", "pydantic", "ruamel", "rich")
        code = (
            "import sys; from scenarios.cli.__main__ import main; code = main(['--help']);"
            f"print([name for name in {heavy} if name in sys.modules], code)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[] 0"

    def test_compare_loads_neither_numba_nor_networkx(self, written: Path) -> None:
        code = (
            "import sys; from scenarios.cli.__main__ import main;"
            "code = main(['compare', 'plan.json', 'run.json', '-o', 'json']);"
            "print([name for name in ('numba', 'cupy', 'networkx', 'numpy', 'ruamel') if name in sys.modules], code)"
        )
        environment = os.environ | {"PYTHONPATH": os.getcwd()}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=written, env=environment
        )
        assert done.stdout.splitlines()[-1] == "[] 0"

    def test_a_closed_pipe_is_quiet_and_is_not_a_no(self, written: Path) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [*MODULE, "compare", str(written / "plan.json"), str(written / "run.json")],
            stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, "")

    @pytest.mark.skipif(not os.path.exists("/dev/full"), reason="/dev/full is not there")
    def test_a_full_disk_on_stdout_is_code_4(self) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*MODULE, "scenario", "list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
            )
        assert done.returncode == 4
        assert done.stderr.startswith("error: the result could not be written to stdout")
        assert done.stderr.count("\n") == 1

    def test_a_locale_without_unicode_still_gets_its_result(self) -> None:
        environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
        assert self.run("scenario", "show", "two-gpu", env=environment).returncode == 0

    def test_stdin_is_read(self, written: Path) -> None:
        text = (written / "run.json").read_text()
        assert self.run("compare", str(written / "plan.json"), "-", input=text).returncode == 0
        assert self.run("compare", str(written / "plan.json"), "-", input="").returncode == 2


def test_the_app_names_every_command_once() -> None:
    names = [*(command.name for command in make_app().registered_commands)]
    groups = [group.name for group in make_app().registered_groups]
    assert len({*names, *groups}) == len(names) + len(groups) >= len(COMMANDS)
