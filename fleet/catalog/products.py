"""Which card of the catalog a product name or a PCI device id means. What is not in the tables is no card of ours.

Names are those that NVML, `nvidia-smi -L` and the CUDA samples print; PCI ids are those of the public list pci.ids. A
card is never told by its memory: two cards may have the same, and one card several names.
"""

from __future__ import annotations

import re

__all__ = ["card_of_name", "card_of_pci", "claimed_card", "vendor_of"]

_NAMES = {
    "a10": "a10",
    "a100 80gb pcie": "a100-pcie-80",
    "a100-pcie-80gb": "a100-pcie-80",
    "a100-sxm4-40gb": "a100-sxm-40",
    "a100-sxm-80gb": "a100-sxm-80",
    "a100-sxm4-80gb": "a100-sxm-80",
    "b200": "b200-sxm-180",
    "gb200": "gb200-nvl72",
    "h100 80gb hbm3": "h100-sxm-80",
    "h100 nvl": "h100-nvl-94",
    "h100 pcie": "h100-pcie-80",
    "h200": "h200-sxm-141",
    "instinct mi300x": "mi300x",
    "instinct mi300x oam": "mi300x",
    "l4": "l4",
    "l40s": "l40s",
    "geforce rtx 3090": "rtx-3090",
    "geforce rtx 4090": "rtx-4090",
    "geforce rtx 5090": "rtx-5090",
}
_PCI = {
    ("10de", "20b0"): "a100-sxm-40",
    ("10de", "20b2"): "a100-sxm-80",
    ("10de", "20b5"): "a100-pcie-80",
    ("10de", "2204"): "rtx-3090",
    ("10de", "2236"): "a10",
    ("10de", "2321"): "h100-nvl-94",
    ("10de", "2330"): "h100-sxm-80",
    ("10de", "2331"): "h100-pcie-80",
    ("10de", "2335"): "h200-sxm-141",
    ("10de", "2684"): "rtx-4090",
    ("10de", "26b9"): "l40s",
    ("10de", "27b8"): "l4",
    ("10de", "2901"): "b200-sxm-180",
    ("10de", "2941"): "gb200-nvl72",
    ("10de", "2b85"): "rtx-5090",
    ("1002", "74a1"): "mi300x",
}
_MAKERS = {"nvidia": "10de", "amd": "1002", "intel": "8086"}
_MAKER = re.compile(r"^(?:nvidia corporation|nvidia|advanced micro devices, inc\.|amd|intel)\s+", re.I)


def _plain(name: str) -> str:
    text = " ".join(name.split())
    return _MAKER.sub("", text).casefold()


def card_of_name(name: str | None) -> str | None:
    """The SKU of the catalog that a product name means, None for a name that is in no table."""
    return None if name is None else _NAMES.get(_plain(name))


def card_of_pci(vendor: str, device: str) -> str | None:
    """The SKU of a PCI vendor and device id, four hexadecimal digits each; None when it is in no table."""
    return _PCI.get((vendor.lower(), device.lower()))


def vendor_of(label: str | None) -> str | None:
    """The PCI vendor id of a card by the maker's name at the head of its label; None for any other."""
    return _MAKERS.get((label or "").partition(" ")[0].casefold())


def claimed_card(name: str, sku: str) -> bool | None:
    """Whether a product name and a SKU of the catalog mean one card.

    None, it may be: the name is in no table, but holds the model (`NVIDIA H100 80GB HBM2e` and h100-pcie-80). A name
    without it (`Tesla P100-SXM2-16GB`) is that of another card: False, as for a name that the tables give to another.
    """
    known = card_of_name(name)
    if known is not None:
        return known == sku
    model = next((part for part in sku.split("-") if re.search("[0-9]", part)), sku)
    return None if model in re.findall("[a-z0-9]+", _plain(name)) else False
