"""The simulation's times and bytes are the planner's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.checkpoints import load_model
from fleet.load import load_fleet
from fleet.placement import Placement
from planner.placement_time import placement_time
from planner.predict import predict
from planner.request import Request, resolve
from scenarios.simulation import columns as col
from scenarios.simulation.arrays import config_of
from scenarios.simulation.engine import simulate
from scenarios.simulation.plant import Plant, build
from scenarios.simulation.results import summary
from scenarios.simulation.spec import Outage, Pool, Spec
from scenarios.simulation.traffic import Arrivals, Lengths, Traffic, draw, without_hashes
from tests.scenarios.simulation.sim_bytes import bytes_are_the_planners

PS = 10**12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small dense config, whose figures are powers of two."""
    path = Path(tmp_path_factory.mktemp("model")) / "config.json"
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 16,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "vocab_size": 32000,
    }  # fmt: skip
    path.write_text(json.dumps(config))
    return str(path)


def plant_of(checkpoint: str, **given: Any) -> Plant:
    pools = {"prefill": Pool(devices=("gpu:0",)), "decode": Pool(devices=("gpu:1",))}
    spec = Spec(**({"fleet": "two-gpu-nvlink", "model": checkpoint} | pools | given))
    return build(spec, load_fleet(spec.fleet), load_model(spec.model))


def alone(prompt: int, out: int) -> Traffic:
    hash_at, hashes = without_hashes(1)
    return Traffic(
        arrival=np.zeros(1, np.int64), prompt=np.array([prompt]), out=np.array([out]), hash_at=hash_at, hashes=hashes,
        hash_tokens=0, source="one",
    )  # fmt: skip


@pytest.mark.parametrize("fleet", ["two-gpu-nvlink", "two-gpu-staged", "two-gpu-pcie"])
@pytest.mark.parametrize(("prompt", "out"), [(512, 2), (700, 100), (2048, 33), (5000, 7)])
def test_one_request_alone_takes_what_the_planner_says(checkpoint: str, fleet: str, prompt: int, out: int) -> None:
    """TTFT + decode passes, in whole picoseconds: legs are rounded up, steps down, so a few ps at most apart."""
    plant = plant_of(checkpoint, fleet=fleet)
    assert all(worker.costs.exact for worker in plant.workers)
    row = simulate(config_of(plant, alone(prompt, out))).requests[0]
    workload = resolve(
        Request(prompt_tokens=prompt, new_tokens=out, prefill_chunk=plant.spec.prefill.max_tokens), plant.model
    )
    placement = Placement(prefill="gpu:0", decode="gpu:1")
    prediction = predict(plant.fleet, plant.model, workload, placement)
    told = placement_time(plant.fleet, plant.model, workload, placement, prediction.rows)
    assert told.prefill.seconds is not None
    assert told.handoff.seconds is not None
    assert told.decode.seconds is not None
    legs = sum(len(r.legs or ()) for r in prediction.handoff_rows)
    assert int(row[col.TPEND]) == int(told.prefill.seconds * PS)
    assert 0 <= int(row[col.THE] - row[col.THS]) - told.handoff.seconds * PS < legs
    assert int(row[col.TDONE] - row[col.THE]) == int(told.decode.seconds * PS)


