"""`kvwaybill fleet import`: a text of any known format as fleet.yaml, or measurements laid over one."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fleet.dump import fleet_yaml
from fleet.errors import DescriptionError
from fleet.load import find_text, is_native, load_fleet, no_machine
from fleet.machine import Fleet
from fleet.readers import Reading, read_foreign
from fleet.yaml_source import printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A fleet, the fleet.yaml of it, and what is to be said of the import."""

    fleet: Fleet
    text: str
    warnings: tuple[str, ...]


def import_fleet(name: str, *, format: str | None = None, sku: str | None = None, onto: str | None = None) -> Imported:
    """What the text of a file, a shipped name or `-` says, as a fleet; with `onto`, laid over that fleet.

    Raises DescriptionError: a text of no known format, of another than `format`, measurements without `onto`, a machine
    with it.
    """
    if name == "-" and onto == "-":
        raise DescriptionError.at("--onto", "", "only one of FILE and --onto can come from stdin")
    text, shown = find_text(name)
    if format is None and is_native(text):
        if onto is not None:
            raise DescriptionError.at(shown, "", "is a fleet file; --onto takes measurements, e.g. of nvbandwidth")
        fleet = load_fleet(name, text=text, sku=sku)
        return Imported(fleet=fleet, text=fleet_yaml(fleet), warnings=fleet.warnings)
    reading = read_foreign(text, shown, format=format, sku=sku)
    if onto is not None:
        return _laid(reading, shown, onto)
    if reading.fleet is None:
        raise DescriptionError.at(shown, "", no_machine(reading))
    fleet = replace(reading.fleet, source=name)
    told = tuple(dict.fromkeys((*reading.warnings, *fleet.warnings)))
    return Imported(fleet=fleet, text=fleet_yaml(fleet), warnings=told)


def _laid(reading: Reading, shown: str, onto: str) -> Imported:
    from fleet.overlay import lay_over
    from fleet.rewrite import rewritten

    if not reading.overlay:
        raise DescriptionError.at(shown, "", "holds no measurements that could be laid over a fleet; leave --onto out")
    text, source = find_text(onto)
    below = load_fleet(onto, text=text)
    fleet, told = lay_over(below, reading.overlay, cards=reading.cards, source=shown)
    written = rewritten(text, source, fleet) if is_native(text) else None
    if written is None:
        written = fleet_yaml(fleet)
        told = (*told, f"{printable(source)} was written out anew: comments, templates and patterns are not kept")
    warnings = tuple(dict.fromkeys((*reading.warnings, *told, *fleet.warnings)))
    return Imported(fleet=fleet, text=written, warnings=warnings)
