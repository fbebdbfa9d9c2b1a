"""Step times of a worker as whole numbers, out of the planner's work and roofline; copies of ids out of its rows.

A decode step of the planner is max(operations of the weights, their bytes) + the same of the classifier + the same of
attention, each over its rate: affine in tokens and in positions, each maximum between two lines. Whole units of 1/Q ps
hold it exactly where Q, the common denominator, is small enough for 64 bits; else it is rounded, and said so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fleet.errors import InconclusiveError
from fleet.machine import Device
from fleet.model import Model
from planner.placement_time import Pricing
from planner.roofline import Used, numbers_of, time_of
from planner.rows import Row
from planner.times import row_time
from planner.work import Calls, Work, attention_work, is_routed, weight_work, work_unknown
from scenarios.simulation.columns import COST_COLUMNS, NEVER

PS = 10**12
ROUNDED_Q = 2**20


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Coefficients of one worker in ps, by name of their column; `q` units of a ps; `exact` unless rounded."""

    values: dict[str, Fraction]
    q: int
    exact: bool
    used: tuple[Used, ...]

    def row(self) -> list[int]:
        """In units of 1/q ps, in the order of the columns."""
        from scenarios.simulation import columns

        out = [0] * COST_COLUMNS
        for name, value in self.values.items():
            out[getattr(columns, name)] = round(value * self.q)
        return out


def simulated_unknown(model: Model) -> tuple[str, ...]:
    """In words, why the steps of a model have no closed form here; empty where they have one."""
    words = list(work_unknown(model))
    if any(is_routed(tensor) for tensor in model.tensors):
        words.append("which experts a step reads depends on its tokens: its time is not affine, and not simulated")
    if not model.is_plain_cache:
        words.append("caches other than full attention of one shape (windows, states, latents) are not simulated")
    return tuple(words)


def step_costs(
    device: Device, model: Model, dtypes: tuple[str, str], copies: dict[str, Fraction], overhead: Fraction,
    largest: dict[str, int], pricing: Pricing,
) -> StepCosts:  # fmt: skip
    """The coefficients of a device. `dtypes`: of weights and cache; `copies`: UP0, UP1, DN0, DN1 in ps; `overhead` ps.

    `largest`: the most tokens, logits, pairs and positions of a step, which decide how fine a unit 64 bits leave.
    Raises InconclusiveError in words where a rate is unknown.
    """
    values = {"FIXED": overhead, **copies}
    used: dict[Any, Used] = {}

    def seconds(numbers: str, flops: int, nbytes: int) -> Fraction:
        found = time_of(
            device, (Work(name="", numbers=numbers, flops=flops, bytes=nbytes),), pricing.rates, pricing.given
        )
        if found.seconds is None:
            raise InconclusiveError(f"{device.id}: no step time: {'; '.join(found.unpriced)}")
        used.update({(one.device, one.what): one for one in found.used})
        return found.seconds * PS

    weights_dtype, kv_dtype = dtypes
    of_weights, of_attention = numbers_of_dtypes(model, weights_dtype)
    one, two = (weight_work(model, weights_dtype, of_weights, Calls(first=0, tokens=n, chunk=n))[0] for n in (1, 2))
    head = weight_work(model, weights_dtype, of_weights, Calls(first=0, tokens=1, logits=1))[1:]
    each = two.bytes - one.bytes
    values["WC"] = seconds(of_weights, one.flops, 0)
    values["W0"], values["WR"] = seconds(of_weights, 0, one.bytes - each), seconds(of_weights, 0, each)
    values["HC"] = sum((seconds(of_weights, work.flops, 0) for work in head), Fraction(0))
    values["H0"] = sum((seconds(of_weights, 0, work.bytes) for work in head), Fraction(0))
    decode = attention_work(model, kv_dtype, of_attention, Calls(first=0, tokens=1))[0]
    prompt = attention_work(model, kv_dtype, of_attention, Calls(first=0, tokens=2, chunk=2))[0]
    values["ACD"] = seconds(of_attention, decode.flops, 0)
    values["ACP"] = seconds(of_attention, prompt.flops, 0) / 3  # two tokens attend to 1 + 2 positions
    values["AB"] = seconds(of_attention, 0, decode.bytes) / 2  # one position is read, one written
    q, exact = _unit(values, largest)
    return StepCosts(values=values, q=q, exact=exact, used=tuple(used.values()))


def numbers_of_dtypes(model: Model, weights_dtype: str) -> tuple[str, str]:
    """The planner's types of numbers for weights and attention."""
    from fleet.workload import Workload

    return numbers_of(model, Workload(prompt_tokens=1, passes=1, positions=1, weights_dtype=weights_dtype))


def _unit(values: dict[str, Fraction], largest: dict[str, int]) -> tuple[int, bool]:
    """The common denominator, or a power of two where the longest step would pass 64 bits."""
    n, logits, pairs, positions = (largest[name] for name in ("tokens", "logits", "pairs", "positions"))
    worst = values["FIXED"] + values["UP0"] + values["UP1"] * n + values["DN0"] + values["DN1"] * logits
    worst += values["W0"] + (values["WR"] + values["WC"]) * n + values["H0"] + values["HC"] * logits
    worst += values["ACP"] * pairs + values["ACD"] * positions + values["AB"] * (3 * positions + n)
    most = max(1, int(NEVER // 4 // (worst + 1)))
    common = math.lcm(*(value.denominator for value in values.values()))
    if common <= most:
        return common, True
    return min(ROUNDED_Q, 1 << (most.bit_length() - 1)), False


def copy_costs(one: Row | None, two: Row | None) -> tuple[Fraction, Fraction]:
    """(a copy, each id) in ps, from the planner's rows of one and of two ids in one copy. Raises InconclusiveError."""
    if one is None or two is None:
        return Fraction(0), Fraction(0)
    times = [row_time(row) for row in (one, two)]
    if times[0].seconds is None or times[1].seconds is None:
        raise InconclusiveError("; ".join(words for time in times for words in time.unpriced))
    each = (times[1].seconds - times[0].seconds) * PS
    return times[0].seconds * PS - each, each
