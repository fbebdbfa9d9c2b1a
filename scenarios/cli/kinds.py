"""What kind of document a path holds, so that one given to the wrong command is answered in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from fleet.errors import DescriptionError

_HEAD = 4096
"""Bytes of a file that are looked at: documents name their schema first."""
_SCHEMA = re.compile(rb"""["']?schema["']?\s*:\s*["']?kvwaybill/([a-z-]{1,32})/""")

WORDS = {
    "admissions": "a list of plans of several fleets",
    "backends": "a list of backends",
    "scenarios": "the list of shipped scenarios",
    "frozen": "the answer of a gate",
    "witness": "a list of copies that CUDA made",
    "sweep-result": "the result of a sweep",
    "sweep-journal": "the journal of a sweep",
    "sweep-cases": "the cases of a sweep",
    "simulation-scenario": "a simulation scenario",
    "simulation": "the result of a simulation",
    "history": "a history of runs",
    "placements": "a ranking of placements",
    "model": "what model show says of a model",
    "scenario-report": "what scenario show says of a scenario",
    "fleet-catalog": "the list of shipped fleets",
    "fleet-check": "the answer of fleet check",
    "model-config": "a model config",
    "checkpoint": "a checkpoint of a model",
    "model-folder": "the folder of a model",
    "tokenizer": "a tokenizer",
    "topology": "a description of a machine",
    "in-use": "a list of what is in use",
    "observation": "an observation of an engine",
    "trace": "a trace of requests",
    "records": "a file of a simulation's records",
    "launch": "a launch command of an engine",
    "timeline": "a Chrome trace",
    "json-schema": "a JSON schema",
    "page": "a finished report",
    "junit": "a JUnit report",
    "empty": "empty",
}
"""Kinds whose name alone does not say what they are; the others are `a plan`, `a fleet`."""

TAKEN_BY = {
    "scenario": "admit, run and prove take a scenario",
    "plan": "run, explain and compare take a plan",
    "run": "compare takes a run",
    "comparison": "report and history take a comparison",
    "fleet": "--fleet and the fleet commands take a fleet",
    "sweep": "sweep takes a sweep",
    "simulation-scenario": "simulate takes a simulation; a sweep names it as its base",
    "admissions": "several plans: write one fleet's plan with admit --plan-out",
    "proof": "compare takes the plan and the runs that prove --save-dir writes beside it",
    "simulation": "report takes it",
    "sweep-result": "report takes it",
    "sweep-journal": "sweep --journal takes it",
    "history": "report takes it",
    "records": "report takes them, simulate --observed such as were observed",
    "model-config": "--model takes it",
    "checkpoint": "--model takes it",
    "model-folder": "--model takes it",
    "model": "--model takes the config.json or the checkpoint itself",
    "scenario-report": "admit, run and prove take the scenario file itself",
    "tokenizer": "--tokenizer takes it",
    "topology": "--fleet and fleet import take it",
    "in-use": "--in-use takes it",
    "observation": "audit takes it, and compare behind a plan",
    "trace": "simulate --trace takes it",
    "launch": "admit --engine-args takes it",
    "timeline": "open it at ui.perfetto.dev",
    "page": "open it in a browser; report takes the documents that it was made of",
    "junit": "report takes the documents that it was made of",
    "report": "report takes the documents that it was made of",
    "audit": "audit takes the log itself",
    "empty": "write or copy it again",
} | dict.fromkeys(
    ("placements", "calibration", "explanation", "fleet-catalog", "fleet-check", "backends", "witness", "sweep-cases"),
    "no command takes it",
)


def in_words(kind: str) -> str:
    """`a fleet`, `an admission`, or the words of a kind whose name is no word."""
    article = "an" if kind[0] in "aeiou" else "a"
    return WORDS.get(kind) or f"{article} {kind.replace('-', ' ')}"


def kind_in(path: str) -> str | None:
    """`plan`, `scenario`, `fleet` ... of a file that names its schema near its beginning; None for anything else.

    A pipe is not looked at: what is taken out of it here, its reader would lack.
    """
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            found = _SCHEMA.search(file.read(_HEAD))
    except (OSError, ValueError):
        return None
    return found[1].decode() if found else None


def refuse_other_kinds(target: str, wanted: Collection[str], what: str) -> None:
    """Ends the command where `target` is a document of another kind, or a shipped scenario's name.

    `what` says who takes what: `explain takes a plan`; the frame adds what takes the file (`misplaced`). Stdin, and
    files of no known kind, are left to their reader.
    """
    if target == "-":
        return
    kind = kind_in(target)
    if kind is None and "scenario" not in wanted and _is_shipped_scenario(target, wanted):
        kind = "scenario"
    if kind is None or kind in wanted:
        return
    raise DescriptionError.at(target, "", f"is {in_words(kind)}; {what}")


def _is_shipped_scenario(target: str, wanted: Collection[str]) -> bool:
    """Whether a name without a file is that of a shipped scenario, and of no shipped fleet where one is wanted."""
    from fleet.catalog import catalog_names
    from scenarios.scenario import scenario_names

    if "\0" in target or os.path.exists(target) or ("fleet" in wanted and target in catalog_names()):
        return False
    return target in scenario_names()
