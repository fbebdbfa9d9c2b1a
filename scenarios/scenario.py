"""Scenario files (`kvwaybill/scenario/1`): a question with its fleet, model, workload and placement, written by hand.

Paths are relative to the folder of the scenario file; absolute paths and `..` are followed, as in any file that a user
writes for himself, but only regular files are: a scenario can make us read no device and no pipe.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fleet.errors import DescriptionError, Fault, raise_in_order
from fleet.yaml_source import Document, Path, nearest, parse_text, printable, read_text
from scenarios.shipped import not_shipped, shipped_names, shipped_path

if TYPE_CHECKING:
    from scenarios.wanted import Wanted

SCHEMA = "kvwaybill/scenario/1"
MAX_TOKEN_ID = 2**31 - 1
MAX_COUNT = 2**40
MAX_PROMPT = 1_000_000

_TOP = ("schema", "name", "fleet", "model", "tokenizer", "workload", "placement", "attention", "kv_extent", "kv_dtype",
        "weights_dtype", "layout", "prefill_chunk", "utilization", "expect")  # fmt: skip
_WORKLOAD = (
    "prompt", "prompt_ids", "prompt_tokens", "steps", "new_tokens", "positions", "batch", "temperature", "top_p",
    "seed",
)  # fmt: skip
_EXCLUDE = (
    ("prompt", "prompt_tokens"), ("prompt", "prompt_ids"), ("prompt_ids", "prompt_tokens"), ("steps", "new_tokens"),
)  # fmt: skip
_DTYPES = ("bf16", "fp16", "fp32", "fp8")
_DEVICE = re.compile(r"[A-Za-z0-9._/:-]{1,64}(,[A-Za-z0-9._/:-]{1,64}){0,4095}")
_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")
MAX_SEED = 10**18 - 1
"""As many digits as a whole number may have here."""


def scenario_names() -> list[str]:
    """Names of the shipped scenarios, sorted."""
    return shipped_names()


def scenario_text(name: str) -> str:
    """The YAML of a shipped scenario. KeyError for another name."""
    if name not in scenario_names():
        raise KeyError(name)
    with open(shipped_path(name, "scenario"), encoding="utf-8") as file:
        return file.read()


def scenario_rows() -> list[dict[str, str | None]]:
    """What `scenario list` shows of each shipped scenario: name, fleet, placement, attention and what it is for."""
    rows = []
    for name in scenario_names():
        document = parse_text(scenario_text(name), f"{name}.yaml")
        about = document.root.plain(notes=True)
        wanted = read_scenario(document, folder=None)
        rows.append(
            {
                "name": name,
                "fleet": wanted.fleet,
                "prefill": wanted.prefill,
                "decode": wanted.decode,
                "attention": wanted.attention or "device",
                "about": str(about["x-about"]) if isinstance(about, dict) and about.get("x-about") else None,
            }
        )
    return rows


def load_scenario(path: str) -> Wanted:
    """The question of a scenario file (`-` = stdin), or of a shipped scenario where no file has that name.

    Raises DescriptionError with every fault, each at file:line:column, in the order of the file.
    """
    if path != "-" and path in scenario_names() and not os.path.exists(path):
        return read_scenario(parse_text(scenario_text(path), f"{path}.yaml"), folder=None)
    if path != "-" and not os.path.lexists(path):
        raise not_shipped(path, "scenario", scenario_names())
    if path != "-":
        _refuse_devices(path, path)
    folder = os.getcwd() if path == "-" else os.path.dirname(path)
    return read_scenario(parse_text(read_text(path), "<stdin>" if path == "-" else path), folder=folder)


def _refuse_devices(path: str, shown: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return  # the reader words it
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise DescriptionError.at(printable(shown, 200), "", "is a device or a pipe, not a file")


@dataclass(slots=True)
class _Reader:
    """The fields of one scenario file; every method books a fault where it cannot read."""

    document: Document
    folder: str | None
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: Path, message: str, *, key: bool = False) -> None:
        self.faults.append(self.document.fault(path, message, key=key))

    def mapping(self, path: Path, value: Any, known: tuple[str, ...]) -> dict[str, Any]:
        """The mapping at `path`; unknown keys are faults, those that begin with `x-` are not there."""
        if not isinstance(value, dict):
            self.fault(path, f"wanted a mapping of {', '.join(known)}")
            return {}
        for name in value:
            if name not in known:
                near = nearest(name, known) or f"; known: {', '.join(known)}"
                self.fault((*path, name), f"no such field{near}", key=True)
        return {name: entry for name, entry in value.items() if name in known}

    def text(self, path: Path, value: Any, most: int = 4096) -> str | None:
        if not isinstance(value, str) or len(value) > most:
            self.fault(path, f"wanted text of at most {most} characters")
            return None
        return value

    def choice(self, path: Path, value: Any, words: tuple[str, ...]) -> str | None:
        if not isinstance(value, str) or value not in words:
            self.fault(path, f"{_told(value)} is none of {', '.join(words)}{nearest(str(value), words)}")
            return None
        return value

    def whole(self, path: Path, value: Any, low: int, high: int = MAX_COUNT) -> int | None:
        if not isinstance(value, str) or not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            self.fault(path, f"{_told(value)} is no whole number from {low} to {high}")
            return None
        return int(value)

    def decimal(self, path: Path, value: Any) -> float | None:
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
            self.fault(path, f"{_told(value)} is no decimal number from 0 up; write e.g. 0.8")
            return None
        return float(value)

    def device(self, path: Path, value: Any) -> str | None:
        if not isinstance(value, str) or not _DEVICE.fullmatch(value):
            self.fault(path, f"{_told(value)} is no device id; write e.g. gpu:0, or gpu:0-1 for a worker of two")
            return None
        return value

    def file(self, path: Path, value: Any) -> str | None:
        """A path, taken from the scenario's folder. None (a fault) for what is neither file nor folder."""
        text = self.text(path, value)
        if text is None:
            return None
        if not text:
            self.fault(path, "is an empty path; name a file, or leave the field out for the default")
            return None
        if self.folder is None:
            self.fault(path, "a shipped scenario names no files")
            return None
        joined = os.path.join(self.folder, text)
        try:
            mode = os.stat(joined).st_mode
        except (OSError, ValueError):
            self.fault(path, f"no file {printable(joined, 200)}; paths are relative to the scenario's folder")
            return None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            self.fault(path, f"{printable(joined, 200)} is a device or a pipe, not a file")
            return None
        return joined

    def model(self, path: Path, value: Any) -> str | None:
        """A file or folder; else a shipped name or an id of the local Hugging Face cache, which stay as they are."""
        from fleet.checkpoints.hub_cache import is_model_id
        from fleet.checkpoints.shipped import shipped_model_names

        beside = (
            self.folder is not None and isinstance(value, str) and os.path.lexists(os.path.join(self.folder, value))
        )
        if not beside and isinstance(value, str) and value in shipped_model_names():
            return value
        by_id = isinstance(value, str) and self.folder is not None and is_model_id(value)
        if by_id and not os.path.lexists(os.path.join(self.folder or "", value)):
            return str(value)
        return self.file(path, value)

    def fleet(self, path: Path, value: Any) -> str | None:
        """A shipped fleet's name stays as it is; anything else is a path."""
        from fleet.catalog import catalog_names

        if isinstance(value, str) and value in catalog_names():
            beside = os.path.join(self.folder or "", value)
            return beside if self.folder is not None and os.path.exists(beside) else value
        if isinstance(value, str) and self.folder is not None and os.path.exists(os.path.join(self.folder, value)):
            return self.file(path, value)
        near = nearest(str(value), catalog_names())
        self.fault(path, f"{_told(value)} is neither a file nor a shipped fleet{near}")
        return None

    def token_ids(self, path: Path, value: Any, what: str = "reference") -> tuple[int, ...] | None:
        if not isinstance(value, list):
            self.fault(path, "wanted a list of token ids, e.g. [1, 403, 407]")
            return None
        if not value:
            why = ", and an empty reference is equal to any walk" if what == "reference" else ""
            self.fault(path, f"is empty{why}; leave it out or name ids")
            return None
        found = [self.whole((*path, index), entry, 0, MAX_TOKEN_ID) for index, entry in enumerate(value)]
        return None if None in found else tuple(token for token in found if token is not None)


