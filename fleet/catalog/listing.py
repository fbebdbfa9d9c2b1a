"""What is shipped, as rows to list and search: fleets and SKUs."""

from __future__ import annotations

from typing import Any

from fleet.catalog import catalog_names
from fleet.catalog.skus import sku_names, sku_text

Row = dict[str, Any]


def listed(word: str | None = None) -> tuple[list[Row], list[Row]]:
    """(fleets, SKUs) whose name, label, arch or kind holds `word` in any case; all of them without one."""
    from fleet.load import load_fleet

    fleets = []
    for name in catalog_names():
        fleet = load_fleet(name)
        kinds = sorted({device.sku or device.kind for device in fleet.devices})
        arches = sorted({device.arch for device in fleet.devices if device.arch})
        row: Row = {"name": name, "label": fleet.label, "digest": fleet.digest, "devices": len(fleet.devices)}
        row |= {"skus": kinds, "arches": arches}
        fleets.append(row)
    found = [row for row in fleets if _holds(row, word)]
    return found, [row for row in map(_sku, sku_names()) if _holds(row, word)]


def _holds(row: Row, word: str | None) -> bool:
    words = [text for value in row.values() for text in (value if isinstance(value, list) else [value])]
    return word is None or any(word.casefold() in text.casefold() for text in words if isinstance(text, str))


def _sku(name: str) -> Row:
    from fleet.schema import SkuFile
    from fleet.yaml_source import parse_text

    model = SkuFile.model_validate(parse_text(sku_text(name), f"{name}.yaml").data, context={"source": name})
    memory = model.memories[0]
    declared = memory.capacity.declared
    return {
        "name": name,
        "label": model.label,
        "kind": model.kind,
        "arch": model.arch,
        "capacity_bytes": memory.capacity.value,
        "verified": declared is not None and declared.verified,
        "bandwidth_bytes_per_s": memory.bandwidth.value,
        "ports": list(model.ports),
    }
