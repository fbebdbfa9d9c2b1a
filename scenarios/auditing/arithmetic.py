"""Bytes and descriptors of transfers, taken apart: the size of one descriptor, then layers and blocks, then tokens.

NIXL under vLLM makes one descriptor a block and region; regions are K and V of each layer, or one of each layer for a
latent: descriptors = blocks * regions, bytes = descriptors * bytes of a block in one region. Every reading that fits is
listed. What is taken for granted is said beside each: regions of one size; and, for blocks, transfers all alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from scenarios.auditing.parts import Part
from scenarios.observations.observation import Interval

Document = dict[str, Any]
MOST_LAYERS = 256
"""Twice what the deepest published decoder has (126)."""
STEP = 8
"""Bytes of a block in a region are a multiple of 8: heads have a multiple of 8 numbers of at least one byte."""
MOST_SIZES = 64
BLOCKS = (1, 2, 4, 8, *range(16, 4097, 16))
"""Tokens of a block or page that are looked for: multiples of 16 as hybrids of vLLM have them, and small pages."""
USUAL_BLOCK = 256
"""The largest block of a model without state; a log of another prints its block."""
WIDTHS = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of one descriptor that all parts allow. `list` is None where rounding leaves too many to be told apart."""

    interval: Interval | None
    list: tuple[int, ...] | None
    apart: tuple[tuple[str, str], ...] = ()
    """Parts that no one size fits, in words: (where, its interval)."""


def descriptor_sizes(parts: Sequence[Part]) -> Sizes:
    """The sizes that every part with bytes and descriptors allows."""
    ranges = [(part, found) for part in parts if (found := _size_of(part)) is not None]
    if not ranges:
        return Sizes(None, ())
    low = max(ranges, key=lambda pair: pair[1].low)
    high = min(ranges, key=lambda pair: pair[1].high)
    if low[1].low > high[1].high:
        return Sizes(None, (), tuple((part.where, _range_words(found)) for part, found in (low, high)))
    both = Interval(low[1].low, high[1].high)
    first = -(-both.low // STEP) * STEP
    count = int((both.high - first) // STEP) + 1
    if count > MOST_SIZES:
        return Sizes(both, None)
    return Sizes(both, tuple(int(first) + STEP * i for i in range(max(0, count)) if first + STEP * i > 0))


def _size_of(part: Part) -> Interval | None:
    size, pieces = part.seen.bytes, whole_total(part)
    if size is None or pieces is None or pieces[0] <= 0 or size.high <= 0:
        return None
    return Interval(size.low / pieces[1], size.high / pieces[0])


def _range_words(found: Interval) -> str:
    return f"{float(found.low):,.2f} to {float(found.high):,.2f} B a descriptor"


def whole_total(part: Part) -> tuple[int, int] | None:
    """Least and most descriptors of a part: whole numbers, by rounding; None where it tells none."""
    return None if part.seen.descriptors is None else part.seen.descriptors.whole()


def each(part: Part) -> tuple[int, int] | None:
    """Descriptors of one transfer, whole numbers, if all transfers of the part are alike; None where they cannot be."""
    total, count = part.seen.descriptors, part.seen.transfers
    if total is None or count is None or not count.is_exact or count.low < 1:
        return None
    found = total.times(1 / count.low).whole()
    return found if found is not None and found[0] > 0 else None


def layer_readings(parts: Sequence[Part]) -> list[Document]:
    """Layers and blocks that every part allows, transfers of a part being alike where they can be; deepest first.

    Each {layers, regions_per_layer, regions, blocks}: blocks of one transfer, one figure for each part of its own.
    """
    counts = {found[0] for part in parts if (found := each(part)) is not None and found[0] == found[1]}
    totals = [found for part in parts if each(part) is None and (found := whole_total(part)) and found[1] > 0]
    if not counts:
        return []
    readings = []
    for per_layer in (2, 1):
        for layers in range(MOST_LAYERS, 0, -1):
            regions = per_layer * layers
            if all(count % regions == 0 for count in counts) and all(_divides(regions, total) for total in totals):
                blocks = sorted({count // regions for count in counts})[:100]
                readings.append(
                    {"layers": layers, "regions_per_layer": per_layer, "regions": regions, "blocks": blocks}
                )
    return readings


def _divides(number: int, between: tuple[int, int]) -> bool:
    """Whether it divides some whole number in [least, most]."""
    low, high = between
    return low + (-low) % number <= high


def unlike_regions(parts: Iterable[Part]) -> list[int]:
    """Numbers of regions that fit where transfers of a part differ: they divide some whole number of each total."""
    totals = list(dict.fromkeys(found for part in parts if (found := whole_total(part)) is not None and found[1] > 0))
    if not totals:
        return []
    return [n for n in range(1, 2 * MOST_LAYERS + 1) if all(_divides(n, total) for total in totals)]


def token_readings(size: int) -> list[Document]:
    """What a block of `size` bytes in one region may hold: {block_tokens, bytes_per_token, numbers by width}."""
    return [
        {
            "block_tokens": tokens,
            "bytes_per_token": size // tokens,
            "numbers": {str(width): size // tokens // width for width in WIDTHS if (size // tokens) % width == 0},
        }
        for tokens in BLOCKS
        if size % tokens == 0 and size // tokens % STEP == 0
    ]


def rank_readings(count: int, most: int = 64) -> list[int]:
    """Ranks that a number of transfers may be of, each request being one transfer a rank."""
    return [ranks for ranks in range(1, most + 1) if count % ranks == 0]


def pool_bytes(available: Interval, tokens: int, block: int, length: int | None) -> Interval:
    """Bytes of one token in all layers of a rank, by a pool: tokens = floor(available / block bytes) * block.

    The newest versions of vLLM print concurrency * length in place of it, in which the last block of a request of
    `length` tokens is not whole: fewer by length / (length + block) at most.
    """
    most = Fraction(tokens + 1) if length is None else Fraction((tokens + 1) * (length + block), length)
    return Interval(available.low / (most + block), available.high / Fraction(tokens))


def blocks_of_pool(reading: Document, sizes: Sequence[int], pool: Interval) -> list[int]:
    """Tokens of a block with which a reading's block in all regions has the bytes that the pool's tokens have."""
    whole = [reading["regions"] * size for size in sizes]
    return [tokens for tokens in BLOCKS if any(size % tokens == 0 and size // tokens in pool for size in whole)]
