"""`place` on whole fleets: best pairs of 1,000 and 10,000 GPUs, pools of 32, one pair, against the project's bounds.

    python benchmarks/place.py [--out benchmarks/results/place.md]

Warm, in one process, CPU time: fleet, model and symmetry are there, as in a service; what comes before the first answer
is told apart. A search begins anew each time: nothing of the last answer is kept but the fleet's.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fleet_scale import FLEET
from tables import BOUNDED, machine, show

REPEATS = 25
BOARDS = """schema: kvwaybill/fleet/1
name: four-boards
nodes: [{id: b, template: hgx-h100, count: 4}]
switches: [{id: leaf, kind: net, tier: 1}]
links:
  - {from: "b*/gpu:*", to: leaf, kind: net, bandwidth: 50 GB/s, latency: 5 us, peer_access: direct, bidirectional: true}
"""
"""32 GPUs on four boards, all at one leaf of the network."""


def timed(work: Callable[[], Any], repeats: int = REPEATS) -> tuple[float, float]:
    """Median and worst milliseconds of CPU time; one call goes before."""
    work()
    times = []
    for _ in range(repeats):
        gc.collect()
        began = time.process_time()
        work()
        times.append((time.process_time() - began) * 1000)
    return statistics.median(times), max(times)


def row(what: str, told: tuple[float, float], bound: str) -> str:
    """One line of the table."""
    return f"| {what} | {told[0]:.2f} ms (worst {told[1]:.2f}) | {bound} |"


def question(fleet: Any, **words: Any) -> Any:
    """The question of the shipped pair, on another fleet."""
    from scenarios.wanted import prepare, wanted_of

    return replace(prepare(wanted_of("two-gpu", words)).ask, fleet=fleet)


def pairs(racks: int, bounds: str) -> list[str]:
    """Best pair, the ranked answer, and the best pair under rules, of a fleet of so many racks of 200."""
    from fleet.load import load_fleet
    from planner.place.classes import classes_of
    from planner.place.constraints import Constraints
    from planner.place.pairs import PairSearch, Question

    fleet = load_fleet("fleet.yaml", text=FLEET.replace("count: 50", f"count: {racks}"))
    ask, count = question(fleet), f"{len(fleet.devices):,} GPUs"
    began = time.process_time()
    classes_of(fleet).pairs(None)
    PairSearch(Question(ask=ask)).best()
    first = time.process_time() - began
    rules = Constraints(excluded=frozenset({"rack0/n0/gpu:0", "rack1/n3/gpu:5"}), required=("same-domain",))
    return [
        f"| {count}: symmetry, graph and the first answer, once a fleet | {first:.2f} s | |",
        row(f"{count}: exact best pair", timed(lambda: PairSearch(Question(ask=ask)).best()), bounds),
        row(f"{count}: ranked answer with TTFT and TPOT", timed(lambda: PairSearch(Question(ask=ask)).run()), ""),
        row(
            f"{count}: best pair, two devices excluded, one domain required",
            timed(lambda: PairSearch(Question(ask=ask, constraints=rules)).best()), "",
        ),
    ]  # fmt: skip


def pools() -> list[str]:
    """Every size of pools of 32 GPUs: P x D x TP x TP x batch."""
    from fleet.load import load_fleet
    from planner.place.pools import PoolQuestion, PoolSearch

    ask = question(load_fleet("fleet.yaml", text=BOARDS))
    out = []
    for objective in ("handoff", "throughput"):
        for workers, batches in ((8, (1, 8, 64)), (16, (1, 4, 16, 64))):
            asked = PoolQuestion(
                ask=ask, objective=objective, prefill_workers=tuple(range(1, workers + 1)),
                decode_workers=tuple(range(1, workers + 1)), prefill_tp=(1, 2, 4), decode_tp=(1, 2, 4), batches=batches,
            )  # fmt: skip
            count = len(PoolSearch(asked).run().admitted)
            what = f"32 GPUs: {objective}, P and D 1-{workers}, TP 1, 2, 4, batch {', '.join(map(str, batches))}"
            told = timed(lambda asked=asked: PoolSearch(asked).run(), 5)
            out.append(row(f"{what}: {count:,} pools that fit, ranked", told, "1 s"))
    return out


def single() -> list[str]:
    """One admission of the two-GPU split, and the same on a screen that is there."""
    from fleet.load import load_fleet
    from planner.admit import admit
    from planner.place.screen import Screen
    from scenarios.wanted import prepare, wanted_of

    ask = prepare(wanted_of("two-gpu", {})).ask
    screen = Screen(replace(ask, fleet=load_fleet("two-gpu-nvlink")))

    def screened() -> None:
        screen._pairs.clear()
        screen._known._found.clear()
        screen.pair("gpu:0", "gpu:1")

    return [
        row("two-GPU split, `admit` without id and JSON", timed(lambda: admit(ask), 300), "1 ms (aim 0.3)"),
        row("the same pair on a screen", timed(screened, 300), "1 ms (aim 0.3)"),
    ]


def main() -> None:
    """Measures and prints the table; `--out` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    load = os.getloadavg()[0]
    lines = [
        f"{machine(load)}; CPU time, medians of {REPEATS} warm searches, one core.",
        "",
        *BOUNDED,
        *single(), *pairs(5, "10 ms (aim 2)"), *pairs(50, "50 ms (aim 10)"), *pools(),
    ]  # fmt: skip
    show(lines, out)


if __name__ == "__main__":
    main()
