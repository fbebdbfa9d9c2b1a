"""A simulation from its spec to its summary: files, admission, requests, event loop, results."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.load import load_fleet
from fleet.machine import Fleet
from fleet.model import Model
from scenarios.simulation.arrays import config_of
from scenarios.simulation.plant import Plant, build
from scenarios.simulation.spec import Spec
from scenarios.simulation.traffic import Traffic, draw

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulated:
    """What came of a spec. `document` is None where admission refused; `plant.refused` has the reasons then."""

    plant: Plant
    traffic: Any = None
    outcome: Any = None
    document: Document | None = None

    @property
    def verdict(self) -> str:
        """The planner's word on the pools."""
        return "admitted" if self.plant.refused is None else self.plant.refused.verdict


def traffic_of(spec: Spec) -> Traffic:
    """The requests: of the trace where one is named, else drawn."""
    if spec.trace is not None:
        from scenarios.simulation.traces import read_trace

        return read_trace(spec.trace)
    if spec.arrivals is None or spec.prompts is None or spec.answers is None:
        raise DescriptionError.at(spec.source, "arrivals", "give a trace, or arrivals, prompts and answers")
    return draw(spec.seed, spec.arrivals, spec.prompts, spec.answers)


def run_spec(spec: Spec, note: Callable[[str], None] | None = None) -> Simulated:
    """Runs it. Raises DescriptionError (wrong input) and InconclusiveError (a figure is unknown)."""
    fleet, model = load_fleet(spec.fleet), load_model(spec.model)
    return run_loaded(spec, fleet, model, traffic_of(spec), note)


def run_loaded(
    spec: Spec, fleet: Fleet, model: Model, traffic: Traffic, note: Callable[[str], None] | None = None
) -> Simulated:
    """The same with its files read already."""
    return run_plant(build(spec, fleet, model), traffic, note)


def run_plant(plant: Plant, traffic: Traffic, note: Callable[[str], None] | None = None) -> Simulated:
    """The same with its workers admitted already."""
    if plant.refused is not None:
        return Simulated(plant=plant)
    from scenarios.simulation.engine import simulate, will_compile
    from scenarios.simulation.results import summary

    config = config_of(plant, traffic)

    def progress(arrived: int, of: int) -> None:
        if note is not None and of > 1_000_000:
            note(f"{arrived:,} of {of:,} requests have come")

    compiles, began = note is not None and will_compile(config), time.perf_counter()
    if note is not None and compiles:
        note("compiling the event loop, once: some twenty seconds ...")
    outcome = simulate(config, progress, plant.model.seq_len)
    if note is not None and compiles:
        note(f"compiled it and ran in {time.perf_counter() - began:.1f} s; kept where a cache can be written")
    return Simulated(plant=plant, traffic=traffic, outcome=outcome, document=summary(plant, traffic, outcome))


def refusal_text(plant: Plant) -> str:
    """Why a pool is not admitted: the planner's reasons."""
    refused = plant.refused
    assert refused is not None
    lines = [f"{refused.verdict.upper()}  {plant.model.name} on {plant.fleet.name}: not simulated"]
    lines += [f"  {reason.severity} {reason.code}: {reason.message}" for reason in refused.reasons]
    return "\n".join(lines) + "\n"
