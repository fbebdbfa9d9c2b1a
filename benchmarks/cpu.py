"""How fast the packed CPU executor is, beside llama2.c on the same checkpoints, and what its ledger and a split cost.

    python benchmarks/cpu.py [--shapes 260K,15M,110M] [--repeats 9] [--pairs 200] [--json OUT] [--markdown OUT]

LLAMA2C_RUN names the binary of llama2.c's run.c to compare with (see benchmarks/llama2c.md); without it the columns of
llama2.c stay empty and the script says so. All figures are CPU time of one thread, alternating between the two sides in
one run, medians; wall time on a shared machine says little. Checkpoints are random, seeded, and written to a temporary
folder. A load of other work still shows where memory bandwidth is shared: read the probe of the same run beside them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import llvmlite  # noqa: E402  # the project's root must be importable first
import numba  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks.checkpoints import SHAPES, write_checkpoint, write_tokenizer  # noqa: E402
from executor.packed.desk import Desk, own_book  # noqa: E402
from executor.packed.lanes import FAST, STRICT  # noqa: E402
from executor.packed.pages import advise_large_pages  # noqa: E402
from executor.packed.plan import Call  # noqa: E402
from executor.processor import processor_name  # noqa: E402
from executor.weights import open_weights  # noqa: E402
from fleet.checkpoints import load_model  # noqa: E402

PREFILL = 128
PASSES = {"260K": 512, "15M": 96, "grouped": 96, "110M": 24}
PAIR_PASSES = {"260K": 128, "15M": 32, "grouped": 32, "110M": 4}
PROBE_BYTES = 400 << 20

# The targets of the issue: figure -> shape -> (must, aim), multiples of llama2.c's rate unless the figure is a share.
TARGETS: dict[str, dict[str, tuple[float, float]]] = {
    "decode strict / llama2.c": {"260K": (1.0, 1.3), "15M": (1.3, 1.6), "110M": (1.6, 2.2)},
    "decode fast / llama2.c": {"260K": (1.5, 2.1)},
    "prefill strict / llama2.c": {"260K": (1.5, 2.5), "15M": (12.0, 20.0), "110M": (9.0, 15.0)},
    "decode bytes / bandwidth probe": {"110M": (0.80, 0.95)},
}
CEILINGS = {"ledger cost": {"15M": 0.03, "110M": 0.03, "260K": 0.15}, "split penalty": {"15M": 0.03, "110M": 0.03}}


@dataclass
class Row:
    """The figures of one shape. Rates are tokens per CPU second, medians; costs are (low, middle, high) shares."""

    shape: str
    rates: dict[str, float] = field(default_factory=dict)
    spread: dict[str, tuple[float, float]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    costs: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    same_ids: bool | None = None
    arena_bytes: int = 0
    padding_bytes: int = 0
    stage_seconds: float = 0.0


def cpu_seconds(work: Callable[[], Any]) -> float:
    """CPU time of this process for `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


class Llama2c:
    """The binary that LLAMA2C_RUN names."""

    def __init__(self, binary: str, checkpoint: Path, tokenizer: Path) -> None:
        self._command = [binary, str(checkpoint), "-z", str(tokenizer), "-t", "0", "-n"]

    def run(self, steps: int) -> tuple[float, list[int]]:
        """CPU seconds of a whole run, and the ids that it printed."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*self._command, str(steps)], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return seconds, [int(piece) for piece in re.findall(rb"<(\d+)>", done.stdout)]

    def rate(self, steps: int) -> tuple[float, list[int]]:
        """Passes per CPU second, start-up (a run of one pass) taken off."""
        start, _ = self.run(1)
        seconds, ids = self.run(steps)
        passes = len(ids) + (len(ids) < steps)  # a chosen BOS is not printed, but its pass was made
        return (passes - 1) / max(seconds - start, 1e-9), ids


class Bench:
    """One shape: a prefill device, a decode device, and one device that does both."""

    def __init__(self, shape: str, folder: Path, binary: str | None) -> None:
        self.shape = shape
        checkpoint, tokenizer = folder / f"{shape}.bin", folder / f"{shape}.tok"
        write_checkpoint(checkpoint, SHAPES[shape])
        write_tokenizer(tokenizer, SHAPES[shape][5])
        self.model = load_model(str(checkpoint))
        weights = open_weights(self.model)
        self.llama2c = Llama2c(binary, checkpoint, tokenizer) if binary else None
        self.passes, self.positions = PASSES[shape], max(PASSES[shape], PREFILL)
        self.prefill = Desk("gpu:0", self.model, ("prefill",), PREFILL, PREFILL)
        self.decode = Desk("gpu:1", self.model, ("decode",), self.positions, 1)
        self.stage_seconds = cpu_seconds(lambda: self.decode.stage(weights.tensor))
        self.prefill.stage(weights.tensor)
        self.weights = weights
        self.weight_bytes = sum(spec.nbytes for spec in self.model.tensors if spec.role != "unread")
        rng = np.random.default_rng(5)
        self.prompt = [1, *rng.integers(2, self.model.vocab_size, PREFILL - 1).tolist()]
        self.ids: list[int] = []

    def decode_rate(self, mode: Any) -> float:
        """Decode from an empty cache, as llama2.c without a prompt."""
        book = own_book([self.decode], self.model, self.passes)
        call = Call(phase="decode", order=0, first=0, passes=self.passes, positions=self.positions)
        began = time.process_time()
        outcome = self.decode.call(call, [1], mode=mode, book=book)
        seconds = time.process_time() - began
        if mode is STRICT:
            self.ids = outcome.chosen
        return outcome.passes / seconds

    def prefill_rate(self, mode: Any) -> float:
        """A whole prefill of PREFILL tokens in one forward call, its logits included."""
        call = Call(phase="prefill", order=0, first=0, passes=PREFILL, positions=PREFILL, chunk=PREFILL)
        return PREFILL / cpu_seconds(lambda: self.prefill.call(call, self.prompt, mode=mode))

    def step_seconds(self, desk: Desk, counted: bool) -> float:
        """CPU seconds of one of the first decode passes."""
        passes = PAIR_PASSES[self.shape]
        book = own_book([desk], self.model, passes)
        call = Call(phase="decode", order=0, first=0, passes=passes, positions=desk.positions, counted=counted)
        made = 0

        def work() -> None:
            nonlocal made
            made = desk.call(call, [2], book=book).passes

        return cpu_seconds(work) / made


def measure(bench: Bench, repeats: int, pairs: int, probe: Callable[[], float]) -> Row:
    """All figures of one shape, the sides alternating."""
    row = Row(bench.shape, stage_seconds=bench.stage_seconds, arena_bytes=bench.decode.arena.fence)
    row.padding_bytes = sum(array.nbytes for name, array in bench.decode.arrays.items() if name.startswith("weights/"))
    row.padding_bytes -= bench.weight_bytes
    sides: dict[str, Callable[[], float]] = {
        "decode strict": lambda: bench.decode_rate(STRICT),
        "decode fast": lambda: bench.decode_rate(FAST),
        "prefill strict": lambda: bench.prefill_rate(STRICT),
        "prefill fast": lambda: bench.prefill_rate(FAST),
        "bandwidth probe": probe,
    }
    c_ids: list[int] = []
    if bench.llama2c is not None:
        llama2c = bench.llama2c

        def c_decode() -> float:
            rate, c_ids[:] = llama2c.rate(bench.passes)
            return rate

        sides["llama2.c decode"] = c_decode
        sides["llama2.c prefill"] = lambda: llama2c.rate(PREFILL)[0]
    seen: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()  # compiled, cached, warm
    for _ in range(repeats):
        for name, side in sides.items():
            seen[name].append(side())
    row.rates = {name: median(values) for name, values in seen.items()}
    row.spread = {name: (min(values), max(values)) for name, values in seen.items()}
    if bench.llama2c is not None:
        ours = bench.ids[: -1 if bench.ids[-1] == 1 else None]
        row.same_ids = c_ids == ours
    row.ratios = ratios(seen, bench.weight_bytes)
    row.costs = costs(bench, pairs)
    return row


def ratios(seen: dict[str, list[float]], weight_bytes: int) -> dict[str, float]:
    """Medians of the quotients of neighbours in time."""
    out = {}
    for figure, top, bottom in (
        ("decode strict / llama2.c", "decode strict", "llama2.c decode"),
        ("decode fast / llama2.c", "decode fast", "llama2.c decode"),
        ("prefill strict / llama2.c", "prefill strict", "llama2.c prefill"),
        ("prefill fast / llama2.c", "prefill fast", "llama2.c prefill"),
    ):
        if bottom in seen:
            out[figure] = median(a / b for a, b in zip(seen[top], seen[bottom], strict=True))
    for figure, side in (("decode", "decode strict"), ("llama2.c", "llama2.c decode")):
        if side in seen:
            pairs = zip(seen[side], seen["bandwidth probe"], strict=True)
            out[f"{figure} bytes / bandwidth probe"] = median(rate * weight_bytes / probe for rate, probe in pairs)
    return out


def costs(bench: Bench, pairs: int) -> dict[str, tuple[float, float, float]]:
    """What the ledger and a split add to a decode step: median share and its 95 % interval, over alternating pairs."""
    both = Desk("gpu:9", bench.model, ("prefill", "decode"), bench.decode.positions, 1)
    both.stage(bench.weights.tensor)
    out = {}
    for name, one, other in (
        ("ledger cost", (bench.decode, True), (bench.decode, False)),
        ("split penalty", (bench.decode, True), (both, True)),
    ):
        shares = []
        for i in range(pairs):
            if i % 2:
                b, a = bench.step_seconds(*other), bench.step_seconds(*one)
            else:
                a, b = bench.step_seconds(*one), bench.step_seconds(*other)
            shares.append(a / b - 1)
        out[name] = median_interval(shares)
    return out


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """(low, median, high): the 95 % interval of a median by order statistics, which asks for no distribution."""
    ordered, n = sorted(values), len(values)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return ordered[low], median(ordered), ordered[high]


@numba.njit(nogil=True, fastmath=True)
def _sum(words: Any) -> Any:
    total = np.float32(0)
    for i in range(words.shape[0]):
        total += words[i]
    return total


def bandwidth_probe() -> Callable[[], float]:
    """Bytes per CPU second of one thread that reads 400 MiB from end to end: what decode of a large model can reach."""
    words = np.ones(PROBE_BYTES // 4 + (4 << 20), np.float32)
    advise_large_pages(int(words.ctypes.data), words.nbytes)
    words = words[: PROBE_BYTES // 4]
    _sum(words)
    return lambda: words.nbytes / cpu_seconds(lambda: _sum(words))


def machine(binary: str | None) -> dict[str, Any]:
    """What the figures were taken on."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "target": llvmlite.binding.get_host_cpu_name(),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "load_at_start": round(os.getloadavg()[0], 2),
        "llama2c_sha256": sha256(Path(binary).read_bytes()).hexdigest()[:16] if binary else None,
    }


def verdict(row: Row, figure: str) -> str:
    """The figure beside its targets, in words."""
    if figure in CEILINGS:
        limit, high = CEILINGS[figure].get(row.shape), row.costs[figure][2]
        return "" if limit is None else f"<= {limit:.0%}: {'met' if high <= limit else 'NOT met'}"
    wanted = TARGETS.get(figure, {}).get(row.shape)
    if wanted is None or figure not in row.ratios:
        return ""
    must, aim = wanted
    value = row.ratios[figure]
    grade = "aim met" if value >= aim else "must met" if value >= must else "NOT met"
    return f">= {must:g}, aim {aim:g}: {grade}"


def markdown(rows: list[Row], about: dict[str, Any]) -> str:
    """Two tables: rates, and figures beside their targets."""
    lines = ["; ".join(f"{key} {value}" for key, value in about.items()), ""]
    names = list(rows[0].rates)
    rates = [name for name in names if name != "bandwidth probe"]
    lines += [f"| shape | {' | '.join(rates)} | probe, GB/s |", "|---" * (len(rates) + 2) + "|"]
    for row in rows:
        cells = [f"{row.rates[n]:,.1f} ({row.spread[n][0]:,.1f} to {row.spread[n][1]:,.1f})" for n in rates]
        lines.append(f"| {row.shape} | {' | '.join(cells)} | {row.rates['bandwidth probe'] / 1e9:.1f} |")
    lines += ["", "| shape | figure | value | target |", "|---|---|---|---|"]
    for row in rows:
        for figure, value in row.ratios.items():
            lines.append(f"| {row.shape} | {figure} | {value:.2f} | {verdict(row, figure)} |")
        for figure, (low, middle, high) in row.costs.items():
            lines.append(
                f"| {row.shape} | {figure} | {middle:+.2%} ({low:+.2%} to {high:+.2%}) | {verdict(row, figure)} |"
            )
        same = {None: "not compared", True: "yes", False: "NO"}[row.same_ids]
        lines.append(f"| {row.shape} | ids equal to llama2.c's | {same} | |")
        padding = f"{row.padding_bytes:,} B of {row.arena_bytes:,} B"
        lines.append(f"| {row.shape} | padding of the weights, of the decode arena | {padding} | |")
        lines.append(f"| {row.shape} | staging and packing one device | {row.stage_seconds:.2f} s | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="260K,15M,110M", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    shapes = given.shapes.split(",")
    if unknown := [shape for shape in shapes if shape not in SHAPES]:
        parser.error(f"no shape {', '.join(unknown)}; known: {', '.join(SHAPES)}")
    binary = os.environ.get("LLAMA2C_RUN")
    if binary and not os.access(binary, os.X_OK):
        parser.error(f"LLAMA2C_RUN names {binary}, which cannot be run; build it as benchmarks/llama2c.md says")
    if not binary:
        print("LLAMA2C_RUN is not set: llama2.c is not compared (see benchmarks/llama2c.md)", file=sys.stderr)
    about, probe, rows = machine(binary), bandwidth_probe(), []
    with tempfile.TemporaryDirectory(prefix="kvwaybill-bench-") as folder:
        for shape in shapes:
            print(f"{shape} ...", file=sys.stderr, flush=True)
            rows.append(measure(Bench(shape, Path(folder), binary), given.repeats, given.pairs, probe))
    about["load_at_end"] = round(os.getloadavg()[0], 2)
    table = markdown(rows, about)
    print(table)
    if given.markdown:
        given.markdown.write_text(table)
    if given.json:
        document = {"schema": "kvwaybill/cpu-benchmark/1", "machine": about, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
