"""Plans of models whose layers keep other things than k and v: parts, ledger, handoff and explanation agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.model import DTYPE_BYTES, Model
from fleet.models import kv
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.caches import cache_buffers, cache_parts, part_staged_copies, part_transfer
from planner.request import Request, resolve
from tests.command_line import asker
from tests.planner.fleets import pair

SMALL = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())
NAMES = sorted(SMALL)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for name in NAMES:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(SMALL[name]["config"]))
        found[name] = load_model(str(path))
    return found


def asked(model: Model, **wanted: object):
    return admit(Ask(fleet=pair(**wanted.pop("fleet", {})), model=model, request=Request(**wanted), placement=PLACED))


PLACED = Placement(prefill="gpu:0", decode="gpu:1")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp32"])
def test_the_ledger_and_the_handoff_hold_what_the_arithmetic_of_layers_says(models, name, dtype):
    model = models[name]
    wanted = {"prompt_tokens": 100, "new_tokens": 30, "kv_dtype": dtype, "batch": 3}
    prediction = asked(model, **wanted).prediction
    held = 3 * kv.sequence_bytes(model.caches, 129, dtype)
    assert {f.lines["kv_cache"] for f in prediction.footprints} == {held}
    moved = 3 * kv.sequence_bytes(model.caches, 100, dtype)
    assert sum(row.bytes for row in prediction.handoff_rows) == moved
    assert sum(row.payload_bytes for row in prediction.handoff_rows) == moved
    assert sum(row.bytes for row in prediction.rows if row.tensor == "weights") == 2 * sum(
        t.nbytes for t in model.tensors
    )
    assert {row.copies for row in prediction.rows if row.tensor == "weights"} == {sum(t.repeat for t in model.tensors)}


@pytest.mark.parametrize("name", NAMES)
def test_blocks_round_every_part_up_but_states_and_allocated_moves_it_whole(models, name):
    model = models[name]
    blocks = asked(model, prompt_tokens=100, new_tokens=30, kv_extent="blocks:16").prediction
    wanted = kv.kv_bytes(model.caches, 100, "bf16", block=16) + kv.state_bytes(model.caches)
    assert sum(row.bytes for row in blocks.handoff_rows) == wanted
    whole = asked(model, prompt_tokens=100, new_tokens=30, kv_extent="allocated").prediction
    assert sum(row.bytes for row in whole.handoff_rows) == kv.sequence_bytes(model.caches, 129, "bf16")
    assert {row.copies for row in whole.handoff_rows} == {1}


@pytest.mark.parametrize("name", NAMES)
def test_a_staged_handoff_fits_its_bounce_buffer_and_a_pool_below_a_position_is_short(models, name):
    model = models[name]
    staged = asked(model, prompt_tokens=100, new_tokens=30, fleet={"peer_access": "staged", "pool": 1 << 20})
    bounce = next(f for f in staged.prediction.footprints if f.arena == "host:bounce")
    assert bounce.resident_bytes <= 1 << 20
    assert staged.verdict == "admitted"
    for row in staged.prediction.handoff_rows:
        assert len(row.legs) == 2
        assert all(leg.bytes == row.bytes and leg.copies * bounce.resident_bytes >= row.bytes for leg in row.legs)
    short = asked(model, prompt_tokens=100, new_tokens=30, fleet={"peer_access": "staged", "pool": 8})
    assert short.verdict == "refused"


def test_only_a_dense_decoder_with_seven_matrices_has_a_known_number_of_dispatches(models):
    for name, model in models.items():
        dispatches = asked(model, prompt_tokens=10, new_tokens=5).prediction.dispatches
        is_dense = name in {
            *("cohere", "exaone4-plain", "gemma", "granite", "llama", "ministral3", "olmo2", "qwen3"),
            *("qwen3_vl_text", "seed_oss", "smollm3"),
        }
        assert (dispatches is not None) is is_dense, name
    assert asked(models["llama"], prompt_tokens=10, new_tokens=5).prediction.dispatches == (561, 4 * 57)


def test_dense_models_keep_the_wire_layout_and_others_have_parts_by_kind(models):
    def names(name: str) -> list[str]:
        return [part.name for part in cache_parts(models[name], "bf16")]

    assert names("llama") == names("mixtral") == ["k", "v"]
    assert names("gemma2") == ["k.sliding", "v.sliding", "k.full", "v.full"]
    assert names("deepseek_v3") == ["latent"]
    assert names("glm_moe_dsa-shared") == ["latent", "index"]
    assert names("qwen3_next") == ["state", "conv", "k.full", "v.full"]
    assert names("kimi_linear") == ["state", "conv", "latent"]
    workload = resolve(Request(prompt_tokens=100, new_tokens=30), models["gemma2"])
    shapes = {b.name: b.shape for b in cache_buffers(models["gemma2"], workload, "decode", "plain")}
    assert shapes["cache/decode/k.sliding"] == (4, 64, 48)
    assert shapes["cache/decode/v.full"] == (4, 129, 48)


def test_what_cannot_be_asked_of_other_caches_or_quantised_weights_is_told(models, tmp_path):
    with pytest.raises(DescriptionError, match=r"attention .*other caches; use device"):
        asked(models["gemma2"], prompt_tokens=10, new_tokens=2, attention="host")
    path = tmp_path / "fp8.json"
    quantised = SMALL["deepseek_v3"]["config"] | {
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}
    }
    path.write_text(json.dumps(quantised))
    with pytest.raises(DescriptionError, match=r"weights_dtype .*leave weights_dtype out"):
        asked(load_model(str(path)), prompt_tokens=10, new_tokens=2, weights_dtype="fp16")


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 300), st.integers(1, 40), st.integers(1, 70), st.sampled_from((1, 2)))
def test_transfers_hold_their_laws(models, name, prompt, block, chunk, batch):
    model = models[name]
    request = Request(prompt_tokens=prompt, new_tokens=3, batch=batch)
    filled = resolve(request, model)
    blocks = resolve(Request(prompt_tokens=prompt, new_tokens=3, batch=batch, kv_extent=f"blocks:{block}"), model)
    for part in cache_parts(model, "bf16"):
        payload, moved, copies = part_transfer(part, filled)
        assert payload == moved == copies * part.held(prompt) * part.width * DTYPE_BYTES[part.dtype]
        rounded = part_transfer(part, blocks)
        assert rounded[0] == payload
        assert payload <= rounded[1] < payload + part.layers * batch * block * part.position_bytes
        pieces = part_staged_copies(part, filled, chunk)
        assert copies <= pieces <= copies * prompt


@pytest.mark.parametrize("name", ["gemma2", "deepseek_v32", "jamba", "gpt_oss", "mimo_v2_flash", "qwen3_moe"])
def test_a_plan_of_other_caches_is_read_again_and_every_figure_follows(capfd, tmp_path, name):
    ask = asker(capfd)
    path, plan = tmp_path / "m.json", tmp_path / "plan.json"
    path.write_text(json.dumps(SMALL[name]["config"]))
    words = ["--fleet", "two-gpu-nvlink", "--model", path, "--prompt-tokens", "100", "--new-tokens", "9"]
    answer = ask("admit", *words, "--plan-out", plan, "-o", "json")
    assert answer.code == 0
    assert (answer.document["dispatches"] is None) or name == "qwen3_moe"
    told = ask("explain", plan)
    assert told.code == 0
    assert "DOES NOT FOLLOW" not in told.out
    refused = ask("run", plan)
    assert refused.code == 2
    assert ask("compare", plan, plan).code == 0
