"""What `simulate` is given: a simulation file, or a run scenario, which is simulated with what is assumed in words.

A run scenario says where one workload runs, and nothing of requests over time. Its placement becomes a pool of one
worker a phase; its workload comes again and again at the rate that its slowest part keeps up with, or a trace comes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fleet.errors import DescriptionError, InconclusiveError
from fleet.yaml_source import parse_text, read_text
from scenarios.shipped import not_shipped
from scenarios.simulation.read_spec import load_spec, read_spec, simulation_names
from scenarios.simulation.run import Simulated, run_loaded, run_spec, traffic_of
from scenarios.simulation.spec import Pool, Spec
from scenarios.simulation.traffic import Arrivals, Lengths

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleet.workload import Workload
    from scenarios.wanted import Prepared, Wanted

REQUESTS = 1000
"""Requests of a run scenario's workload, unless a number is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """What the command line says beside the file; None: what the file says."""

    fleet: str | None = None
    model: str | None = None
    seed: int | None = None
    trace: str | None = None
    rate: float | None = None
    requests: int | None = None


def load_question(path: str) -> Spec | Wanted:
    """The simulation or run scenario of a file (`-` = stdin), told apart by its schema, or a shipped one.

    Raises DescriptionError with every fault.
    """
    from scenarios.scenario import SCHEMA, load_scenario, read_scenario, scenario_names

    if path != "-" and not os.path.lexists(path):
        if path in simulation_names():
            return load_spec(path)
        if path in scenario_names():
            return load_scenario(path)
        raise not_shipped(path, "simulation or scenario", [*simulation_names(), *scenario_names()])
    document = parse_text(read_text(path), "<stdin>" if path == "-" else path)
    folder = os.getcwd() if path == "-" else os.path.dirname(path)
    schema = document.data.get("schema") if isinstance(document.data, dict) else None
    return read_scenario(document, folder) if schema == SCHEMA else read_spec(document, folder)


def run_question(question: Spec | Wanted, asked: Asked, note: Callable[[str], None] | None = None) -> Simulated:
    """Runs it. Raises DescriptionError (wrong input) and InconclusiveError (a figure is unknown, or not simulated)."""
    if isinstance(question, Spec):
        return run_spec(_changed(question, asked), note)
    from scenarios.wanted import prepare

    named = {name: value for name in ("fleet", "model") if (value := getattr(asked, name)) is not None}
    prepared = prepare(replace(question, **named, given=frozenset(named)))
    spec, assumed = spec_of(prepared, asked, question.source)
    spec = replace(spec, name=question.name)
    done = run_loaded(spec, prepared.ask.fleet, prepared.ask.model, traffic_of(spec), note)
    if done.document is not None:
        done.document["assumed"] = [*prepared.defaults, *assumed]
    return done


def _changed(spec: Spec, asked: Asked) -> Spec:
    names = ("fleet", "model", "seed", "trace")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(asked, name)) is not None}
    counted = {name: value for name in ("rate", "requests") if (value := getattr(asked, name)) is not None}
    if counted:
        if spec.arrivals is None or asked.trace is not None:
            words = "is of drawn requests; a trace has its own"
            raise DescriptionError.at("command line", f"--{next(iter(counted))}", words)
        given["arrivals"] = replace(spec.arrivals, **counted)
    return replace(spec, **given)


