"""Work of forward calls from shapes, and what devices take for it: worked by hand, by walking positions, as laws."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.machine import Device, Figure, Memory, Quantity
from fleet.model import Model
from fleet.models.layers import CacheLayer
from fleet.workload import Workload
from planner.roofline import Efficiencies, efficiency_of, numbers_of, phase_time, time_of
from planner.work import (
    Calls,
    Work,
    attended,
    attention_work,
    read_positions,
    sum_of_minima,
    weight_table,
    weight_work,
    work_unknown,
)
from tests.planner.fleets import GB, device, known, llama2c

CONFIGS = Path(__file__).parents[3] / "shared" / "data" / "model_configs"
TERA = 10**12
FULL = Efficiencies(compute=Fraction(1), memory=Fraction(1))
windows = st.one_of(st.none(), st.integers(1, 60))


def card(bandwidth: int | None = 1000 * GB, sku: str | None = None, **flops: int) -> Device:
    memory = Memory(name="HBM", capacity=known(2**40), bandwidth=Quantity() if bandwidth is None else known(bandwidth))
    compute = tuple(sorted((name, known(rate)) for name, rate in flops.items()))
    return replace(device("gpu:0"), memories=(memory,), compute=compute, sku=sku)


def asked(model: Model, prompt: int, passes: int, chunk: int = 1, batch: int = 1) -> Workload:
    return Workload(
        prompt_tokens=prompt, passes=passes, positions=passes, prefill_chunk=chunk, batch=batch,
        kv_dtype=model.kv_dtype, weights_dtype=model.weights_dtype,
    )  # fmt: skip


@given(st.integers(0, 50), st.integers(0, 20), st.integers(0, 40), windows)
def test_sums_of_minima_are_those_of_a_walk(first: int, step: int, count: int, bound: int | None) -> None:
    step = max(1, step)
    walked = sum(first + i * step if bound is None else min(first + i * step, bound) for i in range(count))
    assert sum_of_minima(first, step, count, bound) == walked


@given(st.integers(0, 40), st.integers(0, 70), st.integers(1, 30), windows)
def test_attended_and_read_positions_are_those_of_a_walk(
    first: int, tokens: int, chunk: int, window: int | None
) -> None:
    calls = Calls(first=first, tokens=tokens, chunk=chunk)
    seen = [[p for p in range(at + 1) if window is None or p > at - window] for at in range(first, first + tokens)]
    assert attended(calls, window) == sum(len(positions) for positions in seen)
    read = 0
    for start in range(0, tokens, chunk):
        read += len({position for positions in seen[start : start + chunk] for position in positions})
    assert read_positions(calls, window) == read
    assert sum(count * size for count, size in calls.sizes()) == tokens


def test_the_work_of_a_pass_by_hand() -> None:
    # stories260K: 5 layers x (2 x 64 x 64 + 2 x 32 x 64 + 3 x 172 x 64) = 226,560 + 512 x 64 of the classifier.
    model = llama2c()
    table = weight_table(model, "fp32")
    assert table.parameters == 5 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 172 * 64) == 226_560
    assert (table.head_parameters, table.head_bytes, table.row_bytes) == (32_768, 131_072, 256)
    assert table.bytes == 4 * (226_560 + 11 * 64)
    body, head = weight_work(model, "fp32", "fp32", Calls(first=14, tokens=3, logits=3))
    assert (body.flops, body.bytes, body.times) == (453_120, table.bytes + 256, 3)
    assert (head.flops, head.bytes, head.times) == (65_536, 131_072, 3)
    # positions 14, 15, 16 attend to 15 + 16 + 17 = 48; 2 x 8 heads x 16 elements; 5 layers of 2 x 32 x 4 B.
    (scores,) = attention_work(model, "fp32", "fp32", Calls(first=14, tokens=3))
    assert scores.flops == 5 * 2 * 8 * 16 * 48
    assert scores.bytes == 5 * 256 * (48 + 3)


def test_a_chunk_reads_weights_once_and_a_prompt_of_single_passes_every_time() -> None:
    model = llama2c()
    whole = weight_work(model, "fp32", "fp32", Calls(first=0, tokens=100, chunk=100))
    single = weight_work(model, "fp32", "fp32", Calls(first=0, tokens=100))
    assert sum(w.flops * w.times for w in whole) == sum(w.flops * w.times for w in single)
    assert sum(w.bytes * w.times for w in single) == 100 * (weight_table(model, "fp32").bytes + 256)
    uneven = weight_work(model, "fp32", "fp32", Calls(first=0, tokens=100, chunk=64))
    assert [(w.times, w.flops) for w in uneven] == [(1, 64 * 453_120), (1, 36 * 453_120)]


def test_a_piece_takes_the_slower_of_both_rates() -> None:
    made = card(1000 * GB, bf16=10 * TERA)
    memory_bound = Work(name="a", numbers="bf16", flops=10**12, bytes=2 * 10**12)
    compute_bound = Work(name="b", numbers="bf16", flops=40 * 10**12, bytes=10**12, times=3)
    found = time_of(made, (memory_bound, compute_bound), "declared", FULL)
    assert [(piece.seconds, piece.bound) for piece in found.pieces] == [(2, "memory"), (12, "compute")]
    assert found.seconds == 14
    half = time_of(made, (memory_bound,), "declared", Efficiencies(compute=Fraction(1), memory=Fraction(1, 2)))
    assert half.seconds == 4


def test_llama_2_7b_in_fp32_on_an_h200_takes_what_was_measured_there() -> None:
    # 26.4 GB a token at 0.725 of 4.8 TB/s: 7.6 ms, as the share says; the share was measured on this very shape.
    model = llama2c(4096, 11008, 32, 32, 32, 32000, 2048, shared=False)
    h200 = card(4800 * GB, "h200-sxm-141", fp32=67 * TERA)
    found = phase_time(h200, model, asked(model, 64, 128), Calls(first=64, tokens=64, logits=64))
    assert found.seconds is not None
    assert 0.00755 < float(found.seconds) / 64 < 0.00775
    assert {used.efficiency.provenance for used in found.used} == {"measured"}


def test_a_share_that_was_measured_on_another_card_is_policy_and_a_given_one_too() -> None:
    assert efficiency_of(card(sku="h100-sxm-80"), "bf16").provenance == "policy"
    assert "not on this card" in efficiency_of(card(sku="h100-sxm-80"), "bf16").source
    assert efficiency_of(card(sku="h200-sxm-141"), "fp8").provenance == "policy"
    own = efficiency_of(card(sku="h200-sxm-141"), "bf16", FULL)
    assert (own.value, own.provenance, own.source) == (1, "policy", "as given")


def test_a_rate_that_nobody_states_leaves_the_phase_unpriced_and_names_it() -> None:
    model = llama2c()
    calls = Calls(first=4, tokens=4, logits=4)
    found = phase_time(card(None), model, asked(model, 4, 8), calls)
    assert found.seconds is None
    assert found.unpriced == ("memories[].bandwidth of gpu:0 is unknown", "compute.fp32 of gpu:0 is unknown")
    assert phase_time(card(bf16=TERA), model, asked(model, 4, 8), calls).seconds is None
    host = replace(asked(model, 4, 8), attention="host")
    assert "on the host" in phase_time(card(fp32=TERA), model, host, calls).unpriced[0]


def test_numbers_follow_how_weights_are_stored() -> None:
    model = llama2c()
    assert numbers_of(model, asked(model, 1, 2)) == ("fp32", "fp32")
    assert numbers_of(model, replace(asked(model, 1, 2), weights_dtype="bf16")) == ("bf16", "bf16")
    packed = replace(model, quantisation="fp8 in tiles of 128x128", weights_dtype="bf16")
    assert numbers_of(packed, asked(packed, 1, 2)) == ("fp8", "bf16")
    assert numbers_of(replace(packed, quantisation="mxfp4 experts"), asked(packed, 1, 2)) == ("bf16", "bf16")


def test_observed_bandwidth_is_used_with_the_share_that_belongs_to_it() -> None:
    made = card(4800 * GB, "h200-sxm-141", bf16=TERA)
    seen = Figure(value=4528 * GB, provenance="measured", source="a test")
    memory = replace(made.memory, bandwidth=replace(made.memory.bandwidth, observed=seen))
    made = replace(made, memories=(memory,))
    work = (Work(name="a", numbers="bf16", flops=0, bytes=10**12),)
    declared = time_of(made, work, "declared", Efficiencies())
    found = time_of(made, work, "observed", Efficiencies())
    assert (declared.used[0].origin, found.used[0].origin) == ("declared", "observed")
    assert declared.seconds is not None
    assert found.seconds is not None
    assert abs(float(declared.seconds / found.seconds) - 1) < 0.01


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 4), st.integers(1, 64), st.integers(1, 10**13))
def test_more_rate_is_never_slower_and_more_tokens_never_faster(
    prompt: int, more: int, batch: int, chunk: int, faster: int
) -> None:
    model = llama2c()
    workload = asked(model, prompt, prompt + 1, chunk, batch)

    def seconds(made: Device, tokens: int) -> Fraction:
        calls = Calls(first=0, tokens=tokens, chunk=chunk, batch=batch, logits=1)
        found = phase_time(made, model, workload, calls).seconds
        assert found is not None
        return found

    slow = seconds(card(fp32=TERA), prompt)
    assert seconds(card(fp32=TERA + faster), prompt) <= slow
    assert seconds(card(1000 * GB + faster, fp32=TERA), prompt) <= slow
    assert seconds(card(fp32=TERA), prompt + more) >= slow


def test_states_are_read_and_written_once_a_call_whatever_the_context() -> None:
    layer = CacheLayer(kind="mamba2", state_heads=8, state_unit=16, state_dtype="fp32")
    model = replace(llama2c(), layers=(layer,) * 5)
    early, late = (attention_work(model, "bf16", "bf16", Calls(first=first, tokens=3)) for first in (0, 10**6))
    assert early == late == (Work(name="state", numbers="bf16", flops=0, bytes=5 * 3 * 2 * 8 * 16 * 4),)


def test_a_window_bounds_what_is_attended_to() -> None:
    layer = CacheLayer(kind="sliding", heads=4, key_dim=8, value_dim=8, window=32)
    model = replace(llama2c(), layers=(layer,) * 5)
    near, far = (attention_work(model, "fp32", "fp32", Calls(first=first, tokens=2))[0] for first in (1000, 9000))
    assert near == far
    assert near.flops == 5 * 2 * 8 * 16 * 64


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("Qwen3-30B-A3B", 2.9, 3.4), ("Qwen3-235B-A22B", 21.0, 22.6), ("DeepSeek-V3", 36.0, 38.0),
        ("Mixtral-8x7B-v0.1", 12.5, 13.0), ("gpt-oss-20b", 3.5, 3.7), ("Llama-4-Scout-17B-16E", 16.0, 17.5),
        ("GLM-4.5", 31.5, 33.5), ("Kimi-K2-Instruct", 31.0, 33.0), ("Qwen3-Next-80B-A3B", 2.9, 3.9),
        ("Meta-Llama-3.1-8B", 7.4, 8.1),
    ],
)  # fmt: skip
def test_active_parameters_are_those_that_names_and_papers_state(name: str, least: float, most: float) -> None:
    path = CONFIGS / f"{name}.json"
    if not path.exists():
        pytest.skip("the shared model configs are not beside the project")
    model = load_model(str(path))
    table = weight_table(model, model.weights_dtype)
    routed = sum((model.experts_per_token or 0) * each for _, each, _ in table.experts)
    active = (table.parameters + table.head_parameters + routed) / 10**9
    assert least <= active <= most
    assert not work_unknown(model)
    whole = table.parameters + sum(count * each for count, each, _ in table.experts)
    embedded = sum(t.n_parameters for t in model.tensors if t.role in ("embedding", "classifier"))
    assert 0 <= model.parameters - whole - embedded < model.parameters / 1000


@pytest.mark.shared
def test_experts_are_read_once_a_call_and_at_most_all_of_them() -> None:
    path = CONFIGS / "Mixtral-8x7B-v0.1.json"
    if not path.exists():
        pytest.skip("the shared model configs are not beside the project")
    model = load_model(str(path))
    table = weight_table(model, "bf16")
    ((count, _, each),) = table.experts
    reads = [
        weight_work(model, "bf16", "bf16", Calls(first=0, tokens=1, batch=batch))[0].bytes - batch * table.row_bytes
        for batch in (1, 2, 4, 64)
    ]
    assert reads == [table.bytes + n * each for n in (2, 4, 8, 8)]
    assert count == 8
    assert work_unknown(replace(model, experts_per_token=None))


@pytest.mark.shared
def test_latents_are_priced_absorbed_in_decode_and_taken_apart_over_a_prompt() -> None:
    path = CONFIGS / "DeepSeek-V3.json"
    if not path.exists():
        pytest.skip("the shared model configs are not beside the project")
    model = load_model(str(path))
    one = attention_work(model, "bf16", "bf16", Calls(first=99, tokens=1))[0]
    assert one.flops == 61 * 2 * 128 * (512 + 64 + 512) * 100
    prompt = attention_work(model, "bf16", "bf16", Calls(first=0, tokens=2, chunk=2))[0]
    assert prompt.flops == 61 * 2 * 128 * (128 + 64 + 128) * 3
    assert one.bytes == 61 * 576 * 2 * 101
    indexed = load_model(str(CONFIGS / "DeepSeek-V3.2.json"))
    assert any("indexer" in words for words in work_unknown(indexed))
