"""Documents for the tests of reports: small, made without an executor where that is possible."""

from __future__ import annotations

from functools import cache
from typing import Any

from scenarios.compare import compare
from scenarios.reports.making import Given
from tests.scenarios.made import plan, run_of

Document = dict[str, Any]
HOSTILE = "<script>alert(1)</script>|`*_&\"'\x1b[31m\u202e@org/team https://evil.example --> ]]>"


@cache
def _run() -> Document:
    planned = plan()
    run = run_of(planned)
    return run | {"comparison": compare(planned, run), "spans": spans()}


def spans() -> list[Document]:
    """When the orders of a run were carried out: a host that stages, prefill, k and v, decode."""
    rows = [
        ("stage", "host", "gpu:0", 0, 4_000_000), ("stage", "host", "gpu:1", 4_000_001, 5_000_000),
        ("prefill", None, "gpu:0", 5_500_000, 9_000_007), ("handoff", "gpu:0", "gpu:1", 9_100_000, 9_350_123),
        ("handoff", "gpu:0", "gpu:1", 9_400_000, 9_500_000), ("decode", None, "gpu:1", 9_600_000, 12_000_000),
    ]  # fmt: skip
    names = ("phase", "src", "dst", "start_ns", "end_ns")
    tensors = [None, None, None, "k", "v", None]
    return [
        dict(zip(names, row, strict=True)) | {"tensor": t, "orders": 1} for row, t in zip(rows, tensors, strict=True)
    ]


def run() -> Document:
    """A faultless run with its comparison and spans."""
    return dict(_run())


def proof() -> Document:
    """A proof of two sabotages, one of them missed."""
    row = {"sabotage": "handoff deleted", "must_fail": ["edges_match"], "must_pass": ["resident_match"],
           "failed": ["edges_match"], "verdict": "caught", "detail": "as it must"}  # fmt: skip
    missed = row | {"sabotage": HOSTILE, "failed": [], "verdict": "missed", "detail": "edges_match passed"}
    waived = row | {"sabotage": "on a card", "failed": [], "verdict": "waived", "detail": "no card"}
    comparison = {"name": "split", "comparison": _run()["comparison"]}
    return {"schema": "kvwaybill/proof/1", "verdict": "not proved", "runs": {}, "comparisons": [comparison],
            "matrix": [row, missed, waived], "never_failed": ["one_program_text"], "limits": ["a limit"]}  # fmt: skip


def simulation() -> Document:
    """A summary of a simulation with two workers and one edge."""
    spread = {"count": 4, "mean_s": 0.02, "p50_s": 0.015, "p90_s": 0.03, "p99_s": 0.04}
    nothing = {"count": 0, "mean_s": None, "p50_s": None, "p90_s": None, "p99_s": None}
    worker = {"device": "gpu:0", "phase": "prefill", "busy": 0.5, "steps": 7, "kv_blocks": 100, "kv_blocks_peak": 25,
              "preemptions": 0}  # fmt: skip
    return {
        "schema": "kvwaybill/simulation/1", "name": "made",
        "inputs": {"fleet": {"name": "f"}, "model": {"name": "m"}, "traffic": {"source": "4 requests"},
                   "slo": {"ttft": 0.03, "tpot": None, "e2e": None}},
        "requests": {"all": 5, "finished": 4, "refused": 1, "unfinished": 0}, "duration_s": 2.0,
        "latency": {"ttft": spread, "tpot": nothing}, "goodput": {"met": 3, "of_all": 0.6},
        "edges": [{"src": "gpu:0", "dst": "gpu:1", "kind": "p2p", "bytes": 3_000_000_000, "copies": 40,
                   "utilisation": 0.1, "bytes_per_s_over_time": [1_000_000_000, 2_000_000_000]}],
        "workers": [worker, worker | {"device": "gpu:1", "phase": "decode", "kv_blocks": 0, "kv_blocks_peak": 0}],
        "series": {"bin_s": 1.0, "workers": [{"device": "gpu:0", "phase": "prefill", "kv_share": [0.25, 0.5]}]},
        "unfinished": ["1 request refused"], "limits": ["not simulated: much"],
    }  # fmt: skip


def sweep() -> Document:
    """A sweep of three cases: one keeps its SLO, one misses it, one was refused, as `sweep` writes such rows."""

    def row(case: int, ttft: float | None, met: bool | None, verdict: str = "admitted") -> Document:
        figures = None if ttft is None else {"ttft_p99_s": ttft, "tpot_p99_s": 0.007}
        front = None if ttft is None else case == 1
        return {"case": case, "fields": {"decode.devices": f"gpu:{case}"}, "devices": case + 1, "verdict": verdict,
                "reasons": [], "figures": figures, "slo": {"met": met}, "pareto": front}  # fmt: skip

    return {
        "schema": "kvwaybill/sweep-result/1", "name": "made", "question": "simulate",
        "objectives": [{"metric": "ttft_p99", "figure": "ttft_p99_s", "better": "less"},
                       {"metric": "devices", "figure": "devices", "better": "less"}],
        "slo": [], "groups": [{"asked": {"rate": "10"}, "members": [1, 2, 3], "front": [1],
                               "best": {"verdict": "found", "case": 1}}],
        "rows": [row(1, 0.02, True), row(2, 0.2, False), row(3, None, None, "refused")], "limits": ["compared within"],
    }  # fmt: skip


def records() -> Document:
    """Three requests, two of which overlap in prefill, and one that never came to decode."""

    def one(number: int, prefill: tuple[int, int], handoff: tuple[int, int] | None) -> Document:
        done = handoff is not None
        return {
            "request": number, "state": "finished" if done else "unfinished", "arrival_ps": 0, "prompt_tokens": 9,
            "new_tokens": 3, "prefill": "gpu:0", "decode": "gpu:1" if done else None,
            "prefill_start_ps": prefill[0], "prefill_end_ps": prefill[1],
            "handoff_start_ps": handoff[0] if handoff else None, "handoff_end_ps": handoff[1] if handoff else None,
            "first_token_ps": handoff[1] if handoff else None, "end_ps": handoff[1] + 2_000_001 if handoff else None,
        }  # fmt: skip

    found = [one(0, (0, 5_000_001), (5_000_001, 6_000_000)), one(1, (1_000_000, 5_000_001), (6_000_000, 7_000_000))]
    return {"schema": "records", "records": [*found, one(2, (5_000_001, 9_000_000), None)]}


def all_given() -> list[Given]:
    """One document of every kind."""
    planned = plan()
    found = [("plan", planned), ("admissions", {"schema": "kvwaybill/admissions/1", "plans": [planned, plan(steps=9)]}),
             ("run", run()), ("comparison", run()["comparison"]), ("proof", proof()), ("simulation", simulation()),
             ("records", records()), ("sweep-result", sweep())]  # fmt: skip
    return [Given(kind=kind, document=document, source=f"{kind}.json") for kind, document in found]
