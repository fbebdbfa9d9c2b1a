"""`--assume-host-return`: a missing way home is refused without it; with it the plan is marked and unpriced there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fleet.host_return import assume_host_return
from fleet.machine import Fleet, Host, Link, Switch
from tests.command_line import Ask, asker, fleet, without, write_json
from tests.planner.fleets import GB, device, known, pair

MACHINE = """
Memory HBM { capacity: 80 GiB, bandwidth: 3.35 TB/s, scope: device }
Memory PEER_HBM { capacity: 80 GiB, bandwidth: 3.35 TB/s, scope: device }
Topology Node {
  memory: Memory::HBM, visible: [Memory::HBM, Memory::PEER_HBM],
  transfer Memory::CPU_DRAM -> Memory::HBM : 63 GB/s,
  transfer Memory::HBM -> Memory::PEER_HBM : 450 GB/s
}
"""
ASKED = ("--prompt-tokens", "6", "--steps", "12")
UNDECLARED = {("gpu:0", "host"), ("host", "gpu:1"), ("gpu:1", "host")}


@pytest.fixture
def ask(capfd: pytest.CaptureFixture[str]) -> Ask:
    return asker(capfd)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    path = tmp_path / "pair.vx"
    path.write_text(MACHINE)
    return path


def test_a_machine_file_without_a_way_home_is_refused_with_the_flag_as_its_fix(machine: Path, ask: Ask) -> None:
    refused = ask("admit", "--fleet", machine, *ASKED, "-o", "json")
    assert refused.code == 1
    reasons = refused.document["reasons"]
    assert {tuple(reason["edge"].split("->")) for reason in reasons} == UNDECLARED
    assert all(reason["code"] == "NO_ROUTE" for reason in reasons)
    assert all(reason["fix"] == {"flag": "--assume-host-return", "from": None, "to": True} for reason in reasons)
    assert not [change for change in refused.document["alternatives"] if "field" in change], "a .vx has no such field"
    assert "fix: --assume-host-return;" in ask("admit", "--fleet", machine, *ASKED).out
    admitted = ask("admit", "--fleet", machine, reasons[0]["fix"]["flag"], *ASKED, "-o", "json")
    assert admitted.code == 0


def test_the_plan_says_that_links_were_assumed_and_prices_nothing_over_them(machine: Path, ask: Ask) -> None:
    answer = ask("admit", "--fleet", machine, "--assume-host-return", *ASKED, "-o", "json")
    plan = answer.document
    assert plan["inputs"]["fleet"]["assume_host_return"] is True
    assert sum("assumed (policy)" in words for words in plan["warnings"]) == len(UNDECLARED)
    assert any(words.startswith("assumed:") for words in plan["limits"])
    legs = [leg for row in plan["waybill"] for leg in row["legs"]]
    assert {(leg["src"], leg["dst"]) for leg in legs if leg.get("assumed")} == UNDECLARED
    assert all(leg["seconds"] is None for leg in legs if leg.get("assumed"))
    text = ask("admit", "--fleet", machine, "--assume-host-return", *ASKED).out
    assert "d2h assumed" in text
    assert "h2d assumed" in text


def test_such_a_plan_runs_and_is_compared_and_its_fleet_is_found_again(machine: Path, tmp_path: Path, ask: Ask) -> None:
    out = tmp_path / "plan.json"
    asked = ("--prompt", "Once", "--steps", "12")
    assert ask("admit", "--fleet", machine, "--assume-host-return", *asked, "--plan-out", out).code == 0
    assert ask("run", out).code == 0
    fixed = ask("run", out, "--assume-host-return")
    assert fixed.code == 2
    assert "a plan is fixed" in fixed.err


def test_run_and_prove_of_a_scenario_take_the_flag(machine: Path, ask: Ask) -> None:
    for command in ("run", "prove"):
        more = ("--fleet", machine, "--prefill", "gpu:0", "--decode", "gpu:1", "--steps", "44")
        assert ask(command, "two-gpu", *more).code == 1
        assert ask(command, "two-gpu", *more, "--assume-host-return").code == 0


def test_a_declared_fleet_may_assume_too_and_is_told_when_nothing_was_missing(tmp_path: Path, ask: Ask) -> None:
    lacking = write_json(tmp_path / "lacking.yaml", without(fleet(), ("gpu:1", "host")))
    assert ask("admit", "--fleet", lacking, *ASKED).code == 1
    assert ask("admit", "--fleet", lacking, "--assume-host-return", *ASKED).code == 0
    whole = write_json(tmp_path / "whole.yaml", fleet())
    answer = ask("admit", "--fleet", whole, "--assume-host-return", *ASKED)
    assert answer.code == 0
    assert "adds nothing" in answer.err


def behind_a_switch() -> Fleet:
    """gpu:0 reaches the host through a PCIe switch; gpu:1 has a way there and none back."""
    ways = [("host", "sw"), ("sw", "host"), ("sw", "gpu:0"), ("gpu:0", "sw"), ("sw", "gpu:1")]
    links = tuple(Link(src=src, dst=dst, kind="pcie", bandwidth=known(50 * GB)) for src, dst in ways)
    devices = (device("gpu:0"), device("gpu:1", topology_id=501))
    switch = Switch(id="sw", kind="pcie")
    return Fleet(name="box", hosts=(Host(id="host"),), devices=devices, links=links, switches=(switch,))


def test_a_way_over_switches_is_a_way_and_nothing_is_laid_beside_it() -> None:
    more = assume_host_return(behind_a_switch())
    added = [(link.src, link.dst) for link in more.links if link.assumed]
    assert added == [("gpu:1", "host")]
    assert more.digest != behind_a_switch().digest
    assert assume_host_return(more) is more


def test_assumed_and_declared_unpriced_links_have_two_digests() -> None:
    bare = replace(pair(drop=("gpu:1", "host")), digest="")
    assumed = assume_host_return(bare)
    [link] = [link for link in assumed.links if link.assumed]
    from fleet.digest import fleet_digest

    declared = replace(assumed, links=tuple(replace(k, assumed=False) if k is link else k for k in assumed.links))
    assert fleet_digest(declared) != assumed.digest
