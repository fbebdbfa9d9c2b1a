"""The smallest single changes that would be admitted. Each one is found exactly and admitted again before it is told.

Order of preference: what costs the user least first. A share of the device that was left unused, cache positions nobody
needs, fewer sequences, fewer passes, another device, and only then a figure of the fleet, which means other hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from fleet.host_return import assume_host_return
from fleet.machine import Device, Figure, Fleet, Link, Quantity
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.request import with_passes
from planner.shared_memory import shared_memories

_STEP = 10_000
"""A suggested utilization has four decimals."""
_PHASES = ("decode", "prefill")
_MOST_DEVICES = 64
"""Devices tried in place of one: a whole fleet is `place`'s affair."""
_ROUNDS = 8
"""A repaired fleet may show a next fault; each round mends one kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """One change and the request that results. `document` is {flag | field, from, to} for the plan."""

    document: dict[str, Any]
    ask: Ask


def explain_refusal(admission: Admission) -> tuple[Admission, tuple[dict[str, Any], ...]]:
    """The same admission with a fix on its errors, and all admitted changes, least costly first."""
    if admission.verdict != "refused":
        return admission, ()
    documents = tuple(change.document for change in offered(admission))
    if not documents:
        return admission, ()
    reasons = tuple(
        replace(reason, fix=documents[0]) if reason.severity == "error" else reason for reason in admission.reasons
    )
    return replace(admission, reasons=reasons), documents


def offered(admission: Admission) -> list[Change]:
    """The changes that a refusal tells: single ones that are admitted, else changes that are admitted together."""
    single = [change for change in candidates(admission) if admit(change.ask).verdict == "admitted"]
    return single or list(_together(admission))


def _together(admission: Admission) -> Iterator[Change]:
    """Where no single change will do: changes of the fleet file taken together, until the plan is admitted."""
    documents: list[dict[str, Any]] = []
    for _ in range(_ROUNDS):
        links = (_host_return, _links) if admission.ask.fleet.format else (_links,)
        sources = (_capacities, _pools, *links, _unknowns)
        change = next((c for source in sources for c in source(admission)), None)
        if change is None:
            return
        documents += [{k: v for k, v in change.document.items() if k != "and"}, *change.document.get("and", [])]
        admission = admit(change.ask)
        if admission.verdict == "admitted":
            yield Change(document={**documents[0], "and": documents[1:]}, ask=change.ask)
            return


def candidates(admission: Admission) -> Iterator[Change]:
    """Changes worth trying, in order of preference. Not all of them are admitted."""
    # A text of a foreign format has no line in which a link could be written; a flag adds those of hosts.
    links = (_host_return, _links) if admission.ask.fleet.format else (_links, _host_return)
    for source in (_utilization, _positions, _batch, _passes, _devices, _pools, _capacities, *links, _one_device):
        yield from source(admission)


def _utilization(admission: Admission) -> Iterator[Change]:
    """The smallest share of capacity (four decimals) that holds every device."""
    ask, needed = admission.ask, Fraction(0)
    for reason in admission.reasons:
        if reason.code == "EXCEEDS_CAPACITY":
            return
        if reason.code == "EXCEEDS_BUDGET" and reason.device is not None and reason.needed_bytes is not None:
            capacity = admission.budgets[reason.device].capacity_bytes
            if not capacity:
                return
            needed = max(needed, Fraction(reason.needed_bytes + ask.fleet.budget.reserve, capacity))
    if not needed or needed > 1:
        return
    share = Fraction(-(-needed.numerator * _STEP // needed.denominator), _STEP)
    if share > 1:
        share = Fraction(1)
    document = {"flag": "--utilization", "from": _decimal(admission.utilization), "to": _decimal(share)}
    yield Change(document=document, ask=replace(ask, utilization=share))


def _decimal(share: Fraction) -> str:
    return f"{float(share):.4f}".rstrip("0").rstrip(".")


def _positions(admission: Admission) -> Iterator[Change]:
    """The most cache positions that fit, where more were asked for than the passes need."""
    ask, workload = admission.ask, admission.workload
    if workload is None or ask.request.positions is None or workload.positions <= workload.passes:
        return

    def with_positions(count: int) -> Ask:
        return replace(ask, request=replace(ask.request, positions=count))

    best = _largest(workload.passes, workload.positions - 1, with_positions)
    if best is not None:
        yield Change(document={"flag": "--positions", "from": workload.positions, "to": best}, ask=with_positions(best))


def _batch(admission: Admission) -> Iterator[Change]:
    ask, workload = admission.ask, admission.workload
    if workload is None or workload.batch == 1:
        return

    def with_batch(count: int) -> Ask:
        return replace(ask, request=replace(ask.request, batch=count))

    best = _largest(1, workload.batch - 1, with_batch)
    if best is not None:
        yield Change(document={"flag": "--batch", "from": workload.batch, "to": best}, ask=with_batch(best))


def _passes(admission: Admission) -> Iterator[Change]:
    """The most passes that fit and still hand over; positions that were asked for go down with them."""
    ask, workload = admission.ask, admission.workload
    if workload is None or workload.decode_passes < 2:
        return
    if ask.request.positions is not None:
        return  # the cache is sized by --positions; fewer passes alone change nothing

    def with_count(count: int) -> Ask:
        return replace(ask, request=with_passes(ask.request, workload, count)[0])

    best = _largest(workload.prompt_tokens + 1, workload.passes - 1, with_count)
    if best is not None:
        request, flag, before, after = with_passes(ask.request, workload, best)
        yield Change(document={"flag": flag, "from": before, "to": after}, ask=replace(ask, request=request))


def _largest(low: int, high: int, ask_for: Callable[[int], Ask]) -> int | None:
    """The largest value in [low, high] that is admitted; memory only grows with it, so bisection is exact."""
    if low > high or admit(ask_for(low)).verdict != "admitted":
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if admit(ask_for(middle)).verdict == "admitted":
            low = middle
        else:
            high = middle - 1
    return low


def _devices(admission: Admission) -> Iterator[Change]:
    """Swapped roles, or a third device for one phase: the request stays split."""
    ask, placed = admission.ask, admission.ask.placement
    if placed.is_oracle or placed.is_split:
        return
    swapped = Placement(prefill=placed.decode, decode=placed.prefill)
    flags = [{"flag": f"--{phase}", "from": getattr(placed, phase), "to": getattr(swapped, phase)} for phase in _PHASES]
    yield Change(document={**flags[0], "and": flags[1:]}, ask=replace(ask, placement=swapped))
    others = [d.id for d in ask.fleet.devices if d.id not in placed.devices]
    for phase in _PHASES:
        for name in others[:_MOST_DEVICES]:
            yield _moved(admission, phase, name)


def _one_device(admission: Admission) -> Iterator[Change]:
    """Both phases on one device: it needs no peer, but it is no split any more; so it comes last."""
    placed = admission.ask.placement
    if placed.is_split:
        return
    if not placed.is_oracle:
        yield _moved(admission, "decode", placed.prefill)
        yield _moved(admission, "prefill", placed.decode)
        return
    for name in [d.id for d in admission.ask.fleet.devices if d.id != placed.prefill][:_MOST_DEVICES]:
        yield from (_moved(admission, phase, name) for phase in _PHASES)


def _moved(admission: Admission, phase: str, name: str) -> Change:
    placed = admission.ask.placement
    moved = {"prefill": placed.prefill, "decode": placed.decode, phase: name}
    placement = Placement(prefill=moved["prefill"], decode=moved["decode"])
    document = {"flag": f"--{phase}", "from": getattr(placed, phase), "to": name}
    return Change(document=document, ask=replace(admission.ask, placement=placement))


def _pools(admission: Admission) -> Iterator[Change]:
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


def _capacities(admission: Admission) -> Iterator[Change]:
    """The smallest capacities that hold every device; one change where the devices share a field of the file."""
    ask = admission.ask
    needed: dict[str, int] = {}
    for reason in admission.reasons:
        if reason.code in ("EXCEEDS_CAPACITY", "EXCEEDS_BUDGET") and reason.device is not None:
            device = ask.fleet.device(reason.device)
            assert device is not None
            assert reason.needed_bytes is not None
            least = _least_capacity(reason.needed_bytes + ask.fleet.budget.reserve, admission.utilization)
            needed[device.capacity_field] = max(needed.get(device.capacity_field, 0), least)
    for name, least in _shared_capacities(admission):
        needed[name] = max(needed.get(name, 0), least)
    if not needed:
        return
    held = {d.capacity_field: d.memory.capacity.value for d in ask.fleet.devices}
    changes = [{"field": f, "from": f"{held[f]} B", "to": f"{to} B"} for f, to in sorted(needed.items())]
    document: dict[str, Any] = changes[0] if len(changes) == 1 else {**changes[0], "and": changes[1:]}
    yield Change(document=document, ask=replace(ask, fleet=_with_capacities(ask.fleet, needed)))


def _shared_capacities(admission: Admission) -> Iterator[tuple[str, int]]:
    """(field, bytes) of the memories that several devices of the plan lie in, and that are too small for all of them.

    The devices must agree on the size, so the field of each is told.
    """
    fleet = admission.ask.fleet
    if admission.prediction is None or not any(r.code == "EXCEEDS_SHARED_MEMORY" for r in admission.reasons):
        return
    for shared in shared_memories(fleet, admission.prediction.footprints):
        least = _least_capacity(shared.total_bytes + fleet.budget.reserve, admission.utilization)
        for device in fleet.devices:
            held = device.memory.capacity.value
            if device.memory.physical == shared.physical and (held is None or held < least):
                yield device.capacity_field, least


def _least_capacity(needed: int, utilization: Fraction) -> int:
    """The smallest c with floor(c * u) >= needed, which is ceil(needed / u)."""
    return -(-needed * utilization.denominator // utilization.numerator)


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


def _policy(value: int) -> Quantity:
    return Quantity(declared=Figure(value=value, provenance="policy", source="proposed fix"))


def _links(admission: Admission) -> Iterator[Change]:
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
    document = documents[0] if len(documents) == 1 else {**documents[0], "and": documents[1:]}
    fleet = replace(ask.fleet, links=(*ask.fleet.links, *links), digest="")
    yield Change(document=document, ask=replace(ask, fleet=fleet))


def _host_return(admission: Admission) -> Iterator[Change]:
    """Assume the host links that the fleet lacks: policy, without a rate."""
    ask = admission.ask
    if not any(reason.code == "NO_ROUTE" for reason in admission.reasons):
        return
    fleet = assume_host_return(ask.fleet)
    if fleet.links != ask.fleet.links:
        document = {"flag": "--assume-host-return", "from": None, "to": True}
        yield Change(document=document, ask=replace(ask, fleet=fleet))


def _unknowns(admission: Admission) -> Iterator[Change]:
    """State what is unknown: the capacity that is needed, or that peer copies are staged (which is always possible)."""
    ask = admission.ask
    capacity: dict[str, int] = {}
    for reason in admission.reasons:
        if reason.code == "CAPACITY_UNKNOWN" and reason.device is not None and reason.needed_bytes is not None:
            device = ask.fleet.device(reason.device)
            assert device is not None
            least = _least_capacity(reason.needed_bytes + ask.fleet.budget.reserve, admission.utilization)
            capacity[device.capacity_field] = max(capacity.get(device.capacity_field, 0), least)
    if capacity:
        changes = [{"field": f, "from": None, "to": f"{to} B"} for f, to in sorted(capacity.items())]
        document: dict[str, Any] = changes[0] if len(changes) == 1 else {**changes[0], "and": changes[1:]}
        yield Change(document=document, ask=replace(ask, fleet=_with_capacities(ask.fleet, capacity)))
    for reason in admission.reasons:
        if reason.code == "PEER_ACCESS_UNKNOWN" and reason.edge is not None:
            src, dst = reason.edge
            links = tuple(
                replace(link, peer_access="staged") if (link.src, link.dst) == (src, dst) else link
                for link in ask.fleet.links
            )
            document = {"field": f"links[{src}->{dst}].peer_access", "from": "unknown", "to": "staged"}
            yield Change(document=document, ask=replace(ask, fleet=replace(ask.fleet, links=links, digest="")))
