"""Reads a simulation scenario file. Every fault is told at once, at its line; times and rates carry their unit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleet.errors import Fault, raise_in_order
from fleet.placement import device_list
from fleet.units import UnitError, parse_seconds, parse_utilization
from fleet.yaml_source import Document, Path, nearest, parse_text, printable, read_text
from planner.engines import ENGINES, engine_extent
from scenarios.shipped import shipped_names, shipped_path
from scenarios.simulation.spec import SCHEMA, Outage, Pool, Slo, Spec
from scenarios.simulation.traffic import MAX_REQUESTS, MAX_TOKENS, Arrivals, Lengths

_FOLDER = "simulations"
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,12})?")
_DTYPES = ("bf16", "fp16", "fp32", "fp8")
MAX_SEQS = 4096
MAX_STEP_TOKENS = 1 << 20
MAX_DEGREE = 64


def simulation_names() -> list[str]:
    """Names of the shipped simulations, sorted."""
    return shipped_names(_FOLDER)


def load_spec(path: str) -> Spec:
    """The simulation of a file (`-` = stdin), or a shipped one. Raises DescriptionError."""
    path = simulation_path(path)
    folder = os.getcwd() if path == "-" else os.path.dirname(path)
    return parse_spec(read_text(path), "<stdin>" if path == "-" else path, folder)


def simulation_path(path: str) -> str:
    """Where a simulation's text is: the file of that name (`-` = stdin), else the shipped one. DescriptionError."""
    if path != "-" and not os.path.lexists(path):
        return shipped_path(path, "simulation", _FOLDER)
    return path


def parse_spec(text: str, source: str, folder: str) -> Spec:
    """The simulation of a text; paths in it are taken from `folder`."""
    return read_spec(parse_text(text, source), folder)


def read_spec(document: Document, folder: str) -> Spec:
    """The simulation of a parsed text. Raises DescriptionError with every fault."""
    reader = _Reader(document, folder)
    found = reader.section((), document.data, _TOP)
    for name in ("schema", "fleet", "prefill", "decode"):
        if name not in found:
            reader.fault((), f"{name} is missing")
    drawn, traced = {"arrivals", "prompts", "answers"} & set(found), "trace" in found
    if traced and drawn:
        reader.fault(("trace",), f"stands beside {', '.join(sorted(drawn))}; give one or the other", key=True)
    if not traced and len(drawn) < 3:
        missing = {"arrivals", "prompts", "answers"} - drawn
        reader.fault((), f"{', '.join(sorted(missing))} missing (or name a trace)")
    handoff, routing = found.pop("handoff", {}), found.pop("routing", {})
    found |= _of_engine(reader, found, handoff)
    raise_in_order([*document.faults, *reader.faults])
    found.pop("schema")
    places = {name: document.at((name,)) for name in document.data} if isinstance(document.data, dict) else {}
    return Spec(**(found | handoff | routing), source=document.source, places=places)


def _of_engine(reader: _Reader, found: dict[str, Any], handoff: dict[str, Any]) -> dict[str, Any]:
    """What an engine says of blocks and of what is moved, where the file leaves it to the engine."""
    if found.get("engine") not in ENGINES:
        return {}
    if "extent" in handoff:
        reader.fault(("handoff", "extent"), f"and engine exclude each other: {found['engine']} sets it", key=True)
    extent = engine_extent(found["engine"], found.get("block_tokens"))
    if extent == "filled":
        return {"extent": "filled"}
    return {"extent": "blocks", "block_tokens": int(extent.removeprefix("blocks:"))}


@dataclass(slots=True)
class _Reader:
    document: Document
    folder: str
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: Path, message: str, *, key: bool = False) -> None:
        self.faults.append(self.document.fault(path, message, key=key))

    def section(self, path: Path, value: Any, fields: dict[str, _Field]) -> dict[str, Any]:
        """The known fields of a mapping, each read by its function; those with a fault are None."""
        if not isinstance(value, dict):
            self.fault(path, f"wanted a mapping of {', '.join(fields)}")
            return {}
        out = {}
        for name, entry in value.items():
            if name not in fields:
                near = nearest(name, fields) or f"; known: {', '.join(fields)}"
                self.fault((*path, name), f"no such field{near}", key=True)
            else:
                out[name] = fields[name](self, (*path, name), entry)
        return out

    def bad(self, path: Path, value: Any, wanted: str) -> None:
        told = printable(repr(value)) if isinstance(value, str) else "this"
        self.fault(path, f"{told} is no {wanted}")


