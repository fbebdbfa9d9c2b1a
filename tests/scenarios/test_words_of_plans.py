"""Small words of plans: stdin named alike everywhere, ways unknown or missing, fixes that can be pasted, -q."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from fleet.load import load_fleet
from tests.command_line import Answer, Ask, Document, asker, fleet, without, write_json
from tests.fleet_texts import SMALL

ASKED = ("--prompt-tokens", "6", "--steps", "12")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def fed(text: str, ask: Ask, *arguments: str | Path) -> Answer:
    """The answer of a command that reads this text from stdin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode()))))
        return ask(*arguments)


MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tQQ\t X \n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("fleet", "check", "-"), SMALL + "typo: 1\n"),
        (("admit", "--fleet", "-"), SMALL + "typo: 1\n"),
        (("fleet", "check", "-"), "\xff: [\n"),
        (("fleet", "import", "-"), MATRIX),
        (("admit", "--fleet", "-"), "Memory A { capacity: 0 B }\nTopology T { memory: Memory::A }\n"),
        (("admit", "-"), "schema: kvwaybill/scenario/1\nflet: x\n"),
        (("explain", "-"), "{}"),
    ],
)
def test_faults_of_stdin_are_cited_alike(arguments: tuple[str, ...], text: str, ask: Ask) -> None:
    answer = fed(text, ask, *arguments)
    assert answer.code == 2
    assert "<stdin>" in answer.err
    assert not [line for line in answer.err.splitlines() if line.removeprefix("error: ").startswith("-:")]


def test_a_refusal_cites_the_line_of_stdin(ask: Ask) -> None:
    answer = fed(json.dumps(fleet("100 KiB"), indent=1), ask, "admit", "--fleet", "-", *ASKED, "-o", "json")
    assert answer.code == 1
    assert "(<stdin>:" in answer.document["reasons"][0]["message"]


def test_one_fleet_from_a_file_and_from_stdin_makes_two_documents_that_say_the_same(tmp_path: Path, ask: Ask) -> None:
    text = json.dumps(fleet(), indent=1)
    path, plans = tmp_path / "f.yaml", [tmp_path / "a.json", tmp_path / "b.json"]
    path.write_text(text)
    assert ask("admit", "--fleet", path, *ASKED, "--plan-out", plans[0]).code == 0
    assert fed(text, ask, "admit", "--fleet", "-", *ASKED, "--plan-out", plans[1]).code == 0
    first, second = (json.loads(plan.read_text()) for plan in plans)
    assert first["inputs"]["fleet"]["digest"] == second["inputs"]["fleet"]["digest"]
    assert first["orders"] == second["orders"]
    assert first["id"] != second["id"], "the id is that of the whole document, paths as given included"
    assert ask("compare", *plans).code == 0


def handoff_line(text: str) -> str:
    return next(line for line in text.splitlines() if line.startswith("Handoff"))


def test_copies_are_not_told_where_the_way_of_the_handoff_is_unknown(tmp_path: Path, ask: Ask) -> None:
    unknown = ask("admit", "--fleet", write_json(tmp_path / "u.yaml", fleet(peer="unknown")), *ASKED)
    assert unknown.code == 3
    assert "to move, the way is unknown: copies unknown" in handoff_line(unknown.out)
    assert "10 copies" not in handoff_line(unknown.out)
    assert "exact" in handoff_line(unknown.out)
    known = ask("admit", "--fleet", write_json(tmp_path / "k.yaml", fleet()), *ASKED)
    assert "moved in 10 copies" in handoff_line(known.out)


def islands() -> Document:
    lost = [(a, b) for a in ("host", "gpu:0") for b in ("gpu:1",)]
    return without(fleet(), *lost, *((b, a) for a, b in lost))


def test_a_way_that_is_not_declared_is_not_called_unknown(tmp_path: Path, ask: Ask) -> None:
    answer = ask("admit", "--fleet", write_json(tmp_path / "f.yaml", islands()), *ASKED)
    assert answer.code == 1
    assert "no way is declared: copies unknown" in handoff_line(answer.out)
    assert "by an unknown way" not in answer.out
    assert "no way is declared" in answer.out


def test_the_link_of_a_fix_can_be_pasted_into_the_file(tmp_path: Path, ask: Ask) -> None:
    text = ask("admit", "--fleet", write_json(tmp_path / "f.yaml", without(fleet(), ("host", "gpu:1"))), *ASKED).out
    [line] = [line for line in text.splitlines() if "fix: add under links: - " in line]
    row = line.partition("links: - ")[2]
    assert row == "{from: host, to: gpu:1, kind: pcie}"
    assert "'" not in row
    pasted = load_fleet("s", text=SMALL + f"  - {row}\n")
    assert any((link.src, link.dst) == ("host", "gpu:1") for link in pasted.links)


def test_a_quiet_run_does_not_repeat_what_the_plan_warned_of(tmp_path: Path, ask: Ask) -> None:
    described = fleet()
    del described["skus"]["card"]["runtime"]
    path, plan = write_json(tmp_path / "f.yaml", described), tmp_path / "plan.json"
    asked = ("--prompt", "Once", "--steps", "12")
    assert "runtime is not declared" in ask("admit", "--fleet", path, *asked, "--plan-out", plan).err
    assert "runtime is not declared" in ask("run", plan).err
    quiet = ask("-q", "run", plan)
    assert (quiet.code, quiet.err) == (0, "")
