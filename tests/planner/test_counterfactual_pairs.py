"""Pairs of changes against the whole grid of both: what is told are its corners, and one step less of either fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.machine import Fleet
from fleet.placement import Placement
from planner.admit import Ask, admit
from planner.counterfactual_pairs import pairs
from planner.fixes import counterfactuals, offered
from planner.request import Request
from tests.planner.fleets import llama2c
from tests.planner.test_counterfactual import MODEL, dense, mesh

PLACED = Placement(prefill="gpu:0", decode="gpu:1")
Values = list[Any]


def is_admitted(ask: Ask) -> bool:
    return admit(ask).verdict == "admitted"


def corners(grid: list[list[bool]]) -> set[tuple[int, int]]:
    """By force: the admitted cells of which neither the left nor the lower neighbour is admitted."""
    return {
        (i, j)
        for i, row in enumerate(grid)
        for j, cell in enumerate(row)
        if cell and not (i and grid[i - 1][j]) and not (j and row[j - 1])
    }


CASES: dict[str, tuple[Request, Values, Values, Callable[[Request, Any, Any], Request], list[str]]] = {
    "sequences and new tokens": (
        Request(prompt_tokens=20, steps=60, batch=9), list(range(9, 0, -1)), list(range(60, 20, -1)),
        lambda request, a, b: replace(request, batch=a, steps=b), ["--batch", "--steps"],
    ),
    "context and sequences": (
        Request(prompt_tokens=20, steps=30, positions=70, batch=6), list(range(70, 20, -1)), list(range(6, 0, -1)),
        lambda request, a, b: replace(request, positions=a, steps=min(a, 30), batch=b), ["--positions", "--batch"],
    ),
    "new tokens and prompt": (
        Request(prompt_tokens=30, new_tokens=30), list(range(30, 1, -1)), list(range(30, 0, -1)),
        lambda request, a, b: replace(request, new_tokens=a, prompt_tokens=b), ["--new-tokens", "--prompt-tokens"],
    ),
    "KV type and weights type": (
        Request(prompt_tokens=100, steps=400, batch=4), ["fp32", "bf16", "fp8"], ["fp32", "bf16", "fp8"],
        lambda request, a, b: replace(request, kv_dtype=a, weights_dtype=b), ["--kv-dtype", "--weights-dtype"],
    ),
    "sequences and weights type": (
        Request(prompt_tokens=20, steps=300, batch=12), list(range(12, 0, -1)), ["fp32", "bf16", "fp8"],
        lambda request, a, b: replace(request, batch=a, weights_dtype=b), ["--batch", "--weights-dtype"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
@settings(deadline=None, max_examples=4)
@given(part=st.fractions(Fraction(1, 20), Fraction(19, 20)))
def test_told_pairs_are_the_ends_and_the_evenest_corner_of_the_whole_grid(case: str, part: Fraction) -> None:
    request, ones, others, made, flags = CASES[case]
    ample = Ask(fleet=mesh([10**9, 10**9], granule=1), model=MODEL, request=request, placement=PLACED)
    least = _need(replace(ample, request=made(request, ones[-1], others[-1])))
    most = min(
        _need(replace(ample, request=made(request, ones[-1], others[0]))),
        _need(replace(ample, request=made(request, ones[0], others[-1]))),
    )
    assume(least < most - 1)
    size = least + int((most - 1 - least) * part)
    ask = replace(ample, fleet=mesh([size, size], granule=1), utilization=Fraction(1))
    grid = [[is_admitted(replace(ask, request=made(request, a, b))) for b in others] for a in ones]
    found = corners(grid)
    [pair] = [each for each in pairs(admit(ask)) if each.name == case]
    told = []
    for change in pair.changes:
        steps = {part["flag"]: part["to"] for part in (change.document, *change.document["and"])}
        told.append((ones.index(steps[flags[0]]), others.index(steps[flags[1]])))
        assert is_admitted(change.ask)
        assert change.ask.request == made(request, steps[flags[0]], steps[flags[1]])

    def share(corner: tuple[int, int]) -> Fraction:
        return max(Fraction(corner[0], len(ones) - 1), Fraction(corner[1], len(others) - 1))

    assert set(told) <= found
    assert share(told[0]) == min(map(share, found))
    assert {min(found), min(found, key=lambda corner: corner[::-1])} <= set(told)


def _need(ask: Ask) -> int:
    prediction = admit(ask).prediction
    assert prediction is not None
    return max(footprint.total_bytes for footprint in prediction.footprints)


def _small(fleet_sizes: list[int], **request: Any) -> Ask:
    return Ask(
        fleet=mesh(fleet_sizes, granule=1), model=llama2c(), request=Request(**request), placement=PLACED,
        utilization=Fraction(1),
    )  # fmt: skip


def test_pairs_are_told_only_where_no_single_change_would_do() -> None:
    asked = {"prompt_tokens": 20, "steps": 200, "batch": 4}
    least = _need(_small([10**9] * 2, **(asked | {"batch": 1})))
    single = counterfactuals(admit(_small([least] * 2, **asked)))
    assert not any(" and " in row["dimension"] for row in single[2])


def test_both_devices_elsewhere_are_one_fix_of_two_changes() -> None:
    ask = _small([10_000, 10_000, 900_000, 900_000], prompt_tokens=14, steps=40, weights_dtype="fp8")
    changes = offered(admit(ask))
    assert {"--prefill", "--decode"} in [
        {part["flag"] for part in (c.document, *c.document.get("and", [])) if "flag" in part} for c in changes
    ]
    assert all(is_admitted(change.ask) for change in changes)


def test_a_refusal_beside_an_unknown_way_tells_a_smaller_batch_and_what_must_be_true() -> None:
    fleet: Fleet = mesh([1_500_000, 1_500_000], peer="unknown")
    ask = Ask(fleet=fleet, model=MODEL, request=Request(prompt_tokens=20, steps=200, batch=40), placement=PLACED)
    admission = admit(ask)
    assert {reason.code for reason in admission.reasons} == {"EXCEEDS_CAPACITY", "PEER_ACCESS_UNKNOWN"}
    _, documents, _ = counterfactuals(admission)
    [batch] = [each for each in documents if each.get("flag") == "--batch"]
    [stated] = batch["and"]
    assert stated == {
        "field": "links[gpu:0->gpu:1].peer_access", "from": "unknown", "to": "staged", "unknown": True,
    }  # fmt: skip
    for count, verdict in ((batch["to"], "unverified"), (batch["to"] + 1, "refused")):
        assert admit(replace(ask, request=replace(ask.request, batch=count))).verdict == verdict


def test_all_ways_of_workers_that_are_unknown_must_be_stated() -> None:
    fleet = mesh([330_000] * 4, peer="unknown", granule=1)
    placed = Placement(prefill="gpu:0,gpu:1", decode="gpu:2,gpu:3", tp=(2, 2))
    ask = Ask(fleet=fleet, model=dense(), request=Request(prompt_tokens=14, steps=40, batch=9), placement=placed)
    [batch] = [each for each in counterfactuals(admit(ask))[1] if each.get("flag") == "--batch"]
    assert [(part["field"], part["to"]) for part in batch["and"]] == [
        (f"links[gpu:{a}->gpu:{b}].peer_access", "staged") for a, b in ((0, 2), (1, 3))
    ]
