"""The transfers that a log tells, part by part: a part is one line of it, or one rank of a scrape.

The readers of `scenarios.observations` sum over lines; an audit also looks at each, since sizes of one line bound the
layers more closely than a sum does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from fleet.errors import DescriptionError
from scenarios.observations import Observation, Reading, nixl, nsight, read_observations, trtllm_csv, vllm_log
from scenarios.observations.lines import Line, lines_of, opened
from scenarios.observations.observation import MIB, Interval, printed
from scenarios.observations.registry import HEAD, MOST_KEPT, marks, read_lines

MOST_PARTS = 100_000
_HEADS = ("KV Transfer metrics:", "descriptors of total size")
_POST = re.compile(r"Avg post time \(ms\)=([0-9.]{1,40})")
_NAMED = {"nvlink": ("nvlink", "cuda_ipc")}
"""Words by which a log says that it goes over a kind of link (UCX names its transport over NVLink so)."""
_SPELLED = (b"nvlink", b"NVLink", b"NVLINK", b"cuda_ipc")
_THROUGHPUT = re.compile(r"Throughput \(MB/s\)=([0-9.]{1,40})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One line or rank. `post` is the part of `seconds` that went into posting, `stated_rate` what the line divides."""

    seen: Observation
    post: Interval | None = None
    stated_rate: Interval | None = None

    @property
    def rate(self) -> Interval | None:
        """Bytes per second of a transfer, the mean over its time; None where bytes or time are not told, or 0."""
        return _per(self.seen.bytes, self.seen.seconds)

    @property
    def moving_rate(self) -> Interval | None:
        """The same with the time of posting taken off; None where it is not told, or as long as the transfer."""
        if self.post is None or self.seen.seconds is None:
            return None
        rest = self.seen.seconds - self.post
        return _per(self.seen.bytes, rest) if rest.low > 0 else None

    @property
    def where(self) -> str:
        """Its lines, rank and kind, for messages."""
        seen = self.seen
        line = f"line {seen.lines[0]}" if seen.lines else ""
        way = f"{seen.kind} {seen.src or '?'} -> {seen.dst or '?'}" if seen.kind else ""
        return ", ".join(word for word in (line, seen.rank, seen.side, way) if word) or seen.source


def _per(size: Interval | None, time: Interval | None) -> Interval | None:
    if size is None or time is None or time.low <= 0 or size.high <= 0:
        return None
    return Interval(size.low / time.high, size.high / time.low)


@dataclass(frozen=True, kw_only=True, slots=True)
class Told:
    """A whole log: its reading, its parts, and the kinds of link that its words name, each with its first line."""

    reading: Reading
    parts: list[Part]
    named: dict[str, int]


def read_parts(path: str, version: str | None) -> Told:
    """A file taken apart. DescriptionError as `read_observations` raises it."""
    if path == "-" or not os.path.isdir(path):
        source = "<stdin>" if path == "-" else path
        with opened(path) as file:
            head = file.read(HEAD)
            whole = next((binary for binary in (nsight, trtllm_csv) if binary.matches(head)), None)
            if whole is None:
                kept: list[Line] = []
                named: dict[str, int] = {}
                lines = lines_of(file, source, head, (*marks(), *_SPELLED))
                reading = read_lines(_keeping(lines, kept, named), source, version)
                return Told(reading=reading, parts=_parts(reading, kept), named=named)
            if not os.path.isfile(path):
                raise DescriptionError.at(source, "", f"is {whole.NAME}, which is read from a file only")
    reading = read_observations(path, version=version)
    return Told(reading=reading, parts=_parts(reading, []), named={})


def _keeping(lines: Iterable[Line], kept: list[Line], named: dict[str, int]) -> Iterator[Line]:
    """Every line; those of transfers are kept. The registry ends a file of too many before this holds more than it."""
    size = 0
    for line in lines:
        text = line.text
        # Most lines of a log have neither, and gigabytes of them go by here.
        known = any(head in text for head in _HEADS) or ("=" in text and vllm_log.is_piece(text))
        if known and size < MOST_KEPT:
            kept.append(line)
            size += len(text)
        for kind, words in _NAMED.items():
            if kind not in named and any(word in text.lower() for word in words):
                named[kind] = line.number
        yield line


def _parts(reading: Reading, lines: Sequence[Line]) -> list[Part]:
    """One a line where lines tell transfers, else one an observation."""
    heads = [index for index, line in enumerate(lines) if any(head in line.text for head in _HEADS)]
    reader = {vllm_log.NAME: vllm_log, nixl.NAME: nixl}.get(reading.format)
    if reader is None or not heads or len(heads) > MOST_PARTS:
        return [Part(seen=one) for one in reading.observations]
    found = []
    for first, end in zip(heads, [*heads[1:], len(lines)], strict=True):
        group = [line for at, line in enumerate(lines[first:end]) if line.number <= lines[first].number + at]
        if " Posted Xfer with" in group[0].text:
            continue
        for one in reader.read(group, "", None).observations:
            found.append(_with_times(one, vllm_log.plain(" ".join(line.text for line in group))))
    return found


def _with_times(one: Observation, text: str) -> Part:
    """What the readers leave out: the time of posting, and the rate that the line states, whose parts may disagree."""
    post, rate = _POST.search(text), _THROUGHPUT.search(text)
    count = one.transfers.low if one.transfers is not None else Fraction(0)
    return Part(
        seen=one,
        post=None if post is None or (each := _three(post[1], Fraction(1, 1000))) is None else each.times(count),
        stated_rate=None if rate is None else _three(rate[1], Fraction(MIB)),
    )


def _three(text: str, unit: Fraction) -> Interval | None:
    """A figure rounded to 3 places, of which zeros at the end are not printed; None where it is no number."""
    whole, _, places = text.rstrip(".").partition(".")
    if not whole and not places:
        return None
    try:
        return printed(f"{whole}.{places:0<3}", unit)
    except ValueError:
        return None
