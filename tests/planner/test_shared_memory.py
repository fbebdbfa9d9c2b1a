"""Bytes that two devices of a plan have in common are there once: shared memories, and a card beside its slice."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import DescriptionError
from fleet.machine import Budget, Fleet
from fleet.placement import Placement
from fleet.readers.in_use import read_stated
from planner.admit import Admission, Ask, admit
from planner.counterfactual import parts_of
from planner.fixes import counterfactuals, explain_refusal
from planner.in_use import with_in_use
from planner.request import Request
from scenarios.plan_agrees import check_plan
from scenarios.shapes import Sink
from tests.command_line import Ask as Command
from tests.command_line import Document, asker, fleet, write_json
from tests.planner.fleets import llama2c, pair

PLACED = Placement(prefill="gpu:0", decode="gpu:1")


def uma(capacity: int, **more: int) -> Fleet:
    """Two devices in one memory."""
    made = pair(capacity=capacity, granule=1, budget=Budget(reserve=more.get("reserve", 0)))
    devices = tuple(
        replace(d, memories=tuple(replace(m, shared=True, physical="pool") for m in d.memories)) for d in made.devices
    )
    return replace(made, devices=devices)


def verdict(made: Fleet, placement: Placement = PLACED) -> Admission:
    request = Request(prompt_tokens=14, steps=40)
    return admit(Ask(fleet=made, model=llama2c(), request=request, placement=placement))


def codes(admission: Admission) -> list[str]:
    return [reason.code for reason in admission.reasons]


def total(admission: Admission) -> int:
    assert admission.prediction is not None
    return sum(footprint.total_bytes for footprint in admission.prediction.footprints)


@pytest.mark.parametrize("reserve", [0, 5_000])
@pytest.mark.parametrize("decode", ["gpu:1", "gpu:0"])
def test_the_most_that_others_may_hold_of_one_memory_is_told_to_the_byte(reserve: int, decode: str) -> None:
    placed = Placement(prefill="gpu:0", decode=decode)
    both = total(verdict(uma(2**30), placed))
    most = 2**23 * 9 // 10 - reserve - both
    held = {"gpu:0": most, "gpu:1": 1}

    def answered(statements: dict[str, int]) -> Admission:
        readings = [read_stated(f"{name}={size} B", set(held)) for name, size in statements.items()]
        made, _ = with_in_use(uma(2**23, reserve=reserve), [each for each in readings if each is not None])
        return verdict(made, placed)

    refused = answered(held)
    assert refused.verdict == "refused"
    _, _, table = counterfactuals(refused)
    [change] = [row["change"] for row in table if row["dimension"] == "in use"]
    told = {name: int(size.split()[0]) for name, size in (part["to"].split("=") for part in parts_of(change))}
    assert told == {"gpu:0": most, "gpu:1": 0}
    assert answered(told).verdict == "admitted"
    assert answered(told | {"gpu:1": 1}).verdict == "refused"


def test_two_devices_in_one_memory_are_refused_when_only_each_by_itself_fits() -> None:
    both = total(verdict(uma(2**30)))
    tight = both * 10 // 9 - 100
    assert codes(verdict(pair(capacity=tight, granule=1))) == []
    refused = verdict(uma(tight))
    assert codes(refused) == ["EXCEEDS_SHARED_MEMORY"]
    [reason] = refused.reasons
    assert reason.needed_bytes == both
    assert reason.shortfall_bytes == both - tight * 9 // 10
    assert "gpu:0 and gpu:1 lie in one memory, pool" in reason.message


@given(st.integers(1, 4_000_000), st.integers(0, 100_000))
@settings(max_examples=60, deadline=None)
def test_a_shared_memory_admits_exactly_when_the_sum_fits_its_budget(capacity: int, reserve: int) -> None:
    admission = verdict(uma(capacity, reserve=reserve))
    fits = total(admission) <= max(capacity * 9 // 10 - reserve, 0)
    assert (admission.verdict == "admitted") == fits


def test_one_device_alone_in_a_shared_memory_is_counted_once() -> None:
    admission = verdict(uma(2**30), Placement(prefill="gpu:0", decode="gpu:0"))
    assert admission.verdict == "admitted"
    assert admission.prediction is not None
    assert len(admission.prediction.footprints) == 1


def test_every_change_that_is_offered_is_admitted_and_one_is_the_capacity_of_both() -> None:
    refused, changes = explain_refusal(verdict(uma(1_300_000)))
    assert refused.reasons[0].fix is not None
    fields = [part["field"] for change in changes for part in (change, *change.get("and", [])) if "field" in part]
    assert fields == ["devices[gpu:0].memories[0].capacity", "devices[gpu:1].memories[0].capacity"]


def sliced() -> Document:
    """A card, two slices of it, and another card."""
    made = fleet(["1 GiB", "1 GiB"])
    memory = [{"name": "hbm", "capacity": "64 MiB", "granule": "4 KiB"}]
    made["devices"] += [{"id": f"gpu:0/mig{n}", "sku": "card", "parent": "gpu:0", "memories": memory} for n in range(2)]
    return made


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Command:
    return asker(capfd)


ASKED = ("--prompt-tokens", "6", "--steps", "12", "-o", "json")


@pytest.mark.parametrize(("prefill", "decode"), [("gpu:0", "gpu:0/mig0"), ("gpu:0/mig1", "gpu:0")])
def test_a_card_and_its_slice_are_not_both_filled(prefill: str, decode: str, tmp_path: Path, ask: Command) -> None:
    path = write_json(tmp_path / "mig.yaml", sliced())
    refused = ask("admit", "--fleet", path, "--prefill", prefill, "--decode", decode, *ASKED)
    assert refused.code == 1
    [reason] = [r for r in refused.document["reasons"] if r["severity"] == "error"]
    assert reason["code"] == "CARD_AND_SLICE"
    assert "is a slice of gpu:0" in reason["message"]
    fix = reason["fix"]
    flags = {"--prefill": prefill, "--decode": decode}
    flags |= {change["flag"]: change["to"] for change in (fix, *fix.get("and", []))}
    assert ask("admit", "--fleet", path, *(part for pair in flags.items() for part in pair), *ASKED).code == 0


def test_two_slices_of_a_card_and_a_slice_beside_another_card_are_fine(tmp_path: Path, ask: Command) -> None:
    path = write_json(tmp_path / "mig.yaml", sliced())
    for decode in ("gpu:0/mig1", "gpu:1"):
        answer = ask("admit", "--fleet", path, "--prefill", "gpu:0/mig0", "--decode", decode, *ASKED)
        assert "CARD_AND_SLICE" not in {reason["code"] for reason in answer.document["reasons"]}


def shared_fleet(tmp_path: Path, capacity: str) -> Path:
    made = fleet([capacity, capacity])
    for device in made["devices"]:
        device["memories"][0] |= {"shared": "true", "physical": "pool"}
    return write_json(tmp_path / "uma.yaml", made)


def test_the_plan_tells_what_both_leave_of_the_memory_and_the_plan_is_checked(tmp_path: Path, ask: Command) -> None:
    path = shared_fleet(tmp_path, "64 MiB")
    plan = ask("admit", "--fleet", path, *ASKED).document
    first, second = plan["memory"]
    assert first["shared"] == second["shared"]
    assert first["shared"]["total_bytes"] == first["total_bytes"] + second["total_bytes"]
    assert first["shared"]["slack_bytes"] == first["budget_bytes"] - first["shared"]["total_bytes"]
    assert "lie in one memory, pool" in ask("admit", "--fleet", path, *ASKED[:-2]).out
    changed = copy.deepcopy(plan)
    changed["memory"][0]["shared"]["total_bytes"] += 1
    sink = Sink("plan.json")
    check_plan(changed, "", sink)
    with pytest.raises(DescriptionError, match="is not the sum"):
        sink.raise_if_any()


def test_the_matrix_ranks_by_what_is_really_left(tmp_path: Path, ask: Command) -> None:
    path = shared_fleet(tmp_path, "2400 KiB")
    text = ask("admit", "--fleet", path, "--fleet", "two-gpu-nvlink", *ASKED[:-2]).out
    row = next(line for line in text.splitlines() if line.lstrip().startswith("made "))
    plan = ask("admit", "--fleet", path, *ASKED).document
    assert f"{plan['memory'][0]['shared']['slack_bytes']:,} B" in row
