"""llama2.c's tokenizer: how text becomes ids and how the walked ids are printed, byte for byte.

Facts are those of karpathy/llama2.c, run.c (commit 350e04f). Text is bytes here, as it is there: what a prompt holds
beyond UTF-8 comes through. Merging uses a heap where run.c scans all pairs each time; the ids are the same.
"""

from __future__ import annotations

import heapq
import itertools
import math
import re
import struct

from fleet.checkpoints.source import open_regular, read_exactly, shown
from fleet.errors import DescriptionError, Fault

__all__ = ["BYTE_VOCABULARY", "Tokenizer", "byte_tokenizer", "load_tokenizer"]

BOS = 1
BYTE_FALLBACK = 3
"""A byte without a piece of its own becomes id byte + 3: after <unk>, BOS and EOS."""

BYTE_VOCABULARY = 259

_MAX_PIECE_BYTES = 1 << 12
_MAX_FILE_BYTES = 1 << 28
# run.c starts its search for the best pair here: a lower score never merges.
_LOWEST_SCORE = -1e10
_BYTE_PIECE = re.compile(rb"<0x([0-9A-Fa-f]{1,2})")


class Tokenizer:
    """`pieces[id]` are the bytes of id, `scores[id]` its merge score (float32 values)."""

    def __init__(self, pieces: list[bytes], scores: list[float], source: str) -> None:
        self.pieces = tuple(pieces)
        self.scores = tuple(scores)
        self.source = source
        self._ids = _lookup(self.pieces)

    def encode(self, text: str) -> list[int]:
        """The prompt's ids, BOS first: dummy space, code points, byte fallback, then best-score merges.

        Undecodable bytes of a command line (surrogates) are taken as those bytes. Raises DescriptionError for a byte
        that has neither a piece nor a fallback id in this vocabulary, and for a zero byte, which run.c cannot see.
        """
        raw = _raw_bytes(text)
        if 0 in raw:
            raise DescriptionError.at("prompt", "", "holds a zero byte: llama2.c's text ends there; remove it")
        return self._merge(self._first_ids(raw))

    def decode(self, tokens: list[int] | tuple[int, ...]) -> bytes:
        """What run.c prints for the walk `tokens` (BOS first), with the closing newline.

        Raises DescriptionError for an id outside the vocabulary.
        """
        printed = bytearray()
        for before, token in itertools.pairwise(tokens):
            if token == BOS:
                break
            if not 0 <= token < len(self.pieces):
                raise DescriptionError.at(self.source, "", f"has no piece for id {token}; give the model's tokenizer")
            piece = self.pieces[token]
            if before == BOS:
                piece = piece.removeprefix(b" ")
            if found := _BYTE_PIECE.match(piece):
                piece = bytes([int(found[1], 16)]).rstrip(b"\0")
            if len(piece) > 1 or (piece and _is_printed(piece[0])):
                printed += piece
        return bytes(printed + b"\n")

    def _first_ids(self, raw: bytes) -> list[int]:
        """BOS, the dummy space, then one id a code point, or one a byte where the code point has no piece."""
        ids = [BOS]
        if not raw:
            return ids
        self._append(ids, b" ")
        start = 0
        for end in range(1, len(raw) + 1):
            # A code point ends before the next byte that is no continuation, and is never longer than four bytes.
            if end < len(raw) and raw[end] & 0xC0 == 0x80 and end - start < 4:
                continue
            self._append(ids, raw[start:end])
            start = end
        return ids

    def _append(self, ids: list[int], piece: bytes) -> None:
        known = self._ids.get(piece)
        if known is not None:
            ids.append(known)
            return
        for byte in piece:
            if byte + BYTE_FALLBACK >= len(self.pieces):
                raise DescriptionError.at(
                    self.source,
                    "",
                    f"has neither a piece nor a fallback id for byte 0x{byte:02X} of the prompt; "
                    f"use other text, or a tokenizer of at least {BYTE_VOCABULARY} pieces",
                )
            ids.append(byte + BYTE_FALLBACK)

    def _merge(self, ids: list[int]) -> list[int]:
        """Merge the adjacent pair of the highest score, the first of equals, until none is left."""
        after = [*range(1, len(ids)), -1]
        before = list(range(-1, len(ids) - 1))
        heap: list[tuple[float, int, int, int, int]] = []

        def offer(left: int) -> None:
            right = after[left]
            merged = self._ids.get(self.pieces[ids[left]] + self.pieces[ids[right]])
            if merged is not None and self.scores[merged] > _LOWEST_SCORE:
                heapq.heappush(heap, (-self.scores[merged], left, ids[left], ids[right], merged))

        for left in range(len(ids) - 1):
            offer(left)
        while heap:
            _, left, left_id, right_id, merged = heapq.heappop(heap)
            right = after[left]
            # Entries are not removed when a neighbour merges; those that no longer describe the list are passed over.
            if right < 0 or ids[left] != left_id or ids[right] != right_id:
                continue
            ids[left], ids[right] = merged, -1
            after[left], after[right] = after[right], -1
            if after[left] >= 0:
                before[after[left]] = left
                offer(left)
            if before[left] >= 0:
                offer(before[left])
        return [token for token in ids if token >= 0]


