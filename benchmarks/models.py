"""How fast models are read: `model show` cold (CPU time of a process), and every published config in one process.

    python benchmarks/models.py [--configs FOLDER] [--out benchmarks/results/models.md]

Medians over fresh processes; CPU time, because wall time on a shared machine says little. The machine is named.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from startup import REPEATS
from tables import BOUNDED, ROOT, machine, show

CONFIGS = ROOT.parent / "shared" / "data" / "model_configs"
SHOWN = ("Llama-3.2-1B", "gpt-oss-20b", "Qwen3-Next-80B-A3B", "DeepSeek-V3", "Kimi-K2-Instruct")
IN_ONE = """
import sys, time
from fleet.checkpoints import load_model
from fleet.models import kv
import fleet.checkpoints.hf_config
began = time.process_time()
for path in sys.argv[1:]:
    model = load_model(path)
    model.parameters, model.computed_weights_bytes, kv.kv_bytes(model.caches, 4096, "bf16")
sys.stdout.write(str(time.process_time() - began))
"""


def all_in_one(paths: list[str]) -> float:
    """CPU seconds that one process takes to read and price every config, imports aside."""
    found = subprocess.run([sys.executable, "-c", IN_ONE, *paths], cwd=ROOT, check=True, capture_output=True, text=True)
    return float(found.stdout)


def main() -> None:
    """Measures and prints the table; `--out` writes it too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", type=Path, default=CONFIGS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    paths = sorted(str(path) for path in options.configs.glob("*.json"))
    if not paths:
        parser.error(f"{options.configs} holds no configs; give a folder of config files with --configs")
    lines = [
        f"{machine()};",
        f"medians of {REPEATS} fresh processes, user + system CPU seconds.",
        "",
        *BOUNDED,
    ]
    for name in SHOWN:
        path = options.configs / f"{name}.json"
        if not path.is_file():
            continue
        words = ["model", "show", str(path), "--context", "4096", "-o", "json"]
        median = statistics.median(seconds_of(words) for _ in range(REPEATS))
        lines.append(f"| `kvwaybill model show {name}` | {median:.2f} s | 0.6 |")
    median = statistics.median(all_in_one(paths) for _ in range(REPEATS))
    lines.append(f"| {len(paths)} configs read and priced in one process | {median:.3f} s | 0.3 |")
    show(lines, options.out)


def seconds_of(words: list[str]) -> float:
    """CPU seconds of one fresh process of the command; code 3, something unknown, is an answer too."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = subprocess.run(
        [sys.executable, "-m", "scenarios.cli", *words], cwd=ROOT, check=False, stdout=subprocess.DEVNULL
    )
    if found.returncode not in (0, 3):
        raise subprocess.CalledProcessError(found.returncode, words)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


if __name__ == "__main__":
    main()
