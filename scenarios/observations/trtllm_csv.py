"""TensorRT-LLM's times of cache transfers: `rank_R_send.csv` and `rank_R_recv.csv`, a file or the folder of them.

In newer versions the name begins with that of an instance, `INSTANCE_R_send.csv`, and more columns stand before.

A row is a request; each three columns `Delay(ms),Duration(ms),Bandwidth(Gbps)` are one transfer of it, in Gb/s of 1e9
bits. No column says bytes, and bytes are never made of speed and time. Figures are printed with 6 digits.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator
from fractions import Fraction

from fleet.errors import DescriptionError, Fault
from scenarios.observations.lines import Line, lines_of, opened
from scenarios.observations.observation import Interval, Observation, Reading, counted, summed

NAME = "TensorRT-LLM send/recv CSV"
ENGINE = "trtllm"
HEAD = 4096
MOST_FILES = 2048
MOST_ROWS = 1_000_000
FILE = re.compile(r"(?:rank|[0-9A-Fa-f][0-9A-Fa-f-]{7,63})_([0-9]{1,6})_(send|recv)\.csv")
"""Of newer versions the name of an instance stands where `rank` stood."""
_HEADER = re.compile(r'"?RequestID"?\s*([,;\t])')
_SIDES = {"send": "prefill", "recv": "decode"}
_BLIND = ("bytes: the files hold times and rates only", "descriptors")


def matches(head: bytes) -> bool:
    """Whether the first line names a request and a rate in Gb/s."""
    first = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0].decode("utf-8", errors="replace")
    return _HEADER.match(first) is not None and "(Gbps)" in first


def read(path: str, source: str, version: str | None) -> Reading:
    """One file. Its rank and side are those of its name; any other name leaves them unknown."""
    warnings: list[str] = []
    return _reading([_file(path, source, version, warnings)], warnings)


def read_folder(path: str, version: str | None) -> Reading:
    """Every rank's files of a folder, and no others. DescriptionError with the faults of all files."""
    try:
        names = sorted(name for name in os.listdir(path) if FILE.fullmatch(name))
    except OSError as error:
        raise DescriptionError.at(path, "", f"cannot be read: {error.strerror or error}") from error
    if not names:
        message = "is a folder without rank_R_send.csv or rank_R_recv.csv (TensorRT-LLM); name a file"
        raise DescriptionError.at(path, "", message)
    if len(names) > MOST_FILES:
        raise DescriptionError.at(path, "", f"{len(names):,} files of ranks; at most {MOST_FILES:,} are read")
    found: list[Observation] = []
    faults: list[Fault] = []
    warnings: list[str] = []
    for name in names:
        full = os.path.join(path, name)
        try:
            found.append(_file(full, full, version, warnings))
        except DescriptionError as error:
            faults += error.faults
    if faults:
        raise DescriptionError(faults)
    return _reading(found, warnings)


def _reading(found: list[Observation], warnings: list[str]) -> Reading:
    return Reading(format=NAME, engine=ENGINE, observations=tuple(found), blind=_BLIND, warnings=tuple(warnings))


def _file(path: str, source: str, version: str | None, warnings: list[str]) -> Observation:
    named = FILE.fullmatch(os.path.basename(path))
    with opened(path) as file:
        head = file.read(HEAD)
        lines = (line for line in lines_of(file, source, head) if line.text.strip())
        durations, rates = _rows(lines, source, warnings)
    fastest = Interval(min(r.low for r in rates), max(r.high for r in rates)) if rates else None
    return Observation(
        source=source, engine=ENGINE, version=version, side=_SIDES[named[2]] if named else None,
        rank=named[1] if named else None, transfers=Interval.exact(len(durations)), rates=fastest,
        seconds=summed(durations) or Interval.exact(0), lines=(1,),
    )  # fmt: skip


def _rows(lines: Iterator[Line], source: str, warnings: list[str]) -> tuple[list[Interval], list[Interval]]:
    """Seconds, and bytes per second, of every transfer."""
    header = next(lines, None)
    separator = _separator(header.text if header else "")
    names = _cells(header, separator) if header else []
    times = [i for i, name in enumerate(names) if name in ("Duration(ms)", "Duration")]
    speeds = [i for i, name in enumerate(names) if name == "Bandwidth(Gbps)"]
    steps = {speed - time for time, speed in zip(times, speeds, strict=False)}
    if not times or len(times) != len(speeds) or len(steps) > 1 or min(steps) < 1:
        told = ", ".join(names[:12])[:200]
        message = f"columns of another version: {told}; Duration(ms) and Bandwidth(Gbps) are wanted, in pairs"
        raise DescriptionError.at(source, "", message, 1, 1)
    faults: list[Fault] = []
    durations: list[Interval] = []
    rates: list[Interval] = []
    for count, line in enumerate(lines):
        if count >= MOST_ROWS:
            raise DescriptionError.at(source, "", f"more than {MOST_ROWS:,} rows", line.number, 1)
        try:
            cells = _cells(line, separator)
            if cells == names:
                continue
            _row(cells, line, (times, speeds), (durations, rates), warnings)
        except ValueError as error:
            faults.append(Fault(source=source, field="", message=str(error), line=line.number, column=1))
    if faults:
        raise DescriptionError(faults)
    return durations, rates


def _separator(header: str) -> str:
    """What stands between cells: a comma, unless a spreadsheet wrote the file anew."""
    found = _HEADER.match(header)
    return found[1] if found else ","


def _cells(line: Line, separator: str) -> list[str]:
    """The cells of a row, quotes taken off; where cells are not parted by commas, a comma is a decimal point.

    Raises ValueError for quotes that do not end.
    """
    try:
        (cells,) = csv.reader([line.text], delimiter=separator, strict=True)
    except (csv.Error, ValueError) as error:
        raise ValueError(f"cells that cannot be told apart ({error}); the row is cut, or of another version") from error
    point = separator != ","
    return [cell.strip().replace(",", ".") if point else cell.strip() for cell in cells]


def _row(
    cells: list[str],
    line: Line,
    columns: tuple[list[int], list[int]],
    sums: tuple[list[Interval], list[Interval]],
    warnings: list[str],
) -> None:
    """A row may hold fewer transfers than the header, or more: rows of several ranks repeat the last columns."""
    times, speeds = columns
    step, last = speeds[0] - times[0], len(cells) - 1
    repeats = (times[0], step) == (2, 1)
    ends = list(range(3, last + 1, 3)) if repeats else [i for i in speeds if i <= last]
    if not cells[0] or not ends or (repeats and last != ends[-1]):
        raise ValueError(f"{len(cells)} cells: no request with whole transfers; the row is cut, or of another version")
    for end in ends:
        sums[0].append(_six(cells[end - step], Fraction(1, 1000)))
        if cells[end].lower() in ("inf", "nan", "-nan"):
            if len(warnings) < 20:
                warnings.append(f"line {line.number}: a rate of {cells[end]}; left out")
            continue
        sums[1].append(_six(cells[end], Fraction(10**9, 8)))


def _six(text: str, unit: Fraction) -> Interval:
    """A figure of 6 significant digits, half a unit of the last either way at most."""
    try:
        value = counted(text, unit)
    except ValueError as error:
        raise ValueError(f"{text[:40]!r} is no figure; take the row out") from error
    return Interval(value.low * (1 - Fraction(5, 10**6)), value.high * (1 + Fraction(5, 10**6)))
