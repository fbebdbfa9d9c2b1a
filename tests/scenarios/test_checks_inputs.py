"""A comparison says when the two documents speak of different things."""

from __future__ import annotations

from typing import Any

from scenarios.compare import compare
from tests.scenarios.made import clean_run, plan

Document = dict[str, Any]


def with_inputs(document: Document, **changed: str | None) -> Document:
    digests: dict[str, str | None] = {"model": "m" * 64, "fleet": "f" * 64, "placement": "p" * 64, "workload": "w" * 64}
    held = {name: {"digest": digest} for name, digest in (digests | changed).items() if digest is not None}
    return document | {"inputs": {**(document.get("inputs") or {}), **held}}


def check(comparison: Document, name: str) -> Document:
    return next(entry for entry in comparison["checks"] if entry["name"] == name)


def test_a_run_of_another_checkpoint_is_different() -> None:
    planned = plan()
    run = with_inputs(clean_run(planned), model="x" * 64)
    comparison = compare(with_inputs(planned), run)
    assert comparison["verdict"] == "different"
    assert "model" in check(comparison, "same_inputs")["detail"]


def test_a_run_of_the_same_inputs_passes_and_one_that_says_nothing_is_waived() -> None:
    planned = plan()
    run = clean_run(planned)
    assert check(compare(with_inputs(planned), with_inputs(run)), "same_inputs")["result"] == "passed"
    assert check(compare(planned, run), "same_inputs")["result"] == "waived"


def test_another_prompt_of_as_many_tokens_is_allowed_and_told() -> None:
    planned = plan()
    run = with_inputs(clean_run(planned), workload=None)
    found = check(compare(with_inputs(planned), run), "same_inputs")
    assert found["result"] == "passed"
    assert "another prompt" in found["detail"]


def test_two_plans_of_other_fleets_are_equal_in_bytes_and_say_so() -> None:
    planned = plan()
    comparison = compare(with_inputs(planned), with_inputs(planned, fleet="g" * 64))
    assert comparison["verdict"] == "equal"
    found = check(comparison, "inputs_unchanged")
    assert (found["result"], found["required"]) == ("inconclusive", False)
    assert "fleet" in found["detail"]
