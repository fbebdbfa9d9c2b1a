"""Changes of a fleet that would mend a refusal: capacities, pinned pools, links, and what its file leaves unknown.

They mean other hardware, or a better description of it; the smallest figure that would do is a closed form.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fleet.host_return import assume_host_return
from fleet.machine import Device, Figure, Fleet, Link, PeerAccess, Quantity
from planner.admit import Admission, cache_bytes, terms_of
from planner.counterfactual import Change, joined
from planner.ledger_bounds import least_capacity, most_in_use
from planner.shared_memory import shared_memories


def pools(admission: Admission) -> Iterator[Change]:
    for reason in admission.reasons:
        if reason.code != "PINNED_POOL_TOO_SMALL" or reason.needed_bytes is None:
            continue
        hosts = tuple(
            replace(h, pinned_pool=_policy(reason.needed_bytes)) if h.id == reason.device else h
            for h in admission.ask.fleet.hosts
        )
        number = next(i for i, h in enumerate(admission.ask.fleet.hosts) if h.id == reason.device)
        document = {
            "field": f"hosts[{number}].pinned_pool", "from": f"{reason.available_bytes} B",
            "to": f"{reason.needed_bytes} B",
        }  # fmt: skip
        fleet = replace(admission.ask.fleet, hosts=hosts, digest="")
        yield Change(document=document, ask=replace(admission.ask, fleet=fleet))


def capacities(admission: Admission) -> Iterator[Change]:
    """The smallest capacities that hold every device; one change where the devices share a field of the file."""
    short = ("EXCEEDS_CAPACITY", "EXCEEDS_FREE", "EXCEEDS_BUDGET")
    needed = least_capacities(admission, short)
    for name, least in _shared_capacities(admission):
        needed[name] = max(needed.get(name, 0), least)
    if not needed:
        return
    ask = admission.ask
    needed = _agreeing(ask.fleet, needed)
    held = {d.capacity_field: d.memory.capacity.value for d in ask.fleet.devices}
    changes = [{"field": f, "from": f"{held[f]} B", "to": f"{to} B"} for f, to in sorted(needed.items())]
    yield Change(document=joined(changes), ask=replace(ask, fleet=_with_capacities(ask.fleet, needed)))


def least_capacities(admission: Admission, codes: tuple[str, ...] | None = None) -> dict[str, int]:
    """{field of the fleet file: the least capacity that holds its devices} of those with a reason of these codes.

    None for `codes`: of all devices of the plan.
    """
    ask, needed = admission.ask, dict[str, int]()
    told = {reason.device for reason in admission.reasons if codes is not None and reason.code in codes}
    for footprint in () if admission.prediction is None else admission.prediction.footprints:
        device = None if footprint.device is None else ask.fleet.device(footprint.device)
        if device is None or (codes is not None and device.id not in told):
            continue
        least = least_capacity(footprint.total_bytes, cache_bytes(footprint), terms_of(ask, device))
        needed[device.capacity_field] = max(needed.get(device.capacity_field, 0), least)
    return needed


def _shared_capacities(admission: Admission) -> Iterator[tuple[str, int]]:
    """(field, bytes) of the memories that several devices of the plan lie in, and that are too small for all of them.

    The devices must agree on the size, so the field of each is told.
    """
    fleet = admission.ask.fleet
    if admission.prediction is None or not any(r.code == "EXCEEDS_SHARED_MEMORY" for r in admission.reasons):
        return
    caches = {f.arena: cache_bytes(f) for f in admission.prediction.footprints}
    for shared in shared_memories(fleet, admission.prediction.footprints):
        used = max((d.in_use or 0 for name in shared.devices if (d := fleet.device(name))), default=0)
        terms = replace(terms_of(admission.ask, None), in_use=used)
        least = least_capacity(shared.total_bytes, sum(caches[name] for name in shared.devices), terms)
        for device in fleet.devices:
            held = device.memory.capacity.value
            if device.memory.physical == shared.physical and (held is None or held < least):
                yield device.capacity_field, least


def _with_capacities(fleet: Fleet, capacity: dict[str, int]) -> Fleet:
    def changed(device: Device) -> Device:
        if device.capacity_field not in capacity:
            return device
        memories = tuple(
            replace(m, capacity=_policy(capacity[device.capacity_field])) if m.name == device.default_memory else m
            for m in device.memories
        )
        return replace(device, memories=memories)

    return replace(fleet, devices=tuple(changed(d) for d in fleet.devices), digest="")


def _agreeing(fleet: Fleet, needed: dict[str, int]) -> dict[str, int]:
    """The same with what a fleet must agree on: one size of a memory in all devices that lie in it, and a card that is
    no smaller than its slices together. A card may lie in a memory that others lie in too, so it is looked at again.
    """
    for _ in range(_ROUNDS if needed else 0):
        more = _of_cards(fleet, _of_pools(fleet, needed))
        if more == needed:
            break
        needed = more
    return needed


_ROUNDS = 4
"""A memory, a card of it, the memory again: more follow from a file that contradicts itself."""


def _of_pools(fleet: Fleet, needed: dict[str, int]) -> dict[str, int]:
    more, pools = dict(needed), dict[str, int]()
    lying = [(d.memory.physical, d.capacity_field) for d in fleet.devices if d.memory.physical is not None]
    for name, field in lying:
        pools[name] = max(pools.get(name, 0), needed.get(field, 0))
    for name, field in lying:
        if pools[name]:
            more[field] = max(more.get(field, 0), pools[name])
    return more


def _of_cards(fleet: Fleet, needed: dict[str, int]) -> dict[str, int]:
    more, parts = dict(needed), dict[str, int]()
    size = {d.id: needed.get(d.capacity_field, d.memory.capacity.value) for d in fleet.devices}
    for device in fleet.devices:
        if device.parent is not None:
            parts[device.parent] = parts.get(device.parent, 0) + (size[device.id] or 0)
    for name, held in parts.items():
        card, has = fleet.device(name), size.get(name)
        if card is not None and has is not None and has < held:
            more[card.capacity_field] = held
    return more


def _policy(value: int) -> Quantity:
    return Quantity(declared=Figure(value=value, provenance="policy", source="proposed fix"))


def links(admission: Admission) -> Iterator[Change]:
    """Declare the links that are missing; without a rate, so the plan stays unpriced there."""
    ask = admission.ask
    missing = [reason.edge for reason in admission.reasons if reason.code == "NO_ROUTE" and reason.edge is not None]
    devices = {d.id for d in ask.fleet.devices}
    if not missing or (ask.fleet.format and not any({src, dst} <= devices for src, dst in missing)):
        return
    links, documents = [], []
    for src, dst in missing:
        peer = src in devices and dst in devices
        links.append(Link(src=src, dst=dst, kind="pcie", peer_access="direct" if peer else None))
        link = {"from": src, "to": dst, "kind": "pcie"} | ({"peer_access": "direct"} if peer else {})
        documents.append({"field": "links[+]", "from": None, "to": link})
    document = joined(documents)
    fleet = replace(ask.fleet, links=(*ask.fleet.links, *links), digest="")
    yield Change(document=document, ask=replace(ask, fleet=fleet))


def host_return(admission: Admission) -> Iterator[Change]:
    """Assume the host links that the fleet lacks: policy, without a rate."""
    ask = admission.ask
    if not any(reason.code == "NO_ROUTE" for reason in admission.reasons):
        return
    fleet = assume_host_return(ask.fleet)
    if fleet.links != ask.fleet.links:
        document = {"flag": "--assume-host-return", "from": None, "to": True}
        yield Change(document=document, ask=replace(ask, fleet=fleet))


def peer_access(admission: Admission) -> Iterator[Change]:
    """Another route of the handoff: direct from device to device, in place of staged over the host."""
    ask, placed = admission.ask, admission.ask.placement
    if admission.prediction is None or not admission.prediction.routed.staged or ask.fleet.format or placed.is_split:
        return
    src, dst = placed.prefill, placed.decode
    links = _with_peer(ask.fleet, [(src, dst)], "direct").links
    if links != ask.fleet.links:
        document: dict[str, Any] = {"field": f"links[{src}->{dst}].peer_access", "from": "staged", "to": "direct"}
    else:
        links = (*links, Link(src=src, dst=dst, kind="pcie", peer_access="direct"))
        row = {"from": src, "to": dst, "kind": "pcie", "peer_access": "direct"}
        document = {"field": "links[+]", "from": None, "to": row}
    yield Change(document=document, ask=replace(ask, fleet=replace(ask.fleet, links=links, digest="")))


def released(admission: Admission) -> Iterator[Change]:
    """The most that others may hold on the devices that are short of what is free: all of them together."""
    ask = admission.ask
    codes = ("EXCEEDS_FREE", "EXCEEDS_BUDGET", "EXCEEDS_SHARED_MEMORY")
    short = {reason.device for reason in admission.reasons if reason.code in codes}
    held = {device.id for device in ask.fleet.devices if device.id in short and device.in_use}
    most = {name: each for name, each in _most_in_use(admission).items() if name in held and each is not None}
    if held and len(most) == len(held):
        parts = _in_use_parts(ask.fleet, most)
        yield Change(document=joined(parts), ask=replace(ask, fleet=_with_in_use(ask.fleet, most)))


def _most_in_use(admission: Admission) -> dict[str, int | None]:
    """What others may hold at most of each device of the plan; None where it would not fit an idle one.

    What others hold of a memory that several devices lie in is the memory's: the least that any of them, and all
    together, leave.
    """
    ask, prediction = admission.ask, admission.prediction
    footprints = () if prediction is None else prediction.footprints
    found, pools = dict[str, int | None](), dict[str, list[int | None]]()
    caches = {f.arena: cache_bytes(f) for f in footprints}
    for footprint in footprints:
        device = None if footprint.device is None else ask.fleet.device(footprint.device)
        capacity = None if device is None else device.memory.capacity.value
        if device is not None and capacity is not None:
            most = most_in_use(capacity, footprint.total_bytes, caches[footprint.arena], terms_of(ask, device))
            found[device.id] = most
            pools.setdefault(device.memory.physical or "", []).append(most)
    for shared in shared_memories(ask.fleet, footprints):
        sizes = [d.memory.capacity.value for name in shared.devices if (d := ask.fleet.device(name)) is not None]
        cache = sum(caches[name] for name in shared.devices)
        known = [size for size in sizes if size is not None]
        if known:
            pools[shared.physical].append(most_in_use(min(known), shared.total_bytes, cache, terms_of(ask, None)))
    for name in found:
        device = ask.fleet.device(name)
        if device is not None and device.memory.physical is not None:
            left = pools[device.memory.physical]
            found[name] = None if None in left else min(each for each in left if each is not None)
    return found


def _in_use_parts(fleet: Fleet, most: dict[str, int]) -> list[dict[str, Any]]:
    """One statement a device, each given beside the texts that are there; of devices in one memory the first has all
    of it, and the others nothing.
    """
    told: dict[str, tuple[int | None, int]] = {}
    pools = {d.memory.physical: most[d.id] for d in fleet.devices if d.memory.physical is not None and d.id in most}
    for device in fleet.devices:
        if device.memory.physical in pools:
            told[device.id] = (device.in_use, pools[device.memory.physical])
            pools[device.memory.physical] = 0
        elif device.id in most:
            told[device.id] = (device.in_use, most[device.id])
    return [
        {
            "flag": "--in-use", "from": None if was is None else f"{name}={was} B", "to": f"{name}={nbytes} B",
            "beside": True,
        }
        for name, (was, nbytes) in sorted(told.items())
    ]  # fmt: skip


def _with_in_use(fleet: Fleet, most: dict[str, int]) -> Fleet:
    pools = {d.memory.physical: most[d.id] for d in fleet.devices if d.memory.physical is not None and d.id in most}
    held = {
        d.id: d.in_use if d.memory.physical is None else pools.get(d.memory.physical, d.in_use) for d in fleet.devices
    }
    return replace(
        fleet, devices=tuple(replace(d, in_use=most.get(d.id, held[d.id])) for d in fleet.devices), digest=""
    )


def unknowns(admission: Admission) -> Iterator[Change]:
    """State what is unknown: the capacity that is needed, the most that others may hold, or that peer copies are
    staged (which is always possible), or direct. Each part is marked `unknown`: it holds if it is true, and is no
    matter of choice.
    """
    ask = admission.ask
    capacity = _agreeing(ask.fleet, least_capacities(admission, ("CAPACITY_UNKNOWN",)))
    if capacity:
        held = {d.capacity_field: d.memory.capacity.value for d in ask.fleet.devices}
        changes = [
            {"field": f, "from": None if held[f] is None else f"{held[f]} B", "to": f"{to} B", "unknown": True}
            for f, to in sorted(capacity.items())
        ]
        yield Change(document=joined(changes), ask=replace(ask, fleet=_with_capacities(ask.fleet, capacity)))
    unsaid = [reason.device for reason in admission.reasons if reason.code == "IN_USE_UNKNOWN" and reason.device]
    if unsaid:
        most = {name: each or 0 for name, each in _most_in_use(admission).items() if name in unsaid}
        parts = [part | {"unknown": True} for part in _in_use_parts(ask.fleet, most)]
        yield Change(document=joined(parts), ask=replace(ask, fleet=_with_in_use(ask.fleet, most)))
    links = _unknown_links(admission)
    for peer in _PEERS if links else ():
        changes = [
            {"field": f"links[{src}->{dst}].peer_access", "from": "unknown", "to": peer, "unknown": True}
            for src, dst in links
        ]  # fmt: skip
        yield Change(document=joined(changes), ask=replace(ask, fleet=_with_peer(ask.fleet, links, peer, "unknown")))


_PEERS: tuple[PeerAccess, ...] = ("staged", "direct")


def _unknown_links(admission: Admission) -> list[tuple[str, str]]:
    """The links, of all ranks and all switches on the way, whose peer access decides how the handoff goes."""
    direct = admission.readings.get("direct")
    rows = () if direct is None else direct.rows
    legs = [leg for row in rows if row.phase == "handoff" for leg in row.legs or ()]
    passed = [(link.src, link.dst) for leg in legs for link in leg.through if link.peer_access == "unknown"]
    return list(dict.fromkeys(passed))


def _with_peer(fleet: Fleet, ends: list[tuple[str, str]], peer: PeerAccess, now: PeerAccess | None = None) -> Fleet:
    """Peer access of the links between these ends; `now`: of those alone that have this one."""
    meant = set(ends)
    links = tuple(
        replace(link, peer_access=peer) if (link.src, link.dst) in meant and now in (None, link.peer_access) else link
        for link in fleet.links
    )
    return replace(fleet, links=links, digest="")
