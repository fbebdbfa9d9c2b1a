"""The placement graph against the rows of the waybill; and what is kept by identity."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import Any

import networkx as nx
import pytest

from fleet.machine import Figure, Fleet, Quantity
from fleet.models.layers import CacheLayer
from fleet.placement import Placement
from fleet.same import Same
from planner.admit import Ask, admit
from planner.machine import Way, machine_graph
from planner.placed import placement_graph, weights_bytes
from planner.request import Request, resolve
from planner.route import transfers
from tests.planner.fleets import GB, llama2c, pair

SPLIT = Placement(prefill="gpu:0", decode="gpu:1")
ONE = Placement(prefill="gpu:0", decode="gpu:0")


@pytest.mark.parametrize("attention", ["device", "host"])
@pytest.mark.parametrize("placement", [SPLIT, ONE], ids=["split", "one device"])
def test_the_graph_has_the_sums_of_the_rows_on_its_cut_edges(attention: str, placement: Placement) -> None:
    model = llama2c()
    workload = resolve(Request(prompt_tokens=3, steps=8, attention=attention), model)
    graph = placement_graph(pair(), model, workload, placement)
    sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0, 0])
    for src, dst, edge in graph.edges(data=True):
        ends = graph.nodes[src]["space"], graph.nodes[dst]["space"]
        if ends[0] != ends[1] or edge["phase"] == "handoff":
            held = sums[(edge["phase"], edge["tensor"], *ends)]
            for at, name in enumerate(("payload", "bytes", "copies")):
                held[at] += edge[name]
    rows = {(r.phase, r.tensor, r.src, r.dst): [r.payload, r.bytes, r.copies] for r in transfers(graph)}
    assert rows == dict(sums)
    assert nx.is_directed_acyclic_graph(graph)


def test_a_changed_model_is_weighed_anew_though_name_and_digest_stay() -> None:
    model = llama2c()
    workload = resolve(Request(prompt_tokens=3, steps=8), model)
    assert weights_bytes(model, workload) == weights_bytes(replace(model), workload)
    less = replace(model, tensors=model.tensors[1:])
    assert less.digest == model.digest
    gone = model.tensors[0]
    before, after = weights_bytes(model, workload), weights_bytes(less, workload)
    assert (before[0] - after[0], before[1] - after[1]) == (gone.nbytes, 1)


def test_a_kept_answer_is_never_that_of_an_object_that_went_away() -> None:
    @lru_cache(maxsize=4)
    def first(same: Same[tuple[int, ...]]) -> int:
        return same.value[0]

    for number in range(200):  # addresses are used again: 4 are held, the others are not
        assert first(Same(tuple([number, number]))) == number  # noqa: C409 - a literal would be one constant object
        gc.collect(0)


def test_equal_values_are_not_the_same() -> None:
    one, other = tuple([1, 2]), tuple([1, 2])  # noqa: C409 - literals would be one constant object
    assert Same(one) == Same(one)
    assert Same(one) != Same(other)
    assert Same(one) != one


def test_a_transfer_is_an_edge_that_crosses_spaces_and_without_it_there_is_no_row() -> None:
    model = llama2c()
    graph = placement_graph(pair(), model, resolve(Request(prompt_tokens=3, steps=8), model), SPLIT)
    told = {(row.phase, row.tensor) for row in transfers(graph)}
    handed = [ends for *ends, edge in graph.edges(keys=True, data=True) if edge["phase"] == "handoff"]
    assert {"k", "v"} == {tensor for phase, tensor in told if phase == "handoff"}
    graph.remove_edges_from(handed)
    assert {(row.phase, row.tensor) for row in transfers(graph)} == {each for each in told if each[0] != "handoff"}


def test_an_admission_loads_neither_numba_nor_numpy() -> None:
    code = (
        "import sys; from scenarios.cli.__main__ import main; code = main(['admit', 'two-gpu', '-o', 'json']);"
        "print([name for name in ('numba', 'cupy', 'numpy', 'rich') if name in sys.modules], code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] 0"


def _told_elsewhere(fleet: Fleet) -> Fleet:
    """The same figures out of another file: the digest stays."""
    figure = Figure(value=450 * GB, provenance="spec", source="another page")
    links = tuple(
        replace(link, bandwidth=Quantity(declared=figure)) if link.kind == "nvlink" else link for link in fleet.links
    )
    return replace(fleet, links=links)


def test_a_plan_tells_the_sources_of_its_own_fleet_whatever_was_admitted_before() -> None:
    fleet = replace(pair(), digest="one")
    for each in (fleet, _told_elsewhere(fleet), fleet):
        way = machine_graph(each).way("gpu:0", "gpu:1", 2**20, 1)
        assert isinstance(way, Way)
        assert way.hops[0].links[0] in each.links
    used = replace(fleet, devices=tuple(replace(device, in_use=7) for device in fleet.devices))
    assert machine_graph(used) is machine_graph(fleet)


def _changed() -> list[Ask]:
    """Questions that differ in one thing each, many of them under one digest or name."""
    fleets = [pair(), pair("staged"), pair(capacity=2**20), pair(drop=("gpu:0", "host")), _told_elsewhere(pair())]
    fleets += [replace(pair(), digest="one"), replace(_told_elsewhere(pair()), digest="one")]
    models = [llama2c(), llama2c(layers=4), llama2c(kv_heads=8), llama2c(shared=False)]
    models.append(replace(models[0], tensors=models[0].tensors[1:]))
    models.append(replace(models[0], layers=(CacheLayer(kind="full", heads=4, key_dim=8, value_dim=16),) * 5))
    told: list[dict[str, Any]] = [{}, {"steps": 7}, {"batch": 2}, {"kv_dtype": "fp16"}, {"weights_dtype": "bf16"}]
    told += [{"kv_extent": "blocks:4"}, {"attention": "host"}, {"layout": "packed16"}]
    asks = [(fleet, models[0], {}) for fleet in fleets] + [(fleets[0], model, {}) for model in models[1:]]
    asks += [(fleets[0], models[0], words) for words in told[1:]]
    return [
        Ask(fleet=fleet, model=model, request=Request(**({"prompt_tokens": 3, "steps": 9} | words)), placement=placed)
        for fleet, model, words in asks
        for placed in (SPLIT, ONE)
    ]


def _forget() -> None:
    for name, module in sorted(sys.modules.items()):
        if name.startswith(("planner.", "fleet.")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def test_what_is_kept_from_other_questions_changes_no_answer() -> None:
    asks = _changed()
    fresh = []
    for ask in asks:
        _forget()
        fresh.append(admit(ask))
    for at in random.Random(1).choices(range(len(asks)), k=300):
        assert admit(asks[at]) == fresh[at]
    sure = {(repr(one.prediction), one.verdict, repr(one.reasons)) for one in fresh}
    assert len(sure) > len(asks) * 3 // 4  # questions with one answer would show little
