"""The gate that the docs show, on a repository made here: a change that no longer fits is stopped, and told where."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documentation.pages import DOCS

GATE = DOCS / "examples" / "gate.sh"
FLEET = (DOCS.parent / "fleet" / "catalog" / "two-gpu-tight.yaml").read_text()
SCENARIO = """schema: kvwaybill/scenario/1
fleet: fleet.yaml
workload: {prompt: "The waybill says what each leg carries.", steps: STEPS}
placement: {prefill: gpu:0, decode: gpu:1}
"""


def commit(folder: Path, message: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, "add", "."], cwd=folder, check=True)
    subprocess.run(["git", *who, "commit", "-q", "-m", message], cwd=folder, check=True)


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "deploy"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=folder, check=True)
    (folder / "fleet.yaml").write_text(FLEET)
    (folder / "split.yaml").write_text(SCENARIO.replace("STEPS", "70"))
    commit(folder, "a split that fits")
    return folder


def gate(folder: Path, *words: str, base: str = "main", last: str = "") -> tuple[int, str, str]:
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    summary = folder.parent / "summary.md"
    summary.write_text("")
    env = os.environ | {"PATH": paths, "GITHUB_STEP_SUMMARY": str(summary)}
    command = ["sh", str(GATE), *words, base, "split.yaml", *last.split()]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, summary.read_text()


def test_a_change_that_no_longer_fits_is_stopped_at_its_line(repository):
    (repository / "split.yaml").write_text(SCENARIO.replace("STEPS", "96"))
    code, told, _ = gate(repository)
    assert code == 1
    assert told.startswith("::error file=fleet.yaml,line=")
    assert "is short by 21,709 B" in told


def test_a_change_that_fits_passes_and_is_summed_up_unless_bytes_are_frozen(repository):
    (repository / "split.yaml").write_text(SCENARIO.replace("STEPS", "72"))
    code, told, summary = gate(repository)
    assert (code, told) == (0, "")
    assert "70" in summary
    assert "72" in summary
    code, told, _ = gate(repository, "--frozen")
    assert code == 1
    assert "::error" in told


def test_frozen_counts_wherever_it_stands_and_other_words_are_refused(repository):
    (repository / "split.yaml").write_text(SCENARIO.replace("STEPS", "72"))
    assert gate(repository, last="--frozen")[0] == 1
    assert gate(repository, "--froze")[0] == 2
    assert gate(repository, last="more")[0] == 2


def test_a_base_that_is_not_there_is_told(repository):
    code, told, _ = gate(repository, base="nowhere")
    assert code == 2
    assert "nowhere is no commit here" in told


def test_no_change_passes_frozen(repository):
    assert gate(repository, "--frozen")[0] == 0


def test_a_wrong_file_ends_with_two(repository):
    (repository / "split.yaml").write_text("schema: nonsense\n")
    assert gate(repository)[0] == 2