def _told(value: Any) -> str:
    if isinstance(value, str):
        return printable(repr(value))
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "nothing"


def read_scenario(document: Document, folder: str | None) -> Wanted:
    """The question of a parsed scenario; None for `folder`: it names no files. DescriptionError with every fault."""
    reader = _Reader(document, folder)
    top = reader.mapping((), document.data, _TOP)
    for name in ("schema", "fleet"):
        if name not in top:
            example = SCHEMA if name == "schema" else "two-gpu-nvlink"
            reader.fault((), f"{name} is missing; e.g. {name}: {example}")
    found = {name: _FIELDS[name](reader, (name,), value) for name, value in top.items() if name in _FIELDS}
    found |= _workload(reader, top.get("workload", {}))
    found |= _placement(reader, top.get("placement", {}))
    raise_in_order([*document.faults, *reader.faults])
    found.pop("schema", None)
    from scenarios.wanted import Wanted

    sections = {"workload": top.get("workload"), "placement": top.get("placement")}
    places = {name: document.at((name,)) for name in top}
    places |= {name: document.at((part, name)) for part, fields in sections.items() for name in fields or {}}
    return Wanted(**found, source=document.source, places=places)


def _workload(reader: _Reader, value: Any) -> dict[str, Any]:
    fields = reader.mapping(("workload",), value, _WORKLOAD)
    found: dict[str, Any] = {}
    if "prompt" in fields:
        # Nothing behind `prompt:` is the empty prompt, BOS alone.
        found["prompt"] = reader.text(("workload", "prompt"), fields["prompt"] or "", MAX_PROMPT)
    if "prompt_ids" in fields:
        found["prompt_ids"] = reader.token_ids(("workload", "prompt_ids"), fields["prompt_ids"], "prompt")
    for name, low in (("prompt_tokens", 1), ("steps", 0), ("new_tokens", 1), ("positions", 1), ("batch", 1)):
        if name in fields:
            found[name] = reader.whole(("workload", name), fields[name], low)
    if "seed" in fields:
        found["seed"] = reader.whole(("workload", "seed"), fields["seed"], 1, MAX_SEED)
    for name in ("temperature", "top_p"):
        if name in fields:
            found[name] = reader.decimal(("workload", name), fields[name])
    for one, other in _EXCLUDE:
        if one in fields and other in fields:
            reader.fault(("workload", other), f"stands beside {one}; give one of the two", key=True)
    return found


