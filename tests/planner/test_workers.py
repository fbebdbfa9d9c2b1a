"""Laws of workers of several ranks: nothing is lost, nothing is made up, and one rank is the old plan."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.checkpoints import load_model
from fleet.errors import DescriptionError
from fleet.machine import Fleet, Host, Link
from fleet.model import Model
from fleet.models import kv
from fleet.models.layers import layers_on_rank
from fleet.placement import Placement, device_list
from planner.admit import Ask, admit
from planner.caches import cache_parts
from planner.footprint import footprint
from planner.machine import machine_graph
from planner.predict import predict
from planner.request import Request, resolve
from planner.route import route_transfers
from planner.sharding import Cut, cut_tensor, how_divided, on_stage, rank_tensors
from planner.worker_plan import worker_arenas, worker_transfers
from planner.workers import (
    copies_of,
    degree_fault,
    degrees,
    ranks_of,
    shared_units,
    slices,
    stage_bounds,
    worker_unknown,
)
from tests.planner.fleets import device, host_links, known, pair

SMALL = json.loads((Path(__file__).parents[1] / "fleet" / "library_counts.json").read_text())
NAMES = sorted(SMALL)
DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Model]:
    folder = tmp_path_factory.mktemp("models")
    found = {}
    for name in NAMES:
        path = folder / f"{name}.json"
        path.write_text(json.dumps(SMALL[name]["config"]))
        found[name] = load_model(str(path))
    return found | {"embedded": load_model(None)}


@cache
def crowd(count: int = 16) -> Fleet:
    """So many GPUs of one host, every pair linked."""
    names = [f"gpu:{number}" for number in range(count)]
    links = [link for name in names for link in host_links(name)]
    links += [
        Link(src=a, dst=b, kind="nvlink", peer_access="direct", bandwidth=known(450 * 10**9), latency=known(10**6))
        for a in names
        for b in names
        if a != b
    ]
    devices = tuple(device(name) for name in names)
    return replace(pair(), devices=devices, links=tuple(links), hosts=(Host(id="host"),), digest=f"crowd of {count}")


def placed(prefill: int, decode: int, stages: tuple[int, int] = (1, 1)) -> Placement:
    """Workers of so many ranks a stage, on devices of their own."""
    first, second = prefill * stages[0], decode * stages[1]
    return Placement(
        prefill=",".join(f"gpu:{n}" for n in range(first)),
        decode=",".join(f"gpu:{n}" for n in range(first, first + second)),
        tp=(prefill, decode), pp=stages,
    )  # fmt: skip


@given(units=st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]), data=st.data())
def test_every_receiver_gets_each_of_its_units_once_from_a_rank_that_holds_it(units, data):
    able = [n for n in range(1, 33) if units % n == 0 or n % units == 0]
    sources, receivers = data.draw(st.sampled_from(able)), data.draw(st.sampled_from(able))
    taken = shared_units(units, sources, receivers)
    arriving = Counter()
    for (source, receiver), count in taken.items():
        assert 0 <= source < sources
        assert 0 < count <= max(1, units // sources)
        arriving[receiver] += count
    assert arriving == dict.fromkeys(range(receivers), max(1, units // receivers))
    leaving = Counter()
    for (source, _), count in taken.items():
        leaving[source] += count
    assert sum(leaving.values()) == sum(arriving.values()) == max(units, receivers)
    if sources <= units:
        assert set(leaving) == set(range(sources))


@given(layers=st.integers(1, 200), data=st.data())
def test_stages_hold_each_layer_once_in_order_and_differ_by_one_at_most(layers, data):
    stages = data.draw(st.integers(1, layers))
    bounds = stage_bounds(layers, stages)
    assert [layer for first, end in bounds for layer in range(first, end)] == list(range(layers))
    sizes = [end - first for first, end in bounds]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from([*NAMES, "embedded"]), ranks=st.sampled_from([1, 2, 4, 8]), stages=st.integers(1, 3))
def test_the_ranks_together_hold_every_element_once_and_copies_only_of_what_is_copied(models, name, ranks, stages):
    model = models[name]
    stages = min(stages, model.n_layers)
    for tensor in model.tensors:
        pieces = []
        for stage, bounds in enumerate(stage_bounds(model.n_layers, stages)):
            last = stage == stages - 1
            cuts = [Cut(ranks=ranks, rank=r, layers=bounds, first=stage == 0, last=last) for r in range(ranks)]
            if on_stage(tensor, model, cuts[0]):
                pieces.append([cut_tensor(tensor, model, cut) for cut in cuts])
        tied = tensor.role == "embedding" and model.shared_classifier and stages > 1
        assert len(pieces) == (stages if tensor.per_layer else 2 if tied else 1)
        if any(piece is None for stage in pieces for piece in stage):
            continue
        total = sum(piece.n_elements for stage in pieces for piece in stage) // (2 if tied else 1)
        how = how_divided(tensor)
        biased = how == "inputs" and total == ranks * tensor.n_elements  # a bias of what is split by its inputs
        if how == "copied" or biased:
            assert total == ranks * tensor.n_elements
        elif how in ("outputs", "inputs", "vocabulary"):
            assert total == tensor.n_elements
        else:  # heads or groups: whole when they divide, else copied, never more than once a rank
            assert tensor.n_elements <= total <= ranks * tensor.n_elements


@settings(max_examples=80, deadline=None)
@given(
    name=st.sampled_from([*NAMES, "embedded"]), prefill=st.sampled_from([1, 2, 4]),
    decode=st.sampled_from([1, 2, 4, 8]), stages=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    extent=st.sampled_from(["filled", "allocated", "blocks:16"]),
)  # fmt: skip
def test_what_leaves_arrives_and_each_rank_of_decode_gets_what_it_keeps(models, name, prefill, decode, stages, extent):
    model = models[name]
    if degree_fault(model, prefill) or degree_fault(model, decode) or max(stages) > model.n_layers:
        return
    where = placed(prefill, decode, stages)
    got: Counter[str] = Counter()
    for piece in slices(model, model.kv_dtype, where):
        got[piece.dst] += piece.part.layers * piece.part.position_bytes
    for rank in ranks_of(model, where, "decode"):
        held = layers_on_rank(model.caches[rank.layers[0] : rank.layers[1]], decode)
        assert held is not None
        conv = model.kv_dtype if model.kv_dtype in ("bf16", "fp16", "fp32") else "bf16"
        kept = kv.bytes_per_token(held, model.kv_dtype) + kv.state_bytes(held, conv=conv)
        assert got.get(rank.device, 0) == kept
    workload = resolve(Request(prompt_tokens=20, new_tokens=9, kv_extent=extent), model)
    rows = predict(crowd(32), model, workload, where).handoff_rows
    single = predict(crowd(2), model, workload, placed(1, 1)).handoff_rows
    sent = sum(row.bytes for row in rows)
    if all(copies == 1 for copies in copies_of(model.caches, decode).values()) and not any(
        layer.conv_groups for layer in model.caches
    ):
        assert sent == sum(row.bytes for row in single)
    assert sent >= sum(row.bytes for row in single)


@pytest.mark.parametrize("name", [*NAMES, "embedded"])
@pytest.mark.parametrize("extent", ["filled", "allocated", "blocks:16"])
def test_workers_of_one_rank_are_the_plan_of_single_devices_byte_for_byte(models, name, extent):
    model, fleet = models[name], pair()
    for where in (Placement(prefill="gpu:0", decode="gpu:1"), Placement(prefill="gpu:1", decode="gpu:1")):
        workload = resolve(Request(prompt_tokens=20, new_tokens=9, kv_extent=extent, batch=2), model)
        old = predict(fleet, model, workload, where)
        listed = worker_transfers(fleet, model, workload, where)
        routed = route_transfers(listed, fleet, machine_graph(fleet), model, workload, None)
        assert tuple(replace(row, part=None) for row in routed.rows) == old.rows
        arenas = worker_arenas(model, workload, where, routed)
        assert tuple(footprint(fleet, arena, model) for arena in arenas) == old.footprints


def test_one_worker_for_both_phases_holds_its_weights_once_and_hands_over_inside_each_rank(models):
    model = models["embedded"]
    where = Placement(prefill="gpu:0,gpu:1", decode="gpu:0,gpu:1")
    admission = admit(Ask(fleet=crowd(2), model=model, request=Request(prompt_tokens=9, new_tokens=9), placement=where))
    assert admission.verdict == "admitted"
    assert {(row.src, row.dst, row.kind) for row in admission.prediction.handoff_rows} == {
        (f"gpu:{n}", f"gpu:{n}", "d2d") for n in (0, 1)
    }
    assert [row.dst for row in admission.prediction.rows if row.tensor == "weights"] == ["gpu:0", "gpu:1"]


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        (Placement(prefill="gpu:0,gpu:1,gpu:2", decode="gpu:3"), "do not divide"),
        (Placement(prefill="gpu:0,gpu:1", decode="gpu:1,gpu:2"), "gpu:1 is in both workers"),
        (Placement(prefill="gpu:0,gpu:1", decode="gpu:2", tp=(4, 1)), "2 devices for tensor-parallel degree 4"),
        (Placement(prefill="gpu:0,gpu:1", decode="gpu:0,gpu:1", tp=(2, 1), pp=(1, 2)), "divided alike"),
    ],
)
def test_placements_that_divide_nothing_are_faults_in_words(models, placement, told):
    ask = Ask(fleet=crowd(4), model=models["embedded"], request=Request(prompt_tokens=9), placement=placement)
    with pytest.raises(DescriptionError, match=told):
        admit(ask)


def test_a_tensor_whose_division_is_unknown_leaves_the_plan_unverified(models):
    model = models["embedded"]  # 172 wide: eight ranks do not divide it
    strange = replace(model, tensors=tuple(replace(t, name="strange") if t.name == "w1" else t for t in model.tensors))
    assert any("strange" in words for words in worker_unknown(strange, placed(2, 1)))
    where = placed(2, 1)
    answer = admit(Ask(fleet=crowd(4), model=strange, request=Request(prompt_tokens=9, new_tokens=2), placement=where))
    assert answer.verdict == "unverified"
    assert {reason.code for reason in answer.reasons} == {"DIVISION_UNKNOWN"}


def test_more_devices_never_hold_more_on_the_fullest(models):
    model = models["embedded"]
    fullest = []
    for ranks in (1, 2, 4):
        workload = resolve(Request(prompt_tokens=20, new_tokens=20), model)
        prediction = predict(crowd(8), model, workload, placed(ranks, ranks))
        fullest.append(max(f.resident_bytes for f in prediction.footprints))
    assert fullest == sorted(fullest, reverse=True)
    assert len(set(fullest)) == 3


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("gpu:0-3", "gpu:0,gpu:1,gpu:2,gpu:3"),
        ("gpu:0,gpu:2", "gpu:0,gpu:2"),
        ("node3/gpu:6-7,gpu:1", "node3/gpu:6,node3/gpu:7,gpu:1"),
        ("rack-1", "rack-1"),
        ("gpu:2-2", "gpu:2"),
    ],
)
def test_ranges_and_lists_name_devices(text, wanted):
    assert device_list(text, {"rack-1"}) == wanted


@pytest.mark.parametrize("text", ["gpu:3-1", "gpu:0,,gpu:1", "", "gpu:0,gpu:0", "gpu:0-2,gpu:1", "gpu:0-999999"])
def test_lists_that_make_no_sense_are_told(text):
    with pytest.raises(ValueError, match=r"gpu|part"):
        device_list(text, set())


def truth() -> list[tuple[str, dict]]:
    path = DATA / "model_truth.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())["models"]
    return [(name, entry["kv"].get("tensor_parallel_bf16_full_rate")) for name, entry in found.items() if entry["kv"]]


@pytest.mark.shared
@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data folder beside the repository")
@pytest.mark.parametrize(("name", "table"), [row for row in truth() if row[1]], ids=lambda value: str(value)[:24])
def test_ranks_hand_over_what_the_table_of_right_values_says(name, table):
    model = load_model(str(DATA / "model_configs" / f"{name}.json"))
    for ranks, right in table.items():
        if right is None:
            assert degree_fault(model, int(ranks))
            continue
        got: Counter[str] = Counter()
        for piece in slices(model, "bf16", placed(1, int(ranks))):
            if not piece.part.is_state:
                got[piece.dst] += piece.part.layers * piece.part.position_bytes
        assert set(got.values()) == {right["bytes_per_token_per_rank"]}
        assert sum(got.values()) == right["bytes_per_token_all_ranks"]


@pytest.mark.shared
@pytest.mark.skipif(not DATA.exists(), reason="needs the shared data folder beside the repository")
def test_public_faults_of_tensor_parallel():
    """A pool sized with unsplit heads (transformers PR 48566), more ranks than heads (vllm PR 19691)."""
    qwen = load_model(str(DATA / "model_configs" / "Qwen3-32B.json"))
    per_rank = layers_on_rank(qwen.caches, 4)
    assert kv.bytes_per_token(per_rank, "bf16") == 65_536
    llama = load_model(str(DATA / "model_configs" / "Meta-Llama-3.1-70B.json"))
    got: Counter[str] = Counter()
    for piece in slices(llama, "bf16", placed(8, 16)):
        got[piece.dst] += piece.part.layers * piece.part.position_bytes
    assert set(got.values()) == {40_960}
    assert sum(got.values()) == 655_360 == 2 * sum(p.layers * p.position_bytes for p in cache_parts(llama, "bf16"))
    assert 16 in degrees(llama, 64)
    norms = [
        t for t in rank_tensors(llama, Cut(ranks=8, rank=3, layers=(0, 80), first=True, last=True)) if t.role == "norm"
    ]
    assert norms == [t for t in llama.tensors if t.role == "norm"]


@pytest.mark.parametrize(("sources", "receivers"), [(16, 16), (16, 32), (32, 16), (8, 64)])
def test_copies_of_a_unit_share_the_work(sources, receivers):
    sent: Counter[int] = Counter()
    for (source, _), count in shared_units(8, sources, receivers).items():
        sent[source] += count
    used = min(sources, receivers)
    assert sorted(sent.values()) == [max(8, receivers) // used] * used


def test_only_the_last_stage_holds_logits_and_only_the_ends_hold_vocabulary(models):
    model = models["embedded"]
    workload = resolve(Request(prompt_tokens=20, new_tokens=9), model)
    prediction = predict(crowd(8), model, workload, placed(2, 1, (2, 1)))
    held = {arena.arena: {buffer.name for buffer in arena.buffers} for arena in prediction.arenas}
    assert ["act/logits" in held[f"gpu:{n}"] for n in range(5)] == [False, False, True, True, True]
    assert ["weights/token_embedding" in held[f"gpu:{n}"] for n in range(5)] == [True, True, False, False, True]
    assert ["weights/wcls" in held[f"gpu:{n}"] for n in range(5)] == [False, False, True, True, True]
    told = [(row.tensor, row.src, row.dst) for row in prediction.rows if row.phase == "prefill"]
    assert told == [("tokens", "host", "gpu:0"), ("tokens", "host", "gpu:1"), ("next_token", "gpu:2", "host")]
