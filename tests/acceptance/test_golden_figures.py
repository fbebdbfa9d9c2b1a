"""The figures of the upstream request: stories15M's shape with attention on the host, really run on random weights."""

from __future__ import annotations

from functools import cache

import pytest

from executor.facts import RunFacts
from executor.weights import Weights
from tests.executor.requests import orders_for, random_weights, run_once
from tests.planner.fleets import llama2c

PROMPT = (1, *range(300, 336))


@cache
def weights() -> Weights:
    return random_weights(llama2c(288, 768, 6, 6, 6, vocab=32000, seq_len=256), seed=15)


def run(steps: int, extent: str) -> RunFacts:
    facts = run_once(orders_for(weights().model, PROMPT, steps=steps, attention="host", kv_extent=extent), weights())
    assert facts.stopped == "steps"
    return facts


def handoff(facts: RunFacts) -> list[tuple[str, str, str, int, int]]:
    return [
        (r["tensor"], r["src"], r["dst"], r["bytes"], r["copies"]) for r in facts.waybill if r["phase"] == "handoff"
    ]


HOPS = (("host", "gpu:0"), ("gpu:0", "gpu:1"), ("gpu:1", "host"))


@pytest.mark.parametrize(
    ("steps", "extent", "dispatches", "copied", "copies"),
    [
        (64, "allocated", (1_591, 1_161), 442_368, 1),
        (128, "allocated", (1_591, 3_913), 884_736, 1),
        (64, "filled", (1_591, 1_161), 255_744, 6),
    ],
)
def test_the_figures_come_out(steps: int, extent: str, dispatches: tuple[int, int], copied: int, copies: int) -> None:
    facts = run(steps, extent)
    assert facts.passes == {"prefill": 37, "decode": steps - 37}
    assert [(d["phase"], d["device"], d["count"]) for d in facts.dispatches] == [
        ("prefill", "gpu:0", dispatches[0]),
        ("decode", "gpu:1", dispatches[1]),
    ]
    assert handoff(facts) == [(tensor, *hop, copied, copies) for hop in HOPS for tensor in ("k", "v")]
    assert all(arrival.digest_src == arrival.digest_dst for arrival in facts.arrivals or ())
