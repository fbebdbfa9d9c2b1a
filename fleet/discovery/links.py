"""From cards to links: NVLink between cards or to their switch, C2C, PCIe slots, PCIe switches, and peer access."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations

from fleet.discovery.cards import Card, Cards
from fleet.discovery.nvml import NvLink, Peer
from fleet.discovery.pci import PciDevice, PciTree
from fleet.identity import pci_key
from fleet.machine import UNKNOWN, Figure, Link, PeerAccess, Quantity, Switch
from fleet.readers.pcie import between, pcie_rate, rate_figure, slowest
from fleet.readers.skus import Sku, find_sku

__all__ = ["Wiring", "sku_of"]

HOST = "host"
NVSWITCH = "nvswitch"
_SPEEDS = {1: "2.5", 2: "5", 3: "8", 4: "16", 5: "32", 6: "64", 7: "128"}
"""GT/s by PCIe generation (PCI-SIG)."""


def sku_of(card: Card) -> Sku | None:
    """What the catalog says of the card; None where its name is in no table."""
    return None if card.sku is None else find_sku(card.sku)


class Wiring:
    """The links, switches and notes of one machine."""

    def __init__(self, found: Cards, tree: PciTree) -> None:
        self.found, self.tree = found, tree
        self.links: list[Link] = []
        self.switches: list[Switch] = []
        self.notes: list[str] = []
        self.switched: list[str] = []
        self.joined: set[frozenset[int]] = set()
        self.bridges: dict[str, str] = {}
        self._by_pci = {pci_key(card.pci): card for card in found.cards if card.pci is not None}
        self.below = self._shared_bridges()
        self._nvlinks()
        self._pcie_switches()
        self._slots()
        self._pairs()

    def add(
        self,
        a: str,
        b: str,
        kind: str,
        rate: Quantity,
        count: int = 1,
        peer: PeerAccess | None = None,
        back: PeerAccess | None = None,
        *,
        latency: Quantity = UNKNOWN,
    ) -> None:
        """Both directions of a link; `back` is the peer access of the second where it differs."""
        for src, dst, access in ((a, b, peer), (b, a, peer if back is None else back)):
            self.links.append(
                Link(src=src, dst=dst, kind=kind, count=count, bandwidth=rate, latency=latency, peer_access=access)
            )

    def access(self, a: Card, b: Card) -> tuple[Peer, Peer]:
        """What is known of peer access, there and back."""
        known = self.found.peers
        return known.get((a.index, b.index), "unknown"), known.get((b.index, a.index), "unknown")

    # NVLink

    def _nvlinks(self) -> None:
        pairs: dict[tuple[int, int], list[NvLink]] = defaultdict(list)
        for card in self.found.cards:
            to_switch, strange = [], Counter[str]()
            for lane in card.nvlinks or ():
                other = self._by_pci.get(pci_key(lane.pci)) if lane.pci is not None else None
                if lane.end in ("gpu", "unknown") and other is not None and other is not card:
                    pairs[card.index, other.index].append(lane)
                elif lane.end == "switch":
                    to_switch.append(lane)
                else:
                    strange[lane.end] += 1
            if to_switch:
                self._to_switch(card, to_switch)
            for end, count in strange.items():
                what = "its processor" if end == "cpu" else "nothing that is known here"
                self.notes.append(f"{card.id} has {count} NVLinks to {what}: not described")
        self._direct(pairs)

    def _direct(self, pairs: dict[tuple[int, int], list[NvLink]]) -> None:
        cards = {card.index: card for card in self.found.cards}
        for a, b in sorted({(min(pair), max(pair)) for pair in pairs}):
            there, back = pairs.get((a, b), []), pairs.get((b, a), [])
            lanes = there or back
            if there and back and len(there) != len(back):
                told = f"gpu:{a} tells {len(there)} NVLinks to gpu:{b}, gpu:{b} tells {len(back)} back"
                self.notes.append(f"{told}; the lesser number is taken")
                lanes = min(there, back, key=len)
            peer, peer_back = self.access(cards[a], cards[b])
            rate = _lanes_rate(cards[a], lanes)
            self.add(f"gpu:{a}", f"gpu:{b}", "nvlink", rate, len(lanes), peer, peer_back)
            self.joined.add(frozenset((a, b)))

    def _to_switch(self, card: Card, lanes: list[NvLink]) -> None:
        if not self.switches:
            label = "the NVSwitches of the board as one"
            self.switches.append(Switch(id=NVSWITCH, kind="nvlink", host=HOST, label=label))
        others = [other for other in self.found.cards if other is not card]
        known = {word for other in others for word in self.access(card, other)}
        peer: PeerAccess = "direct" if known == {"direct"} else "staged" if known == {"staged"} else "unknown"
        if others and peer == "unknown" and "staged" in known:
            self.notes.append(f"{card.id}: peer access differs from card to card; over the NVSwitch it is left unknown")
        self.add(card.id, NVSWITCH, "nvlink", _lanes_rate(card, lanes), len(lanes), peer)
        self.joined |= {frozenset((card.index, int(other.rpartition(":")[2]))) for other in self.switched}
        self.switched.append(card.id)

    # PCIe

    def rate(self, card: Card) -> int | None:
        """Bytes per second of the card's own slot: what the driver tells, else `/sys`."""
        told = card.pcie
        if told is not None and told.max_generation in _SPEEDS:
            lanes = min(told.max_lanes, told.lanes or told.max_lanes)
            return pcie_rate(_SPEEDS[told.max_generation], lanes)
        return None if card.place is None else self.tree.rates.get(card.place.address)

    def hops(self, card: Card) -> list[tuple[str, int | None]]:
        """The slot and the links of the bridges above it, up to the processor."""
        if card.place is None:
            return [(card.pci or card.id, self.rate(card))]
        return list(self.tree.slot(card.place, self.rate(card)).hops)

    def _shared_bridges(self) -> dict[str, list[str]]:
        """Devices and NICs by the PCIe switch below which two or more of them hang.

        That is the topmost bridge with a link of its own, a root port aside, that several of them have above them.
        """
        ends: list[tuple[str, PciDevice]] = [(card.id, card.place) for card in self.found.cards if card.place]
        ends += [(f"nic:{number}", nic) for number, nic in enumerate(self.tree.nics)]
        crowd = Counter(bridge for _, place in ends for bridge in place.bridges)
        groups: dict[str, list[str]] = defaultdict(list)
        for name, place in ends:
            shared = [b for b in place.bridges[:-1] if crowd[b] > 1 and self.tree.rates.get(b) is not None]
            if shared:
                groups[shared[-1]].append(name)
        return {bridge: names for bridge, names in groups.items() if any(name.startswith("gpu") for name in names)}

    def _pcie_switches(self) -> None:
        cards = {card.id: card for card in self.found.cards}
        for number, (bridge, names) in enumerate(sorted(self.below.items())):
            switch = self.bridges[bridge] = f"pcie-switch:{number}"
            self.switches.append(Switch(id=switch, kind="pcie", host=HOST, label=f"PCIe switch at {bridge}"))
            above = self._above(bridge, [cards[name] for name in names if name in cards])
            self.add(HOST, switch, "pcie", rate_figure(above, f"slowest PCIe link from {bridge} up, /sys"))
            gpus = [cards[name] for name in names if name in cards]
            peer = self._under_one(gpus)
            for card in gpus:
                at = [name for name, _ in self.hops(card)].index(bridge)
                self.add(switch, card.id, "pcie", self._figure(card, slowest(tuple(self.hops(card)[:at]))), 1, peer)

    def _above(self, bridge: str, cards: list[Card]) -> int | None:
        hops = self.hops(cards[0])
        at = [name for name, _ in hops].index(bridge)
        return slowest(tuple(hops[at:]))

    def _under_one(self, gpus: list[Card]) -> PeerAccess:
        """Peer access over a PCIe switch. What NVLink allows says nothing of it."""
        pairs = [pair for pair in combinations(gpus, 2) if frozenset((pair[0].index, pair[1].index)) not in self.joined]
        words = {word for a, b in pairs for word in self.access(a, b)}
        if len(words) == 1:
            self.joined |= {frozenset((a.index, b.index)) for a, b in pairs}
            return words.pop()
        return "staged" if "staged" in words else "unknown"  # pairs that differ have links of their own

    def _slots(self) -> None:
        behind = {name for names in self.below.values() for name in names}
        for card in self.found.cards:
            sku = sku_of(card)
            if card.c2c:
                rate = UNKNOWN if sku is None else sku.lanes.get("c2c", UNKNOWN)
                self.add(HOST, card.id, "c2c", rate)
            elif card.id not in behind:
                # The catalog's latency is that of a copy between a card and its host, not of one to another card.
                latency = UNKNOWN if sku is None else sku.latencies.get("pcie", UNKNOWN)
                self.add(HOST, card.id, "pcie", self._figure(card, slowest(tuple(self.hops(card)))), latency=latency)
            self._told_of(card)
        above = {name: bridge for bridge, names in self.below.items() for name in names}
        for number, nic in enumerate(self.tree.nics):
            name = f"nic:{number}"
            hops = self.tree.slot(nic).hops
            if name in above:  # what lies above the switch is a link of its own
                hops = hops[: [hop for hop, _ in hops].index(above[name])]
            rate = rate_figure(slowest(hops), "slowest PCIe link on the way, /sys")
            self.add(self.bridges[above[name]] if name in above else HOST, name, "pcie", rate)

    def _told_of(self, card: Card) -> None:
        told = card.pcie
        if told is not None and told.lanes is not None and told.lanes < told.max_lanes:
            self.notes.append(f"{card.id} runs on {told.lanes} of {told.max_lanes} PCIe lanes: the lesser is counted")
        if told is not None and told.max_generation not in _SPEEDS:
            self.notes.append(f"{card.id}: PCIe generation {told.max_generation} is not known here: rate unknown")

    def _figure(self, card: Card, rate: int | None) -> Quantity:
        told = card.pcie
        if told is None:
            return rate_figure(rate, "slowest PCIe link on the way, /sys")
        return rate_figure(rate, f"PCIe {told.max_generation} x{told.lanes or told.max_lanes}, {card.source}")

    def _pairs(self) -> None:
        """PCIe between cards that no NVLink and no switch joins, as far as anything is known of the way."""
        for a, b in combinations(self.found.cards, 2):
            if frozenset((a.index, b.index)) in self.joined:
                continue
            word = self.found.ancestors.get((a.index, b.index))
            rate = None
            if a.place is not None and b.place is not None:
                seen, rate = between(self.tree.slot(a.place, self.rate(a)), self.tree.slot(b.place, self.rate(b)))
                word = word or seen
            else:
                rate = slowest(((a.id, self.rate(a)), (b.id, self.rate(b))))
            peer, back = self.access(a, b)
            self.add(a.id, b.id, "pcie", _pair_rate(rate, word), 1, peer, back)


