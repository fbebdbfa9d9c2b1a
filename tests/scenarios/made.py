"""Documents for tests: plans from the planner, and the run that carries a plan out to the byte without an executor."""

from __future__ import annotations

import copy
import hashlib
from functools import cache
from typing import Any

from scenarios.documents import plan_id
from scenarios.planning import make_plan
from scenarios.wanted import Wanted, prepare

Document = dict[str, Any]
PROMPT = "Carry it."
STEPS = 24


@cache
def _plan(words: tuple[tuple[str, Any], ...]) -> Document:
    given = {"fleet": "two-gpu-nvlink", "prompt": PROMPT, "steps": STEPS, "prefill": "gpu:0", "decode": "gpu:1"}
    return signed(make_plan(prepare(Wanted(**(given | dict(words))))))


def plan(**words: Any) -> Document:
    """A plan of the embedded model, admitted unless the words say otherwise. The caller may change it."""
    return copy.deepcopy(_plan(tuple(sorted(words.items()))))


def signed(document: Document) -> Document:
    """The plan with an id that fits its content again."""
    return document | {"id": plan_id(document)}


def run_of(document: Document, *, stopped_after: int | None = None) -> Document:
    """What a faultless run of the plan reports. `stopped_after`: BOS came after so many decode passes."""
    orders, passes = document["orders"], dict(document["passes"])
    full = dict(passes)
    if stopped_after is not None:
        passes["decode"] = stopped_after
    n_tokens = passes["prefill"] + passes["decode"] + 1
    prompt = orders["workload"]["prompt_ids"]
    tokens = (prompt + [7 + i % 200 for i in range(n_tokens)])[:n_tokens]
    if stopped_after is not None:
        tokens[-1] = 1
    chosen = tokens[len(prompt) :]
    return {
        "schema": "kvwaybill/run/1",
        "plan_id": document["id"],
        "backend": "numba",
        "path": "dispatch",
        "tier": "emulated",
        "physical_devices": [{"device": "cpu:0", "ordinal": 0, "uuid": None, "pci": None, "name": "a processor"}],
        "tokens": tokens,
        "generated_tokens": chosen,
        "n_prompt_tokens": len(prompt),
        "text": None,
        "text_hex": None,
        "stopped": "steps" if stopped_after is None else "bos",
        "passes": passes,
        "dispatches": _dispatches(document, passes, full),
        "program": {phase: _called(document, passes, phase) for phase in ("prefill", "decode")},
        "logits_top1_bits": [f"{0x41000000 + i:08x}" for i in range(_with_logits(document, passes, len(chosen)))],
        "waybill": (rows := [_row(row, passes, full) for row in document["waybill"]]),
        "edges": edges_of(rows),
        "arrivals": _arrivals(orders),
        "resident": [_high_water(entry) for entry in document["memory"]],
        "stray": None,
        "rates": {"prefill_tok_s": 10.0, "decode_tok_s": 20.0, "llama2c_tok_s": 15.0},
        "settings": {},
        "limits": ["made for a test"],
    }


def clean_run(document: Document) -> Document:
    """As `run_of`, isolated, and nothing stray found."""
    return run_of(document) | {"stray": {"accesses": 0, "detail": "no access to 2 arenas that a step is not party to"}}


def _with_logits(document: Document, passes: Document, n_chosen: int) -> int:
    """Passes that computed logits: with attention on the host every one, else those that chose an id."""
    host = document["orders"]["workload"]["attention"] == "host"
    return int(passes["prefill"] + passes["decode"]) if host else n_chosen


def _called(document: Document, passes: Document, phase: str) -> list[Document]:
    """The program of a phase; no classifier in a prefill that never came to the prompt's last position."""
    work = document["orders"]["workload"]
    short = phase == "prefill" and work["attention"] != "host" and passes["prefill"] < work["prompt_tokens"]
    return (program(document)[: -1 if short else None]) if passes[phase] else []


def program(document: Document) -> list[Document]:
    """One forward call of the plan's model: seven projections a layer, then the classifier."""
    body: list[Document] = [{"op": "embed", "layer": -1, "tensor": "token_embedding", "shape": [259, 64]}]
    for layer in range(document["inputs"]["model"]["n_layers"]):
        for tensor in ("wq", "wk", "wv", "wo", "w1", "w3", "w2"):
            body.append({"op": "matmul", "layer": layer, "tensor": tensor, "shape": [64, 64]})
    body.append({"op": "matmul", "layer": -1, "tensor": "wcls", "shape": [259, 64]})
    return body


def _dispatches(document: Document, passes: Document, full: Document) -> list[Document]:
    out = []
    for phase in ("prefill", "decode"):
        if not passes[phase]:
            continue
        device = next(d for d in document["orders"]["devices"] if d["id"] == document["orders"][phase])
        first = 0 if phase == "prefill" else passes["prefill"]
        out.append(
            {
                "phase": phase,
                "device": device["id"],
                "topology_id": device["topology_id"],
                "ordinal": device["index"],
                "uuid": None,
                "count": document["dispatches"][phase] * passes[phase] // full[phase],
                "first_step": first,
                "last_step": first + passes[phase] - 1,
            }
        )
    return out


def _row(row: Document, passes: Document, full: Document) -> Document:
    """The row as the ledger counts it, with the arrival witness on stage and handoff legs."""
    row = copy.deepcopy(row)
    row.pop("seconds", None)
    parts = [row, *row["legs"]]
    phase = row["phase"]
    for part in parts:
        if row.get("per_pass") and full[phase]:
            part["bytes"] = part["bytes"] * passes[phase] // full[phase]
            part["copies"] = part["copies"] * passes[phase] // full[phase]
    if row.get("per_pass"):
        row["payload_bytes"] = row["bytes"]
    seen = phase in ("stage", "handoff")
    for leg in row["legs"]:
        leg["observed_bytes"] = leg["bytes"] if seen else None
        leg["observed_copies"] = None
        leg["witness"] = "arrival" if seen else "none"
    return row


def edges_of(rows: list[Document]) -> list[Document]:
    """The sums of the rows' legs."""
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        for leg in row["legs"]:
            held = sums.setdefault((leg["src"], leg["dst"], leg["kind"]), [0, 0])
            held[0] += leg["bytes"]
            held[1] += leg["copies"]
    return [
        {"src": src, "dst": dst, "kind": kind, "bytes": nbytes, "copies": copies}
        for (src, dst, kind), (nbytes, copies) in sorted(sums.items())
    ]


def _arrivals(orders: Document) -> list[Document]:
    layers = max((step["layers"][1] for step in orders["steps"] if step["op"] == "handoff"), default=0)
    return [
        {"tensor": tensor, "layer": layer, "digest_src": (word := sha256(f"{tensor}{layer}")), "digest_dst": word}
        for tensor in ("k", "v")
        for layer in range(layers)
    ]


def sha256(text: str) -> str:
    """The digest of some text, for a place where any digest will do."""
    return hashlib.sha256(text.encode()).hexdigest()


def _high_water(entry: Document) -> Document:
    held = sum(figure for line, figure in entry["resident"].items() if line != "runtime")
    return {"device": entry["device"], "high_water_bytes": held}


def check(comparison: Document, name: str) -> Document:
    """The check of that name."""
    return next(entry for entry in comparison["checks"] if entry["name"] == name)


def failed(comparison: Document) -> set[str]:
    """Names of the checks that failed."""
    return {entry["name"] for entry in comparison["checks"] if entry["result"] == "failed"}