def spec_of(prepared: Prepared, asked: Asked, source: str) -> tuple[Spec, list[str]]:
    """The simulation of a run scenario, and what was assumed, in words."""
    from planner.request import resolve

    ask = prepared.ask
    if ask.model.unknown:
        raise InconclusiveError(f"{ask.model.name}: {'; '.join(ask.model.unknown)}")
    workload = resolve(ask.request, ask.model, source)
    _stop_where_not_simulated(prepared, workload, source)
    placement = ask.placement
    pools = {
        phase: Pool(devices=placement.ranks(phase), tp=placement.tensor_parallel(phase), pp=placement.pipeline(phase))
        for phase in ("prefill", "decode")
    }  # fmt: skip
    blocks = workload.kv_extent.removeprefix("blocks:") if workload.kv_extent.startswith("blocks:") else None
    spec = Spec(
        fleet=ask.fleet.name, prefill=pools["prefill"], decode=pools["decode"], kv_dtype=workload.kv_dtype,
        weights_dtype=ask.request.weights_dtype, rates=ask.pricing.rates, utilization=ask.utilization,
        extent="filled" if blocks is None else "blocks", block_tokens=16 if blocks is None else int(blocks),
        seed=asked.seed or 0, source=source,
    )  # fmt: skip
    one = pools["prefill"]
    assumed = [
        f"one worker a phase; at most {one.max_seqs} requests of it run at once, {one.max_tokens:,} tokens a step,"
        " whatever prefill_chunk and batch say",
        "round robin, push, whole handoffs, one after another on a link; no SLO, no failure",
    ]
    if asked.trace is not None:
        if asked.rate is not None or asked.requests is not None:
            words = "has its own arrivals; leave --rate and --requests out"
            raise DescriptionError.at("command line", "--trace", words)
        return replace(spec, trace=asked.trace), [*assumed, "requests are the trace's, not the scenario's workload"]
    new_tokens = workload.passes - workload.prompt_tokens + 1
    rate, words = _rate(prepared, workload, asked)
    requests = asked.requests or REQUESTS
    spec = replace(
        spec, arrivals=Arrivals(kind="constant", rate=rate, requests=requests),
        prompts=Lengths(kind="fixed", value=workload.prompt_tokens), answers=Lengths(kind="fixed", value=new_tokens),
    )  # fmt: skip
    told = f"the scenario's workload comes {requests:,} times: {workload.prompt_tokens:,} prompt tokens, {new_tokens:,}"
    return spec, [*assumed, f"{told} new ones", words]


def _stop_where_not_simulated(prepared: Prepared, workload: Workload, source: str) -> None:
    """Raises for what a run scenario may ask and no simulation does."""
    words = {
        "both phases on one device": prepared.ask.placement.is_oracle,
        "attention on the host": workload.attention == "host",
        f"the layout {workload.layout}": workload.layout != "plain",
        "a handoff of the allocated cache": workload.kv_extent == "allocated",
    }
    found = [name for name, is_so in words.items() if is_so]
    if found:
        raise InconclusiveError(f"not simulated: {', '.join(found)}; `kvwaybill admit` prices one request of it")
    if workload.passes < workload.prompt_tokens:
        told = f"{workload.passes:,} passes end inside the prompt of {workload.prompt_tokens:,} tokens"
        raise DescriptionError.at(source, "workload", f"{told}: no token is made; ask for more steps")


def _rate(prepared: Prepared, workload: Workload, asked: Asked) -> tuple[float, str]:
    """(requests a second, where that comes from)."""
    if asked.rate is not None:
        return asked.rate, f"arrivals are constant, {asked.rate:g} a second, as given"
    from planner.placement_time import placement_time
    from planner.predict import predict

    ask = prepared.ask
    rows = predict(ask.fleet, ask.model, workload, ask.placement).rows
    told = placement_time(ask.fleet, ask.model, workload, ask.placement, rows, ask.pricing)
    parts = {"prefill": told.prefill, "the handoff": told.handoff, "decode": told.decode}
    seconds: Mapping[str, Fraction] = {
        name: time.seconds for name, time in parts.items() if time.seconds is not None and time.seconds > 0
    }
    missing = dict.fromkeys(words for time in parts.values() for words in time.unpriced)
    if missing or not seconds:
        raise InconclusiveError(f"no rate to assume: {'; '.join(missing) or 'nothing takes time'}")
    slowest = max(seconds, key=lambda name: seconds[name])
    rate = float(1 / seconds[slowest])
    return rate, f"arrivals are constant, {rate:.4g} a second: as {slowest} keeps up with, one request at a time"