def _placement(reader: _Reader, value: Any) -> dict[str, Any]:
    fields = reader.mapping(("placement",), value, ("prefill", "decode"))
    return {phase: reader.device(("placement", phase), device) for phase, device in fields.items()}


def _schema(reader: _Reader, path: Path, value: Any) -> str | None:
    return reader.choice(path, value, (SCHEMA,))


def _attention(reader: _Reader, path: Path, value: Any) -> str | None:
    return reader.choice(path, value, ("device", "host"))


def _extent(reader: _Reader, path: Path, value: Any) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"blocks:[1-9][0-9]{0,8}", value):
        return value
    return reader.choice(path, value, ("filled", "allocated", "blocks:N"))


def _dtype(reader: _Reader, path: Path, value: Any) -> str | None:
    return reader.choice(path, value, _DTYPES)


def _chunk(reader: _Reader, path: Path, value: Any) -> int | None:
    return reader.whole(path, value, 1)


_FIELDS: dict[str, Callable[[_Reader, Path, Any], Any]] = {
    "schema": _schema,
    "name": lambda reader, path, value: reader.text(path, value, 128),
    "fleet": lambda reader, path, value: reader.fleet(path, value),
    "model": lambda reader, path, value: reader.model(path, value),
    "tokenizer": lambda reader, path, value: reader.file(path, value),
    "attention": _attention,
    "kv_extent": _extent,
    "kv_dtype": _dtype,
    "weights_dtype": _dtype,
    "layout": lambda reader, path, value: reader.text(path, value, 64),
    "prefill_chunk": _chunk,
    "utilization": lambda reader, path, value: reader.text(path, value, 64),
    "expect": lambda reader, path, value: reader.token_ids(path, value),
}


def scenario_schema() -> dict[str, Any]:
    """The JSON Schema of a scenario file, for editors."""
    count = {"type": "integer", "minimum": 1, "maximum": MAX_COUNT}
    device = {"type": "string", "pattern": f"^{_DEVICE.pattern}$"}
    dtype = {"enum": list(_DTYPES)}
    free = {"patternProperties": {"^x-": {}}, "additionalProperties": False, "type": "object"}
    workload = dict.fromkeys(_WORKLOAD, count) | {"prompt": {"type": ["string", "null"], "maxLength": MAX_PROMPT}}
    workload["prompt_ids"] = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
    workload["steps"] = {"type": "integer", "minimum": 0, "maximum": MAX_COUNT}
    workload["temperature"] = {"type": "number", "minimum": 0}
    workload["top_p"] = {"type": "number", "minimum": 0, "maximum": 1}
    workload["seed"] = {"type": "integer", "minimum": 1, "maximum": MAX_SEED}
    words = ("name", "fleet", "model", "tokenizer", "layout")
    properties: dict[str, Any] = {name: {"type": "string"} for name in words}
    properties |= {name: {"type": "string", "minLength": 1} for name in ("fleet", "model", "tokenizer")}
    properties |= {
        "schema": {"const": SCHEMA},
        "workload": free | {"properties": workload},
        "placement": free | {"properties": {"prefill": device, "decode": device}},
        "attention": {"enum": ["device", "host"]},
        "kv_extent": {"type": "string", "pattern": "^(filled|allocated|blocks:[1-9][0-9]{0,8})$"},
        "kv_dtype": dtype,
        "weights_dtype": dtype,
        "prefill_chunk": count,
        "utilization": {"type": ["string", "number"]},
        "expect": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": MAX_TOKEN_ID}},
    }
    ordered = {name: properties[name] for name in _TOP}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA}
    return head | free | {"required": ["schema", "fleet"], "properties": ordered}
