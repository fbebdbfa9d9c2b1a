"""`--engine dask`: a scheduler and workers on loopback give the same bytes; what is missing is one sentence."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scenarios.sweeping import engines
from scenarios.sweeping.cases import program
from tests.command_line import Ask, asker
from tests.scenarios.sweeping.sweep_cases import ADMIT, ROOT, write

LOOPBACK = ("--host", "127.0.0.1", "--no-dashboard")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def _dask(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """`dask ARGUMENTS` in a process group of its own; its log in the folder."""
    with open(folder / f"{arguments[0]}.log", "wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments], cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip


def _end(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler with no worker."""
    file = tmp_path / "scheduler.json"
    process = _dask(tmp_path, "scheduler", *LOOPBACK, "--port", "0", "--scheduler-file", str(file))
    try:
        while not file.exists() or not file.read_text().endswith("}"):
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"{process.wait(0.05)}: {(tmp_path / 'scheduler.log').read_text()}")
        yield json.loads(file.read_text())["address"]
    finally:
        _end(process)


def test_two_workers_give_the_bytes_of_this_process_and_no_worker_is_code_3(
    scheduler: str, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "CONNECT", 600)  # a busy machine starts them late, and then they are waited for
    monkeypatch.setattr(engines, "WORKERS", 1)
    program.cache_clear()  # the sources may have been edited since another test asked
    write(tmp_path, ADMIT)
    over = ("--engine", "dask", "--scheduler", scheduler)
    alone = ask("sweep", "sweep.yaml", *over)
    assert alone.code == 3
    assert "has no worker; start one: dask worker tcp://127.0.0.1:" in alone.err
    monkeypatch.setattr(engines, "WORKERS", 600)
    worker = _dask(tmp_path, "worker", scheduler, *LOOPBACK, "--nworkers", "2", "--nthreads", "1")
    try:
        shared = ask("sweep", "sweep.yaml", *over, "-o", "json", "-q")
    finally:
        _end(worker)
    assert (shared.code, shared.err) == (0, "")
    assert shared.out == ask("sweep", "sweep.yaml", "--fresh", "--jobs", "1", "-o", "json").out


def test_a_scheduler_that_does_not_answer_is_code_3_in_one_sentence(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engines, "CONNECT", 0.2)
    found = ask("sweep", str(write(tmp_path, ADMIT)), "--engine", "dask", "--scheduler", "tcp://127.0.0.1:9")
    assert (found.code, found.out) == (3, "")
    assert found.err.startswith("error: no Dask scheduler answers at tcp://127.0.0.1:9")
    assert len(found.err.splitlines()) == 1


def test_without_the_extra_the_way_to_it_is_told(ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "distributed", None)
    found = ask("sweep", str(write(tmp_path, ADMIT)), "--engine", "dask", "--scheduler", "tcp://127.0.0.1:9")
    assert found.code == 3
    assert "pip install 'kvwaybill[cluster]'" in found.err
