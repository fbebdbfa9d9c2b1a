"""The JSON documents as data: for each kind, the fields that our own code reads and what may stand in them.

Unknown figures are null in a plan (`unverified`), so byte figures there may be null; a run knows what it counted.
"""

from __future__ import annotations

from typing import Any

from scenarios.shapes import Shape, Sink, choice, flag, integer, listing, number, record, table, text
from scenarios.time_shapes import TIME
from scenarios.worker_shapes import DEVICE_ID, ENGINE_INPUTS, LAUNCH, MAX_ROWS, TRANSFER, WORKER

PHASES = ("stage", "prefill", "handoff", "decode")
PLAN_VERDICTS = ("admitted", "refused", "unverified")
ROW_VERDICTS = ("match", "mismatch", "missing", "unplanned", "unwitnessed")
WITNESSES = ("arrival", "cupti", "receiver", "import", "none")
RESULTS = ("passed", "failed", "inconclusive", "waived")
VERDICTS = ("equal", "different", "inconclusive")

MAX_TOKENS = 10_000_000
MAX_TOKEN_ID = 2**31 - 1

device_id = text(64, pattern=DEVICE_ID)
device_ids = text(1 << 18, pattern=rf"{DEVICE_ID}(,{DEVICE_ID})*")
"""One device of a phase, or those of a worker of several."""
arena_id = device_id
kind = text(32, pattern=r"[a-z0-9]{1,32}")
name = text(512)
words = listing(text(100_000), most=10_000)
figure = integer(null=True)
sha256 = text(64, pattern=r"[0-9a-f]{64}")
digest_or_null = text(64, null=True, pattern=r"[0-9a-f]{64}")
physical_id = text(128, null=True, pattern=r"[!-~]{1,128}")
"""A UUID or PCI address: never empty or blank, which would be a name for nothing."""
token_ids = listing(integer(0, MAX_TOKEN_ID), most=MAX_TOKENS)
counts_by_phase = record({"prefill": integer(), "decode": integer()})

_ends: dict[str, Shape] = {"src": device_id, "dst": device_id, "kind": kind}
_ends_of_links: dict[str, Shape] = {"src": device_id, "dst": device_id, "kind": text(64)}
_observed: dict[str, Shape] = {
    "observed_bytes": figure,
    "observed_copies": figure,
    "witness": choice(*WITNESSES, null=True),
}
_driven: dict[str, Shape] = {
    "bandwidth_bytes_per_s": figure,
    "latency_s": number(null=True),
    "duplex": choice("independent", "shared", null=True),
    "copy_engines": figure,
}
_segment = record({"src": device_id, "dst": device_id}, {"kind": text(64), **_driven})
_leg = record(
    {**_ends, "bytes": figure, "copies": figure},
    {**_observed, **_driven, "seconds": number(null=True), "segments": listing(_segment, least=2, most=64)},
)
_per_pass: dict[str, Shape] = {"per_pass": record({"bytes": figure, "copies": figure}, null=True)}
_row = record(
    {
        "phase": choice(*PHASES),
        "tensor": name,
        **_ends,
        "legs": listing(_leg, least=1, most=64, null=True),
        "payload_bytes": figure,
        "bytes": figure,
        "copies": figure,
    },
    {
        **_per_pass,
        "seconds": number(null=True),
        "staging": choice("pipelined"),
        "part": record({"layers": integer(1), "elements": integer(1), "dtype": text(16), "is_state": flag()}),
    },
)
_edge = record({**_ends, "bytes": figure, "copies": figure})
_known_edge = record({**_ends, "bytes": integer(), "copies": integer()}, _observed)
_counted_leg = record({**_ends, "bytes": integer(), "copies": integer()}, _observed)
_counted_row = record(
    {
        "phase": choice(*PHASES),
        "tensor": name,
        **_ends,
        "legs": listing(_counted_leg, least=1, most=64),
        "payload_bytes": integer(),
        "bytes": integer(),
        "copies": integer(),
    },
    {**_per_pass, **_observed},
)
"""A run knows what it counted, so nothing of it is null but what no witness saw."""
_ledger_line = record(
    {"line": text(64), "bytes": integer(-(2**63), null=True), "formula": text(4096), "source": text(4096)},
    {"terms": listing(record({"what": text(512), "formula": text(4096), "bytes": integer()}), most=64)},
)
_memory = record(
    {
        "device": arena_id,
        "resident": table(figure, most=64),
        "rounding_bytes": figure,
        "total_bytes": figure,
        "capacity_bytes": figure,
        "budget_bytes": figure,
        "slack_bytes": integer(-(2**63), null=True),
    },
    {
        "topology_id": integer(null=True),
        "in_use_bytes": figure,
        "ledger": listing(_ledger_line, most=64),
        "shared": record(
            {
                "physical": text(64),
                "devices": listing(device_id, least=2, most=64),
                "total_bytes": figure,
                "slack_bytes": integer(-(2**63), null=True),
            },
            {"budget_bytes": figure},
        ),
    },
)
_handoff = record(
    {"bytes": figure, "copies": figure},
    {
        "payload_bytes": figure,
        "kind": text(32, null=True),
        "legs": listing(_leg, most=64, null=True),
        "seconds": number(null=True),
        "staging": choice("pipelined"),
    },
    null=True,
)


