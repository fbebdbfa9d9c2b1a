"""Isolation: a clean request strays nowhere, theatre dies in the very step, the parent never hangs, no child stays."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.hands import Hands
from executor.instance import BaseInstance, Phase
from executor.isolate import PageGuard, run_isolated
from executor.run import Executor
from executor.stretch import Stretch, Walked
from executor.transformer import Cache
from fleet.errors import BackendError, CopyError, DescriptionError, InconclusiveError
from planner.orders import Step
from tests.executor.requests import ORACLE, SPLIT, embedded, orders_for, run_once
from tests.executor.test_run_sabotage import AllOnFirst, HostTheatre, OneElsewhere, RawTheatre

STEPS = 40
ROOT = Path(__file__).parents[2]


def orders(attention: str = "device", **request: Any) -> Any:
    return orders_for(embedded().model, steps=STEPS, attention=attention, **request)


@pytest.mark.parametrize("devices", [SPLIT, ORACLE])
@pytest.mark.parametrize("access", ["direct", "staged"])
@pytest.mark.parametrize("attention", ["device", "host"])
def test_a_clean_request_strays_nowhere_and_keeps_its_facts(
    attention: str, access: str, devices: tuple[str, str]
) -> None:
    ordered = orders(attention, peer_access=access, devices=devices)
    isolated, plain = run_isolated(ordered, embedded()), run_once(ordered, embedded())
    assert isolated.stray.accesses == 0
    assert isolated.facts is not None
    assert isolated.facts.stray == isolated.stray
    same = {"rates": {}, "settings": {}, "stray": None}
    assert replace(isolated.facts, **same) == replace(plain, **same)


@pytest.mark.parametrize(
    ("hands", "attention", "first"),
    [
        (RawTheatre, "device", 14),
        (RawTheatre, "host", 14),
        (HostTheatre, "host", 14),
        (OneElsewhere, "device", 20),
        (AllOnFirst, "device", None),
    ],
)
def test_decode_that_reaches_for_the_other_device_dies_in_that_pass(
    hands: type[Hands], attention: str, first: int | None
) -> None:
    ordered = orders(attention)
    isolated = run_isolated(ordered, embedded(), hands=hands(), path="dispatch")
    assert isolated.facts is None
    stray = isolated.stray
    assert (stray.accesses, stray.phase, stray.step, stray.signal) == (1, "decode", first, signal.SIGSEGV)
    assert stray.order == len(ordered.steps) - 1
    closed = stray.detail.rpartition("closed to it: ")[2]
    assert closed == ("gpu:0" if attention == "device" else "gpu:0, host:prefill")


class FusedTheatre(Hands):
    """Decode is given the address of prefill's cache."""

    def address(self, phase: Phase, name: str) -> int:
        if phase == "decode" and name.startswith("kv/"):
            return super().address("prefill", name.replace("decode", "prefill"))
        return super().address(phase, name)


class FusedElsewhere(Hands):
    """One pass of decode, in the middle, is given a weight of the prefill device."""

    odd = False

    def address(self, phase: Phase, name: str) -> int:
        return super().address("prefill" if self.odd and name == "weights/wq" else phase, name)

    def phase(self, stretch: Stretch) -> Walked:
        walked = Walked()
        for first, last in ((0, 6), (6, 7), (7, stretch.passes)) if stretch.phase == "decode" else ():
            ids = tuple(walked.chosen[-1:]) or stretch.ids
            self.odd = first == 6
            part = replace(stretch, first=stretch.first + first, passes=last - first, ids=ids, continues=first > 0)
            walked = walked.then(super().phase(part))
        return walked if walked.passes else super().phase(stretch)


@pytest.mark.parametrize("layout", ["plain", "packed16"])
@pytest.mark.parametrize(("hands", "first"), [(FusedTheatre, 14), (FusedElsewhere, 20)])
def test_a_compiled_call_that_reaches_for_the_other_device_dies_in_that_pass(
    hands: type[Hands], first: int, layout: str
) -> None:
    stray = run_isolated(orders(layout=layout), embedded(), hands=hands()).stray
    assert (stray.accesses, stray.phase, stray.step, stray.signal) == (1, "decode", first, signal.SIGSEGV)
    assert stray.detail.endswith("closed to it: gpu:0")


