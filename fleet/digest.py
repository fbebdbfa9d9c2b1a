"""The digest of a fleet: the same for any order of fields, devices and links, comments, spelling of units."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fleet.machine import Device, Figure, Fleet, Link, Memory, Quantity


def fleet_digest(fleet: Fleet) -> str:
    """sha256 (hex) over the canonical form. Prose (labels, sources, notes, warnings, places in a file) is left out."""
    canonical = json.dumps(_canonical(fleet), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def _canonical(fleet: Fleet) -> dict[str, Any]:
    share = fleet.budget.utilization
    return {
        "name": fleet.name,
        "hosts": sorted(
            [h.id, _quantity(h.pinned_pool), h.numa_nodes, *([] if h.node is None else [h.node])] for h in fleet.hosts
        ),
        "devices": [_device(d) for d in sorted(fleet.devices, key=lambda d: d.id)],
        "links": sorted((_link(k) for k in fleet.links), key=lambda row: row[:3]),
        "budget": [None if share is None else str(share), fleet.budget.reserve],
    } | _fabric(fleet)


def _fabric(fleet: Fleet) -> dict[str, Any]:
    """What fleets without switches and cards of the network do not have; left out, it leaves their digest alone."""
    rows: dict[str, list[Any]] = {
        "switches": sorted([s.id, s.kind, s.host, s.tier] for s in fleet.switches),
        "nics": sorted([n.id, n.host, n.pci, n.numa] for n in fleet.nics),
        "domains": sorted([d.id, d.kind, list(d.members)] for d in fleet.domains),
        "tiers": list(fleet.tiers),
    }
    return {name: held for name, held in rows.items() if held}


def _link(link: Link) -> list[Any]:
    row = [link.src, link.dst, link.kind, link.count]
    row += [_quantity(link.bandwidth), _quantity(link.latency), link.peer_access]
    if link.duplex is None and link.copy_engines is None and not link.assumed:
        return row  # a fleet of ten thousand devices has a hundred thousand links
    return row + _more(duplex=link.duplex, copy_engines=link.copy_engines, assumed=link.assumed or None)


def _device(device: Device) -> list[Any]:
    memories = [_memory(memory) for memory in sorted(device.memories, key=lambda m: m.name)]
    place = [device.id, device.kind, device.index, device.topology_id, device.host, device.sku]
    row = [*place, device.uuid, device.pci, device.numa, memories, device.default_memory, _quantity(device.runtime)]
    rates = {name: _quantity(rate) for name, rate in device.compute} or None
    return row + _more(parent=device.parent, profile=device.profile, compute=rates)


def _memory(memory: Memory) -> list[Any]:
    row = [memory.name, memory.role, _quantity(memory.capacity), _quantity(memory.bandwidth), _quantity(memory.granule)]
    managed = None if memory.managed == "explicit" else memory.managed
    more = _more(within=memory.within, scope=memory.scope, managed=managed, physical=memory.physical)
    return row + more + _more(shared=memory.shared or None)


def _more(**fields: Any) -> list[Any]:
    """The optional fields that are stated, by name."""
    stated = {name: value for name, value in fields.items() if value is not None}
    return [stated] if stated else []


def _error(figure: Figure) -> list[str]:
    return [] if figure.error is None else [str(figure.error)]


def _quantity(quantity: Quantity) -> list[Any]:
    declared, observed = quantity.declared, quantity.observed
    return [
        None if declared is None else [declared.value, declared.provenance, declared.verified],
        None if observed is None else [observed.value, observed.verified, *_error(observed)],
    ]
