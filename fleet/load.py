"""A fleet file, the name of a shipped fleet, the JSON of `fleet show`, or a text of a foreign format -> Fleet.

Every fault of one pass is told at once, in the order of the file, each with file:line:column, field and how to mend it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fleet.build import NO_RUNTIME, Builder, Rows
from fleet.catalog import catalog_names, catalog_text
from fleet.compose import Composed, compose
from fleet.digest import fleet_digest
from fleet.errors import DescriptionError, Fault, raise_in_order
from fleet.laws import numbered, slice_faults
from fleet.lint import rate_faults, warnings_of
from fleet.machine import Budget, Device, Fleet
from fleet.references import check
from fleet.render import NATIVE_NAMES, is_document, native_form
from fleet.yaml_source import Document, Path, field_name, nearest, parse_text, printable, read_text, shown_path

if TYPE_CHECKING:
    from fleet.readers import Reading
    from fleet.schema import FleetFile

__all__ = ["NO_RUNTIME", "load_fleet"]

_NATIVE = re.compile(r"""^[\s{]*["']?schema["']?\s*:\s*["']?kvwaybill/""", re.M)


def load_fleet(
    path_or_catalog_name: str, *, text: str | None = None, sku: str | None = None, strict: bool = False
) -> Fleet:
    """The fleet of a file, of a shipped name, of `-` (standard input), or of `text` when that is given.

    A text of a format of `fleet.readers` is recognised by content; `sku` names the card that it leaves out. `strict`
    takes a rate that no link of its kind carries for a fault, not for a warning. Raises DescriptionError holding every
    fault found.
    """
    fleet = _loaded(path_or_catalog_name, text, sku)
    if strict:
        raise_in_order(rate_faults(fleet))
    return fleet


def _loaded(name: str, text: str | None, sku: str | None) -> Fleet:
    shown = shown_path(name)
    if text is None:
        text, shown = find_text(name)
    if not is_native(text):
        fleet = _foreign(text, name, shown, sku)
        if fleet is not None:
            return fleet
    fleet = _native(text, name, shown)
    if sku is None:
        return fleet
    unused = f"--sku {printable(sku)} concerns nothing here: a fleet file says what its devices are"
    return replace(fleet, warnings=(unused, *fleet.warnings))


def is_native(text: str) -> bool:
    """Whether a text names the schema of a fleet file, or of the JSON of `fleet show`, at the beginning of a line."""
    return _NATIVE.search(text) is not None


def _foreign(text: str, name: str, shown: str, sku: str | None) -> Fleet | None:
    """The fleet of a text of another format; None where none is recognised."""
    from fleet.readers import matching, read_foreign

    formats = matching(text)
    if not formats:
        return None
    reading = read_foreign(text, shown, sku=sku)
    if reading.fleet is None:
        raise DescriptionError.at(shown, "", no_machine(reading))
    told = tuple(dict.fromkeys((*reading.warnings, *reading.fleet.warnings)))
    return replace(reading.fleet, source=name, format=formats[0], warnings=told)


def no_machine(reading: Reading) -> str:
    """Why a text cannot stand for a fleet."""
    if reading.overlay:
        return "holds measurements and no machine; lay them over one: kvwaybill fleet import FILE --onto FLEET"
    return "; ".join(("describes no device that a phase could run on", *reading.warnings))


def _native(text: str, name: str, shown: str) -> Fleet:
    try:
        document = parse_text(text, shown)
    except DescriptionError as error:
        if is_native(text) or not error.faults[-1].line:
            raise
        raise DescriptionError([*error.faults[:-1], _no_format(error.faults[-1])]) from error
    if not isinstance(document.data, dict):
        fault = document.fault((), "must be a mapping that begins with schema: kvwaybill/fleet/1")
        raise DescriptionError([*document.faults, _no_format(fault)])
    return _read(_Input(document, document.data, name, is_document(document.data)))


def _no_format(fault: Fault) -> Fault:
    """The fault of a text that is no fleet file, with what else was looked for in it."""
    from fleet.readers import format_names

    looked = f"no other format that is read here was found either (looked for {', '.join(format_names())})"
    return replace(fault, message=f"{fault.message}; {looked}")


def find_text(name: str) -> tuple[str, str]:
    """(text, name for messages) of a file, or of a shipped fleet when there is no such file."""
    shipped = name in catalog_names()
    if name != "-" and not os.path.isfile(name) and shipped:
        return catalog_text(name), f"{name}.yaml"
    try:
        return read_text(name), shown_path(name)
    except DescriptionError as error:
        if name == "-" or ("\0" not in name and os.path.lexists(name)):
            raise
        told = str(error.faults[0].message)
        names = catalog_names()
        hint = f"{told}, and no shipped fleet has this name{nearest(name, names)} (shipped: {', '.join(names)})"
        raise DescriptionError.at(printable(name, 200), "", hint) from error


@dataclass(frozen=True, slots=True)
class _Input:
    """A parsed text, what it says in the words of fleet.yaml, and the name it was asked for by."""

    document: Document
    raw: dict[str, Any]
    name: str
    is_report: bool
    """Asked once: the answer looks at every device and link, and each place in the text needs it."""

    @property
    def source(self) -> str:
        """What a figure without a source of its own is said to come from."""
        return os.path.basename(self.document.source) or self.document.source

    def composed(self) -> Composed:
        if self.is_report:
            return Composed(self.document, native_form(self.raw))
        return compose(self.document, self.raw)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the paths of composed data stand in the texts that they came from."""

    given: _Input
    composed: Composed

    def _place(self, path: Path) -> tuple[Document, Path]:
        if not self.given.is_report:
            return self.composed.place(path)
        figure = path.index("declared") if "declared" in path else len(path)
        document_path = tuple(NATIVE_NAMES.get(step, step) if isinstance(step, str) else step for step in path[:figure])
        return self.given.document, document_path

    def seen(self, path: Path) -> tuple[int, str]:
        """(line, field as written) of a path."""
        document, place = self._place(path)
        return document.at(place)[0], field_name(place)

    def field(self, path: Path) -> str:
        """As it is to be written in the file: what another text states (a SKU of the catalog) by its whole path, since
        two such texts name their fields alike.
        """
        document, place = self._place(path)
        return field_name(place if document is self.given.document else path)

    def where(self, path: Path) -> str:
        document, place = self._place(path)
        return f"{document.source}:{document.at(place)[0]}"

    def fault(self, told: tuple[Path, str, bool]) -> Fault:
        path, message, key = told
        document, place = self._place(path)
        return document.fault(place, message, key=key)


def _read(given: _Input) -> Fleet:
    from fleet.schema import validate

    composed = given.composed()
    places = _Places(given, composed)
    model, shape = validate(composed.data, given.source)
    told = [places.fault(row) for row in (*composed.told, *shape, *check(composed.data, places.seen))]
    raise_in_order([*given.document.faults, *dict.fromkeys(told)])
    assert model is not None, "a file without faults has a model"
    return _built(model, given, places)


def _built(model: FleetFile, given: _Input, places: _Places) -> Fleet:
    builder = Builder(model, places.where, places.field)
    rows = builder.rows()
    devices, doubles = numbered(rows.devices)
    faults = [places.fault(row) for row in builder.told]
    faults += [_at(where, message, given) for where, message in slice_faults(devices)]
    faults += [
        _at("", f"{first} and {second} have one topology id, {number}; rename one of them", given)
        for first, second, number in doubles
    ]
    raise_in_order(faults)
    fleet = _fleet(model, given, rows, devices, builder)
    return replace(fleet, digest=fleet_digest(fleet), warnings=_warnings(fleet, given))


def _at(where: str, message: str, given: _Input) -> Fault:
    """A fault of a whole fleet, or of the device that stands at `file:line`."""
    source, _, line = where.rpartition(":")
    if not where:
        return Fault(source=given.document.source, field="devices", message=message, line=1, column=1)
    return Fault(source=source, field="devices", message=message, line=int(line), column=1)


def _fleet(model: FleetFile, given: _Input, rows: Rows, devices: list[Device], builder: Builder) -> Fleet:
    rank = builder.rank(rows)
    return Fleet(
        name=model.name,
        label=model.label,
        hosts=tuple(sorted(rows.hosts, key=lambda row: rank[row.id])),
        devices=tuple(sorted(devices, key=lambda row: rank[row.id])),
        links=tuple(sorted(rows.links, key=lambda link: (rank[link.src], rank[link.dst], link.kind))),
        budget=Budget(utilization=model.budget.utilization, reserve=model.budget.reserve),
        source=given.name,
        switches=tuple(sorted(rows.switches, key=lambda row: rank[row.id])),
        nics=tuple(sorted(rows.nics, key=lambda row: rank[row.id])),
        domains=builder.domains(rows),
        tiers=model.fabric.tiers,
    )


def _warnings(fleet: Fleet, given: _Input) -> tuple[str, ...]:
    undeclared = [device.id for device in fleet.devices if device.runtime == NO_RUNTIME]
    found = warnings_of(fleet, {device.id: device.arch for device in fleet.devices}, undeclared)
    stated = given.raw.get("warnings") if given.is_report else None
    kept = [text for text in stated if isinstance(text, str)] if isinstance(stated, list) else []
    return (*kept, *(text for text in found if text not in kept))
