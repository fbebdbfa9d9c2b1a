"""Workers of several devices, routed experts and latents: times and bytes are the planner's, rank by rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError, InconclusiveError
from fleet.load import load_fleet
from planner.placement_time import placement_time
from planner.predict import predict
from planner.request import resolve
from scenarios.shipped import LIBRARY
from scenarios.simulation import columns as col
from scenarios.simulation.arrays import config_of
from scenarios.simulation.engine import simulate
from scenarios.simulation.moved import edges, handoffs
from scenarios.simulation.plant import Plant, build, handoff_request, placed
from scenarios.simulation.read_spec import parse_spec
from scenarios.simulation.results import summary
from scenarios.simulation.spec import Outage, Pool, Spec
from scenarios.simulation.traffic import Traffic, without_hashes

PS = 10**12
CONFIGS = Path(__file__).resolve().parents[4] / "shared" / "data" / "model_configs"
SIMULATIONS = Path(LIBRARY) / "simulations"
DENSE = str(SIMULATIONS / "dense-8b.json")


def pool(first: int, end: int, **given: int) -> Pool:
    return Pool(devices=tuple(f"gpu:{i}" for i in range(first, end)), **given)


def plant_of(model: str, prefill: Pool, decode: Pool, **given: Any) -> Plant:
    spec = Spec(fleet="hgx-h100", model=model, prefill=prefill, decode=decode, **given)
    plant = build(spec, load_fleet(spec.fleet), load_model(model))
    assert plant.refused is None
    return plant


def alone(prompt: int, out: int, n: int = 1) -> Traffic:
    hash_at, hashes = without_hashes(n)
    return Traffic(
        arrival=np.zeros(n, np.int64), prompt=np.full(n, prompt), out=np.full(n, out), hash_at=hash_at, hashes=hashes,
        hash_tokens=0, source="alike",
    )  # fmt: skip


def check_alone(plant: Plant, prompt: int, out: int) -> None:
    """Prefill, handoff and decode of one request are the planner's, and so is each byte between two ranks."""
    spec, traffic = plant.spec, alone(prompt, out)
    outcome = simulate(config_of(plant, traffic))
    row = outcome.requests[0]
    workload = resolve(handoff_request(spec, prompt, out), plant.model)
    placement = placed(spec, spec.prefill.workers[0], spec.decode.workers[0])
    prediction = predict(plant.fleet, plant.model, workload, placement)
    told = placement_time(plant.fleet, plant.model, workload, placement, prediction.rows)
    assert told.prefill.seconds is not None
    assert told.handoff.seconds is not None
    assert told.decode.seconds is not None
    # Where coefficients are rounded to 2^-17 ps, chunks of thousands of tokens are picoseconds off, and no more.
    assert int(row[col.TPEND]) == pytest.approx(
        told.prefill.seconds * PS, abs=1 if plant.workers[0].costs.exact else 16
    )
    assert int(row[col.TDONE] - row[col.THE]) == pytest.approx(told.decode.seconds * PS, abs=2)
    assert 0 <= int(row[col.THE] - row[col.THS]) - told.handoff.seconds * PS < 3
    last = int(outcome.counters[col.LAST_TIME])
    found = {(e["src"], e["dst"]): (e["bytes"], e["copies"]) for e in edges(plant, traffic, outcome, last)}
    expected: dict[tuple[str, str], tuple[int, int]] = {}
    for one in prediction.handoff_rows:
        before = expected.get((one.src, one.dst), (0, 0))
        expected[one.src, one.dst] = (before[0] + one.bytes, before[1] + one.copies)
    assert found == expected
    assert sum(e["bytes"] for e in handoffs(plant, traffic, outcome)) == sum(r.bytes for r in prediction.handoff_rows)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [({"tp": 2}, {"tp": 2}), ({"tp": 2}, {"tp": 4}), ({"tp": 4}, {}), ({"tp": 2, "pp": 2}, {"pp": 2}),
     ({"pp": 4}, {"pp": 4})],
)  # fmt: skip
def test_one_request_on_workers_of_several_devices_takes_what_the_planner_says(
    prefill: dict[str, int], decode: dict[str, int]
) -> None:
    check_alone(plant_of(DENSE, pool(0, 4, **prefill), pool(4, 8, **decode)), 3000, 30)