_Field = Callable[[_Reader, Path, Any], Any]


def _text(reader: _Reader, path: Path, value: Any) -> str:
    if not isinstance(value, str) or not value or len(value) > 4096 or "\0" in value:
        reader.bad(path, value, "text of 1 to 4096 characters")
        return ""
    return value


def _file(reader: _Reader, path: Path, value: Any) -> str:
    """A path, taken from the scenario's folder; a name that is no file there stays as it is (a shipped fleet)."""
    text = _text(reader, path, value)
    joined = os.path.join(reader.folder, text)
    return joined if text and os.path.lexists(joined) else text


def _choice(*words: str) -> _Field:
    def read(reader: _Reader, path: Path, value: Any) -> str:
        if value not in words:
            reader.fault(path, f"{printable(repr(value))} is none of {', '.join(words)}{nearest(str(value), words)}")
        return str(value)

    return read


def _whole(low: int, high: int) -> _Field:
    def read(reader: _Reader, path: Path, value: Any) -> int:
        if not isinstance(value, str) or not _WHOLE.fullmatch(value) or not low <= int(value) <= high:
            reader.bad(path, value, f"whole number from {low:,} to {high:,}")
            return low
        return int(value)

    return read


def _decimal(low: float, high: float) -> _Field:
    def read(reader: _Reader, path: Path, value: Any) -> float:
        if not isinstance(value, str) or not _DECIMAL.fullmatch(value) or not low <= float(value) <= high:
            reader.bad(path, value, f"decimal number from {low:g} to {high:g}")
            return low
        return float(value)

    return read


def _time(reader: _Reader, path: Path, value: Any) -> int:
    try:
        return parse_seconds(value if isinstance(value, str) else "")
    except UnitError as error:
        reader.fault(path, str(error))
        return 0


def _share(reader: _Reader, path: Path, value: Any) -> Any:
    try:
        return parse_utilization(value if isinstance(value, str) else "")
    except UnitError as error:
        reader.fault(path, str(error))
        return None


def _flag(reader: _Reader, path: Path, value: Any) -> bool:
    if value not in ("true", "false"):
        reader.fault(path, "must be true or false")
    return bool(value == "true")


def _devices(reader: _Reader, path: Path, value: Any) -> tuple[str, ...]:
    try:
        return tuple(device_list(value if isinstance(value, str) else "", ()).split(","))
    except ValueError as error:
        reader.fault(path, f"{error}; write e.g. gpu:0-3")
        return ()


def _pool(reader: _Reader, path: Path, value: Any) -> Pool:
    fields: dict[str, _Field] = {
        "devices": _devices, "max_seqs": _whole(1, MAX_SEQS), "max_tokens": _whole(1, MAX_STEP_TOKENS),
        "tp": _whole(1, MAX_DEGREE), "pp": _whole(1, MAX_DEGREE),
    }  # fmt: skip
    found = reader.section(path, value, fields)
    if "devices" not in found:
        reader.fault(path, "devices is missing; a pool names at least one device, e.g. devices: gpu:0-3")
    pool = Pool(**({"devices": ()} | found))
    if pool.max_tokens < pool.max_seqs:
        reader.fault(path, f"max_tokens {pool.max_tokens} is less than max_seqs {pool.max_seqs}; each needs one a step")
    if len(pool.devices) % (pool.tp * pool.pp):
        words = f"{len(pool.devices)} devices make no whole workers of tp {pool.tp} x pp {pool.pp} devices"
        reader.fault(path, f"{words}; name a multiple of {pool.tp * pool.pp}")
    return pool


def _arrivals(reader: _Reader, path: Path, value: Any) -> Arrivals | None:
    fields = {
        "kind": _choice("poisson", "gamma", "constant"), "rate": _decimal(1e-6, 1e7),
        "requests": _whole(1, MAX_REQUESTS), "shape": _decimal(0.001, 1000),
    }  # fmt: skip
    found = reader.section(path, value, fields)
    missing = [name for name in ("kind", "rate", "requests") if name not in found]
    if missing:
        reader.fault(path, f"{', '.join(missing)} missing; e.g. {{kind: poisson, rate: 4, requests: 1000}}")
        return None
    if "shape" in found and found["kind"] != "gamma":
        reader.fault((*path, "shape"), "is of kind gamma only", key=True)
    return Arrivals(**found)


