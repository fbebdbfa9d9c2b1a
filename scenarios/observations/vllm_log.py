"""vLLM's log: what its NIXL connector says of transfers, and what the engine says of its memory at start.

`KV Transfer metrics:` pools all ranks of an engine over one interval of logging: the number of transfers is that of
ranks, averages are of one rank's transfer, `MB` is 2^20 (vllm-project/vllm#41230). Sizes and times are rounded to 3
places whatever is printed of them, descriptors to 1. Its throughput is no wall clock (vllm-project/vllm#48224): it is
not read. NIXL's lines are recorded where blocks are read, on decode; Mooncake's, which alone tell of failed receives,
where they are written, on prefill, in runs of neighbouring blocks; whether one of its transfers is one request's was
not read. Other connectors print other fields under the same
words: those lines carry no handoff. Several connectors in one process stand in one line, each as a Python dict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from fleet.errors import DescriptionError, Fault
from scenarios.observations.lines import Line, without_repeats
from scenarios.observations.observation import MIB, Interval, Observation, Reading, printed, summed

NAME = "vLLM log"
ENGINE = "vllm-nixl"
_HEAD = "KV Transfer metrics:"
_FIELDS = {
    "transfers": re.compile(r"Num successful transfers=([0-9A-Za-z.+-]{1,64}+)(?!,[0-9])"),
    "size": re.compile(r"Avg (?:MB|[KMG]iB) per transfer=([0-9A-Za-z.+-]{1,64}+)(?!,[0-9])"),
    "time": re.compile(r"Avg xfer time \(ms\)=([0-9A-Za-z.+-]{1,64}+)(?!,[0-9])"),
    "descriptors": re.compile(r"Avg number of descriptors=([0-9A-Za-z.+-]{1,64}+)(?!,[0-9])"),
}
_PAIR = re.compile(r"'([A-Za-z0-9 _()/.-]{1,60})': (?:np\.[a-z0-9_]{1,20}\()?([0-9A-Za-z.+-]{1,64})\)?")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,60})=\{([^{}]{0,4000})\}")
_NAMED = re.compile(r"([A-Za-z_][A-Za-z0-9_ ()/.-]{0,60})=")
_WRITTEN = "Num failed recvs="
_CUT = re.compile(r"Avg [A-Za-z]{1,3} per transfer=[0-9.]+$")
_FAILED = re.compile(r"Num failed (?:transfers|recvs)=([0-9A-Za-z.+-]{1,64}+)(?!,[0-9])")
_UNIT = re.compile(r"Avg ([A-Za-z]{1,8}) per transfer=")
_SIZES = {"MB": MIB, "KiB": 1 << 10, "MiB": MIB, "GiB": 1 << 30}
"""MB is 2^20 there; what a KB or GB of another version would be was not read."""
_PLACES = {"size": 3, "time": 3, "descriptors": 1}
_UNITS = {"size": Fraction(MIB), "time": Fraction(1, 1000), "descriptors": Fraction(1)}
_SIZING = {
    "available_bytes": (re.compile(r"Available KV cache memory: ([0-9.]{1,40}) GiB"), 1 << 30),
    "pool_tokens": (re.compile(r"GPU KV cache size: ([0-9,]{1,40}) tokens"), 1),
    "request_tokens": (re.compile(r"Maximum concurrency for ([0-9,]{1,40}) tokens per request"), 1),
    "max_concurrency": (re.compile(r"Maximum concurrency for [0-9,]{1,40} tokens per request: ([0-9.]{1,40})x"), 1),
    "block_tokens": (re.compile(r"Setting attention block size to ([0-9]{1,40}) tokens"), 1),
    "weights_bytes": (re.compile(r"[Mm]odel loading took ([0-9.]{1,40}) Gi?B"), 1 << 30),
}
_VERSION = re.compile(r"(?:LLM engine \(v|vLLM (?:API server )?version )([0-9][0-9A-Za-z.+]{0,40})")
_RANK = re.compile(r"\(([A-Za-z][A-Za-z0-9_]{0,40})(?: pid=[0-9]{1,10})?\)")
_PIECES = ("Avg post time (ms)=", "P90 post time (ms)=", "P90 xfer time (ms)=", "Throughput (MB/s)=")
MARKS = (
    *_PIECES,
    _HEAD, "Avg xfer time (ms)=", " per transfer=", "Avg number of descriptors=", "Num failed transfers=",
    "Available KV cache memory:", "GPU KV cache size:", "Maximum concurrency for",
    "Setting attention block size to", "odel loading took", "LLM engine (v", "vLLM API server version", "vLLM version ",
)  # fmt: skip


def knows(text: str) -> bool:
    """Whether the line has a transfer, a piece of a wrapped one, or a figure of memory."""
    if _HEAD in text or _VERSION.search(text):
        return True
    return any(found.search(text) for found, _ in _SIZING.values())


def is_piece(text: str) -> bool:
    """A part of a transfer line that was wrapped onto several."""
    return any(piece in text for piece in _PIECES) or any(found.search(text) for found in (*_FIELDS.values(), _FAILED))


@dataclass(slots=True)
class _Total:
    """The sums of one rank's lines."""

    parts: list[tuple[Interval | None, ...]] = field(default_factory=list)
    failed: int | None = None
    lines: list[int] = field(default_factory=list)


