"""How kept inputs are damaged: bytes, lines, numbers and words, as files are in the wild and as an enemy makes them."""

from __future__ import annotations

import re
from collections.abc import Callable

from hypothesis import strategies as st

# fmt: off
NUMBERS = (
    b"0", b"-1", b"1", b"255", b"256", b"65536", b"2147483648", b"4294967295", b"9223372036854775807",
    b"18446744073709551616", b"1" + b"0" * 400, b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"0x10", b"1_0",
    b"0.1.2", b"\xd9\xa3", b"\xc2\xb2",
)
WORDS = (
    b"", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\r\n", b"\x1b[31m", b"\x1b]8;;x\x07", b"null",
    b"true",
    b"{}", b"[]", b"{", b"[", b'"', b"'", b"<", b"&amp;", b"&x;", b"<!DOCTYPE x [<!ENTITY x 'x'>]>", b"*a", b"&a",
    b"!!python/object:x", b"<<: *a", b"../../etc/passwd", b"/dev/zero", b"%s%n", b"{{.}}", b"-" * 80, b"\t",
    b"[" * 3000, b'{"a":' * 3000, b"- " * 3000, b"A" * 70000, "\u202e".encode(), "\u2028".encode(),
    b"\\ud800", b"\\u0000",
)
# fmt: on
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")

_places = st.integers(0, 2**20)


def _cut(data: bytes, one: int, two: int) -> tuple[int, int]:
    first, last = sorted((one % (len(data) + 1), two % (len(data) + 1)))
    return first, min(last, first + 400)


def _replaced(words: tuple[bytes, ...]) -> Callable[[bytes, int, int, int], bytes]:
    def change(data: bytes, one: int, two: int, pick: int) -> bytes:
        first, _ = _cut(data, one, two)
        return data[:first] + words[pick % len(words)] + data[first + pick % 3 :]

    return change


def _number(data: bytes, one: int, two: int, pick: int) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    at = found[one % len(found)]
    return data[: at.start()] + NUMBERS[pick % len(NUMBERS)] + data[at.end() :]


def _flip(data: bytes, one: int, two: int, pick: int) -> bytes:
    if not data:
        return bytes([pick % 256])
    at = one % len(data)
    return data[:at] + bytes([pick % 256]) + data[at + 1 :]


def _remove(data: bytes, one: int, two: int, pick: int) -> bytes:
    first, last = _cut(data, one, two)
    return data[:first] + data[last:]


def _repeat(data: bytes, one: int, two: int, pick: int) -> bytes:
    first, last = _cut(data, one, two)
    return data[:last] + data[first:last] * (pick % 8) + data[last:]


def _truncate(data: bytes, one: int, two: int, pick: int) -> bytes:
    return data[: one % (len(data) + 1)]


def _swap_lines(data: bytes, one: int, two: int, pick: int) -> bytes:
    lines = data.split(b"\n")
    first, second = one % len(lines), two % len(lines)
    lines[first], lines[second] = lines[second], lines[first]
    return b"\n".join(lines)


_CHANGES = (_flip, _remove, _repeat, _truncate, _swap_lines, _number, _number, _replaced(NUMBERS), _replaced(WORDS))
_change = st.tuples(st.sampled_from(_CHANGES), _places, _places, st.integers(0, 2**16))


def damaged(kept: list[bytes]) -> st.SearchStrategy[bytes]:
    """One of `kept` after up to five changes, or the head of one before the tail of another."""

    def apply(start: bytes, changes: list[tuple[Callable[[bytes, int, int, int], bytes], int, int, int]]) -> bytes:
        for change, one, two, pick in changes:
            start = change(start, one, two, pick)
        return start

    def spliced(one: bytes, two: bytes, at: int, to: int) -> bytes:
        return one[: at % (len(one) + 1)] + two[to % (len(two) + 1) :]

    whole = st.sampled_from(kept)
    return st.one_of(
        st.builds(apply, whole, st.lists(_change, min_size=1, max_size=5)),
        st.builds(spliced, whole, whole, _places, _places),
        st.binary(max_size=64),
    )
