"""One file a foreign format. A reader says what a text holds and leaves unknown what it does not say.

Each module of `MODULES` has `NAME` (what `--from` calls it), `matches(text) -> bool` (by content alone) and
`read(text, source, *, sku=None) -> Reading`. They are imported only when a text that is no fleet.yaml comes in.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, Protocol, cast

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from fleet.yaml_source import MAX_BYTES, nearest, printable

__all__ = ["MeasuredCard", "Observation", "Reading", "format_names", "matching", "read_foreign", "recognise"]

MODULES = (
    "nvidia_smi",
    "rocm_smi",
    "nccl_xml",
    "hwloc_xml",
    "vx",
    "aiconfigurator",
    "nvbandwidth",
    "p2p_bandwidth",
)
"""The readers, one module each, in the order in which they are asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One figure that a tool measured between two devices. It may fill `observed`, never `declared`.

    `value` is bytes per second for a bandwidth and picoseconds for a latency. `access` says how a copy between two
    devices went: `peer` over their link, `staged` over host memory; None where that is not said, or an end is a host.
    `error` is the largest relative error that the tool states of it.
    """

    src: str
    dst: str
    quantity: Literal["bandwidth", "latency"]
    value: int
    tool: str
    note: str | None = None
    access: Literal["peer", "staged"] | None = None
    error: Fraction | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCard:
    """A device that measurements name: its id by the tool's own order, and its product name and PCI address if said."""

    id: str
    name: str | None = None
    pci: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What a text says. `fleet` is None where it describes no machine (an overlay of measurements of `cards`).

    `notes` holds what the text says and a Fleet cannot: affinities, NICs, NUMA distances, the words of a matrix.
    """

    fleet: Fleet | None
    overlay: tuple[Observation, ...] = ()
    cards: tuple[MeasuredCard, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """What a module of this folder has."""

    NAME: str

    def matches(self, text: str) -> bool:
        """Whether the text is of this format; never raises."""

    def read(self, text: str, source: str, *, sku: str | None = None) -> Reading:
        """The reading of a text. Raises DescriptionError with every fault."""


def _readers() -> tuple[Reader, ...]:
    return tuple(cast(Reader, importlib.import_module(f"{__name__}.{name}")) for name in MODULES)


def format_names() -> tuple[str, ...]:
    """What `--from` may name."""
    return tuple(reader.NAME for reader in _readers())


def matching(text: str) -> tuple[str, ...]:
    """The names of all formats that a text shows."""
    text = text.removeprefix("\ufeff")
    return tuple(reader.NAME for reader in _readers() if reader.matches(text)) if len(text) <= MAX_BYTES else ()


def recognise(text: str) -> str | None:
    """The name of the format of a text by content, or None. The first of several: `read_foreign` tells them all."""
    found = matching(text)
    return found[0] if found else None


def read_foreign(text: str, source: str, *, format: str | None = None, sku: str | None = None) -> Reading:
    """What a text of a foreign format says. `format` names it; left out, it is recognised by content.

    `sku` names a card of the catalog: it fills memory and rates that the text does not state. Raises DescriptionError.
    """
    if len(text) > MAX_BYTES:
        raise DescriptionError.at(source, "", f"is larger than {MAX_BYTES // 2**20} MiB; split or shorten it")
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise DescriptionError.at(source, "", "is empty")
    reader = _only_match(text, source) if format is None else _named(format)
    return reader.read(text, source, sku=sku)


def _named(format: str) -> Reader:
    wanted = format.strip().casefold().replace("_", "-")
    for reader in _readers():
        if reader.NAME.casefold().replace("_", "-") == wanted:
            return reader
    names = format_names()
    message = f"{printable(format)} is no known format{nearest(wanted, names)} (known: {', '.join(names)})"
    raise DescriptionError.at("--from", "", message)


def _only_match(text: str, source: str) -> Reader:
    names = matching(text)
    if not names:
        message = f"holds no topology that is known here; looked for {', '.join(format_names())}"
        raise DescriptionError.at(source, "", message)
    if len(names) > 1:
        message = f"shows several formats at once ({', '.join(names)}); name one with --from, or split the text"
        raise DescriptionError.at(source, "", message)
    return _named(names[0])