def read(lines: Sequence[Line], source: str, version: str | None) -> Reading:
    """Sums by process, each line once; `sizing` where a figure is printed with one value only."""
    faults: list[Fault] = []
    warnings: list[str] = []
    totals: dict[str | None, _Total] = {}
    written: dict[bool, int] = {}
    for number, text in _transfers(lines, warnings):
        if (others := _others(text)) is not None:
            warnings.append(f"line {number}: KV Transfer metrics of another connector ({others}): no handoff, left out")
            continue
        written.setdefault(_WRITTEN in text, number)
        rank = _RANK.search(text.partition(_HEAD)[0])
        if _CUT.search(text):
            warnings.append(f"line {number} ends behind a size: its last digits may be cut")
        _add(totals.setdefault(rank[1] if rank else None, _Total()), number, text, source, faults)
    if len(written) > 1:
        message = f"lines of NIXL's connector ({written[False]}) and of Mooncake's ({written[True]}): keep those of one"
        faults.append(Fault(source=source, field="", message=message, line=min(written.values()), column=1))
    if faults:
        raise DescriptionError(faults)
    sizing = _sizing(lines, warnings)
    version = version or _version(lines, warnings)
    pushed = True in written
    told = [_observation(source, version, rank, total) for rank, total in totals.items()]
    merged = ("descriptors: Mooncake merges neighbouring blocks",) if pushed else ()
    return Reading(
        format=NAME,
        engine="mooncake" if pushed else ENGINE,
        observations=tuple(
            replace(one, engine="mooncake", side="prefill", descriptors=None, requests_unknown=True) if pushed else one
            for one in told
        ),
        blind=(
            f"transfers of another connector than {'Mooncake' if pushed else 'NIXL'}'s",
            "transfers before the log begins or after it ends",
            *merged,
        ),
        sizing=sizing,
        warnings=tuple(warnings),
    )


def plain(text: str) -> str:
    """The line with fields as `name=value`: dicts of Python are taken apart, of several that which tells transfers."""
    head, mark, body = text.partition(_HEAD)
    if "': " not in body:
        return text
    inside = [found[2] for found in _INSIDE.finditer(body) if "'Num successful transfers'" in found[2]]
    body = inside[0] if len(inside) == 1 else body
    return head + mark + " " + ", ".join(f"{name}={value}" for name, value in _PAIR.findall(body))


def _others(text: str) -> str | None:
    """The first fields of a line that has none of a transfer's; None of any other line, a cut one too."""
    body = text.partition(_HEAD)[2]
    names = [name.strip() for name in _NAMED.findall(body)]
    if not names or is_piece(body) or any(piece.rstrip("=") in names for piece in _PIECES):
        return None
    return ", ".join(names[:3])


def _version(lines: Sequence[Line], warnings: list[str]) -> str | None:
    """The version that the log prints, where it prints one."""
    told = {found[1].rstrip("."): line.number for line in lines if (found := _VERSION.search(line.text))}
    if len(told) > 1:
        warnings.append("several versions in one log: " + ", ".join(f"{name} (line {n})" for name, n in told.items()))
    return next(iter(told)) if len(told) == 1 else None


