"""The JSON Schemas of simulation and sweep files judge as the readers do."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from fleet.errors import DescriptionError
from scenarios.scenario import scenario_schema
from scenarios.simulation.read_spec import parse_spec, simulation_names
from scenarios.simulation.schema import simulation_schema
from scenarios.sweeping.read_sweep import parse_sweep, sweep_names
from scenarios.sweeping.schema import sweep_schema
from tests.command_line import Ask, asker
from tests.scenarios.sweeping.sweep_cases import ROOT

LENGTH = {"kind": "lognormal", "mu": 1.5, "sigma": 0.5, "least": 1, "most": 9}
SIMULATION: dict[str, Any] = {
    "schema": "kvwaybill/simulation-scenario/1", "fleet": "hgx-h100", "seed": 3, "prefill": {"devices": "gpu:0-1"},
    "decode": {"devices": "gpu:2", "max_seqs": 8, "tp": 1}, "arrivals": {"kind": "constant", "rate": 4, "requests": 5},
    "prompts": {"kind": "fixed", "value": 8}, "answers": LENGTH, "slo": {"ttft": "30 ms"}, "utilization": 0.9,
    "outages": [{"device": "gpu:2", "at": "1 s"}], "prefix_reuse": True, "x-note": [1], "step_overhead": "2 us",
    "handoff": {"share": "queue", "by": "layer"}, "routing": {"decode": "same-domain"},
}  # fmt: skip
SWEEP: dict[str, Any] = {
    "schema": "kvwaybill/sweep/1", "name": "a", "question": "simulate", "base": "chat", "x-note": 1,
    "grid": {"arrivals.rate": [1, 2.5], "fleet": ["hgx-h100"]}, "list": [{"seed": 1}, {"slo": {"ttft": "1 s"}}],
    "slo": {"ttft_p99": "1 s", "goodput": 0.9, "devices": 4}, "objectives": ["devices"], "prices": {"h": 2.5, "a": "3"},
}  # fmt: skip
GONE = object()
CHANGES: dict[str, list[tuple[str, Any]]] = {
    "simulation": [
        ("fleet", GONE), ("fleet", ""), ("fleet", []), ("schema", "kvwaybill/scenario/1"), ("sed", 1), ("seed", -1),
        ("seed", 1.5), ("seed", "x"), ("seed", 2**49), ("seed", 2**49 + 1), ("model", "m"), ("trace", "t"),
        ("prompts", GONE), ("prompts.value", 0), ("prompts.value", GONE), ("prompts.kind", "lognormal"),
        ("prompts.kind", GONE), ("answers.mu", GONE), ("answers.sigma", 11), ("answers.mu", -20), ("answers.fast", 1),
        ("arrivals.kind", "gamma"), ("arrivals.shape", 2), ("arrivals.rate", 0), ("arrivals.rate", GONE),
        ("arrivals.requests", 2.5), ("arrivals", None), ("prefill.devices", GONE), ("prefill.devices", []),
        ("prefill.tp", 65), ("decode.max_seqs", 4097), ("decode", []), ("slo.ttft", 30), ("slo.ttft", "30 m"),
        ("slo.e2e", "1.5 s"), ("slo.ttft_p99", "1 s"), ("slo", {}), ("utilization", 0), ("utilization", 1.1),
        ("utilization", "90 %"), ("outages", {}), ("outages", []), ("outages", [{"device": "gpu:0"}]),
        ("prefix_reuse", 1), ("prefix_reuse", False), ("handoff.share", "fair"), ("handoff.by", "whole"),
        ("handoff.start", "draw"), ("routing.decode", "prefix-aware"), ("routing.prefill", "prefix-aware"),
        ("kv_dtype", "fp8"), ("kv_dtype", "int4"), ("rates", "observed"), ("block_tokens", 0), ("name", "n" * 4097),
        ("step_overhead", 2),
    ],
    "sweep": [
        ("schema", GONE), ("schema", "kvwaybill/sweep/2"), ("name", ""), ("name", "n" * 129),
        ("question", GONE), ("question", "run"), ("question", "admit"), ("base", GONE), ("base", ""), ("base", []),
        ("grid", GONE), ("grid", {}), ("grid", []), ("grid", {"x-a": [1]}), ("grid", {"seed": []}),
        ("grid", {"block_tokens": [1, 1]}), ("grid", {"block_tokens": 1}), ("grid", {"name": ["a"]}),
        ("grid", {"names": ["a"]}), ("grid", {"schema.of": ["a"]}), ("grid", {"A": [1]}), ("grid", {"a..b": [1]}),
        ("grid", {"a.b.c.d.e": [1]}), ("grid", {"outages": [None, [], [{}]]}), ("list", []), ("list", [{}]),
        ("list", ["a"]), ("list", [{"a": 1}, {"a": 1}]), ("list", [{"a-b": 1}]), ("slo", []), ("slo", {}),
        ("slo.ttft_p98", "1 s"), ("slo.ttft_p99", 1), ("slo.goodput", "99 %"), ("slo.goodput", 2), ("slo.devices", -1),
        ("slo.devices", "4"), ("slo.ttft", "1 s"), ("objectives", []), ("objectives", ["speed"]), ("objectives", [1]),
        ("objectives", ["devices", "devices"]), ("objectives", ["devices", "cost_per_hour"]), ("prices", []),
        ("prices.h", "free"), ("prices.h", -1), ("prices.h", None), ("sizes", 1),
    ],
}  # fmt: skip
FILES = {"simulation": (SIMULATION, simulation_schema, parse_spec), "sweep": (SWEEP, sweep_schema, parse_sweep)}


def changed(document: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    out = copy.deepcopy(document)
    *above, last = name.split(".")
    here = out
    for step in above:
        here = here[step]
    if value is GONE:
        del here[last]
    else:
        here[last] = value
    return out


@pytest.mark.parametrize("kind", sorted(FILES))
def test_the_schema_and_the_reader_judge_alike(kind: str) -> None:
    document, schema, read = FILES[kind]
    Draft202012Validator.check_schema(schema())
    validator = Draft202012Validator(schema())
    verdicts, unlike = [], []
    for name, value in [("x-more", 1), *CHANGES[kind]]:
        one = changed(document, name, value)
        try:
            read(json.dumps(one), "s.yaml", "")
            words = ""
        except DescriptionError as error:
            words = str(error)
        verdicts.append(not words)
        if validator.is_valid(one) is bool(words):
            unlike.append((name, value, words))
    assert unlike == []
    assert verdicts[0]
    assert 6 < sum(verdicts) < len(verdicts) - 6


def test_shipped_files_are_valid_by_their_schema() -> None:
    from ruamel.yaml import YAML

    library = ROOT / "scenarios" / "library"
    for names, folder, schema in (
        (simulation_names(), "simulations", simulation_schema()), (sweep_names(), "sweeps", sweep_schema()),
    ):  # fmt: skip
        for name in names:
            loaded = YAML(typ="safe").load((library / folder / f"{name}.yaml").read_text())
            Draft202012Validator(schema).validate(loaded)


@pytest.mark.parametrize("kind", ["scenario", "simulation", "sweep"])
def test_the_schema_is_printed_and_shipped(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    ask: Ask = asker(capfd)
    printed = ask("scenario", "schema", "--of", kind).document
    assert printed == {"scenario": scenario_schema, "simulation": simulation_schema, "sweep": sweep_schema}[kind]()
    shipped: Path = ROOT / "schemas" / f"{kind}.schema.json"
    assert json.loads(shipped.read_text()) == printed
