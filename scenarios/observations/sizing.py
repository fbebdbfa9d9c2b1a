"""What an engine printed of its memory, beside the plan's: tokens and blocks of the cache, concurrency, block size."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from scenarios.observations.expected import Expected
from scenarios.observations.observation import Interval, Reading

Document = dict[str, Any]
_HYBRID = "layers with state share the pool: what older versions print of it is wrong (vllm-project/vllm#40691)"


def sizing_checks(plan: Document, reading: Reading, expected: Expected) -> list[Document]:
    """Checks of what was printed; none where nothing was. A figure that the plan cannot give is inconclusive."""
    told = reading.sizing
    checks = []
    size = (plan.get("transfer") or {}).get("unit_tokens")
    if "block_tokens" in told and size:
        good, printed = size in told["block_tokens"], in_words(told["block_tokens"])
        checks.append(
            _check("block_tokens_match", good, f"the log has blocks of {printed} tokens, the plan of {size:,}")
        )
    if "pool_tokens" in told:
        checks.append(_pool(plan, told, expected, size))
    if {"pool_tokens", "request_tokens", "max_concurrency"} <= set(told) and size:
        checks.append(_concurrency(told, expected, int(size)))
    return checks


def _check(name: str, good: bool | None, detail: str) -> Document:
    result = "inconclusive" if good is None else "passed" if good else "failed"
    return {"name": name, "required": good is not None, "result": result, "detail": detail}


def _pool(plan: Document, told: dict[str, Interval], expected: Expected, size: int | None) -> Document:
    """Tokens of the pool: the plan's own launch line where it has one, else blocks of the memory that was printed."""
    name, tokens = "pool_tokens_match", told["pool_tokens"]
    if expected.states:
        return _check(name, None, _HYBRID)
    bounds = [
        one["pool_tokens"] for one in plan.get("launch") or [] if (one.get("pool_tokens") or {}).get("most") is not None
    ]
    if bounds:
        good = any(tokens.high >= (one.get("least") or 0) and tokens.low <= one["most"] for one in bounds)
        ranges = " or ".join(f"{one.get('least') or 0:,} to {one['most']:,}" for one in bounds)
        return _check(name, good, f"the log has {in_words(tokens)} tokens, the plan's launch lines {ranges}")
    unit, memory = expected.unit_bytes, told.get("available_bytes")
    if unit is None or memory is None or not size:
        missing = "the memory for the cache is not printed" if memory is None else "the plan has no block of one size"
        return _check(name, None, f"the log has {in_words(tokens)} tokens; {missing}")
    low, high = memory.low // unit * size, memory.high // unit * size
    length = told["request_tokens"].low if "request_tokens" in told else None
    if length:
        # The newest versions print concurrency * length, in which the last block of a request is not whole.
        low = low * length / (-(-length // size) * size) // 1
    words = (
        f"the log has {in_words(tokens)} tokens in {in_words(memory)} B; blocks of {unit:,} B (the plan's, "
        f"{size} tokens) give {low:,} to {high:,}"
    )
    good = tokens.low <= high and tokens.high >= low
    if not good and len(expected.pairs) > 1:
        return _check(
            name, None, f"{words}; of several ranks a block of the pool may be another than that of a transfer"
        )
    return _check(name, good, words)


def _concurrency(told: dict[str, Interval], expected: Expected, size: int) -> Document:
    """Whether tokens and concurrency are of one pool. vLLM divided tokens by tokens first, then blocks by the blocks of
    a request; the newest versions print tokens that are concurrency * length, so that the first rule fits again.
    """
    name, tokens, length, printed = (
        "pool_concurrency_consistent", told["pool_tokens"], told["request_tokens"], told["max_concurrency"],
    )  # fmt: skip
    if expected.states:
        return _check(name, None, _HYBRID)
    blocks, asked = tokens.low // size, -(-length.low // size)
    figure = Fraction(blocks) / asked if asked else None
    if figure is None:
        return _check(name, False, "a request of 0 tokens")
    # Concurrency * length is cut to a whole number of tokens, so tokens over length may fall short by one token.
    plain = Interval(tokens.low / length.low, (tokens.high + 1) / length.low) if length.low else Interval.exact(figure)
    words = (
        f"{int(blocks):,} blocks over {int(asked):,} a request are {float(figure):.2f}, tokens over tokens "
        f"{float(plain.low):.2f}; the log has {in_words(printed)}"
    )
    return _check(name, figure in printed or (printed.low <= plain.high and plain.low <= printed.high), words)


def in_words(value: Interval) -> str:
    """Whole numbers: one where it is exact, else both ends; decimals where no whole number lies in it."""
    whole = value.whole()
    if whole is None:
        return f"{float(value.low):.4g} to {float(value.high):.4g}"
    return f"{whole[0]:,}" if whole[0] == whole[1] else f"{whole[0]:,} to {whole[1]:,}"