def _transfers(lines: Sequence[Line], warnings: list[str]) -> list[tuple[int, str]]:
    """Each transfer line with the pieces of it that were wrapped onto the lines below, copies of one left out."""
    found: list[tuple[int, str]] = []
    last = 0
    for line in lines:
        if _HEAD in line.text:
            found.append((line.number, plain(line.text)))
        elif found and line.number == last + 1 and is_piece(line.text):
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.text.strip()}")
        else:
            continue
        last = line.number
    return without_repeats(found, warnings)


def _add(total: _Total, number: int, text: str, source: str, faults: list[Fault]) -> None:
    if text.count("Num successful transfers=") > 1:
        message = (
            "transfers of two lines or of several connectors run together: take the line out, or keep those of one"
        )
        faults.append(Fault(source=source, field="", message=message, line=number, column=1))
        return
    told = {name: pattern.search(text) for name, pattern in _FIELDS.items()}
    missing = [name for name in ("transfers", "size") if told[name] is None]
    unit = _UNIT.search(text)
    if unit is not None and unit[1] not in _SIZES:
        message = f"sizes in {unit[1]}: whether 2^10 or 1,000 to the power is not known; MB, KiB, MiB and GiB are read"
        faults.append(Fault(source=source, field="", message=message, line=number, column=1))
        return
    if missing:
        what = " and ".join(
            {"transfers": "Num successful transfers", "size": "Avg MB per transfer"}[n] for n in missing
        )
        message = f"the line is cut: no {what}; its bytes are unknown: take the line out, or give all of it"
        faults.append(Fault(source=source, field="", message=message, line=number, column=1))
        return
    try:
        count = _count(told["transfers"])
        size, time, pieces = (_times(told[name], name, count) for name in ("size", "time", "descriptors"))
        for failed in _FAILED.finditer(text):
            total.failed = (total.failed or 0) + _count(failed)
    except ValueError as error:
        faults.append(Fault(source=source, field="", message=str(error), line=number, column=1))
        return
    total.parts.append((Interval.exact(count), size, time, pieces))
    total.lines.append(number)


def _count(found: re.Match[str] | None) -> int:
    text = found[1] if found else ""
    whole = text.removesuffix(".0")
    if not whole.isascii() or not whole.isdigit() or len(whole) > 12:
        raise ValueError(f"{text[:40]!r} is no number of transfers")
    return int(whole)


def _times(found: re.Match[str] | None, name: str, count: int) -> Interval | None:
    """An average times the number of transfers, in bytes, seconds or descriptors; None where it is not printed."""
    if found is None:
        return None
    text = found[1].rstrip(".")
    places = len(text.partition(".")[2])
    whole = text + ("." if "." not in text else "") + "0" * max(0, _PLACES[name] - places)
    named = _UNIT.match(found[0])
    try:
        return printed(whole, _SIZES[named[1]] if named is not None else _UNITS[name]).times(count)
    except ValueError as error:
        told = found[0].partition("=")[0]
        raise ValueError(f"{told} is {text[:40]!r}: no plain decimal number; take the line out") from error


def _observation(source: str, version: str | None, rank: str | None, total: _Total) -> Observation:
    transfers, size, time, pieces = (summed(column) for column in zip(*total.parts, strict=True))
    return Observation(
        source=source, engine=ENGINE, version=version, side="decode", rank=rank, transfers=transfers, bytes=size,
        descriptors=pieces, seconds=time, failed=total.failed, lines=tuple(total.lines[:20]),
    )  # fmt: skip


def _sizing(lines: Sequence[Line], warnings: list[str]) -> dict[str, Interval]:
    """What was printed with one value. Ranks, or two servers in one log, that print several leave it unknown."""
    values: dict[str, dict[str, list[int]]] = {}
    for line in lines:
        for name, (pattern, _) in _SIZING.items():
            found = pattern.search(line.text)
            if found is not None:
                values.setdefault(name, {}).setdefault(found[1].replace(",", "").rstrip("."), []).append(line.number)
    sizing = {}
    for name, told in values.items():
        where = ", ".join(f"{text} (line {numbers[0]})" for text, numbers in list(told.items())[:5])
        if len(told) > 1:
            warnings.append(f"{name} is printed with several values, {where}: which one counts is not said")
            continue
        text, unit = next(iter(told)), _SIZING[name][1]
        try:
            sizing[name] = printed(text, unit) if "." in text or unit > 1 else Interval.exact(int(text))
        except ValueError:
            warnings.append(f"{name}: {where} is no number")
    return sizing
