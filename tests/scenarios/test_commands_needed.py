"""Which commands a command line registers: the one that it names, all where it names none, with the same words."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import typer

from scenarios.cli import frame
from scenarios.cli.__main__ import COMMANDS, commands_of, main, make_app


@pytest.mark.parametrize("before", [[], ["-q"], ["--no-color", "--debug", "--quiet"]])
def test_a_named_command_is_the_only_one(before: list[str]) -> None:
    for name in COMMANDS:
        assert commands_of([*before, name, "--help"]) == (name,)
        assert commands_of([*before, name, "admit"]) == (name,)


@pytest.mark.parametrize(
    "line",
    [[], ["--help"], ["--help", "admit"], ["--version", "run"], ["admitt"], ["-x", "admit"], ["--", "admit"], [""]],
)
def test_whatever_does_not_plainly_name_one_has_them_all(line: list[str]) -> None:
    assert commands_of(line) == COMMANDS


def _outcome(capsys: pytest.CaptureFixture[str], line: list[str], *, whole: bool) -> tuple[int, str, str]:
    code = frame.main(make_app, line) if whole else main(line)
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    "line",
    [
        *([name, "--help"] for name in COMMANDS),
        ["admit"],
        ["admit", "--flet", "x"],
        ["-q", "admit", "no-such-scenario"],
        ["fleet", "chek", "x"],
        ["fleet"],
        ["--debug", "scenario", "list", "-o", "json"],
        ["run", "a", "b", "c"],
        ["admitt", "two-gpu"],
        ["-x", "admit"],
        ["--", "scenario", "list"],
        ["--no-color", "help"],
    ],
    ids=" ".join,
)
def test_the_answer_is_that_of_the_app_with_every_command(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert _outcome(capsys, line, whole=False) == _outcome(capsys, line, whole=True)


def test_the_files_of_other_commands_are_not_loaded() -> None:
    code = (
        "import sys; from scenarios.cli.__main__ import COMMANDS, main; main(['-q', 'scenario', 'list']);"
        "print([name for name in COMMANDS if 'scenarios.cli.' + name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "['scenario']"


def test_an_app_of_one_command_still_takes_its_name() -> None:
    entry = typer.main.get_command(make_app(("backends",)))
    assert list(getattr(entry, "commands", ())) == ["backends"]


def test_a_command_leaves_the_collector_of_cycles_as_it_found_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = gc.get_threshold()
    assert main(["scenario", "list"]) == 0
    assert main(["scenario", "lisst"]) == 2
    capsys.readouterr()
    assert gc.get_threshold() == before
