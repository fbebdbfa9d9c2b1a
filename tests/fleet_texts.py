"""A small good fleet file, and fleets compared without the places that they were read from."""

from __future__ import annotations

import json
from dataclasses import replace

from fleet.load import load_fleet
from fleet.machine import Fleet, Quantity
from fleet.render import fleet_document

SMALL = """schema: kvwaybill/fleet/1
name: small
skus:
  card: {kind: gpu, memories: [{name: hbm, capacity: 80 GiB, granule: 2 MiB}]}
devices:
  - {id: gpu:0, sku: card}
  - {id: gpu:1, sku: card}
links:
  - {from: gpu:0, to: gpu:1, kind: nvlink, bandwidth: 450 GB/s}
  - {from: host, to: gpu:0, kind: pcie, bandwidth: 63 GB/s, latency: 9.79 us, bidirectional: true}
"""


def small(extra: str = "", **changes: str) -> Fleet:
    text = SMALL + extra
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    return load_fleet("small.yaml", text=text)


def without_places(fleet: Fleet) -> Fleet:
    """The fleet less the places in the file it was read from."""
    return replace(
        fleet,
        source="",
        hosts=tuple(replace(host, where="") for host in fleet.hosts),
        devices=tuple(replace(device, where="", capacity_field="") for device in fleet.devices),
        links=tuple(replace(link, where="") for link in fleet.links),
        switches=tuple(replace(switch, where="") for switch in fleet.switches),
        nics=tuple(replace(nic, where="") for nic in fleet.nics),
    )


def shown_again(fleet: Fleet) -> Fleet:
    return load_fleet("fleet.json", text=json.dumps(fleet_document(fleet)))


def figures_of(fleet: Fleet) -> list[Quantity]:
    memories = [memory for device in fleet.devices for memory in device.memories]
    inside = [q for memory in memories for q in (memory.capacity, memory.bandwidth, memory.granule)]
    return [*inside, *(d.runtime for d in fleet.devices), *(q for k in fleet.links for q in (k.bandwidth, k.latency))]
