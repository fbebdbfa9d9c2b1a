"""From orders to facts: rows, edges, counts and stops against the plan, on one machine used again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.facts import RunFacts, run_document
from executor.run import Executor
from executor.weights import Weights
from planner.admit import Admission
from planner.plan import make_orders, prediction_document
from tests.executor.requests import (
    BACK,
    ORACLE,
    PROMPT,
    SPLIT,
    admitted,
    embedded,
    orders_for,
    random_weights,
    run_once,
)
from tests.planner.fleets import llama2c

ROW_KEYS = ("phase", "tensor", "src", "dst", "kind", "payload_bytes", "bytes", "copies", "per_pass")
LEG_KEYS = ("src", "dst", "kind", "bytes", "copies")


def rows(document: dict[str, Any], chunk: int = 1) -> list[dict[str, Any]]:
    """The waybill of a plan or a run, reduced to what both must say.

    A plan tells no figure per pass of tokens that go up in chunks; a run tells it when each chunk held one.
    """
    keys = [key for key in ROW_KEYS if key != "per_pass" or chunk == 1]
    return [
        {key: row.get(key) for key in keys} | {"legs": [{key: leg[key] for key in LEG_KEYS} for leg in row["legs"]]}
        for row in document["waybill"]
    ]


def must_be_as_predicted(facts: RunFacts, admission: Admission) -> None:
    """Rows, edges, dispatches, passes, residency and witnessed bytes of an unstopped run equal the plan's."""
    predicted, run = prediction_document(admission), run_document(facts)
    assert facts.stopped == "steps"
    chunk = facts.settings["prefill_chunk"]
    assert rows(run, chunk) == rows(predicted, chunk)
    assert run["edges"] == predicted["edges"]
    assert run["passes"] == predicted["passes"]
    counts = dict.fromkeys(("prefill", "decode"), 0)
    for entry in run["dispatches"]:
        counts[entry["phase"]] += entry["count"]
    assert counts == predicted["dispatches"]
    assert admission.prediction is not None
    assert dict(facts.resident) == {f.arena: f.resident_bytes for f in admission.prediction.footprints}
    for row in run["waybill"]:
        witnessed = row["phase"] in ("stage", "handoff")
        assert row["witness"] == ("arrival" if witnessed else "none")
        for leg in row["legs"]:
            assert leg["observed_bytes"] == (leg["bytes"] if witnessed else None)
            assert leg["observed_copies"] is None
    for arrival in run["arrivals"]:
        assert arrival["digest_src"] == arrival["digest_dst"]


def run_as_predicted(weights: Weights, ids: tuple[int, ...] = PROMPT, **request: Any) -> RunFacts:
    admission = admitted(weights.model, ids, **request)
    facts = run_once(make_orders(admission), weights)
    must_be_as_predicted(facts, admission)
    return facts


@pytest.mark.parametrize("steps", [40, 14, 10])
@pytest.mark.parametrize("devices", [SPLIT, BACK, ORACLE, ("gpu:0", "cpu:0"), ("cpu:0", "gpu:1")])
@pytest.mark.parametrize("extent", ["filled", "allocated", "blocks:16"])
@pytest.mark.parametrize("attention", ["device", "host"])
def test_a_run_is_as_predicted(attention: str, extent: str, devices: tuple[str, str], steps: int) -> None:
    for access in ("direct", "staged"):
        run_as_predicted(
            embedded(), devices=devices, peer_access=access, steps=steps, attention=attention, kv_extent=extent
        )


def test_the_walked_case_gives_its_rows_and_edges() -> None:
    model = llama2c()
    facts = run_as_predicted(random_weights(model), steps=40)
    edges = {f"{e['src']}->{e['dst']}": (e["bytes"], e["copies"]) for e in facts.edges}
    assert edges == {
        "host->gpu:0": (1_040_184, 25),
        "host->gpu:1": (1_040_132, 12),
        "gpu:0->gpu:1": (17_920, 10),
        "gpu:0->host": (4, 1),
        "gpu:1->host": (104, 26),
    }
    assert [(d["phase"], d["device"], d["topology_id"], d["count"]) for d in facts.dispatches] == [
        ("prefill", "gpu:0", 500, 491),
        ("decode", "gpu:1", 501, 936),
    ]
    assert [(d["first_step"], d["last_step"]) for d in facts.dispatches] == [(0, 13), (14, 39)]


