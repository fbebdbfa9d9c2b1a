"""Faults of the driver from the command line: one sentence, the contract's code, nothing left allocated."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from executor.cuda.driver import DriverError
from scenarios.cli.__main__ import main
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver, FakeTrace

RUN = ["run", "two-gpu", "--steps", "44", "--backend", "cupy"]


def _fails(method: str, kind: str, after: int = 0) -> Callable[[], FakeDriver]:
    def made() -> FakeDriver:
        driver = FakeDriver(cards=2)
        driver.faults[method] = (after, kind)  # type: ignore[assignment]  # one of the kinds
        return driver

    return made


def _filled() -> FakeDriver:
    driver = FakeDriver(cards=2)
    driver.room = 1_080_000
    return driver


class _PeerRefused(FakeDriver):
    def enable_peer(self, peer: int) -> None:
        raise DriverError("peer", "cudaErrorTooManyPeers")


CASES = {
    "no room for an arena": (_fails("malloc", "memory"), 3, "allocating an arena of"),
    "room for the weights alone": (_filled, 3, "the line that no longer fits is kv_cache (56,320 B, short by"),
    "no room for the second arena": (_fails("malloc", "memory", 1), 3, "on gpu:1"),
    "a driver older than the runtime": (_fails("count", "too old"), 3, "cudaError made up for count"),
    "no device": (lambda: FakeDriver(order=[]), 3, "no CUDA device is visible"),
    "an ordinal that is not there": (lambda: FakeDriver(cards=1), 3, "gpu:1"),
    "lost while kernels compile": (_fails("module", "lost"), 4, "the device is lost to this process"),
    "lost in a copy": (_fails("copy", "lost", 9), 4, "nothing of this run counts"),
    "lost in a peer copy": (_fails("copy_peer", "lost", 3), 4, "nothing of this run counts"),
    "lost while waiting": (_fails("synchronize", "lost", 30), 4, "start it anew"),
    "lost at a launch": (_fails("launch", "lost", 3), 4, "the device is lost"),
    "kernels that do not compile": (_fails("module", "library"), 3, "compiling kernels on gpu:0"),
    "a stream that cannot be had": (_fails("stream", "memory", 1), 3, "opening a stream on gpu:1"),
    "peer access refused": (lambda: _PeerRefused(cards=2), 3, "the plan says direct"),
    "no peer access": (lambda: FakeDriver(peers=False), 3, "describe the link in the fleet as staged"),
    "TF32 forced on": (lambda: FakeDriver(settings={"NVIDIA_TF32_OVERRIDE": "1"}), 3, "unset it, or set it to 0"),
    "records lost": (lambda: FakeDriver(trace=FakeTrace(lost=2)), 4, "the driver lost 2 records"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_fault_is_a_sentence_and_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, dtype: str
) -> None:
    make, code, words = CASES[name]
    driver = make()
    with on(driver, monkeypatch):
        assert main([*RUN, "--compute-dtype", dtype]) == code
    told = capsys.readouterr()
    assert not told.out
    errors = [line for line in told.err.splitlines() if line.startswith("error")]
    assert len(errors) == 1, told.err
    assert words in errors[0]
    assert "Traceback" not in told.err
    driver.faults.clear()
    assert driver.held == 0


def test_another_profiler_leaves_the_run_inconclusive_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = "CUPTI answered error 39: another profiler holds it, or this user may not use it"
    with on(FakeDriver(cards=2, trace=busy), monkeypatch):
        assert main(RUN) == 3
    assert busy in capsys.readouterr().out
