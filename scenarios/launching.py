"""Launch lines as a question: what a serving command says stands for flags, and what the engine should print.

A flag of our own that is given beside the file wins, and the plan says so.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from fleet.errors import DescriptionError, Fault
from fleet.launch import Launch
from fleet.model import Model
from fleet.placement import PHASES
from planner.engines.prints import Pool, Range, pool_of, stated_memory
from planner.engines.table import block_fault
from planner.request import Unpriced

if TYPE_CHECKING:
    from scenarios.wanted import Wanted

_BLOCK = {"vllm": 16, "sglang": 1}
_NOBODY_KNOWS: dict[str, Any] = {"least": None, "most": None}
_UNKNOWN = "the peak of activations, captured graphs and memory outside the allocator, which the engine measures itself"
_PAIRED = (("model", "model"), ("kv_dtype", "kv_dtype"), ("weights_dtype", "weights_dtype"), ("engine", "engine"),
           ("utilization", "utilization"), ("batch", "max_seqs"), ("kv_buffer", "kv_buffer"))  # fmt: skip


def with_launches(wanted: Wanted, launches: tuple[Launch, ...], source: str) -> Wanted:
    """The question with what serving commands of `source` say.

    Raises DescriptionError where their block sizes do not meet.
    """
    found: dict[str, tuple[Any, str]] = {}
    for field, name in _PAIRED:
        _say(found, field, getattr(launches[0], name), launches[0], name)
    for launch in launches:
        phases = (launch.role,) if launch.role else PHASES
        for phase in phases:
            _say(found, f"{phase}_tp", launch.tp or 1, launch, "tp")
            _say(found, f"{phase}_pp", launch.pp or 1, launch, "pp")
    _lengths(found, launches, source)
    told, more = [], {}
    for field, (value, flag) in found.items():
        both = field.split("_")[-1]
        by_flag = field in wanted.given or (both in ("tp", "pp") and both in wanted.given)
        if by_flag:
            told.append(f"{field.replace('_', '-')}: by its own flag, in place of {value} ({source}{flag})")
        else:
            more[field] = value
            told.append(f"{field.replace('_', '-')}: {value} ({source}{flag})")
    if "kv_extent" in wanted.given:
        more.pop("engine", None)
        more.pop("block_size", None)
    elif "engine" in more or "block_size" in more:
        more["kv_extent"] = None
    unpriced = tuple(
        Unpriced(f"{source}:{launch.line} {flag}", why)
        for launch in launches
        for flag, _, why in (words.partition(": ") for words in launch.unpriced)
    )
    return replace(wanted, **more, told=tuple(told), unpriced=unpriced)


def _say(found: dict[str, tuple[Any, str]], field: str, value: Any, launch: Launch, name: str) -> None:
    if value is not None:
        flag = launch.flags.get(name) or launch.flags.get("transfer" if name in ("engine", "kv_buffer") else "", "")
        found[field] = (value, f":{launch.line} {flag}".rstrip())


def _lengths(found: dict[str, tuple[Any, str]], launches: tuple[Launch, ...], source: str) -> None:
    """`positions` is the shorter of both lengths; block sizes must divide, and the larger is moved whole."""
    lengths = [launch for launch in launches if launch.max_len is not None]
    if lengths:
        shortest = min(lengths, key=lambda launch: launch.max_len or 0)
        _say(found, "positions", shortest.max_len, shortest, "max_len")
    sizes = [launch.block or _BLOCK[launch.server] for launch in launches]
    if words := block_fault(min(sizes), max(sizes)):
        last = launches[-1]
        fault = Fault(source=source, field=last.flags.get("block", ""), message=words, line=last.line, column=1)
        raise DescriptionError([fault])
    if any(launch.block is not None for launch in launches):
        largest = max(launches, key=lambda launch: launch.block or 0)
        _say(found, "block_size", largest.block, largest, "block")


def stated_pool(text: str | None) -> Range | None:
    """`--available-kv-cache-memory`. Raises DescriptionError for a text that is no memory."""
    try:
        return None if text is None else stated_memory(text)
    except ValueError as error:
        raise DescriptionError.at("command line", "--available-kv-cache-memory", str(error)) from error


def launch_warnings(launches: tuple[Launch, ...]) -> list[str]:
    """What was read past in the commands: flags that are not understood, or about other things than are priced."""
    return [f"engine args, line {launch.line}: {words}" for launch in launches for words in launch.notes]


def launch_document(
    plan: dict[str, Any], model: Model, launches: tuple[Launch, ...], stated: Range | None
) -> list[dict[str, Any]]:
    """For each serving command: its pool, and the lines that the engine should print where they are exact."""
    work = (plan.get("inputs") or {}).get("workload")
    if not plan.get("memory") or work is None:
        return []
    return [_one(plan, model, launch, stated, work) for launch in launches]


def _one(
    plan: dict[str, Any], model: Model, launch: Launch, stated: Range | None, work: dict[str, Any]
) -> dict[str, Any]:
    block, length = launch.block or _BLOCK[launch.server], launch.max_len or model.seq_len
    available, origin, unknown = _available(plan, launch, stated)
    pool = pool_of(
        model, work["kv_dtype"], tp=launch.tp or 1, pp=launch.pp or 1, block=block, length=length, available=available
    )
    if launch.pool is not None:
        flag = launch.flags["pool"]
        words = f"the pool: {flag} {launch.pool:,} sets it in place of memory, and how a version counts it was not read"
        pool = replace(pool, unknown=(words, *pool.unknown))
    reasons = [*([f"available memory: {unknown}"] if unknown else []), *pool.unknown]
    return {
        "line": launch.line, "server": launch.server, "role": launch.role, "model": launch.model,
        "available_bytes": _bounds(available) | {"origin": origin},
        "request_tokens": length, "block_tokens": block,
        "pool_tokens": _NOBODY_KNOWS if launch.pool else _bounds(pool.tokens),
        "max_concurrency": _NOBODY_KNOWS if launch.pool else _two_bounds(pool.concurrency),
        "prints": [] if launch.pool else _lines(launch, pool, length),
        "unknown": reasons,
    }  # fmt: skip


def _available(plan: dict[str, Any], launch: Launch, stated: Range | None) -> tuple[Range, str, str | None]:
    """(bytes for the cache on the fullest rank, where they come from, what is unknown about them)."""
    if stated is not None:
        rounded = None if stated.exact is not None else "it is printed rounded"
        return stated, "--available-kv-cache-memory", rounded
    if launch.kv_bytes is not None:
        exact = Fraction(launch.kv_bytes)
        return Range(least=exact, most=exact), launch.flags.get("kv_bytes", ""), None
    devices = set()
    for phase in (launch.role,) if launch.role else PHASES:
        devices |= set(plan["placement"][phase].split(","))
    rooms = [
        entry["budget_bytes"] - entry["resident"]["weights"]
        for entry in plan["memory"]
        if entry["device"] in devices and entry["budget_bytes"] is not None
    ]
    most = Fraction(max(0, min(rooms, default=0)))
    return Range(least=Fraction(0), most=most), "the budget less the weights: at most that", _UNKNOWN


def _ends(figures: Range) -> tuple[tuple[str, Fraction | None], ...]:
    return (("least", figures.least), ("most", figures.most))


def _bounds(figures: Range) -> dict[str, Any]:
    return {name: None if value is None else int(value) for name, value in _ends(figures)}


def _two_bounds(figures: Range) -> dict[str, Any]:
    return {name: _two(value) for name, value in _ends(figures)}


def _two(value: Fraction | None) -> str | None:
    """Two decimals, as vLLM prints them."""
    return None if value is None else f"{float(value):.2f}"


def _lines(launch: Launch, pool: Pool, length: int) -> list[str]:
    """The two lines of vLLM's log, where each is exact; of SGLang's log nothing was read."""
    if launch.server != "vllm":
        return []
    lines = []
    if pool.tokens.exact is not None:
        lines.append(f"GPU KV cache size: {int(pool.tokens.exact):,} tokens")
    least, most = _two(pool.concurrency.least), _two(pool.concurrency.most)
    if least == most:
        lines.append(f"Maximum concurrency for {length:,} tokens per request: {most}x")
    return lines
