"""The commands as functions: documents in, documents out, no text and no exit codes. `docs/python-api.md` shows them.

Documents are the plain dicts that `-o json` prints and the contract of `docs/documents.md` describes. A refusal and a
difference are values in them. What is wrong with an input is raised: `fleet.errors.DescriptionError` with every fault,
`InconclusiveError` where a figure or a machine is missing, `BackendError` where a run broke.
"""

from __future__ import annotations

from typing import Any

__all__ = ["admit", "compare", "prove", "run", "simulate"]

Document = dict[str, Any]


def admit(scenario: str | None = None, **words: Any) -> Document:
    """The **plan** of a scenario (a file or a shipped name), of keywords alone, or of a scenario with keywords on top.

    Keywords are the long options of `kvwaybill admit` with `_` for `-`: `fleet`, `model`, `prefill`, `decode`,
    `prompt`, `prompt_tokens`, `steps`, `batch`, `kv_dtype` and the rest. `plan["verdict"]` is admitted, refused or
    unverified.
    """
    from scenarios.planning import make_plan
    from scenarios.wanted import prepare, wanted_of

    return make_plan(prepare(wanted_of(scenario, words)))


def run(plan: Document, *, backend: str = "numba", without_handoff: bool = False, **options: Any) -> Document:
    """The **run** of an admitted plan, with its comparison under `comparison`.

    Options are those of `scenarios.runner.set_up`: `path`, `model`, `tokenizer`, `prompt`, `fast`, `threads`.
    `without_handoff` leaves out the device-to-device rows: the comparison is then different, and so is the text.
    """
    from scenarios.runner import run_and_compare, set_up

    bench = set_up(plan, backend=backend, **options)
    return run_and_compare(bench, without=("handoff",) if without_handoff else ())


def prove(scenario: str, *, backend: str = "numba", **words: Any) -> Document:
    """The **proof** of a scenario: split, oracle and every sabotage; of one that is not admitted, its plan."""
    from scenarios.prove import prove as proved
    from scenarios.wanted import prepare, wanted_of

    proof, plan = proved(prepare(wanted_of(scenario, words)), backend=backend)
    return proof or plan


def compare(predicted: Document, observed: Document) -> Document:
    """The **comparison** of a plan with its run, of two plans, or of two runs."""
    from scenarios.compare import compare as compared

    return compared(predicted, observed)


def simulate(scenario: str) -> Document | None:
    """The summary of a simulation or run scenario (file, or shipped name); None where its placement is not admitted."""
    from scenarios.simulation.questions import Asked, load_question, run_question

    return run_question(load_question(scenario), Asked()).document
