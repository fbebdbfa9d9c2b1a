"""Two phases on two physical devices, on those that were planned: UUID, PCI address, machine and socket decide."""

from __future__ import annotations

from typing import Any

import pytest

from executor import processor
from executor.processor import processor_entry, processor_name
from scenarios.compare import compare
from tests.scenarios.made import clean_run, plan

Document = dict[str, Any]
UUIDS = [f"GPU-{i:08x}-0000-4000-8000-{i:012x}" for i in range(3)]
HERE, THERE = "a" * 32, "b" * 32


def check(comparison: Document, name: str) -> Document:
    found: Document = next(row for row in comparison["checks"] if row["name"] == name)
    return found


def on_device(planned: Document, *entries: Document) -> Document:
    physical = [
        {"device": planned["orders"][phase], "ordinal": 0, "uuid": None, "pci": None, "name": None} | entry
        for phase, entry in zip(("prefill", "decode"), entries, strict=True)
    ]
    return clean_run(planned) | {"tier": "on-device", "physical_devices": physical}


def with_cards(*identities: Document) -> Document:
    """A plan whose devices say which cards they are. Its id is not read by the checks looked at here."""
    planned = plan()
    for device, identity in zip(planned["orders"]["devices"], identities, strict=True):
        device.update(identity)
    return planned


def cpus(*entries: Document) -> Document:
    planned = plan()
    for device in planned["orders"]["devices"]:
        device["kind"] = "cpu"
    return check(compare(planned, on_device(planned, *entries)), "two_physical_devices")


class TestPlannedCards:
    def test_cards_in_the_opposite_order_are_not_those_that_were_planned(self) -> None:
        planned = with_cards({"uuid": UUIDS[0]}, {"uuid": UUIDS[1]})
        run = on_device(planned, {"uuid": UUIDS[1]}, {"uuid": UUIDS[0]})
        for name in ("two_physical_devices", "run_agrees_with_itself"):
            finding = check(compare(planned, run), name)
            assert finding["result"] == "failed"
            assert f"gpu:0 was planned on uuid {UUIDS[0]} and ran on {UUIDS[1]}" in finding["detail"]

    def test_the_planned_cards_under_other_ordinals_and_spellings_pass(self) -> None:
        planned = with_cards({"uuid": UUIDS[0], "pci": "00000000:3B:00.0"}, {"uuid": UUIDS[1], "pci": "0000:5e:00.0"})
        first = {"ordinal": 1, "uuid": UUIDS[0].removeprefix("GPU-").upper(), "pci": "3b:00.0"}
        finding = check(
            compare(planned, on_device(planned, first, {"ordinal": 0, "uuid": UUIDS[1]})), "two_physical_devices"
        )
        assert finding["result"] == "passed", finding["detail"]

    def test_a_card_at_another_address_than_planned_fails(self) -> None:
        planned = with_cards({"pci": "0000:3b:00.0"}, {"pci": "0000:5e:00.0"})
        run = on_device(planned, {"uuid": UUIDS[0], "pci": "0000:86:00.0"}, {"uuid": UUIDS[1], "pci": "0000:5e:00.0"})
        assert check(compare(planned, run), "two_physical_devices")["result"] == "failed"

    def test_emulation_names_no_card_and_is_held_against_none(self) -> None:
        planned = with_cards({"uuid": UUIDS[0]}, {"uuid": UUIDS[1]})
        run = on_device(planned, {"uuid": UUIDS[2]}, {"uuid": UUIDS[2]}) | {"tier": "emulated"}
        assert check(compare(planned, run), "two_physical_devices")["result"] == "inconclusive"
        assert "was planned on" not in str(compare(planned, run)["checks"])

    def test_one_uuid_without_its_prefix_and_hyphens_is_one_card(self) -> None:
        planned = plan()
        bare = UUIDS[1].removeprefix("GPU-").replace("-", "")
        run = on_device(planned, {"uuid": UUIDS[1]}, {"uuid": bare})
        assert check(compare(planned, run), "two_physical_devices")["result"] == "failed"


class TestProcessors:
    def test_two_logical_cpus_of_one_socket_are_one_device(self) -> None:
        finding = cpus({"machine": HERE, "socket": 0}, {"machine": HERE, "socket": 0})
        assert (finding["result"], finding["required"]) == ("failed", True)

    def test_one_machine_whose_sockets_are_not_told_is_never_two(self) -> None:
        for socket in (None, 1):
            finding = cpus({"machine": HERE, "socket": None}, {"machine": HERE, "socket": socket})
            assert finding["result"] == "inconclusive"
            assert "one machine" in finding["detail"]

    def test_two_sockets_are_two_devices_of_one_machine(self) -> None:
        finding = cpus({"machine": HERE, "socket": 0}, {"machine": HERE, "socket": 1})
        assert (finding["result"], finding["detail"]) == ("passed", "two sockets of one machine")

    def test_two_machines_need_two_hashes(self) -> None:
        assert cpus({"machine": HERE}, {"machine": THERE})["result"] == "passed"
        assert cpus({"machine": HERE}, {"machine": None})["result"] == "inconclusive"
        assert cpus({}, {})["result"] == "inconclusive"


class TestEntry:
    def test_two_entries_of_this_machine_name_one_machine(self) -> None:
        first, second = processor_entry("cpu:0"), processor_entry("node1/cpu:0")
        assert first["machine"] == second["machine"]
        assert first | {"device": ""} == second | {"device": ""}
        assert first["name"] == processor_name()
        finding = cpus(first, second)
        assert finding["result"] != "passed"

    def test_a_process_that_may_run_on_two_sockets_names_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(processor, "socket_of", lambda allowed: 0 if allowed == {3} else None)
        monkeypatch.setattr(processor, "_allowed", lambda: {3})
        assert processor_entry()["socket"] == 0
        monkeypatch.setattr(processor, "_allowed", lambda: {3, 4})
        assert processor_entry()["socket"] is None
