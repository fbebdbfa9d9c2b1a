"""Who takes part in a request, and what the ends of its copies must be: what the device ABI asks before it acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

from executor.arena import NUMPY_DTYPES, poison_word
from executor.buffer import Buffer
from fleet.errors import CopyError


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceSpec:
    """A device that takes part. `index` is its ordinal; `fence_bytes` is how much its arena may hold.

    `host` is the id that the host end of its copies has in the events. Each buffer starts on a multiple of `alignment`
    bytes, or of the backend's own where that is larger.
    """

    id: str
    topology_id: int
    kind: Literal["gpu", "cpu", "npu"]
    index: int | None
    fence_bytes: int
    host: str = "host"
    uuid: str | None = None
    pci: str | None = None
    alignment: int = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class HostSpec:
    """A role that host memory plays (`host:prefill`, `host:decode`, `host:bounce`), with an arena of its own."""

    name: str
    fence_bytes: int


class End(NamedTuple):
    """One end of a copy: where it lies, how long and of which type it is, and what errors call it."""

    address: int
    nbytes: int
    dtype: np.dtype[Any]
    name: str


def poison_keys(names: Sequence[str]) -> dict[str, str]:
    """By the name of each memory, the word that its poison is made of: no two give the same."""
    keys: dict[str, str] = {}
    words: set[int] = set()
    for name in names:
        key = name
        while poison_word(key, 0) in words:  # 20 bits can collide, and then two memories would look alike
            key += "'"
        words.add(poison_word(key, 0))
        keys[name] = key
    return keys


def nbytes_of(name: str, shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of a buffer in wire order. CopyError for a type or an extent that there is not."""
    if dtype not in NUMPY_DTYPES:
        raise CopyError(f"{name}: {dtype} is no type of the executor; known: {', '.join(NUMPY_DTYPES)}")
    if not shape or min(shape) < 1:
        raise CopyError(f"{name}: shape {shape}; every extent must be 1 or more")
    return prod(shape) * NUMPY_DTYPES[dtype].itemsize


def end_of(buffer: Buffer) -> End:
    """A buffer as an end of a copy."""
    return End(buffer.address, buffer.nbytes, NUMPY_DTYPES[buffer.dtype], buffer.name)


def overlap(one: Buffer, other: Buffer) -> bool:
    """Whether two buffers share memory."""
    return one.address < other.address + other.held_bytes and other.address < one.address + one.held_bytes


def same_size(op: str, src: End, dst: End) -> None:
    """CopyError unless both ends hold as many bytes of one type."""
    if src.nbytes != dst.nbytes:
        raise CopyError(f"{op}: {src.name} holds {src.nbytes:,} B and {dst.name} {dst.nbytes:,} B; they must be equal")
    if src.dtype != dst.dtype:
        raise CopyError(f"{op}: {src.name} is {src.dtype} and {dst.name} {dst.dtype}; they must be equal")
