"""safetensors headers: eight bytes of length, a JSON object, then the data, which is never read.

The format is that of huggingface/safetensors (`safetensors/src/tensor.rs`): at most 100,000,000 bytes of header,
offsets without holes or overlaps that end where the file ends. The object is walked entry by entry, on bytes: a
hostile header of that size never becomes a tree of Python objects.
"""

from __future__ import annotations

import json
import re
import struct
from typing import BinaryIO, NoReturn, TypeGuard

from fleet.checkpoints.json_text import shorten
from fleet.checkpoints.source import digest_file, digest_header, open_regular, read_at, shown
from fleet.checkpoints.stored import MAX_AXES, MAX_ELEMENTS, MAX_TENSORS, Stored, StoredFile, StoredTensor
from fleet.errors import MAX_FAULTS_TOLD, DescriptionError, Fault

MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

DTYPE_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""Bits of one element of each type of the format (safetensors 0.8)."""

_MAX_ENTRY = 4096
_MAX_NAME = 4096
_MAX_VALUE = 16 << 20
_MAX_METADATA = 1 << 20
_SPACE = re.compile(rb"[ \t\r\n]*")
# Possessive: a repeated group that may be taken back costs the regex engine memory for each character.
_STRING = re.compile(rb'"(?:[^"\\\x00-\x1f]++|\\.)*+"')
_ENTRY = re.compile(rb"\{[^{}]*\}")
_COUNT = rb"(?:0|[1-9][0-9]{0,18})"
_COUNTS = rb"((?:" + _COUNT + rb"(?:, ?" + _COUNT + rb")*+)?)"
# An entry as the library writes it. One match instead of a dozen steps: an index of 90,000 tensors is read at once.
_USUAL = re.compile(
    rb'"([^"\\\x00-\x1f]{1,200}+)": ?\{"dtype": ?"([A-Z0-9_]{1,16})", ?"shape": ?\['
    + _COUNTS
    + rb'\], ?"data_offsets": ?\[('
    + _COUNT
    + rb"), ?("
    + _COUNT
    + rb")\]\}"
)
_COPY = "copy or download the file again"

Span = tuple[int, int]


def read_safetensors_file(path: str) -> Stored:
    """The tensors of one safetensors file. Raises DescriptionError with every fault found, some twenty at most."""
    handle, size = open_regular(path)
    with handle:
        return read_safetensors(handle, size, path)


def read_safetensors(handle: BinaryIO, size: int, path: str, *, name: str | None = None, whole: bool = True) -> Stored:
    """The tensors of an open safetensors file of `size` bytes, called `name` in the result.

    `whole` says that the digest may cover the file itself, as it does up to `source.FULL_DIGEST_LIMIT`; the parts of
    a larger checkpoint are named by header and size. Raises DescriptionError with every fault found.
    """
    told = shown(path)
    length = _header_length(read_at(handle, 0, 9, path), size, told)
    raw = read_at(handle, 8, length, path)
    if len(raw) < length:
        raise DescriptionError.at(told, "header", f"became shorter while it was read; {_COPY}")
    parsed = _Header(raw, told, name or shown(_base(path)))
    parsed.walk()
    parsed.check_layout(size - 8 - length)
    if parsed.faults:
        raise DescriptionError(parsed.faults)
    header = struct.pack("<Q", length) + raw
    digest = digest_file(handle, size, header, path) if whole else digest_header(header, size)
    return Stored(
        format="safetensors",
        files=(StoredFile(name=parsed.file, size=size, digest=digest),),
        tensors=tuple(tensor for _, tensor in sorted(parsed.found, key=lambda row: row[0])),
        metadata=parsed.metadata,
        warnings=tuple(
            f"{parsed.file}: type {shorten(dtype)} of {count:,} tensors is not known: their bytes are not checked"
            for dtype, count in sorted(parsed.strange.items())
        ),
    )


def _base(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _header_length(head: bytes, size: int, told: str) -> int:
    if len(head) < 8:
        raise DescriptionError.at(told, "header", f"is truncated: {len(head)} bytes, the length alone takes 8; {_COPY}")
    length: int = struct.unpack_from("<Q", head)[0]
    if length > MAX_HEADER_BYTES:
        raise DescriptionError.at(
            told,
            "header",
            f"says that it has {length:,} bytes; the format allows {MAX_HEADER_BYTES:,}: "
            f"no safetensors file, or a damaged one; {_COPY}",
        )
    if length > size - 8:
        raise DescriptionError.at(
            told, "header", f"is truncated: {length:,} bytes are announced, {size - 8:,} are there; {_COPY}"
        )
    if length < 2 or head[8:9] != b"{":
        raise DescriptionError.at(told, "header", f"holds no JSON object: no safetensors file; {_COPY}")
    return length


class _Header:
    """Walks one header; faults are collected as far as the JSON itself holds."""

    def __init__(self, raw: bytes, told: str, file: str) -> None:
        self.raw, self.told, self.file = raw, told, file
        self.found: list[tuple[Span, StoredTensor]] = []
        self.faults: list[Fault] = []
        self.metadata: dict[str, object] = {}
        self.strange: dict[str, int] = {}
        self._names: set[str] = set()

    def walk(self) -> None:
        """Every entry in turn. Raises DescriptionError where the text stops being a header."""
        at = self._mark(0, b"{")
        if self.raw[at : at + 1] == b"}":
            self._rest(at + 1)
            return None
        while True:
            at = self._usual(at) or self._entry(at)
            mark = self.raw[at : at + 1]
            if mark == b"}":
                return self._rest(at + 1)
            if len(self.found) >= MAX_TENSORS:
                self._broken(at, f"names more than {MAX_TENSORS:,} tensors")
            if len(self.faults) > MAX_FAULTS_TOLD:
                raise DescriptionError(self.faults)
            at = self._mark(at, b",")

    def check_layout(self, data_bytes: int) -> None:
        """Faults for holes, overlaps, and data that does not end where the file of `data_bytes` data bytes does."""
        expected, before = 0, "the header"
        for (start, end), tensor in sorted(self.found, key=lambda row: row[0]):
            if start != expected:
                kind = "overlaps" if start < expected else f"leaves a hole of {start - expected:,} bytes after"
                self._fault(
                    tensor.name, f"{kind} {shorten(before)}: it begins at {start:,}, expected {expected:,}; {_COPY}"
                )
            expected, before = max(expected, end), tensor.name
        if expected > data_bytes:
            self._fault(
                before,
                f"ends at {expected:,}, the file holds {data_bytes:,} bytes of data: it is truncated by "
                f"{expected - data_bytes:,} bytes; {_COPY}",
            )
        elif expected < data_bytes:
            self._fault("size", f"{data_bytes - expected:,} bytes lie behind the last tensor; {_COPY}")

    def _usual(self, at: int) -> int | None:
        """Reads an entry in the library's own form; None when it is in any other, or wrong."""
        matched = _USUAL.match(self.raw, at)
        if matched is None:
            return None
        try:
            name = matched[1].decode()
        except UnicodeDecodeError:
            return None
        shape = tuple(map(int, matched[3].split(b","))) if matched[3] else ()
        begin, end = int(matched[4]), int(matched[5])
        if name in self._names or name == "__metadata__" or begin > end or len(shape) > MAX_AXES:
            return None
        self._names.add(name)
        self._sized(name, matched[2].decode(), shape, (begin, end))
        at = matched.end()
        # Nearly always a comma or the last brace follows at once.
        return at if self.raw[at : at + 1] in (b",", b"}") else self._skip(at)

    def _entry(self, at: int) -> int:
        at, name = self._key(at)
        return self._metadata(at) if name == "__metadata__" else self._tensor(at, name)

    def _key(self, at: int) -> tuple[int, str]:
        at, name = self._string(at, _MAX_NAME)
        if name in self._names:
            self._fault(name, "stands twice; one of the two is lost to every reader: save the file again")
        self._names.add(name)
        return self._mark(at, b":"), name

    def _metadata(self, at: int) -> int:
        """The flat object of strings beside the tensors; longer values than a mebibyte in all are left out."""
        at = self._mark(at, b"{")
        kept = 0
        while self.raw[at : at + 1] != b"}":
            at, key = self._string(at, _MAX_NAME)
            at = self._mark(at, b":")
            begun = at
            at, value = self._string(at, _MAX_VALUE)
            kept += at - begun + len(key)
            if kept <= _MAX_METADATA:
                self.metadata[key] = value
            if self.raw[at : at + 1] != b"}":
                at = self._mark(at, b",")
                if self.raw[at : at + 1] == b"}":
                    self._broken(at, "is no valid JSON")
        return self._skip(at + 1)

    def _tensor(self, at: int, name: str) -> int:
        matched = _ENTRY.match(self.raw, at, at + _MAX_ENTRY)
        if matched is None:
            self._broken(at, f"entry {shorten(name)} is no flat object of at most {_MAX_ENTRY} bytes")
        try:
            pairs = json.loads(matched[0].decode(), object_pairs_hook=list)
        except (ValueError, RecursionError):
            # No UTF-8, no JSON, a number of thousands of digits, or a list within a list within a list.
            self._broken(at, f"entry {shorten(name)} is no valid JSON in UTF-8")
        self._enter(name, pairs)
        return self._skip(matched.end())

    def _enter(self, name: str, pairs: list[tuple[str, object]]) -> None:
        fields = dict(pairs)
        if len(fields) < len(pairs) or fields.keys() != {"dtype", "shape", "data_offsets"}:
            self._fault(name, "must have dtype, shape and data_offsets, each once, and nothing else; save it again")
            return
        dtype, shape, span = fields["dtype"], fields["shape"], fields["data_offsets"]
        if not isinstance(dtype, str):
            self._fault(name, f"dtype is {shorten(dtype)}: must be a word such as BF16")
        elif not _are_counts(shape) or len(shape) > MAX_AXES:
            self._fault(name, f"shape is {shorten(shape)}: must list at most {MAX_AXES} whole numbers from 0 up")
        elif not _are_counts(span) or len(span) != 2 or span[0] > span[1]:
            self._fault(name, f"data_offsets are {shorten(span)}: must be a begin and an end, begin <= end")
        else:
            self._sized(name, dtype, tuple(shape), (span[0], span[1]))

    def _sized(self, name: str, dtype: str, shape: tuple[int, ...], span: Span) -> None:
        bits, nbytes, elements = DTYPE_BITS.get(dtype), span[1] - span[0], 1
        for axis in shape:
            elements *= axis
            if elements > MAX_ELEMENTS:
                return self._fault(name, f"shape {list(shape)} has more elements than 64 bits can count")
        if bits is None:
            # What the file gives it is a fact, whether that is right cannot be checked.
            self.strange[dtype] = self.strange.get(dtype, 0) + 1
        elif elements * bits % 8:
            return self._fault(name, f"{dtype} {list(shape)} is no whole number of bytes; save the file again")
        elif elements * bits != nbytes * 8:
            needed = elements * bits // 8
            return self._fault(name, f"takes {nbytes:,} bytes, but {dtype} {list(shape)} needs {needed:,}; {_COPY}")
        offset = 8 + len(self.raw) + span[0]
        tensor = StoredTensor(name=name, shape=shape, dtype=dtype, nbytes=nbytes, file=self.file, offset=offset)
        self.found.append((span, tensor))
        return None

    def _string(self, at: int, limit: int) -> tuple[int, str]:
        matched = _STRING.match(self.raw, at, at + limit + 2)
        if matched is None:
            self._broken(at, f"is no valid JSON: a name of at most {limit:,} bytes in quotes was expected")
        try:
            text: str = json.loads(matched[0].decode())
        except UnicodeDecodeError:
            self._broken(at, "is not UTF-8")
        except ValueError:
            self._broken(at, "is no valid JSON: a name is malformed")
        return self._skip(matched.end()), text

    def _mark(self, at: int, mark: bytes) -> int:
        at = self._skip(at)
        if self.raw[at : at + 1] != mark:
            self._broken(at, f"is no valid JSON: {mark.decode()} was expected")
        return self._skip(at + 1)

    def _skip(self, at: int) -> int:
        matched = _SPACE.match(self.raw, at)
        return at if matched is None else matched.end()

    def _rest(self, at: int) -> None:
        if self._skip(at) != len(self.raw):
            self._broken(at, "does not end with its object")

    def _fault(self, field: str, message: str) -> None:
        self.faults.append(Fault(self.told, shorten(field), message))

    def _broken(self, at: int, words: str) -> NoReturn:
        raise DescriptionError([*self.faults, Fault(self.told, "header", f"{words}, at byte {at + 8:,}; {_COPY}")])


def _are_counts(value: object) -> TypeGuard[list[int]]:
    """A list of whole numbers from 0 up; True and False are none."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 64 for n in value)
