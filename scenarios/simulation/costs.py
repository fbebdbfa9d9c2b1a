"""Step times of a worker as whole numbers, out of the planner's work and roofline; copies of ids out of its rows.

A decode step of the planner is max(operations of the weights, their bytes) + the same of the classifier + the same of
attention, each over its rate: affine in tokens and in positions, each maximum between two lines. Whole units of 1/Q ps
hold it exactly where Q, the common denominator, is small enough for 64 bits; else it is rounded, and said so.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fleet.errors import InconclusiveError
from fleet.machine import Device
from fleet.model import Model
from fleet.models.layers import KINDS
from planner.placement_time import Pricing
from planner.roofline import Rates, Used, numbers_of, time_of
from planner.rows import Row
from planner.times import Time, row_time, total
from planner.work import Calls, Work, attended, attention_work, weight_table, work_unknown
from scenarios.simulation.columns import COST_COLUMNS, NEVER

PS = 10**12
LEAST_POSITIONS = 4
"""Three tokens in one call and one after them: what the planner is asked for the copies and sums of a step."""
ROUNDED_Q = 2**20


COUNTS = ("EN", "EK", "WINDOW")
"""Columns that count experts, or positions of a window (0: none): no times."""
Values = dict[str, Fraction]
"""Coefficients of a stage by the name of their column; `ACP.1` is that of its second sort of attention."""
ATTENTION = ("ACP", "ACD", "AB", "WINDOW")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCosts:
    """Coefficients of one worker in ps, by name of their column; `q` units of a ps.

    A stage is a row, and a further one for each sort of attention beyond its first. What a step takes once stands with
    the first row. `exact` unless rounded.
    """

    parts: tuple[Values, ...]
    q: int
    exact: bool
    used: tuple[Used, ...]

    @property
    def windows(self) -> set[int]:
        """Tokens of the windows that its attention looks through."""
        return {int(values["WINDOW"]) for values in self.parts} - {0}

    def rows(self, rows: int, windows: Sequence[int]) -> list[list[int]]:
        """In units of 1/q ps, in the order of the columns; rows that the worker has not are zero."""
        from scenarios.simulation import columns

        out = [[0] * COST_COLUMNS for _ in range(rows)]
        for row, values in zip(out, self.parts, strict=False):
            for name, value in values.items():
                row[getattr(columns, name)] = int(value) if name in COUNTS else round(value * self.q)
            row[columns.WINDOW] = 1 + windows.index(int(values["WINDOW"])) if values["WINDOW"] else 0
        return out


def simulated_unknown(model: Model) -> tuple[str, ...]:
    """In words, why the steps of a model have no closed form here; empty where they have one."""
    words = list(work_unknown(model))
    if len(weight_table(model, model.weights_dtype).experts) > 1:
        words.append("layers with unlike numbers of routed experts are not simulated")
    if all(KINDS[layer.kind].growth == "none" for layer in model.caches):
        words.append("no layer keeps a cache, so that nothing is handed over: not simulated")
    if model.seq_len < LEAST_POSITIONS:
        words.append(f"it has {model.seq_len} positions; what steps take is told by {LEAST_POSITIONS}: not simulated")
    return tuple(words)


@dataclass(slots=True)
class _Priced:
    """Times on one device at the rates of a pricing, and what they rested on."""

    device: Device
    pricing: Pricing
    used: dict[Any, Used]

    def ps(self, numbers: str, flops: int, nbytes: int) -> Fraction:
        """Raises InconclusiveError in words where a rate is unknown."""
        work = (Work(name="", numbers=numbers, flops=flops, bytes=nbytes),)
        found = time_of(self.device, work, self.pricing.rates, self.pricing.given)
        if found.seconds is None:
            raise InconclusiveError(f"{self.device.id}: no step time: {'; '.join(found.unpriced)}")
        self.used.update({(one.device, one.what): one for one in found.used})
        return found.seconds * PS


def stage_values(
    device: Device, held: Model, whole: Model, dtypes: tuple[str, str], pricing: Pricing, used: dict[Any, Used]
) -> Values:
    """The coefficients of what one device holds of a model. `dtypes`: of weights and cache."""
    ps, (weights_dtype, kv_dtype) = _Priced(device, pricing, used).ps, dtypes
    of_weights, of_attention = numbers_of_dtypes(whole, weights_dtype)
    table, k = weight_table(held, weights_dtype), held.experts_per_token or 0
    values = {
        "WC": ps(of_weights, 2 * (table.parameters + sum(k * each for _, each, _ in table.experts)), 0),
        "W0": ps(of_weights, 0, table.bytes), "WR": ps(of_weights, 0, table.row_bytes),
        "HC": ps(of_weights, 2 * table.head_parameters, 0),
        "H0": ps(of_weights, 0, table.head_bytes if table.head_parameters else 0),
    }  # fmt: skip
    for count, _, nbytes in table.experts:
        values |= {"ES": ps(of_weights, 0, nbytes), "EN": Fraction(count), "EK": Fraction(k)}
    return values | _attention_values(held, whole.seq_len, kv_dtype, of_attention, ps)


def _attention_values(
    held: Model, longest: int, kv_dtype: str, numbers: str, ps: Callable[[str, int, int], Fraction]
) -> Values:
    """The coefficients of attention, sort by sort as the planner adds their maxima up, and of states.

    A window of `longest` positions or more hides none.
    """
    layers = [layer for layer in Counter(held.caches) if KINDS[layer.kind].growth != "none"]
    one, two = Calls(first=0, tokens=1), Calls(first=0, tokens=2, chunk=2)
    values = {"SB": Fraction(0)} | dict.fromkeys(ATTENTION, Fraction(0))
    number = 0
    of_layers = (attention_work(held, kv_dtype, numbers, calls) for calls in (one, two))
    for layer, decode, prompt in zip(layers, *of_layers, strict=True):
        if KINDS[layer.kind].growth == "constant":
            values["SB"] += ps(numbers, 0, decode.bytes)  # read and written once a step and sequence
            continue
        found = (
            ps(numbers, prompt.flops, 0) / attended(two, layer.window),
            ps(numbers, decode.flops, 0),
            ps(numbers, 0, decode.bytes) / 2,  # one position is read, one written
            Fraction(layer.window if layer.window is not None and layer.window < longest else 0),
        )
        values |= {_of_sort(name, number): value for name, value in zip(ATTENTION, found, strict=True)}
        number += 1
    return values


def _of_sort(name: str, number: int) -> str:
    return f"{name}.{number}" if number else name


def _parts(stage: Values) -> list[Values]:
    """A stage, and a part of it for each further sort of attention."""
    parts = [{name: value for name, value in stage.items() if "." not in name}]
    while _of_sort("AB", len(parts)) in stage:
        parts.append({name: stage[_of_sort(name, len(parts))] for name in ATTENTION})
    return parts


def step_costs(stages: Sequence[Values], once: Values, largest: dict[str, int], used: dict[Any, Used]) -> StepCosts:
    """The coefficients of a worker: of its stages, and `once` a step (FIXED, EACH, UP0, UP1, DN0, DN1).

    `largest`: the most tokens, logits, pairs and positions of a step, which decide how fine a unit 64 bits leave.
    """
    held = tuple(part for stage in ({**stages[0], **once}, *stages[1:]) for part in _parts(stage))
    q, exact = _unit(held, largest)
    return StepCosts(parts=held, q=q, exact=exact, used=tuple(used.values()))


def numbers_of_dtypes(model: Model, weights_dtype: str) -> tuple[str, str]:
    """The planner's types of numbers for weights and attention."""
    from fleet.workload import Workload

    return numbers_of(model, Workload(prompt_tokens=1, passes=1, positions=1, weights_dtype=weights_dtype))


