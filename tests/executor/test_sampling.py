"""Draws beside a slow oracle in scalars, and whole requests that draw: ways, seeds, stops, senseless logits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.kernels import softmax
from executor.run import Executor, Path
from executor.sampling import draw, random_f32
from executor.weights import Weights
from planner.plan import make_orders
from tests.executor.requests import BACK, ORACLE, SPLIT, admitted, embedded, orders_for, random_weights, run_once
from tests.executor.test_run import must_be_as_predicted
from tests.planner.fleets import llama2c

MASK = (1 << 64) - 1
f32 = np.float32


def coin_of(state: int) -> tuple[float, int]:
    """xorshift64* in whole numbers of any size: (a float of 24 bits, the next state)."""
    state ^= state >> 12
    state ^= state << 25 & MASK
    state ^= state >> 27
    return ((state * 0x2545F4914F6CDD1D & MASK) >> 40) / 2**24, state


def drawn_slowly(logits: npt.NDArray[np.float32], temperature: float, top_p: float, coin: float) -> int:
    """run.c's sample, sample_mult and sample_topp, a scalar at a time, with a whole sort that is stable by index."""
    shares = np.array([f32(x) / f32(temperature) for x in logits], f32)
    softmax(shares, len(shares))
    ids = list(range(len(shares)))
    total = f32(0)
    if 0 < f32(top_p) < 1:
        cutoff = (f32(1) - f32(top_p)) / f32(len(shares) - 1)
        ids = sorted((i for i in ids if shares[i] >= cutoff), key=lambda i: -shares[i])
        last = len(ids) - 1
        for place, i in enumerate(ids):
            total += shares[i]
            if total > f32(top_p):
                last = place
                break
        ids = ids[: last + 1]
        coin = f32(coin) * total
    reached = f32(0)
    for i in ids:
        reached += shares[i]
        if coin < reached:
            return i
    return ids[-1]


def drawn(logits: npt.NDArray[np.float32], temperature: float, top_p: float, seed: int) -> int:
    room = np.zeros(len(logits), np.int32)
    figures, state = np.array([temperature, top_p], f32), np.array([seed], np.int64)
    return int(draw(logits.copy(), room, figures, state))


@given(st.integers(1, 2**63 - 1))
def test_the_generator_is_xorshift64_star(seed: int) -> None:
    state, expected = np.array([seed], np.int64), seed
    for _ in range(20):
        coin, expected = coin_of(expected)
        assert random_f32(state) == coin
        assert int(state[0]) & MASK == expected


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.one_of(st.sampled_from([0.0, 1.0, -2.0]), st.floats(-20, 20, width=32)), min_size=2, max_size=60),
    st.floats(0.05, 5), st.floats(0, 1), st.integers(1, 2**31),
)  # fmt: skip
def test_a_draw_is_that_of_a_whole_sort(values: list[float], temperature: float, top_p: float, seed: int) -> None:
    logits = np.array(values, f32)
    if 0 < f32(top_p) < 1 and top_p * len(values) < 1.01:
        top_p = 1.01 / len(values)  # below that nothing may pass the cutoff
    assert drawn(logits, temperature, top_p, seed) == drawn_slowly(logits, temperature, top_p, coin_of(seed)[0])


def test_equal_probabilities_stand_in_the_order_of_their_ids() -> None:
    for n in (2, 3, 17, 40):
        chosen = {drawn(np.zeros(n, f32), 1.0, 0.6, seed) for seed in range(1, 400)}
        assert chosen == set(range(max(chosen) + 1))
        assert max(chosen) + 1 == np.flatnonzero(np.cumsum(np.full(n, f32(1) / f32(n))) > f32(0.6))[0] + 1


def test_a_share_so_small_that_nothing_passes_takes_the_likeliest_id() -> None:
    assert drawn(np.zeros(8, f32), 1.0, 1e-6, 5) == 0
    assert drawn(np.array([0, 3, 3], f32), 1.0, 1e-6, 5) == 1
    assert drawn(np.zeros(1, f32), 0.7, 0.5, 5) == 0


@pytest.mark.parametrize("bad", [[0, np.nan], [np.nan, 0], [np.inf, 0], [-np.inf, -np.inf]])
def test_logits_without_probabilities_give_the_last_id_or_with_top_p_the_first(bad: list[float]) -> None:
    assert drawn(np.array(bad, f32), 1.0, 0.0, 3) == len(bad) - 1
    assert drawn(np.array(bad, f32), 1.0, 0.9, 3) == 0


WAYS: tuple[tuple[str, Path], ...] = (
    ("plain", "dispatch"), ("plain", "fused"), ("packed16", "dispatch"), ("packed16", "fused"),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    heads=st.sampled_from([(2, 1), (4, 2), (7, 7)]), head_dim=st.sampled_from([2, 6, 18]), shared=st.booleans(),
    prompt=st.integers(1, 19), steps=st.integers(1, 40), devices=st.sampled_from([SPLIT, BACK, ORACLE]),
    chunk=st.integers(1, 20), temperature=st.floats(0.1, 3), top_p=st.floats(0, 1), seed=st.integers(1, 2**63 - 1),
)  # fmt: skip
def test_all_ways_draw_the_same_ids_and_rows(
    heads: tuple[int, int], head_dim: int, shared: bool, prompt: int, steps: int, devices: tuple[str, str], chunk: int,
    **drawing: Any,
) -> None:  # fmt: skip
    model = llama2c(heads[0] * head_dim, 24, 2, *heads, vocab=37, seq_len=52, shared=shared)
    weights, ids = random_weights(model, seed=prompt), (1, *(2 + (5 * i) % 33 for i in range(prompt - 1)))
    seen = []
    for layout, path in WAYS:
        admission = admitted(
            model, ids, devices=devices, steps=steps, layout=layout, prefill_chunk=chunk, **drawing
        )  # fmt: skip
        with Executor(make_orders(admission), weights, path=path) as executor:
            facts = executor.run()
            assert replace(executor.run(), rates={}) == replace(facts, rates={})  # the seed begins anew
        if facts.stopped == "steps":
            must_be_as_predicted(facts, admission)
        seen.append(replace(facts, rates={}, settings={}, path="", resident={}))
    assert all(each == seen[0] for each in seen)
    home = run_once(orders_for(model, ids, devices=devices, steps=steps, attention="host", **drawing), weights)
    assert home.tokens == seen[0].tokens


def test_another_seed_is_another_walk_and_temperature_0_is_none() -> None:
    walks = {
        run_once(orders_for(embedded().model, steps=60, temperature=1.0, seed=s), embedded()).tokens for s in (1, 2)
    }
    assert len(walks) == 2
    greedy = run_once(orders_for(embedded().model, steps=60), embedded())
    same = run_once(orders_for(embedded().model, steps=60, temperature=0.0), embedded())
    assert (same.tokens, same.waybill) == (greedy.tokens, greedy.waybill)
    assert same.settings["temperature"] == 0.0
    assert "seed" not in same.settings


def test_a_checkpoint_of_nan_is_walked_every_way_like_any_other() -> None:
    model = llama2c(4, 6, 1, 2, 1, vocab=9, seq_len=8)
    nan = Weights(model, {t.name: np.full(t.shape, np.nan, np.float32) for t in model.tensors})
    for layout, path in WAYS:
        orders = [orders_for(model, (3, 4), steps=5, layout=layout, temperature=1.0, top_p=p) for p in (0.0, 0.5)]
        walks = [run_once(each, nan, path=path).generated_tokens for each in orders]
        assert walks == [(8, 8, 8, 8), (0, 0, 0, 0)]
