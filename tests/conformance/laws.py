"""All laws of the device ABI: importing this fills the table."""

from __future__ import annotations

from tests.conformance import laws_data, laws_device, laws_packed, laws_packed_ops, laws_place, laws_refuse
from tests.conformance.law import LAWS, Law

__all__ = [
    "LAWS",
    "Law",
    "laws_data",
    "laws_device",
    "laws_packed",
    "laws_packed_ops",
    "laws_place",
    "laws_refuse",
]
