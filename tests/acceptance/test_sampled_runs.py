"""llama2.c's runs at a temperature: recorded ids on every path, and a binary of llama2.c itself where one is named."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from executor.facts import RunFacts
from executor.tokenizer import Tokenizer, load_tokenizer
from executor.weights import Weights, open_weights
from fleet.checkpoints import load_model
from tests.executor.requests import BACK, GOLDEN, GOLDEN_ABSENT, ORACLE, SPLIT, orders_for, run_once

pytestmark = [pytest.mark.shared, pytest.mark.skipif(not GOLDEN.is_dir(), reason=GOLDEN_ABSENT)]

RUNS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "sampled_llama2c.json").read_text())["runs"]
CHECKPOINT, WORDS = str(GOLDEN / "stories260K.bin"), str(GOLDEN / "tok512.bin")
WAYS: list[tuple[str, dict[str, Any]]] = [
    ("fused", {"layout": "packed16"}),
    ("fused", {"layout": "packed16", "prefill_chunk": 7}),
    ("fused", {}),
    ("dispatch", {}),
    ("dispatch", {"layout": "packed16", "prefill_chunk": 3}),
    ("dispatch", {"attention": "host"}),
]
SETTINGS = [(1.0, 0.9), (0.8, 0.5), (1.5, 1.0), (0.3, 0.95), (2.0, 0.0), (1.0, 1e-4), (1.2, 0.99)]
SEEDS = range(1, 13)


@cache
def stories() -> Weights:
    return open_weights(load_model(CHECKPOINT))


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(WORDS, stories().model.vocab_size, "stories260K.bin")


def replay(run: dict[str, Any], path: Any, **request: Any) -> RunFacts:
    """The request of a recorded run, by our own executor."""
    ids = tuple(tokenizer().encode(run["prompt"]))
    words = {name: run[name] for name in ("temperature", "top_p", "seed", "steps")}
    return run_once(orders_for(stories().model, ids, **words, **request), stories(), path=path)


@pytest.mark.parametrize("number", range(len(RUNS)))
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_way_draws_the_recorded_ids_of_llama2c(way: tuple[str, dict[str, Any]], number: int) -> None:
    path, request = way
    facts = replay(RUNS[number], path, devices=(SPLIT, BACK, ORACLE)[number % 3], **request)
    assert list(facts.tokens) == RUNS[number]["token_ids"]
    assert facts.stopped == ("bos" if RUNS[number]["token_ids"][-1] == 1 else "steps")
    words = {name: facts.settings[name] for name in ("temperature", "top_p", "seed")}
    assert words == {name: RUNS[number][name] for name in words}


def test_the_recorded_runs_end_both_ways() -> None:
    assert {run["token_ids"][-1] == 1 for run in RUNS} == {True, False}


@pytest.mark.skipif(
    not os.environ.get("LLAMA2C_RUN"),
    reason="LLAMA2C_RUN names no binary of llama2.c (gcc -O3 -ffp-contract=off run.c -lm)",
)
@pytest.mark.parametrize("prompt", ["Once upon a time", "", "Lily saw a 🐶\n"])
def test_every_seed_writes_the_text_of_the_llama2c_binary(prompt: str) -> None:
    for (temperature, top_p), seed in itertools.product(SETTINGS, SEEDS):
        run = {"prompt": prompt, "temperature": temperature, "top_p": top_p, "seed": seed, "steps": 120}
        options = {"-z": WORDS, "-t": temperature, "-p": top_p, "-s": seed, "-n": 120, "-i": prompt}
        words = [str(word) for pair in options.items() for word in pair]
        answer = subprocess.run(
            [os.environ["LLAMA2C_RUN"], CHECKPOINT, *words], capture_output=True, check=True, timeout=60
        )
        facts = replay(run, "fused", layout="packed16")
        assert tokenizer().decode(facts.tokens) == answer.stdout, run
