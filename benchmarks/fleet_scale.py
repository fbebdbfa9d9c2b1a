"""Fleets of 10,000 GPUs: reading, routes, admission, pictures, against the bounds of the project.

    python benchmarks/fleet_scale.py [--out benchmarks/results/fleet_scale.md]

Each row of a fresh process is the median of several; CPU time, because wall time on a shared machine says little;
memory is the most that the process held. Warm queries are timed one by one, and their median and worst are told.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tables import BOUNDED, ROOT, machine, show

REPEATS = 5
QUERIES = 300

FLEET = """schema: kvwaybill/fleet/1
name: ten-thousand
templates:
  box:
    devices: [{id: gpu, count: 8, sku: h100-sxm-80}]
    switches: [{id: nvswitch, kind: nvlink, host: host}]
    nics: [{id: nic, count: 8}]
    links:
      - {from: "gpu:*", to: nvswitch, kind: nvlink, count: 18, bandwidth: 450 GB/s, peer_access: direct,
         bidirectional: true}
      - {from: host, to: "gpu:*", kind: pcie, bandwidth: 63 GB/s, latency: 6.6 us, bidirectional: true}
      - {from: host, to: "nic:*", kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
      - {from: "gpu:*", to: "nic:*", each: pair, kind: pcie, bandwidth: 63 GB/s, bidirectional: true}
  rack:
    nodes: [{id: n, template: box, count: 25}]
    switches: [{id: leaf, kind: net, tier: 1}]
    links: [{from: "n*/nic:*", to: leaf, kind: net, bandwidth: 400 Gb/s, bidirectional: true}]
nodes: [{id: rack, template: rack, count: 50}]
switches: [{id: spine, count: 4, kind: net, tier: 2}]
links: [{from: "rack*/leaf", to: "spine:*", each: all, kind: net, bandwidth: 400 Gb/s, bidirectional: true}]
fabric: {tiers: [leaf, spine]}
"""
"""10,000 GPUs, 1,250 hosts, 10,000 NICs, 1,304 switches; every host reaches every NIC of its node."""

IN_A_PROCESS = """
import resource, sys, time
began = time.process_time()
{body}
seconds = time.process_time() - began
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def fresh(body: str) -> tuple[float, float]:
    """Medians of CPU seconds and MiB over fresh processes that run `body`, imports included."""
    told = []
    for _ in range(REPEATS):
        done = subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS.format(body=body)], cwd=ROOT, check=True, capture_output=True, text=True
        )
        told.append([float(word) for word in done.stdout.split()[-2:]])
    return statistics.median(row[0] for row in told), statistics.median(row[1] for row in told)


def queries(kind: str) -> list[tuple[str, str]]:
    """Pairs of memories: of one node, of one rack, of two racks, device to host."""
    draw = random.Random(kind)

    def node(rack: int) -> str:
        return f"rack{rack}/n{draw.randrange(25)}"

    pairs = []
    for _ in range(QUERIES):
        rack, other = draw.sample(range(50), 2)
        first = node(rack)
        second = {"one node": first, "one rack": node(rack), "two racks": node(other), "to its host": first}[kind]
        end = "host" if kind == "to its host" else f"gpu:{draw.randrange(4, 8)}"
        pairs.append((f"{first}/gpu:{draw.randrange(4)}", f"{second}/{end}"))
    return pairs


def timed(ask: Callable[[str, str], Any], pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Median and worst milliseconds of one query; the first, which makes the lists, is told apart and left out."""
    ask(*pairs[0])
    times = []
    for src, dst in pairs:
        began = time.process_time()
        ask(src, dst)
        times.append((time.process_time() - began) * 1000)
    return statistics.median(times), max(times)


def routes(path: str) -> list[str]:
    """Rows of the table: one query by kind, warm, and what comes before the first."""
    from fleet.load import load_fleet
    from planner.machine import MachineGraph

    fleet = load_fleet(path)
    began = time.process_time()
    graph = MachineGraph(fleet)
    graph.way("rack0/n0/gpu:0", "rack1/n0/gpu:0", 2**20, 1)
    first = time.process_time() - began
    rows = [f"| graph, lists and the first route, once a process | {first:.2f} s | |"]
    for kind in ("one node", "one rack", "two racks", "to its host"):
        median, worst = timed(lambda a, b: graph.way(a, b, 2**20, 8), queries(kind))
        rows.append(f"| route, {kind}, warm | {median:.2f} ms (worst {worst:.2f}) | 5 ms |")
    return rows


def admission(path: str) -> str:
    """One admission across two racks, warm, in process."""
    from planner.admit import admit
    from scenarios.wanted import prepare, wanted_of

    words = {"fleet": path, "prefill": "rack0/n0/gpu:0", "decode": "rack49/n24/gpu:7"}
    ask = prepare(wanted_of(None, words | {"prompt_tokens": 100, "steps": 120})).ask
    admit(ask)
    times = []
    for _ in range(20):
        began = time.process_time()
        admit(ask)
        times.append((time.process_time() - began) * 1000)
    return f"| admission across two racks, warm | {statistics.median(times):.1f} ms | |"


def table() -> list[str]:
    """The lines of the whole table."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "ten-thousand.yaml")
        Path(path).write_text(FLEET, encoding="utf-8")
        load = f"from fleet.load import load_fleet\nfleet = load_fleet({path!r})"
        seconds, memory = fresh(load)
        drawn = "\nfrom scenarios.pictures import draw, scene_of, svg_text\nsvg_text(draw(scene_of(fleet)))"
        picture, _ = fresh(load + drawn)
        written = len(FLEET.splitlines())
        return [
            f"| {written} lines read and validated: 10,000 GPUs, fresh process | {seconds:.2f} s | 3 s |",
            f"| memory of that process | {memory:.0f} MiB | 500 MiB |",
            *routes(path),
            admission(path),
            f"| the same file drawn as SVG, fresh process | {picture:.2f} s | |",
        ]


def main() -> None:
    """Measures and prints the table; `--out` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    load = os.getloadavg()[0]
    lines = [
        f"{machine(load)}; CPU seconds, medians of {REPEATS} fresh processes, {QUERIES} queries a kind.",
        "",
        *BOUNDED,
        *table(),
    ]
    show(lines, out)


if __name__ == "__main__":
    main()
