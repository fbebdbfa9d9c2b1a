"""The fused path as a whole request: equal to the dispatch path in everything but time, for both layouts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.discovery import load_backend
from executor.facts import RunFacts
from executor.run import Executor, Path
from executor.weights import Weights
from fleet.errors import DescriptionError
from planner.plan import make_orders
from tests.executor.requests import BACK, ORACLE, PROMPT, SPLIT, admitted, embedded, orders_for, random_weights
from tests.executor.test_run import must_be_as_predicted
from tests.planner.fleets import llama2c

WAYS: tuple[tuple[str, Path], ...] = (
    ("plain", "dispatch"), ("plain", "fused"), ("packed16", "dispatch"), ("packed16", "fused"),
)  # fmt: skip


class Seen:
    """A request and what it left: facts, ledger rows with their words, both caches in wire order, logits."""

    def __init__(self, weights: Weights, ids: tuple[int, ...], layout: str, path: Path, **request: Any) -> None:
        admission = admitted(weights.model, ids, layout=layout, **request)
        orders = make_orders(admission)
        with Executor(orders, weights, path=path) as executor:
            self.facts: RunFacts = executor.run()
            machine, ledger = executor.machine, executor.ledger
            self.rows: npt.NDArray[np.int64] = ledger.rows.copy()
            self.ops = ledger.ops
            passes = self.facts.passes
            filled = {"prefill": passes["prefill"], "decode": sum(passes.values()) if passes["decode"] else 0}
            self.kv = {
                (phase, tensor): machine.cache(machine.device_of(phase), phase, tensor).wire()[:, :n].copy()
                for phase, n in filled.items()
                for tensor in ("k", "v")
            }
            self.logits = machine.buffer(machine.device_of("decode"), "act/logits").array.view(np.uint32).copy()
        assert self.facts.path == path
        if self.facts.stopped == "steps":
            must_be_as_predicted(self.facts, admission)


def must_be_equal(one: Seen, other: Seen) -> None:
    timeless = [replace(each.facts, rates={}, settings={}, path="", resident={}) for each in (one, other)]
    assert timeless[0] == timeless[1]
    assert one.ops == other.ops
    assert np.array_equal(one.rows, other.rows)
    assert np.array_equal(one.logits, other.logits)
    for key, cache in one.kv.items():
        assert np.array_equal(cache, other.kv[key]), key


def check_all_ways(weights: Weights, ids: tuple[int, ...] = PROMPT, **request: Any) -> RunFacts:
    seen = [Seen(weights, ids, layout, path, **request) for layout, path in WAYS]
    for other in seen[1:]:
        must_be_equal(seen[0], other)
    return seen[0].facts


@pytest.mark.parametrize("steps", [40, 14, 10])
@pytest.mark.parametrize("devices", [SPLIT, BACK, ORACLE, ("gpu:0", "cpu:0")])
@pytest.mark.parametrize("extent", ["filled", "allocated", "blocks:16"])
def test_all_ways_are_one(extent: str, devices: tuple[str, str], steps: int) -> None:
    for access in ("direct", "staged"):
        check_all_ways(embedded(), devices=devices, peer_access=access, steps=steps, kv_extent=extent)


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 3), heads=st.sampled_from([(2, 1), (2, 2), (4, 1), (6, 3), (7, 7)]),
    head_dim=st.sampled_from([2, 6, 16, 18]), hidden=st.integers(3, 40), shared=st.booleans(),
    prompt=st.integers(1, 19), steps=st.integers(1, 40), spare=st.integers(0, 9),
    extent=st.sampled_from(["filled", "allocated", "blocks:5"]),
    access=st.sampled_from(["direct", "staged"]), devices=st.sampled_from([SPLIT, ORACLE]), chunk=st.integers(1, 20),
)  # fmt: skip
def test_all_ways_are_one_for_any_shape(
    layers: int, heads: tuple[int, int], head_dim: int, hidden: int, shared: bool, prompt: int, steps: int, spare: int,
    extent: str, access: str, devices: tuple[str, str], chunk: int,
) -> None:  # fmt: skip
    model = llama2c(heads[0] * head_dim, hidden, layers, *heads, vocab=37, seq_len=52, shared=shared)
    ids = (1, *(2 + (5 * i) % 33 for i in range(prompt - 1)))
    check_all_ways(
        random_weights(model, seed=hidden), ids, devices=devices, peer_access=access, steps=steps,
        positions=steps + spare, kv_extent=extent, prefill_chunk=chunk,
    )  # fmt: skip


def test_a_bos_in_the_prompt_stops_every_way() -> None:
    for chunk in (1, 3, 4):
        facts = check_all_ways(embedded(), (1, 40, 50, 1, 60), steps=20, prefill_chunk=chunk)
        assert (facts.tokens, facts.stopped) == ((1, 40, 50, 1), "bos")


def test_not_a_number_everywhere_gives_token_0_every_way() -> None:
    model = llama2c(4, 6, 1, 2, 1, vocab=9, seq_len=8)
    nan = Weights(model, {t.name: np.full(t.shape, np.nan, np.float32) for t in model.tensors})
    assert check_all_ways(nan, (3, 4), steps=5).generated_tokens == (0, 0, 0, 0)


def test_padding_shows_in_residency_and_nowhere_else() -> None:
    model = llama2c()
    admissions = {layout: admitted(model, steps=40, layout=layout) for layout in ("plain", "packed16")}
    for layout, admission in admissions.items():
        with Executor(make_orders(admission), random_weights(model)) as executor:
            must_be_as_predicted(executor.run(), admission)
        assert admission.prediction is not None
        padding = {f.arena: f.lines["layout_padding"] for f in admission.prediction.footprints}
        assert all(nbytes > 0 for nbytes in padding.values()) == (layout == "packed16")


def test_a_written_padding_lane_is_witnessed_as_a_row_of_its_own() -> None:
    from executor.facts import run_document
    from executor.hands import Hands
    from planner.orders import Step

    class Sloppy(Hands):
        def handoff(self, order: int, step: Step) -> None:
            super().handoff(order, step)
            if step.tensor == "k":
                lanes = self.machine.cache("gpu:1", "decode", "k").padding()
                assert lanes is not None
                lanes[0, 0, 0, 0, 0] = 7

    orders = orders_for(embedded().model, steps=40, layout="packed16")
    with Executor(orders, embedded(), hands=Sloppy()) as executor:
        rows = run_document(executor.run())["waybill"]
    odd = [row for row in rows if row["tensor"] == "layout_padding"]
    assert [(row["phase"], row["dst"], row["bytes"], row["copies"], row["observed_bytes"]) for row in odd] == [
        ("handoff", "gpu:1", 0, 0, 4),
        ("decode", "gpu:1", 0, 0, 4),
    ]


@pytest.mark.parametrize(
    ("layout", "path", "temperature"), [*((*way, 0.0) for way in WAYS), ("packed16", "fused", 1.1)]
)
def test_two_hundred_requests_on_one_arena_are_exact(layout: str, path: Path, temperature: float) -> None:
    steps = 18 if path == "dispatch" else 24
    orders = orders_for(embedded().model, steps=steps, layout=layout, temperature=temperature)
    with Executor(orders, embedded(), path=path) as executor:
        first = replace(executor.run(), rates={})
        for _ in range(199):
            assert replace(executor.run(), rates={}) == first


def test_a_backend_without_packed_operations_is_refused_in_words() -> None:
    orders = orders_for(embedded().model, steps=20, layout="packed16")
    plain_only = type("Plain", (load_backend("numba"),), {"runs_fused": False, "runs_packed": False})
    with pytest.raises(DescriptionError, match="backend numba computes in the layout plain only"):
        Executor(orders, embedded(), plain_only)


def test_attention_on_the_host_is_dispatched_whatever_is_asked() -> None:
    orders = orders_for(embedded().model, steps=20, attention="host")
    with Executor(orders, embedded(), path="fused") as executor:
        assert executor.run().path == "dispatch"


@pytest.mark.parametrize("layout", ["plain", "packed16"])
def test_threads_share_matmuls_and_change_no_bit(layout: str) -> None:
    """Rows that eights, sixteens and teams do not divide; a classifier large enough to be shared out from one token."""
    model = llama2c(54, 1213, 2, 9, 3, vocab=1301, seq_len=40, shared=False)
    for weights in (embedded(), random_weights(model)):
        orders = orders_for(weights.model, steps=36, layout=layout, prefill_chunk=14)
        seen = []
        for threads in (1, 2, 3):
            with Executor(orders, weights, threads=threads) as executor:
                facts = executor.run()
                logits = executor.machine.buffer("gpu:1", "act/logits").array.tobytes()
            assert facts.settings["threads"] == threads
            seen.append((replace(facts, rates={}, settings={}), logits))
        assert seen[0] == seen[1] == seen[2]


def test_fast_chooses_the_same_ids_by_other_bits() -> None:
    orders = orders_for(embedded().model, steps=40, layout="packed16")
    strict, fast = (_pace(orders, fast=fast) for fast in (False, True))
    assert (strict.settings["fast"], fast.settings["fast"]) == (False, True)
    assert fast.tokens == strict.tokens
    assert fast.logits_top1_bits != strict.logits_top1_bits
    assert (fast.waybill, fast.dispatches, fast.program) == (strict.waybill, strict.dispatches, strict.program)


def _pace(orders: Any, **pace: Any) -> RunFacts:
    with Executor(orders, embedded(), **pace) as executor:
        return executor.run()


@pytest.mark.parametrize("request_", [{}, {"attention": "host"}])
def test_a_pace_that_nothing_here_has_is_refused_in_words(request_: dict[str, Any]) -> None:
    orders = orders_for(embedded().model, steps=20, **request_)
    with pytest.raises(DescriptionError, match="admit with --layout packed16"):
        _pace(orders, fast=True)
    with pytest.raises(DescriptionError, match="one by one are not shared out"):
        _pace(orders, threads=2, path="dispatch")


def test_fast_operation_by_operation_is_refused_by_what_would_mend_it() -> None:
    orders = orders_for(embedded().model, steps=20, layout="packed16")
    with pytest.raises(DescriptionError, match="have no fast mode; leave --path out"):
        _pace(orders, fast=True, path="dispatch")


def test_no_number_of_threads_is_refused_in_words() -> None:
    orders = orders_for(embedded().model, steps=20, layout="packed16")
    for threads in (0, -1, 257):
        with pytest.raises(DescriptionError, match="use 1 to 256"):
            _pace(orders, threads=threads)
