"""Requests over time: drawn from a seed. Arrivals in whole picoseconds from 0, lengths in tokens.

Equal seeds give equal requests wherever numpy is the same; the generator is PCG64 (`numpy.random.default_rng`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fleet.errors import DescriptionError

PICOSECONDS = 10**12
MAX_TOKENS = 2**22
"""Tokens of one prompt or answer, at most; more is a slip."""
MAX_REQUESTS = 20_000_000
MAX_TIME = 2**61
"""ps that a run may last: 26 days."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Requests in the order of arrival. Arrays of int64: `arrival` ps, `prompt` and `out` tokens.

    `hash_at`, `hashes`: ids 0 .. H-1 of the prefix blocks of each request, `hash_tokens` tokens a block (0: none).
    `source`: what they are, in words.
    """

    arrival: Any
    prompt: Any
    out: Any
    hash_at: Any
    hashes: Any
    hash_tokens: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrivals:
    """`rate` requests a second on average. `shape` of gamma gaps: below 1 in bursts, 1 is Poisson."""

    kind: Literal["poisson", "gamma", "constant"]
    rate: float
    requests: int
    shape: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of prompts or answers: `value` of each, or exp(normal(mu, sigma)), cut to least .. most."""

    kind: Literal["fixed", "lognormal"]
    value: int = 1
    mu: float = 0.0
    sigma: float = 0.0
    least: int = 1
    most: int = MAX_TOKENS


def without_hashes(n: int) -> tuple[Any, Any]:
    """(offsets, ids) of n requests whose prefixes nobody knows."""
    import numpy as np

    return np.zeros(n + 1, np.int64), np.zeros(0, np.int64)


def draw(seed: int, arrivals: Arrivals, prompts: Lengths, answers: Lengths) -> Traffic:
    """Requests of a seed: prompts, then answers, then gaps are drawn, in that order.

    Raises DescriptionError where they would come for longer than `MAX_TIME`.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    n = arrivals.requests
    prompt, out = _lengths(rng, n, prompts), _lengths(rng, n, answers)
    mean = PICOSECONDS / arrivals.rate
    if arrivals.kind == "constant":
        times = np.arange(n, dtype=np.float64) * mean
    else:
        shape = 1.0 if arrivals.kind == "poisson" else arrivals.shape
        times = np.cumsum(rng.gamma(shape, mean / shape, n))
    if times[-1] > MAX_TIME:
        told = f"{n:,} requests at {arrivals.rate:g} a second come for {times[-1] / PICOSECONDS / 86400:,.0f} days"
        raise DescriptionError.at(
            "arrivals", "rate", f"{told}; a run may last 26: give a higher rate, or fewer requests"
        )
    hash_at, hashes = without_hashes(n)
    words = f"{n:,} drawn requests (seed {seed}): {arrivals.kind} arrivals, {arrivals.rate:g} a second"
    return Traffic(
        arrival=np.rint(times).astype(np.int64), prompt=prompt, out=out, hash_at=hash_at, hashes=hashes, hash_tokens=0,
        source=words,
    )  # fmt: skip


def _lengths(rng: Any, n: int, lengths: Lengths) -> Any:
    import numpy as np

    if lengths.kind == "fixed":
        return np.full(n, lengths.value, np.int64)
    drawn = np.exp(rng.normal(lengths.mu, lengths.sigma, n))
    return np.clip(drawn, lengths.least, lengths.most).astype(np.int64)