def _pair_rate(rate: int | None, word: str | None) -> Quantity:
    """The slowest slot of the two. Between sockets the link of the processors may be slower: then not verified."""
    if rate is None:
        return UNKNOWN
    far = word in ("SYS", "NODE", None)
    note = (
        f"{word or 'the way'} between them: the link of the processors is not known and may be slower" if far else None
    )
    source = f"slowest PCIe link between the two ({word or 'distance unknown'})"
    return Quantity(declared=Figure(value=rate, provenance="spec", source=source, verified=not far, note=note))


def _lanes_rate(card: Card, lanes: Sequence[NvLink]) -> Quantity:
    """Lanes times the lane of the catalog; the driver's own figure, not verified, for a card that is not in it."""
    count = len(lanes)
    sku = sku_of(card)
    lane = None if sku is None else sku.lanes.get("nvlink", UNKNOWN).declared
    if lane is not None:
        source = f"{count} lanes of {lane.value} B/s each: {lane.source}"
        figure = Figure(value=count * lane.value, provenance=lane.provenance, source=source, verified=lane.verified)
        return Quantity(declared=figure)
    speeds = [nvlink.megabytes_per_s for nvlink in lanes]
    if not speeds or None in speeds:
        return UNKNOWN
    value = sum(speed for speed in speeds if speed is not None) * 10**6
    source = f"{count} NVLinks at the rate that {card.source} gives"
    note = "the rate on the wire; what arrives is less"
    return Quantity(declared=Figure(value=value, provenance="spec", source=source, verified=False, note=note))
