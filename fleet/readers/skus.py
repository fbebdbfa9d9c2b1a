"""What the shipped catalog says of a card: its memories, the rate of one lane, the rate of its slot.

A topology text names links and says nothing of memory; `--sku` fills that from here. Whatever the catalog holds as a
measurement was measured on another machine than the one described, so it is handed on as `spec` with its source.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fleet.catalog.skus import sku_names, sku_text
from fleet.errors import DescriptionError
from fleet.machine import UNKNOWN, Memory, Quantity
from fleet.schema import SkuFile
from fleet.yaml_source import nearest, parse_text, printable


@dataclass(frozen=True, kw_only=True, slots=True)
class Sku:
    """A card of the catalog. `lanes` is bytes per second of one lane, one direction, by kind of link.

    `slot` is the rate of its whole PCIe slot, one direction; `latencies` the latency of a copy by kind of link, in
    picoseconds. UNKNOWN where nothing is shipped.
    """

    name: str
    kind: str | None
    arch: str | None
    memories: tuple[Memory, ...]
    default_memory: str
    runtime: Quantity | None
    lanes: dict[str, Quantity]
    slot: Quantity
    latencies: dict[str, Quantity]
    label: str | None = None
    lane_counts: dict[str, int] = field(default_factory=dict)
    compute: tuple[tuple[str, Quantity], ...] = ()
    """Operations per second by type of number, as `Device.compute`."""


def find_sku(name: str) -> Sku:
    """The card of this name, or the only one whose name begins with it. Raises DescriptionError with the known names.

    Case, and `_` or a blank in place of `-`, do not matter.
    """
    wanted, names = _plain(name), sku_names()
    found = [known for known in names if _plain(known) == wanted]
    found = found or [known for known in names if wanted and _plain(known).startswith(wanted + "-")]
    if len(found) > 1:
        raise DescriptionError.at("--sku", "", f"{printable(name)} could be any of {', '.join(found)}; name one")
    if not found:
        message = f"{printable(name)} is no card of the catalog{nearest(wanted, names)} (known: {', '.join(names)})"
        raise DescriptionError.at("--sku", "", message)
    card = _sku(found[0])
    if card.kind != "gpu":
        raise DescriptionError.at("--sku", "", f"{card.name} is a {card.kind}; the text describes GPUs")
    return card


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().casefold())


@lru_cache(maxsize=8)
def _sku(name: str) -> Sku:
    source = f"{name}.yaml"
    row = SkuFile.model_validate(parse_text(sku_text(name), source).data, context={"source": source})
    memories = tuple(
        Memory(
            name=m.name, role=m.role, capacity=_spec(m.capacity), bandwidth=_spec(m.bandwidth), granule=_spec(m.granule)
        )
        for m in row.memories
    )
    ports = {str(kind): port for kind, port in row.ports.items()}
    return Sku(
        name=name,
        kind=row.kind,
        arch=row.arch,
        memories=memories,
        default_memory=row.default_memory or (memories[0].name if memories else ""),
        runtime=None if row.runtime is None else _spec(row.runtime),
        lanes={kind: _spec(port.bandwidth) for kind, port in ports.items() if kind != "pcie"},
        slot=_spec(ports["pcie"].bandwidth) if "pcie" in ports else UNKNOWN,
        label=row.label,
        lane_counts={kind: port.count for kind, port in ports.items()},
        latencies={kind: _spec(port.latency) for kind, port in ports.items()},
        compute=tuple((name, _spec(rate)) for name, rate in sorted(row.compute.items())),
    )


def _spec(quantity: Quantity) -> Quantity:
    figure = quantity.declared
    if figure is None:
        return UNKNOWN
    return Quantity(declared=replace(figure, provenance="spec") if figure.provenance == "measured" else figure)
