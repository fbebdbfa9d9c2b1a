"""The GPUs of a machine: what a driver answers, filled from the PCI tree, or the PCI tree alone where none answers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TypeVar

from fleet.catalog.products import card_of_name, card_of_pci
from fleet.discovery.nvml import Driver, NotTold, NvLink, Pcie, Peer, Reported, Slice
from fleet.discovery.pci import NVIDIA, PciDevice, PciTree
from fleet.discovery.tree import Tree
from fleet.identity import MAX_INDEX, pci_key, uuid_key
from fleet.yaml_source import printable

__all__ = ["Card", "Cards", "cards_of_driver", "cards_of_pci", "identity_of"]

Answer = TypeVar("Answer")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,79}", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One GPU; None = unknown. `nvlinks` empty = there are none. `source` says who told it."""

    index: int
    source: str
    name: str | None = None
    sku: str | None = None
    uuid: str | None = None
    pci: str | None = None
    serial: str | None = None
    memory: Reported | None = None
    pcie: Pcie | None = None
    numa: int | None = None
    cpus: tuple[int, ...] | None = None
    nvlinks: tuple[NvLink, ...] | None = None
    c2c: bool | None = None
    slices: tuple[Slice, ...] | None = None
    place: PciDevice | None = None

    @property
    def id(self) -> str:
        """`gpu:3`."""
        return f"gpu:{self.index}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cards:
    """The GPUs, and what is known of pairs of them by (lower number, higher number) and, for access, (src, dst)."""

    cards: tuple[Card, ...]
    peers: dict[tuple[int, int], Peer] = field(default_factory=dict)
    ancestors: dict[tuple[int, int], str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Asked:
    """Questions and the refusals of the driver, gathered into one note a question."""

    def __init__(self) -> None:
        self.refused: dict[tuple[str, str], list[str]] = defaultdict(list)

    def one(self, what: str, who: str, question: Callable[[], Answer]) -> Answer | None:
        try:
            return question()
        except NotTold as told:
            self.refused[what, str(told)].append(who)
            return None

    def notes(self) -> list[str]:
        """`NVML does not tell the NVLinks (Not Supported): gpu:0, gpu:1; unknown, not absent`."""
        told = []
        for (what, why), names in self.refused.items():
            some = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            told.append(f"the driver does not tell {what} ({why}): {some}; unknown, not absent")
        return told


def cards_of_driver(driver: Driver, tree: PciTree) -> Cards:
    """The cards that a driver lists, in its order. A question that it does not answer is a note."""
    asked = _Asked()
    version = asked.one("its version", "the driver", driver.version)
    source = "NVML" if version is None else f"NVML (driver {printable(version, 40)})"
    count = asked.one("how many cards there are", "the machine", driver.count) or 0
    notes = [] if count <= MAX_INDEX + 1 else [f"only the first {MAX_INDEX + 1} of {count} cards are described"]
    by_pci = {pci_key(card.address): card for card in tree.gpus}
    cards = [_asked_card(driver, number, source, by_pci, asked) for number in range(min(count, MAX_INDEX + 1))]
    notes += _twice(cards)
    peers: dict[tuple[int, int], Peer] = {}
    ancestors: dict[tuple[int, int], str] = {}
    for a, b in combinations(range(len(cards)), 2):
        pair = f"gpu:{a}-gpu:{b}"
        for src, dst in ((a, b), (b, a)):
            peers[src, dst] = asked.one("peer access", pair, lambda s=src, d=dst: driver.peer(s, d)) or "unknown"  # type: ignore[misc]
        word = asked.one("how far cards lie apart", pair, lambda a=a, b=b: driver.ancestor(a, b))  # type: ignore[misc]
        if word is not None:
            ancestors[a, b] = word
    listed = {pci_key(card.pci) for card in cards}
    unlisted = [card.address for card in tree.gpus if card.vendor == NVIDIA and pci_key(card.address) not in listed]
    if unlisted:
        notes.append(f"on PCI, but not listed by the driver and left out: {', '.join(unlisted[:8])}")
    return Cards(cards=tuple(cards), peers=peers, ancestors=ancestors, notes=(*notes, *asked.notes()))


def _asked_card(driver: Driver, number: int, source: str, by_pci: dict[str | None, PciDevice], asked: _Asked) -> Card:
    def ask(what: str, question: Callable[[int], Answer]) -> Answer | None:
        return asked.one(what, f"gpu:{number}", lambda: question(number))

    pci = ask("the PCI address", driver.pci)
    place = by_pci.get(pci_key(pci)) if pci is not None else None
    numa = ask("the NUMA node", driver.numa)
    if numa is None and place is not None:
        numa = place.numa
    cpus, nvlinks = ask("the processors near", driver.cpus), ask("the NVLinks", driver.nvlinks)
    slices = ask("the MIG slices", driver.slices)
    name = ask("the name", driver.name)
    return Card(
        index=number,
        source=source,
        name=None if name is None else printable(name, 80),
        sku=card_of_name(name),
        uuid=identity_of(ask("the uuid", driver.uuid)),
        pci=identity_of(pci),
        serial=_quietly(lambda: driver.serial(number)),
        memory=ask("the memory", driver.memory),
        pcie=ask("the PCIe link", driver.pcie),
        numa=numa if numa is not None and numa >= 0 else None,
        cpus=None if cpus is None else tuple(cpus),
        nvlinks=None if nvlinks is None else tuple(nvlinks),
        c2c=_quietly(lambda: driver.c2c(number)),
        slices=None if slices is None else tuple(replace(row, uuid=identity_of(row.uuid)) for row in slices),
        place=place,
    )


def identity_of(text: str | None) -> str | None:
    """The text where it can be an identity; `GPU-????????-...` of a driver that does not know it yet is none."""
    return text if text is not None and _PLAIN.fullmatch(text) else None


def _quietly(question: Callable[[], Answer]) -> Answer | None:
    """An answer that most cards do not have: no note when it is missing."""
    try:
        return question()
    except NotTold:
        return None


def _twice(cards: list[Card]) -> list[str]:
    """Identities that the driver gives to two cards, or slices, are given to none, and said so."""
    uuids, pcis = defaultdict(list), defaultdict(list)
    for card in cards:
        pcis[pci_key(card.pci)].append(card.id)
        uuids[uuid_key(card.uuid)].append(card.id)
        for number, row in enumerate(card.slices or ()):
            uuids[uuid_key(row.uuid)].append(f"{card.id}/mig:{number}")
    same_uuid = {key for key, owners in uuids.items() if key is not None and len(owners) > 1}
    same_pci = {key for key, owners in pcis.items() if key is not None and len(owners) > 1}
    for place, card in enumerate(cards):
        rows = card.slices and tuple(replace(r, uuid=None) if uuid_key(r.uuid) in same_uuid else r for r in card.slices)
        uuid = None if uuid_key(card.uuid) in same_uuid else card.uuid
        cards[place] = replace(card, slices=rows, uuid=uuid, pci=None if pci_key(card.pci) in same_pci else card.pci)
    told = [f"the driver gives one uuid to {', '.join(uuids[key])}: left out" for key in sorted(same_uuid)]
    return told + [f"the driver gives one pci address to {', '.join(pcis[key])}: left out" for key in sorted(same_pci)]


def cards_of_pci(tree: PciTree, files: Tree) -> Cards:
    """The GPUs of the PCI tree, numbered in the order of their addresses, with what kernel drivers say in files."""
    cards, notes = [], []
    for number, place in enumerate(tree.gpus[: MAX_INDEX + 1]):
        facts = _driver_file(files, place.address)
        name = facts.get("model")
        uuid = facts.get("gpu uuid")
        unnamed = f"PCI {place.vendor}:{place.device}"
        cards.append(
            Card(
                index=number,
                source="/sys/bus/pci",
                name=printable(name, 80) if name else unnamed,
                sku=card_of_name(name) or card_of_pci(place.vendor, place.device),
                uuid=identity_of(uuid),
                pci=place.address,
                serial=files.text("sys", "bus", "pci", "devices", place.address, "unique_id"),
                memory=Reported(total=place.memory) if place.memory else None,
                numa=place.numa,
                place=place,
            )
        )
    if len(tree.gpus) > MAX_INDEX + 1:
        notes.append(f"only the first {MAX_INDEX + 1} of {len(tree.gpus)} GPUs are described")
    if cards:
        notes.append("GPUs are known by PCI alone: numbered by address, and NVLink, XGMI and peer access are unknown")
    return Cards(cards=tuple(cards), notes=tuple(notes))


def _driver_file(files: Tree, address: str) -> dict[str, str]:
    """`Model`, `GPU UUID` and others of /proc/driver/nvidia/gpus/<address>/information, lower case."""
    text = files.text("proc", "driver", "nvidia", "gpus", address, "information") or ""
    rows = (line.partition(":") for line in text.splitlines()[:40])
    return {key.strip().lower(): value.strip() for key, _, value in rows if value.strip()}
