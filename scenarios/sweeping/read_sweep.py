"""Reads a sweep file (`kvwaybill/sweep/1`). Every fault is told at once, at its line and column."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError, Fault, raise_in_order
from fleet.units import UnitError, parse_seconds, parse_utilization
from fleet.yaml_source import Document, Node, Path, nearest, parse_text, printable, read_text
from scenarios.shipped import shipped_names, shipped_path
from scenarios.simulation.traffic import PICOSECONDS
from scenarios.sweeping.spec import METRICS, OBJECTIVES, SCHEMA, Base, Bound, Choice, Metric, Question, Setting, Sweep

MAX_CASES = 100_000
MAX_FIELDS = 32
_FOLDER = "sweeps"
_TOP = ("schema", "name", "question", "base", "grid", "list", "slo", "objectives", "prices")
FIELD = re.compile(r"[a-z][a-z_]{0,63}(\.[a-z][a-z_]{0,63}){0,3}")
DECIMAL = re.compile(r"[0-9]{1,15}(\.[0-9]{1,9})?")
FIXED = ("schema", "name")


def sweep_names() -> list[str]:
    """Names of the shipped sweeps, sorted."""
    return shipped_names(_FOLDER)


def load_sweep(path: str) -> Sweep:
    """The sweep of a file (`-` = stdin), or a shipped one. Raises DescriptionError with every fault."""
    if path == "-":
        return parse_sweep(read_text(path), "<stdin>", "")
    if not os.path.lexists(path):
        path = shipped_path(path, "sweep", _FOLDER)
    _refuse_pipes(path)
    return parse_sweep(read_text(path), path, os.path.dirname(path))


def _refuse_pipes(path: str) -> None:
    from fleet.checkpoints.source import open_regular

    if not os.path.isdir(path):  # of a folder the reader says more
        open_regular(path)[0].close()


def parse_sweep(text: str, source: str, folder: str) -> Sweep:
    """The sweep of a text; paths in it are taken from `folder`."""
    document = parse_text(text, source)
    reader = _Reader(document, folder)
    found = reader.top()
    reader.stop()
    return Sweep(source=source, folder=folder, **found)


@dataclass(slots=True)
class _Reader:
    document: Document
    folder: str
    faults: list[Fault] = field(default_factory=list)

    def fault(self, path: Path, message: str, *, key: bool = False) -> None:
        self.faults.append(self.document.fault(path, message, key=key))

    def stop(self) -> None:
        """Raises what was found wrong, in the order of the file."""
        raise_in_order([*self.document.faults, *self.faults])

    def top(self) -> dict[str, Any]:
        data = self.document.data
        if not isinstance(data, dict):
            self.fault((), f"wanted a mapping of {', '.join(_TOP)}")
            self.stop()
            return {}
        for name in data:
            if name not in _TOP:
                near = nearest(name, _TOP) or f"; known: {', '.join(_TOP)}"
                self.fault((name,), f"no such field{near}", key=True)
        self._same_schema(data)
        question = self._question(data)
        found: dict[str, Any] = {"question": question, "name": self._name(data), "base": self._base(data, question)}
        found |= self._varied(data)
        found["prices"] = self._prices(data)
        found["slo"] = self._slo(data, question)
        objectives, defaults = self._objectives(data, question, bool(found["prices"]))
        return found | {"objectives": objectives, "defaults": defaults}

    def _same_schema(self, data: dict[str, Any]) -> None:
        if "schema" not in data:
            self.fault((), f"schema is missing; write schema: {SCHEMA}")
        elif data["schema"] != SCHEMA:
            self.fault(("schema",), f"{printable(repr(data['schema']))} is not {SCHEMA}")

    def _question(self, data: dict[str, Any]) -> Question:
        value = data.get("question")
        if "question" not in data:
            self.fault((), "question is missing; write question: simulate, or question: admit")
        elif not isinstance(value, str) or value not in METRICS:
            near = nearest(str(value), METRICS)
            self.fault(("question",), f"{printable(repr(value))} is none of {', '.join(METRICS)}{near}")
        return "admit" if value == "admit" else "simulate"

    def _name(self, data: dict[str, Any]) -> str | None:
        value = data.get("name")
        if "name" in data and (not isinstance(value, str) or not 1 <= len(value) <= 128):
            self.fault(("name",), "wanted text of 1 to 128 characters")
        return value if isinstance(value, str) else None

    def _base(self, data: dict[str, Any], question: Question) -> Base | None:
        if "base" not in data:
            self.fault((), "base is missing; name a file or a shipped one, or write it out")
            return None
        value = data["base"]
        if isinstance(value, dict):
            below = self.document.root.value
            assert isinstance(below, dict)
            own = Document(source=self.document.source, text=self.document.text, root=below["base"])
            return Base(label="written out", document=own, folder=self.folder)
        if not isinstance(value, str) or not value or len(value) > 4096 or "\0" in value or value == "-":
            self.fault(("base",), "wanted the name of a file or of a shipped one, or a mapping")
            return None
        try:
            return _base_of(value, self.folder, question)
        except DescriptionError as error:
            self.faults += [f if f.line else self.document.fault(("base",), str(f)) for f in error.faults]
            return None

    def _varied(self, data: dict[str, Any]) -> dict[str, Any]:
        listed = self._list(data["list"]) if "list" in data else ()
        grid = self._grid(data["grid"]) if "grid" in data else ()
        if "grid" not in data and "list" not in data:
            self.fault((), "nothing is varied; write grid: {field: [values]} or list: [{field: value}]")
        both = {name for choice in listed for name in choice} & {name for axis in grid for name in axis[0]}
        for name in sorted(both):
            self.fault(("grid", name), "is set by list, too; keep one", key=True)
        names = sorted({name for choices in (listed, *grid) for choice in choices for name in choice})
        for name in names:
            for other in names:
                if other.startswith(f"{name}."):
                    where = "grid" if any(other in axis[0] for axis in grid) else "list"
                    self.fault((where, other), f"lies within {name}, which is set as well; keep one", key=True)
        if len(names) > MAX_FIELDS:
            self.fault((), f"{len(names)} fields are varied; {MAX_FIELDS} at most")
        count = max(1, len(listed)) * math.prod(len(axis) for axis in grid)
        if count > MAX_CASES:
            self.fault(("grid",), f"gives {count:,} cases; {MAX_CASES:,} at most in one sweep")
        return {"listed": listed, "grid": grid}

    def _list(self, value: Any) -> tuple[Choice, ...]:
        if not isinstance(value, list) or not value:
            self.fault(("list",), "wanted a list of {field: value}, at least one")
            return ()
        entries: list[Choice] = []
        seen: dict[str, int] = {}
        for index, entry in enumerate(value):
            if not isinstance(entry, dict) or not entry:
                self.fault(("list", index), "wanted a mapping {field: value}")
                continue
            before = seen.setdefault(_same_for(entry), index)
            if before != index:
                self.fault(("list", index), f"is entry {before + 1} once more; keep one")
            named = [name for name in entry if self._field_name(("list", index, name), name)]
            entries.append({name: self._setting(("list", index, name), entry[name]) for name in named})
        return tuple(entries)

    def _grid(self, value: Any) -> tuple[tuple[Choice, ...], ...]:
        if not isinstance(value, dict) or not value:
            self.fault(("grid",), "wanted a mapping {field: [values]}, at least one")
            return ()
        axes = []
        for name, values in value.items():
            if not self._field_name(("grid", name), name):
                continue
            if not isinstance(values, list) or not values:
                self.fault(("grid", name), "wanted a list of at least one value, e.g. [1, 2]")
                continue
            seen: set[str] = set()
            for index, one in enumerate(values):
                if (known := _same_for(one)) in seen:
                    self.fault(("grid", name, index), f"{printable(repr(one))} stands twice; keep one")
                seen.add(known)
            axes.append(tuple({name: self._setting(("grid", name, i), one)} for i, one in enumerate(values)))
        return tuple(axes)

    def _field_name(self, path: Path, name: str) -> bool:
        if not FIELD.fullmatch(name):
            self.fault(path, "is no field; write its name, below others with dots: arrivals.rate", key=True)
        elif name.split(".")[0] in FIXED:
            self.fault(path, f"{' and '.join(FIXED)} are the base's own and change no answer", key=True)
        else:
            return True
        return False

    def _setting(self, path: Path, value: Any) -> Setting:
        key_path = path if isinstance(path[-1], str) else path[:-1]
        return Setting(value=value, place=self.document.at(path), key_place=self.document.at(key_path, key=True))

    def _metric(self, path: Path, name: Any, question: Question, *, key: bool = False) -> Metric | None:
        known = METRICS[question]
        if isinstance(name, str) and name in known:
            return known[name]
        near = nearest(str(name), known) or f"; known: {', '.join(known)}"
        self.fault(path, f"{printable(repr(name))} is no figure of question {question}{near}", key=key)
        return None

    def _objectives(
        self, data: dict[str, Any], question: Question, priced: bool
    ) -> tuple[tuple[Metric, ...], tuple[str, ...]]:
        value = data.get("objectives")
        if "objectives" not in data:
            names = [*OBJECTIVES[question], *(["cost_per_hour"] if priced else [])]
            return tuple(METRICS[question][n] for n in names), (f"objectives: {', '.join(names)}",)
        if not isinstance(value, list) or not value:
            self.fault(("objectives",), f"wanted a list of figures, e.g. [{', '.join(OBJECTIVES[question])}]")
            return (), ()
        found = [self._metric(("objectives", index), name, question) for index, name in enumerate(value)]
        for index, metric in enumerate(found):
            if metric is not None and metric in found[:index]:
                self.fault(("objectives", index), f"{metric.name} stands twice; keep one")
            if metric is not None and metric.name == "cost_per_hour" and not priced:
                self.fault(("objectives", index), "cost_per_hour needs prices: {SKU: AMOUNT}, an hour of a card")
        return tuple(metric for metric in found if metric is not None), ()

    def _slo(self, data: dict[str, Any], question: Question) -> tuple[Bound, ...]:
        value = data.get("slo", {})
        if not isinstance(value, dict):
            self.fault(("slo",), "wanted a mapping, e.g. {ttft_p99: 200 ms, goodput: 0.99}")
            return ()
        bounds = []
        for name, text in value.items():
            metric = self._metric(("slo", name), name, question, key=True)
            limit = None if metric is None else self._limit(("slo", name), text, metric)
            if metric is not None and limit is not None:
                bounds.append(Bound(metric=metric, limit=limit, text=str(text)))
        return tuple(bounds)

    def _limit(self, path: Path, value: Any, metric: Metric) -> float | None:
        text = value if isinstance(value, str) else ""
        try:
            if metric.kind == "time":
                return parse_seconds(text) / PICOSECONDS
            if metric.kind == "share":
                return float(parse_utilization(text))
        except UnitError as error:
            self.fault(path, str(error))
            return None
        if not DECIMAL.fullmatch(text):
            self.fault(path, f"{printable(repr(value))} is no number from 0 up")
            return None
        return float(text)

    def _prices(self, data: dict[str, Any]) -> dict[str, Fraction]:
        value = data.get("prices", {})
        if not isinstance(value, dict):
            self.fault(("prices",), "wanted a mapping of cards, e.g. {h100-sxm-80: 2.50}")
            return {}
        prices: dict[str, Fraction] = {}
        for sku, text in value.items():
            if not isinstance(text, str) or not DECIMAL.fullmatch(text):
                self.fault(("prices", sku), f"{printable(repr(text))} is no price of an hour; write e.g. 2.50")
            else:
                prices[sku] = Fraction(text)
        return prices


def _same_for(value: Any) -> str:
    """One text for equal values, in whatever order a mapping has its fields."""
    return json.dumps(value, sort_keys=True)


def _base_of(name: str, folder: str, question: Question) -> Base:
    beside = os.path.join(folder, name)
    found: str = beside if os.path.lexists(beside) else name
    if not os.path.lexists(found):
        found = _SHIPPED[question](name)
    _refuse_pipes(found)
    return Base(label=name, document=parse_text(read_text(found), found), folder=os.path.dirname(found))


def _shipped_scenario(name: str) -> str:
    return shipped_path(name, "scenario")


def _shipped_simulation(name: str) -> str:
    from scenarios.simulation.read_spec import simulation_path

    return simulation_path(name)


_SHIPPED: dict[Question, Callable[[str], str]] = {"admit": _shipped_scenario, "simulate": _shipped_simulation}


def node_of(value: Any) -> Node:
    """Plain data as a node without places."""
    if isinstance(value, dict):
        return Node({name: node_of(one) for name, one in value.items()}, 0)
    if isinstance(value, list):
        return Node([node_of(one) for one in value], 0)
    return Node(value, 0)
