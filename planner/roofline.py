"""The least time a device takes for work, divided by how near to it programs come: the roofline of Williams, Waterman
and Patterson (CACM 52(4), 2009).

seconds = max(operations / (rate * efficiency), bytes / (bandwidth * efficiency)) for each piece of work, summed.
Bytes and fit never depend on anything here. An efficiency is measured on the card that it is used for, or policy; what
follows from it was compared with no run, so it is unscored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from fleet.machine import Device, Figure, Quantity
from fleet.model import Model
from fleet.workload import Workload
from planner.work import Calls, Work, attention_work, weight_work, work_unknown

Rates = Literal["declared", "observed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiency:
    """The share of a stated rate that whole phases reach. `provenance` is measured or policy."""

    value: Fraction
    provenance: Literal["measured", "policy"]
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Efficiencies:
    """Shares that somebody gave instead of the table's; None leaves the table's."""

    compute: Fraction | None = None
    memory: Fraction | None = None


AS_TABLED = Efficiencies()
"""The table's shares."""

_H200 = "h200-sxm-141"
_ON_H200: dict[str, tuple[Fraction, str]] = {
    # 26,429,374,464 B of weights and 100,663,296 B of cache in 7.623 ms a token: 3.480e12 B/s.
    "memory declared": (Fraction(725, 1000), "decode of a 7B shape in fp32, 3.48 of 4.80 TB/s declared"),
    "memory observed": (Fraction(769, 1000), "decode of a 7B shape in fp32, 3.48 of 4.53 TB/s observed"),
    "fp32": (Fraction(497, 670), "7B projections of 512 tokens, 49.7 of 67 TFLOP/s"),
    "tf32": (Fraction(274, 494), "7B projections of 512 tokens, 256 to 293 of 494.5 TFLOP/s"),
    "bf16": (Fraction(686, 989), "7B projections of 512 tokens, 658 to 714 of 989 TFLOP/s"),
}
_MEASURED = "an NVIDIA H200 (driver 580.159.04, 2026-11-30)"