def _unit(parts: Sequence[Values], largest: dict[str, int]) -> tuple[int, bool]:
    """The common denominator, or a power of two where the longest step would pass 64 bits.

    Raises InconclusiveError where it would do so in whole picoseconds.
    """
    n, logits, pairs, positions = (largest[name] for name in ("tokens", "logits", "pairs", "positions"))
    once = parts[0]
    worst = once["FIXED"] + once["EACH"] * n + once["UP0"] + once["UP1"] * n + once["DN0"] + once["DN1"] * logits
    for v in parts:
        if "W0" in v:
            worst += v["W0"] + (v["WR"] + v["WC"]) * n + v["H0"] + v["HC"] * logits + v.get("ES", 0) * v.get("EN", 0)
            worst += v["SB"] * logits  # sequences, no more than `max_seqs` either
        worst += v["ACP"] * pairs + v["ACD"] * positions + v["AB"] * (3 * positions + n)
    most = int(NEVER // 4 // (worst + 1))
    if most == 0:
        days = int(worst / PS / 86400)
        raise InconclusiveError(f"the longest step would take {days:,} days at the stated rates: not simulated")
    common = math.lcm(*(v.denominator for values in parts for name, v in values.items() if name not in COUNTS))
    if common <= most:
        return common, True
    return min(ROUNDED_Q, 1 << (most.bit_length() - 1)), False


def copy_costs(one: Sequence[Row], two: Sequence[Row], rates: Rates) -> tuple[Fraction, Fraction]:
    """(a step, each id) in ps, from the planner's rows of one and of two ids in one copy. Raises InconclusiveError."""
    return affine([total(row_time(row, rates) for row in rows) for rows in (one, two)], 1)


def affine(times: Sequence[Time], least: int) -> tuple[Fraction, Fraction]:
    """(fixed, each) ps of times of `least`, `least` + 1, ... units. Raises InconclusiveError: unpriced, or not even."""
    words = dict.fromkeys(words for time in times for words in time.unpriced)
    seconds = [time.seconds * PS for time in times if time.seconds is not None]
    if len(seconds) < len(times):
        raise InconclusiveError("; ".join(words))
    each = seconds[1] - seconds[0]
    if any(later - earlier != each for earlier, later in itertools.pairwise(seconds)):
        raise InconclusiveError("what ranks exchange does not grow evenly with the tokens of a step: not simulated")
    return seconds[0] - least * each, each
