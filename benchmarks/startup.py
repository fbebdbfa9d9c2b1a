"""What a user waits for: start-up of the commands (CPU time of a process) and one warm admission in process.

    python benchmarks/startup.py [--out benchmarks/results/startup.md]

Medians over fresh processes; CPU time, because wall time on a shared machine says little. The machine is named.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import BOUNDED, ROOT, machine, show

DATA = ROOT.parent / "shared" / "data" / "llama2c_golden"
REPEATS = 9


def with_bytecode(folder: str) -> dict[str, str]:
    """The environment of a process that keeps compiled modules in `folder`, as an installation keeps its own.

    Where PYTHONDONTWRITEBYTECODE is set, every process of an editable install would compile all sources anew, and what
    is measured would be Python's compiler.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": folder}


def cpu_seconds(arguments: list[str], environment: dict[str, str]) -> float:
    """User + system seconds of one fresh process of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "scenarios.cli", *arguments]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def commands() -> list[tuple[str, list[str], str]]:
    """(name, arguments, bound in seconds) of what is measured."""
    rows = [
        ("--help", ["--help"], "0.3"),
        ("admit two-gpu", ["admit", "two-gpu"], "1.0, aim 0.7"),
        ("run two-gpu", ["run", "two-gpu"], ""),
        ("prove two-gpu", ["prove", "two-gpu"], ""),
    ]
    if DATA.is_dir():
        words = ["run", "two-gpu", "--model", str(DATA / "stories260K.bin"), "--tokenizer", str(DATA / "tok512.bin")]
        rows.append(("run stories260K, 256 steps", [*words, "--prompt", "Once upon a time", "--steps", "256"], "2.0"))
    return rows


def warm_admission_ms() -> float:
    """Median milliseconds of one two-GPU admission in process, without id and JSON.

    No request comes twice in a row: what is kept of the fleet and the model helps, what is kept of a request cannot.
    """
    from dataclasses import replace

    from planner.admit import admit
    from scenarios.wanted import prepare, wanted_of

    ask = prepare(wanted_of("two-gpu", {})).ask
    asks = [replace(ask, request=replace(ask.request, steps=steps)) for steps in range(60, 160)]
    admit(ask)
    times = []
    for each in asks * 5:
        began = time.perf_counter()
        admit(each)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def main() -> None:
    """Measures and prints the table; `--out` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    lines = [
        f"{machine()};",
        f"medians of {REPEATS} fresh processes, user + system CPU seconds, compiled kernels and modules cached.",
        "",
        *BOUNDED,
    ]
    with tempfile.TemporaryDirectory() as folder:
        environment = with_bytecode(folder)
        for name, arguments, bound in commands():
            cpu_seconds(arguments, environment)  # fills caches
            median = statistics.median(cpu_seconds(arguments, environment) for _ in range(REPEATS))
            lines.append(f"| `kvwaybill {name}` | {median:.2f} s | {bound} |")
    lines.append(f"| one warm two-GPU admission in process | {warm_admission_ms():.2f} ms | 1.0 |")
    if not DATA.is_dir():
        lines.append("\nThe run of stories260K was not measured: the shared checkpoint is not beside the project.")
    show(lines, out)


if __name__ == "__main__":
    main()