@pytest.mark.parametrize("extent", ["filled", "blocks"])
@pytest.mark.parametrize("fleet", ["two-gpu-nvlink", "two-gpu-staged"])
def test_bytes_of_all_handoffs_are_the_planners_waybills_summed(checkpoint: str, extent: str, fleet: str) -> None:
    """Those after which a request began again are handoffs too: their bytes have passed."""
    outages = (Outage(device="gpu:1", at=PS // 2, back=PS * 6 // 10),)
    plant = plant_of(checkpoint, extent=extent, fleet=fleet, outages=outages)
    traffic = draw(
        5, Arrivals(kind="poisson", rate=50, requests=60), Lengths(kind="lognormal", mu=5, sigma=1, most=3000),
        Lengths(kind="lognormal", mu=5, sigma=2, most=2000),
    )  # fmt: skip
    outcome = simulate(config_of(plant, traffic))
    moved = outcome.moves[:, 0].tolist()
    assert len(moved) > len(set(moved)), "some were handed over twice"
    bytes_are_the_planners(plant, traffic, outcome)


def test_series_add_up_to_what_the_summary_says(checkpoint: str) -> None:
    """Little's law over all bins, the memory that requests hold, and every byte of every edge."""
    plant = plant_of(checkpoint, fleet="two-gpu-staged", decode=Pool(devices=("gpu:1",), max_seqs=3))
    traffic = draw(
        5, Arrivals(kind="gamma", rate=60, requests=150, shape=0.3),
        Lengths(kind="lognormal", mu=5, sigma=1, most=3000), Lengths(kind="lognormal", mu=3, sigma=1, least=2, most=90),
    )  # fmt: skip
    outcome = simulate(config_of(plant, traffic))
    document, r = summary(plant, traffic, outcome), outcome.requests
    told, last = document["series"], int(outcome.counters[col.LAST_TIME])
    wide = np.diff(np.minimum(np.arange(len(told["in_system"]) + 1) * outcome.bin_ps, last))

    def integral(values: Any) -> float:
        return float(np.dot(values, wide))

    assert integral(told["in_system"]) == pytest.approx(float((r[:, col.TDONE] - traffic.arrival).sum()), rel=1e-6)
    waited = float((r[:, col.TADM] - traffic.arrival).sum())
    assert integral(outcome.levels[0, col.NEWCOMERS]) == pytest.approx(waited, rel=1e-9)
    kept = float((-(-traffic.prompt // 16) * (r[:, col.THE] - r[:, col.TADM])).sum())
    assert integral(outcome.levels[0, col.HELD]) == pytest.approx(kept, rel=1e-9), "from admission to the handoff's end"
    by_edge = {(e["src"], e["dst"]): e for e in document["edges"]}
    assert {(e["src"], e["dst"]): sum(e["bytes"]) for e in told["edges"]} == {k: e["bytes"] for k, e in by_edge.items()}
    for edge in told["edges"]:
        share = by_edge[edge["src"], edge["dst"]]["utilisation"]
        assert integral(edge["utilisation"]) / last == pytest.approx(share, rel=1e-3)
    for name in ("running", "waiting_for_slot", "kv_blocks"):
        assert told["decode"][name] == told["workers"][1][name]


def test_blocks_are_the_most_that_admission_allows(checkpoint: str) -> None:
    """One block more a sequence, and the planner refuses that device."""
    from planner.admit import admit
    from scenarios.simulation.plant import _ask

    plant = plant_of(checkpoint, decode=Pool(devices=("gpu:1",), max_seqs=512))
    worker = plant.workers[1]
    per_sequence = worker.blocks // 512
    assert per_sequence * plant.spec.block_tokens < plant.model.seq_len, "the model's length decides, not the memory"
    more = (per_sequence + 1) * plant.spec.block_tokens
    verdict = admit(_ask(plant.spec, plant.fleet, plant.model, col.DECODE, "gpu:1", more))
    assert verdict.verdict == "refused"
    assert worker.admission.verdict == "admitted"


def test_what_does_not_fit_is_refused_with_the_planners_reason(checkpoint: str) -> None:
    plant = plant_of(checkpoint, fleet="two-gpu-tight")
    assert plant.refused is not None
    assert any(reason.code in ("EXCEEDS_BUDGET", "EXCEEDS_CAPACITY") for reason in plant.refused.reasons)


def test_the_summary_of_a_seed_is_the_same_every_time(checkpoint: str) -> None:
    traffic = draw(
        1, Arrivals(kind="gamma", rate=80, requests=300, shape=0.4),
        Lengths(kind="lognormal", mu=5, sigma=1, most=3000),
        Lengths(kind="fixed", value=20),
    )  # fmt: skip
    plant = plant_of(checkpoint)
    config = config_of(plant, traffic)
    first, second = (summary(plant, traffic, simulate(config)) for _ in range(2))
    assert json.dumps(first) == json.dumps(second)
    gaps = first["latency"]["itl"]
    assert gaps["count"] == 300 * 19
    assert gaps["p50_s"] <= gaps["p90_s"] <= gaps["p99_s"]
