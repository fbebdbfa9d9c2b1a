"""`kvwaybill fleet discover`: a machine as a file that is checked, shown and admitted against."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.cli.__main__ import main
from tests.command_line import Ask, asker
from tests.fleet.machines import GIB, Machine


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "root").mkdir()
    machine = Machine(tmp_path / "root")
    machine.processors("AMD EPYC 9654", sockets=2, cpus=2)
    machine.card("pci0000:00", "0000:00:06.0", vendor="0x1002", device="0x74a1", code="0x120000",
                 mem_info_vram_total=str(191 * GIB))  # fmt: skip
    machine.write("proc/sys/kernel/hostname", "cellar-17")
    return machine


def test_the_file_is_valid_and_admitted_against(ask: Ask, machine: Machine, tmp_path: Path) -> None:
    out = tmp_path / "here.yaml"
    answer = ask("fleet", "discover", "--root", machine.root, "--out", out)
    assert (answer.code, answer.out) == (0, "")
    assert "note: processor: AMD EPYC 9654, 2 sockets, 4 logical processors" in answer.err
    assert ask("fleet", "check", out).code == 0
    assert ask("admit", "two-gpu", "--fleet", out, "--prefill", "cpu:0", "--decode", "cpu:0").code == 0
    split = ask("admit", "two-gpu", "--fleet", out, "--prefill", "gpu:0", "--decode", "cpu:0", "-o", "json")
    assert (split.code, split.document["verdict"]) == (0, "admitted")
    ordered = {device["id"]: device["pci"] for device in split.document["orders"]["devices"]}
    assert ordered == {"gpu:0": "0000:00:06.0", "cpu:0": None}


def test_json_is_the_fleet_document_with_its_notes_and_reads_back(ask: Ask, machine: Machine, tmp_path: Path) -> None:
    answer = ask("fleet", "discover", "--root", machine.root, "-o", "json")
    document = answer.document
    assert document["schema"] == "kvwaybill/fleet/1"
    assert any(note.startswith("processor: ") for note in document["notes"])
    assert document["limits"]
    assert "serials" not in document
    assert "cellar-17" not in answer.out + answer.err
    (tmp_path / "here.json").write_text(answer.out, encoding="utf-8")
    checked = ask("fleet", "check", tmp_path / "here.json", "-o", "json")
    assert (checked.code, checked.document["digest"]) == (0, document["digest"])


def test_names_of_the_machine_come_only_when_asked(ask: Ask, machine: Machine) -> None:
    asked = ask("fleet", "discover", "--root", machine.root, "-o", "json", "--with-serials")
    assert asked.document["serials"]["host name"] == "cellar-17"
    assert "#   host name: cellar-17" in ask("fleet", "discover", "--root", machine.root, "--with-serials").out


def test_the_same_machine_gives_the_same_bytes(ask: Ask, machine: Machine) -> None:
    first, second = (ask("fleet", "discover", "--root", machine.root, "-q") for _ in range(2))
    assert first.out == second.out
    assert "note:" not in first.err


def test_this_very_machine_is_described(ask: Ask) -> None:
    answer = ask("fleet", "discover", "-o", "json")
    assert answer.code == 0
    assert "cpu:0" in [device["id"] for device in answer.document["devices"]]


def test_a_root_that_is_none_is_wrong_use(ask: Ask, tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "nothing", "/dev/null"):
        answer = ask("fleet", "discover", "--root", root)
        assert (answer.code, answer.out) == (2, "")
        assert "holds neither proc nor sys" in answer.err


def test_an_out_that_cannot_be_written_is_wrong_use_and_leaves_nothing(
    ask: Ask, machine: Machine, tmp_path: Path
) -> None:
    answer = ask("fleet", "discover", "--root", machine.root, "--out", tmp_path / "no" / "such.yaml")
    assert answer.code == 2
    assert not (tmp_path / "no").exists()


def test_the_library_of_the_driver_is_loaded_only_when_asked() -> None:
    code = "import sys; import scenarios.cli.__main__, fleet.discovery.discover; print('pynvml' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    assert main(["fleet", "discover", "--help"]) == 0
