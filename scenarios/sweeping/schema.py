"""The JSON Schema of sweep files, for editors. What a case sets is checked by the reader of what it is a case of."""

from __future__ import annotations

from typing import Any

from scenarios.simulation.schema import FREE, SHARE, TIME
from scenarios.sweeping.read_sweep import DECIMAL, FIELD, FIXED
from scenarios.sweeping.spec import METRICS, SCHEMA, Metric, Question

Json = dict[str, Any]


def sweep_schema() -> Json:
    """The JSON Schema of a `kvwaybill/sweep/1`."""
    field = f"^(?!({'|'.join(FIXED)})([.]|$)){FIELD.pattern}$"
    decimal = {"type": "string", "pattern": f"^{DECIMAL.pattern}$"}
    amount = {"anyOf": [{"type": "number", "minimum": 0}, decimal]}
    values: Json = {"type": "array", "minItems": 1, "uniqueItems": True}
    some = {"not": {"propertyNames": {"pattern": "^x-"}}}
    entry = FREE | some | {"patternProperties": {field: {}, "^x-": {}}}
    properties: Json = {
        "schema": {"const": SCHEMA}, "name": {"type": "string", "minLength": 1, "maxLength": 128},
        "question": {"enum": list(METRICS)},
        "base": {"anyOf": [{"type": "string", "minLength": 1, "maxLength": 4096}, {"type": "object"}]},
        "grid": FREE | some | {"patternProperties": {field: values, "^x-": {}}},
        "list": {"type": "array", "minItems": 1, "uniqueItems": True, "items": entry},
        "slo": {"type": "object"}, "objectives": {"type": "array", "minItems": 1, "uniqueItems": True},
        "prices": {"type": "object", "additionalProperties": amount},
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **FREE,
        "required": ["schema", "question", "base"], "properties": properties,
        "anyOf": [{"required": ["grid"]}, {"required": ["list"]}],
        "allOf": [_of_question(question, amount) for question in METRICS],
    }  # fmt: skip


def _of_question(question: Question, amount: Json) -> Json:
    """The figures that this question has."""

    def bound(metric: Metric) -> Json:
        return {"time": TIME, "share": SHARE, "number": amount}[metric.kind]

    known = METRICS[question]
    objectives = {"items": {"enum": list(known)}}
    slo = FREE | {"properties": {name: bound(metric) for name, metric in known.items()}}
    return {
        "if": {"properties": {"question": {"const": question}}},
        "then": {"properties": {"slo": slo, "objectives": objectives}},
    }
