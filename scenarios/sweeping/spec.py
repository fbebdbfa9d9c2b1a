"""What a sweep asks: a base, what is varied, the figures that decide. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from fleet.yaml_source import Data, Document

SCHEMA = "kvwaybill/sweep/1"
Question = Literal["admit", "simulate"]
Place = tuple[int, int]
"""(line, column) in the sweep file."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A figure of a case. `key` is its name in documents, with the unit; `more`: whether more is better."""

    name: str
    key: str
    kind: Literal["time", "share", "number"]
    more: bool = False


def _metric(name: str, kind: Literal["time", "share", "number"] = "number", *, more: bool = False) -> Metric:
    return Metric(name=name, key=f"{name}_s" if kind == "time" else name, kind=kind, more=more)


_COMMON = (_metric("devices"), _metric("cost_per_hour"), _metric("handoff_bytes"))
_LATENCIES = tuple(
    _metric(f"{of}_{share}", "time") for of in ("ttft", "tpot", "itl", "e2e") for share in ("mean", "p50", "p90", "p99")
)
_ALL: dict[Question, tuple[Metric, ...]] = {
    "simulate": (
        *_LATENCIES, _metric("goodput", "share", more=True), _metric("finished", "share", more=True),
        _metric("requests_per_s", more=True), _metric("tokens_per_s", more=True),
        _metric("tokens_per_s_per_device", more=True), _metric("preemptions"), *_COMMON,
    ),
    "admit": (
        _metric("ttft", "time"), _metric("tpot", "time"), _metric("handoff", "time"),
        _metric("slack_bytes", more=True), *_COMMON,
    ),
}  # fmt: skip
METRICS: dict[Question, dict[str, Metric]] = {q: {m.name: m for m in metrics} for q, metrics in _ALL.items()}
OBJECTIVES: dict[Question, tuple[str, ...]] = {
    "simulate": ("ttft_p99", "tpot_p99", "tokens_per_s_per_device", "devices"),
    "admit": ("ttft", "tpot", "devices"),
}
"""What the front is of where the file does not say; cost_per_hour joins where prices are given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """A metric may be `limit` at most, or at least where more is better. Seconds, shares, plain numbers."""

    metric: Metric
    limit: float
    text: str

    def holds(self, value: float) -> bool:
        """Whether a figure keeps to it."""
        return value >= self.limit if self.metric.more else value <= self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One field set to one value. None takes the field away."""

    value: Data
    place: Place
    key_place: Place


Choice = dict[str, Setting]
"""Dotted field -> its setting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """The file that all cases start from. `folder`: where its paths are taken from."""

    label: str
    document: Document
    folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Sweep:
    """A sweep, read and checked. The cases are every entry of `listed` with every point of `grid`."""

    source: str
    folder: str
    question: Question
    base: Base
    name: str | None = None
    listed: tuple[Choice, ...] = ()
    grid: tuple[tuple[Choice, ...], ...] = ()
    slo: tuple[Bound, ...] = ()
    objectives: tuple[Metric, ...] = ()
    prices: dict[str, Fraction] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that vary, in the order of the file."""
        return tuple(dict.fromkeys(name for choices in (self.listed, *self.grid) for c in choices for name in c))

    @property
    def bounded(self) -> bool:
        """Whether SLOs are stated: in the sweep, or (simulations) in the base or a field that varies."""
        base = self.base.document.data
        own = self.question == "simulate" and (
            (isinstance(base, dict) and bool(base.get("slo")))
            or any(name.split(".")[0] == "slo" for name in self.fields)
        )
        return bool(self.slo) or own


Json = dict[str, Any]
