"""What a forward call at Llama-2-7B's shape is made of on a card: `python -m benchmarks.gpu_parts [--out FILE]`.

Of each type of weights: a prefill of 512 tokens in one call, its projections alone (cuBLAS), its attention alone, and
the decode step, which goes in five launches a layer at rows that long. Random weights, one block of values tiled; the
clocks are the card's own events. Read bandwidth is that of `torch.sum` over 8 GiB, where PyTorch is installed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.gpu import PREFILL, orders_of, read_bandwidth, replayed
from executor.backends import cupy_gpu
from executor.cuda.driver import selected
from executor.cuda.kernels import Kernels
from executor.cuda.narrow import NarrowSteps
from executor.cuda.steps import Memory, Steps
from executor.run import Executor
from executor.weights import Weights
from fleet.model import Model
from tests.planner.fleets import llama2c

BLOCK = 1 << 24


def tiled(model: Model) -> Weights:
    """Norms of 1, matrices of one random block of deviation 0.02, from another place for each tensor."""
    block = np.random.default_rng(1).standard_normal(BLOCK, dtype=np.float32) * np.float32(0.02)
    tensors = {}
    for number, spec in enumerate(model.tensors):
        is_norm = spec.name.startswith("rms_")
        values = np.ones(1, np.float32) if is_norm else np.roll(block, 97 * number)
        tensors[spec.name] = np.resize(values, spec.shape)
    return Weights(model, tensors)


class Bench:
    """An executor that has run once, and its card's parts."""

    def __init__(self, executor: Executor, model: Model) -> None:
        self.model, self.machine = model, executor.machine
        handle: Any = executor.machine.backend.handle("gpu:0")
        self.kernels: Kernels = handle.kernels
        self.lane, self.driver = handle.lane, handle.lane.driver
        self.narrow = self.kernels.dtype != "fp32"

    def memory(self, phase: str) -> Memory:
        """The buffers of a phase."""
        positions = self.machine.cache("gpu:0", phase, "k").shape[1]
        find = self.machine.buffer
        return Memory(self.model, phase, lambda name: find("gpu:0", name).address, positions, 2 if self.narrow else 4)

    def steps(self, phase: str) -> Steps:
        """Forward calls of a phase."""
        return (NarrowSteps if self.narrow else Steps)(self.kernels, self.memory(phase))

    def seconds(self, work: Callable[[], None], repeats: int = 5) -> float:
        """Median seconds of a piece of work between two events."""
        driver, stream = self.driver, self.lane.stream
        first, last = driver.event(timed=True), driver.event(timed=True)
        taken = []
        for repeat in range(repeats + 1):
            driver.record(first, stream)
            work()
            driver.record(last, stream)
            driver.synchronize(stream)
            if repeat:
                taken.append(driver.elapsed_us(first, last) / 1e6)
        return float(median(taken))

    def projections(self) -> None:
        """The seven products of every layer."""
        model, memory = self.model, self.memory("prefill")
        dim, hidden, kv = model.dim, model.hidden_dim, model.kv_dim
        sizes = {"wq": (dim, dim), "wk": (kv, dim), "wv": (kv, dim), "wo": (dim, dim)}
        sizes |= {"w1": (hidden, dim), "w3": (hidden, dim), "w2": (dim, hidden)}
        for layer in range(model.n_layers):
            for name, (d, n) in sizes.items():
                x = memory.at("act/hb" if n == hidden else "act/xb")
                out = memory.at("act/hb2" if d == hidden else "act/xb2")
                args = (self.kernels.blas(), out, x, memory.weight(name, layer, d, n), PREFILL, d, n, self.lane.stream)
                if self.narrow:
                    is_narrow = d == hidden
                    self.driver.gemm_narrow(*args, dtype=self.kernels.dtype, narrow_out=is_narrow, add=False)
                else:
                    self.driver.sgemm(*args)

    def attention(self) -> None:
        """Every layer's."""
        model, memory = self.model, self.memory("prefill")
        heads = (model.n_heads, model.n_kv_heads, model.head_dim)
        for layer in range(model.n_layers):
            caches = [memory.cache(tensor, layer) for tensor in ("k", "v")]
            self.kernels.attend([memory.at("act/xb2"), memory.at("act/q"), *caches], 0, 0, PREFILL, heads)

    def prefill(self) -> dict[str, float]:
        """Seconds of a call of 512 tokens and of its parts."""
        steps, ids = self.steps("prefill"), self.memory("prefill").at("act/tokens")
        whole = self.seconds(lambda: steps.batch(ids, PREFILL, 0, False))
        parts = {"attention_s": self.seconds(self.attention), "projections_s": self.seconds(self.projections)}
        model = self.model
        per_layer = 2 * model.dim * (model.dim + model.kv_dim) + 3 * model.dim * model.hidden_dim
        flops = 2 * PREFILL * model.n_layers * per_layer
        parts |= {"projections_tflops": flops / parts["projections_s"] / 1e12}
        return {"prefill_512_s": whole, **parts, "over_projections": whole / parts["projections_s"]}


def measured(dtype: str, model: Model, weights: Weights) -> dict[str, Any]:
    """Everything of one type of weights."""
    backend = cupy_gpu.Backend if dtype == "fp32" else cupy_gpu.Backend.computing(dtype)
    with Executor(orders_of(model, PREFILL, PREFILL, 2), weights, backend) as executor:
        facts = executor.run()
        bench = Bench(executor, model)
        found: dict[str, Any] = {"run_prefill_tok_s": facts.rates["prefill_tok_s"]}
        found["digests_equal"] = all(d.digest_src == d.digest_dst for d in facts.arrivals or ())
        with selected(bench.driver, bench.lane.ordinal):
            cache = bench.machine.cache("gpu:0", "decode", "k")
            arena, offset = cache.block.arena, cache.address - cache.block.arena.address
            nbytes, layers = 4 * PREFILL * model.kv_dim, model.n_layers
            found["digest_k_s"] = bench.seconds(lambda: _unused(arena.digests(offset, nbytes, nbytes, layers)), 3)
            found |= bench.prefill()
        found["decode_us"] = replayed(executor, model, 1)["graph_us"]
    return found


def _unused(value: object) -> None:
    """What is timed gives something that nobody asks for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--types", default="fp32,bf16,fp16")
    parser.add_argument("--layers", type=int, default=32)
    asked = parser.parse_args()
    model = llama2c(4096, 11008, asked.layers, 32, 32, 32000, 2048, shared=False)
    weights = tiled(model)
    result: dict[str, Any] = {"shapes": {}}
    try:
        import torch
    except ImportError:
        pass
    else:
        result["read_bytes_per_s"] = read_bandwidth(torch)
        torch.cuda.empty_cache()
    for dtype in asked.types.split(","):
        result["shapes"][dtype] = measured(dtype, model, weights)
        print(dtype, json.dumps(result["shapes"][dtype]), flush=True)
        if asked.out:
            Path(asked.out).write_text(json.dumps(result, indent=1))
    result["versions"] = cupy_gpu.make_driver().versions()
    print(json.dumps({key: value for key, value in result.items() if key != "shapes"}))
    if asked.out:
        Path(asked.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