def test_the_walked_case_with_attention_on_the_host_gives_its_edges() -> None:
    facts = run_as_predicted(random_weights(llama2c()), steps=40, attention="host")
    edges = {f"{e['src']}->{e['dst']}": e["bytes"] for e in facts.edges}
    assert edges == {
        "host->gpu:0": 1_214_496,
        "gpu:0->host": 196_672,
        "gpu:0->gpu:1": 17_920,
        "host->gpu:1": 1_333_088,
        "gpu:1->host": 383_168,
    }


sizes = st.tuples(
    st.integers(1, 3), st.sampled_from([(2, 1), (2, 2), (4, 1), (6, 3)]), st.sampled_from([2, 4, 6]), st.integers(3, 40)
)


@settings(max_examples=60, deadline=None)
@given(
    size=sizes,
    shared=st.booleans(),
    prompt=st.integers(1, 9),
    steps=st.integers(1, 20),
    spare=st.integers(0, 3),
    extent=st.sampled_from(["filled", "allocated", "blocks:1", "blocks:3", "blocks:4"]),
    attention=st.sampled_from(["device", "host"]),
    access=st.sampled_from(["direct", "staged"]),
    devices=st.sampled_from([SPLIT, BACK, ORACLE, ("gpu:0", "cpu:0")]),
    chunk=st.integers(1, 4),
)
def test_predicted_equals_counted_equals_observed_for_any_shape(
    size: Any, shared: bool, prompt: int, steps: int, spare: int, extent: str, attention: str, access: str,
    devices: tuple[str, str], chunk: int,
) -> None:  # fmt: skip
    layers, (heads, kv_heads), head_dim, hidden = size
    dim = heads * head_dim
    model = llama2c(dim, hidden, layers, heads, kv_heads, vocab=23, seq_len=24, shared=shared)
    weights = random_weights(model, seed=hidden)
    ids = (3, *range(4, 4 + prompt - 1))
    admission = admitted(
        model, ids, devices=devices, peer_access=access, steps=steps, positions=steps + spare, kv_extent=extent,
        attention=attention, prefill_chunk=1 if attention == "host" else chunk,
    )  # fmt: skip
    facts = run_once(make_orders(admission), weights)
    if facts.stopped == "steps":
        must_be_as_predicted(facts, admission)
    oracle = run_once(orders_for(model, ids, devices=ORACLE, steps=steps, attention=attention), weights)
    assert facts.tokens == oracle.tokens
    assert facts.logits_top1_bits == oracle.logits_top1_bits


def test_both_attention_modes_give_the_same_tokens_and_logits() -> None:
    device, host = (
        run_once(orders_for(embedded().model, steps=40, attention=a), embedded()) for a in ("device", "host")
    )
    assert device.tokens == host.tokens
    assert device.logits_top1_bits == host.logits_top1_bits[len(PROMPT) - 1 :]


def test_both_phases_run_one_program() -> None:
    for attention in ("device", "host"):
        facts = run_once(orders_for(embedded().model, steps=20, attention=attention), embedded())
        assert facts.program["prefill"] == facts.program["decode"]
        matmuls = [entry for entry in facts.program["decode"] if entry[0] == "matmul"]
        assert len(matmuls) == 7 * embedded().model.n_layers + 1


def test_without_passes_beyond_the_prompt_nothing_is_handed_over() -> None:
    facts = run_once(orders_for(embedded().model, steps=10), embedded())
    assert facts.tokens == PROMPT[:11]
    assert facts.generated_tokens == ()
    assert facts.logits_top1_bits == ()
    assert facts.arrivals == ()
    assert facts.passes == {"prefill": 10, "decode": 0}


def test_requests_on_one_machine_leave_nothing_behind() -> None:
    orders = orders_for(embedded().model, steps=40, kv_extent="allocated")
    with Executor(orders, embedded()) as executor:
        first, second = executor.run(), executor.run()
        words = {name: arena.poison for name, arena in executor.machine.backend.arenas().items()}
        executor.run()
        again = {name: arena.poison for name, arena in executor.machine.backend.arenas().items()}
    assert len({*words.values(), *again.values()}) == 2 * len(words)
    assert replace(first, rates={}) == replace(second, rates={})


def test_without_the_handoff_decode_does_not_know_the_prompt() -> None:
    orders = orders_for(embedded().model, steps=40)
    whole = run_once(orders, embedded())
    for memory in ("poisoned", "zeroed"):
        facts = run_once(orders, embedded(), without={"handoff"}, memory=memory)
        assert facts.tokens[: len(PROMPT) + 1] == whole.tokens[: len(PROMPT) + 1]
        assert facts.tokens != whole.tokens
        assert facts.logits_top1_bits[1:] != whole.logits_top1_bits[1:]
        assert not [row for row in facts.waybill if row["phase"] == "handoff"]
        assert {key[1]: n for key, n in (facts.observed or {}).items() if key[0] == "handoff"} == {"k": 0, "v": 0}


