"""llama2.c's own runs on real CUDA devices: the same ids alone and split, every row seen by the driver."""

from __future__ import annotations

from typing import Any

import pytest

from executor.cuda.kernels import Kernels
from executor.facts import run_document
from planner.plan import make_orders, prediction_document
from tests.acceptance.test_golden_runs import RUNS, decoding, golden, stories
from tests.executor.requests import BACK, GOLDEN, GOLDEN_ABSENT, ORACLE, SPLIT, admitted, run_once
from tests.executor.test_run import rows
from tests.gpu.card import backend, needs

pytestmark = [*needs(1), pytest.mark.shared, pytest.mark.skipif(not GOLDEN.is_dir(), reason=GOLDEN_ABSENT)]
TO_CPU, FROM_CPU = ("gpu:0", "cpu:0"), ("cpu:0", "gpu:0")
DECODED = decoding() if GOLDEN.is_dir() else []


def replay(
    number: int, devices: tuple[str, str], attention: str, access: str = "direct", path: Any = "dispatch"
) -> dict[str, Any]:
    """A golden run on the card; its ids, rows and witnesses are checked here."""
    run = golden()[number]
    request: dict[str, Any] = {"devices": devices, "steps": run["n_arg"], "attention": attention}
    admission = admitted(stories().model, tuple(run["prompt_tokens"]), peer_access=access, granule=2 << 20, **request)
    facts = run_once(make_orders(admission), stories(), backend=backend(devices), path=path)
    assert list(facts.tokens) == run["token_ids"]
    assert facts.stopped == ("bos" if run["stopped_on_bos"] else "steps")
    document = run_document(facts)
    if facts.stopped == "steps":
        assert rows(document, 1) == rows(prediction_document(admission), 1)
    for row in document["waybill"]:
        for leg in row["legs"]:
            if "gpu" in leg["src"] + leg["dst"]:
                assert leg["witness"] == "cupti", document["driver"]
                assert (leg["observed_bytes"], leg["observed_copies"]) == (leg["bytes"], leg["copies"]), row
    assert all(a["digest_src"] == a["digest_dst"] for a in document["arrivals"])
    return document


@pytest.mark.parametrize("number", range(RUNS))
def test_a_golden_run_on_one_card(number: int) -> None:
    replay(number, ORACLE, "device")


@pytest.mark.parametrize("whole", [True, False], ids=["one launch", "a launch a part"])
@pytest.mark.parametrize("number", range(RUNS))
def test_a_golden_run_by_captured_graphs(monkeypatch: pytest.MonkeyPatch, number: int, whole: bool) -> None:
    monkeypatch.setattr(Kernels, "whole", whole)
    replay(number, ORACLE, "device", path="fused")


@pytest.mark.parametrize("number", DECODED)
@pytest.mark.parametrize("devices", [SPLIT, BACK], ids=lambda d: f"{d[0]} {d[1]}")
def test_a_golden_run_split_over_two_cards(number: int, devices: tuple[str, str]) -> None:
    replay(number, devices, "device", path="fused")


@pytest.mark.parametrize("number", DECODED[::4])
@pytest.mark.parametrize("devices", [TO_CPU, FROM_CPU], ids=lambda d: f"{d[0]} {d[1]}")
def test_a_golden_run_split_over_a_card_and_a_processor(number: int, devices: tuple[str, str]) -> None:
    document = replay(number, devices, "device")
    assert document["tier"] == "on-device"


@pytest.mark.parametrize("number", DECODED[::4])
@pytest.mark.parametrize("devices", [ORACLE, SPLIT, TO_CPU], ids=lambda d: f"{d[0]} {d[1]}")
def test_a_golden_run_with_attention_on_the_host(number: int, devices: tuple[str, str]) -> None:
    replay(number, devices, "host")


@pytest.mark.parametrize("number", DECODED[::4])
def test_a_golden_run_staged_over_the_host(number: int) -> None:
    replay(number, SPLIT, "device", "staged")
