"""Whether the card that `--sku` names is the one that the text names: by product name, PCI id, vendor, and lanes.

A text that names another card is refused with both names. A name that no table holds, and lanes that the card does not
have, are told.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fleet.catalog.products import card_of_pci, claimed_card, vendor_of
from fleet.errors import DescriptionError, Fault
from fleet.yaml_source import printable

if TYPE_CHECKING:
    from fleet.readers.building import Gpu, Pair
    from fleet.readers.skus import Sku

__all__ = ["check_card", "doubts"]

_VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel"}


def check_card(gpus: Sequence[Gpu], card: Sku, source: str) -> None:
    """Raises DescriptionError with a fault for each GPU that the text names as another card."""
    faults = []
    for gpu in gpus:
        named = _other(gpu, card)
        if named is None:
            continue
        message = f"is {printable(named, 80)} in this text, but --sku names {card.label or card.name} ({card.name})"
        column = 1 if gpu.line else 0
        faults.append(Fault(source=source, field=f"gpu:{gpu.index}", message=message, line=gpu.line, column=column))
    if faults:
        raise DescriptionError(faults)


def _other(gpu: Gpu, card: Sku) -> str | None:
    """What the text calls the GPU where that is another card; None where it may be this one."""
    if gpu.product is not None and claimed_card(gpu.product, card.name) is False:
        return gpu.product
    vendor = vendor_of(card.label)
    if gpu.vendor in _VENDORS and vendor is not None and gpu.vendor != vendor:
        return f"a card of {_VENDORS[gpu.vendor]}"
    known = card_of_pci(gpu.vendor or "", gpu.pci_device or "")
    return f"PCI {gpu.vendor}:{gpu.pci_device} ({known})" if known is not None and known != card.name else None


def doubts(gpus: Sequence[Gpu], pairs: Iterable[Pair], card: Sku) -> list[str]:
    """What speaks against the card without saying that it is another."""
    unsure = sorted({gpu.product for gpu in gpus if gpu.product and claimed_card(gpu.product, card.name) is None})
    shown = card.label or card.name
    told = [f"the text names {printable(name, 80)}; taken for {shown}, as --sku says" for name in unsure]
    # Texts on xgmi count hops, and PCIe is one slot.
    count = max((pair.count for pair in pairs if pair.kind == "nvlink"), default=0)
    lanes = card.lane_counts.get("nvlink", 0)
    if count > lanes:
        has = f"has {lanes or 'none'}"
        told.append(
            f"the text shows {count} NVLinks between two cards, {card.name} {has}: is it the card that --sku names?"
        )
    return told
