"""What kind of document a path holds, so that one given to the wrong command is answered in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Collection

from fleet.errors import DescriptionError

_HEAD = 4096
"""Bytes of a file that are looked at: documents name their schema first."""
_SCHEMA = re.compile(rb"""["']?schema["']?\s*:\s*["']?kvwaybill/([a-z-]{1,32})/""")

TAKEN_BY = {
    "scenario": "admit, run and prove take a scenario",
    "plan": "run, explain and compare take a plan",
    "run": "compare takes a run",
    "fleet": "--fleet and the fleet commands take a fleet",
    "sweep": "sweep takes a sweep",
    "simulation-scenario": "simulate takes a simulation; a sweep names it as its base",
    "admissions": "several plans: write one fleet's plan with admit --plan-out",
    "proof": "compare takes the plan and the runs that prove --save-dir writes beside it",
}
_HOW_TO_GET = {
    "plan": "write one with: kvwaybill admit {target} --plan-out plan.json",
    "run": "write one with: kvwaybill run {target} --run-out run.json",
}


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

    `what` says who takes what: `explain takes a plan`. Stdin, and files of no known kind, are left to their reader.
    """
    if target == "-":
        return
    kind = kind_in(target)
    if kind is None and "scenario" not in wanted and _is_shipped_scenario(target, wanted):
        kind = "scenario"
    if kind is None or kind in wanted:
        return
    helps = [_HOW_TO_GET[name].format(target=target) for name in wanted if kind == "scenario" and name in _HOW_TO_GET]
    hint = helps[0] if helps else TAKEN_BY.get(kind)
    article = "an" if kind[0] in "aeiou" else "a"
    raise DescriptionError.at(target, "", f"is {article} {kind}; {what}" + (f" ({hint})" if hint else ""))


def _is_shipped_scenario(target: str, wanted: Collection[str]) -> bool:
    """Whether a name without a file is that of a shipped scenario, and of no shipped fleet where one is wanted."""
    from fleet.catalog import catalog_names
    from scenarios.scenario import scenario_names

    if "\0" in target or os.path.exists(target) or ("fleet" in wanted and target in catalog_names()):
        return False
    return target in scenario_names()