_contention = record(
    {
        "phase": choice(*PHASES),
        **_ends_of_links,
        "bandwidth_bytes_per_s": figure,
        "flows": listing(record({**_ends, "bytes": integer(), "copies": integer()}), least=2, most=MAX_ROWS),
        "bytes": integer(),
        "alone_s": number(null=True),
        "together_s": number(null=True),
    },
    {"both_ways": flag(), "copy_engines": figure},
)


def _edge_name(value: Any, path: str, sink: Sink) -> None:
    """`[src, dst]`, or one text."""
    if isinstance(value, list):
        listing(device_id, least=2, most=2)(value, path, sink)
    else:
        text(256, null=True)(value, path, sink)


_flagged: dict[str, Shape] = {"flag": text(null=True), "field": text(null=True)}
_change = record({}, _flagged | {"and": listing(record({}, _flagged), most=64)}, null=True)
_alternative = record(
    {},
    _flagged
    | {
        "and": listing(record({}, _flagged), most=64),
        "reading": text(64, null=True),
        "edges": listing(_known_edge, most=MAX_ROWS, null=True),
    },
)
_reason = record(
    {"code": text(64), "message": text(100_000)},
    {
        "severity": choice("error", "unknown", "warning"),
        "device": text(64, null=True),
        "edge": _edge_name,
        "needed_bytes": figure,
        "available_bytes": figure,
        "shortfall_bytes": figure,
        "vx_code": text(8, pattern=r"[EW][0-9]{4}"),
        "vx_also": listing(text(8, pattern=r"[EW][0-9]{4}"), most=8),
        "fix": _change,
    },
)

_sampling = record({"temperature": number(), "top_p": number(), "seed": integer(1)})
DTYPES = ("bf16", "fp16", "fp32", "fp8")
_path = text(4096, null=True)
MODEL_SIZES = (
    "dim", "hidden_dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "vocab_size", "seq_len", "parameters",
)  # fmt: skip
_inputs = record(
    {
        "fleet": record({"name": name, "path": _path, "digest": sha256}),
        "model": record(
            {"name": name, "path": _path, "digest": sha256},
            dict.fromkeys(MODEL_SIZES, figure)
            | dict.fromkeys(("family", "format", "weights_dtype"), text(64, null=True)),
        ),
        "tokenizer": record({"path": _path, "digest": digest_or_null}),
        "placement": record(
            {"prefill": device_ids, "decode": device_ids, "digest": sha256},
            {"tp": listing(integer(1), least=2, most=2), "pp": listing(integer(1), least=2, most=2)},
        ),
    },
    {"utilization": text(64), "scenario": text(512, null=True), "engine": ENGINE_INPUTS},
)
_priced = record(
    {
        "inputs": record(
            {
                "model": record(dict.fromkeys(MODEL_SIZES, integer())),
                "workload": record(
                    {
                        **dict.fromkeys(("prompt_tokens", "passes", "positions", "batch"), integer()),
                        "attention": choice("device", "host"),
                        "kv_extent": text(64, pattern=r"filled|allocated|blocks:[1-9][0-9]{0,11}"),
                        "kv_dtype": choice(*DTYPES),
                        "weights_dtype": choice(*DTYPES),
                        "prefill_chunk": integer(1),
                        "layout": text(64),
                        "digest": sha256,
                    },
                    {"sampling": _sampling},
                ),
            }
        ),
        "passes": counts_by_phase,
    }
)
"""What the rows of a waybill follow from."""


