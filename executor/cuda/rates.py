"""How long copies take on the edges of this machine: medians by size, and the line alpha + bytes / beta through them.

Copies are timed by events on the stream that makes them. `single`: one copy between two events, what a lone transfer
costs. `train`: many copies one behind the other, divided by their number, what each copy of a handoff costs. The fit
minimises relative errors over every other size; the sizes in between are held out and scored. An edge whose worst error
is above 15 % is "not a line", and pageable host memory never is: it gets a range. Nothing here is a plan's figure.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from executor.cuda.driver import CopyDirection, Driver, selected

__all__ = ["EDGES", "Fit", "Line", "fit_line", "measure_edges", "measure_pair"]

SIZES = tuple(1 << power for power in range(10, 31, 2))
TRAIN = 16
REPEATS = 5
NOT_A_LINE = 0.15
EDGES = ("h2d_pinned", "d2h_pinned", "h2d_pageable", "d2h_pageable", "d2d")


@dataclass(frozen=True, slots=True)
class Line:
    """seconds = alpha_s + bytes / beta_bytes_per_s."""

    alpha_s: float
    beta_bytes_per_s: float

    def seconds(self, nbytes: int, copies: int = 1) -> float:
        """Of `nbytes` in all, in so many copies."""
        return self.alpha_s * copies + nbytes / self.beta_bytes_per_s


@dataclass(frozen=True, slots=True)
class Fit:
    """A line, its worst relative error on the sizes that it was fitted to, and on those that it was not shown."""

    line: Line
    worst_fitted: float
    worst_held_out: float

    @property
    def is_line(self) -> bool:
        """Whether every size lies within 15 % of the line."""
        return max(self.worst_fitted, self.worst_held_out) <= NOT_A_LINE


def fit_line(sizes: Sequence[int], seconds: Sequence[float]) -> Fit:
    """The line through (size, seconds) that minimises relative errors over every other point, the first and last of
    them among those. Needs four points or more; ValueError else.
    """
    if len(sizes) < 4:
        raise ValueError(f"{len(sizes)} sizes; a line with held-out points needs four or more")
    shown = [i for i in range(len(sizes)) if i % 2 == 0 or i == len(sizes) - 1]
    x, y = np.array(sizes, float), np.array(seconds, float)
    design = np.stack([np.ones(len(shown)), x[shown]], axis=1) / y[shown, None]
    (alpha, slope), *_ = np.linalg.lstsq(design, np.ones(len(shown)), rcond=None)
    line = Line(max(float(alpha), 0.0), 1.0 / float(slope))
    errors = [abs(line.seconds(size) - taken) / taken for size, taken in zip(sizes, seconds, strict=True)]
    held = [error for i, error in enumerate(errors) if i not in shown]
    return Fit(line, max(errors[i] for i in shown), max(held, default=0.0))


class _Bench:
    """Streams, timed events and memory on the cards of a measurement, given back at the end."""

    def __init__(self, driver: Driver, ordinals: Sequence[int], nbytes: int) -> None:
        self.driver = driver
        self.streams: dict[int, int] = {}
        self.events: dict[int, tuple[int, int]] = {}
        self.memory: dict[int, list[int]] = {}
        for ordinal in dict.fromkeys(ordinals):
            with selected(driver, ordinal):
                self.streams[ordinal] = driver.stream()
                self.events[ordinal] = (driver.event(timed=True), driver.event(timed=True))
                self.memory[ordinal] = [driver.malloc(nbytes), driver.malloc(nbytes)]
        self.pinned = driver.pinned(nbytes)
        ctypes.memset(self.pinned, 1, nbytes)
        self._pageable = np.ones(nbytes, np.uint8)
        self.pageable = self._pageable.ctypes.data

    def close(self) -> None:
        self.driver.free_pinned(self.pinned)
        for ordinal, stream in self.streams.items():
            with selected(self.driver, ordinal):
                for event in self.events[ordinal]:
                    self.driver.end_event(event)
                for address in self.memory[ordinal]:
                    self.driver.free(address)
                self.driver.end_stream(stream)

    def seconds(self, ordinal: int, work: Callable[[], None], count: int) -> float:
        """Median seconds of one of `count` pieces of work between two events, after one run to warm up."""
        driver, stream, (first, last) = self.driver, self.streams[ordinal], self.events[ordinal]
        taken = []
        with selected(driver, ordinal):
            for repeat in range(REPEATS + 1):
                driver.record(first, stream)
                for _ in range(count):
                    work()
                driver.record(last, stream)
                driver.synchronize(stream)
                if repeat:
                    taken.append(driver.elapsed_us(first, last) / 1e6 / count)
        return median(taken)


def measure_edges(driver: Driver, ordinal: int, sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """The edges between one card and its host, and within the card: {edge: {sizes, single_s, train_s, fits}}."""
    bench = _Bench(driver, [ordinal], max(sizes))
    try:
        here, other = bench.memory[ordinal]
        ends: dict[str, tuple[CopyDirection, int, int]] = {
            "h2d_pinned": ("h2d", here, bench.pinned), "d2h_pinned": ("d2h", bench.pinned, here),
            "h2d_pageable": ("h2d", here, bench.pageable), "d2h_pageable": ("d2h", bench.pageable, here),
            "d2d": ("d2d", other, here),
        }  # fmt: skip
        found = {}
        for edge, (direction, dst, src) in ends.items():

            def copy(nbytes: int, d: CopyDirection = direction, to: int = dst, at: int = src) -> None:
                driver.copy(d, to, at, nbytes, bench.streams[ordinal])

            found[edge] = _edge(bench, ordinal, sizes, copy, ranged=edge.endswith("pageable"))
        return found
    finally:
        bench.close()


def measure_pair(driver: Driver, one: int, other: int, sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """The edges between two cards: each way alone, and the rate each way of the largest size when both run at once.

    Uses the peer entry point; whether it goes directly depends on what peer access was enabled before.
    """
    bench = _Bench(driver, [one, other], max(sizes))
    try:
        found: dict[str, Any] = {}
        for a, b in ((one, other), (other, one)):

            def copy(nbytes: int, src: int = a, dst: int = b) -> None:
                to, at = bench.memory[dst][1], bench.memory[src][0]
                driver.copy_peer(to, dst, at, src, nbytes, bench.streams[src])

            found[f"peer_{a}_to_{b}"] = _edge(bench, a, sizes, copy)
        found["both_at_once"] = _both(bench, one, other, max(sizes))
        return found
    finally:
        bench.close()


def _both(bench: _Bench, one: int, other: int, nbytes: int) -> dict[str, Any]:
    driver, rates = bench.driver, {}
    for a in (one, other):
        with selected(driver, a):
            driver.record(bench.events[a][0], bench.streams[a])
    for _ in range(TRAIN):
        for a, b in ((one, other), (other, one)):
            with selected(driver, a):
                driver.copy_peer(bench.memory[b][1], b, bench.memory[a][0], a, nbytes, bench.streams[a])
    for a in (one, other):
        with selected(driver, a):
            driver.record(bench.events[a][1], bench.streams[a])
    for a, b in ((one, other), (other, one)):
        with selected(driver, a):
            driver.synchronize(bench.streams[a])
            taken = driver.elapsed_us(*bench.events[a]) / 1e6
        rates[f"peer_{a}_to_{b}_bytes_per_s"] = TRAIN * nbytes / taken
    return {"bytes": nbytes, "copies_each_way": TRAIN, **rates}


def _edge(
    bench: _Bench, ordinal: int, sizes: Sequence[int], copy: Callable[[int], None], ranged: bool = False
) -> dict[str, Any]:
    single = [bench.seconds(ordinal, lambda n=size: copy(n), 1) for size in sizes]  # type: ignore[misc]  # bound now
    train = [bench.seconds(ordinal, lambda n=size: copy(n), TRAIN) for size in sizes]  # type: ignore[misc]  # likewise
    edge: dict[str, Any] = {"sizes": list(sizes), "single_s": single, "train_s": train, "train_copies": TRAIN}
    if ranged:
        rates = [size / taken for size, taken in zip(sizes, train, strict=True) if size >= 1 << 20]
        return edge | {"not_a_line": True, "rate_bytes_per_s": [min(rates), max(rates)] if rates else None}
    for name, taken in (("single", single), ("train", train)):
        fit = fit_line(sizes, taken)
        edge[name] = asdict(fit.line) | {
            "worst_fitted": fit.worst_fitted, "worst_held_out": fit.worst_held_out, "not_a_line": not fit.is_line,
        }  # fmt: skip
    return edge
