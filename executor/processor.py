"""This machine's processor as a physical device: its name, which machine it is in, and its socket where it is one.

Two devices of a plan on one processor are one physical device, and on one machine never two machines: the hash of the
machine-id tells it, the id itself is handed to nobody.
"""

from __future__ import annotations

import os
import platform
from typing import Any

from fleet.discovery.processor import machine_hash, model_name, socket_of

__all__ = ["processor_entry", "processor_name"]


def processor_name() -> str:
    """The model name of this processor, or the architecture where the system does not tell it."""
    return model_name() or platform.processor() or platform.machine()


def processor_entry(device: str = "cpu:0") -> dict[str, Any]:
    """The row of `physical_devices`: {device, ordinal, uuid, pci, name, machine, socket}.

    `machine` is None without a machine-id, `socket` where this process may run on several, or the system tells none.
    """
    return {
        "device": device,
        "ordinal": 0,
        "uuid": None,
        "pci": None,
        "name": processor_name(),
        "machine": machine_hash(),
        "socket": socket_of(_allowed()),
    }


def _allowed() -> set[int]:
    """The logical processors that this process may run on; empty where the system does not say."""
    ask = getattr(os, "sched_getaffinity", None)
    return set(ask(0)) if ask is not None else set()
