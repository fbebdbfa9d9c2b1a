"""What the shipped catalog says of a card: its memories, the rate of one lane, the rate of its slot.

A topology text names links and says nothing of memory; `--sku` fills that from here. Whatever the catalog holds as a
measurement was measured on another machine than the one described, so it is handed on as `spec` with its source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from fleet.catalog import catalog_names, catalog_text
from fleet.errors import DescriptionError
from fleet.machine import UNKNOWN, Figure, Memory, Quantity
from fleet.schema import FleetFile, SkuFile, validate
from fleet.yaml_source import nearest, parse_text, printable

_SECTION = re.compile(r"^skus:[^\S\n]*\n((?:[^\S\n]+.*\n|[^\S\n]*(?:#.*)?\n)*)", re.M)
_KEY = re.compile(r"^  ([A-Za-z0-9._/-]+):", re.M)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sku:
    """A card of the catalog. `lanes` is bytes per second of one lane, one direction, by kind of link.

    `to_device` and `to_host` are the rates of its slot (PCIe), one direction each. UNKNOWN where nothing is shipped.
    """

    name: str
    kind: str
    memories: tuple[Memory, ...]
    default_memory: str
    runtime: Quantity | None
    lanes: dict[str, Quantity]
    to_device: Quantity
    to_host: Quantity


def sku_names() -> tuple[str, ...]:
    """The names of all cards that some shipped fleet describes, sorted."""
    return tuple(sorted(_files()))


@lru_cache(maxsize=1)
def _files() -> dict[str, list[str]]:
    """The shipped fleets that describe each card. Read by pattern: parsing every YAML would cost a second."""
    found: dict[str, list[str]] = {}
    for fleet in catalog_names():
        for section in _SECTION.findall(catalog_text(fleet) + "\n"):
            for name in _KEY.findall(section):
                found.setdefault(name, []).append(fleet)
    return found


def find_sku(name: str) -> Sku:
    """The card of this name; case, and `_` or a blank for `-`, do not matter. Raises DescriptionError."""
    files = _files()
    wanted = _plain(name)
    exact = [known for known in files if _plain(known) == wanted]
    found = exact or [known for known in sorted(files) if wanted and _plain(known).startswith(wanted + "-")]
    if len(found) == 1:
        card = _sku(found[0])
        if card.kind != "gpu":
            raise DescriptionError.at("--sku", "", f"{card.name} is a {card.kind}; the text describes GPUs")
        return card
    names = ", ".join(found or sku_names())
    if found:
        message = f"{printable(name)} could be any of {names}; name one"
    else:
        message = f"{printable(name)} is no card of the catalog{nearest(wanted, files)} (known: {names})"
    raise DescriptionError.at("--sku", "", message)


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


@lru_cache(maxsize=8)
def _sku(name: str) -> Sku:
    models = [model for fleet in _files()[name] if (model := _model(fleet)) is not None and name in model.skus]
    row: SkuFile = models[0].skus[name]
    memories = tuple(
        Memory(
            name=m.name, role=m.role, capacity=_spec(m.capacity), bandwidth=_spec(m.bandwidth), granule=_spec(m.granule)
        )
        for m in row.memories
    )
    return Sku(
        name=name,
        kind=row.kind,
        memories=memories,
        default_memory=row.default_memory or (memories[0].name if memories else ""),
        runtime=None if row.runtime is None else _spec(row.runtime),
        lanes={kind: _lane(models, name, kind) for kind in ("nvlink", "xgmi", "c2c")},
        to_device=_slot(models, name, to_device=True),
        to_host=_slot(models, name, to_device=False),
    )


def _model(fleet: str) -> FleetFile | None:
    source = f"{fleet}.yaml"
    return validate(parse_text(catalog_text(fleet), source).data, source)[0]


def _spec(quantity: Quantity) -> Quantity:
    figure = quantity.declared
    if figure is None:
        return UNKNOWN
    return Quantity(declared=replace(figure, provenance="spec") if figure.provenance == "measured" else figure)


def _cards(model: FleetFile, name: str) -> set[str]:
    return {device.id for device in model.devices if device.sku == name}


def _lane(models: list[FleetFile], name: str, kind: str) -> Quantity:
    """The rate of one lane, from the first shipped link of that kind between two such cards."""
    for model in models:
        cards = _cards(model, name)
        for link in model.links:
            figure = link.bandwidth.declared
            if link.kind == kind and {link.src, link.dst} <= cards and figure is not None:
                return Quantity(declared=replace(_figure(figure), value=figure.value // link.count))
    return UNKNOWN


def _slot(models: list[FleetFile], name: str, *, to_device: bool) -> Quantity:
    """The rate between host and card over PCIe, from the first shipped link between the two."""
    for model in models:
        cards, hosts = _cards(model, name), {host.id for host in model.hosts}
        for link in model.links:
            ways = [(link.src, link.dst), (link.dst, link.src)] if link.bidirectional else [(link.src, link.dst)]
            wanted = [
                (s, d) for s, d in ways if (s in hosts and d in cards if to_device else s in cards and d in hosts)
            ]
            if link.kind == "pcie" and wanted and link.bandwidth.declared is not None:
                return Quantity(declared=_figure(link.bandwidth.declared))
    return UNKNOWN


def _figure(figure: Figure) -> Figure:
    return replace(figure, provenance="spec") if figure.provenance == "measured" else figure
