"""What a plan expects of one request's transfer, and how much of an observation that makes: requests, pairs, units."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fleet.errors import DescriptionError
from scenarios.observations.observation import Interval, Observation, Reading, summed

Document = dict[str, Any]

PLANS_OF = {
    "vllm-nixl": ("vllm-nixl",),
    "sglang": ("sglang",),
    "trtllm": ("trtllm",),
    "mooncake": ("mooncake", "sglang"),
    "nixl": ("vllm-nixl", "sglang", "trtllm"),
}
"""The byte rules of plans that a source can be set beside; sources that are not here see copies of any program."""
_WAY = {"pull": "read", "push": "write"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """One request's handoff. `pairs` maps (src, dst) to (bytes, copies, seconds) of one request; None = unknown."""

    engine: str | None
    version: str | None
    direction: str | None
    unit: str
    units: int
    pairs: dict[tuple[str, str], tuple[int | None, int | None, Fraction | None]]
    descriptors: bool
    states: bool

    @property
    def bytes(self) -> int | None:
        """Of one request over all pairs."""
        return _added(nbytes for nbytes, _, _ in self.pairs.values())

    @property
    def copies(self) -> int | None:
        """Descriptors of one request, where the engine does not merge them."""
        return _added(copies for _, copies, _ in self.pairs.values()) if self.descriptors else None

    @property
    def unit_bytes(self) -> int | None:
        """Bytes of one block (or page) of one pair, where all pairs move alike and nothing but blocks is moved."""
        sizes = {nbytes for nbytes, _, _ in self.pairs.values()}
        size = next(iter(sizes)) if len(sizes) == 1 else None
        return size // self.units if size and self.units and not self.states and size % self.units == 0 else None

    def transfers_of_request(self, engine: str) -> int:
        """What a source counts a request as: a read of each pair, or, on SGLang, a sending rank."""
        return len({src for src, _ in self.pairs}) if engine == "sglang" else len(self.pairs)


def _added(values: Any) -> int | None:
    told = list(values)
    return None if any(value is None for value in told) else sum(told)


def expected_of(plan: Document) -> Expected:
    """The plan's handoff of one request. DescriptionError for a plan that was not admitted, or moves nothing."""
    if plan["verdict"] != "admitted":
        raise DescriptionError.at(
            "compare", "verdict", f"the plan was {plan['verdict']}; only an admitted plan is compared"
        )
    transfer = plan.get("transfer") or {}
    batch = int(((plan.get("inputs") or {}).get("workload") or {}).get("batch") or 1)
    pairs: dict[tuple[str, str], tuple[int | None, int | None, Fraction | None]] = {}
    states = False
    for row in plan["waybill"]:
        if row["phase"] != "handoff":
            continue
        before = pairs.get((row["src"], row["dst"]), (0, 0, Fraction(0)))
        seconds = None if row.get("seconds") is None else Fraction(row["seconds"]) / batch
        pairs[row["src"], row["dst"]] = (
            _plus(before[0], row["bytes"], batch),
            _plus(before[1], row["copies"], batch),
            None if before[2] is None or seconds is None else before[2] + seconds,
        )
        states = states or bool((row.get("part") or {}).get("is_state"))
    if not pairs:
        raise DescriptionError.at("compare", "waybill", "the plan hands nothing over; admit a request with new tokens")
    return Expected(
        engine=transfer.get("engine"), version=transfer.get("version"), direction=transfer.get("direction"),
        unit=str(transfer.get("unit") or "block"), units=_units(transfer), pairs=pairs,
        descriptors=transfer.get("descriptors") is not None, states=states,
    )  # fmt: skip


def _plus(before: int | None, value: int | None, batch: int) -> int | None:
    return None if before is None or value is None else before + value // batch


def _units(transfer: Document) -> int:
    size = int(transfer.get("unit_tokens") or 1)
    prompt, hit = int(transfer.get("prompt_tokens") or 0), int(transfer.get("prefix_hit_tokens") or 0)
    return -(-prompt // size) - hit // size


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """The sums over all observations that tell of the plan's direction; None = the source does not say."""

    transfers: int | None
    bytes: Interval | None
    descriptors: Interval | None
    seconds: Interval | None
    rates: Interval | None
    failed: int | None
    requests_unknown: bool
    parts: int
    """How many observations (ranks, engines) were summed."""
    words: tuple[str, ...] = ()


def seen_of(reading: Reading, expected: Expected) -> Seen | None:
    """Ranks summed once: where both ends recorded a transfer, decode's word is taken. None where nothing is told."""
    told, words = list(reading.observations), []
    if {"prefill", "decode"} <= {one.side for one in told}:
        told = [one for one in told if one.side == "decode"]
        words.append("both sides recorded the transfers: decode's record is taken, once")
    way = _WAY.get(expected.direction or "")
    if way and any(one.direction for one in told):
        others = [one for one in told if one.direction not in (way, None)]
        told = [one for one in told if one.direction in (way, None)]
        if others:
            words.append(
                f"{len(others)} agents moved bytes by a {others[0].direction}: the plan's engine transfers by a {way}"
            )
    if not told:
        return None
    counts = summed(one.transfers for one in told)
    whole = counts.whole() if counts is not None and counts.is_exact else None
    failed = [one.failed for one in told if one.failed is not None]
    return Seen(
        transfers=whole[0] if whole else None, bytes=summed(one.bytes for one in told),
        descriptors=summed(one.descriptors for one in told), seconds=summed(one.seconds for one in told),
        rates=_hull(told), failed=sum(failed) if failed else None,
        requests_unknown=any(one.requests_unknown for one in told), parts=len(told), words=tuple(words),
    )  # fmt: skip


def _hull(told: list[Observation]) -> Interval | None:
    rates = [one.rates for one in told if one.rates is not None]
    return Interval(min(rate.low for rate in rates), max(rate.high for rate in rates)) if rates else None


def requests_in(seen: Seen, expected: Expected, engine: str, asked: int | None) -> tuple[Fraction | None, str]:
    """(requests that the observation covers, in words where that comes from); None where nothing says it.

    A number of transfers that does not divide among pairs of ranks gives a fraction where all pairs move alike.
    """
    if asked is not None:
        return Fraction(asked), "--requests"
    a_request = expected.transfers_of_request(engine)
    if seen.transfers is not None and not seen.requests_unknown:
        requests = Fraction(seen.transfers, a_request)
        alike = len({pair[:2] for pair in expected.pairs.values()}) == 1
        if requests.denominator == 1 or alike:
            return requests, f"{seen.transfers:,} transfers, {a_request} a request"
        return None, f"{seen.transfers:,} transfers do not divide by {a_request} unlike pairs of ranks"
    nbytes = expected.bytes
    if not nbytes or seen.bytes is None:
        return None, "the source counts no transfers of requests; --requests N says how many"
    low, high = math.ceil(seen.bytes.low / nbytes), math.floor(seen.bytes.high / nbytes)
    if (seen.bytes.high - seen.bytes.low) * 10 > nbytes:
        return None, "its rounding is a tenth of a request or more, so any number fits; --requests N says how many"
    if low > high:
        return Fraction(max(low, 1)), "the source counts no requests, and no whole number of them has these bytes"
    return Fraction(low), f"the source counts no requests: {low:,} is the whole number that has these bytes"
