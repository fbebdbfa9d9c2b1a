"""Closed, full and abandoned streams, Ctrl-C at any moment, control characters: a code and a word, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.cli import __main__ as entry
from scenarios.cli import frame
from scenarios.cli.console import Console
from scenarios.cli.streams import fit, tell
from scenarios.documents import plan_id
from tests.command_line import Ask, asker
from tests.scenarios.made import plan

MODULE = f"{sys.executable} -m scenarios.cli"


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A command line with redirections, run by a shell."""
    return subprocess.run(["sh", "-c", f"{MODULE} {line}"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("scenario list >&-", 4, "", "error: the result could not be written to stdout: it is closed\n"),
        ("--help >&-", 4, "", "error: the result could not be written to stdout: it is closed\n"),
        ("scenario list -o json >&-", 4, "", "error: the result could not be written to stdout: it is closed\n"),
        ("scenario list >&- 2>&-", 4, "", ""),
        ("scenario show nosuch 2>&-", 2, "", ""),
        ("scenario list 2>&- | head -1", 0, "Scenarios", ""),
        ("scenario show - <&-", 2, "", "is empty"),
        ("compare - - <&- >&-", 2, "", "only one of the two"),
        ("scenario show nosuch 2>/dev/full", 2, "", ""),
    ],
)
def test_a_closed_stream_has_a_code_and_no_traceback(line: str, code: int, out: str, err: str) -> None:
    done = shell(line)
    assert done.returncode == code
    assert done.stdout.startswith(out)
    assert err in done.stderr
    assert "Traceback" not in done.stderr
    assert (done.stderr == "") == (err == "")


def test_a_document_is_not_written_into_by_whoever_prints(tmp_path: Path) -> None:
    """With stdout closed the next file that is opened gets its number."""
    path = tmp_path / "plan.json"
    assert shell(f"admit two-gpu --plan-out {path} >&-").returncode == 4
    assert json.loads(path.read_text())["verdict"] == "admitted"


class TestInterrupted:
    def test_before_the_frame_is_there(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def interrupted(*arguments: object) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(frame, "main", interrupted)
        assert entry.main(["scenario", "list"]) == 130
        assert capsys.readouterr() == ("", "interrupted\n")

    def test_while_the_frame_is_loaded(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Interrupting:
            def find_spec(self, name: str, *rest: object) -> None:
                if name == "scenarios.cli.frame":
                    raise KeyboardInterrupt

        monkeypatch.delitem(sys.modules, "scenarios.cli.frame")
        monkeypatch.delattr("scenarios.cli.frame", raising=False)
        monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
        assert entry.main(["scenario", "list"]) == 130
        assert capsys.readouterr() == ("", "interrupted\n")

    def test_nothing_that_takes_time_is_loaded_before_main(self) -> None:
        slow = ("typer", "scenarios.cli.frame")
        code = f"import sys, scenarios.cli.__main__; print([name for name in {slow} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == "[]\n"

    def test_a_broken_installation_is_code_4(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setitem(sys.modules, "scenarios.cli.frame", None)
        monkeypatch.delattr("scenarios.cli.frame", raising=False)
        assert entry.main(["scenario", "list"]) == 4
        assert "the installation is broken" in capsys.readouterr().err


class TestControlCharacters:
    ESCAPE = "\x1b[2J\x1b]0;owned\x07"

    def test_they_are_escaped_and_our_colours_are_kept(self) -> None:
        assert fit("a\x1b[2Jb\r\nc") == "a\\x1b[2Jb\\r\nc"
        assert fit("\x1b[31mred\x1b[0m\x1b[2J", color=True) == "\x1b[31mred\x1b[0m\\x1b[2J"
        assert fit("\x1b[31mred") == "\\x1b[31mred"
        assert fit("é漢\n") == "é漢\n"

    def test_nothing_that_a_command_says_steers_a_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        tell(self.ESCAPE)
        console = Console()
        console.note(self.ESCAPE)
        console.warn(self.ESCAPE)
        console.result(self.ESCAPE)
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert "\x07" not in out + err

    def test_those_of_a_plan_are_escaped_wherever_they_are_shown(self, tmp_path: Path, ask: Ask) -> None:
        planned = plan()
        planned["inputs"]["model"]["name"] = planned["defaults"][0] = self.ESCAPE
        planned["limits"] = planned["warnings"] = [self.ESCAPE]
        planned["inputs"]["fleet"]["name"] = self.ESCAPE
        path = tmp_path / "plan.json"
        path.write_text(json.dumps(planned | {"id": plan_id(planned)}))
        for words in (["explain", path], ["run", path], ["compare", path, path]):
            answer = ask(*words)
            assert answer.code in (0, 1)
            assert "\x1b" not in answer.out + answer.err

    def test_those_of_a_path_are_escaped(self, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        written = ask("admit", "two-gpu", "--plan-out", "\x1b[31mplan.json")
        assert written.code == 0
        assert "\x1b" not in written.out + written.err
        for words in (["explain", "\x1b[31mno.json"], ["run", "\x1b[31mno.yaml"], ["admit", "\x1b[31m"]):
            answer = ask(*words)
            assert answer.code == 2
            assert "\x1b" not in answer.out + answer.err

    def test_those_of_a_traceback_are_escaped(self, capsys: pytest.CaptureFixture[str]) -> None:
        def make() -> object:
            raise RuntimeError(self.ESCAPE)

        assert frame.main(make, ["go", "--debug"]) == 4  # type: ignore[arg-type]
        err = capsys.readouterr().err
        assert "Traceback" in err
        assert "\x1b" not in err


class TestDocumentAlone:
    """`--plan-out -` and `--run-out -`: stdout is one document, and nothing beside it."""

    def test_a_plan(self, ask: Ask) -> None:
        for more in ([], ["-o", "json"]):
            assert ask("admit", "two-gpu", "--plan-out", "-", *more).document["verdict"] == "admitted"

    def test_a_refused_plan_is_told_on_stderr(self, ask: Ask) -> None:
        answer = ask("admit", "two-gpu-tight", "--plan-out", "-")
        assert (answer.code, answer.out) == (1, "")
        assert "EXCEEDS_BUDGET" in answer.err

    def test_a_run(self, ask: Ask) -> None:
        for more in ([], ["-o", "json"]):
            assert ask("run", "two-gpu", "--run-out", "-", *more).document["schema"] == "kvwaybill/run/1"

    def test_a_run_that_is_refused_is_told_on_stderr(self, ask: Ask) -> None:
        answer = ask("run", "two-gpu-tight", "--run-out", "-")
        assert (answer.code, answer.out) == (1, "")
        assert "EXCEEDS_BUDGET" in answer.err

    def test_a_plan_goes_from_one_command_into_the_next(self) -> None:
        line = f"{MODULE} admit two-gpu --plan-out - | {MODULE} run - -o json"
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["comparison"]["verdict"] == "equal"

    @pytest.mark.parametrize("words", [["admit", "two-gpu", "--plan-out"], ["run", "two-gpu", "--run-out"]])
    def test_an_empty_path_is_wrong_use(self, words: list[str], ask: Ask) -> None:
        answer = ask(*words, "")
        assert (answer.code, answer.out) == (2, "")
        assert f"{words[-1]} '': an empty path" in answer.err

    def test_an_empty_folder_is_wrong_use(self, ask: Ask) -> None:
        answer = ask("prove", "two-gpu", "--save-dir", "")
        assert (answer.code, answer.out) == (2, "")
        assert "--save-dir" in answer.err
