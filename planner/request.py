"""Words of a request -> a Workload: llama2.c's counts, every fault told at once.

P = prompt tokens with BOS, N = forward passes. `steps` follows llama2.c's clamp (0, or more than seq_len, means
seq_len); `new_tokens: n` means N = P - 1 + n and is never clamped.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from fleet.errors import DescriptionError, Fault
from fleet.model import PRICED_DTYPES, Model
from fleet.workload import Sampling, Workload
from planner.caches import cache_faults
from planner.engines import ENGINES, engine_faults
from planner.layouts import LAYOUTS, layout_faults

DEFAULT_STEPS = 256
"""llama2.c's own default of -n."""
MAX_COUNT = 2**40
"""Above this a count is a slip, not a workload; it also keeps every product far below 2**127."""
MAX_BYTES = 2**63 - 1
DEFAULT_TOP_P = 0.9
"""llama2.c's own default of -p."""
DEFAULT_SEED = 1
"""llama2.c takes the clock; here equal words give equal tokens."""
MAX_SEED = 2**63 - 1

FaultSink = Callable[[str, str], None]
"""Books (field, message)."""


class Unpriced(NamedTuple):
    """Something of a launch line that is not priced: where it stands, its flag last, and what it is."""

    field: str
    words: str

    @property
    def flag(self) -> str:
        """The flag alone."""
        return self.field.rpartition(" ")[2]

    @property
    def told(self) -> str:
        """Where, and what."""
        return f"{self.field}: {self.words}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What was asked, before it is resolved against a model. None = left to the default."""

    prompt_ids: tuple[int, ...] | None = None
    prompt_tokens: int | None = None
    steps: int | None = None
    new_tokens: int | None = None
    positions: int | None = None
    batch: int = 1
    attention: str = "device"
    kv_extent: str = "filled"
    kv_dtype: str | None = None
    weights_dtype: str | None = None
    prefill_chunk: int = 1
    layout: str = "plain"
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    prefix_hit: int = 0
    host_buffer: bool = False
    unit_tokens: int | None = None
    """The block or page of `kv_extent` where somebody stated it; None: the engine's own, or none."""
    unpriced: tuple[Unpriced, ...] = ()
    """What was asked of an engine and is not priced."""


def resolve(request: Request, model: Model, source: str = "workload") -> Workload:
    """The workload that a request means for this model. Raises DescriptionError with every fault."""
    faults: list[Fault] = []

    def fault(field: str, message: str) -> None:
        faults.append(Fault(source=source, field=field, message=message))

    prompt = _prompt(request, model, fault)
    _check_counts(request, fault)
    _check_words(request, fault)
    sampling = _sampling(request, fault)
    if faults:
        raise DescriptionError(faults)
    passes = _passes(request, model, prompt, fault)
    positions = min(passes, model.seq_len) if request.positions is None else request.positions
    if request.positions is not None and positions < passes:
        fault("positions", f"{positions} positions cannot hold {passes} passes; use {passes} or more")
    if request.positions is not None and positions > model.seq_len:
        fault(
            "positions", f"{positions} is more than the model's {model.seq_len} positions; use {model.seq_len} or fewer"
        )
    if request.attention == "host" and request.prefill_chunk != 1:
        fault("prefill_chunk", "attention: host runs token by token; leave prefill_chunk at 1")
    if faults:
        raise DescriptionError(faults)
    workload = Workload(
        prompt_tokens=prompt, passes=passes, positions=positions, prompt_ids=request.prompt_ids, batch=request.batch,
        attention="host" if request.attention == "host" else "device", kv_extent=request.kv_extent,
        kv_dtype=request.kv_dtype or model.kv_dtype, weights_dtype=request.weights_dtype or model.weights_dtype,
        prefill_chunk=request.prefill_chunk, layout=request.layout, sampling=sampling,
        engine=request.engine, prefix_hit=request.prefix_hit, host_buffer=request.host_buffer,
        whole_windows=request.engine is not None and ENGINES[request.engine].whole_windows,
    )  # fmt: skip
    for field, words in _transfer_faults(workload):
        fault(field, words)
    for words in layout_faults(workload.layout, model, workload):
        fault("layout", words)
    for field, words in cache_faults(model, workload):
        fault(field, words)
    if faults:
        raise DescriptionError(faults)
    return workload


def _prompt(request: Request, model: Model, fault: FaultSink) -> int:
    if request.prompt_ids is None:
        if request.prompt_tokens is None:
            return 1  # BOS alone: llama2.c without -i
        if request.prompt_tokens < 1:
            fault("prompt_tokens", f"{request.prompt_tokens} is no count of prompt tokens; BOS makes it 1 at least")
        elif request.prompt_tokens > MAX_COUNT:
            fault("prompt_tokens", f"{request.prompt_tokens} is out of range; use 1 to {MAX_COUNT}")
        return request.prompt_tokens
    if request.prompt_tokens is not None and request.prompt_tokens != len(request.prompt_ids):
        fault("prompt_tokens", "give the prompt or its count, not two that differ")
    if not request.prompt_ids:
        fault("prompt", "has no ids; BOS makes it 1 at least")
    elif bad := [token for token in request.prompt_ids if not 0 <= token < model.vocab_size]:
        fault("prompt", f"id {bad[0]} is outside the vocabulary of {model.vocab_size}")
    return len(request.prompt_ids)


