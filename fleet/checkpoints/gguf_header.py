"""GGUF headers, versions 2 and 3, little endian: metadata and tensor table; the data is never read.

Format: ggml/docs/gguf.md. Axes stand innermost first in the file and outermost first here, as in every other reader.
Tensors must lie one after the other, each padded to `general.alignment` (32 when it is left out), as ggml demands.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO

from fleet.checkpoints.gguf_cursor import COPY, MAX_HEADER_BYTES, Cursor
from fleet.checkpoints.gguf_types import GGML_TYPES, type_name
from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.source import FULL_DIGEST_LIMIT, digest_file, digest_header, open_regular, read_at, shown
from fleet.checkpoints.stored import MAX_ELEMENTS, MAX_TENSORS, Stored, StoredFile, StoredTensor
from fleet.errors import MAX_FAULTS_TOLD, DescriptionError, Fault

MAGIC = b"GGUF"
MAX_KEYS = 1 << 16
_MAX_KEY = 65_535
_MAX_NAME = 1024
_AXES = 4
_DEFAULT_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 1 << 20
_LEAST_KEY, _LEAST_TENSOR = 13, 24
_CONVERT = "convert the model to GGUF version 3 in little-endian order"


@dataclass(frozen=True, slots=True)
class _Info:
    """A line of the tensor table: `offset` counts from the beginning of the data."""

    tensor: StoredTensor
    offset: int


def read_gguf_file(path: str) -> Stored:
    """The tensors and metadata of one GGUF file. Raises DescriptionError with every fault found."""
    handle, size = open_regular(path)
    with handle:
        return read_gguf(handle, size, path)


def read_gguf(handle: BinaryIO, size: int, path: str, *, name: str | None = None, whole: bool = True) -> Stored:
    """The tensors and metadata of an open GGUF file of `size` bytes, called `name` in the result.

    Long texts and lists stand as `Skipped`. `whole` as in `read_safetensors`. Raises DescriptionError: version 1 and
    unknown ones, big endian, truncated, double keys and names, sizes that no file can hold, holes and overlaps.
    """
    told = shown(path)
    cursor = Cursor(handle, size, path, told)
    _check_version(cursor.take(4, "magic"), cursor.take(4, "version"), told)
    count, n_keys = cursor.u64("tensor_count"), cursor.u64("metadata_kv_count")
    _check_counts(cursor, count, n_keys)
    file = name or shown(path.rsplit("/", 1)[-1])
    faults: list[Fault] = []
    metadata = _metadata(cursor, n_keys, faults)
    infos = _table(cursor, count, file, faults)
    alignment = _alignment(metadata, told, faults)
    header_bytes = cursor.position
    begin = -(-header_bytes // alignment) * alignment
    warnings = [] if faults else _check_layout(infos, begin, alignment, size, told, faults)
    if faults:
        raise DescriptionError(faults)
    header = b"" if whole and size <= FULL_DIGEST_LIMIT else read_at(handle, 0, header_bytes, path)
    digest = digest_header(header, size) if header else digest_file(handle, size, b"", path)
    tensors = tuple(info.tensor for info in infos)
    return Stored(
        format="gguf",
        files=(StoredFile(name=file, size=size, digest=digest),),
        tensors=tensors,
        metadata=metadata,
        unknown=unsized_words(tensors),
        warnings=tuple(warnings),
    )


def unsized_words(tensors: tuple[StoredTensor, ...]) -> tuple[str, ...]:
    """Words for each tensor type whose size is not known."""
    counts: dict[str, int] = {}
    for tensor in tensors:
        if tensor.nbytes is None:
            counts[tensor.dtype] = counts.get(tensor.dtype, 0) + 1
    return tuple(
        f"tensor type {dtype} ({count:,} tensors) is not known: their bytes are not counted"
        for dtype, count in sorted(counts.items())
    )


def _check_version(magic: bytes, raw: bytes, told: str) -> None:
    (version,) = struct.unpack("<I", raw)
    if magic == MAGIC[::-1] or (magic == MAGIC and version & 0xFFFF == 0 and version):
        raise DescriptionError.at(told, "version", f"is a GGUF file in big-endian byte order: not read; {_CONVERT}")
    if magic != MAGIC:
        raise DescriptionError.at(told, "magic", f"is no GGUF file; {COPY}")
    if version == 1:
        raise DescriptionError.at(told, "version", f"is GGUF version 1, which has 32-bit counts: not read; {_CONVERT}")
    if version not in (2, 3):
        raise DescriptionError.at(told, "version", f"is GGUF version {version:,}: 2 and 3 are read; {_CONVERT}")


def _check_counts(cursor: Cursor, count: int, n_keys: int) -> None:
    """Counts are believed only as far as the file could hold them."""
    if n_keys > MAX_KEYS or n_keys * _LEAST_KEY > cursor.size:
        cursor.broken("metadata_kv_count", f"is {n_keys:,}: more than the file or any model has")
    if count > MAX_TENSORS or count * _LEAST_TENSOR > cursor.size:
        cursor.broken("tensor_count", f"is {count:,}: more than the file or any model has")


def _metadata(cursor: Cursor, n_keys: int, faults: list[Fault]) -> dict[str, object]:
    found: dict[str, object] = {}
    for number in range(n_keys):
        key = cursor.text(_MAX_KEY, f"metadata key {number}")
        value = cursor.value(cursor.u32(shorten(key)), shorten(key))
        if key in found and len(faults) <= MAX_FAULTS_TOLD:
            faults.append(Fault(cursor.told, shorten(key), "stands twice; convert the model again"))
        found.setdefault(key, value)
    return found


def _table(cursor: Cursor, count: int, file: str, faults: list[Fault]) -> list[_Info]:
    infos: list[_Info] = []
    seen: set[str] = set()
    for number in range(count):
        info = _tensor(cursor, f"tensor {number}", file, faults)
        if len(faults) > MAX_FAULTS_TOLD:
            raise DescriptionError(faults)
        if info is None:
            continue
        if info.tensor.name in seen:
            faults.append(Fault(cursor.told, shorten(info.tensor.name), "stands twice; convert the model again"))
        seen.add(info.tensor.name)
        infos.append(info)
    return infos


def _tensor(cursor: Cursor, what: str, file: str, faults: list[Fault]) -> _Info | None:
    """One line of the table; None with a fault when its sizes make no sense."""
    name = cursor.text(_MAX_NAME, what)
    axes = cursor.u32(what)
    if axes > _AXES:
        cursor.broken(shorten(name), f"has {axes:,} axes: ggml has at most {_AXES}")
    inner_first = struct.unpack(f"<{axes}Q", cursor.take(8 * axes, what))
    kind, offset = cursor.u32(what), cursor.u64(what)
    elements = 1
    for axis in inner_first:
        elements *= axis
    words = None
    if elements > MAX_ELEMENTS or any(axis > MAX_ELEMENTS for axis in inner_first):
        words = "has more elements than 64 bits can count"
    known = GGML_TYPES.get(kind)
    row = inner_first[0] if inner_first else 1
    if known is not None and row % known.block:
        words = f"has rows of {row:,} elements, {known.name} stores blocks of {known.block}"
    if words is not None:
        faults.append(Fault(cursor.told, shorten(name), f"{words}; {COPY}"))
        return None
    nbytes = None if known is None else elements // known.block * known.nbytes
    tensor = StoredTensor(name=name, shape=inner_first[::-1], dtype=type_name(kind), nbytes=nbytes, file=file)
    return _Info(tensor, offset)


def _alignment(metadata: dict[str, object], told: str, faults: list[Fault]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(value) is int and 0 < value <= _LARGEST_ALIGNMENT and value & (value - 1) == 0:
        return value
    faults.append(
        Fault(
            told,
            "general.alignment",
            f"is {shorten(value)}: must be a power of two up to {_LARGEST_ALIGNMENT:,}; {COPY}",
        )
    )
    return _DEFAULT_ALIGNMENT


def _check_layout(
    infos: list[_Info], begin: int, alignment: int, size: int, told: str, faults: list[Fault]
) -> list[str]:
    """Faults for holes, overlaps and a truncated end; gives warnings. An unsized tensor ends where the next begins."""
    expected: int | None = 0
    end, last = 0, "the header"
    for info in sorted(infos, key=lambda row: row.offset):
        tensor, offset = info.tensor, info.offset
        if offset % alignment or offset < end or (expected is not None and offset != expected):
            wanted = f"expected {expected:,}" if expected is not None else f"expected a multiple of {alignment}"
            faults.append(
                Fault(told, shorten(tensor.name), f"begins at {offset:,} of the data, {wanted} after {last}; {COPY}")
            )
            if len(faults) > MAX_FAULTS_TOLD:
                return []
        end, last = offset + (tensor.nbytes or 0), shorten(tensor.name)
        expected = None if tensor.nbytes is None else -(-end // alignment) * alignment
    if infos and begin + end > size:
        short = begin + end - size
        faults.append(Fault(told, "size", f"is truncated: it ends {short:,} bytes early, within {last}; {COPY}"))
    behind = size - begin - (expected or 0)
    if expected is not None and infos and behind > 0:
        return [f"{told}: {behind:,} bytes lie behind the last tensor"]
    return []


__all__ = ["MAGIC", "MAX_HEADER_BYTES", "read_gguf", "read_gguf_file", "unsized_words"]