def _lengths(reader: _Reader, path: Path, value: Any) -> Lengths | None:
    token = _whole(1, MAX_TOKENS)
    fields = {
        "kind": _choice("fixed", "lognormal"), "value": token, "mu": _decimal(-20, 20), "sigma": _decimal(0, 10),
        "least": token, "most": token,
    }  # fmt: skip
    found = reader.section(path, value, fields)
    needed = ("kind", "value") if found.get("kind") == "fixed" else ("kind", "mu", "sigma")
    missing = [name for name in needed if name not in found]
    if missing:
        reader.fault(path, f"{', '.join(missing)} missing; e.g. {{kind: fixed, value: 512}}")
        return None
    if found.get("least", 1) > found.get("most", MAX_TOKENS):
        reader.fault((*path, "least"), "is more than most", key=True)
    return Lengths(**found)


def _slo(reader: _Reader, path: Path, value: Any) -> Slo:
    return Slo(**reader.section(path, value, {"ttft": _time, "tpot": _time, "e2e": _time}))


def _outages(reader: _Reader, path: Path, value: Any) -> tuple[Outage, ...]:
    if not isinstance(value, list):
        reader.fault(path, "wanted a list, e.g. [{device: gpu:1, at: 10 s, back: 20 s}]")
        return ()
    out: list[Outage] = []
    for index, entry in enumerate(value):
        here = (*path, index)
        found = reader.section(here, entry, {"device": _text, "at": _time, "back": _time})
        if "device" not in found or "at" not in found:
            reader.fault(here, "device or at is missing")
            continue
        outage = Outage(device=found["device"], at=found["at"], back=found.get("back"))
        if outage.back is not None and outage.back <= outage.at:
            reader.fault((*here, "back"), "is not after at")
        earlier = [one for one in out if one.device == outage.device]
        if any(one.back is None or one.back >= outage.at for one in earlier):
            reader.fault(here, f"{outage.device} is not back from its outage before; list them in order of time")
        out.append(outage)
    return tuple(out)


_ROUTING: dict[str, tuple[str, _Field]] = {
    "prefill": ("route_prefill", _choice("round-robin", "least-loaded", "prefix-aware")),
    "decode": ("route_decode", _choice("round-robin", "least-loaded", "same-domain")),
}


def _routing(reader: _Reader, path: Path, value: Any) -> dict[str, Any]:
    found = reader.section(path, value, {name: read for name, (_, read) in _ROUTING.items()})
    return {_ROUTING[name][0]: word for name, word in found.items()}


def _handoff(reader: _Reader, path: Path, value: Any) -> dict[str, Any]:
    fields: dict[str, _Field] = {
        "share": _choice("queue", "fair"), "start": _choice("push", "pull"), "by": _choice("whole", "layer"),
        "extent": _choice("filled", "blocks"),
    }  # fmt: skip
    found = reader.section(path, value, fields)
    if found.get("by") == "layer" and found.get("share") == "fair":
        reader.fault((*path, "by"), "layer is simulated with share: queue only", key=True)
    return found


def _same(reader: _Reader, path: Path, value: Any) -> str:
    if value != SCHEMA:
        reader.fault(path, f"{printable(repr(value))} is not {SCHEMA}")
    return SCHEMA


_TOP: dict[str, _Field] = {
    "schema": _same, "name": _text, "fleet": _file, "model": _file, "seed": _whole(0, 2**49), "prefill": _pool,
    "decode": _pool, "block_tokens": _whole(1, 4096), "engine": _choice(*ENGINES),
    "weights_dtype": _choice(*_DTYPES), "kv_dtype": _choice(*_DTYPES),
    "rates": _choice("declared", "observed"), "utilization": _share, "step_overhead": _time, "routing": _routing,
    "handoff": _handoff, "prefix_reuse": _flag, "arrivals": _arrivals, "prompts": _lengths, "answers": _lengths,
    "trace": _file, "slo": _slo, "outages": _outages,
}  # fmt: skip
