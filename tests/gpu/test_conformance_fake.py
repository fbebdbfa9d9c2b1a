"""The laws of the device ABI bind the CUDA backend too: here over a driver that is none, and with defects put back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor.device import Backend
from fleet.errors import KvWaybillError
from tests.conformance.laws import LAWS, Law
from tests.conformance.mutants import MUTANTS, Mutant
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(cards=2)


@pytest.fixture
def cuda(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Backend]]:
    with on(driver, monkeypatch) as backend:
        yield backend


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_the_cuda_backend_keeps_the_law(cuda: type[Backend], driver: FakeDriver, law: Law) -> None:
    law.check(cuda)
    assert driver.held == 0, "something stayed allocated"
    assert driver.now == 0, "the caller's current device was changed"


def _judge(law: Law, backend: type[Backend]) -> str:
    try:
        law.check(backend)
    except AssertionError:
        return "broken"
    except KvWaybillError:
        return "refused"
    return "kept"


_PACKED = {m.name for m in MUTANTS.values() if all(law.startswith("packed") for law in m.caught_by)}
"""Defects of a layout that this backend does not have."""


@pytest.mark.parametrize("mutant", [m for m in MUTANTS.values() if m.name not in _PACKED], ids=lambda m: m.name)
def test_a_defect_put_back_is_caught_on_cuda_too(cuda: type[Backend], mutant: Mutant) -> None:
    with mutant.mutation(cuda) as defective:
        verdicts = {law.name: _judge(law, defective) for law in LAWS.values()}
    got_by = {name for name in mutant.caught_by if verdicts[name] == "kept"}
    assert not got_by, f"{mutant.name} got by {sorted(got_by)}"


@pytest.mark.parametrize("law", LAWS.values(), ids=lambda law: law.name)
def test_two_roles_on_one_card_keep_the_law(monkeypatch: pytest.MonkeyPatch, law: Law) -> None:
    with on(FakeDriver(cards=1), monkeypatch) as backend:
        law.check(backend.emulating())  # type: ignore[attr-defined]  # the CUDA backend's own
