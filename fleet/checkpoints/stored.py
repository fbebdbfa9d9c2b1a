"""What lies in weight files, as their headers say it: the neutral description that every tensor reader yields.

Bytes here are read, never computed from a config; `fleet.checkpoints.agree` sets the two side by side. A type that
is not known has no bytes: None, and words in `unknown`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

MAX_TENSORS = 1_000_000
"""Most tensors of one model; about seven times those of the largest published one (Kimi K2, 384 experts)."""
MAX_ELEMENTS = 1 << 62
"""Most elements of one tensor: its bytes stay within 64 bits, as in the formats themselves."""
MAX_AXES = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredTensor:
    """One tensor as a header names it: `shape` outermost axis first, `dtype` in the format's own word.

    `nbytes` are the bytes that it occupies in `file`, padding aside; None where the type's size is not known. `offset`
    is its first byte in the file, where the reader says it.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int | None
    file: str
    offset: int | None = None

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One weight file: its name, its size in bytes, and the digest that stands for it."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DtypeTotal:
    """What the tensors of one type sum to; `nbytes` is None where the type's size is not known."""

    count: int
    elements: int
    nbytes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """Every tensor of one or several weight files, in file order.

    `metadata` is what the files say beside the tensors. `unknown` lists in words what could not be sized, `warnings`
    what is odd but harmless (an index whose total is not the sum, bytes behind the last tensor).
    """

    format: Literal["safetensors", "gguf"]
    files: tuple[StoredFile, ...]
    tensors: tuple[StoredTensor, ...]
    metadata: Mapping[str, object] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int | None:
        """Bytes of all tensors; None as soon as the size of one is not known."""
        return total(tensor.nbytes for tensor in self.tensors)

    @property
    def n_elements(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors)

    @property
    def digest(self) -> str:
        """SHA-256 over the names and digests of the files; of a single file its own."""
        if len(self.files) == 1:
            return self.files[0].digest
        digest = hashlib.sha256()
        for file in self.files:
            digest.update(f"{file.digest} {file.name}\n".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    def by_dtype(self) -> dict[str, DtypeTotal]:
        """Count, elements and bytes of each type, the types in the order of their names."""
        groups: dict[str, list[StoredTensor]] = {}
        for tensor in self.tensors:
            groups.setdefault(tensor.dtype, []).append(tensor)
        return {
            dtype: DtypeTotal(
                count=len(found),
                elements=sum(t.n_elements for t in found),
                nbytes=total(t.nbytes for t in found),
            )
            for dtype, found in sorted(groups.items())
        }


def total(sizes: Iterable[int | None]) -> int | None:
    """The sum of `sizes`; None when one of them is None."""
    summed = 0
    for size in sizes:
        if size is None:
            return None
        summed += size
    return summed
