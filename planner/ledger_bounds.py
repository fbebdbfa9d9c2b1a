"""What a device has and what a plan may use of it: one formula for every verdict, and its inverses for what would fit.

of total: floor(capacity x utilization) - reserve - in use, the reading of vLLM's --gpu-memory-utilization. of free: the
cache may take floor(free x utilization), free being what is left beside the lines that are no cache, the reading of
TensorRT-LLM's free_gpu_memory_fraction. A plan fits when its total is not above the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Basis = Literal["total", "free"]
BASES: tuple[Basis, ...] = ("total", "free")
CACHE_LINES = ("kv_cache", "transfer")
"""Lines that `of free` bounds: what grows with sequences and is laid down last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceBudget:
    """What a device has and what the plan may use of it; None = unknown. `in_use_bytes`: what others hold now."""

    capacity_bytes: int | None
    budget_bytes: int | None
    in_use_bytes: int | None = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """The terms of a bound. `reserve` and `in_use` in bytes; `basis`: what `utilization` is a share of."""

    utilization: Fraction
    reserve: int = 0
    in_use: int = 0
    basis: Basis = "total"


def allowed(capacity: int, total: int, cache: int, terms: Terms) -> int:
    """Bytes that a plan of `total`, `cache` of them cache, may take of a device; at least 0."""
    if terms.basis == "total":
        return max(_share(capacity, terms.utilization) - terms.reserve - terms.in_use, 0)
    left = capacity - terms.in_use - terms.reserve
    free = left - (total - cache)
    return max(left, 0) if free < 0 else total - cache + _share(free, terms.utilization)


def _share(nbytes: int, share: Fraction) -> int:
    return nbytes * share.numerator // share.denominator


def least_capacity(total: int, cache: int, terms: Terms) -> int:
    """The smallest capacity of which `allowed` is not below `total`; floor(c x u) >= n is c >= ceil(n / u)."""
    if terms.basis == "total":
        return _over(total + terms.reserve + terms.in_use, terms.utilization)
    return total - cache + terms.reserve + terms.in_use + _over(cache, terms.utilization)


def most_in_use(capacity: int, total: int, cache: int, terms: Terms) -> int | None:
    """The most that others may hold while a plan fits, whatever `terms` say of it; None where it never does."""
    if terms.basis == "total":
        most = _share(capacity, terms.utilization) - terms.reserve - total
    else:
        most = capacity - terms.reserve - (total - cache) - _over(cache, terms.utilization)
    return most if most >= 0 else None


def _over(nbytes: int, share: Fraction) -> int:
    return -(-nbytes * share.denominator // share.numerator)


def least_utilization(capacity: int, total: int, cache: int, terms: Terms) -> Fraction | None:
    """The smallest share at which a plan fits, 0 where any does; None where not even all of it would do."""
    if terms.basis == "total":
        base, needed = capacity, total + terms.reserve + terms.in_use
    else:
        base, needed = capacity - terms.in_use - terms.reserve - (total - cache), cache
    if base < needed:
        return None
    return Fraction(needed, base) if needed else Fraction(0)
