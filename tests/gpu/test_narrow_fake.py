"""Weights in bf16 and fp16 on a driver that is none: bytes as planned, ids reported, what cannot be is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from executor.backends import cupy_gpu
from executor.facts import run_document
from executor.weights import Weights
from fleet.errors import DescriptionError, InconclusiveError
from planner.plan import make_orders, prediction_document
from scenarios.compare import compare
from scenarios.planning import make_plan
from scenarios.runner import run_and_compare, set_up
from scenarios.wanted import prepare, wanted_of
from tests.executor.requests import ORACLE, SPLIT, admitted, embedded, run_once
from tests.executor.test_run import rows
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver
from tests.gpu.fake_kernels import narrowed, widened

TYPES = ("bf16", "fp16")


def rounded(dtype: str) -> Weights:
    """The embedded weights as a narrow type holds them, in f32 again; norms as they are."""
    model = embedded().model
    kept = {}
    for spec in model.tensors:
        values = embedded().tensor(spec.name)
        is_norm = spec.name.startswith("rms_")
        kept[spec.name] = values if is_norm else widened(dtype, narrowed(dtype, values)).reshape(spec.shape)
    return Weights(model, kept)


@pytest.mark.parametrize("devices", [ORACLE, SPLIT])
@pytest.mark.parametrize("dtype", TYPES)
def test_token_by_token_the_ids_are_those_of_weights_that_were_rounded_before(
    monkeypatch: pytest.MonkeyPatch, dtype: str, devices: tuple[str, str]
) -> None:
    admission = admitted(embedded().model, steps=24, devices=devices)
    orders, driver = make_orders(admission), FakeDriver(cards=2)
    with on(driver, monkeypatch):
        facts = run_once(orders, embedded(), backend=cupy_gpu.Backend.computing(dtype))
    plain = run_once(orders, rounded(dtype))
    assert facts.tokens == plain.tokens
    assert facts.logits_top1_bits == plain.logits_top1_bits
    run = run_document(facts)
    assert rows(run, 1) == rows(prediction_document(admission), 1)
    assert all(leg["observed_bytes"] == leg["bytes"] for row in run["waybill"] for leg in row["legs"])
    assert run["settings"]["compute_dtype"] == run["driver"]["compute_dtype"] == dtype
    assert facts.resident == plain.resident
    assert driver.held == 0


@pytest.mark.parametrize("dtype", TYPES)
def test_prefill_in_chunks_has_the_program_and_the_rows_of_fp32(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    admission = admitted(embedded().model, steps=24, prefill_chunk=5)
    with on(FakeDriver(cards=2), monkeypatch):
        facts = run_once(make_orders(admission), embedded(), backend=cupy_gpu.Backend.computing(dtype))
    plain = run_once(make_orders(admission), embedded())
    assert (facts.program, facts.waybill, facts.passes) == (plain.program, plain.waybill, plain.passes)
    mine, other = (np.array(f.logits_top1_bits[:1], np.uint32).view(np.float32) for f in (facts, plain))
    assert np.allclose(mine, other, rtol=0.1, atol=0.1)
    assert mine != other, "the same bits: nothing was narrow"


def test_a_weight_that_fp16_cannot_hold_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {spec.name: embedded().tensor(spec.name) for spec in embedded().model.tensors}
    kept["w2"] = kept["w2"].copy()
    kept["w2"].reshape(-1)[-3:] = 1e6, -1e6, 65504.0
    weights, driver = Weights(embedded().model, kept), FakeDriver(cards=2)
    orders = make_orders(admitted(embedded().model, steps=24))
    with on(driver, monkeypatch):
        with pytest.raises(InconclusiveError, match=r"gpu:0: 2 weights are finite in fp32 and not in fp16"):
            run_once(orders, weights, backend=cupy_gpu.Backend.computing("fp16"))
        assert driver.held == 0
        run_once(orders, weights, backend=cupy_gpu.Backend.computing("bf16"))


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return make_plan(prepare(wanted_of("two-gpu", {"steps": 45})))


def test_ids_are_reported_beside_the_fp32_run_and_waived(monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]) -> None:
    tokens = plan["orders"]["workload"]["prompt_ids"]
    wrong = plan | {"orders": plan["orders"] | {"expect": [*tokens, 999]}}
    with on(FakeDriver(cards=2), monkeypatch):
        run = run_and_compare(set_up(wrong, backend="cupy", compute_dtype="bf16"))
    checks = {check["name"]: (check["result"], check["detail"]) for check in run["comparison"]["checks"]}
    assert checks["tokens_equal_reference"][0] == "waived"
    assert f"{len(tokens)} of {len(tokens) + 1} ids equal the reference" in checks["tokens_equal_reference"][1]
    assert checks["tokens_equal_strict"][0] == "waived"
    assert "reported, not promised" in checks["tokens_equal_strict"][1]
    assert run["comparison"]["verdict"] == "equal"
    assert any("compute-dtype bf16" in limit for limit in run["limits"])


def test_a_run_that_only_claims_to_be_narrow_contradicts_itself(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any]
) -> None:
    with on(FakeDriver(cards=2), monkeypatch):
        runs = [run_and_compare(set_up(plan, backend=name)) for name in ("cupy", "numba")]
        narrow = run_and_compare(set_up(plan, backend="cupy", compute_dtype="fp16"))
    claims = [run | {"settings": run["settings"] | {"compute_dtype": "bf16"}} for run in (*runs, narrow)]
    denies = narrow | {"settings": {k: v for k, v in narrow["settings"].items() if k != "compute_dtype"}}
    for run in (*claims, denies, narrow | {"driver": "none"}):
        checks = {check["name"]: check["result"] for check in compare(plan, run)["checks"]}
        assert checks["run_agrees_with_itself"] == "failed"


def test_attention_on_the_host_has_no_narrow_way(monkeypatch: pytest.MonkeyPatch) -> None:
    host = make_plan(prepare(wanted_of("two-gpu", {"steps": 45, "attention": "host"})))
    with on(FakeDriver(cards=2), monkeypatch), pytest.raises(DescriptionError, match="attention on the device"):
        set_up(host, backend="cupy", compute_dtype="bf16")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"compute_dtype": "fp8"}, r"'fp8' is unknown; use fp32, bf16, fp16"),
        ({"compute_dtype": "bf16", "backend": "numba"}, "backend numba computes in fp32"),
        ({"compute_dtype": "bf16", "fast": True}, "exclude each other"),
        ({"compute_dtype": "bf16", "path": "dispatch"}, "one by one are computed in fp32"),
    ],
)
def test_what_cannot_be_narrow_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, plan: dict[str, Any], words: dict[str, Any], told: str
) -> None:
    with on(FakeDriver(cards=2), monkeypatch), pytest.raises(DescriptionError, match=told):
        set_up(plan, **{"backend": "cupy", **words})
