"""A handoff over PCIe beside what was calibrated in the same process: `python -m benchmarks.gpu_handoff [--out FILE]`.

The 110M shape of llama2.c, a prompt of 768 prefilled in one call on `gpu:0` and decoded on `cpu:0`, and the reverse.
Its time is the driver's own (CUPTI): from the start of its first copy to the end of its last. Expected is
alpha * copies + bytes / beta of that direction's calibrated line: pinned memory, one copy behind the other.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu import orders_of
from benchmarks.gpu_parts import tiled
from executor.backends import cupy_gpu
from executor.cuda.rates import Line, measure_edges
from executor.facts import run_document
from executor.run import Executor
from tests.planner.fleets import llama2c

PROMPT, REPEATS = 768, 3
WAYS = {("gpu:0", "cpu:0"): "d2h_pinned", ("cpu:0", "gpu:0"): "h2d_pinned"}


def spans(prefill: str, decode: str) -> tuple[int, int, list[float]]:
    """Bytes and copies of the handoff as the driver saw them, and its seconds in each run."""
    model = llama2c(768, 2048, 12, 12, 12, 32000, 1024)
    orders = orders_of(model, PROMPT, PROMPT, 2, "gpu-and-cpu", (prefill, decode))
    nbytes, copies, taken = 0, 0, []
    with Executor(orders, tiled(model), cupy_gpu.Backend) as executor:
        for _ in range(REPEATS + 1):
            seen = [c for c in run_document(executor.run())["driver"]["copies"] if c["phase"] == "handoff"]
            nbytes, copies = sum(c["bytes"] for c in seen), sum(c["copies"] for c in seen)
            taken.append((max(c["last_ns"] for c in seen) - min(c["first_ns"] for c in seen)) / 1e9)
    return nbytes, copies, taken[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    asked = parser.parse_args()
    driver = cupy_gpu.make_driver()
    edges = measure_edges(driver, 0)
    result: dict[str, Any] = {"versions": driver.versions(), "edges": edges, "handoffs": []}
    for (prefill, decode), edge in WAYS.items():
        nbytes, copies, taken = spans(prefill, decode)
        line = edges[edge]["train"]
        expected = Line(line["alpha_s"], line["beta_bytes_per_s"]).seconds(nbytes, copies)
        told = {"prefill": prefill, "decode": decode, "bytes": nbytes, "copies": copies, "expected_s": expected}
        told |= {"observed_s": median(taken), "error": median(taken) / expected - 1, "runs_s": taken}
        result["handoffs"].append(told)
        print(json.dumps(told), flush=True)
    if asked.out:
        Path(asked.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
