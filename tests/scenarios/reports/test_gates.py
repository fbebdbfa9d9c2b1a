"""JUnit, GitHub annotations and Markdown: what they say, and that no name in a document can say anything else."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.reports.gates import Gate, Suite, suites_of
from scenarios.reports.github import MOST, command, github_text
from scenarios.reports.junit import junit_text
from scenarios.reports.making import Given, report_text
from scenarios.reports.markdown import escaped
from tests.command_line import Ask, asker
from tests.scenarios.made import plan, run_of
from tests.scenarios.reports.report_cases import HOSTILE, all_given, proof, run, sweep

COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}
RESULTS = ("passed", "failed", "error", "skipped")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


def check_junit(text: str) -> ElementTree.Element:
    """Holds a text to the shape that readers of JUnit agree on: elements, attributes, and counts that are true."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for element in (root, *root):
        cases = list(element.iter("testcase"))
        assert int(element.attrib["tests"]) == len(cases)
        for name, tag in COUNTED.items():
            assert int(element.attrib[name]) == sum(case.find(tag) is not None for case in cases), name
    for suite in root:
        assert suite.tag == "testsuite"
        assert suite.attrib["name"]
        for case in suite:
            assert case.tag in ("testcase", "system-out")
            if case.tag == "testcase":
                assert {"name", "classname"} <= case.attrib.keys()
                assert len(case) <= 1
                assert all(child.tag in (*COUNTED.values(), "system-out") for child in case)
                assert all("message" in child.attrib for child in case if child.tag in COUNTED.values())
    return root


@pytest.mark.parametrize("each", all_given(), ids=lambda each: each.kind)
def test_every_document_makes_a_junit_that_its_readers_take(each: Given) -> None:
    root = check_junit(report_text("junit", [each]))
    assert len(root) == len(suites_of(each.kind, each.document, each.source))


@pytest.mark.parametrize(
    ("kind", "document", "result"),
    [
        ("plan", plan(), "passed"),
        ("plan", plan(fleet="two-gpu-tight", steps=200), "failed"),
        ("plan", plan(fleet="two-gpu-staged", steps=9), "passed"),
        ("proof", proof(), "failed"),
        ("run", run(), "error"),
        ("sweep-result", sweep(), "passed"),
    ],
)
def test_a_suite_ends_as_its_command_does(kind: str, document: dict[str, Any], result: str) -> None:
    suites = suites_of(kind, document, "it")
    results = {gate.result for suite in suites for gate in suite.gates}
    if kind == "run":  # its verdict is that of its comparison
        result = {"equal": "passed", "different": "failed", "inconclusive": "error"}[document["comparison"]["verdict"]]
    assert result in results
    assert ("failed" in results) == (result == "failed")
    assert ("error" in results) == (result == "error")


def test_a_check_that_cannot_be_told_is_never_a_passed_case() -> None:
    document = run()
    checks = {check["name"]: check for check in document["comparison"]["checks"]}
    (suite,) = suites_of("run", document, "it")
    for gate in suite.gates[:-1]:
        assert (gate.result == "passed") == (checks[gate.name]["result"] == "passed")
        if checks[gate.name]["result"] == "inconclusive":
            assert gate.result == ("error" if checks[gate.name]["required"] else "skipped")


def test_a_verdict_that_nobody_knows_is_not_passed() -> None:
    (suite,) = suites_of("plan", plan() | {"verdict": "fine"}, "it")
    assert suite.gates[-1].result == "error"


def test_a_run_that_was_set_beside_nothing_is_skipped() -> None:
    (suite,) = suites_of("run", run_of(plan()), "it")
    assert [gate.result for gate in suite.gates] == ["skipped"]


def test_a_refusal_is_annotated_at_its_line_of_the_fleet(ask: Ask) -> None:
    found = ask("admit", "two-gpu-tight", "-o", "github")
    assert found.code == 1
    first = found.out.splitlines()[0]
    assert first.startswith("::error file=two-gpu-tight.yaml,line=42,title=")
    assert "EXCEEDS_BUDGET" in first
    assert "21,709 B" in first
    assert "90 %25 of" in first


TEXT = st.text(st.characters(codec="utf-8"), max_size=60)


@given(message=TEXT, title=TEXT, file=TEXT)
def test_no_text_ends_an_annotation_early_or_begins_another(message: str, title: str, file: str) -> None:
    told = command("error", message, title=title, file=file, line=7)
    assert told.splitlines() == [told]
    properties, data = re.fullmatch(r"::error ([^:]*)::(.*)", told, re.DOTALL).groups()  # type: ignore[union-attr]
    parts = properties.split(",")
    assert [part.split("=")[0] for part in parts] == ["file", "line", "title"]
    plain = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    assert data == plain or not message.replace("\n", "").replace("\r", "").isprintable()


def test_annotations_beyond_what_github_keeps_are_told_together() -> None:
    gates = tuple(Gate(name=f"case {n}", result="failed", detail="no") for n in range(25))
    lines = github_text([Suite(name="s", gates=gates)]).splitlines()
    errors = [line for line in lines if line.startswith("::error ")]
    assert len(errors) == MOST
    assert all(f"case {n}: no" in "".join(errors) for n in range(25))


@given(name=st.text(max_size=40), detail=st.text(max_size=40))
def test_junit_takes_any_name(name: str, detail: str) -> None:
    gates = tuple(Gate(name=name or "x", result=result, detail=detail) for result in RESULTS)  # type: ignore[arg-type]
    root = check_junit(junit_text([Suite(name=name or "x", gates=gates, warnings=(detail,))]))
    shown = root[0][0].attrib["name"]
    if name and all(char.isprintable() for char in name):
        assert shown == name


@given(text=st.text(max_size=60))
def test_markdown_is_one_line_without_markup_or_mention(text: str) -> None:
    told = escaped(text)
    assert "\n" not in told
    assert "\r" not in told
    assert not re.search(r"(?<!\\)[|`*_\[\]]", re.sub(r"\\\\", "", told))
    assert "<" not in told
    assert not re.search(r"@[A-Za-z0-9]", told)


def test_markdown_tables_have_as_many_cells_in_every_row_whatever_names_hold() -> None:
    document = plan()
    document["inputs"]["fleet"]["name"] = HOSTILE
    document["reasons"] = [{"code": "X|Y", "severity": "warning", "message": HOSTILE, "device": "gpu:0"}]
    text = report_text("md", [Given(kind="plan", document=document, source=HOSTILE), *all_given()])
    assert "<script>" not in text
    assert "@org" not in text
    widths: list[int] = []
    for line in text.splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(len(re.findall(r"(?<!\\)\|", line)))
        assert len(set(widths)) == 1, line


def test_limits_stand_in_every_page(tmp_path: Path, ask: Ask) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan()))
    for output in ("md", "json", "html"):
        found = ask("report", path, "-o", output)
        assert found.code == 0
        assert "f32 only, batch 1" in found.out
