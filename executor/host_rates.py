"""How long copies take within this machine's memory: medians by size and the line through them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from executor.cuda.rates import fit_line

__all__ = ["measure_host"]

REPEATS = 7


def measure_host(sizes: Sequence[int]) -> dict[str, Any]:
    """One edge as `executor.cuda.rates` words it, with the processor's `name` and `versions`."""
    from executor.processor import processor_name

    source, target = np.ones(max(sizes), np.uint8), np.ones(max(sizes), np.uint8)
    seconds = [_seconds(source, target, size) for size in sizes]
    fit = fit_line(sizes, seconds)
    line = asdict(fit.line) | {
        "worst_fitted": fit.worst_fitted, "worst_held_out": fit.worst_held_out, "not_a_line": not fit.is_line,
    }  # fmt: skip
    edge = {"sizes": list(sizes), "single_s": seconds, "train_s": seconds, "train_copies": 1}
    return edge | {"single": line, "train": line, "name": processor_name(), "versions": {"numpy": np.__version__}}


def _seconds(source: Any, target: Any, nbytes: int) -> float:
    taken = []
    for repeat in range(REPEATS + 1):
        began = time.perf_counter()
        ctypes.memmove(target.ctypes.data, source.ctypes.data, nbytes)
        if repeat:
            taken.append(time.perf_counter() - began)
    return median(taken)
