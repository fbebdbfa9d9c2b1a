"""The arrival witness of the CPU: looks at memory and counts the 32-bit words that are no longer poison.

It knows regions and the word that each held before; what was ordered, predicted or counted it does not know. It sees
that bytes are there, not how often they were written: repeats are invisible to it. Where a copy stays inside one arena,
whose words are all alike, it marks the destination with a word of its own first. A value that equals the poison bit for
bit would be missed; poison words are NaN patterns of their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.events import Copied, Event

LegKey = tuple[str, str, str, str, str, str]
"""(phase, tensor, row src, row dst, leg src, leg dst)."""

_MARK = 0x7FB00000  # a NaN pattern too, outside the range of the poison words
_MARK_BITS = 0x000FFFFF
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Digest:
    """`tree_digest` of one layer of `k` or `v` over the prompt, in wire order, at the source and at the end."""

    tensor: str
    layer: int
    digest_src: str
    digest_dst: str


@dataclass(slots=True)
class ArrivalWitness:
    """Bytes seen per leg. `bounce` is the array that staged legs go over, with the word it held, or None."""

    observed: dict[LegKey, int] = field(default_factory=lambda: defaultdict(int))
    digests: list[Digest] = field(default_factory=list)
    written: int | None = None
    _bounce: npt.NDArray[Any] | None = None
    _bounce_word: int = 0

    def mark_of(self, word: int) -> int:
        """The word to fill a destination with that shares its arena, whose words all are `word`, with the source."""
        return _MARK | (word & _MARK_BITS)

    def count(self, key: LegKey, arrays: Iterable[npt.NDArray[Any]], word: int) -> None:
        """Add the bytes of `arrays` that no longer hold `word`."""
        changed = sum(int(np.count_nonzero(array.view(np.uint32) != np.uint32(word))) for array in arrays)
        self.observed[key] += changed * _WORD_BYTES

    def count_padding(self, key: LegKey, arrays: Iterable[npt.NDArray[Any]], word: int) -> None:
        """As `count`, for memory that nothing may be written to: a row comes of it only where something was."""
        changed = sum(int(np.count_nonzero(array.view(np.uint32) != np.uint32(word))) for array in arrays)
        if changed:
            self.observed[key] += changed * _WORD_BYTES

    def count_written(self, words: int) -> None:
        """Add so many 32-bit words to what decode wrote."""
        self.written = (self.written or 0) + words * _WORD_BYTES

    def watch_bounce(self, array: npt.NDArray[Any], word: int) -> None:
        """Look at the bounce buffer after each leg that fills it, and poison it again after each that empties it."""
        self._bounce, self._bounce_word = array, word

    def hear(self, event: Event) -> None:
        """The legs of a staged handoff; of the event only its ends are used."""
        if self._bounce is None or not isinstance(event, Copied) or event.label.phase != "handoff":
            return
        label = event.label
        if not label.row_src:
            return
        if event.src == label.row_src:
            key = (label.phase, label.tensor, label.row_src, label.row_dst, event.src, event.dst)
            self.count(key, [self._bounce], self._bounce_word)
        else:
            self._bounce.view(np.uint32).fill(self._bounce_word)
