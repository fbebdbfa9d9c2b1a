"""The cases of a sweep: every question read and checked before any is answered, each with a key made of content."""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from typing import Any

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError, Fault
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.model import Model
from fleet.yaml_source import Data, printable
from scenarios.documents import digest_of
from scenarios.sweeping.merge import CASE, FILES, case_document, merged, told
from scenarios.sweeping.spec import Choice, Sweep

MAX_FAULTS = 50
DEMAND = {
    "simulate": ("model", "trace", "arrivals", "prompts", "answers", "seed", "slo"),
    "admit": ("model", "tokenizer", "workload"),
}
"""Fields that say what is asked for. Cases of one demand are ranked; the other fields say what serves it."""
UNUSED = ("schema", "name", "expect")


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One question. `key` and `demand` are digests of content; `body` is what a worker needs besides the trace."""

    index: int
    key: str
    demand: str
    choice: Choice
    fleet: Fleet
    model: Model
    devices: tuple[str, ...]
    body: Any
    trace: str | None = None

    @property
    def fields(self) -> dict[str, Data]:
        """What the sweep sets, as it stands there."""
        return {name: setting.value for name, setting in self.choice.items()}

    def demanded(self, question: str) -> dict[str, Data]:
        """The fields of the sweep that belong to what is asked for."""
        return {name: v for name, v in self.fields.items() if name.split(".")[0] in DEMAND[question]}

    @property
    def skus(self) -> dict[str, int]:
        """Devices of the case by card; a card without a name is ''."""
        used = set(self.devices)
        names = [d.sku or "" for d in self.fleet.devices if d.id in used]
        return {name: names.count(name) for name in sorted(set(names))}

    def cost(self, prices: dict[str, Fraction]) -> float | None:
        """What an hour of its devices costs; None where one has no price."""
        counts = self.skus
        if not counts or not counts.keys() <= prices.keys():
            return None
        return float(sum(prices[name] * count for name, count in counts.items()))


@cache
def program() -> str:
    """Digest of what computes answers: our own sources and numpy's version. What other code answered is not reused."""
    from importlib.metadata import version

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    digest = hashlib.sha256(f"numpy {version('numpy')}".encode())
    for package in ("fleet", "planner", "executor", "scenarios"):
        for folder, below, names in sorted(os.walk(os.path.join(root, package))):
            below.sort()
            for name in sorted(name for name in names if name.endswith(".py")):
                with open(os.path.join(folder, name), "rb") as file:
                    digest.update(f"\n{os.path.relpath(folder, root)}/{name}\n".encode() + file.read())
    return digest.hexdigest()


@dataclass(slots=True)
class Files:
    """What the cases read, each file once."""

    fleets: dict[str, Fleet] = field(default_factory=dict)
    models: dict[str | None, Model] = field(default_factory=dict)
    traces: dict[str, bytes] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, DescriptionError] = field(default_factory=dict)

    def fleet(self, name: str, **asked: Any) -> Fleet:
        """The fleet of a name; the same call as `load_fleet`."""
        found: Fleet = self._once(self.fleets, name, "fleet", lambda: load_fleet(name, **asked))
        return found

    def model(self, name: str | None) -> Model:
        """The model of a name."""
        found: Model = self._once(self.models, name, "model", lambda: load_model(name))
        return found

    def trace(self, path: str) -> bytes:
        """The requests of a trace, pickled."""
        from scenarios.simulation.traces import read_trace

        found: bytes = self._once(self.traces, path, "trace", lambda: pickle.dumps(read_trace(path), protocol=5))
        return found

    def digest(self, path: str | None) -> str | None:
        """sha256 of a file's content."""
        from scenarios.wanted import tokenizer_digest

        return None if path is None else self._once(self.digests, path, "", lambda: tokenizer_digest(path) or "")

    def _once(self, known: dict[Any, Any], name: Any, what: str, read: Any) -> Any:
        where = f"{id(known)} {name}"
        if where in self.wrong:
            raise self.wrong[where]
        if name not in known:
            try:
                known[name] = read()
            except DescriptionError as error:
                faults = [f if f.line else Fault(source=CASE, field=what, message=str(f)) for f in error.faults]
                self.wrong[where] = DescriptionError(faults)
                raise self.wrong[where] from error
        return known[name]


def choices(sweep: Sweep) -> Iterator[Choice]:
    """What each case sets, in the order of the file: entries of `list`, then the fields of `grid`, the last fastest."""
    for parts in itertools.product(sweep.listed or ({},), *sweep.grid):
        yield {name: setting for part in parts for name, setting in part.items()}