def _plan(value: Any, path: str, sink: Sink) -> None:
    _PLAN_FIELDS(value, path, sink)
    if isinstance(value, dict) and value.get("waybill"):
        _priced(value, path, sink)


_PLAN_FIELDS = record(
    {
        "verdict": choice(*PLAN_VERDICTS),
        "id": text(64, pattern=r"[0-9a-f]{64}"),
        "inputs": _inputs,
        "placement": record({"prefill": device_ids, "decode": device_ids}),
        "reasons": listing(_reason, most=MAX_ROWS),
        "limits": words,
    },
    {
        "memory": listing(_memory, most=MAX_ROWS),
        "waybill": listing(_row, most=MAX_ROWS),
        "edges": listing(_edge, most=MAX_ROWS),
        "handoff": _handoff,
        "contention": listing(_contention, most=MAX_ROWS, null=True),
        "dispatches": record({"prefill": figure, "decode": figure}, null=True),
        "passes": record({"prefill": integer(), "decode": integer()}, null=True),
        "time": TIME,
        "alternatives": listing(_alternative, most=MAX_ROWS),
        "counterfactuals": listing(
            record(
                {"dimension": text(64), "change": _change},
                {"why": text(4096), "others": integer(), "searched": text(4096), "leaves": text(64)},
            ),
            most=64,
        ),
        "sequences": record({"fit": figure, "words": text(100_000)}),
        "solved": record({"verdict": choice("solved", "impossible", "unverified"), "words": text(100_000)}),
        "not_run": words,
        "transfer": TRANSFER,
        "launch": listing(LAUNCH, most=2),
        "workers": record({"prefill": WORKER, "decode": WORKER}, {"handoff_together_s": number(null=True)}),
        "defaults": words,
        "warnings": words,
    },
)
PLAN: Shape = _plan


def _interval(value: Any, path: str, sink: Sink) -> None:
    """[least, most] of what a printed figure stands for, or null."""
    listing(integer(), least=2, most=2, null=True)(value, path, sink)
    if isinstance(value, list) and [type(end) for end in value] == [int, int] and value[0] > value[1]:
        sink.add(path, f"{value[0]:,} to {value[1]:,}: the least stands first")


_check = record({"name": text(128), "required": flag(), "result": choice(*RESULTS), "detail": text(100_000)})
_compared = record(
    {
        "phase": choice(*PHASES),
        "tensor": name,
        **_ends,
        "predicted_bytes": figure,
        "counted_bytes": figure,
        "observed_bytes": figure,
        "difference": integer(-(2**63), null=True),
        "predicted_copies": figure,
        "counted_copies": figure,
        "observed_copies": figure,
        "witness": choice(*WITNESSES),
        "verdict": choice(*ROW_VERDICTS),
    },
    {"observed_bytes_interval": _interval, "observed_copies_interval": _interval},
)
COMPARISON = record(
    {
        "verdict": choice(*VERDICTS),
        "rows": listing(_compared, most=MAX_ROWS),
        "checks": listing(_check, most=1000),
        "limits": words,
    }
)

