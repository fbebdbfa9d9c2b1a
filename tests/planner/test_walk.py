"""The case walked by hand (stories260K's shape, 14 prompt ids, 40 passes): its numbers must come out."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.placement import Placement
from planner.admit import Admission, Ask, admit
from planner.plan import prediction_document
from planner.request import Request
from tests.planner.fleets import llama2c, pair

SPLIT = Placement(prefill="gpu:0", decode="gpu:1")
ORACLE = Placement(prefill="gpu:0", decode="gpu:0")


def walk(access: str = "direct", placement: Placement = SPLIT, **request: Any) -> Admission:
    asked = Request(**({"prompt_tokens": 14, "steps": 40} | request))
    admission = admit(Ask(fleet=pair(access), model=llama2c(), request=asked, placement=placement))
    assert admission.verdict == "admitted"
    return admission


def rows(admission: Admission) -> list[tuple[Any, ...]]:
    found = prediction_document(admission)["waybill"]
    out = []
    for row in found:
        per_pass = row.get("per_pass")
        out.append(
            (row["phase"], row["tensor"], row["src"], row["dst"], row["kind"], row["bytes"], row["copies"])
            + ((per_pass["bytes"], per_pass["copies"]) if per_pass else ())
        )
    return out


def edges(admission: Admission) -> dict[str, tuple[int, int]]:
    return {
        f"{edge['src']}->{edge['dst']}": (edge["bytes"], edge["copies"])
        for edge in prediction_document(admission)["edges"]
    }


def test_device_mode_gives_the_rows_of_the_walk() -> None:
    assert rows(walk()) == [
        ("stage", "weights", "host", "gpu:0", "h2d", 1_040_128, 11),
        ("stage", "weights", "host", "gpu:1", "h2d", 1_040_128, 11),
        ("prefill", "tokens", "host", "gpu:0", "h2d", 56, 14, 4, 1),
        ("prefill", "next_token", "gpu:0", "host", "d2h", 4, 1),
        ("handoff", "k", "gpu:0", "gpu:1", "p2p", 8_960, 5),
        ("handoff", "v", "gpu:0", "gpu:1", "p2p", 8_960, 5),
        ("decode", "tokens", "host", "gpu:1", "h2d", 4, 1),
        ("decode", "next_token", "gpu:1", "host", "d2h", 104, 26, 4, 1),
    ]


def test_device_mode_gives_the_edges_dispatches_and_handoff_of_the_walk() -> None:
    admission = walk()
    assert edges(admission) == {
        "host->gpu:0": (1_040_184, 25),
        "host->gpu:1": (1_040_132, 12),
        "gpu:0->gpu:1": (17_920, 10),
        "gpu:0->host": (4, 1),
        "gpu:1->host": (104, 26),
    }
    document = prediction_document(admission)
    assert document["dispatches"] == {"prefill": 491, "decode": 936}
    assert document["passes"] == {"prefill": 14, "decode": 26}
    assert (document["handoff"]["bytes"], document["handoff"]["copies"]) == (17_920, 10)
    assert document["memory"][0]["resident"]["kv_cache"] == 51_200 * 2 // 2
    assert {entry["resident"]["kv_cache"] for entry in document["memory"]} == {2 * 5 * 40 * 32 * 4}


def test_staged_keeps_the_rows_and_has_two_legs_each() -> None:
    admission = walk("staged")
    assert rows(admission) == rows(walk())
    assert edges(admission) == {
        "host->gpu:0": (1_040_184, 25),
        "host->gpu:1": (1_058_052, 22),
        "gpu:0->host": (17_924, 11),
        "gpu:1->host": (104, 26),
    }
    document = prediction_document(admission)
    legs = next(row for row in document["waybill"] if row["tensor"] == "k")["legs"]
    assert [(leg["src"], leg["dst"], leg["kind"], leg["bytes"], leg["copies"]) for leg in legs] == [
        ("gpu:0", "host", "d2h", 8_960, 5),
        ("host", "gpu:1", "h2d", 8_960, 5),
    ]
    assert (document["handoff"]["bytes"], document["handoff"]["copies"]) == (17_920, 10)


def test_oracle_has_one_weights_row_and_a_handoff_on_the_device() -> None:
    admission = walk(placement=ORACLE)
    found = rows(admission)
    assert [row for row in found if row[1] == "weights"] == [
        ("stage", "weights", "host", "gpu:0", "h2d", 1_040_128, 11)
    ]
    assert [row for row in found if row[0] == "handoff"] == [
        ("handoff", "k", "gpu:0", "gpu:0", "d2d", 8_960, 5),
        ("handoff", "v", "gpu:0", "gpu:0", "d2d", 8_960, 5),
    ]
    assert edges(admission) == {
        "host->gpu:0": (1_040_188, 26),
        "gpu:0->gpu:0": (17_920, 10),
        "gpu:0->host": (108, 27),
    }
    assert prediction_document(admission)["memory"][0]["resident"]["kv_cache"] == 102_400


@pytest.mark.parametrize(
    ("extent", "nbytes", "copies"), [("filled", 8_960, 5), ("allocated", 25_600, 1), ("blocks:16", 10_240, 5)]
)
def test_extents_move_what_the_walk_says(extent: str, nbytes: int, copies: int) -> None:
    moved = [row[5:7] for row in rows(walk(kv_extent=extent)) if row[0] == "handoff"]
    assert moved == [(nbytes, copies)] * 2


def test_host_mode_gives_the_rows_and_edges_of_the_walk() -> None:
    admission = walk(attention="host")
    assert rows(admission) == [
        ("stage", "weights", "host", "gpu:0", "h2d", 1_037_312, 8),
        ("stage", "weights", "host", "gpu:1", "h2d", 1_037_312, 8),
        ("prefill", "act_in", "host", "gpu:0", "h2d", 159_264, 504, 11_376, 36),
        ("prefill", "act_out", "gpu:0", "host", "d2h", 196_672, 504, 14_048, 36),
        ("handoff", "k", "host", "gpu:0", "h2d", 8_960, 5),
        ("handoff", "v", "host", "gpu:0", "h2d", 8_960, 5),
        ("handoff", "k", "gpu:0", "gpu:1", "p2p", 8_960, 5),
        ("handoff", "v", "gpu:0", "gpu:1", "p2p", 8_960, 5),
        ("handoff", "k", "gpu:1", "host", "d2h", 8_960, 5),
        ("handoff", "v", "gpu:1", "host", "d2h", 8_960, 5),
        ("decode", "act_in", "host", "gpu:1", "h2d", 295_776, 936, 11_376, 36),
        ("decode", "act_out", "gpu:1", "host", "d2h", 365_248, 936, 14_048, 36),
    ]
    assert {edge: nbytes for edge, (nbytes, _) in edges(admission).items()} == {
        "host->gpu:0": 1_214_496,
        "gpu:0->host": 196_672,
        "gpu:0->gpu:1": 17_920,
        "host->gpu:1": 1_333_088,
        "gpu:1->host": 383_168,
    }
    assert prediction_document(admission)["dispatches"] == {"prefill": 504, "decode": 936}


def test_no_passes_after_the_prompt_means_no_handoff() -> None:
    found = rows(walk(steps=14))
    assert ("prefill", "tokens", "host", "gpu:0", "h2d", 56, 14, 4, 1) in found
    assert ("prefill", "next_token", "gpu:0", "host", "d2h", 4, 1) in found
    assert {row[0] for row in found} == {"stage", "prefill"}
    assert len(found) == 4


def test_fewer_passes_than_prompt_sample_nothing() -> None:
    admission = walk(steps=10)
    found = rows(admission)
    assert ("prefill", "tokens", "host", "gpu:0", "h2d", 40, 10, 4, 1) in found
    assert "next_token" not in {row[1] for row in found}
    assert prediction_document(admission)["dispatches"] == {"prefill": 350, "decode": 0}


@pytest.mark.parametrize(
    ("positions", "nbytes", "decode_passes", "decode_dispatches"), [(64, 442_368, 27, 1_161), (128, 884_736, 91, 3_913)]
)
def test_the_figures_of_the_two_gpu_acceptance(
    positions: int, nbytes: int, decode_passes: int, decode_dispatches: int
) -> None:
    stories15m = llama2c(288, 768, 6, 6, 6, 32_000, 256)
    asked = Request(prompt_tokens=37, steps=positions, attention="host", kv_extent="allocated")
    document = prediction_document(admit(Ask(fleet=pair(), model=stories15m, request=asked, placement=SPLIT)))
    across = [row for row in document["waybill"] if row["kind"] == "p2p"]
    assert [(row["bytes"], row["copies"]) for row in across] == [(nbytes, 1)] * 2
    assert document["passes"] == {"prefill": 37, "decode": decode_passes}
    assert document["dispatches"] == {"prefill": 1_591, "decode": decode_dispatches}


def test_filled_after_37_positions_of_the_acceptance_shape() -> None:
    stories15m = llama2c(288, 768, 6, 6, 6, 32_000, 256)
    asked = Request(prompt_tokens=37, steps=64, attention="host")
    document = prediction_document(admit(Ask(fleet=pair(), model=stories15m, request=asked, placement=SPLIT)))
    across = [row for row in document["waybill"] if row["kind"] == "p2p"]
    assert [(row["bytes"], row["copies"]) for row in across] == [(255_744, 6)] * 2


def test_topology_ids_are_those_of_one_node_where_the_plan_stays_on_one() -> None:
    from dataclasses import replace

    from planner.plan import topology_ids
    from tests.planner.fleets import device

    fleet = pair()
    other = replace(device("node1/gpu:0", topology_id=1), host="node1/host")
    wide = replace(fleet, devices=(*(replace(d, topology_id=99_000) for d in fleet.devices), other))
    asked = Ask(fleet=wide, model=llama2c(), request=Request(prompt_tokens=14, steps=40), placement=SPLIT)
    ids = topology_ids(admit(asked))
    assert ids["gpu:0"] == 500
