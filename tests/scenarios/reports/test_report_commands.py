"""The commands `report` and `history`, and `-o` of the others: exit codes, missing extras, files from anybody."""

from __future__ import annotations

import copy
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import DescriptionError
from scenarios.reports.figures import figures_of
from scenarios.reports.making import Given, report_text
from scenarios.reports.read import report_document
from scenarios.reports.specs import spec_of
from tests.command_line import Ask, asker, write_json
from tests.scenarios.made import plan
from tests.scenarios.reports.report_cases import all_given, records, run, simulation, sweep

Document = dict[str, Any]


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for each in all_given():
        if each.kind != "records":
            write_json(tmp_path / f"{each.kind}.json", each.document)
    lines = [json.dumps(record, separators=(",", ":")) for record in records()["records"]]
    (tmp_path / "records.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_one_page_of_every_kind_of_document_is_written_whole(files: Path, ask: Ask) -> None:
    out = files / "all.html"
    found = ask("report", *sorted(files.iterdir()), "--out", out)
    assert (found.code, found.out) == (0, "")
    text = out.read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert text.rstrip().endswith("</html>")
    assert [path.name for path in files.iterdir() if "part" in path.name] == []


@pytest.mark.parametrize("output", ["html", "svg", "png"])
def test_without_the_extra_a_picture_is_refused_in_one_sentence(
    output: str, files: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    out = files / f"it.{output}"
    found = ask("report", files / "plan.json", "-o", output, "--out", out)
    assert found.code == 3
    assert "kvwaybill[report]" in found.err
    assert not out.exists()
    if output != "png":
        assert ask("admit", "two-gpu", "-o", output).code == 3
    monkeypatch.setitem(sys.modules, "altair", None)
    assert ask("report", files / "plan.json", "-o", "md").code == 0


def test_a_png_needs_a_file(files: Path, ask: Ask) -> None:
    assert ask("report", files / "plan.json", "-o", "png").code == 2
    assert ask("report", files / "plan.json", "-o", "png", "--out", "-").code == 2
    assert ask("report", files / "plan.json", "-o", "png", "--out", files / "it.png").code == 0
    assert (files / "it.png").read_bytes().startswith(b"\x89PNG")


def test_what_has_no_picture_or_no_timeline_is_wrong_use(files: Path, ask: Ask) -> None:
    never = plan() | {"memory": [], "waybill": [], "time": {}}
    with pytest.raises(DescriptionError, match="holds no number"):
        report_text("svg", [Given(kind="plan", document=never, source="it")])
    assert ask("report", files / "admissions.json", "-o", "svg").code == 0
    assert ask("report", files / "proof.json", "-o", "chrome-trace").code == 2
    assert ask("compare", files / "plan.json", files / "plan.json", "-o", "chrome-trace").code == 2
    assert ask("report", files / "plan.json", files / "records.jsonl", "-o", "chrome-trace").code == 0
    assert ask("admit", "two-gpu", "-o", "chrome-trace").code == 0


def test_codes_stay_those_of_the_answer_in_every_format(ask: Ask) -> None:
    for output in ("md", "github", "junit", "svg"):
        assert ask("admit", "two-gpu-tight", "-o", output).code == 1
        assert ask("admit", "two-gpu-unknown", "-o", output).code == 3


def test_a_simulation_that_is_refused_fails_its_gate_at_the_line_of_the_fleet(ask: Ask) -> None:
    found = ask("simulate", "two-gpu-tight", "-o", "github")
    assert found.code == 1
    assert found.out.startswith("::error file=two-gpu-tight.yaml,line=42,")
    assert 'failures="1"' in ask("simulate", "two-gpu-tight", "-o", "junit").out


def test_a_file_that_cannot_be_written_is_told_before_anything_is_made(files: Path, ask: Ask) -> None:
    found = ask("report", files / "plan.json", "--out", files / "no" / "it.html")
    assert found.code == 2
    assert "cannot be written" in found.err


def test_history_reads_folders_in_the_order_of_their_numbers(tmp_path: Path, ask: Ask) -> None:
    for number in (10, 9, 2):
        write_json(tmp_path / f"run-{number}.json", run())
    write_json(tmp_path / "plan.json", plan())
    write_json(tmp_path / "run-3.json", run() | {"comparison": None})
    found = ask("history", tmp_path, "-o", "json")
    assert found.code == 0
    (group,) = found.document["groups"]
    assert [Path(name).name for name in group["runs"]] == ["run-2.json", "run-9.json", "run-10.json"]
    assert "run-3.json: left out" in found.err
    history = write_json(tmp_path / "history.json", found.document)
    for output in ("md", "html", "svg", "junit"):
        assert ask("report", history, "-o", output).code == 0
    assert ask("history", tmp_path / "run-3.json").code == 2
    assert ask("history", tmp_path / "plan.json").code == 2
    assert ask("history", tmp_path / "none").code == 2


def test_a_drift_fails_only_where_that_was_asked_for(tmp_path: Path, ask: Ask) -> None:
    for number in range(9):
        document = copy.deepcopy(run())
        for row in document["comparison"]["rows"]:
            row["observed_bytes"] = row["predicted_bytes"] + number
        write_json(tmp_path / f"{number}.json", document)
    assert ask("history", tmp_path).code == 0
    failed = ask("history", tmp_path, "--fail-on-drift", "-o", "github")
    assert failed.code == 1
    assert "::error" in failed.out
    assert "handoff p2p" in failed.out
    assert ask("history", tmp_path, "-o", "junit").code == 2


def test_what_a_sweep_writes_is_reported_refused_and_unknown_cases_too(
    tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused cases have a slack below zero and no place on the front, unverified ones no figures."""
    monkeypatch.chdir(tmp_path)
    fleets = ["two-gpu-nvlink", "two-gpu-tight", "two-gpu-unknown"]
    asked = {"schema": "kvwaybill/sweep/1", "question": "admit", "base": "two-gpu"}
    write_json(tmp_path / "s.yaml", asked | {"grid": {"fleet": fleets, "workload.steps": ["70", "96"]}})
    assert ask("sweep", "s.yaml", "--jobs", "1", "--result-out", "r.json").code == 0
    rows = json.loads((tmp_path / "r.json").read_text())["rows"]
    assert {row["verdict"] for row in rows} == {"admitted", "refused", "unverified"}
    assert any((row["figures"] or {}).get("slack_bytes", 0) < 0 for row in rows if row["verdict"] == "refused")
    for output in ("md", "svg", "junit", "github"):
        assert ask("report", "r.json", "-o", output).code == 0
    table = ask("report", "r.json", "-o", "md").out
    assert any(row["lower_bounds"] for row in rows)
    assert "| &gt;= " in table


def test_broken_records_and_documents_name_their_place(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"request":0,"state":"finished"}\n{"request":\n')
    assert ask("report", path).code == 2
    path.write_text('{"request":0,"state":"finished"}\n')
    assert "line 1.arrival_ps" in ask("report", path, "-o", "md").err
    lost = sweep()
    lost["groups"][0]["members"].append(77)
    assert "names the case 77" in ask("report", write_json(tmp_path / "s.json", lost), "-o", "md").err
    other = ask("report", write_json(tmp_path / "x.json", {"schema": "kvwaybill/never/1"}), "-o", "md")
    assert other.code == 2
    assert "kvwaybill/never/1" in other.err


def mutated(document: Any, chance: random.Random) -> Any:
    """The document with one value, anywhere in it, replaced by one of another kind, or left out."""
    made = copy.deepcopy(document)
    at, key = made, None
    for _ in range(chance.randint(1, 7)):
        keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
        if not keys:
            break
        holder, key = at, chance.choice(keys)
        at = holder[key]
    if key is None:
        return made
    if chance.random() < 0.2 and isinstance(holder, dict):
        del holder[key]
    else:
        wild = [
            None,
            -1,
            0,
            1,
            7,
            2**63 - 1,
            1e60,
            1e-300,
            0.5,
            "",
            "<b>|",
            "gpu:9",
            [],
            [[]],
            {},
            {"a": []},
            True,
            2**70,
        ]
        alike = [value for value in wild if type(value) is type(holder[key])]
        holder[key] = chance.choice(alike if alike and chance.random() < 0.8 else wild)
    return made


def test_no_changed_document_breaks_a_report() -> None:
    """Anything but a report or a fault in words would be a crash of the command."""
    chance = random.Random(5)
    sources = [each.document for each in all_given() if each.kind not in ("records", "plan", "admissions")]
    made = 0
    for turn in range(400):
        document = sources[turn % len(sources)]
        data = json.dumps(mutated(document, chance)).encode()
        try:
            found = report_document(data, "it")
        except DescriptionError:
            continue
        made += 1
        given = [Given(kind=found[0], document=found[1], source="it")]
        for output in ("md", "junit", "github", "json"):
            assert report_text(output, given)
        if turn % 8 == 0:
            for figure in figures_of(*found):
                assert spec_of(figure)
    assert made > 50


def test_extreme_figures_are_drawn_without_a_crash() -> None:
    wild = simulation()
    wild["edges"][0] |= {"bytes": 2**90, "bytes_per_s_over_time": [0, 10**17]}
    wild["latency"]["ttft"] |= {"p50_s": 0.0, "p99_s": 1e9}
    wild["duration_s"] = 0
    for figure in figures_of("simulation", wild):
        assert spec_of(figure)
