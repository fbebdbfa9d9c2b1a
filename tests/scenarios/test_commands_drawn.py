"""Drawn ids on the command line and in scenario files: figures refused, defaults told, what a plan keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fleet.errors import DescriptionError
from planner.admit import admit
from scenarios.documents import plan_id
from scenarios.orders_json import orders_from_document
from scenarios.wanted import prepare, wanted_of
from tests.command_line import Ask, asker

SAMPLING = {"temperature": 0.8, "top_p": 0.5, "seed": 7}
FLAGS = ("--temperature", "0.8", "--top-p", "0.5", "--seed", "7")


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.mark.parametrize("command", ["admit", "run", "prove"])
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--temperature", "-1"), "--temperature -1.0 is no temperature"),
        (("--temperature", "nan"), "--temperature nan is no temperature"),
        (("--temperature", "inf"), "--temperature inf is no temperature"),
        (("--temperature", "1e-60"), "--temperature 1e-60 is no temperature"),
        (("--temperature", "1e60"), "--temperature 1e+60 is no temperature"),
        (("--temperature", "hot"), "--temperature"),
        (("--temperature", "1", "--top-p", "1.5"), "--top-p 1.5 is no share"),
        (("--temperature", "1", "--top-p", "nan"), "--top-p nan is no share"),
        (("--temperature", "1", "--seed", "0"), "--seed 0 is no seed"),
        (("--temperature", "1", "--seed", str(2**63)), "is no seed"),
        (("--seed", "4"), "--seed says nothing at temperature 0"),
        (("--top-p", "0.4"), "--top-p says nothing at temperature 0"),
    ],
)
def test_figures_that_draw_nothing_are_refused(ask: Ask, command: str, flags: tuple[str, ...], words: str) -> None:
    answer = ask(command, "two-gpu", *flags)
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err


def test_a_run_says_how_it_drew_and_what_nobody_chose(ask: Ask) -> None:
    run = ask("run", "two-gpu", "--temperature", "0.8", "-o", "json").document
    assert {name: run["settings"][name] for name in SAMPLING} == {"temperature": 0.8, "top_p": 0.9, "seed": 1}
    assert "top-p: 0.9 (llama2.c's default)" in run["defaults"]
    assert "seed: 1 (equal words give equal tokens)" in run["defaults"]
    assert run["comparison"]["verdict"] == "equal"
    assert "temperature 0.8, top-p 0.9, seed 1" in ask("run", "two-gpu", "--temperature", "0.8").out


def test_a_plan_keeps_the_draw_and_takes_no_other(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert ask("admit", "two-gpu", *FLAGS, "--plan-out", path).code == 0
    run = ask("run", path, "-o", "json").document
    assert run["tokens"] == ask("run", "two-gpu", *FLAGS, "-o", "json").document["tokens"]
    assert run["inputs"]["workload"]["sampling"] == SAMPLING
    answer = ask("run", path, "--temperature", "0")
    assert answer.code == 2
    assert "--temperature: a plan is fixed" in answer.err
    told = ask("explain", path, "logits")
    assert told.code == 0
    assert "259 logits x 4 B (the host draws an id from each)" in told.out


def test_a_scenario_states_the_draw_and_the_command_line_replaces_it(ask: Ask, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    head = "schema: kvwaybill/scenario/1\nfleet: two-gpu-nvlink\nexpect: [1, 5]\n"
    path.write_text(head + "workload: {prompt: ab, steps: 40, temperature: 0.8, top_p: 0.5, seed: 7}\n")
    run = ask("run", path, "--temperature", "0", "-o", "json").document
    assert run["settings"]["temperature"] == 0
    assert "sampling" not in run["inputs"]["workload"]
    assert ask("run", path, "--seed", "8", "-o", "json").document["settings"]["seed"] == 8
    path.write_text(head + "workload: {temperature: warm, top_p: -0.1, seed: 0}\n")
    answer = ask("scenario", "show", path)
    assert answer.code == 2
    places = [line.split()[0].removeprefix(f"{path}:") for line in answer.err.splitlines()]
    assert places == ["4:25", "4:38", "4:50"]
    path.write_text(head + "workload: {temperature: 0.5, top_p: 1.5}\n")
    assert f"{path}:4:37 top_p 1.5 is no share" in ask("admit", path).err


def _plan(**words: Any) -> dict[str, Any]:
    from scenarios.planning import make_plan

    return make_plan(prepare(wanted_of("two-gpu", words)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0}, "0 draws nothing"),
        ({"temperature": -1.0}, "is not a finite number from 0 up"),
        ({"top_p": 2.0}, "is no share of probability"),
        ({"seed": 0}, "seed"),
        ({"seed": True}, "seed"),
    ],
)
def test_orders_with_a_draw_that_is_none_are_refused(change: dict[str, Any], words: str) -> None:
    orders = _plan(**SAMPLING)["orders"]
    orders["workload"]["sampling"] |= change
    with pytest.raises(DescriptionError, match=words):
        orders_from_document(orders)


def test_a_plan_whose_orders_draw_otherwise_than_it_says_is_refused(ask: Ask, tmp_path: Path) -> None:
    from scenarios.documents import write_document

    plan = _plan(**SAMPLING)
    plan["orders"]["workload"]["sampling"]["seed"] = 8
    plan["id"] = plan_id(plan)
    path = str(tmp_path / "plan.json")
    write_document(path, plan)
    answer = ask("run", path)
    assert answer.code == 2
    assert "inputs.workload.sampling" in answer.err


def test_a_greedy_plan_is_the_one_that_it_always_was() -> None:
    greedy, same = _plan(), _plan(temperature=0.0)
    assert greedy["id"] == same["id"]
    assert "sampling" not in greedy["orders"]["workload"]
    assert admit(prepare(wanted_of("two-gpu", {})).ask).workload.sampling is None  # type: ignore[union-attr]


def test_a_run_that_says_it_drew_otherwise_contradicts_its_orders() -> None:
    from scenarios.compare import compare
    from scenarios.runner import execute, set_up

    plan = _plan(**SAMPLING)
    run = execute(set_up(plan))
    for change in ({"seed": 9}, {"temperature": 0.0}, {"top_p": 0.6}):
        told = run | {"settings": run["settings"] | change}
        checks = {check["name"]: check for check in compare(plan, told)["checks"]}
        assert checks["run_agrees_with_itself"]["result"] == "failed"
