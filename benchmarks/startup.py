"""What a user waits for: start-up of the commands (CPU time of a process) and one warm admission in process.

    python benchmarks/startup.py [--out benchmarks/results/startup.md]

Medians over fresh processes; CPU time, because wall time on a shared machine says little. The machine is named.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT.parent / "shared" / "data" / "llama2c_golden"
REPEATS = 9


def processor() -> str:
    """Name of the processor, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def cpu_seconds(arguments: list[str]) -> float:
    """User + system seconds of one fresh process of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "scenarios.cli", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
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
    """Median milliseconds of one two-GPU admission in process, without id and JSON."""
    from planner.admit import admit
    from scenarios.wanted import prepare, wanted_of

    ask = prepare(wanted_of("two-gpu", {})).ask
    admit(ask)
    times = []
    for _ in range(500):
        began = time.perf_counter()
        admit(ask)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def main() -> None:
    """Measures and prints the table; `--out` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    lines = [
        f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}, {time.strftime('%Y-%m-%d')};",
        f"medians of {REPEATS} fresh processes, user + system CPU seconds, compiled kernels cached.",
        "",
        "| what | median | bound |",
        "|---|---|---|",
    ]
    for name, arguments, bound in commands():
        cpu_seconds(arguments)  # fills caches
        median = statistics.median(cpu_seconds(arguments) for _ in range(REPEATS))
        lines.append(f"| `kvwaybill {name}` | {median:.2f} s | {bound} |")
    lines.append(f"| one warm two-GPU admission in process | {warm_admission_ms():.2f} ms | 1.0 |")
    if not DATA.is_dir():
        lines.append("\nThe run of stories260K was not measured: the shared checkpoint is not beside the project.")
    text = "\n".join(lines) + "\n"
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
