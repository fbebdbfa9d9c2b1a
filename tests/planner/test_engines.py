"""What engines move: the worked cases, whole units, prefix hits, host buffers, and what was not read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.caches import asked_positions, held_parts, part_staged_copies, part_transfer
from planner.engines import ENGINES, engine_extent, engine_unknown
from planner.engines.table import block_fault
from planner.engines.transfer import in_flight, transfer_document
from planner.predict import predict
from planner.request import Request, resolve
from tests.planner.fleets import pair
from tests.planner.test_workers import crowd, placed

SMALL = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())
PAIR = Placement(prefill="gpu:0", decode="gpu:1")


def config(tmp_path, **fields):
    """A dense decoder of given sizes."""
    base = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 4096, "intermediate_size": 12288,
        "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(base | fields))
    return load_model(str(path))


def small(tmp_path, name):
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(SMALL[name]["config"]))
    return load_model(str(path))


def asked(model, engine, tokens=1000, where=PAIR, fleet=None, block=None, **more):
    request = Request(prompt_tokens=tokens, new_tokens=2, engine=engine, kv_extent=engine_extent(engine, block), **more)
    fleet = fleet or crowd(32)
    workload = resolve(request, model)
    rows = predict(fleet, model, workload, where).handoff_rows
    return rows, transfer_document(model, workload, where, rows, None), workload


def test_a_thousand_tokens_of_a_known_model_by_vllm_are_the_worked_case(tmp_path):
    model = config(tmp_path)  # the sizes of Qwen3-8B
    _, moved, _ = asked(model, "vllm-nixl")
    assert moved["units_of_prompt"] == 63
    assert moved["moved_bytes"] == 148_635_648 == 63 * 2_359_296
    assert moved["payload_bytes"] == 147_456_000
    assert moved["descriptors"] == 4_536


def test_one_block_of_the_reported_transfer_has_72_descriptors(tmp_path):
    """vllm-project/vllm#41230: 2.25 MiB and 72 descriptors are one block of 36 layers; four ranks of it 9,437,184 B."""
    _, moved, _ = asked(config(tmp_path), "vllm-nixl", tokens=16)
    assert (moved["moved_bytes"], moved["descriptors"]) == (2_359_296, 72)
    assert 4 * moved["moved_bytes"] == 9_437_184
    assert moved["moved_bytes"] == 2.25 * 2**20


@pytest.mark.parametrize(
    ("prefill", "decode", "times"),
    [(1, 1, 1), (2, 4, 1), (4, 2, 1), (4, 4, 1), (8, 8, 1), (1, 16, 2), (16, 1, 1), (8, 16, 2), (4, 16, 2)],
)
def test_ranks_move_the_cache_once_and_copies_of_heads_again(tmp_path, prefill, decode, times):
    """moved = tp_D / nk * KV where ranks exceed heads, else KV."""
    _, moved, _ = asked(config(tmp_path), "vllm-nixl", where=placed(prefill, decode))
    assert moved["moved_bytes"] == times * 148_635_648


@pytest.mark.parametrize(("prefill", "decode"), [(1, 1), (1, 4), (4, 1), (4, 4), (2, 8), (8, 2)])
def test_a_latent_goes_whole_to_every_decode_rank_and_once_to_each(tmp_path, prefill, decode):
    model = small(tmp_path, next(name for name in SMALL if name.startswith("deepseek_v3")))
    _, single, _ = asked(model, "vllm-nixl", tokens=40)
    rows, moved, _ = asked(model, "vllm-nixl", tokens=40, where=placed(prefill, decode))
    assert moved["moved_bytes"] == decode * single["moved_bytes"]
    assert len({row.dst for row in rows}) == len(rows) == decode
    assert single["descriptors"] == 3 * model.n_layers  # one region a layer, three blocks


def test_a_prefix_hit_leaves_whole_blocks_out_and_a_full_one_moves_nothing(tmp_path):
    model = config(tmp_path)
    for hit, blocks in ((0, 63), (15, 63), (16, 62), (500, 63 - 31), (999, 1), (1000, 0)):
        _, moved, _ = asked(model, "vllm-nixl", prefix_hit=hit)
        assert moved["moved_bytes"] == blocks * 2_359_296
        assert moved["descriptors"] == blocks * 72
        assert moved["payload_bytes"] == (1000 - hit) * 147_456


def test_layers_with_a_window_are_moved_and_held_in_full_by_the_version_that_was_read(tmp_path):
    model = small(tmp_path, next(name for name in SMALL if name.startswith("gpt_oss")))
    window = min(layer.window for layer in model.caches if layer.window)
    tokens = 4 * window
    model_tokens = min(tokens, model.seq_len - 2)
    _, exact, _ = asked(model, "exact", tokens=model_tokens)
    _, whole, workload = asked(model, "vllm-nixl", tokens=model_tokens)
    assert whole["payload_bytes"] > exact["payload_bytes"]
    assert all(part.window is None for part in held_parts(model, workload))


def test_sglang_rounds_the_last_chunk_up_to_pages_and_says_no_descriptors(tmp_path):
    model = config(tmp_path)
    _, token, _ = asked(model, "sglang")
    assert token["moved_bytes"] == 147_456_000
    assert token["descriptors"] is None
    _, paged, _ = asked(model, "sglang", block=64)
    assert paged["moved_bytes"] == 16 * 64 * 147_456
    assert paged["direction"] == "push"


