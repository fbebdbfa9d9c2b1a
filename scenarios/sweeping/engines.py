"""Where cases are answered: this process, processes of this machine (joblib), or the workers of a Dask scheduler.

An engine yields (key, answer) as answers come, in any order. A worker that dies takes nothing with it: what it held
runs again, and only a case that breaks its worker each time, alone as well, is given up.
"""

from __future__ import annotations

import logging
import os
import queue
import re
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from fleet.errors import BackendError, DescriptionError, InconclusiveError
from scenarios.sweeping.work import answer

TRIES = 2
"""Breakdowns without an answer between them after which a case is tried alone, and tries that it has then."""
PATIENCE = 60
"""Seconds without any worker after which a scheduler is given up."""
CONNECT = 10
"""Seconds within which a scheduler must answer."""
WORKERS = 10
"""Seconds within which it must have a worker."""
_ADDRESS = re.compile(r"(tcp|tls)://[^\s/:]{1,255}(:[0-9]{1,5})?|(tcp|tls)://\[[0-9a-fA-F:.]{2,45}\](:[0-9]{1,5})?")

Answered = tuple[str, bytes]
_watched: list[int] = []


@dataclass(frozen=True, slots=True)
class Task:
    """A case to be answered. `make`: its body and trace, made when it is its turn; `words` name it in messages."""

    key: str
    words: str
    make: Callable[[], tuple[bytes, bytes | None]]


def here(tasks: list[Task]) -> Iterator[Answered]:
    """One after another in this process."""
    for task in tasks:
        yield task.key, answer(*task.make())


def _keyed(asker: int, key: str, body: bytes, trace: bytes | None) -> Answered:
    if not _watched:
        _watched.append(asker)
        threading.Thread(target=_end_with, args=(asker,), daemon=True).start()
    return key, answer(body, trace)


def _end_with(asker: int) -> None:
    """Ends a worker whose asker was killed: nobody is left to tell it so."""
    while os.getppid() == asker:
        time.sleep(1)
    os._exit(1)


def local(tasks: list[Task], jobs: int) -> Iterator[Answered]:
    """In `jobs` processes. Raises BackendError, after all others are answered, for cases that break their worker."""
    if jobs == 1 or len(tasks) < 2:
        yield from here(tasks)
        return
    left = {task.key: task for task in tasks}
    lost: list[Task] = []
    try:
        barren = 0
        while left:
            before = len(left)
            yield from _round(list(left.values()), jobs, left)
            barren = barren + 1 if len(left) == before else 0
            if left and barren >= TRIES:
                first = next(iter(left.values()))
                for _ in range(TRIES):
                    yield from _round([first] * (first.key in left), 2, left)
                if left.pop(first.key, None) is not None:
                    lost.append(first)
                barren = 0
    finally:
        _end_workers()
    _tell_lost(lost)


def _round(tasks: list[Task], jobs: int, left: dict[str, Task]) -> Iterator[Answered]:
    """The tasks once through a pool; answered ones leave `left`. Ends early, without a word, when a worker dies."""
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    calls = (delayed(_keyed)(os.getpid(), task.key, *task.make()) for task in tasks)
    pool = Parallel(n_jobs=jobs, backend="loky", return_as="generator_unordered", batch_size=1, max_nbytes=None)
    answers: Any = pool(calls)
    try:
        for key, found in answers:
            if left.pop(key, None) is not None:
                yield key, found
    except (TerminatedWorkerError, BrokenProcessPool):
        return
    finally:
        with warnings.catch_warnings():  # joblib advises its caller where a sweep is left before its end
            warnings.simplefilter("ignore")
            answers.close()


