"""Names of devices: topology ids, and the keys by which UUIDs and PCI addresses are compared.

A topology id is the small integer by which an allocation or a dispatch names its device. On one node CPU is 0, NPU[i]
is 100+i and GPU[i] is 500+i for i in 0..99, the ids that Vx gives them. Everything else (a second CPU, a device without
an index, fleets of several nodes) is hashed from the full device id, so that a name keeps its number whatever else is
described.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ID_PATTERN = r"[A-Za-z0-9._/:-]{1,64}"
MAX_INDEX = 99
FIRST_HASHED_ID = 3000
HASHED_IDS = 2147480648
"""3000 + (hash mod this) stays within a signed 32-bit integer."""

_PARTS = re.compile(r"[0-9]+|[^0-9]+", re.ASCII).findall
_BANDS = {"cpu": 0, "npu": 100, "gpu": 500}
_UUID = re.compile(r"(?:gpu-|mig-)?([0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12})", re.ASCII)
_PCI = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.ASCII)


def fnv1a32(text: str) -> int:
    """32-bit FNV-1a over the UTF-8 bytes (offset 2166136261, prime 16777619)."""
    value = 2166136261
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 16777619) & 0xFFFFFFFF
    return value


def hashed_id(name: str) -> int:
    """The topology id of a name that has no reserved one: 3000 + fnv1a32(name) mod 2147480648."""
    return FIRST_HASHED_ID + fnv1a32(name) % HASHED_IDS


def topology_id(device_id: str, kind: str, index: int | None, *, one_node: bool) -> int:
    """The topology id of one device. `index` is None or in 0..99; ValueError otherwise."""
    if index is not None and not 0 <= index <= MAX_INDEX:
        raise ValueError(f"index {index} lies outside 0..{MAX_INDEX}")
    if not one_node or index is None or (kind == "cpu" and index > 0):
        return hashed_id(device_id)
    return _BANDS[kind] + index


def index_in_id(device_id: str) -> int | None:
    """The number at the end of an id (`gpu:3` -> 3): the index of a device that states none."""
    match = re.search(r"[0-9]+$", device_id, re.ASCII)
    return int(match[0]) if match else None


def kind_in_id(device_id: str) -> str | None:
    """`gpu` of `gpu:0`, `node3/gpu:0` or `gpu0`: the kind of a device that states none and has no SKU."""
    match = re.fullmatch(r"(cpu|npu|gpu)[:.-]?[0-9]*", device_id.rsplit("/", 1)[-1], re.ASCII)
    return match[1] if match else None


def natural_order(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key by which gpu:2 comes before gpu:10."""
    return (*[(0, int(part), part) if part.isdigit() else (1, 0, part) for part in _PARTS(name)], (2, 0, name))


def collisions(ids: Iterable[tuple[str, int]]) -> list[tuple[str, str, int]]:
    """(first name, second name, id) for each id given to two names, in the order of the second."""
    owners: dict[int, str] = {}
    found = []
    for name, number in ids:
        if number in owners:
            found.append((owners[number], name, number))
        else:
            owners[number] = name
    return found


def uuid_key(text: str | None) -> str | None:
    """What is compared of a UUID: `GPU-8C1F...`, `8c1f...` and the same without hyphens are one. None = unknown.

    Text of any other form (an older driver's `MIG-GPU-.../1/0`) is compared as it is, less case and outer blanks.
    """
    plain = (text or "").strip().casefold()
    found = _UUID.fullmatch(plain)
    return found[1].replace("-", "") if found else plain or None


def pci_key(text: str | None) -> str | None:
    """What is compared of a PCI address: `0000:1:00.0`, `00000000:01:00.0` and `01:00.0` are one. None = unknown."""
    plain = (text or "").strip().casefold()
    found = _PCI.fullmatch(plain)
    return ":".join(str(int(part or "0", 16)) for part in found.groups()) if found else plain or None