def efficiency_of(device: Device, what: str, given: Efficiencies = AS_TABLED) -> Efficiency:
    """The share for `memory declared`, `memory observed` or a type of number, on this device."""
    own = given.memory if what.startswith("memory") else given.compute
    if own is not None:
        return Efficiency(value=own, provenance="policy", source="as given")
    value, source = _ON_H200.get(what, _ON_H200["bf16"])
    if device.sku == _H200 and what in _ON_H200:
        return Efficiency(value=value, provenance="measured", source=f"{source} on {_MEASURED}")
    return Efficiency(
        value=value, provenance="policy", source=f"{source} on {_MEASURED}, not on this card in this type"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Used:
    """One rate that a time rests on: its figure, whether it was declared or observed, and the share taken of it."""

    what: str
    device: str
    figure: Figure
    origin: Rates
    efficiency: Efficiency

    @property
    def per_second(self) -> Fraction:
        """What is really reckoned with."""
        return self.figure.value * self.efficiency.value

    @property
    def over(self) -> int:
        """Work * `divided_by` / `over` are seconds."""
        return self.figure.value * self.efficiency.value.numerator

    @property
    def divided_by(self) -> int:
        """See `over`."""
        return self.efficiency.value.denominator


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Work and its time; `bound` says which of both rates decides."""

    work: Work
    seconds: Fraction
    bound: Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTime:
    """The time of all forward calls of a phase on one device. `seconds` is None where a rate is unknown: `unpriced`."""

    device: str
    seconds: Fraction | None
    pieces: tuple[Piece, ...] = ()
    used: tuple[Used, ...] = ()
    unpriced: tuple[str, ...] = ()
    lower_bound: bool = False
    """Whether launches decide, which are not priced: a call reads less than `LAUNCH_BOUND`."""


LAUNCH_BOUND = 10**9
"""Bytes. On an H200 a decode pass reached 0.76 of the read bandwidth at 26.4 GB of weights and 0.23 at 0.44 GB."""


def chosen(quantity: Quantity, rates: Rates) -> tuple[Figure | None, Rates]:
    """(the figure, which it is): the observed one where it is asked for and there, else the declared one."""
    if rates == "observed" and quantity.observed is not None:
        return quantity.observed, "observed"
    return quantity.declared, "declared"


def numbers_of(model: Model, workload: Workload) -> tuple[str, str]:
    """(type of the multiplications by weights, of attention), from how the weights are stored."""
    scheme = model.quantisation or ""
    if workload.weights_dtype == "fp32" and not scheme:
        return "fp32", "fp32"
    if scheme:
        # int8 of bitsandbytes and mxfp4 are widened before they are multiplied.
        return ("fp4" if scheme.startswith("nvfp4") else "fp8" if scheme.startswith("fp8") else "bf16"), "bf16"
    return workload.weights_dtype, "fp16" if workload.weights_dtype == "fp16" else "bf16"


def phase_time(
    device: Device, model: Model, workload: Workload, calls: Calls, *, rates: Rates = "declared",
    given: Efficiencies = AS_TABLED,
) -> PhaseTime:  # fmt: skip
    """The roofline time of `calls` on one device. `model` is what the device holds: a whole model or a rank's part."""
    unknown = work_unknown(model)
    if workload.attention == "host":
        unknown = (*unknown, "attention runs on the host, whose rates nobody describes")
    if unknown:
        return PhaseTime(device=device.id, seconds=None, unpriced=unknown)
    of_weights, of_attention = numbers_of(model, workload)
    work = (
        *weight_work(model, workload.weights_dtype, of_weights, calls),
        *attention_work(model, workload.kv_dtype, of_attention, calls),
    )
    found = time_of(device, work, rates, given)
    small = sum(piece.bytes for piece in work if piece.name == "weights") < LAUNCH_BOUND * len(calls.sizes())
    return replace(found, lower_bound=found.seconds is not None and small and calls.tokens > 0)


def time_of(device: Device, work: Iterable[Work], rates: Rates, given: Efficiencies) -> PhaseTime:
    """Each piece at the slower of its two rates, summed; unpriced in words where a needed rate is unknown."""
    work = tuple(work)
    used: dict[str, Used] = {}
    missing: list[str] = []
    for what in ("memory", *dict.fromkeys(piece.numbers for piece in work if piece.flops)):
        found = _rate(device, what, rates, given)
        if found is None:
            field = "memories[].bandwidth" if what == "memory" else f"compute.{what}"
            missing.append(f"{field} of {device.id} is unknown")
        else:
            used[what] = found
    if missing:
        return PhaseTime(device=device.id, seconds=None, unpriced=tuple(missing))
    pieces = tuple(_piece(piece, used) for piece in work)
    total = sum((piece.seconds for piece in pieces), Fraction(0))
    return PhaseTime(device=device.id, seconds=total, pieces=pieces, used=tuple(used.values()))


def _rate(device: Device, what: str, rates: Rates, given: Efficiencies) -> Used | None:
    figure, origin = chosen(device.memory.bandwidth if what == "memory" else device.flops(what), rates)
    if figure is None and what == "fp16":
        # Cards multiply both kinds of 16 bits at one rate; a file that states one states the other.
        figure, origin = chosen(device.flops("bf16"), rates)
    if figure is None:
        return None
    share = efficiency_of(device, f"memory {origin}" if what == "memory" else what, given)
    return Used(what=what, device=device.id, figure=figure, origin=origin, efficiency=share)


def _piece(work: Work, used: dict[str, Used]) -> Piece:
    memory = used["memory"]
    if work.flops:
        compute = used[work.numbers]
        # Compared crosswise in whole numbers: a third of the time that three fractions take.
        one = work.flops * compute.divided_by * memory.over
        if one > work.bytes * memory.divided_by * compute.over:
            seconds = Fraction(work.flops * work.times * compute.divided_by, compute.over)
            return Piece(work=work, seconds=seconds, bound="compute")
    seconds = Fraction(work.bytes * work.times * memory.divided_by, memory.over)
    return Piece(work=work, seconds=seconds, bound="memory")
