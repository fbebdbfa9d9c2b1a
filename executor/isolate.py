"""A request in a forked child in which every arena that is no party to the current step is unreadable and unwritable.

A stray access, also one past the ABI, kills the child with SIGSEGV; a page shared with the parent says in which step.
So "decode read only its own cache" is shown by the processor, not by the program's own account. Parties: stage, the
device; prefill and decode, the device and with attention on the host that phase's host array; a hop, its two ends and
the bounce buffer. Known limit: protection is by arena, so on the oracle, where both caches share one, it shows nothing
of them; and only processors have pages that this process can protect.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import resource
import select
import signal
import struct
import time
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import fleet.errors
from executor.check_orders import check_orders
from executor.device import Backend
from executor.facts import RunFacts, StrayReport
from executor.hands import Hands
from executor.machine import Machine
from executor.run import OBSERVERS, Executor, Path
from executor.weights import Weights
from fleet.errors import BackendError, InconclusiveError, KvWaybillError
from planner.orders import Orders

__all__ = ["Isolated", "PageGuard", "run_isolated"]

_PHASES = ("", "stage", "prefill", "handoff", "decode")
_PAGE = struct.Struct("<qqqq")  # phase, order, step, bit mask of the closed arenas
_STEP_OFFSET = 16
_STRAY_SIGNALS = (signal.SIGSEGV, signal.SIGBUS)
_PR_SET_PDEATHSIG = 1
"""prctl(2)."""
_READ_BYTES = 1 << 16
_MAX_RESULT_BYTES = 1 << 28
_POLL_SECONDS = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Isolated:
    """`facts` is None when the child died of a stray access; `stray` then says where."""

    facts: RunFacts | None
    stray: StrayReport


class PageGuard:
    """Closes the arenas that are no party to a step, and notes the step in `page`, which parent and child share."""

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._now = [0, -1, -1, 0]
        self._closed: set[str] = set()

    def enter(self, machine: Machine, phase: str, order: int, parties: frozenset[str]) -> None:
        """Open the parties, close all others."""
        self._set(machine, {name for name in machine.backend.arenas() if name not in parties})
        self._now[:3] = [_PHASES.index(phase), order, -1]
        self._note()

    def step(self, number: int) -> None:
        """A forward pass begins."""
        self._now[2] = number
        self._note()

    def step_address(self) -> int:
        """Where a compiled call writes the number of each pass: the third figure of the shared page."""
        return ctypes.addressof(ctypes.c_int64.from_buffer(self._page, _STEP_OFFSET))

    def look(self, machine: Machine) -> None:
        """Open everything: the witnesses look, or a request is prepared."""
        self._set(machine, set())
        self._now[0] = 0
        self._note()

    def _set(self, machine: Machine, closed: set[str]) -> None:
        arenas = machine.backend.arenas()
        for name in self._closed - closed:
            arenas[name].unprotect()
        for name in closed - self._closed:
            arenas[name].protect()
        self._closed = closed
        self._now[3] = sum(1 << number for number, name in enumerate(arenas) if name in closed)

    def _note(self) -> None:
        _PAGE.pack_into(self._page, 0, *self._now)


def run_isolated(
    orders: Orders,
    weights: Weights,
    backend: type[Backend] | str = "numba",
    *,
    hands: Hands | None = None,
    observers: Collection[str] = OBSERVERS,
    without: Collection[str] = (),
    memory: Literal["poisoned", "zeroed"] = "poisoned",
    path: Path | None = None,
    timeout_s: float = 300.0,
) -> Isolated:
    """One request as `Executor.run` makes it, in a child of its own.

    Raises what the request raises, BackendError when the child dies in another way, and InconclusiveError when this
    system cannot fork or the child does not end within `timeout_s`. The child is always gone when this returns.
    """
    check_orders(orders, weights.model)
    if not hasattr(os, "fork"):
        raise InconclusiveError("isolation needs a system that can fork; run without it")
    page = mmap.mmap(-1, mmap.PAGESIZE)
    options: dict[str, Any] = {"hands": hands, "observers": observers, "without": without, "memory": memory}
    options["path"] = path
    ours, theirs = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # Of forking beside threads: the child takes no lock of theirs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(ours)
        _end_with(parent)
        _in_child(theirs, lambda: Executor(orders, weights, backend, guard=PageGuard(page), **options))
    os.close(theirs)
    try:
        answer, status = _await(ours, child, time.monotonic() + timeout_s, timeout_s)
    finally:
        os.close(ours)
    names = [*(device.id for device in orders.devices), *(a.arena for a in orders.arenas if a.device is None)]
    return _judge(answer, status, page, names)


def _end_with(parent: int) -> None:
    """Have the kernel end this child when its parent ends, also by a signal that leaves the parent no time to. Linux
    only; elsewhere the child ends when it writes its answer to a pipe that nobody reads.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is None:
        return
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def _in_child(pipe: int, make: Any) -> None:
    """Run, send the outcome, end. Never returns: what follows in the parent's stack is not the child's to run."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in _STRAY_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    try:
        with make() as executor:
            answer: tuple[str, Any] = ("facts", executor.run())
    except KvWaybillError as error:
        answer = (type(error).__name__, str(error))
    except BaseException as error:  # noqa: BLE001  # the parent words it; a traceback of the child helps nobody
        answer = ("", f"{type(error).__name__}: {error}")
    try:
        with open(pipe, "wb") as stream:
            pickle.dump(answer, stream)
        os._exit(0)
    finally:
        os._exit(1)


def _await(pipe: int, child: int, deadline: float, timeout_s: float) -> tuple[bytes, int]:
    """(what the child sent, its wait status). Kills and reaps the child on every other way out."""
    reaped = False
    try:
        answer = bytearray()
        while True:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise InconclusiveError(f"the isolated request did not end within {timeout_s:g} s; allow it more time")
            part = os.read(pipe, _READ_BYTES)
            if not part:
                break
            answer += part
            if len(answer) > _MAX_RESULT_BYTES:
                raise BackendError("the isolated request sent more than it can have found out")
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                reaped = True
                return bytes(answer), status
            if time.monotonic() > deadline:
                raise InconclusiveError(f"the isolated request did not end within {timeout_s:g} s; allow it more time")
            select.select([], [], [], _POLL_SECONDS)
    finally:
        if not reaped:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _judge(answer: bytes, status: int, page: mmap.mmap, names: list[str]) -> Isolated:
    phase, order, step, mask = _PAGE.unpack_from(page, 0)
    where = f"{_PHASES[phase]}, order {order}" + (f", pass {step}" if step >= 0 else "")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in _STRAY_SIGNALS or not phase:
            raise BackendError(f"the isolated request was killed by signal {number}{f' in {where}' if phase else ''}")
        name = signal.Signals(number).name
        closed = ", ".join(name for bit, name in enumerate(names) if mask >> bit & 1) or "none"
        detail = f"{name} in {where}: memory outside the step was touched; closed to it: {closed}"
        stray = StrayReport(
            accesses=1,
            detail=detail,
            signal=number,
            phase=_PHASES[phase],
            order=order,
            step=step if step >= 0 else None,
        )
        return Isolated(facts=None, stray=stray)
    if os.WEXITSTATUS(status) != 0 or not answer:
        raise BackendError(f"the isolated request ended without an answer (exit status {os.WEXITSTATUS(status)})")
    kind, value = pickle.loads(answer)  # from our own child, over our own pipe
    if kind == "facts":
        return Isolated(facts=value, stray=value.stray)
    error = getattr(fleet.errors, kind, None)
    if kind == "DescriptionError":
        raise fleet.errors.DescriptionError.at("run", "", value)
    if isinstance(error, type) and issubclass(error, KvWaybillError):
        raise error(value)
    raise BackendError(f"the isolated request failed: {value}")
