"""Which card a planned device is: hidden, repeated and reordered cards, and drivers that do not agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.backends import cupy_gpu
from executor.cuda.driver import DriverError
from executor.cuda.identity import cards_of
from executor.device import DeviceSpec
from fleet.errors import InconclusiveError
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver, uuid_of


def spec(number: int, uuid: str | None = None) -> DeviceSpec:
    return DeviceSpec(
        id=f"gpu:{number}", topology_id=500 + number, kind="gpu", index=number, fence_bytes=64, uuid=uuid
    )  # fmt: skip


def test_reordered_cards_are_found_by_uuid() -> None:
    found = cards_of(FakeDriver(order=[1, 0]), [spec(0, uuid_of(0)), spec(1, uuid_of(1))], emulate=False)
    assert {name: match.ordinal for name, match in found.items()} == {"gpu:0": 1, "gpu:1": 0}


def test_a_hidden_card_ends_with_words_and_is_never_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    driver = FakeDriver(order=[0])
    driver.machine = FakeDriver(cards=2).machine
    with pytest.raises(InconclusiveError, match=r"gpu:1.*not shown it.*CUDA_VISIBLE_DEVICES=0"):
        cards_of(driver, [spec(0, uuid_of(0)), spec(1, uuid_of(1))], emulate=False)


def test_a_setting_that_the_runtime_refuses_is_told_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,0")
    driver = FakeDriver(cards=1)
    driver.faults["count"] = (0, "no device")
    with pytest.raises(InconclusiveError, match="CUDA_VISIBLE_DEVICES='0,0'"):
        cards_of(driver, [spec(0)], emulate=False)
    with on(driver, monkeypatch):
        assert "0,0" in str(cupy_gpu.probe())


def test_two_drivers_that_disagree_about_a_card_end_it() -> None:
    class Torn(FakeDriver):
        def present(self) -> Any:
            return [replace(card, pci="0000:99:00.0") for card in self.machine]

    with pytest.raises(InconclusiveError, match=r"the driver at 0000:99:00\.0"):
        cards_of(Torn(cards=1), [spec(0)], emulate=False)

    class Blind(FakeDriver):
        def present(self) -> Any:
            return []

    with pytest.raises(InconclusiveError, match="does not list"):
        cards_of(Blind(cards=1), [spec(0)], emulate=False)


def test_emulation_takes_cards_by_turns_and_needs_one() -> None:
    found = cards_of(FakeDriver(cards=2), [spec(n) for n in range(3)], emulate=True)
    assert [match.ordinal for match in found.values()] == [0, 1, 0]
    with pytest.raises(InconclusiveError, match="needs one"):
        cards_of(FakeDriver(order=[]), [spec(0)], emulate=True)


def test_no_library_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Any:
        raise DriverError("library", "cupy cannot be loaded (no such module); install kvwaybill[cuda13]")

    monkeypatch.setattr(cupy_gpu, "make_driver", none)
    assert cupy_gpu.probe() == "cupy cannot be loaded (no such module); install kvwaybill[cuda13]"