def test_blocks_of_trtllm_are_32_tokens(tmp_path):
    _, moved, _ = asked(config(tmp_path), "trtllm")
    assert moved["moved_bytes"] == 32 * 32 * 147_456


def test_mooncake_moves_what_it_is_given(tmp_path):
    _, moved, _ = asked(config(tmp_path), "mooncake")
    assert moved["moved_bytes"] == 147_456_000
    _, paged, _ = asked(config(tmp_path), "mooncake", block=16)
    assert paged["moved_bytes"] == 148_635_648


def test_a_host_buffer_adds_a_copy_down_and_one_up_of_the_same_blocks(tmp_path):
    model = config(tmp_path)
    rows, moved, _ = asked(model, "vllm-nixl", host_buffer=True)
    for row in rows:
        assert [(leg.kind, leg.bytes, leg.copies) for leg in row.legs] == [
            ("d2h", row.bytes, row.copies), ("h2d", row.bytes, row.copies),
        ]  # fmt: skip
    assert moved["moved_bytes"] == 148_635_648


def test_what_was_not_read_of_an_engine_leaves_the_plan_unverified(tmp_path):
    model = small(tmp_path, next(name for name in SMALL if name.startswith("qwen3_next")))
    assert engine_unknown("vllm-nixl", model)
    request = Request(prompt_tokens=9, new_tokens=2, engine="vllm-nixl", kv_extent="blocks:16")
    answer = admit(Ask(fleet=pair(), model=model, request=request, placement=PAIR))
    assert answer.verdict == "unverified"
    assert [reason.code for reason in answer.reasons] == ["ENGINE_UNKNOWN"]
    assert not engine_unknown("exact", model)
    assert not engine_unknown("sglang", model)


@pytest.mark.parametrize(
    ("engine", "more", "told"),
    [
        ("sglang", {"prefix_hit": 3}, "was not read"),
        ("vllm-nixl", {"prefix_hit": 1001}, "use 0 to 1000"),
        ("vllm-nixl", {"attention": "host"}, "use device"),
    ],
)
def test_what_an_engine_cannot_be_asked_is_a_fault(tmp_path, engine, more, told):
    with pytest.raises(DescriptionError, match=told):
        asked(config(tmp_path), engine, **more)


def test_degrees_that_do_not_divide_one_another_are_no_pairing_of_vllm(tmp_path):
    model = config(tmp_path, num_attention_heads=24, num_key_value_heads=24)
    request = Request(prompt_tokens=9, new_tokens=2, engine="vllm-nixl", kv_extent="blocks:16")
    with pytest.raises(DescriptionError, match="divide one another, not 2 and 3"):
        admit(Ask(fleet=crowd(8), model=model, request=request, placement=placed(2, 3)))
    _, moved, _ = asked(model, "exact", where=placed(2, 3))
    assert moved["moved_bytes"] == moved["payload_bytes"] == 3 * 147_456_000


def test_block_sizes_must_divide():
    assert block_fault(16, 64) is None
    assert "neither divides" in (block_fault(16, 24) or "")


@settings(max_examples=60, deadline=None)
@given(
    engine=st.sampled_from(sorted(ENGINES)), tokens=st.integers(1, 3000), block=st.sampled_from([None, 1, 16, 32, 100]),
    hit=st.integers(0, 3000), batch=st.integers(1, 3),
)  # fmt: skip
def test_moved_is_no_less_than_payload_and_less_than_a_unit_more_on_each_end(engine, tokens, block, hit, batch):
    model = load_dense()
    hit = min(hit, tokens) if ENGINES[engine].skips_prefix else 0
    request = Request(
        prompt_tokens=tokens, new_tokens=2, engine=engine, kv_extent=engine_extent(engine, block), prefix_hit=hit,
        batch=batch,
    )  # fmt: skip
    workload = resolve(request, model)
    unit = workload.block_tokens or 1
    for part in held_parts(model, workload):
        payload, moved, copies = part_transfer(part, workload)
        one = part.layers * part.position_bytes * batch
        assert payload == (tokens - hit) * one
        assert payload <= moved < payload + 2 * unit * one
        assert moved % (unit * one) == 0 or workload.block_tokens is None
        assert (copies == 0) == (asked_positions(part, workload) == 0)
        assert part_staged_copies(part, workload, unit) >= copies or workload.block_tokens is None
    both = in_flight(model, workload, PAIR)
    assert {held["device"] for held in both} == {"gpu:0", "gpu:1"}
    assert len({held["bytes"] for held in both}) == 1
    prediction = predict(pair(), model, workload, PAIR)
    for held, footprint in zip(both, prediction.footprints, strict=True):
        assert held["bytes"] <= footprint.lines["kv_cache"]


_DENSE = []


def load_dense():
    """A dense model with room for long prompts, read once."""
    if not _DENSE:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            sizes = {"num_hidden_layers": 3, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2}
            _DENSE.append(config(Path(folder), **sizes, head_dim=64, intermediate_size=128, vocab_size=100))
    return _DENSE[0]


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_every_engine_says_what_was_read_and_where_its_unit_comes_from(name):
    engine = ENGINES[name]
    assert engine.read
    assert engine.unit_status
    assert engine.unit_tokens >= 1
    assert all(note.strip() for note in engine.notes)
