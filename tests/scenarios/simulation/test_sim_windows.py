"""Models whose layers keep windows or states: their memory, bytes and times are the planner's, request by request."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.catalog import catalog_text
from fleet.checkpoints import load_model
from fleet.errors import DescriptionError, InconclusiveError
from fleet.load import load_fleet
from planner.footprint import buffer_bytes, device_buffers, line_of
from planner.predict import predict
from planner.request import Request, resolve
from planner.times import row_time
from scenarios.shipped import LIBRARY
from scenarios.simulation import columns as col
from scenarios.simulation.arrays import config_of
from scenarios.simulation.curves import Curve, Knots, through, whole
from scenarios.simulation.engine import simulate
from scenarios.simulation.plant import Plant, build, handoff_request, placed
from scenarios.simulation.read_spec import parse_spec
from scenarios.simulation.run import run_plant
from scenarios.simulation.spec import Pool, Spec
from scenarios.simulation.text import simulation_text
from scenarios.simulation.traffic import Arrivals, Lengths, Traffic, draw
from tests.scenarios.simulation.sim_bytes import bytes_are_the_planners
from tests.scenarios.simulation.test_sim_workers import CONFIGS, alone, check_alone, pool

SIZES = {"hidden_size": 1024, "intermediate_size": 2048, "max_position_embeddings": 4096, "num_attention_heads": 8,
         "num_hidden_layers": 6, "num_key_value_heads": 4, "head_dim": 128, "rms_norm_eps": 1e-5, "vocab_size": 32000,
         "torch_dtype": "bfloat16", "tie_word_embeddings": False}  # fmt: skip
WINDOWED = SIZES | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "sliding_window": 200,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
}  # fmt: skip
HYBRID = SIZES | {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_experts": 8, "num_experts_per_tok": 2,
    "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256, "decoder_sparse_step": 1,
    "linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4, "full_attention_interval": 3, "mlp_only_layers": [],
}  # fmt: skip


@pytest.fixture(scope="module", params=[WINDOWED, HYBRID], ids=["windows", "states"])
def config_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = Path(tmp_path_factory.mktemp("model")) / "config.json"
    path.write_text(json.dumps(request.param))
    return str(path)


def plant_of(model: str, **given: Any) -> Plant:
    pools = {"prefill": Pool(devices=("gpu:0",), max_seqs=16), "decode": Pool(devices=("gpu:1",), max_seqs=16)}
    spec = Spec(**({"fleet": "two-gpu-staged", "model": model} | pools | given))
    plant = build(spec, load_fleet(spec.fleet), load_model(model))
    assert plant.refused is None
    return plant


def requests(n: int = 60) -> Traffic:
    """Prompts on both sides of every window."""
    return draw(
        5, Arrivals(kind="poisson", rate=200, requests=n), Lengths(kind="lognormal", mu=5.5, sigma=1, most=3000),
        Lengths(kind="lognormal", mu=4, sigma=1.5, most=900),
    )  # fmt: skip


@pytest.mark.parametrize("extent", ["filled", "blocks"])
@pytest.mark.parametrize("fleet", ["two-gpu-nvlink", "two-gpu-staged"])
def test_bytes_and_copies_of_all_handoffs_are_the_waybills_summed(config_file: str, extent: str, fleet: str) -> None:
    plant = plant_of(config_file, extent=extent, fleet=fleet)
    assert plant.is_bent
    check_bytes(plant, requests())


def check_bytes(plant: Plant, traffic: Traffic) -> None:
    bytes_are_the_planners(plant, traffic, simulate(config_of(plant, traffic)))


@pytest.mark.parametrize("block", [7, 1500, 5000])
def test_blocks_of_any_size_are_handed_over(config_file: str, block: int) -> None:
    """Three blocks, or one, may be more than the model's positions: it was told so of words that nobody wrote."""
    check_bytes(plant_of(config_file, extent="blocks", block_tokens=block), requests(20))


@pytest.mark.parametrize(("prompt", "out"), [(150, 90), (2500, 200)])
def test_one_request_alone_takes_what_the_planner_says(config_file: str, prompt: int, out: int) -> None:
    check_alone(plant_of(config_file, fleet="two-gpu-nvlink"), prompt, out)


