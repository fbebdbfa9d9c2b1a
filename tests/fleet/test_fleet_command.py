"""`fleet import`, `fleet catalog WORD` and `admit --sku` as commands: codes, streams, files."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from fleet.load import load_fleet
from tests.command_line import Ask, asker

MATRIX = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV4\t0-9\t0\nGPU1\tNV4\t X \t0-9\t0\n"
BANDWIDTH = """Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A     92.5
 1      91.5      N/A
"""


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topo.txt").write_text(MATRIX)
    (tmp_path / "rates.txt").write_text(BANDWIDTH)
    return tmp_path


def standing_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_an_import_writes_a_fleet_file_to_stdout_and_warnings_beside_it(here, ask):
    answer = ask("fleet", "import", "topo.txt", "--sku", "a100-sxm-80")
    assert answer.code == 0
    assert load_fleet("x.yaml", text=answer.out).devices[1].memory.capacity.value == 81920 * 2**20
    document = ask("fleet", "import", "topo.txt", "--sku", "a100-sxm-80", "-o", "json").document
    assert document["digest"] == load_fleet("x.yaml", text=answer.out).digest
    assert document["limits"]


def test_out_writes_the_file_whole_and_says_so(here, ask):
    answer = ask("fleet", "import", "topo.txt", "--out", "made.yaml")
    assert (answer.code, answer.out) == (0, "")
    assert "made.yaml" in answer.err
    assert load_fleet("made.yaml").digest == load_fleet("topo.txt").digest


def test_a_faulty_import_leaves_no_file(here, ask):
    assert ask("fleet", "import", "topo.txt", "--sku", "nothing", "--out", "made.yaml").code == 2
    assert ask("fleet", "import", "rates.txt", "--out", "made.yaml").code == 2
    assert ask("fleet", "import", "topo.txt", "--from", "vx", "--out", "made.yaml").code == 2
    assert not (here / "made.yaml").exists()


def test_measurements_are_laid_over_a_fleet(here, ask):
    assert ask("fleet", "import", "topo.txt", "--sku", "a100-sxm-80", "--out", "made.yaml").code == 0
    answer = ask("fleet", "import", "rates.txt", "--onto", "made.yaml")
    assert answer.code == 0
    rates = {(k.src, k.dst): k.bandwidth for k in load_fleet("x", text=answer.out).links}
    assert rates["gpu:1", "gpu:0"].value == 100 * 10**9
    assert rates["gpu:1", "gpu:0"].observed.value == 91_500_000_000


def test_a_matrix_from_stdin_with_a_card_is_admitted(here, ask, monkeypatch):
    standing_in(monkeypatch, MATRIX)
    plan = ask("admit", "--fleet", "-", "--sku", "a100-sxm-80", "--prompt-tokens", "5", "--steps", "9", "-o", "json")
    assert plan.code == 0
    assert plan.document["inputs"]["fleet"]["sku"] == "a100-sxm-80"
    standing_in(monkeypatch, MATRIX)
    bare = ask("admit", "--fleet", "-", "--prompt-tokens", "5", "--steps", "9", "-o", "json")
    assert (bare.code, bare.document["verdict"]) == (3, "unverified")


def test_a_plan_of_a_matrix_is_run_on_the_fleet_that_it_was_made_for(here, ask):
    flags = ["--fleet", "topo.txt", "--sku", "a100-sxm-80", "--prompt", "hey", "--steps", "6"]
    assert ask("admit", *flags, "--plan-out", "plan.json").code == 0
    assert ask("run", "plan.json", "-q", "-o", "json").document["plan_id"]


def test_the_catalog_is_listed_by_word(ask):
    answer = ask("fleet", "catalog", "mi300x")
    assert answer.code == 0
    assert "mi300x-x8" in answer.out
    assert "hgx" not in answer.out
    nothing = ask("fleet", "catalog", "no-such-word", "-o", "json")
    assert (nothing.code, nothing.document["fleets"], nothing.document["skus"]) == (0, [], [])
    assert "nothing that is shipped holds no-such-word" in nothing.err


def test_a_bad_byte_on_stdin_is_told_with_its_place_and_no_shipped_name(ask, monkeypatch):
    """Standard input was once taken for a name that no shipped fleet has."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"GPU0\n\xff\xfe"), encoding="utf-8"))
    answer = ask("fleet", "import", "-")
    assert answer.code == 2
    assert "<stdin>:2:1 byte 0xff is not UTF-8" in answer.err
    assert "shipped" not in answer.err
