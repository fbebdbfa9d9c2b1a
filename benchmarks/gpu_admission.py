"""Whether admission is true to the granule on a CUDA card: `python -m benchmarks.gpu_admission [--out FILE]`.

Twenty shapes of cache on one card. Of each: the free memory that the plan predicts beside the driver's after the arena
was made, both less what was there before. Then the largest request that is admitted is allocated, and one granule more
is refused by admission and really fails to allocate.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

from executor.backends import cupy_gpu
from executor.cuda.driver import selected
from executor.machine import build_machine
from fleet.errors import KvWaybillError
from fleet.load import load_fleet
from fleet.model import Model
from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.orders import Orders
from planner.plan import make_orders, prediction_document
from planner.request import Request
from tests.planner.fleets import llama2c

FLEET = "one-gpu"
SHAPES = 20
GRANULE = 2 << 20


def shape(number: int) -> Model:
    """A model whose cache takes a few GiB at the positions asked for; its weights are never staged."""
    layers, heads, head_dim = 1 + number % 7, 2 + number % 3, 16 * (1 + number % 4)
    return llama2c(heads * head_dim, 64 + 4 * number, layers, heads, heads, seq_len=1 << 30)


def ask(model: Model, positions: int) -> Admission:
    """One device, both phases, everything that the card has."""
    request = Request(prompt_tokens=8, steps=16, positions=positions)
    placement = Placement(prefill="gpu:0", decode="gpu:0")
    whole = Fraction(1)
    return admit(Ask(fleet=load_fleet(FLEET), model=model, request=request, placement=placement, utilization=whole))


def largest(model: Model) -> int:
    """The most positions that are admitted."""
    low, high = 16, 1 << 30
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if ask(model, middle).verdict == "admitted" else (low, middle)
    return low


def free_after(orders: Orders, model: Model, driver: Any) -> tuple[int, int]:
    """(free bytes as the driver says with the arena held, bytes of the arena)."""
    machine = build_machine(orders, model, cupy_gpu.Backend, lambda event: None, 0)
    try:
        machine.backend.handle("gpu:0")
        with selected(driver, 0):
            return driver.memory()[0], orders.fence("gpu:0")
    finally:
        machine.close()


def with_fence(orders: Orders, more: int) -> Orders:
    """The orders with a fence that is larger by so much."""
    fences = tuple(replace(f, bytes=f.bytes + more) if f.arena == "gpu:0" else f for f in orders.fences)
    return replace(orders, fences=fences)


def measure() -> dict[str, Any]:
    """Every shape, and the edge of what is admitted: before this process holds a context of its own on the card."""
    edges = edge()
    driver = cupy_gpu.make_driver()
    rows = []
    for number in range(SHAPES):
        model = shape(number)
        admission = ask(model, 100_000 * (1 + 7 * number % 20))
        if admission.verdict != "admitted":
            rows.append({"shape": number, "verdict": admission.verdict})
            continue
        orders = make_orders(admission)
        (memory,) = [entry for entry in prediction_document(admission)["memory"] if entry["device"] == "gpu:0"]
        free, arena = free_after(orders, model, driver)
        predicted = memory["capacity_bytes"] - memory["total_bytes"]
        rows.append({
            "shape": number, "arena_bytes": arena, "predicted_free": predicted, "driver_free": free,
            "difference": free - predicted, "within_a_granule": abs(free - predicted) <= GRANULE,
        })  # fmt: skip
    return {"versions": driver.versions(), "shapes": rows, "edge": edges}


def edge() -> dict[str, Any]:
    """The largest admitted request is given its memory; a granule more is refused, and really is not to be had.

    Each try is a process of its own: what a driver keeps of earlier arenas would decide the last granule.
    """
    model = shape(3)
    positions = largest(model)
    tries = []
    for granules in (0, 1, 2):
        command = [
            sys.executable,
            "-m",
            "benchmarks.gpu_admission",
            "--positions",
            str(positions),
            "--more",
            str(granules),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        tries.append({"granules_more": granules, "code": done.returncode, "said": done.stdout.strip()})
    return {
        "positions": positions,
        "arena_bytes": make_orders(ask(model, positions)).fence("gpu:0"),
        "admitted_maximum_runs": tries[0]["code"] == 0,
        "one_position_more": ask(model, positions + 1).verdict,
        "a_granule_more_fails": tries[1]["code"] != 0,
        "tries": tries,
    }


def try_edge(positions: int, granules: int) -> int:
    """One machine with its arena, kernels and stream, or what it lacks in words: 0 or 3."""
    model = shape(3)
    orders = with_fence(make_orders(ask(model, positions)), granules * GRANULE)
    try:
        free, arena = free_after(orders, model, cupy_gpu.make_driver())
    except KvWaybillError as error:
        print(error)
        return error.exit_code
    print(f"arena of {arena:,} B, kernels loaded, {free:,} B left free")
    return 0


def main() -> int:
    """Measures all, or makes one try of the edge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--positions", type=int, help="one try of the edge: this many positions")
    parser.add_argument("--more", type=int, default=0, help="with an arena that is larger by so many granules")
    asked = parser.parse_args()
    if asked.positions is not None:
        return try_edge(asked.positions, asked.more)
    found = measure()
    text = json.dumps(found, indent=1)
    if asked.out:
        with open(asked.out, "w", encoding="utf-8") as file:
            file.write(text)
    within = [row.get("within_a_granule") for row in found["shapes"]]
    print(f"{sum(map(bool, within))} of {len(within)} shapes within a granule; edge: {found['edge']}")
    print("differences:", [row.get("difference") for row in found["shapes"]])
    edges = found["edge"]
    right = edges["admitted_maximum_runs"] and edges["one_position_more"] == "refused" and edges["a_granule_more_fails"]
    return 0 if all(within) and right else 1


if __name__ == "__main__":
    sys.exit(main())
