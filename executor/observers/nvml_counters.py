"""Byte counters of a card's links as NVML reads them: a physical witness, coarse and of the whole card.

They count everything that any process moves, packet headers included, so they stand beside the other witnesses and
judge nothing alone. PCIe counters are 32 bits wide and wrap: read them often. What a machine does not read is told as
"not supported", never as 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["NOT_SUPPORTED", "counter_rise", "read_counters"]

NOT_SUPPORTED = "not supported"
_PCIE = {"pcie_tx_bytes": "NVML_FI_DEV_PCIE_COUNT_TX_BYTES", "pcie_rx_bytes": "NVML_FI_DEV_PCIE_COUNT_RX_BYTES"}
_NVLINK = {
    "nvlink_tx_kib": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
    "nvlink_rx_kib": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
}
_ALL_LINKS = 0xFFFFFFFF
_WRAP = 1 << 32


def read_counters(uuid: str | None) -> dict[str, Any]:
    """The counters of the card with this UUID: an int each, or `NOT_SUPPORTED`.

    `nvlink_*` are KiB of payload over all links. Everything is `NOT_SUPPORTED` where NVML cannot be asked.
    """
    names = {name: (field, 0) for name, field in _PCIE.items()} | {n: (f, _ALL_LINKS) for n, f in _NVLINK.items()}
    unread: dict[str, Any] = dict.fromkeys(names, NOT_SUPPORTED)
    try:
        import pynvml
    except ImportError:
        return unread
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        asked = [(name, getattr(pynvml, field, None), scope) for name, (field, scope) in names.items()]
        known = [(name, number, scope) for name, number, scope in asked if number is not None]
        values = pynvml.nvmlDeviceGetFieldValues(handle, [(number, scope) for _, number, scope in known])
    except pynvml.NVMLError:
        return unread
    return unread | {
        name: _value(value) for (name, _, _), value in zip(known, values, strict=True) if value.nvmlReturn == 0
    }


def _value(field: Any) -> int:
    """The number in the union that its type names: double, unsigned int, unsigned long, unsigned long long."""
    value = field.value
    members = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal"}
    return int(getattr(value, members.get(field.valueType, "ullVal")))


def counter_rise(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """How far each counter went up, in its own unit; 32-bit counters may have wrapped once in between."""
    rise: dict[str, Any] = {}
    for name, first in before.items():
        last = after.get(name, NOT_SUPPORTED)
        if isinstance(first, str) or isinstance(last, str):
            rise[name] = NOT_SUPPORTED
        else:
            rise[name] = (last - first) % _WRAP if name.startswith("pcie") else last - first
    return rise