def read_cases(sweep: Sweep) -> tuple[list[Case], Files]:
    """All cases. Raises DescriptionError with the faults of all of them, each told once at its place."""
    files, cases = Files(), []
    faults: dict[Fault, list[int]] = {}
    index = 0
    for index, choice in enumerate(choices(sweep), 1):
        try:
            cases.append(_case(sweep, index - 1, choice, files))
        except DescriptionError as error:
            for fault in told(sweep, choice, error.faults):
                faults.setdefault(fault, []).append(index)
            if len(faults) > MAX_FAULTS:
                break
    if faults:
        found = [_of_cases(sweep, fault, of, files) for fault, of in faults.items()]
        raise DescriptionError(sorted(found, key=lambda fault: (fault.source != sweep.source, fault.line)))
    return cases, files


def _of_cases(sweep: Sweep, fault: Fault, cases: list[int], files: Files) -> Fault:
    """The fault; where it is told in a file that is right by itself, with the first case that has it."""
    choice = next(itertools.islice(choices(sweep), cases[0] - 1, None))
    own = {place for setting in choice.values() for place in (setting.place, setting.key_place)}
    of_others = fault.source not in (sweep.source, sweep.base.document.source)
    if of_others or (fault.source == sweep.source and (fault.line, fault.column) in own):
        return fault
    try:
        _case(sweep, 0, {}, files)
    except DescriptionError as error:
        if fault in told(sweep, {}, error.faults):
            return fault
    more = f" and {len(cases) - 1:,} more" if len(cases) > 1 else ""
    return replace(fault, message=f"{fault.message}; in {words_of(cases[0], choice)}{more}")


def words_of(number: int, choice: Choice) -> str:
    """A case in messages: its number and what it sets."""
    told_of = {name: "left out" if one.value is None else printable(str(one.value)) for name, one in choice.items()}
    fields = ", ".join(f"{name}: {words}" for name, words in told_of.items())
    return f"case {number} ({fields})" if fields else f"case {number}"


def _case(sweep: Sweep, index: int, choice: Choice, files: Files) -> Case:
    data = merged(sweep, choice)
    read = _simulation if sweep.question == "simulate" else _admission
    body, fleet, model, devices, trace = read(sweep, data, files)
    digests = {
        "fleet": fleet.digest, "model": model.digest, "trace": files.digest(trace),
        "tokenizer": files.digest(data.get("tokenizer")),
    }  # fmt: skip
    plain = {name: value for name, value in data.items() if name not in (*FILES, *UNUSED)}
    wanted = {name: digests[name] for name in ("model", "trace", "tokenizer")}
    return Case(
        index=index, choice=choice, fleet=fleet, model=model, devices=devices, body=body, trace=trace,
        key=digest_of({"question": sweep.question, "case": plain, "digests": digests}),
        demand=digest_of({"asked": _asked(sweep, body, plain), "digests": wanted}),
    )  # fmt: skip


def _asked(sweep: Sweep, body: Any, plain: dict[str, Any]) -> dict[str, Any]:
    """What is asked for, besides files. Of a simulation as it was read: 5 and 5.0 are the same."""
    if sweep.question == "admit":
        return {name: value for name, value in plain.items() if name in DEMAND["admit"]}
    spec = body[0]
    drawn = None if spec.trace is not None else (spec.arrivals, spec.prompts, spec.answers, spec.seed)
    return {"drawn": repr(drawn), "slo": repr(spec.slo)}


_Read = tuple[Any, Fleet, Model, tuple[str, ...], str | None]


def _simulation(sweep: Sweep, data: dict[str, Any], files: Files) -> _Read:
    from scenarios.simulation.plant import check_devices
    from scenarios.simulation.read_spec import read_spec

    spec = read_spec(case_document(sweep, data), "")
    fleet, model = files.fleet(spec.fleet), files.model(spec.model)
    check_devices(spec, fleet)
    if spec.trace is not None:
        files.trace(spec.trace)
    body = (replace(spec, places={}), fleet, model)
    return body, fleet, model, (*spec.prefill.devices, *spec.decode.devices), spec.trace


def _admission(sweep: Sweep, data: dict[str, Any], files: Files) -> _Read:
    from scenarios.scenario import read_scenario
    from scenarios.wanted import prepare

    wanted = read_scenario(case_document(sweep, data), "")
    prepared = prepare(replace(wanted, places={}), read_fleet=files.fleet, read_model=files.model)
    ask = prepared.ask
    return prepared, ask.fleet, ask.model, ask.placement.devices, None
