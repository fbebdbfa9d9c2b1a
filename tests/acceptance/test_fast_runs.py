"""`run --fast` on llama2.c's golden runs: the same ids, the difference of the logits told, another id never unseen."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from scenarios.beside_strict import beside_strict
from scenarios.compare import compare
from scenarios.planning import make_plan
from scenarios.runner import run_and_compare, set_up
from scenarios.wanted import prepare, wanted_of
from tests.command_line import Ask, asker
from tests.executor.requests import GOLDEN, GOLDEN_ABSENT

Document = dict[str, Any]
needs_golden = [pytest.mark.shared, pytest.mark.skipif(not GOLDEN.is_dir(), reason=GOLDEN_ABSENT)]
RUNS = 20


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@cache
def golden() -> list[Document]:
    runs: list[Document] = json.loads((GOLDEN / "golden.json").read_text())
    assert len(runs) == RUNS
    return runs


@pytest.mark.parametrize("number", [pytest.param(n, marks=needs_golden) for n in range(RUNS)])
def test_run_fast_walks_the_golden_ids_and_tells_how_far_its_logits_are_off(ask: Ask, number: int) -> None:
    recorded = golden()[number]
    words = ["--model", GOLDEN / "stories260K.bin", "--tokenizer", GOLDEN / "tok512.bin"]
    words += ["--prompt", recorded["prompt"] or "", "--steps", str(recorded["n_arg"]), "--layout", "packed16", "--fast"]
    answer = ask("run", "two-gpu", *words, "-o", "json")
    run = answer.document
    assert answer.code == (0 if run["passes"]["decode"] else 3), answer.err
    assert run["tokens"] == recorded["token_ids"]
    found = run["beside_strict"]
    assert (found["tokens_equal"], found["first_difference"]) == (True, None)
    assert found["top1_logits"] == len(recorded["generated_token_ids"])
    assert found["largest_difference"] < 1e-3
    checks = {check["name"]: check["result"] for check in run["comparison"]["checks"]}
    assert checks["tokens_equal_strict"] == "passed"


def fast_run() -> tuple[Document, Document]:
    plan = make_plan(prepare(wanted_of("two-gpu", {"layout": "packed16", "steps": 60})))
    return plan, run_and_compare(set_up(plan, fast=True))


def result_of(plan: Document, run: Document) -> tuple[str, str]:
    checks = {check["name"]: check["result"] for check in compare(plan, run)["checks"]}
    return checks["tokens_equal_strict"], compare(plan, run)["verdict"]


def test_a_fast_run_of_other_ids_is_different() -> None:
    plan, run = fast_run()
    assert run["beside_strict"]["differ"] > 0
    assert result_of(plan, run) == ("passed", "equal")
    other = run["beside_strict"] | {"tokens_equal": False, "first_difference": 50}
    assert result_of(plan, run | {"beside_strict": other}) == ("failed", "different")
    alone = {key: value for key, value in run.items() if key != "beside_strict"}
    assert result_of(plan, alone) == ("inconclusive", "equal")


def test_a_strict_run_has_no_word_of_it() -> None:
    plan = make_plan(prepare(wanted_of("two-gpu", {"layout": "packed16", "steps": 60})))
    run = run_and_compare(set_up(plan))
    assert "beside_strict" not in run
    assert "tokens_equal_strict" not in [check["name"] for check in run["comparison"]["checks"]]


@pytest.mark.parametrize(
    ("ids", "bits", "wanted"),
    [
        ([1, 5, 6, 7], ["3f800000", "40000000"], (None, 2, 1, 1.0)),
        ([1, 5, 6, 8], ["3f800000", "40000000"], (3, 2, 1, 1.0)),
        ([1, 5, 7, 7], ["40000000", "40000000"], (2, 1, 0, 0.0)),
        ([1, 5, 6], ["40000000"], (3, 1, 0, 0.0)),
        ([1, 5, 6, 7], ["7fc00000", "40000000"], (None, 2, 1, None)),
    ],
)
def test_logits_are_set_side_by_side_up_to_the_first_other_id(
    ids: list[int], bits: list[str], wanted: tuple[int | None, int, int, float | None]
) -> None:
    strict = {"tokens": [1, 5, 6, 7], "logits_top1_bits": ["40000000", "40000000"]}
    found = beside_strict({"tokens": ids, "logits_top1_bits": bits}, strict)
    assert tuple(found[name] for name in ("first_difference", "top1_logits", "differ", "largest_difference")) == wanted
    assert found["tokens_equal"] == (wanted[0] is None)