@pytest.mark.shared
@pytest.mark.parametrize(
    "name", ["Mixtral-8x7B-v0.1", "DeepSeek-V2-Lite", "Qwen3-30B-A3B", "Qwen2.5-14B-cogito", "gemma-2b"]
)
def test_one_request_of_models_with_experts_latents_or_unlike_ranks_too(name: str) -> None:
    if not (CONFIGS / f"{name}.json").is_file():
        pytest.skip("the shared reference data is not beside the project")  # of others: read where it lies, not copied
    small = {"tp": 4, "max_seqs": 8}
    check_alone(plant_of(str(CONFIGS / f"{name}.json"), pool(0, 4, **small), pool(4, 8, **small)), 700, 20)


@pytest.mark.shared
def test_a_model_whose_attention_nobody_prices_cannot_be_simulated_and_says_why() -> None:
    if not (CONFIGS / "DeepSeek-V3.2.json").is_file():
        pytest.skip("the shared reference data is not beside the project")  # of others: read where it lies, not copied
    with pytest.raises(InconclusiveError, match=r"not simulated|unverified"):
        plant_of(str(CONFIGS / "DeepSeek-V3.2.json"), pool(0, 4, tp=4), pool(4, 8, tp=4))


def test_tensor_parallel_workers_hold_more_blocks_and_are_named_by_their_devices() -> None:
    one, two = (plant_of(DENSE, pool(0, 4, tp=tp), pool(4, 8, tp=tp)) for tp in (1, 2))
    assert [worker.name for worker in two.workers] == ["gpu:0,gpu:1", "gpu:2,gpu:3", "gpu:4,gpu:5", "gpu:6,gpu:7"]
    assert two.workers[0].blocks > 2 * one.workers[0].blocks, "half the weights and half the cache a device"
    traffic = alone(600, 9, 40)
    document = summary(two, traffic, simulate(config_of(two, traffic)))
    assert document["requests"]["finished"] == 40
    assert document["inputs"]["devices"]["decode"] == {"count": 4, "tp": 2, "pp": 1}
    rates = document["throughput"]
    assert rates["new_tokens_per_s"] == pytest.approx(4 * rates["new_tokens_per_s_per_decode_device"])


@pytest.mark.parametrize("fleet", ["h100-two-roots", "pcie-rtx-4090", "hgx-a100"])
@pytest.mark.parametrize("tp", [1, 2])
def test_ways_that_were_taken_from_other_workers_are_those_that_the_planner_says(fleet: str, tp: int) -> None:
    """Pairs whose ends have equal links are asked once; here all are asked, and no leg, byte or link is another."""
    from scenarios.simulation.plant import _asker
    from scenarios.simulation.ways import _legs, all_ways

    few = {"tp": tp, "max_seqs": 1, "max_tokens": 64}
    spec = Spec(fleet=fleet, prefill=pool(0, 4, **few), decode=pool(4, 8, **few))
    ask = _asker(spec, load_fleet(fleet), load_model(DENSE))
    ways = all_ways(load_fleet(fleet), spec.prefill.workers, spec.decode.workers, ask, "declared")
    assert len(ways.pair) == (4 // tp) ** 2
    for (p, d), number in ways.pair.items():
        assert ways.ways[number] == _legs(p, d, ask, "declared")


def test_a_worker_is_down_while_any_of_its_devices_is() -> None:
    outages = (Outage(device="gpu:0", at=10, back=50), Outage(device="gpu:1", at=20, back=30))
    plant = plant_of(DENSE, pool(0, 4, tp=2), pool(4, 8, tp=2), outages=outages)
    config = config_of(plant, alone(5, 2))
    assert [*zip(config.outage_time, config.outage_up, config.outage_worker, strict=True)] == [(10, 0, 0), (50, 1, 0)]


def test_devices_that_make_no_whole_workers_and_degrees_that_do_not_divide_are_told() -> None:
    text = (SIMULATIONS / "chat.yaml").read_text().replace("gpu:0-3,", "gpu:0-2, tp: 2,")
    with pytest.raises(DescriptionError, match="3 devices make no whole workers of tp 2 x pp 1"):
        parse_spec(text, "s.yaml", str(SIMULATIONS))
    with pytest.raises(DescriptionError, match="do not divide"):
        plant_of(DENSE, pool(0, 3, tp=3), pool(4, 8))
