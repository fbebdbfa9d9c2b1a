"""The ways in which a fleet file may write one figure, read into a Quantity.

capacity: 80 GiB
capacity: {value: 80, unit: GiB}
capacity: {value: 80 GiB, provenance: spec, source: data sheet, note: as sold, verified: true}
capacity: {declared: <any of the above>, observed: {value: 79 GiB, tool: nvml, date: 2026-01-31, run: 3, error: 2 %}}
capacity: unknown                            (the same as leaving it out)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, get_args

from fleet.machine import UNKNOWN, Figure, Provenance, Quantity
from fleet.units import UnitError, parse_utilization
from fleet.yaml_source import Path, nearest, printable

UNKNOWN_WORD = "unknown"
PROVENANCES: tuple[str, ...] = get_args(Provenance)
DECLARED_KEYS = ("value", "unit", "provenance", "source", "note", "verified")
OBSERVED_KEYS = ("value", "unit", "tool", "date", "run", "source", "note", "verified", "error")
MAX_PROSE = 1000

Parser = Callable[[str], int]

_PROSE = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]*")
PROSE_RULE = f"must be text of at most {MAX_PROSE} characters, without control characters"


def is_prose(text: object) -> bool:
    """Whether `text` may be a label, source or note: bounded, and free of control characters."""
    return isinstance(text, str) and len(text) <= MAX_PROSE and _PROSE.fullmatch(text) is not None


class FigureFaults(Exception):  # noqa: N818 - a carrier of faults inside this package, never shown
    """Every fault of one figure, each with its path below the figure."""

    def __init__(self, faults: list[tuple[Path, str]]) -> None:
        super().__init__("a figure cannot be read")
        self.faults = faults


@dataclass(slots=True)
class _Reading:
    """One figure being read: how its number is parsed, which source a bare one gets, what was found wrong."""

    parse: Parser
    default_source: str
    faults: list[tuple[Path, str]] = field(default_factory=list)

    def quantity(self, raw: Any) -> Quantity:
        if isinstance(raw, dict) and ("declared" in raw or "observed" in raw):
            self.unknown_keys(raw, ("declared", "observed"), ())
            return Quantity(
                declared=self.declared(raw.get("declared"), ("declared",)),
                observed=self.observed(raw.get("observed"), ("observed",)),
            )
        declared = self.declared(raw, ())
        return UNKNOWN if declared is None else Quantity(declared=declared)

    def declared(self, raw: Any, path: Path) -> Figure | None:
        if raw is None or raw == UNKNOWN_WORD:
            return None
        if isinstance(raw, str):
            value = self.number(raw, path)
            return Figure(value=value, provenance="spec", source=self.default_source, verified=False)
        if not isinstance(raw, dict):
            self.faults.append((path, "must be a quantity, e.g. 80 GiB, or a mapping with value"))
            return None
        self.unknown_keys(raw, DECLARED_KEYS, path)
        provenance = self.word(raw, "provenance", path) or "spec"
        if provenance not in PROVENANCES:
            hint = nearest(provenance, PROVENANCES)
            self.faults.append(((*path, "provenance"), f"must be one of {', '.join(PROVENANCES)}{hint}"))
        source = self.word(raw, "source", path)
        if raw.get("value") == UNKNOWN_WORD:
            return None
        return Figure(
            value=self.value(raw, path),
            provenance=provenance,  # type: ignore[arg-type]  # checked above; a fault keeps the figure from being used
            source=source or self.default_source,
            verified=self.flag(raw, path, default=source is not None),
            note=self.word(raw, "note", path),
        )

    def observed(self, raw: Any, path: Path) -> Figure | None:
        if raw is None:
            return None
        if not isinstance(raw, dict):
            self.faults.append((path, "must be a mapping, e.g. {value: 376 GB/s, tool: nvbandwidth, date: 2026-01-31}"))
            return None
        self.unknown_keys(raw, OBSERVED_KEYS, path)
        words = {key: self.word(raw, key, path) for key in ("tool", "date", "run", "source", "note")}
        details = [f"{key} {words[key]}" for key in ("tool", "date", "run") if words[key]]
        if words["note"]:
            details.append(words["note"])
        return Figure(
            value=self.value(raw, path),
            provenance="measured",
            source=words["source"] or words["tool"] or self.default_source,
            verified=self.flag(raw, path, default=True),
            note="; ".join(details) or None,
            error=self.share(raw, path),
        )

    def value(self, raw: dict[str, Any], path: Path) -> int:
        text, unit = raw.get("value"), self.word(raw, "unit", path)
        if not isinstance(text, str):
            self.faults.append(((*path, "value"), "is missing; write value: and the number with its unit"))
            return 1
        return self.number(text if unit is None else f"{text} {unit}", (*path, "value"))

    def number(self, text: str, path: Path) -> int:
        try:
            return self.parse(text)
        except UnitError as error:
            self.faults.append((path, str(error)))
            return 1

    def word(self, raw: dict[str, Any], key: str, path: Path) -> str | None:
        text = raw.get(key)
        if text is None or is_prose(text):
            return None if text is None else str(text)
        self.faults.append(((*path, key), PROSE_RULE))
        return None

    def flag(self, raw: dict[str, Any], path: Path, *, default: bool) -> bool:
        text = raw.get("verified")
        if text not in (None, "true", "false"):
            self.faults.append(((*path, "verified"), "must be true or false"))
        return default if text is None else text == "true"

    def share(self, raw: dict[str, Any], path: Path) -> Fraction | None:
        """The relative error of an observation, None where none is stated."""
        text = raw.get("error")
        if text is None:
            return None
        try:
            return parse_utilization(text if isinstance(text, str) else "")
        except UnitError as error:
            self.faults.append(((*path, "error"), f"{error} (the largest relative error, above 0)"))
            return None

    def unknown_keys(self, raw: dict[str, Any], known: tuple[str, ...], path: Path) -> None:
        for key in raw:
            if key not in known:
                message = f"no such field{nearest(key, known)} (fields: {', '.join(known)})"
                self.faults.append(((*path, printable(key)), message))


def read_quantity(raw: Any, parse: Parser, default_source: str) -> Quantity:
    """The Quantity that `raw` (text, mapping or None) writes. Raises FigureFaults holding all that is wrong with it."""
    reading = _Reading(parse, default_source)
    quantity = reading.quantity(raw)
    if reading.faults:
        raise FigureFaults(reading.faults)
    return quantity


def figure_json_schema(example: str) -> dict[str, Any]:
    """The JSON Schema of one figure; the unit grammar itself is in docs/fleet-format.md."""
    text = {"type": "string", "examples": [example, UNKNOWN_WORD]}
    prose = {"type": "string", "maxLength": MAX_PROSE}
    number = {"type": ["string", "number"]}
    declared = {
        "type": "object",
        "required": ["value"],
        "additionalProperties": False,
        "patternProperties": {"^x-": {}},
        "properties": {
            "value": number,
            "unit": {"type": "string"},
            "provenance": {"enum": list(PROVENANCES)},
            "source": prose,
            "note": prose,
            "verified": {"type": "boolean"},
        },
    }
    observed = declared | {
        "properties": dict.fromkeys(OBSERVED_KEYS, prose)
        | {"value": number, "unit": {"type": "string"}, "verified": {"type": "boolean"}, "error": number}
    }
    both = {
        "type": "object",
        "additionalProperties": False,
        "patternProperties": {"^x-": {}},
        "properties": {"declared": {"anyOf": [text, declared]}, "observed": observed},
    }
    return {"anyOf": [text, declared, both, {"type": "null"}]}