@pytest.mark.parametrize("pool_size", ["100 KiB", "64 MiB"])
@pytest.mark.parametrize("model", ["windows", "dense"])
def test_copies_that_a_pinned_pool_cuts_in_chunks_are_the_planners(tmp_path: Path, model: str, pool_size: str) -> None:
    """A position takes 1 KiB of a part: the smaller pool holds 100, of windows of 200 and prompts of thousands."""
    path = tmp_path / "config.json"
    dense = SIZES | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    path.write_text(json.dumps(WINDOWED if model == "windows" else dense))
    text = catalog_text("two-gpu-staged").replace("  - id: host\n", f"  - id: host\n    pinned_pool: {pool_size}\n", 1)
    pools = {"prefill": Pool(devices=("gpu:0",), max_seqs=16), "decode": Pool(devices=("gpu:1",), max_seqs=16)}
    spec = Spec(fleet="pool", model=str(path), **pools)
    plant = build(spec, load_fleet("pool", text=text), load_model(str(path)))
    time = plant.ways.ways[0][0].time
    assert bool(time.steps) == (pool_size == "100 KiB")
    check_bytes(plant, requests())
    for prompt in (99, 100, 101, 199, 201, 2999):
        outcome = simulate(config_of(plant, alone(prompt, 2)))
        workload = resolve(handoff_request(spec, prompt), plant.model)
        rows = predict(plant.fleet, plant.model, workload, placed(spec, "gpu:0", "gpu:1")).handoff_rows
        seconds = sum((row_time(row).seconds or Fraction(0) for row in rows), Fraction(0))
        took = int(outcome.requests[0, col.THE] - outcome.requests[0, col.THS])
        assert 0 <= took - seconds * 10**12 < 2 * len(rows)


