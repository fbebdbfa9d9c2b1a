"""The two-GPU acceptance over a driver that is none: what it accepts, and what one card may not claim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.load import load_fleet
from scenarios.acceptance import fleets, parts, two_gpu
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver

TOPOLOGY = two_gpu.ONE_CARD


def accepted(monkeypatch: pytest.MonkeyPatch, out: Path, cards: int) -> tuple[int, dict[str, Any]]:
    """(exit code, summary) of the quick acceptance with so many cards."""
    monkeypatch.setattr(two_gpu, "topology_text", lambda: TOPOLOGY)
    monkeypatch.setattr(two_gpu, "agreement", lambda planned: {"agree": True})
    monkeypatch.setattr(parts, "other_order", lambda *_: {"code": 0, "on_planned_cards": True, "said": ""})
    monkeypatch.setattr(parts, "links", lambda *_: {"pair": {"both_at_once": {}}, "counters": {}})
    driver = FakeDriver(cards=cards, room=8 << 30)
    with on(driver, monkeypatch):
        code = two_gpu.main(["--out", str(out), "--quick"])
    assert driver.held == 0
    return code, json.loads((out / "summary.json").read_text())


def test_two_cards_are_accepted_and_the_plans_were_there_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, summary = accepted(monkeypatch, tmp_path, 2)
    assert (code, summary["verdict"], summary["wrong"]) == (0, "accepted", [])
    frozen = json.loads((tmp_path / "plans" / "frozen.json").read_text())["plans"]
    assert [plan["plan_id"] for plan in frozen] == [run["plan_id"] for run in summary["runs"]]
    split = next(run for run in summary["runs"] if run["case"].endswith("split 0->1"))
    assert {tuple(copy[:3]) for copy in split["handoff"]["driver"]} == {("p2p", 0, 1)}
    assert sum(copy[4] for copy in split["handoff"]["driver"]) == split["handoff"]["predicted_bytes"]
    assert [entry[0] for entry in split["current_device_at_dispatch"]] == [0, 1]


def test_one_card_runs_everything_and_claims_no_two_devices(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, summary = accepted(monkeypatch, tmp_path, 1)
    assert (code, summary["verdict"], summary["wrong"]) == (3, "cannot claim two devices", [])
    assert {run["tier"] for run in summary["runs"] if "->" in run["case"]} == {"emulated"}


def test_a_run_that_differs_is_told_and_nothing_is_accepted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = parts.run_and_compare

    def broken(bench: Any) -> Any:
        run = real(bench)
        run["comparison"] |= {"verdict": "different"}
        return run

    monkeypatch.setattr(parts, "run_and_compare", broken)
    code, summary = accepted(monkeypatch, tmp_path, 2)
    assert (code, summary["verdict"]) == (1, "different")
    assert len(summary["wrong"]) == len(summary["runs"])


def test_a_switch_between_cards_and_a_matrix_of_them_agree_on_lanes() -> None:
    direct = load_fleet("x", text=TOPOLOGY, sku="h200-sxm-141")
    (between, *_) = [link for link in direct.links if link.kind == "nvlink"]
    over = [replace(between, src=f"gpu:{n}", dst="nvswitch") for n in (0, 1)]
    switched = replace(direct, links=(*(link for link in direct.links if link.kind != "nvlink"), *over))
    assert fleets._lanes(direct) == fleets._lanes(switched) == {"gpu:0 nvlink": 18, "gpu:1 nvlink": 18}
    fewer = replace(switched, links=(*switched.links[:-1], replace(over[1], count=12)))
    assert fleets._lanes(fewer) != fleets._lanes(direct)
