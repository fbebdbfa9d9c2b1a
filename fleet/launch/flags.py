"""Which flags of an engine say something about bytes, which say nothing, and which take no value.

Names are without their dashes, `_` as `-`. A flag in none of the tables is told as not understood, never swallowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

VLLM: dict[str, str] = {
    "model": "model", "tensor-parallel-size": "tp", "tp": "tp", "pipeline-parallel-size": "pp", "pp": "pp",
    "max-model-len": "max_len", "max-num-seqs": "max_seqs", "block-size": "block", "kv-cache-dtype": "kv_dtype",
    "dtype": "weights_dtype", "gpu-memory-utilization": "utilization", "kv-transfer-config": "transfer",
    "kv-cache-memory-bytes": "kv_bytes", "num-gpu-blocks-override": "pool",
}  # fmt: skip
SGLANG: dict[str, str] = {
    "model-path": "model", "model": "model", "tensor-parallel-size": "tp", "tp-size": "tp", "tp": "tp",
    "pipeline-parallel-size": "pp", "pp-size": "pp", "pp": "pp", "context-length": "max_len",
    "max-running-requests": "max_seqs", "page-size": "block", "kv-cache-dtype": "kv_dtype", "dtype": "weights_dtype",
    "mem-fraction-static": "utilization", "disaggregation-mode": "role",
    "disaggregation-transfer-backend": "backend", "max-total-tokens": "pool",
}  # fmt: skip

_SILENT = frozenset((
    "host", "port", "served-model-name", "api-key", "trust-remote-code", "seed", "tokenizer", "tokenizer-mode",
    "tokenizer-path", "chat-template", "log-level", "disable-log-requests", "disable-log-stats", "uvicorn-log-level",
    "enable-auto-tool-choice", "tool-call-parser", "reasoning-parser", "root-path", "ssl-keyfile", "ssl-certfile",
    "allowed-origins", "enable-metrics", "max-log-len", "download-dir", "load-format", "revision",
    "distributed-executor-backend", "nnodes", "node-rank", "dist-init-addr", "disaggregation-bootstrap-port",
    "disaggregation-ib-device", "schedule-policy", "scheduling-policy", "watchdog-timeout", "warmups",
    "generation-config", "override-generation-config", "enable-request-id-headers", "disable-uvicorn-access-log",
    "enable-log-requests", "attention-backend", "async-scheduling", "no-enable-log-requests", "headless",
    "skip-server-warmup", "enable-prompt-tokens-details", "random-seed",
))  # fmt: skip
"""Of either engine: says nothing about bytes of weights, cache or handoff."""

_UNPRICED: dict[str, str] = {
    "data-parallel-size": "replicas of a worker", "dp": "replicas of a worker", "dp-size": "replicas of a worker",
    "enable-dp-attention": "attention by replicas", "enable-expert-parallel": "experts spread over ranks",
    "ep-size": "experts spread over ranks", "expert-parallel-size": "experts spread over ranks",
    "ep": "experts spread over ranks", "cpu-offload-gb": "weights on the host",
    "speculative-config": "a draft model and its cache", "speculative-algorithm": "a draft model and its cache",
    "enable-lora": "adapters", "lora-modules": "adapters", "lora-paths": "adapters",
    "quantization": "a conversion of the weights", "decode-context-parallel-size": "a cache spread over ranks",
    "block-window-per-layer": "windows in the transfer",
    "hf-overrides": "another config than the model's", "json-model-override-args": "another config than the model's",
    "prefill-context-parallel-size": "a cache spread over ranks",
    "attention-context-parallel-size": "a cache spread over ranks", "mamba-cache-dtype": "the type of a state",
    "mamba-ssm-cache-dtype": "the type of a state", "mamba-ssm-dtype": "the type of a state",
    "mamba-block-size": "pages of a state", "mamba-cache-mode": "pages of a state",
    "disable-sliding-window": "windows", "disable-hybrid-kv-cache-manager": "windows",
    "swa-full-tokens-ratio": "windows", "disable-hybrid-swa-memory": "windows",
    "kv-sharing-fast-prefill": "caches that layers share", "kv-offloading-size": "cache on the host",
    "enable-hierarchical-cache": "cache on the host", "hicache-size": "cache on the host",
    "hicache-ratio": "cache on the host", "num-redundant-experts": "copies of experts",
    "ep-num-redundant-experts": "copies of experts", "enable-eplb": "copies of experts",
    "moe-dense-tp-size": "a degree of its own for dense layers", "moe-a2a-backend": "experts spread over ranks",
    "enable-deepep-moe": "experts spread over ranks", "enable-ep-moe": "experts spread over ranks",
    "data-parallel-size-local": "replicas of a worker", "data-parallel-hybrid-lb": "replicas of a worker",
    "data-parallel-external-lb": "replicas of a worker", "torchao-config": "a conversion of the weights",
    "speculative-draft-model-path": "a draft model and its cache",
    "speculative-num-steps": "a draft model and its cache", "enable-multi-layer-eagle": "a draft model and its cache",
    "max-mamba-cache-size": "a pool of states of its own size", "enable-dbo": "two batches at once",
    "prefill-tensor-parallel-size": "a degree of its own",
}  # fmt: skip
"""Known, not priced here, and in the way of an exact answer: the plan stays unverified."""

_BESIDE: dict[str, str] = {
    "swap-space": "swapped blocks on the host", "enable-prefix-caching": "blocks kept for prefixes",
    "no-enable-prefix-caching": "no blocks kept for prefixes", "disable-radix-cache": "no blocks kept for prefixes",
    "max-num-batched-tokens": "the peak of activations", "chunked-prefill-size": "the peak of activations",
    "enable-chunked-prefill": "the peak of activations", "enforce-eager": "no memory of captured graphs",
    "compilation-config": "memory of captured graphs", "cuda-graph-max-bs": "memory of captured graphs",
    "disable-cuda-graph": "no memory of captured graphs", "limit-mm-per-prompt": "memory of images",
}  # fmt: skip
"""Known, and about what the engine holds beside weights and cache: told, not priced."""

_NO_EFFECT = {"data-parallel-size": "1", "dp": "1", "dp-size": "1", "ep-size": "1", "ep": "1", "cpu-offload-gb": "0",
              "decode-context-parallel-size": "1"}  # fmt: skip

_BARE = frozenset((
    "trust-remote-code", "disable-log-requests", "disable-log-stats", "enable-auto-tool-choice", "enable-metrics",
    "enable-expert-parallel", "enable-prefix-caching", "no-enable-prefix-caching", "enable-chunked-prefill",
    "enforce-eager", "enable-lora", "enable-dp-attention", "disable-radix-cache", "disable-cuda-graph",
    "enable-request-id-headers", "disable-uvicorn-access-log", "enable-log-requests", "no-enable-log-requests",
    "async-scheduling", "headless", "skip-server-warmup", "enable-prompt-tokens-details",
    "enable-eplb", "enable-dbo", "disable-sliding-window", "disable-hybrid-kv-cache-manager", "kv-sharing-fast-prefill",
    "enable-hierarchical-cache", "enable-deepep-moe", "enable-ep-moe", "data-parallel-hybrid-lb",
    "data-parallel-external-lb", "disable-hybrid-swa-memory", "enable-multi-layer-eagle",
))  # fmt: skip
_FILES = frozenset(("config",))
"""Names another file, which is not read: it could say anything."""
_SHORT = {
    "-tp": "tp", "-pp": "pp", "-dp": "dp", "-q": "quantization", "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size", "-ep": "enable-expert-parallel", "-dpl": "data-parallel-size-local",
    "-sc": "speculative-config",
}  # fmt: skip
"""vLLM's short flags that say something of bytes; any other is told as not understood."""
_OPTION = re.compile(r"-[A-Za-z]")
_LEAST_PREFIX = 4