def byte_tokenizer() -> Tokenizer:
    """Our own 259 pieces: <unk>, BOS, EOS, then the 256 bytes at byte + 3; nothing merges.

    Printable ASCII is itself, so that a leading space is found and stripped as in llama2.c; the rest is `<0xNN>`.
    """
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n"]
    pieces += [bytes([byte]) if 0x20 <= byte <= 0x7E else b"<0x%02X>" % byte for byte in range(256)]
    return Tokenizer(pieces, [0.0] * BYTE_VOCABULARY, "the byte tokenizer")


def load_tokenizer(path: str | None, vocab_size: int, source: str = "the model") -> Tokenizer:
    """The tokenizer of `path`, which must hold exactly `vocab_size` pieces; without a path the byte tokenizer.

    `source` names the model in messages. Raises DescriptionError: no tokenizer given for a vocabulary that is not
    the byte tokenizer's; truncated; trailing bytes; of another vocabulary; absurd lengths; scores that are not finite.
    """
    if path is None:
        if vocab_size == BYTE_VOCABULARY:
            return byte_tokenizer()
        raise DescriptionError.at(
            source,
            "tokenizer",
            f"is missing: the vocabulary has {vocab_size:,} pieces; pass llama2.c's tokenizer file with --tokenizer",
        )
    handle, size = open_regular(path)
    with handle:
        if size > _MAX_FILE_BYTES:
            raise DescriptionError.at(
                shown(path), "", f"has {size:,} bytes: too large for a tokenizer; give llama2.c's tokenizer file"
            )
        data = read_exactly(handle, size, path)
    return _parse(data, vocab_size, shown(path), source)


def _parse(data: bytes, vocab_size: int, told: str, source: str) -> Tokenizer:
    longest = struct.unpack_from("<i", data)[0] if len(data) >= 4 else 0
    if data[:64].lstrip()[:1] == b"{":
        words = f"is JSON (a tokenizer.json?); {source} is a llama2.c model: give llama2.c's tokenizer .bin"
        raise DescriptionError.at(told, "", words)
    if not 1 <= longest <= _MAX_PIECE_BYTES:
        raise DescriptionError.at(
            told,
            "max_token_length",
            f"is {longest:,}: must lie in 1..{_MAX_PIECE_BYTES:,}; this is no llama2.c tokenizer, or a damaged one",
        )
    pieces: list[bytes] = []
    scores: list[float] = []
    faults: list[Fault] = []
    offset = 4
    while offset < len(data):
        if len(data) - offset < 8:
            break
        score, length = struct.unpack_from("<fi", data, offset)
        if not 0 <= length <= longest:
            # Where the next piece begins is unknown from here on: nothing further can be told.
            faults.append(Fault(told, f"piece {len(pieces)}", f"has length {length:,}: must lie in 0..{longest}"))
            raise DescriptionError(faults)
        if not math.isfinite(score):
            faults.append(Fault(told, f"piece {len(pieces)}", f"has the score {score}: must be a finite number"))
        if len(data) - offset - 8 < length:
            break
        # run.c keeps pieces as C strings: they end at a zero byte.
        pieces.append(data[offset + 8 : offset + 8 + length].partition(b"\0")[0])
        scores.append(score)
        offset += 8 + length
    faults += _miscounted(len(pieces), len(data) - offset, vocab_size, told, source)
    if faults:
        raise DescriptionError(faults)
    return Tokenizer(pieces, scores, told)


def _miscounted(n_pieces: int, left_over: int, vocab_size: int, told: str, source: str) -> list[Fault]:
    if n_pieces == vocab_size and left_over:
        return [Fault(told, "", f"has {left_over:,} trailing bytes after {vocab_size:,} pieces; copy the file again")]
    if left_over:
        return [Fault(told, f"piece {n_pieces}", f"is truncated; {source} has {vocab_size:,}; copy the file again")]
    if n_pieces != vocab_size:
        return [
            Fault(
                told,
                "",
                f"is a tokenizer of another vocabulary: {n_pieces:,} pieces, {source} has {vocab_size:,}; "
                "give the tokenizer that was trained with it",
            )
        ]
    return []


def _lookup(pieces: tuple[bytes, ...]) -> dict[bytes, int]:
    """Piece to id. Of pieces that occur twice, the one that C's qsort and bsearch find (glibc: stable, halving)."""
    ids = dict(zip(reversed(pieces), range(len(pieces) - 1, -1, -1), strict=True))
    if len(ids) == len(pieces):
        return ids
    order = sorted(range(len(pieces)), key=pieces.__getitem__)
    low_high: dict[bytes, tuple[int, int]] = {}
    for rank, token in enumerate(order):
        first, _ = low_high.get(pieces[token], (rank, rank))
        low_high[pieces[token]] = (first, rank)
    for piece, (first, last) in low_high.items():
        low, high = 0, len(order)
        while first != last:
            middle = (low + high) // 2
            if first <= middle <= last:
                ids[piece] = order[middle]
                break
            low, high = (low, middle) if middle > last else (middle + 1, high)
    return ids


def _raw_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        # Surrogates that stand for no byte, e.g. from a JSON escape: their three-byte form.
        return b"".join(
            c.encode("utf-8", "surrogateescape" if "\udc80" <= c <= "\udcff" else "surrogatepass") for c in text
        )


def _is_printed(byte: int) -> bool:
    """C's isprint or isspace, locale "C"."""
    return 0x20 <= byte <= 0x7E or 0x09 <= byte <= 0x0D