def _end_workers() -> None:
    """joblib keeps its processes for the next call; a command has none."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor().shutdown(wait=True, kill_workers=True)


def _tell_lost(lost: list[Task]) -> None:
    if not lost:
        return
    named = "; ".join(task.words for task in lost[:5]) + ("; ..." if len(lost) > 5 else "")
    raise BackendError(
        f"{len(lost)} of the cases broke their worker each time, alone as well (out of memory?): {named}; the others"
        " are answered and in the journal"
    )


def check_address(address: str) -> None:
    """Raises DescriptionError for what is no address of a scheduler."""
    if not _ADDRESS.fullmatch(address):
        words = f"{address!r} is no address; write e.g. tcp://10.0.0.5:8786"
        raise DescriptionError.at("command line", "--scheduler", words)


def dask(tasks: list[Task], address: str, program: str) -> Iterator[Answered]:
    """By the workers of a running scheduler. InconclusiveError: not installed, not reachable, no worker, other code."""
    try:
        from distributed import Client
    except ImportError as error:
        words = "--engine dask needs the extra [cluster]: pip install 'kvwaybill[cluster]'"
        raise InconclusiveError(f"{words} ({error})") from error
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)  # what goes wrong is told below, in one sentence
    try:
        client: Any = Client(address, timeout=CONNECT, set_as_default=False)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, RuntimeError) as error:
        raise InconclusiveError(f"no Dask scheduler answers at {address}: {_why(error)}") from error
    with client:
        _check_workers(client, address, program)
        yield from _Cluster(client, address, tasks).answers()


def _why(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_workers(client: Any, address: str, program: str) -> None:
    try:
        client.wait_for_workers(1, timeout=WORKERS)
    except TimeoutError as error:
        words = f"the scheduler at {address} has no worker; start one: dask worker {address}"
        raise InconclusiveError(words) from error
    try:
        found = client.run(worker_program)
    except (ImportError, AttributeError, OSError, ValueError, RuntimeError) as error:
        words = f"a worker of {address} cannot run kvwaybill: {_why(error)}; install this version there"
        raise InconclusiveError(words) from error
    if other := sorted(name for name, one in found.items() if one != program):
        words = f"{len(other)} of {len(found)} workers run other code or another numpy, e.g. {other[0]}"
        raise InconclusiveError(f"{words}; install this version there, or answers would not be comparable")


def worker_program() -> str:
    """What code a worker runs."""
    from scenarios.sweeping.cases import program

    return program()


@dataclass(slots=True)
class _Cluster:
    client: Any
    address: str
    tasks: list[Task]

    def answers(self) -> Iterator[Answered]:
        """Twice as many cases under way as the workers have threads, so that nothing piles up in the scheduler."""
        from distributed import CancelledError, KilledWorker

        done: queue.Queue[Any] = queue.Queue()
        waiting, under_way = iter(self.tasks), dict[str, Task]()
        traces: dict[bytes, Any] = {}
        lost: list[Task] = []
        while True:
            while len(under_way) < 2 * self._threads() and (task := next(waiting, None)) is not None:
                body, trace = task.make()
                if trace is not None and trace not in traces:
                    traces[trace] = self.client.scatter(trace, hash=False)
                future = self.client.submit(answer, body, traces.get(trace) if trace else None, pure=False)
                under_way[future.key] = task
                future.add_done_callback(done.put)
            if not under_way:
                break
            future = self._next(done)
            task = under_way.pop(future.key)
            try:
                yield task.key, future.result()
            except KilledWorker:
                lost.append(task)
            except (CancelledError, OSError) as error:
                words = f"the scheduler at {self.address} is gone: {_why(error)}"
                raise InconclusiveError(f"{words}; what was answered is in the journal") from error
        _tell_lost(lost)

    def _threads(self) -> int:
        workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        return max(1, sum(int(worker["nthreads"]) for worker in workers))

    def _next(self, done: queue.Queue[Any]) -> Any:
        """The next future that ended. Raises InconclusiveError where no worker is left to end one."""
        idle = 0
        while True:
            try:
                return done.get(timeout=5)
            except queue.Empty:
                alive = self.client.status == "running" and self.client.scheduler_info(n_workers=-1)["workers"]
                idle = 0 if alive else idle + 5
            if idle >= PATIENCE:
                words = f"the scheduler at {self.address} has had no worker for {PATIENCE} s"
                raise InconclusiveError(f"{words}; what was answered is in the journal")