@dataclass(kw_only=True, slots=True)
class Flags:
    """What a command line says: field -> (flag, value), and notes on what was read past.

    `unpriced`: what stands in the way of an exact answer. `faults`: (flag, words). `bare`: words of no flag.
    """

    fields: dict[str, tuple[str, str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unpriced: list[str] = field(default_factory=list)
    faults: list[tuple[str, str]] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)


def read_flags(words: tuple[str, ...], table: dict[str, str]) -> Flags:
    """The flags of one command, by an engine's table."""
    flags = Flags()
    at = 0
    while at < len(words):
        word = words[at]
        name, joined = _name_of(word)
        at += 1
        if name is None:
            flags.bare.append(word)
            if "$" in word or "`" in word:
                flags.faults.append((word[:64], "is left to a shell, which is not asked: it may hold any flag"))
            continue
        value = joined
        if value is None and name not in _BARE and at < len(words) and _name_of(words[at])[0] is None:
            value, at = words[at], at + 1
        _take(flags, name, value, table)
    return flags


def _name_of(word: str) -> tuple[str | None, str | None]:
    """(name, joined value) of a flag; (None, None) for any other word."""
    short, equals, value = word.partition("=")
    if short in _SHORT:
        return _SHORT[short], value if equals else None
    if not word.startswith("--") and _OPTION.match(word):
        return short, value if equals else None
    if not word.startswith("--") or len(word) < 3:
        return None, None
    name, equals, value = word[2:].partition("=")
    return name.replace("_", "-").lower(), value if equals else None


def _instead(name: str, table: dict[str, str]) -> str | None:
    """In words, what to write for a flag that an engine's parser would read as another; else None."""
    known = (*table, *_UNPRICED)
    if name.startswith("-"):
        short = next((flag for flag in _SHORT if name[len(flag) :].isdigit() and name.startswith(flag)), None)
        return None if short is None else f"is no flag; write {short} {name[len(short) :]}"
    head, dot, _ = name.partition(".")
    if dot and head in known:
        return f"is a part of --{head}; write that whole, as one JSON object in quotes"
    if name in known or name in _BESIDE or name in _SILENT or name in _FILES or len(name) < _LEAST_PREFIX:
        return None
    full = next((flag for flag in known if flag.startswith(name)), None)
    return None if full is None else f"may be short for --{full}; write flags in full"


def _take(flags: Flags, name: str, value: str | None, table: dict[str, str]) -> None:
    shown = name[:64] if name.startswith("-") else f"--{name[:64]}"
    meant = _instead(name, table)
    if name in _FILES:
        flags.faults.append((shown, "names a file of settings, which is not read; write them into the command"))
    elif meant is not None:
        flags.faults.append((shown, meant))
    elif name in table:
        if value is None:
            flags.faults.append((shown, "has no value"))
        elif "$" in value or "`" in value:
            flags.faults.append((shown, f"{value[:64]!r} is left to a shell, which is not asked; write the value"))
        elif table[name] in flags.fields and flags.fields[table[name]][1] != value:
            first = flags.fields[table[name]]
            flags.faults.append((shown, f"says {value[:64]!r}, but {first[0]} says {first[1][:64]!r}; keep one"))
        else:
            flags.fields[table[name]] = (shown, value)
    elif name in _UNPRICED:
        if value is None or _NO_EFFECT.get(name) != value:
            flags.unpriced.append(f"{shown}: {_UNPRICED[name]}, not priced")
    elif name in _BESIDE:
        flags.notes.append(f"{shown}: {_BESIDE[name]}, not priced")
    elif name not in _SILENT:
        flags.notes.append(f"{shown}: not understood; nothing is taken from it")
