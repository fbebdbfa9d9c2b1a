"""The digest of a fleet: the same for any order of fields, devices and links, comments, spelling of units."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fleet.machine import Device, Fleet, Quantity


def fleet_digest(fleet: Fleet) -> str:
    """sha256 (hex) over the canonical form. Prose (labels, sources, notes, warnings, places in a file) is left out."""
    canonical = json.dumps(_canonical(fleet), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def _canonical(fleet: Fleet) -> dict[str, Any]:
    share = fleet.budget.utilization
    return {
        "name": fleet.name,
        "hosts": sorted([h.id, _quantity(h.pinned_pool), h.numa_nodes] for h in fleet.hosts),
        "devices": [_device(d) for d in sorted(fleet.devices, key=lambda d: d.id)],
        "links": sorted(
            (
                [k.src, k.dst, k.kind, k.count, _quantity(k.bandwidth), _quantity(k.latency), k.peer_access]
                for k in fleet.links
            ),
            key=lambda row: row[:3],
        ),
        "budget": [None if share is None else str(share), fleet.budget.reserve],
    }


def _device(device: Device) -> list[Any]:
    memories = [
        [m.name, m.role, _quantity(m.capacity), _quantity(m.bandwidth), _quantity(m.granule)]
        for m in sorted(device.memories, key=lambda m: m.name)
    ]
    place = [device.id, device.kind, device.index, device.topology_id, device.host, device.sku]
    return [*place, device.uuid, device.pci, device.numa, memories, device.default_memory, _quantity(device.runtime)]


def _quantity(quantity: Quantity) -> list[Any]:
    declared, observed = quantity.declared, quantity.observed
    return [
        None if declared is None else [declared.value, declared.provenance, declared.verified],
        None if observed is None else [observed.value, observed.verified],
    ]
