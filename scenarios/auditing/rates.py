"""Rates of transfers beside those of the links and memories of the shipped catalog: what cannot be, what it was not."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from fleet.machine import Fleet
from scenarios.auditing.parts import Part
from scenarios.observations.observation import Interval, decimals

Document = dict[str, Any]
NOT_AT_ALL = Fraction(1, 10)
"""A transfer at less than a tenth of the slowest link of a kind did not go at that link's rate (policy)."""
_WIRES = ("nvlink", "c2c", "xgmi", "pcie", "rdma", "infiniband", "roce", "ethernet")
_LESS = Fraction(99_999, 100_000)
"""Rates are told with 6 digits at least."""


@dataclass(frozen=True, slots=True)
class Known:
    """Rates in bytes per second: of links by kind (slowest, fastest), and of the fastest memory of a device."""

    links: tuple[tuple[str, int, int], ...]
    memory: int
    source: str

    @property
    def fastest(self) -> tuple[str, int]:
        """The kind and rate of the fastest link."""
        return max(((kind, high) for kind, _, high in self.links), key=lambda pair: pair[1])


@lru_cache(maxsize=1)
def catalog_rates() -> Known:
    """Those of every shipped fleet and card."""
    from fleet.catalog import catalog_names
    from fleet.catalog.listing import listed
    from fleet.load import load_fleet

    fleets = [load_fleet(name) for name in catalog_names()]
    cards = [row["bandwidth_bytes_per_s"] or 0 for row in listed()[1]]
    return _known(fleets, max(cards, default=0), "the shipped fleets")


def _known(fleets: list[Fleet], memory: int, source: str) -> Known:
    rates: dict[str, list[int]] = {}
    for link in (link for fleet in fleets for link in fleet.links):
        if link.kind in _WIRES and link.bandwidth.value:
            rates.setdefault(link.kind, []).append(link.bandwidth.value)
    links = tuple((kind, min(found), max(found)) for kind, found in sorted(rates.items()))
    own = [m.bandwidth.value or 0 for fleet in fleets for device in fleet.devices for m in device.memories]
    return Known(links, max([memory, *own]), source)


def rate_document(part: Part, known: Known) -> Document | None:
    """What a part's rate says of each kind of link; None where it has no rate."""
    rate, moving = part.rate, part.moving_rate
    if rate is None and part.seen.rates is None:
        return None
    fastest = _fastest(part)
    return {
        "where": part.where,
        "bytes_per_s": decimals(rate if rate is not None else part.seen.rates),
        "moving_bytes_per_s": decimals(moving),
        "seconds_per_descriptor": _per_descriptor(part),
        "links": [_link(kind, low, high, rate or part.seen.rates, moving, fastest) for kind, low, high in known.links],
    }


def _fastest(part: Part) -> Fraction:
    """What its fastest transfer ran at, or more: the mean's lower end, or the fastest told, less its rounding."""
    size, time, told = part.seen.bytes, part.seen.seconds, part.seen.rates
    mean = size.low / time.high if size is not None and time is not None and time.high > 0 else Fraction(0)
    return max(mean, told.high * _LESS if told is not None else Fraction(0))


def _link(
    kind: str, low: int, high: int, rate: Interval | None, moving: Interval | None, fastest: Fraction
) -> Document:
    best = max((each.high for each in (rate, moving) if each is not None), default=Fraction(0))
    if fastest > high:
        word = "too fast"
    elif best < low * NOT_AT_ALL:
        word = "far below"
    else:
        word = "possible"
    return {
        "kind": kind, "slowest_bytes_per_s": low, "fastest_bytes_per_s": high, "standing": word,
        "share_of_slowest": float(best / low),
    }  # fmt: skip


def _per_descriptor(part: Part) -> float | None:
    """Mean seconds of a descriptor, from the middle of what was printed."""
    time, pieces = part.seen.seconds, part.seen.descriptors
    return (
        None if time is None or pieces is None or pieces.low <= 0 else float((time.low + time.high) / (2 * pieces.low))
    )


def rate_findings(part: Part, known: Known) -> list[Document]:
    """What cannot be true of a part's times and rates: severity `impossible` or `contradiction`."""
    found: list[Document] = []
    fastest, (kind, most) = _fastest(part), known.fastest
    inside = part.seen.kind in ("d2d", "h2h")
    if fastest > known.memory:
        words = f"{_gb(fastest)} or more: faster than the fastest memory of {known.source} ({_gb(known.memory)})"
        found.append(finding("RATE_ABOVE_MEMORY", "impossible", words, part))
    elif fastest > most and not inside:
        words = f"{_gb(fastest)} or more: faster than any link of {known.source} ({kind}, {_gb(most)}); within a device"
        found.append(finding("RATE_ABOVE_LINKS", "impossible", f"{words} only", part))
    seconds, size, post = part.seen.seconds, part.seen.bytes, part.post
    if seconds is not None and seconds.high == 0 and size is not None and size.low > 0:
        found.append(finding("NO_TIME", "impossible", "bytes moved in no time at all", part))
    if post is not None and seconds is not None and post.low > seconds.high:
        words = "posting took longer than the whole transfer, of which it is a part"
        found.append(finding("POST_ABOVE_TRANSFER", "contradiction", words, part))
    stated, rate = part.stated_rate, part.rate
    if stated is not None and rate is not None and (stated.high < rate.low or stated.low > rate.high):
        told, given = _apart(stated, rate)
        words = f"it states {told}, and its own bytes and time give {given}: edited, of two lines, or"
        found.append(finding("RATE_CONTRADICTS", "warning", f"{words} of a version that divides otherwise", part))
    return found


def claim_finding(part: Part, known: Known, claimed: str) -> Document | None:
    """Whether a part can have run at the rate of the link that it is said to have gone over."""
    told = rate_document(part, known)
    if told is None:
        return None
    link = next(row for row in told["links"] if row["kind"] == claimed)
    if link["standing"] == "possible":
        return None
    words = _gb(told["bytes_per_s"][1])
    if link["standing"] == "too fast":
        words += f": faster than the fastest {claimed} ({_gb(link['fastest_bytes_per_s'])}): not {claimed}"
    else:
        moving = told["moving_bytes_per_s"]
        words += f", {_gb(moving[1])} with the time of posting taken off" if moving else ""
        slowest = _gb(link["slowest_bytes_per_s"])
        words += f": {share_words(link)} of the slowest {claimed} ({slowest}) at most: this was not {claimed} at work"
    return finding("NOT_THIS_LINK", "impossible", words, part)


def share_words(link: Document) -> str:
    """`2.4 %`."""
    return f"{100 * link['share_of_slowest']:.2g} %"


def finding(code: str, severity: str, message: str, part: Part | None = None) -> Document:
    """One finding of an audit."""
    lines = list(part.seen.lines[:5]) if part is not None else []
    return {
        "code": code,
        "severity": severity,
        "where": part.where if part else None,
        "message": message,
        "lines": lines,
    }


def _gb(rate: Fraction | int | float, digits: int = 4) -> str:
    return f"{float(rate) / 1e9:,.{digits}g} GB/s"


def _apart(one: Interval, other: Interval) -> tuple[str, str]:
    """The ends of two ranges that face each other, with as many digits as tell them apart."""
    below = one.high < other.low
    ends = (one.high, other.low) if below else (one.low, other.high)
    words = ("at most", "or more") if below else ("or more", "at most")
    for digits in range(4, 18):
        told = [_gb(end, digits) for end in ends]
        if told[0] != told[1]:
            break
    return f"{told[0]} {words[0]}", f"{told[1]} {words[1]}"