def test_without_the_handoff_the_host_legs_still_run() -> None:
    facts = run_once(orders_for(embedded().model, steps=20, attention="host"), embedded(), without={"handoff"})
    ends = {(row["src"], row["dst"]) for row in facts.waybill if row["phase"] == "handoff"}
    assert ends == {("host", "gpu:0"), ("gpu:1", "host")}


def test_a_bos_in_the_prompt_stops_the_run_as_llama2c_does() -> None:
    ids = (1, 40, 50, 1, 60)
    for chunk in (1, 4):
        facts = run_once(orders_for(embedded().model, ids, steps=20, prefill_chunk=chunk), embedded())
        assert facts.tokens == (1, 40, 50, 1)
        assert facts.stopped == "bos"
        assert facts.passes == {"prefill": 3, "decode": 0}
        assert facts.generated_tokens == ()


def test_a_chosen_bos_stops_the_run_after_its_pass() -> None:
    model = embedded().model
    whole = run_once(orders_for(model, steps=40), embedded())
    stop_at = whole.generated_tokens[5]
    swapped = _with_ids_swapped(embedded(), 1, stop_at)
    swap = {1: stop_at, stop_at: 1}
    ids = tuple(swap.get(token, token) for token in PROMPT)
    facts = run_once(orders_for(model, ids, steps=40), swapped)
    place = whole.generated_tokens.index(stop_at)
    assert facts.generated_tokens == (*(swap.get(t, t) for t in whole.generated_tokens[:place]), 1)
    assert facts.stopped == "bos"
    assert facts.passes["decode"] == place
    assert facts.dispatches[-1]["last_step"] == len(PROMPT) + place - 1


def test_a_bos_chosen_first_of_all_still_hands_over_but_decodes_nothing() -> None:
    model = embedded().model
    first = run_once(orders_for(model, steps=40), embedded()).generated_tokens[0]
    ids = tuple({1: first, first: 1}.get(token, token) for token in PROMPT)
    facts = run_once(orders_for(model, ids, steps=40), _with_ids_swapped(embedded(), 1, first))
    assert facts.generated_tokens == (1,)
    assert (facts.stopped, facts.passes) == ("bos", {"prefill": len(PROMPT), "decode": 0})
    assert [row["tensor"] for row in facts.waybill if row["phase"] == "handoff"] == ["k", "v"]
    assert not [row for row in facts.waybill if row["phase"] == "decode"]


def _with_ids_swapped(weights: Weights, a: int, b: int) -> Weights:
    """The same model with two ids renamed: rows a and b of the embedding and the classifier change places."""
    tensors = {}
    for spec in weights.model.tensors:
        tensor = weights.tensor(spec.name)
        if spec.role in ("embedding", "classifier"):
            tensor = tensor.copy()
            tensor[[a, b]] = tensor[[b, a]]
        tensors[spec.name] = tensor
    return Weights(weights.model, tensors)


def test_not_a_number_everywhere_gives_token_0_as_llama2c_does() -> None:
    model = llama2c(4, 6, 1, 2, 1, vocab=9, seq_len=8)
    nan = Weights(model, {t.name: np.full(t.shape, np.nan, np.float32) for t in model.tensors})
    facts = run_once(orders_for(model, (3, 4), steps=5), nan)
    assert facts.generated_tokens == (0, 0, 0, 0)


def test_the_document_holds_what_the_contract_names() -> None:
    document = run_document(run_once(orders_for(embedded().model, steps=20), embedded()), plan_id="abc")
    assert document["schema"] == "kvwaybill/run/1"
    assert document["plan_id"] == "abc"
    assert (document["backend"], document["path"], document["tier"]) == ("numba", "fused", "emulated")
    assert document["stray"] is None
    assert document["rates"].keys() == {"prefill_tok_s", "decode_tok_s", "llama2c_tok_s"}
    assert all(len(bits) == 8 for bits in document["logits_top1_bits"])
    told = {"device", "ordinal", "uuid", "pci", "name", "machine", "socket"}
    assert document["physical_devices"][0].keys() == told
    assert {d["device"] for d in document["resident"]} == {"gpu:0", "gpu:1"}
    assert all(d["uuid"] is None and d["ordinal"] is not None for d in document["dispatches"])
