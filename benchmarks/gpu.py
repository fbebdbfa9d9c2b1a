"""Decode and prefill on a CUDA card beside what else is there: `python -m benchmarks.gpu --scratch DIR [--out FILE]`.

Random weights of published shapes, f32, batch 1, 64 tokens of prompt, 192 decoded. Beside this project's own run: the
same products by cuBLAS sgemv in a graph (through PyTorch), plain PyTorch operation by operation, and transformers where
it is installed. The bound is the bytes of the weights over the read bandwidth measured in the same process.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.checkpoints import SHAPES, write_checkpoint
from executor.backends import cupy_gpu
from executor.cuda.driver import selected
from executor.cuda.narrow import NarrowSteps
from executor.cuda.steps import Memory, Steps
from executor.run import Executor
from executor.weights import open_weights
from fleet.checkpoints import load_model
from fleet.load import load_fleet
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.plan import make_orders
from planner.request import Request
from scenarios.acceptance.checkpoint import SHAPES as LARGE
from scenarios.acceptance.checkpoint import write_random_checkpoint

PROMPT, DECODED = 64, 192
PREFILL = 512


def orders_of(
    model: Any,
    chunk: int,
    prompt: int,
    decoded: int,
    fleet: str = "one-gpu",
    ways: tuple[str, str] = ("gpu:0", "gpu:0"),
) -> Any:
    """Prefill and decode on the devices named, device attention."""
    ids = (1, *(2 + (7919 * i) % (model.vocab_size - 2) for i in range(1, prompt)))
    request = Request(prompt_ids=ids, steps=prompt + decoded, prefill_chunk=chunk)
    placement = Placement(prefill=ways[0], decode=ways[1])
    admission = admit(Ask(fleet=load_fleet(fleet), model=model, request=request, placement=placement))
    assert admission.verdict == "admitted", admission.reasons
    return make_orders(admission)


def in_parts(executor: Executor, model: Any) -> dict[str, float]:
    """The graph of five launches a layer: what long rows, other cards and odd shapes get anyway."""
    kernels: Any = executor.machine.backend.handle("gpu:0").kernels  # type: ignore[attr-defined]  # a GPU's own
    kernels.whole = False
    found = replayed(executor, model, 3)
    kernels.whole = True
    return {f"parts_{name}": us for name, us in found.items()}


def own(path: str, read_bandwidth: float) -> dict[str, Any]:
    """This project: run as a user runs it, with and without witnesses, and the graph alone."""
    model = load_model(path)
    weights = open_weights(model)
    found: dict[str, Any] = {}
    with Executor(orders_of(model, PROMPT, PROMPT, DECODED), weights, cupy_gpu.Backend) as executor:
        executor.run()
        found["run_tok_s"] = executor.run().rates["decode_tok_s"]
        found |= replayed(executor, model) | in_parts(executor, model)
    with Executor(orders_of(model, PROMPT, PROMPT, DECODED), weights, cupy_gpu.Backend, observers=()) as executor:
        executor.run()
        found["run_unwitnessed_tok_s"] = executor.run().rates["decode_tok_s"]
    weight_bytes = sum(spec.nbytes for spec in model.tensors if spec.role not in ("unread", "norm", "embedding"))
    if model.classifier_name == "token_embedding":
        weight_bytes += model.vocab_size * model.dim * 4
    bound = weight_bytes / read_bandwidth * 1e6
    return found | {"weight_bytes": weight_bytes, "bound_us": bound, "ratio": bound / found["graph_us"]}


def replayed(executor: Executor, model: Any, repeats: int = 5) -> dict[str, float]:
    """Microseconds a token: the decode graph alone, and with each id read."""
    machine, backend = executor.machine, executor.machine.backend
    assert isinstance(backend, cupy_gpu.Backend)
    handle: Any = backend.handle("gpu:0")
    lane, driver = handle.lane, handle.lane.driver
    positions = machine.cache("gpu:0", "decode", "k").shape[1]
    wide = 4 if handle.kernels.dtype == "fp32" else 2
    memory = Memory(model, "decode", lambda name: machine.buffer("gpu:0", name).address, positions, wide)
    steps = (Steps if wide == 4 else NarrowSteps)(handle.kernels, memory)
    with selected(driver, lane.ordinal):
        driver.begin_capture(lane.stream)
        steps.token(memory.at("act/next"), True, PROMPT)
        graph = driver.end_capture(lane.stream)
        driver.begin_capture(lane.stream)
        steps.token(memory.at("act/next"), True, PROMPT)
        driver.copy("d2h", lane.scratch, memory.at("act/next"), 4, lane.stream)
        reading = driver.end_capture(lane.stream)
        first, last = driver.event(timed=True), driver.event(timed=True)
        alone, read = [], []
        for _ in range(repeats):
            driver.fill(memory.position, PROMPT, 1, lane.stream)
            driver.record(first, lane.stream)
            for _ in range(DECODED - 1):
                driver.replay(graph, lane.stream)
            driver.record(last, lane.stream)
            driver.synchronize(lane.stream)
            alone.append(driver.elapsed_us(first, last) / (DECODED - 1))
            driver.fill(memory.position, PROMPT, 1, lane.stream)
            driver.synchronize(lane.stream)
            began = time.perf_counter()
            for _ in range(DECODED - 1):
                driver.replay(reading, lane.stream)
                driver.synchronize(lane.stream)
            read.append((time.perf_counter() - began) * 1e6 / (DECODED - 1))
        driver.end_graph(graph)
        driver.end_graph(reading)
    return {"graph_us": median(alone), "graph_read_us": median(read)}


def prefilled(path: str) -> dict[str, float]:
    """Seconds of a prefill of 512 tokens in one call."""
    model = load_model(path)
    with Executor(
        orders_of(model, PREFILL, PREFILL, 1), open_weights(model), cupy_gpu.Backend, observers=()
    ) as executor:
        executor.run()
        rates = [executor.run().rates["prefill_tok_s"] for _ in range(3)]
    return {"prefill_512_s": PREFILL / median([rate for rate in rates if rate])}


def timed(torch: Any, work: Callable[[], Any], repeats: int = 10) -> float:
    """Median microseconds of a piece of work by events."""
    taken = []
    for repeat in range(repeats + 2):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        first.record()
        work()
        last.record()
        torch.cuda.synchronize()
        if repeat > 1:
            taken.append(first.elapsed_time(last) * 1e3)
    return median(taken)


def read_bandwidth(torch: Any) -> float:
    """Bytes a second of reading 8 GiB once."""
    big = torch.ones(2 << 30, device="cuda")
    return big.numel() * 4 / (timed(torch, big.sum) / 1e6)


def by_torch(torch: Any, shape: tuple[int, ...]) -> dict[str, float]:
    """cuBLAS sgemv of every product in one graph; and a whole decode step of plain PyTorch operations."""
    dim, hidden, layers, heads, kv_heads, vocab, _ = shape
    kv_dim = dim // heads * kv_heads
    sizes = [("q", dim, dim), ("k", kv_dim, dim), ("v", kv_dim, dim), ("o", dim, dim), ("1", hidden, dim),
             ("3", hidden, dim), ("2", dim, hidden)]  # fmt: skip
    w = [{n: torch.randn(r, c, device="cuda") * 0.02 for n, r, c in sizes} for _ in range(layers)]
    classifier = torch.randn(vocab, dim, device="cuda") * 0.02
    outs = {n: torch.empty(r, device="cuda") for n, r, _ in sizes}
    x, h, logits = (torch.randn(n, device="cuda") for n in (dim, hidden, vocab))

    def products() -> None:
        for layer in w:
            for name, _, columns in sizes:
                torch.mv(layer[name], h if columns == hidden else x, out=outs[name])
        torch.mv(classifier, x, out=logits)

    products()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        products()
    found = {"cublas_sgemv_graph_us": timed(torch, graph.replay)}
    k, v = (torch.randn(layers, kv_heads, 128, dim // heads, device="cuda") for _ in "kv")
    norm = torch.ones(dim, device="cuda")

    def step() -> Any:
        state = x.clone()
        for number, layer in enumerate(w):
            a = torch.nn.functional.rms_norm(state, (dim,), norm, 1e-5)
            q = torch.mv(layer["q"], a).view(1, heads, 1, -1)
            k[number, :, 127], v[number, :, 127] = (torch.mv(layer[n], a).view(kv_heads, -1) for n in "kv")
            cache = (k[number][None], v[number][None])
            out = torch.nn.functional.scaled_dot_product_attention(q, *cache, enable_gqa=True)
            state = state + torch.mv(layer["o"], out.reshape(-1))
            a = torch.nn.functional.rms_norm(state, (dim,), norm, 1e-5)
            gate = torch.nn.functional.silu(torch.mv(layer["1"], a)) * torch.mv(layer["3"], a)
            state = state + torch.mv(layer["2"], gate)
        return torch.argmax(torch.mv(classifier, torch.nn.functional.rms_norm(state, (dim,), norm, 1e-5)))

    found["torch_eager_us"] = timed(torch, step)
    rows = torch.randn(PREFILL, dim, device="cuda")
    wide = torch.randn(PREFILL, hidden, device="cuda")

    def gemms() -> None:
        for layer in w:
            for name, _, columns in sizes:
                torch.matmul(wide if columns == hidden else rows, layer[name].T)

    found["cublas_gemm_512_s"] = timed(torch, gemms, 4) / 1e6
    return found


def by_transformers(torch: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """transformers' Llama in f32, one token with a cache of 64; "not run" and why where it is not there."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError as error:
        return {"transformers_us": None, "why": str(error)}
    dim, hidden, layers, heads, kv_heads, vocab, _ = shape
    config = LlamaConfig(
        hidden_size=dim, intermediate_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, vocab_size=vocab,
    )  # fmt: skip
    torch.set_default_device("cuda")
    model = LlamaForCausalLM(config).eval()
    torch.set_default_device("cpu")
    with torch.no_grad():
        prompt = torch.ones(1, PROMPT, dtype=torch.long, device="cuda")
        state = model(prompt, use_cache=True)
        token = torch.ones(1, 1, dtype=torch.long, device="cuda")
        taken = timed(torch, lambda: model(token, past_key_values=state.past_key_values, use_cache=True))
    return {"transformers_us": taken}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scratch", required=True)
    parser.add_argument("--out")
    parser.add_argument("--shapes", default="260K,15M,110M,7B")
    parser.add_argument("--no-transformers", action="store_true", help="leave transformers out")
    asked = parser.parse_args()
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    bandwidth = read_bandwidth(torch)
    torch.cuda.empty_cache()
    result: dict[str, Any] = {"read_bytes_per_s": bandwidth, "torch": torch.__version__, "shapes": {}}
    for name in asked.shapes.split(","):
        path = os.path.join(asked.scratch, f"{name}.bin")
        shape = SHAPES.get(name) or LARGE[name]
        write_checkpoint(Path(path), shape) if name in SHAPES else write_random_checkpoint(path, name)
        row = own(path, bandwidth)
        if name == "7B":
            row |= prefilled(path)
        os.unlink(path)
        row |= by_torch(torch, shape)
        torch.cuda.empty_cache()
        row |= {} if asked.no_transformers else by_transformers(torch, shape)
        torch.cuda.empty_cache()
        result["shapes"][name] = row
        if asked.out:  # what follows may be stopped by a limit of time
            Path(asked.out).write_text(json.dumps(result, indent=1))
        told = {key: round(value, 2) if isinstance(value, float) else value for key, value in row.items()}
        print(name, json.dumps(told), flush=True)
    result["versions"] = cupy_gpu.make_driver().versions()
    if asked.out:
        Path(asked.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
