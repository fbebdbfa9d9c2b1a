"""What a simulation is asked: pools on named devices, requests, routing, handoffs, SLOs. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal

from scenarios.simulation.traffic import Arrivals, Lengths

SCHEMA = "kvwaybill/simulation-scenario/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Workers of `tp` x `pp` devices each, taken in the order given, stage by stage.

    `max_seqs` requests of a worker run at once, `max_tokens` tokens are computed in one step.
    """

    devices: tuple[str, ...]
    max_seqs: int = 256
    max_tokens: int = 2048
    tp: int = 1
    pp: int = 1

    @property
    def workers(self) -> tuple[str, ...]:
        """The devices of each worker joined by commas, as a placement names them."""
        size = self.tp * self.pp
        return tuple(",".join(self.devices[at : at + size]) for at in range(0, len(self.devices), size))


@dataclass(frozen=True, kw_only=True, slots=True)
class Outage:
    """A worker fails at `at` ps and is back at `back` ps (None: never)."""

    device: str
    at: int
    back: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Slo:
    """ps that a request may take; None: no bound."""

    ttft: int | None = None
    tpot: int | None = None
    e2e: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """A simulation, read and checked. Requests are drawn (`arrivals`, `prompts`, `answers`) or of a `trace`."""

    fleet: str
    prefill: Pool
    decode: Pool
    model: str | None = None
    name: str | None = None
    seed: int = 0
    block_tokens: int = 16
    engine: str | None = None
    weights_dtype: str | None = None
    kv_dtype: str | None = None
    rates: Literal["declared", "observed"] = "declared"
    utilization: Fraction | None = None
    step_overhead: int = 0
    route_prefill: str = "round-robin"
    route_decode: str = "round-robin"
    share: str = "queue"
    start: str = "push"
    by: str = "whole"
    extent: str = "filled"
    prefix_reuse: bool = False
    arrivals: Arrivals | None = None
    prompts: Lengths | None = None
    answers: Lengths | None = None
    trace: str | None = None
    slo: Slo = field(default_factory=Slo)
    outages: tuple[Outage, ...] = ()
    source: str = ""
    places: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