_physical = record(
    {"device": device_id},
    {
        "ordinal": figure,
        "uuid": physical_id,
        "pci": physical_id,
        "name": text(256, null=True),
        "machine": text(32, null=True, pattern=r"[0-9a-f]{32}"),
        "socket": figure,
    },
)
_stretch = record(
    {
        "phase": choice("prefill", "decode"),
        "device": device_id,
        "topology_id": integer(),
        "count": integer(1),
        "first_step": integer(),
        "last_step": integer(),
    },
    {"ordinal": figure, "uuid": physical_id},
)
_op = record(
    {"op": text(64)},
    {
        "layer": integer(-1, null=True),
        "tensor": text(512, null=True),
        "shape": listing(integer(), most=16, null=True),
    },
)
_settings = record(
    {},
    {
        "attention": choice("device", "host"),
        "kv_extent": text(64),
        "layout": text(64),
        "positions": integer(1),
        "prefill_chunk": integer(1),
        "memory": choice("poisoned", "zeroed"),
        "without": listing(choice("handoff"), most=1),
        "observers": listing(text(64), most=64),
        "isolated": flag(),
        "threads": integer(1),
        "fast": flag(),
        "compute_dtype": choice("bf16", "fp16"),
        "temperature": number(),
        "top_p": number(),
        "seed": integer(1),
    },
    null=True,
)
RUN = record(
    {
        "plan_id": digest_or_null,
        "backend": text(64),
        "tier": choice("emulated", "on-device"),
        "physical_devices": listing(_physical, most=10_000),
        "tokens": token_ids,
        "generated_tokens": token_ids,
        "n_prompt_tokens": integer(1),
        "stopped": choice("steps", "bos"),
        "passes": counts_by_phase,
        "dispatches": listing(_stretch, most=MAX_ROWS * 10),
        "program": record({"prefill": listing(_op), "decode": listing(_op)}),
        "logits_top1_bits": listing(text(8, pattern=r"[0-9a-f]{8}"), most=MAX_TOKENS),
        "waybill": listing(_counted_row, most=MAX_ROWS),
        "edges": listing(_known_edge, most=MAX_ROWS),
        "arrivals": listing(
            record(
                {
                    "tensor": choice("k", "v"),
                    "layer": integer(),
                    "digest_src": digest_or_null,
                    "digest_dst": digest_or_null,
                }
            ),
            most=MAX_ROWS,
            null=True,
        ),
        "resident": listing(record({"device": arena_id, "high_water_bytes": figure}), most=10_000),
        "limits": words,
    },
    {
        "path": text(64, null=True),
        "text": text(MAX_TOKENS, null=True),
        "text_hex": text(4 * MAX_TOKENS, null=True, pattern=r"(?:[0-9a-f]{2})*"),
        "cache_written_bytes": figure,
        "inputs": record({}, dict.fromkeys(("model", "fleet", "placement", "workload"), record({"digest": sha256}))),
        "stray": record({"accesses": integer()}, {"detail": text(10_000, null=True)}, null=True),
        "rates": table(number(null=True), null=True),
        "spans": listing(
            record(
                {"phase": choice(*PHASES), "src": text(64, null=True), "dst": text(64), "start_ns": integer()}
                | {"end_ns": integer(), "tensor": text(512, null=True), "orders": integer(1)}
            ),
            most=MAX_ROWS,
        ),
        "beside_strict": record(
            {
                "tokens_equal": flag(),
                "first_difference": figure,
                "top1_logits": integer(),
                "differ": integer(),
                "largest_difference": number(null=True),
            }
        ),
        "settings": _settings,
        "defaults": words,
        "warnings": words,
        "comparison": lambda value, path, sink: None if value is None else COMPARISON(value, path, sink),
    },
)
PROOF = record(
    {
        "verdict": text(32),
        "matrix": listing(
            record(
                {
                    "sabotage": text(256),
                    "must_fail": listing(text(128), most=1000),
                    "must_pass": listing(text(128), most=1000),
                    "failed": listing(text(128), most=1000),
                    "verdict": text(64),
                }
            ),
            most=1000,
        ),
    }
)
ADMISSIONS = record({"plans": listing(lambda value, path, sink: PLAN(value, path, sink), most=10_000)})

SHAPES: dict[str, Shape] = {
    "plan": PLAN,
    "run": RUN,
    "comparison": COMPARISON,
    "proof": PROOF,
    "admissions": ADMISSIONS,
}
VERSION = 1
"""The schema number that this version writes and reads, the same for every kind."""