def test_a_cache_takes_what_the_planners_buffers_of_so_many_positions_take(config_file: str) -> None:
    plant = plant_of(config_file)
    for positions in (1, 16, 17, 192, 193, 199, 200, 201, 208, 209, 1000, 4095, 4096):
        asked = Request(prompt_tokens=1, new_tokens=1, positions=positions, kv_extent="blocks:16")
        buffers = device_buffers(plant.model, resolve(asked, plant.model), ["decode"])
        expected = sum(buffer_bytes(buffer) for buffer in buffers if line_of(buffer) == "kv_cache")
        assert plant.workers[1].hold.at(-(-positions // 16) * 16) == expected


def test_memory_is_counted_in_bytes_and_comes_back(config_file: str) -> None:
    """Levels, peaks and preemptions where the decode worker has room for few requests."""
    plant, traffic = plant_of(config_file), requests(40)
    config = config_of(plant, traffic)
    tight = np.array([config.blocks[0], plant.workers[1].hold.at(4096)])
    outcome = simulate(config._replace(blocks=tight))
    assert (outcome.requests[:, col.ST] == col.FINISHED).all()
    assert outcome.workers[:, col.FREE].tolist() == tight.tolist()
    assert outcome.requests[:, col.PREEMPTED].any()
    assert 0 < outcome.workers[1, col.PEAK] <= tight[1]


def test_the_summary_says_bytes_where_others_say_blocks(config_file: str) -> None:
    plant, traffic = plant_of(config_file), requests(20)
    document = run_plant(plant, traffic).document
    assert document is not None
    worker = document["workers"][1]
    assert worker["kv_bytes"] == plant.workers[1].blocks
    assert 0 < worker["kv_bytes_peak"] <= worker["kv_bytes"]
    assert "kv_blocks" not in worker
    assert max(document["series"]["decode"]["kv_bytes"]) <= worker["kv_bytes_peak"]
    assert "KV bytes" in simulation_text(document)


def test_prefix_reuse_and_layer_by_layer_are_refused_in_words(config_file: str) -> None:
    plant = plant_of(config_file, prefix_reuse=True)
    config_of(plant, requests(3))
    known = alone(600, 4)
    shared = Traffic(
        arrival=known.arrival, prompt=known.prompt, out=known.out, hash_at=np.array([0, 1]), hashes=np.array([0]),
        hash_tokens=512, source="one",
    )  # fmt: skip
    with pytest.raises(InconclusiveError, match="prefix reuse is not simulated"):
        config_of(plant, shared)
    with pytest.raises(InconclusiveError, match=r"by: layer .* not simulated; use by: whole"):
        plant_of(config_file, by="layer", fleet="two-gpu-nvlink")


def test_an_engine_that_keeps_windows_whole_holds_and_moves_them_whole(tmp_path: Path) -> None:
    """And one of which that was not read cannot be simulated: the planner's verdict on it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(WINDOWED))
    whole, exact = (plant_of(str(path), engine=engine, extent="blocks") for engine in ("vllm-nixl", "exact"))
    assert (whole.is_bent, exact.is_bent) == (False, True)
    assert whole.workers[1].hold.each == 3 * exact.workers[1].hold.each, "all layers, where a third has no window"
    check_bytes(whole, requests(20))
    spec = Spec(fleet="two-gpu-staged", model=str(path), engine="sglang", prefill=whole.spec.prefill,
                decode=whole.spec.decode)  # fmt: skip
    told = build(spec, whole.fleet, whole.model).refused
    assert told is not None
    assert told.verdict == "unverified"


def test_an_engine_sets_blocks_and_extent_of_a_file() -> None:
    stated = (Path(LIBRARY) / "simulations" / "chat.yaml").read_text()
    text = stated.replace(", extent: blocks", "")
    spec = parse_spec(f"{text}engine: trtllm\n", "s.yaml", "")
    assert (spec.engine, spec.extent, spec.block_tokens) == ("trtllm", "blocks", 32)
    assert parse_spec(f"{text}engine: exact\n", "s.yaml", "").extent == "filled"
    with pytest.raises(DescriptionError, match="extent and engine exclude each other"):
        parse_spec(f"{stated}engine: vllm-nixl\n", "s.yaml", "")


def test_stages_that_fill_unlike_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(WINDOWED | {"layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 3}))
    halves = {"prefill": pool(0, 2, pp=2), "decode": pool(2, 4, pp=2), "fleet": "hgx-h100"}
    with pytest.raises(InconclusiveError, match="unlike shares"):
        plant_of(str(path), **halves)
    path.write_text(json.dumps(WINDOWED))
    check_alone(plant_of(str(path), **halves), 900, 30)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "tp"), [("gemma-3-27b", 2), ("gpt-oss-20b", 1), ("Jamba-v0.1", 4), ("Qwen3-Next-80B-A3B", 4),
                     ("Nemotron-H-56B-Base-8K", 4), ("Olmo-3.1-32B-Instruct", 2)]
)  # fmt: skip
def test_one_request_of_public_models_takes_what_the_planner_says(name: str, tp: int) -> None:
    if not (CONFIGS / f"{name}.json").is_file():
        pytest.skip("the shared reference data is not beside the project")  # of others: read where it lies, not copied
    pools = {"prefill": pool(0, tp, tp=tp, max_seqs=8), "decode": pool(4, 4 + tp, tp=tp, max_seqs=8)}
    check_alone(plant_of(str(CONFIGS / f"{name}.json"), fleet="hgx-h100", **pools), 5000, 40)


def test_a_curve_is_what_amounts_say_at_its_knots_or_there_is_none() -> None:
    knots = Knots((4, 9), 30)
    bent = Curve(fixed=Fraction(7), each=Fraction(2), bends=((4, Fraction(3)), (9, Fraction(5))))
    amounts = {units: bent.at(units) for units in knots.asked}
    assert through(amounts, knots) == bent
    assert whole(through(amounts, knots)) == Curve(fixed=7, each=2, bends=((4, 3), (9, 5)))
    assert through(amounts, Knots((4,), 30)) is None
    assert whole(through({units: amount / 3 for units, amount in amounts.items()}, knots)) is None
    units = np.array([1, 4, 5, 9, 10, 30])
    assert bent.total(units) == sum(bent.at(n) for n in units.tolist())
