"""The best pool as a simulation scenario: its workers, the request that was asked, the rate that it keeps up with."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fleet.errors import DescriptionError
from fleet.placement import Placement
from scenarios.placing_question import Placing

if TYPE_CHECKING:
    from scenarios.simulation.spec import Pool, Spec
    from scenarios.wanted import Wanted

Document = dict[str, Any]
FLAG = "--simulation-out"
COMMAND_LINE = "command line"
RATES = (1e-6, 1e7)
"""Requests a second that a simulation file takes."""
_NOT_WRITTEN = (
    "in_use", "sku", "assume_host_return", "mtp", "utilization_of", "prefix_hit", "kv_buffer", "engine", "staging",
    "efficiency",
)  # fmt: skip


def check_sayable(wanted: Wanted) -> None:
    """Raises DescriptionError for what a simulation file cannot say, before anything is searched."""
    given = [f"--{name.replace('_', '-')}" for name in _NOT_WRITTEN if getattr(wanted, name)]
    given += [f"--{name} -" for name in ("fleet", "model") if getattr(wanted, name) == "-"]
    if given:
        told = f"a simulation file cannot say {', '.join(given)}; leave {FLAG} out, or write fleet and model to files"
        raise DescriptionError.at(COMMAND_LINE, FLAG, told)


def simulation_text(placing: Placing, document: Document, path: str) -> str:
    """The first placement of a document as a file at `path`. Read back before it is given.

    Arrivals are constant: at the rate of the pool's slower phase with all workers busy, else as `simulate` takes it for
    a run scenario. Raises DescriptionError and InconclusiveError for what is not simulated.
    """
    from scenarios.simulation.questions import Asked, spec_of
    from scenarios.simulation.read_spec import parse_spec

    first = document["placements"][0]
    prepared = placing.prepared
    prefill, decode = (",".join(first[phase][0]) for phase in ("prefill", "decode"))
    ranks = (len(first["prefill"][0]), len(first["decode"][0]))
    placement = Placement(prefill=prefill, decode=decode)
    if ranks != (1, 1):
        placement = Placement(prefill=prefill, decode=decode, tp=ranks)
    rate = first["tokens_per_s_per_device"]
    spec, _ = spec_of(
        replace(prepared, ask=replace(prepared.ask, placement=placement)), Asked(rate=1.0 if rate else None), path
    )
    assert spec.arrivals is not None
    assert spec.answers is not None
    if rate:
        sequences = rate * first["devices"] / spec.answers.value
        spec = replace(spec, arrivals=replace(spec.arrivals, rate=min(max(sequences, RATES[0]), RATES[1])))
    text = _text(placing, spec, first, os.path.dirname(os.path.abspath(path)) if path != "-" else os.getcwd())
    parse_spec(text, path, os.path.dirname(path))
    return text


def _text(placing: Placing, spec: Spec, first: Document, folder: str) -> str:
    wanted, words = placing.wanted, json.dumps
    assert spec.arrivals is not None
    assert spec.prompts is not None
    assert spec.answers is not None
    lines = [
        "schema: kvwaybill/simulation-scenario/1",
        f"name: {words(f'placed on {placing.prepared.ask.fleet.name}')}",
        f"fleet: {words(_from(folder, wanted.fleet))}",
        *([] if wanted.model is None else [f"model: {words(_from(folder, wanted.model))}"]),
        f"prefill: {_pool(spec.prefill, first, 'prefill')}",
        f"decode: {_pool(spec.decode, first, 'decode')}",
        f"block_tokens: {spec.block_tokens}",
        f"handoff: {{extent: {spec.extent}}}",
        *([f"kv_dtype: {spec.kv_dtype}"] if spec.kv_dtype else []),
        *([f"weights_dtype: {spec.weights_dtype}"] if spec.weights_dtype else []),
        f"rates: {spec.rates}",
        *([] if spec.utilization is None else [f"utilization: {words(_decimal(float(spec.utilization)))}"]),
        f"arrivals: {{kind: constant, rate: {_decimal(spec.arrivals.rate)}, requests: {spec.arrivals.requests}}}",
        f"prompts: {{kind: fixed, value: {spec.prompts.value}}}",
        f"answers: {{kind: fixed, value: {spec.answers.value}}}",
    ]
    return "\n".join(lines) + "\n"


def _pool(pool: Pool, first: Document, phase: str) -> str:
    """All workers, their ranks in order; as many requests at once as the batch that was placed."""
    names = ",".join(name for worker in first[phase] for name in worker)
    most = first["batch"]
    return (
        f"{{devices: {json.dumps(names)}, tp: {len(first[phase][0])}, max_seqs: {most},"
        f" max_tokens: {max(pool.max_tokens, most)}}}"
    )


def _decimal(value: float) -> str:
    return f"{value:.12f}".rstrip("0").rstrip(".")


def _from(folder: str, name: str | None) -> str:
    """A shipped name as it stands; a file by its way from the folder."""
    assert name is not None
    return os.path.relpath(name, folder) if os.path.lexists(name) else name
