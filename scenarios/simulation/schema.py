"""The JSON Schema of simulation files, for editors. Devices, and what one field makes of another, the reader checks."""

from __future__ import annotations

from typing import Any

from planner.engines import ENGINES
from scenarios.simulation import read_spec
from scenarios.simulation.spec import SCHEMA
from scenarios.simulation.traffic import MAX_REQUESTS, MAX_TOKENS

Json = dict[str, Any]
FREE: Json = {"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": False}
TIME: Json = {"type": "string", "pattern": r"^ *[0-9]+(\.[0-9]+)? *(s|ms|us|ns|ps) *$", "examples": ["200 ms"]}
SHARE: Json = {
    "anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1},
              {"type": "string", "pattern": r"^ *[0-9]+(\.[0-9]+)? *%? *$", "examples": ["90 %"]}]
}  # fmt: skip
_TEXT: Json = {"type": "string", "minLength": 1, "maxLength": 4096}
_DRAWN = ("arrivals", "prompts", "answers")


def _whole(low: int, high: int) -> Json:
    return {"type": "integer", "minimum": low, "maximum": high}


def _number(low: float, high: float) -> Json:
    return {"type": "number", "minimum": low, "maximum": high}


def _words(*words: str) -> Json:
    return {"enum": list(words)}


def _part(properties: Json, *required: str) -> Json:
    return FREE | {"properties": properties} | ({"required": list(required)} if required else {})


def _pool() -> Json:
    degree = _whole(1, read_spec.MAX_DEGREE)
    return _part(
        {
            "devices": _TEXT | {"examples": ["gpu:0-3"]}, "max_seqs": _whole(1, read_spec.MAX_SEQS),
            "max_tokens": _whole(1, read_spec.MAX_STEP_TOKENS), "tp": degree, "pp": degree,
        },
        "devices",
    )  # fmt: skip


def _arrivals() -> Json:
    kinds = _words("poisson", "gamma", "constant")
    fields = {"kind": kinds, "rate": _number(1e-6, 1e7), "requests": _whole(1, MAX_REQUESTS)}
    of_gamma = {"required": ["shape"]}, {"properties": {"kind": {"const": "gamma"}}}
    return _part(fields | {"shape": _number(0.001, 1000)}, *fields) | {"if": of_gamma[0], "then": of_gamma[1]}


def _lengths() -> Json:
    token = _whole(1, MAX_TOKENS)
    fields = {"kind": _words("fixed", "lognormal"), "value": token, "mu": _number(-20, 20), "sigma": _number(0, 10)}
    return _part(fields | {"least": token, "most": token}, "kind") | {
        "if": {"properties": {"kind": {"const": "fixed"}}}, "then": {"required": ["value"]},
        "else": {"required": ["mu", "sigma"]},
    }  # fmt: skip


def _handoff() -> Json:
    fields = {"share": _words("queue", "fair"), "start": _words("push", "pull"), "by": _words("whole", "layer")}
    layers = {"required": ["by"], "properties": {"by": {"const": "layer"}}}
    return _part(fields | {"extent": _words("filled", "blocks")}) | {
        "if": layers, "then": {"properties": {"share": {"const": "queue"}}},
    }  # fmt: skip


def simulation_schema() -> Json:
    """The JSON Schema of a `kvwaybill/simulation-scenario/1`."""
    dtype = _words("bf16", "fp16", "fp32", "fp8")
    outage = _part({"device": _TEXT, "at": TIME, "back": TIME}, "device", "at")
    properties: Json = {
        "schema": {"const": SCHEMA}, "name": _TEXT, "fleet": _TEXT, "model": _TEXT, "seed": _whole(0, 2**49),
        "prefill": _pool(), "decode": _pool(), "block_tokens": _whole(1, 4096), "engine": _words(*ENGINES),
        "weights_dtype": dtype, "kv_dtype": dtype, "rates": _words("declared", "observed"), "utilization": SHARE,
        "step_overhead": TIME,
        "routing": _part({"prefill": _words("round-robin", "least-loaded", "prefix-aware"),
                          "decode": _words("round-robin", "least-loaded", "same-domain")}),
        "handoff": _handoff(), "prefix_reuse": {"type": "boolean"}, "arrivals": _arrivals(), "prompts": _lengths(),
        "answers": _lengths(), "trace": _TEXT, "slo": _part({"ttft": TIME, "tpot": TIME, "e2e": TIME}),
        "outages": {"type": "array", "items": outage},
    }  # fmt: skip
    traced = {"required": ["trace"]}
    alone = {"not": {"anyOf": [{"required": [name]} for name in _DRAWN]}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA,
        **_part(properties, "schema", "fleet", "prefill", "decode"),
        "if": traced, "then": alone, "else": {"required": list(_DRAWN)},
        "dependentSchemas": {"engine": {"properties": {"handoff": {"not": {"required": ["extent"]}}}}},
    }  # fmt: skip