def _check_counts(request: Request, fault: FaultSink) -> None:
    if request.steps is not None and request.new_tokens is not None:
        fault("new_tokens", "steps and new_tokens exclude each other; keep one")
    for field, value, least in (
        ("steps", request.steps, 0),
        ("new_tokens", request.new_tokens, 1),
        ("positions", request.positions, 1),
        ("batch", request.batch, 1),
        ("prefill_chunk", request.prefill_chunk, 1),
    ):
        if value is not None and not least <= value <= MAX_COUNT:
            fault(field, f"{value} is out of range; use {least} to {MAX_COUNT}")


def _check_words(request: Request, fault: FaultSink) -> None:
    if request.attention not in ("device", "host"):
        fault("attention", f"{request.attention!r} is unknown; use device or host")
    block = re.fullmatch(r"blocks:([0-9]{1,12})", request.kv_extent)
    if request.kv_extent not in ("filled", "allocated") and (block is None or int(block[1]) < 1):
        fault("kv_extent", f"{request.kv_extent!r} is unknown; use filled, allocated or blocks:N with N >= 1")
    for field, value in (("kv_dtype", request.kv_dtype), ("weights_dtype", request.weights_dtype)):
        if value is not None and value not in PRICED_DTYPES:
            fault(field, f"{value!r} is unknown; use bf16, fp16, fp32 or fp8")
    if request.engine is not None and request.engine not in ENGINES:
        fault("engine", f"{request.engine!r} is unknown; use {', '.join(ENGINES)}")
    if request.layout not in LAYOUTS:
        fault("layout", f"{request.layout!r} is unknown; use {' or '.join(LAYOUTS)}")


def _transfer_faults(workload: Workload) -> Iterator[tuple[str, str]]:
    """What a handoff cannot be asked: more prefix than prompt, an engine with attention on the host, and the like."""
    hit = workload.prefix_hit
    if not 0 <= hit <= workload.prompt_tokens:
        yield "prefix_hit", f"{hit} tokens of a prompt of {workload.prompt_tokens}; use 0 to {workload.prompt_tokens}"
    if hit and workload.kv_extent == "allocated":
        yield "prefix_hit", "kv_extent allocated moves the whole array; use filled or blocks:N"
    if workload.engine is not None:
        yield from engine_faults(workload.engine, hit)
    if workload.attention == "host" and (workload.engine or hit or workload.host_buffer):
        told = "host stages the caches itself; with an engine, a prefix hit or a host buffer use device"
        yield "attention", told


def _sampling(request: Request, fault: FaultSink) -> Sampling | None:
    """None for temperature 0, the default. Top-p and seed that nobody gave are `DEFAULT_TOP_P` and `DEFAULT_SEED`."""
    temperature = 0.0 if request.temperature is None else request.temperature
    top_p = DEFAULT_TOP_P if request.top_p is None else request.top_p
    seed = DEFAULT_SEED if request.seed is None else request.seed
    for field, words in sampling_faults(temperature, top_p, seed).items():
        fault(field, words)
    if temperature == 0:
        for field in (name for name in ("top_p", "seed") if getattr(request, name) is not None):
            fault(field, "says nothing at temperature 0, where the first largest logit is chosen; give a temperature")
        return None
    return Sampling(temperature=float(temperature), top_p=float(top_p), seed=seed)


def sampling_faults(temperature: float, top_p: float, seed: int) -> dict[str, str]:
    """What is wrong with the figures of a sampling, by field. llama2.c mends such figures silently instead."""
    faults = {}
    if not temperature >= 0 or not _has_f32(temperature):
        faults["temperature"] = f"{temperature} is no temperature; use 0 (greedy) or a number above, as f32 holds it"
    if not 0 <= top_p <= 1:
        faults["top_p"] = f"{top_p} is no share of probability; use 0 to 1 (0 and 1 leave every token)"
    if not 1 <= seed <= MAX_SEED:
        faults["seed"] = f"{seed} is no seed; use 1 to {MAX_SEED} (from 0 the generator never moves)"
    return faults


def _has_f32(value: float) -> bool:
    """Whether a number is finite in f32, and above 0 there if it is above 0."""
    try:
        rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return False
    return math.isfinite(rounded) and (rounded > 0) == (value > 0)


def _passes(request: Request, model: Model, prompt: int, fault: FaultSink) -> int:
    if request.new_tokens is not None:
        passes = prompt - 1 + request.new_tokens
        if passes > model.seq_len:
            fault(
                "new_tokens",
                f"{prompt} prompt tokens and {request.new_tokens} new ones take {passes} positions; the model has "
                f"{model.seq_len}; {_shorter(prompt, request.new_tokens, model.seq_len)}",
            )
        return passes
    steps = DEFAULT_STEPS if request.steps is None else request.steps
    return model.seq_len if steps == 0 or steps > model.seq_len else steps


def _shorter(prompt: int, new_tokens: int, positions: int) -> str:
    """What would fit: advice of no new tokens at all, or of an empty prompt, would fail in its turn."""
    ways = []
    if prompt <= positions:
        ways.append(f"{positions - prompt + 1} new tokens")
    if new_tokens <= positions:
        ways.append(f"a prompt of {positions - new_tokens + 1} at most")
    return f"use {' or '.join(ways)}" if ways else f"use {positions} new tokens and a prompt of BOS alone"


def with_passes(request: Request, workload: Workload, passes: int) -> tuple[Request, str, int, int]:
    """The same request with other passes: (request, flag, from, to) in the user's own terms. For fixes."""
    if request.new_tokens is not None:
        to = passes - workload.prompt_tokens + 1
        return replace(request, new_tokens=to), "--new-tokens", request.new_tokens, to
    return replace(request, steps=passes), "--steps", workload.passes, passes
