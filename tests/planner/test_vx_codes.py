"""Vx's codes beside ours: each one comes about with some input here, or is listed as one that cannot, and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import DescriptionError
from fleet.machine import Fleet
from fleet.placement import Placement
from fleet.readers import vx
from planner.admit import Admission, Ask, admit
from planner.footprint import ArenaFootprint
from planner.plan import reason_document
from planner.request import Request
from planner.vx_codes import NEVER, OF_FILES, OF_REASONS, overflow_codes, tile_codes
from tests.command_line import Ask as Command
from tests.command_line import asker
from tests.planner.fleets import llama2c, pair

ALL = {f"E60{number:02}" for number in (*range(1, 17), *range(25, 29))} | {"W1026", "W1027", "W1028", "W1029", "W1030"}
"""Every diagnostic of Vx on machines and placements (reference: vx-lang/Vx docs and sources)."""

HOME = "transfer Memory::CPU_DRAM -> Memory::A : 1 GB/s"
GOOD = f"Topology T {{ memory: Memory::A, {HOME} }}"
FILES = {
    "E6005": f"Memory A {{}} Memory B {{}} Topology T {{ memory: Memory::A, visible: [Memory::B], {HOME} }}",
    "E6006": f"Memory A {{ within: Memory::B }} Memory B {{ within: Memory::A }} {GOOD}",
    "E6007": f"Memory A {{ capacity: 1 GiB }} Memory B {{ within: Memory::A, capacity: 2 GiB }} {GOOD}",
    "E6008": f"Memory A {{ capacity: 0 B }} {GOOD}",
    "E6011": f"Memory A {{ scope: sm }} Memory B {{ within: Memory::A, scope: device }} {GOOD}",
    "E6012": f"Memory A {{}} Memory CPU_DRAM {{}} {GOOD} Memory A {{}}",
    "E6013": "Memory A { bandwidth: 1 TB/s } Memory B { within: Memory::A, bandwidth: 2 TB/s } Topology T"
    f" {{ memory: Memory::A, {HOME}, transfer Memory::A -> Memory::B : 9 GB/s }}",
    "E6016": f"Memory A {{}} Topology GPU {{ memory: Memory::A, {HOME} }}",
    "W1026": "Memory A { scope: device } Topology T { memory: Memory::A }",
    "W1027": f"Memory A {{ scope: device }} Topology T {{ memory: Memory::A, {HOME} relaxed }}",
}


def codes_of_file(text: str) -> set[str]:
    """Codes of the faults of a machine file, or those of its warnings."""
    try:
        return {told.partition(":")[0] for told in vx.read(text, "m.vx").warnings if told[:2] in ("W1", "E6")}
    except DescriptionError as error:
        return {fault.vx_code for fault in error.faults if fault.vx_code}


@pytest.mark.parametrize("code", OF_FILES)
def test_each_code_on_a_declaration_is_told_of_a_file_that_earns_it(code: str) -> None:
    assert code in codes_of_file(FILES[code].replace("} Memory", "}\nMemory").replace("} Topology", "}\nTopology"))


def verdict(fleet: Fleet, **more: int) -> Admission:
    request = Request(prompt_tokens=14, steps=40, **more)
    return admit(
        Ask(fleet=fleet, model=llama2c(), request=request, placement=Placement(prefill="gpu:0", decode="gpu:1"))
    )


def codes_of_plan(admission: Admission) -> dict[str, tuple[str, ...]]:
    return {reason.code: reason.vx_codes for reason in admission.reasons}


def test_a_missing_way_is_e6002_and_from_the_host_w1026_too() -> None:
    assert codes_of_plan(verdict(pair(drop=("gpu:1", "host")))) == {"NO_ROUTE": ("E6002",)}
    lost = verdict(pair(drop=("host", "gpu:1")))
    assert codes_of_plan(lost) == {"NO_ROUTE": ("E6002", "W1026")}
    document = reason_document(lost.reasons[0])
    assert (document["vx_code"], document["vx_also"]) == ("E6002", ["W1026"])


def test_one_line_too_large_is_e6009_and_several_together_e6010() -> None:
    single = codes_of_plan(verdict(pair(capacity=100_000, granule=1)))
    assert single == {"EXCEEDS_CAPACITY": ("E6009", "E6010")}
    together = codes_of_plan(verdict(pair(capacity=1_060_000, granule=1)))
    assert together == {"EXCEEDS_CAPACITY": ("E6010",)}


def test_what_passes_our_budget_alone_has_no_code_of_vx() -> None:
    reasons = verdict(pair(capacity=1_200_000, granule=1)).reasons
    assert {(reason.code, reason.vx_codes) for reason in reasons} == {("EXCEEDS_BUDGET", ())}
    assert not {"vx_code", "vx_also"} & set(reason_document(reasons[0]))


def test_lines_are_rounded_one_by_one_as_tiles_are() -> None:
    lines = {"weights": 1025, "kv_cache": 1, "workspace": 0}
    footprint = ArenaFootprint(arena="gpu:0", device="gpu:0", lines=lines, granule=1024)
    assert tile_codes(footprint, 3 * 1024) == ()
    assert tile_codes(footprint, 3 * 1024 - 1) == ("E6010",)
    assert tile_codes(footprint, 2 * 1024 - 1) == ("E6009", "E6010")
    assert tile_codes(footprint, None) == ()


def test_a_size_that_is_not_known_is_w1029() -> None:
    huge = ArenaFootprint(arena="gpu:0", device="gpu:0", lines={"weights": 2**64}, granule=1)
    assert overflow_codes([huge]) == ("W1029",)
    from dataclasses import replace

    model = replace(llama2c(), unknown=("its layers are not understood",))
    ask = Ask(fleet=pair(), model=model, request=Request(), placement=Placement(prefill="gpu:0", decode="gpu:1"))
    assert codes_of_plan(admit(ask)) == {"MODEL_UNKNOWN": ("W1029",)}


def test_every_code_of_vx_is_produced_here_or_listed_as_impossible_with_its_reason() -> None:
    produced = {*OF_FILES, "E6002", "E6009", "E6010", "W1026", "W1029"}  # each one by a test above
    assert produced | set(NEVER) == ALL
    assert not produced & set(NEVER)
    assert all(len(why) > 20 for why in NEVER.values())
    from scenarios.explain import CODES

    assert set(OF_REASONS) <= set(CODES)


def test_the_page_on_vx_lists_what_cannot_come_about() -> None:
    page = (Path(__file__).parents[2] / "docs" / "vx.md").read_text(encoding="utf-8")
    for code, why in NEVER.items():
        assert f"| {code} | {why} |" in page
    for code, what in OF_REASONS.items():
        assert f"| `{code}` | {what} |" in page


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Command:
    return asker(capfd)


def test_a_plan_of_a_machine_file_tells_the_codes_in_json_and_in_text(tmp_path: Path, ask: Command) -> None:
    path = tmp_path / "m.vx"
    path.write_text("Memory A { capacity: 80 GiB, scope: device }\n" + GOOD)
    refused = ask("admit", "--fleet", path, "--prompt-tokens", "6", "--steps", "12", "-o", "json")
    assert refused.code == 1
    assert refused.document["reasons"][0]["vx_code"] == "E6002"
    assert refused.document["inputs"]["fleet"]["format"] == "vx"
    assert "NO_ROUTE (Vx E6002):" in ask("admit", "--fleet", path, "--prompt-tokens", "6", "--steps", "12").out
    path.write_text(FILES["E6007"].replace("} Memory", "}\nMemory").replace("} Topology", "}\nTopology"))
    faulty = ask("fleet", "check", path, "-o", "json")
    assert faulty.code == 2
    assert [fault["vx_code"] for fault in faulty.document["faults"]] == ["E6007"]
