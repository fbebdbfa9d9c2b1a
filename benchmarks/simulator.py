"""How many requests a second of one core the event loop simulates, and how much memory a million take.

    taskset -c 1 python benchmarks/simulator.py [--out benchmarks/results/simulator.md] [--most 1000000]

Lognormal prompts exp(N(6.5, 0.7)) cut to 16..1500 and answers exp(N(4.9, 0.6)) cut to 2..500, Poisson arrivals, a dense
8B shape in bf16 on cards of 80 GB that reach each other over one switch. Each row is a fresh process: the loop is
compiled and kept before, requests are drawn before the clock starts; reading results is not counted. The command
`--row` is one such process.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tables import machine, show

ROWS = [
    # prefill + decode workers, requests, a second, bound of requests/s
    (4, 4, 1_000, 10, ""),
    (4, 4, 10_000, 20, "10,000, aim 50,000"),
    (4, 4, 100_000, 20, ""),
    (32, 32, 100_000, 200, "10,000"),
    (500, 500, 10_000, 20, "5,000, aim 20,000"),
    (500, 500, 100_000, 2000, ""),
    (32, 32, 1_000_000, 200, "memory 1 GiB"),
]


def fleet_text(cards: int) -> str:
    """A fleet file of so many cards of 80 GB around one switch."""
    from fleet.catalog import catalog_text

    head = catalog_text("two-gpu-nvlink").split("hosts:")[0].replace("two-gpu-nvlink", "many-cards")
    names = card_names(cards)
    hosts = list(dict.fromkeys(f"{name.split('/')[0]}/host" for name in names))
    peer = "kind: nvlink, bandwidth: 450 GB/s, latency: 2 us, peer_access: direct"
    copy = "kind: pcie, bandwidth: 63 GB/s"
    lines = [head, "hosts:", *(f"  - id: {host}" for host in hosts), "switches:", "  - {id: switch, kind: nvlink}"]
    lines += [
        "devices:",
        *(f"  - {{id: {n}, sku: h100-sxm-80, host: {n.split('/')[0]}/host}}" for n in names),
        "links:",
    ]
    for name in names:
        host = f"{name.split('/')[0]}/host"
        for a, b, figures in ((name, "switch", peer), ("switch", name, peer), (name, host, copy), (host, name, copy)):
            lines.append(f"  - {{from: {a}, to: {b}, {figures}}}")
    return "\n".join(lines) + "\n"


def card_names(cards: int) -> list[str]:
    """Eight cards a node."""
    return [f"n{i // 8}/gpu:{i % 8}" for i in range(cards)]


def row(prefill: int, decode: int, requests: int, rate: float) -> dict[str, Any]:
    """One run: seconds of the loop, of the processor, set-up, and the most memory of the process."""
    from fleet.checkpoints import load_model
    from fleet.load import load_fleet
    from scenarios.shipped import LIBRARY
    from scenarios.simulation import columns as col
    from scenarios.simulation.arrays import config_of
    from scenarios.simulation.engine import simulate
    from scenarios.simulation.plant import build
    from scenarios.simulation.spec import Pool, Spec
    from scenarios.simulation.traffic import Arrivals, Lengths, draw

    began = time.perf_counter()
    names = card_names(prefill + decode)
    spec = Spec(
        fleet="many-cards", prefill=Pool(devices=tuple(names[:prefill])), decode=Pool(devices=tuple(names[prefill:]))
    )
    fleet = load_fleet("many-cards", text=fleet_text(prefill + decode))
    plant = build(spec, fleet, load_model(str(Path(LIBRARY) / "simulations" / "dense-8b.json")))
    traffic = draw(
        0, Arrivals(kind="poisson", rate=rate, requests=requests),
        Lengths(kind="lognormal", mu=6.5, sigma=0.7, least=16, most=1500),
        Lengths(kind="lognormal", mu=4.9, sigma=0.6, least=2, most=500),
    )  # fmt: skip
    config = config_of(plant, traffic)
    simulate(config._replace(arrival=config.arrival[:1], prompt=config.prompt[:1], out=config.out[:1]))
    ready, cpu = time.perf_counter(), time.process_time()
    outcome = simulate(config)
    seconds, cpu = time.perf_counter() - ready, time.process_time() - cpu
    finished = int((outcome.requests[:, col.ST] == col.FINISHED).sum())
    assert finished == requests, f"{finished} of {requests} finished"
    return {
        "setup": ready - began, "wall": seconds, "cpu": cpu, "events": int(outcome.counters[col.EVENTS]),
        "tokens": int(traffic.out.sum()), "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }  # fmt: skip


def table(most: int) -> str:
    """The table, a fresh process a row."""
    lines = [
        "| workers | requests | new tokens | events | set-up s | loop wall s | loop CPU s"
        " | requests/s (wall; per CPU s) | peak MiB | bound |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for prefill, decode, requests, rate, bound in ROWS:
        if requests > most:
            continue
        words = [sys.executable, __file__, "--row", str(prefill), str(decode), str(requests), str(rate)]
        found = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        lines.append(
            f"| {prefill}P+{decode}D | {requests:,} | {found['tokens']:,} | {found['events']:,} | {found['setup']:.2f}"
            f" | {found['wall']:.2f} | {found['cpu']:.2f} | {requests / found['wall']:,.0f};"
            f" {requests / found['cpu']:,.0f} | {found['mib']:,.0f} | {bound} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the table here, too")
    parser.add_argument("--most", type=int, default=1_000_000, help="leave out rows of more requests")
    parser.add_argument("--row", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        prefill, decode, requests = (int(word) for word in arguments.row[:3])
        print(json.dumps(row(prefill, decode, requests, float(arguments.row[3]))))
        return
    show([f"{machine()}\n", table(arguments.most).rstrip("\n")], arguments.out)


if __name__ == "__main__":
    main()
