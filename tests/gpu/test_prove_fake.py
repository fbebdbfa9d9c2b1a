"""Proofs on the CUDA backend over a driver that is none: every sabotage is caught, and one card claims less."""

from __future__ import annotations

from typing import Any

import pytest

from scenarios.prove import prove
from scenarios.wanted import prepare, wanted_of
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver

STEPS = 45


def proved(monkeypatch: pytest.MonkeyPatch, driver: FakeDriver, name: str, emulate: bool = False, **words: Any) -> Any:
    """The proof of a shipped scenario; nothing of it stays allocated."""
    with on(driver, monkeypatch):
        proof, plan = prove(prepare(wanted_of(name, {"steps": STEPS, **words})), backend="cupy", emulate=emulate)
    assert plan["verdict"] == "admitted"
    assert driver.held == 0
    return proof


def told(proof: Any) -> dict[str, str]:
    """Result by check of the split run."""
    return {check["name"]: check["result"] for check in proof["comparisons"][0]["comparison"]["checks"]}


@pytest.mark.parametrize("name", ["two-gpu", "gpu-and-cpu"])
def test_a_split_is_proved_and_every_sabotage_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    proof = proved(monkeypatch, FakeDriver(cards=2), name)
    missed = {row["sabotage"]: row["detail"] for row in proof["matrix"] if row["verdict"] == "missed"}
    assert not missed
    assert (proof["verdict"], proof["never_failed"]) == ("proved", [])
    assert told(proof)["two_physical_devices"] == "passed"


def test_one_card_in_two_roles_claims_no_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    proof = proved(monkeypatch, FakeDriver(cards=1), "two-gpu", emulate=True)
    assert proof["verdict"] == "proved"
    assert told(proof)["two_physical_devices"] == "inconclusive"
    assert "one card twice" not in {row["sabotage"] for row in proof["matrix"]}
    assert proof["runs"]["split"]["tier"] == "emulated"
