"""One sentence where a file stands in another's place: what it is, what was wanted there, and what takes it.

Asked once a reader has refused: a reader lists the faults of a file of its own kind, which are noise for another's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

from fleet.errors import DescriptionError, Fault
from fleet.yaml_source import printable, shown_path
from scenarios.cli.file_kinds import kind_of_file, kind_of_name
from scenarios.cli.kinds import TAKEN_BY, in_words

_FLEET = (("fleet", "topology"), "a fleet")
_MODEL = (("model-config", "checkpoint", "model-folder"), "a model: its config.json, a checkpoint or their folder")
_PLAN = (("plan",), "a plan")
_SCENARIO = (("scenario",), "a scenario")
WANTED: dict[str, tuple[tuple[str, ...], str]] = {
    "scenario": _SCENARIO,
    "fleet": _FLEET,
    "fleets": _FLEET,
    "onto": _FLEET,
    "file": (("topology", "fleet"), "the output of another tool"),
    "model": _MODEL,
    "tokenizer": (("tokenizer",), "a tokenizer"),
    "in_use": (("plan", "in-use"), "an admitted plan, nvidia-smi's CSV or a list of pods"),
    "engine_args": (("launch",), "launch commands of an engine"),
    "plan": _PLAN,
    "beside": _PLAN,
    "target": (("scenario", "plan"), "a scenario or a plan"),
    "a": (("plan", "run"), "plans and runs"),
    "b": (("plan", "run", "observation"), "plans and runs, or an observation behind a plan"),
    "log": (("observation",), "an observation: log, metrics, profile or CSV of an engine"),
    "runs": (("run", "comparison"), "runs and comparisons"),
    "documents": (
        ("plan", "admissions", "run", "comparison", "proof", "simulation", "sweep-result", "history", "records"),
        "plans, runs, comparisons, proofs, results of simulations and sweeps, records and histories",
    ),
    "trace": (("trace",), "a trace of requests"),
    "observed": (("records",), "observed latencies, a JSON object a request"),
    "sweep": (("sweep",), "a sweep"),
    "journal": (("sweep-journal",), "the journal of a sweep"),
}
"""Parameters that name a file, of all commands: the kinds that they take, and those in words."""
_OF_COMMAND = {("simulate", "scenario"): (("simulation-scenario", "scenario"), "a simulation or a scenario")}
_KEYS = {"fleet": _FLEET, "model": _MODEL, "tokenizer": WANTED["tokenizer"], "trace": WANTED["trace"]}
"""Fields of scenario, simulation and sweep files that name another file."""
_HOW_TO_GET = {
    "plan": "write one with: kvwaybill admit {target} --plan-out plan.json",
    "run": "write one with: kvwaybill run {target} --run-out run.json",
}
_LIKE = 0.8
"""How alike two names of files are, at least, for one to be a slip of the other: endings alone are not."""
_OWN_FILES = ("scenario", "target", "sweep")

Given = Mapping[str, tuple[str | None, Any]]
"""Parameter -> (its flag, None for an argument; what was given)."""


class Parameter(NamedTuple):
    """A parameter of a command: how it is called on the command line (a flag, or an argument), and what was given."""

    name: str
    flag: str | None
    value: Any


def told_shortly(error: DescriptionError, command: str, given: Given) -> DescriptionError:
    """The error, with one sentence in place of the faults of each file that is of another kind than is wanted there.

    Of files that are missing it is told how to mend it.
    """
    told: dict[str, Fault] = {}
    for parameter, path in _paths(given):
        wanted = _OF_COMMAND.get((command, parameter.name)) or WANTED[parameter.name]
        subject = f"{parameter.flag or command} takes {wanted[1]}"
        fault = _misplaced(path, wanted[0], subject, command, given)
        if fault is not None:
            told |= {name: fault for name in (path, shown_path(path)) if name not in told}
    sources = {fault.source for fault in error.faults}
    told |= {name: fault for name, fault in _within(command, given) if name in sources and name not in told}
    faults = [told.get(_file_of(fault.source)) or _missing(fault) for fault in error.faults]
    if any(_file_of(source) in told for source in sources):
        faults += told.values()  # a reader stops at the first file that it cannot read
    return DescriptionError(dict.fromkeys(faults)) if faults != list(error.faults) else error


def _file_of(source: str) -> str:
    """`records.jsonl` of the source `records.jsonl line 3`."""
    path, _, line = source.rpartition(" line ")
    return path if path and line.isdigit() else source


def _paths(given: Given) -> Iterator[tuple[Parameter, str]]:
    for name, (flag, value) in given.items():
        for each in value if isinstance(value, list | tuple) else [value]:
            if name in WANTED and isinstance(each, str) and each != "-":
                yield Parameter(name, flag, value), each


def _misplaced(path: str, wanted: tuple[str, ...], subject: str, command: str, given: Given) -> Fault | None:
    """None where the file is of a wanted kind, or of a kind that nobody knows."""
    kind = kind_of_file(path)
    kind = kind_of_name(path, wanted) if kind is None else kind
    if kind is None or kind in wanted or ("fleet" in wanted and _is_shipped_fleet(path)):
        return None
    made = next((_HOW_TO_GET[each] for each in wanted if kind == "scenario" and each in _HOW_TO_GET), None)
    hint = made.format(target=shown_path(path)) if made else _hint(kind, command, given)
    words = f"is {in_words(kind)}; {subject}" + (f" ({hint})" if hint else "")
    return Fault(source=shown_path(path), field="", message=words)


def _is_shipped_fleet(name: str) -> bool:
    """Whether a name is that of a shipped fleet, whatever else has it too."""
    from fleet.catalog import catalog_names

    return name in catalog_names() and not os.path.lexists(name)


def _hint(kind: str, command: str, given: Given) -> str | None:
    """The option of this command that takes the kind, else what does."""
    for name, (flag, _) in given.items():
        kinds, _ = _OF_COMMAND.get((command, name)) or WANTED.get(name, ((), ""))
        if kind in kinds and flag is not None and (name, kind) != ("in_use", "plan"):
            return f"give it with {flag}"
    return TAKEN_BY.get(kind)


def _within(command: str, given: Given) -> Iterator[tuple[str, Fault]]:
    """Files that a scenario, simulation or sweep file names under the wrong key: (source, fault)."""
    from fleet.yaml_source import parse_text, read_text

    for name in _OWN_FILES:
        path = given.get(name, (None, None))[1]
        if not isinstance(path, str) or not os.path.isfile(path):
            continue
        try:
            data = parse_text(read_text(path), path).data
        except DescriptionError:
            continue
        fields = data if isinstance(data, dict) else {}
        for key, (kinds, words) in _KEYS.items():
            value = fields.get(key)
            inner = os.path.join(os.path.dirname(path), value) if isinstance(value, str) else None
            fault = None if inner is None else _misplaced(inner, kinds, f"{key}: takes {words}", command, {})
            if inner is not None and fault is not None:
                yield from ((each, fault) for each in (inner, shown_path(inner), os.path.normpath(inner)))


def _missing(fault: Fault) -> Fault:
    """A file that is not there, with the name that was perhaps meant; any other fault as it is."""
    words = fault.message
    if not words.endswith(("o such file", "o such file or directory")) or os.path.lexists(fault.source):
        return fault
    folder, name = os.path.split(fault.source)
    try:
        close = get_close_matches(name[:200], sorted(os.listdir(folder or "."))[:10_000], n=1, cutoff=_LIKE)
    except (OSError, ValueError):
        close = []
    meant = f"; did you mean {printable(os.path.join(folder, close[0]), 200)}?" if close else ""
    return replace(fault, message=f"{words}; give the path of a file that exists{meant}")
