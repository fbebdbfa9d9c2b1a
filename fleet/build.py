"""The checked rows of a fleet file -> the values of `fleet.machine`: rows of one part, and parts stamped as nodes.

A template is turned into values once and stamped under a prefix, so that ten thousand devices take seconds; links keep
to switches and are never made for all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING

from fleet.identity import index_in_id, kind_in_id, natural_order
from fleet.machine import UNKNOWN, Device, Domain, Figure, Host, Link, Memory, Nic, PeerAccess, Quantity, Switch
from fleet.reference_nodes import node_names, pattern
from fleet.references import DEFAULT_HOST
from fleet.yaml_source import Path, printable

if TYPE_CHECKING:
    from fleet.schema import DeviceFile, FleetFile, LinkFile, MemoryFile, PartFile, SkuFile

MAX_ID = 64
MAX_ALL = 10_000
"""More links of one row with `each: all` are a mesh that should be a switch."""
MAX_LINKS = 1_000_000
NO_RUNTIME = Quantity(
    declared=Figure(value=0, provenance="policy", source="default: no runtime declared", verified=False)
)
"""What a device takes before the first buffer when its description does not say."""

Told = tuple[Path, str, bool]
Where = Callable[[Path], str]


@dataclass(slots=True)
class Rows:
    """What a part describes. Ids are those within the part."""

    hosts: list[Host] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    nics: list[Nic] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def ids(self) -> list[str]:
        """All ids, in the order of the rows."""
        names = [host.id for host in self.hosts] + [device.id for device in self.devices]
        return names + [switch.id for switch in self.switches] + [nic.id for nic in self.nics]

    def add(self, other: Rows, prefix: str) -> None:
        """The rows of a stamp under its prefix."""
        ahead = f"{prefix}/"
        self.hosts += [replace(h, id=ahead + h.id, node=_under(ahead, h.node)) for h in other.hosts]
        self.devices += [_stamped(device, ahead) for device in other.devices]
        self.switches += [replace(s, id=ahead + s.id, host=_under(ahead, s.host)) for s in other.switches]
        self.nics += [replace(n, id=ahead + n.id, host=ahead + n.host) for n in other.nics]
        self.links += [_moved(link, ahead + link.src, ahead + link.dst) for link in other.links]


def _under(ahead: str, name: str | None) -> str | None:
    return None if name is None else ahead + name


def _stamped(device: Device, ahead: str) -> Device:
    memories = device.memories
    if any(memory.physical for memory in memories):
        memories = tuple(replace(memory, physical=_under(ahead, memory.physical)) for memory in memories)
    parent = _under(ahead, device.parent)
    return replace(device, id=ahead + device.id, host=ahead + device.host, parent=parent, memories=memories)


def _moved(link: Link, src: str, dst: str) -> Link:
    return Link(
        src=src, dst=dst, kind=link.kind, count=link.count, bandwidth=link.bandwidth, latency=link.latency,
        peer_access=link.peer_access, where=link.where, duplex=link.duplex, copy_engines=link.copy_engines,
    )  # fmt: skip


class Builder:
    """Builds a checked file. `where` gives `file:line` of a path, `field_of` the field as written.

    `told` collects the faults that show only once ids are written out.
    """

    def __init__(self, model: FleetFile, where: Where, field_of: Callable[[Path], str]) -> None:
        self.model = model
        self.where = where
        self.field_of = field_of
        self.told: list[Told] = []
        self.templates: dict[str, Rows] = {}
        self._order: list[str] = []

    def rows(self) -> Rows:
        """Everything, flat, slices with the links of their cards."""
        rows = self._part(self.model, ())
        _slice_links(rows)
        return rows

    def rank(self, rows: Rows) -> dict[str, int]:
        """The place of each id in the natural order of all of them."""
        if not self._order:
            self._order = sorted(rows.ids(), key=natural_order)
        return {name: place for place, name in enumerate(self._order)}

    def domains(self, rows: Rows) -> tuple[Domain, ...]:
        """The domains with their members written out."""
        ids = list(self.rank(rows)) if self.model.fabric.domains else []
        known = set(ids)
        found = []
        for name, domain in sorted(self.model.fabric.domains.items()):
            members = {one for end in domain.members for one in _matches(end, ids, known)}
            found.append(Domain(id=name, kind=domain.kind, members=tuple(sorted(members, key=natural_order))))
        return tuple(found)

    def _part(self, part: PartFile, start: Path) -> Rows:
        rows = self._own(part, start)
        for position, node in enumerate(part.nodes):
            inner = self._template(node.template)
            longest = max(map(len, inner.ids()), default=0)
            stated = {} if node.count is None else {"count": str(node.count)}
            for prefix in node_names(node.id, stated):
                if len(prefix) + 1 + longest > MAX_ID:
                    message = f"makes ids of {len(prefix) + 1 + longest} characters; at most {MAX_ID}"
                    self.told.append(((*start, "nodes", position, "id"), message, False))
                    break
                rows.add(inner, prefix)
        self._unique(rows, part, start)
        self._links(rows, part.links, start)
        return rows

    def _template(self, name: str) -> Rows:
        if name not in self.templates:
            self.templates[name] = self._part(self.model.templates[name], ("templates", name))
        return self.templates[name]

    def _ordered(self, rows: Rows, start: Path) -> list[str]:
        return sorted(rows.ids(), key=natural_order) if start else list(self.rank(rows))

    def _unique(self, rows: Rows, part: PartFile, start: Path) -> None:
        """A written id may be that of something stamped."""
        if not part.nodes:
            return
        seen: set[str] = set()
        for name in rows.ids():
            if name in seen:
                self.told.append(((*start, "nodes"), f"stamp {name}, which is there already; rename one", False))
            seen.add(name)

    def _own(self, part: PartFile, start: Path) -> Rows:
        """The written rows, without nodes and links."""

        def at(section: str, position: int) -> str:
            return self.where((*start, section, position))

        hosts = [
            Host(
                id=h.id,
                pinned_pool=h.pinned_pool,
                numa_nodes=h.numa_nodes,
                label=h.label,
                where=at("hosts", i),
                node=h.node,
            )
            for i, h in enumerate(part.hosts)
        ]
        if not hosts and (part.devices or not part.nodes):
            hosts = [Host(id=DEFAULT_HOST, where=self.where(start))]
        only = hosts[0].id if hosts else DEFAULT_HOST
        cards = {device.id: device.host or only for device in part.devices}
        return Rows(
            hosts=hosts,
            devices=[self._device(d, (*start, "devices", i), cards) for i, d in enumerate(part.devices)],
            switches=[
                Switch(id=s.id, kind=s.kind, host=s.host, tier=s.tier, label=s.label, where=at("switches", i))
                for i, s in enumerate(part.switches)
            ],
            nics=[
                Nic(id=n.id, host=n.host or only, pci=n.pci, numa=n.numa, label=n.label, where=at("nics", i))
                for i, n in enumerate(part.nics)
            ],
        )

    def _device(self, row: DeviceFile, path: Path, cards: dict[str, str]) -> Device:
        sku = self.model.skus[row.sku] if row.sku else None
        kind = row.kind or (sku.kind if sku else kind_in_id(row.id))
        assert kind in ("gpu", "cpu", "npu"), "fleet.references tells a device without a kind"
        index = row.index if row.index is not None or row.parent else index_in_id(row.id)
        files = row.memories if row.memories is not None else (sku.memories if sku else ())
        place: Path = path if row.memories is not None or row.sku is None else ("skus", row.sku)
        default = _default_memory(files, (row.default_memory, sku.default_memory if sku else None))
        at = [memory.name for memory in files].index(default)
        return Device(
            id=row.id,
            kind=kind,  # type: ignore[arg-type]  # one of the three, asserted above
            index=index,
            topology_id=0,  # given once all devices are known
            host=row.host or cards[row.parent or row.id],
            sku=row.sku,
            memories=tuple(_memory(memory) for memory in sorted(files, key=lambda memory: memory.name)),
            default_memory=default,
            runtime=_runtime(row, sku),
            uuid=row.uuid,
            pci=row.pci,
            numa=row.numa,
            where=self.where(path),
            capacity_field=self.field_of((*place, "memories", at, "capacity")),
            arch=row.arch or (sku.arch if sku else None),
            label=row.label,
            parent=row.parent,
            profile=row.profile,
            compute=_compute(row, sku),
        )

    def _links(self, rows: Rows, written: Sequence[LinkFile], start: Path) -> None:
        """The links of a part: between its own rows and whatever was stamped in it."""
        through = {host.id for host in rows.hosts} | {nic.id for nic in rows.nics}
        known = set(rows.ids())
        starred = any("*" in link.src + link.dst for link in written)
        ids = self._ordered(rows, start) if starred else []
        taken = {(link.src, link.dst, link.kind) for link in rows.links} if starred else set()
        for position, link in enumerate(written):
            path = (*start, "links", position)
            where = self.where(path)
            for src, dst in self._ways(link, path, ids, known):
                if starred and (src, dst, link.kind) in taken:
                    self.told.append((path, f"makes {src} -> {dst} ({link.kind}), which is there already", False))
                    break
                taken.add((src, dst, link.kind))
                rows.links.append(_link(link, src, dst, where, through))
            if len(rows.links) > MAX_LINKS:
                self.told.append((path, f"makes more than {MAX_LINKS:,} links; join devices by switches", False))
                return

    def _ways(self, link: LinkFile, path: Path, ids: list[str], known: set[str]) -> Iterable[tuple[str, str]]:
        """(src, dst) of every one-way link that a row stands for, each once."""
        srcs, dsts = _matches(link.src, ids, known), _matches(link.dst, ids, known)
        if link.each == "pair":
            if len(srcs) != len(dsts):
                told = f"pairs {len(srcs)} ids of {printable(link.src)} with {len(dsts)} of {printable(link.dst)}"
                self.told.append((path, f"{told}; both must match as many", False))
                return {}
            ways = list(zip(srcs, dsts, strict=True))
        elif link.each == "all" and len(srcs) * len(dsts) > MAX_ALL:
            told = f"makes {len(srcs) * len(dsts):,} links; at most {MAX_ALL:,}: join the devices by a switch"
            self.told.append((path, told, False))
            return {}
        else:
            ways = list(product(srcs, dsts))
        both = [way for src, dst in ways if src != dst for way in _both(src, dst, link.bidirectional)]
        return dict.fromkeys(both)


def _both(src: str, dst: str, bidirectional: bool) -> list[tuple[str, str]]:
    return [(src, dst), (dst, src)] if bidirectional else [(src, dst)]


def _matches(end: str, ids: list[str], known: set[str]) -> list[str]:
    if "*" not in end:
        return [end] if end in known else []
    wanted = pattern(end)
    return [name for name in ids if wanted.fullmatch(name)]


def _default_memory(memories: Sequence[MemoryFile], wanted: tuple[str | None, str | None]) -> str:
    """The first of `wanted` that is one of the memories; the only memory otherwise."""
    names = [memory.name for memory in memories]
    return next((name for name in wanted if name in names and name is not None), names[0])


def _runtime(row: DeviceFile, sku: SkuFile | None) -> Quantity:
    runtime = row.runtime if row.runtime is not None else (sku.runtime if sku else None)
    return NO_RUNTIME if runtime is None or runtime == UNKNOWN else runtime


def _compute(row: DeviceFile, sku: SkuFile | None) -> tuple[tuple[str, Quantity], ...]:
    """The device's own rates, else its SKU's; a slice of a card has not the rates of the card."""
    rates = row.compute if row.compute is not None else sku.compute if sku and row.parent is None else {}
    return tuple((name, rate) for name, rate in sorted(rates.items()) if rate != UNKNOWN)


def _memory(row: MemoryFile) -> Memory:
    return Memory(
        name=row.name, role=row.role, capacity=row.capacity, bandwidth=row.bandwidth, granule=row.granule,
        within=row.within, scope=row.scope, managed=row.managed, shared=row.shared, physical=row.physical,
    )  # fmt: skip


def _link(row: LinkFile, src: str, dst: str, where: str, through: set[str]) -> Link:
    peers = src not in through and dst not in through
    return Link(
        src=src, dst=dst, kind=row.kind, count=row.count, bandwidth=row.bandwidth, latency=row.latency,
        peer_access=(row.peer_access or "unknown") if peers else None, where=where, duplex=row.duplex,
        copy_engines=row.copy_engines,
    )  # fmt: skip


def _slice_links(rows: Rows) -> None:
    """A slice without links of its own has those of its card; what peers it reaches is then unknown."""
    slices = [device for device in rows.devices if device.parent is not None]
    if not slices:
        return
    ends = {link.src for link in rows.links} | {link.dst for link in rows.links}
    bare = [device for device in slices if device.id not in ends]
    by_card: dict[str, list[str]] = {}
    for device in bare:
        by_card.setdefault(device.parent or "", []).append(device.id)
    for link in list(rows.links):
        peer: PeerAccess | None = None if link.peer_access is None else "unknown"
        ways = [(name, link.dst) for name in by_card.get(link.src, ())]
        ways += [(link.src, name) for name in by_card.get(link.dst, ())]
        rows.links += [replace(link, src=src, dst=dst, peer_access=peer) for src, dst in ways]
