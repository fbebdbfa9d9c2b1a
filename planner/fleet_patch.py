"""A change of a fleet as a JSON Patch (RFC 6902) on the document of `kvwaybill fleet show FLEET -o json`.

A fleet file may write one row for many links, and a text of another format has no field that could be changed. That
document has a row for every device, host and link, and is itself taken as a fleet: any change can be applied to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fleet.machine import Fleet, Link, Quantity

Operation = dict[str, Any]
_ORIGIN = {"provenance": "policy", "source": "proposed fix"}


def patch_of(before: Fleet, after: Fleet) -> list[Operation]:
    """Capacities, pinned pools, peer access and added links, in the order of the fleet.

    Links that are assumed are no part of it (a flag adds them), nor is what is in use.
    """
    return [*_capacities(before, after), *_pools(before, after), *_links(before.links, after.links)]


def _capacities(before: Fleet, after: Fleet) -> Iterator[Operation]:
    for at, (old, new) in enumerate(zip(before.devices, after.devices, strict=True)):
        if old.memories is new.memories:
            continue
        for place, (was, now) in enumerate(zip(old.memories, new.memories, strict=True)):
            if was.capacity != now.capacity:
                yield from _figure(f"/devices/{at}/memories/{place}", "capacity_bytes", now.capacity)


def _pools(before: Fleet, after: Fleet) -> Iterator[Operation]:
    for at, (old, new) in enumerate(zip(before.hosts, after.hosts, strict=True)):
        if old.pinned_pool != new.pinned_pool:
            yield from _figure(f"/nodes/{at}", "pinned_pool_bytes", new.pinned_pool)


def _figure(row: str, field: str, quantity: Quantity) -> Iterator[Operation]:
    """A figure and where it comes from: what stood there was another figure's origin."""
    yield {"op": "add", "path": f"{row}/{field}", "value": quantity.value}
    yield {"op": "add", "path": f"{row}/provenance/{field}", "value": dict(_ORIGIN)}


def _links(before: tuple[Link, ...], after: tuple[Link, ...]) -> Iterator[Operation]:
    """Links are found by their ends and kind: assumed ones stand among them."""
    place = {_key(link): at for at, link in enumerate(before)}
    for link in after:
        at = place.get(_key(link))
        if at is None and not link.assumed:
            row = {"src": link.src, "dst": link.dst, "kind": link.kind}
            row |= {} if link.peer_access is None else {"peer_access": link.peer_access}
            yield {"op": "add", "path": "/links/-", "value": row}
        elif at is not None and before[at].peer_access != link.peer_access:
            yield {"op": "add", "path": f"/links/{at}/peer_access", "value": link.peer_access}


def _key(link: Link) -> tuple[str, str, str]:
    return link.src, link.dst, link.kind
