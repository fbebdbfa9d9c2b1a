"""What a question says of room: what is in use already, what the utilization is a share of, how many sequences.

Kept apart from `scenarios.wanted`, which reads the words; here they become a fleet, a basis and a batch.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet
from fleet.units import PS_PER_SECOND, UnitError, parse_seconds
from fleet.yaml_source import STDIN, nearest, read_text, shown_path
from planner.admit import Ask
from planner.ledger_bounds import BASES, Basis
from planner.request import MAX_COUNT

if TYPE_CHECKING:
    from fleet.readers.in_use import InUse
    from planner.solve import Wanting
    from scenarios.wanted import Wanted

_COUNT = re.compile(r"[0-9]{1,13}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """A question with its words on room applied. `inputs` and `warnings` are for the plan, `sequences` its answer."""

    ask: Ask
    inputs: dict[str, Any]
    warnings: tuple[str, ...] = ()
    sequences: dict[str, Any] | None = None
    solve: tuple[Wanting, Fraction | None] | None = None


def with_room(wanted: Wanted, ask: Ask, digest: str, defaults: list[str]) -> Room:
    """The question on the fleet as it is in use, with its basis and its batch. `digest` is the fleet file's.

    Raises DescriptionError with every fault.
    """
    basis = _basis(wanted)
    fleet, warnings, texts = _in_use(wanted, ask.fleet, digest)
    ask = replace(ask, fleet=fleet, share_of=basis)
    inputs: dict[str, Any] = {"utilization_of": basis} if wanted.utilization_of is not None else {}
    if texts:
        inputs["in_use"] = texts
    sequences = None
    if wanted.max_sequences is not None:
        ask, sequences = _sequences(wanted, ask, defaults)
    return Room(ask=ask, inputs=inputs, warnings=warnings, sequences=sequences, solve=_solve(wanted))


def _solve(wanted: Wanted) -> tuple[Wanting, Fraction | None] | None:
    """What is to be solved for; a link needs a time."""
    text, faults = wanted.solve, []
    if text is None and wanted.ttft is None:
        return None
    from planner.solve import WANTED

    target = None
    if wanted.ttft is not None:
        try:
            target = Fraction(parse_seconds(wanted.ttft), PS_PER_SECOND)
            if not target:
                raise UnitError("0 s is no time to first token; write e.g. 800 ms")
        except UnitError as error:
            faults.append(Fault(source=wanted.source, field="ttft", message=str(error)))
        if text is None:
            faults.append(Fault(source=wanted.source, field="ttft", message="is what --solve solves for; give both"))
    elif text == "link":
        words = "link needs a time to solve for; add --ttft, e.g. --ttft 800ms"
        faults.append(Fault(source=wanted.source, field="solve", message=words))
    found: Wanting | None = next((each for each in WANTED if each == text), None)
    if text is not None and found is None:
        words = f"{text[:40]!r} is unknown{nearest(text, WANTED)}; use {' or '.join(WANTED)}"
        faults.append(Fault(source=wanted.source, field="solve", message=words))
    if faults:
        raise DescriptionError(faults)
    return None if found is None else (found, target)


def _basis(wanted: Wanted) -> Basis:
    text = wanted.utilization_of
    for basis in BASES:
        if text in (None, basis):
            return basis
    words = (
        f"{str(text)[:40]!r} is unknown; use total (of the capacity) or free (of what the rest leaves for the cache)"
    )
    raise DescriptionError.at(wanted.source, "utilization_of", words)


def _in_use(wanted: Wanted, fleet: Fleet, digest: str) -> tuple[Fleet, tuple[str, ...], list[dict[str, Any]]]:
    paths = wanted.in_use or ()
    if not paths:
        return fleet, (), []
    if paths.count("-") > 1 or ("-" in paths and wanted.fleet == "-"):
        raise DescriptionError.at(
            wanted.source, "in_use", "only one text can come from stdin; give the others as files"
        )
    from planner.in_use import with_in_use

    readings = _readings(paths, {device.id for device in fleet.devices})
    fleet, told = with_in_use(fleet, readings, digest)
    texts = [
        {("stated" if reading.format == "stated" else "path"): path, "format": reading.format}
        | ({"plans": list(reading.plan_ids)} if reading.plan_ids else {})
        for path, reading in zip(paths, readings, strict=True)
    ]
    return fleet, told, texts


def _readings(paths: Sequence[str], devices: Collection[str]) -> list[InUse]:
    """Every text or statement, plans as checked documents. Raises DescriptionError with the faults of all of them."""
    from fleet.readers.in_use import read_in_use, read_stated
    from scenarios.documents import checked_document

    readings: list[InUse] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            if (stated := read_stated(path, devices)) is not None:
                readings.append(stated)
                continue
            there = path == "-" or Path(path).exists()
            if "=" in path and not there:
                name = path.rpartition("=")[0]
                words = f"{name[:64]!r} is no device of the fleet{nearest(name, sorted(devices))}"
                raise DescriptionError.at("command line", "--in-use", f"{words}; nor is there a file {path[:64]!r}")
            if not there and any(path == each or path.startswith((f"{each}:", f"{each} ")) for each in devices):
                words = f"{path[:64]!r} is no file; a device's use is written DEVICE=SIZE, e.g. {min(devices)}=12GiB"
                raise DescriptionError.at("command line", "--in-use", words)
            text = read_text(path)
            source = STDIN if path == "-" else path
            reading = read_in_use(text, shown_path(path))
            if reading.format == "plan":
                checked_document(text.encode(), source, ("plan", "admissions"))
            readings.append(reading)
        except DescriptionError as error:
            faults.extend(error.faults)
    if faults:
        raise DescriptionError(faults)
    return readings


def _sequences(wanted: Wanted, ask: Ask, defaults: list[str]) -> tuple[Ask, dict[str, Any]]:
    """The request for as many sequences as were asked, or as fit, and how many fit."""
    from planner.counterfactual import with_batch
    from planner.counterfactual_sequences import Sequences, most_sequences, sequences_document

    asked = str(wanted.max_sequences)
    if wanted.batch is not None:
        words = "and --batch are two words for one thing; keep one"
        raise DescriptionError.at(wanted.source, "max_sequences", words)
    if asked != "max" and not (_COUNT.fullmatch(asked) and 1 <= int(asked) <= MAX_COUNT):
        words = f"{asked[:40]!r} is no number of sequences{nearest(asked, ('max',))}; use 1 to {MAX_COUNT}, or max"
        raise DescriptionError.at(wanted.source, "max_sequences", words)
    found = Sequences(fit=None, why="the model is not understood") if ask.model.unknown else most_sequences(ask)
    count = max(found.fit or 1, 1) if asked == "max" else int(asked)
    if asked == "max":
        defaults.append(f"batch: {count:,} (--max-sequences max)")
    return with_batch(ask, count), sequences_document(found, asked)