def test_a_stretch_walked_in_parts_is_the_stretch() -> None:
    class Parts(FusedElsewhere):
        def address(self, phase: Phase, name: str) -> int:
            return Hands.address(self, phase, name)

    whole, parts = (run_once(orders(), embedded(), hands=hands) for hands in (Hands(), Parts()))
    assert replace(whole, rates={}) == replace(parts, rates={})


def test_prefill_and_handoff_may_touch_their_own_arenas_only() -> None:
    class Peeking(Hands):
        def handoff(self, order: int, step: Step) -> None:
            if step.mode == "up":
                int(self.machine.buffer("gpu:1", "act/in").array[0])
            super().handoff(order, step)

    stray = run_isolated(orders("host"), embedded(), hands=Peeking()).stray
    assert (stray.accesses, stray.phase) == (1, "handoff")
    assert stray.detail.endswith("closed to it: gpu:1, host:decode")


class Failing(Hands):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def cache(self, phase: Phase) -> Cache:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (CopyError("odd sizes"), CopyError, "odd sizes"),
        (DescriptionError.at("a", "b", "is wrong"), DescriptionError, "is wrong"),
        (ZeroDivisionError("a slip"), BackendError, "ZeroDivisionError: a slip"),
        (KeyboardInterrupt(), BackendError, "KeyboardInterrupt"),
    ],
)
def test_what_the_child_raises_is_raised_here(error: BaseException, raised: type[Exception], words: str) -> None:
    with pytest.raises(raised, match=words):
        run_isolated(orders(), embedded(), hands=Failing(error), path="dispatch")


class Ending(Hands):
    """Ends its process in decode."""

    def __init__(self, how: Any) -> None:
        self.how = how

    def forward(
        self, instance: BaseInstance, cache: Cache, ids: Sequence[int], position: int, wants_logits: bool
    ) -> int | None:
        if instance.phase == "decode":
            self.how()
        return super().forward(instance, cache, ids, position, wants_logits)


def test_another_death_than_a_stray_access_is_no_verdict() -> None:
    with pytest.raises(BackendError, match=r"killed by signal 9 in decode, order \d+, pass 14"):
        run_isolated(orders(), embedded(), hands=Ending(lambda: os.kill(os.getpid(), signal.SIGKILL)), path="dispatch")
    with pytest.raises(BackendError, match=r"without an answer .exit status 3"):
        run_isolated(orders(), embedded(), hands=Ending(lambda: os._exit(3)), path="dispatch")


def test_a_child_that_never_ends_is_killed_and_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    children, fork = [], os.fork

    def recorded() -> int:
        children.append(fork())
        return children[-1]

    monkeypatch.setattr(os, "fork", recorded)
    with pytest.raises(InconclusiveError, match="did not end within"):
        run_isolated(orders(), embedded(), hands=Ending(signal.pause), path="dispatch", timeout_s=1.0)
    (child,) = children  # this process may have others: workers and trackers of tests before
    with pytest.raises(ChildProcessError):
        os.waitpid(child, os.WNOHANG)


_WAITING = """
import os, signal
from executor.hands import Hands
from executor.isolate import run_isolated
from tests.executor.requests import embedded, orders_for

class Waiting(Hands):
    def forward(self, *arguments, **named):
        os.write(1, b"child")
        while True:
            signal.pause()

run_isolated(orders_for(embedded().model, steps=20), embedded(), hands=Waiting(), path="dispatch")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_when_its_parent_is_killed(number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", _WAITING], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.read(5) == b"child"
        parent.send_signal(number)
        # The child holds the pipe too: its end is read only when nobody is left.
        assert parent.stdout.read() == b""
        assert parent.wait() == -number


def test_wrong_orders_are_refused_before_a_child_is_made() -> None:
    ordered = orders()
    with pytest.raises(DescriptionError, match="batch 1"):
        run_isolated(replace(ordered, workload=replace(ordered.workload, batch=2)), embedded())


def test_the_guard_opens_everything_again_for_the_witnesses() -> None:
    with Executor(orders(), embedded()) as executor, mmap.mmap(-1, mmap.PAGESIZE) as page:
        guard = PageGuard(page)
        guard.enter(executor.machine, "decode", 3, frozenset({"gpu:1"}))
        guard.look(executor.machine)
        arrays = [executor.machine.buffer(d, "act/x").array for d in ("gpu:0", "gpu:1")]
        assert all(np.isnan(array).all() for array in arrays)
