"""What a placement must or should keep to: one node, one domain, spread over nodes, not these devices.

A domain is one that the fleet describes; devices in none of these lie in the group that links with direct peer access
join, over switches or not, those of the network left out. What is required excludes; what is preferred goes before the
objective, fewest broken first.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from fleet.errors import DescriptionError, Fault
from fleet.machine import Fleet

Rule = Literal["same-node", "same-domain", "spread"]
RULES: tuple[Rule, ...] = ("same-node", "same-domain", "spread")
_CONTRADICT = (("same-node", "spread"),)
COMMAND_LINE = "command line"


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraints:
    """`required` and `preferred` rules; `excluded` devices are not used, `avoided` ones only where nothing else is.

    `prefill`, `decode`: the only devices that may serve a phase; None = any.
    """

    required: tuple[Rule, ...] = ()
    preferred: tuple[Rule, ...] = ()
    excluded: frozenset[str] = frozenset()
    avoided: frozenset[str] = frozenset()
    prefill: frozenset[str] | None = None
    decode: frozenset[str] | None = None

    def allows(self, device: str, phase: str) -> bool:
        """Whether a device may serve a phase."""
        only = self.prefill if phase == "prefill" else self.decode
        return device not in self.excluded and (only is None or device in only)

    @property
    def words(self) -> tuple[str, ...]:
        """What excludes, one option each."""
        told = [f"--require {rule}" for rule in self.required]
        told += ["--exclude"] * bool(self.excluded)
        return (*told, *(["--prefill"] * (self.prefill is not None)), *(["--decode"] * (self.decode is not None)))

    def without(self, word: str) -> Constraints:
        """The same less one of `words`."""
        from dataclasses import replace

        if word.startswith("--require "):
            rule = word.removeprefix("--require ")
            return replace(self, required=tuple(each for each in self.required if each != rule))
        cleared: dict[str, frozenset[str] | None] = {"--exclude": frozenset(), "--prefill": None, "--decode": None}
        fields = {"--exclude": "excluded", "--prefill": "prefill", "--decode": "decode"}
        return replace(self, **{fields[word]: cleared[word]})  # type: ignore[arg-type]  # one field of its own type


@dataclass(slots=True)
class Neighbourhood:
    """Which devices share a node, or a domain."""

    node: Mapping[str, str]
    domains: Mapping[str, frozenset[str]]
    _kept: dict[tuple[str, ...], tuple[Rule, ...]] = field(default_factory=dict)

    def keeps(self, rule: Rule, devices: Sequence[str]) -> bool:
        """Whether these devices, taken together, keep to a rule."""
        if rule == "same-domain":
            return bool(frozenset.intersection(*(self.domains.get(name, frozenset()) for name in devices)))
        nodes = {self.node[name] for name in devices}
        return len(nodes) == (1 if rule == "same-node" else len(devices))

    def broken(self, constraints: Constraints, devices: Sequence[str]) -> tuple[str, ...]:
        """The preferences that these devices break, in words."""
        told = [rule for rule in constraints.preferred if not self.keeps(rule, devices)]
        return (*told, *(f"avoid {name}" for name in devices if name in constraints.avoided))


def neighbourhood(fleet: Fleet) -> Neighbourhood:
    """Nodes and domains of all devices."""
    held: dict[str, set[str]] = {device.id: set() for device in fleet.devices}
    for domain in fleet.domains:
        for member in domain.members:
            held.setdefault(member, set()).add(domain.id)
    for name, group in _joined(fleet).items():
        if not held[name]:
            held[name].add(f"links of {group}")
    node = {host.id: host.node or host.id for host in fleet.hosts}
    return Neighbourhood(
        node={device.id: node.get(device.host, device.host) for device in fleet.devices},
        domains={name: frozenset(ids) for name, ids in held.items()},
    )


def _joined(fleet: Fleet) -> dict[str, str]:
    """The first device of the group that direct links join, the network's left out; for devices with such links."""
    devices = [device.id for device in fleet.devices]
    known = {*devices, *(switch.id for switch in fleet.switches)}
    near: dict[str, list[str]] = {}
    for link in fleet.links:
        if link.peer_access == "direct" and link.kind != "net" and link.src in known and link.dst in known:
            near.setdefault(link.src, []).append(link.dst)
            near.setdefault(link.dst, []).append(link.src)
    group: dict[str, str] = {}
    for first in devices:
        ready = [first] if first in near and first not in group else []
        while ready:
            at = ready.pop()
            if at not in group:
                group[at] = first
                ready += near[at]
    return {name: group[name] for name in devices if name in group}


def named_devices(fleet: Fleet, patterns: Iterable[str], flag: str) -> frozenset[str]:
    """Ids, `*` patterns, lists `gpu:0,gpu:1` and ranges `gpu:0-3` as ids. DescriptionError names what is not there."""
    from fleet.placement import device_list

    known = [device.id for device in fleet.devices]
    held = set(known)
    found: set[str] = set()
    faults: list[Fault] = []
    for pattern in (part for text in patterns for part in text.split(",")):
        try:
            listed = device_list(pattern, held).split(",")
        except ValueError as error:
            faults.append(Fault(source=COMMAND_LINE, field=flag, message=str(error)))
            continue
        for name in listed:
            matched = {name} & held or ({*fnmatch.filter(known, name)} if "*" in name else set())
            found |= matched
            if not matched:
                faults.append(Fault(source=COMMAND_LINE, field=flag, message=_not_there(fleet, name, known)))
    if faults:
        raise DescriptionError(faults)
    return frozenset(found)


def _not_there(fleet: Fleet, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else "."
    listed = ", ".join(known[:8]) + (f" and {len(known) - 8} more" if len(known) > 8 else "")
    return f"{name!r} is no device of fleet {fleet.name}{hint} It has {listed or 'none'}"


def contradictions(constraints: Constraints, *, of_pair: bool) -> list[str]:
    """In words, what cannot hold together whatever the fleet is."""
    told = [
        f"--require {one} and --require {other} contradict each other: no two devices share a node and have one each"
        for one, other in _CONTRADICT
        if one in constraints.required and other in constraints.required
    ]
    told += [
        f"--require {rule} and --prefer {rule} say the same twice; keep one"
        for rule in constraints.required
        if rule in constraints.preferred
    ]
    told += [
        f"--require {one} makes --prefer {other} impossible; leave one out"
        for pair in _CONTRADICT
        for one, other in (pair, pair[::-1])
        if one in constraints.required and other in constraints.preferred
    ]
    told += [
        f"--prefer {one} and --prefer {other} contradict each other, and decide nothing of a pair; keep one"
        for one, other in _CONTRADICT
        if of_pair and one in constraints.preferred and other in constraints.preferred
    ]
    both = constraints.excluded & ((constraints.prefill or frozenset()) | (constraints.decode or frozenset()))
    for phase, only in (("prefill", constraints.prefill), ("decode", constraints.decode)):
        if only is not None and only <= both:
            told.append(f"--exclude leaves nothing of --{phase} {', '.join(sorted(only)[:4])}")
    one_each = constraints.prefill is not None and constraints.prefill == constraints.decode
    if of_pair and one_each and constraints.prefill is not None and len(constraints.prefill) == 1:
        told.append(
            "--prefill and --decode name one and the same device: a split needs two (kvwaybill admit takes one)"
        )
    return told
