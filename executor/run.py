"""Orders + weights + backend -> RunFacts. Carries out the steps in the sequence listed; decides, predicts nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from executor.check_orders import check_orders
from executor.device import Backend
from executor.discovery import load_backend
from executor.events import Event
from executor.facts import RunFacts, StrayReport
from executor.hands import Hands
from executor.instance import Phase
from executor.ledger import Ledger, Place
from executor.machine import Machine, build_machine
from executor.observers.residency import high_water_marks
from executor.packed.layout import LAYOUT
from executor.paths import PATHS, Path, check_pace, chosen_path, narrow_setting
from executor.recorder import Recorder
from executor.stretch import Stretch
from executor.weights import Weights
from executor.witnessing import Lookout, SeenByDriver, out_of_reach
from fleet.errors import DescriptionError
from fleet.workload import Sampling
from planner.orders import Orders, Step

__all__ = ["PATHS", "Executor", "Guard", "Path", "check_pace", "chosen_path"]

BOS = 1
OBSERVERS = ("arrival", "residency")
Loss = Literal["decode cache", "prefill cache", "decode weights"]
"""Memory that is poisoned anew when decode begins, to see whether decode rests on it."""
LOSSES: tuple[Loss, ...] = ("decode cache", "prefill cache", "decode weights")
_SKIPPABLE = ("handoff",)
_SPARE_ROWS = 4096
_NO_STRAY = "each arena was closed to every step that it is no party to"


class Guard(Protocol):
    """Who may be touched: told before each step which arenas are party to it, and when the witnesses look."""

    def enter(self, machine: Machine, phase: str, order: int, parties: frozenset[str]) -> None: ...
    def step(self, number: int) -> None: ...
    def step_address(self) -> int: ...
    def look(self, machine: Machine) -> None: ...


class Executor:
    """A machine built from orders, and requests run on it one after the other.

    Each `run` poisons every arena anew (or, `memory="zeroed"`, clears it) and stages the weights again, so nothing of
    the last request is left. `hands` is where a fault is put in on purpose; `observers` are the witnesses that look;
    `without` may hold `handoff`: the device-to-device copies are then left out. `lose` names memory that is poisoned
    when decode begins; that is done here and not by the hands, so no hands can know of it. `path`: each phase as one
    compiled call (`fused`) or operation by operation (`dispatch`); see `chosen_path` for what None means. `tell` hears
    when kernels have to be compiled first, and how long it took. `fast` fuses multiplies with adds and takes another
    exp: the logits differ in their last bits. `threads` share the rows of a matmul, same bits. Raises DescriptionError
    when orders and weights do not fit, BackendError when the device does not do what it should; nothing stays allocated
    then.
    """

    def __init__(
        self,
        orders: Orders,
        weights: Weights,
        backend: type[Backend] | str = "numba",
        *,
        hands: Hands | None = None,
        observers: Collection[str] = OBSERVERS,
        without: Collection[str] = (),
        memory: Literal["poisoned", "zeroed"] = "poisoned",
        lose: Loss | None = None,
        guard: Guard | None = None,
        path: Path | None = None,
        tell: Callable[[str], None] | None = None,
        fast: bool = False,
        threads: int = 1,
    ) -> None:
        _known("observers", observers, OBSERVERS)
        _known("without", without, _SKIPPABLE)
        check_orders(orders, weights.model)
        self.orders, self.weights = orders, weights
        self.hands = Hands() if hands is None else hands
        self._observers, self._without, self._memory, self._guard = observers, without, memory, guard
        self._lose = lose
        self._request = 0
        self._lookout: Lookout | None = None
        backend_class = load_backend(backend) if isinstance(backend, str) else backend
        self.path = chosen_path(orders, backend_class, path)
        check_pace(orders, self.path, fast, threads)
        self._fast, self._threads = fast, threads
        self._pace = (True if fast else None, None if threads == 1 else threads)
        processor = not hasattr(backend_class, "compiled_path")  # else a backend compiles for its own devices
        if self.path == "fused" and processor:
            from executor.packed.ready import make_ready

            make_ready(*self._pace, None if orders.workload.layout == LAYOUT else True, tell)
        elif orders.workload.attention == "host" or (backend_class.runs_fused and processor):
            from executor.ready import kernel_calls, make_calls_ready, stored_calls

            work = orders.workload
            calls = kernel_calls(draws=work.sampling is not None, packed=work.layout == LAYOUT)
            make_calls_ready([*calls, *stored_calls(weights.model, work.kv_dtype)], tell)
        self.machine = build_machine(orders, weights.model, backend_class, self._ignore, self._request)
        self.hands.attach(self.machine, weights, self._hear)
        self.machine.backend.listener = self.hands.hear
        physical = {entry["device"]: entry for entry in self.machine.backend.physical_devices()}
        on_device = self.machine.backend.tier == "on-device"
        self._places = [
            Place(
                id=d.id,
                kind=d.kind,
                topology_id=d.topology_id,
                ordinal=physical.get(d.id, {}).get("ordinal", d.index) if on_device else d.index,
                uuid=physical.get(d.id, {}).get("uuid"),
            )
            for d in orders.devices
        ]
        self.ledger = Ledger(0, self._places)
        self._recorder = Recorder()

    def _ignore(self, event: Event) -> None:
        """Buffers are placed before the first request; no row comes of it."""

    def _hear(self, event: Event) -> None:
        self.ledger.hear(event)
        if self._lookout is not None:
            self._lookout.witness.hear(event)

    def run(self) -> RunFacts:
        """One request from poisoned memory to facts. May be called again; closes the machine when anything fails."""
        try:
            return self._run()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give everything back. Closing twice is harmless."""
        self.machine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self) -> RunFacts:
        self._reset()
        looked: set[str] = set()
        last_of_handoff = max((n for n, step in enumerate(self.orders.steps) if step.op == "handoff"), default=-1)
        for order, step in enumerate(self.orders.steps):
            if step.op == "prefill":
                self._look("stage", looked)
            elif step.op == "decode":
                self._look("handoff", looked)
                self._lose_memory()
            self._enter(order, step)
            began = time.perf_counter_ns()
            self._step(order, step)
            if order == last_of_handoff:
                # Its copies may still be under way: the span of the last step holds the wait for all of them.
                self.machine.backend.synchronize(self.orders.decode)
            if not self._left_out(step):
                self._recorder.span(step, began, time.perf_counter_ns())
        self._look("handoff", looked)
        if self._lookout is not None:
            self._open_all()
            self._lookout.after_decode(self._recorder.passes["decode"])
        self._end_trace()
        return self._facts()

    def _begin_trace(self) -> None:
        """Where the driver keeps an account, and witnesses are asked for, it begins now."""
        backend = self.machine.backend
        self._sight: Any = None
        self._unseen: str | None = None
        if "arrival" in self._observers and isinstance(backend, SeenByDriver):
            self._unseen = backend.begin_trace()

    def _end_trace(self) -> None:
        if "arrival" in self._observers and isinstance(self.machine.backend, SeenByDriver):
            self._sight = self.machine.backend.end_trace()

    def _driver(self) -> dict[str, Any] | None:
        backend = self.machine.backend
        if not isinstance(backend, SeenByDriver):
            return None
        seen = {"witness": "none", "why_not": self._unseen} if self._sight is None else self._sight.document()
        return backend.report() | seen

    def _open_all(self) -> None:
        if self._guard is not None:
            self._guard.look(self.machine)

    def _lose_memory(self) -> None:
        """Poison what `lose` names, in every arena that holds it."""
        if self._lose is None:
            return
        self._open_all()
        machine, orders = self.machine, self.orders
        arenas = machine.backend.arenas()
        device = orders.prefill if self._lose == "prefill cache" else orders.decode
        prefix = "weights/" if self._lose == "decode weights" else f"kv/{self._lose.split()[0]}/"
        for arena in (device, f"host:{self._lose.split()[0]}"):
            for name, buffer in machine.buffers.get(arena, {}).items():
                if name.startswith(prefix):
                    buffer.fill(arenas[arena].poison)

    def _reset(self) -> None:
        self._request = self._next_request()
        if self._guard is not None:
            self._guard.look(self.machine)
        self.ledger = Ledger(self._ledger_rows(), self._places)
        self._recorder = Recorder()
        self.machine.backend.poison(self._request)
        if self._memory == "zeroed":
            for arena in self.machine.backend.arenas().values():
                arena.fill(0)
        self._begin_trace()
        self._lookout = Lookout(self.machine) if "arrival" in self._observers else None
        if self._lookout is not None:
            self._lookout.before(zeroed=self._memory == "zeroed")
        if self.path == "fused":
            from executor.fused_path import FusedPath

            step_at = 0 if self._guard is None else self._guard.step_address()
            make: Any = getattr(self.machine.backend, "compiled_path", FusedPath)
            self.hands.fused = make(self.machine, self.ledger, step_at, self._pace)
        if self.machine.sampler is not None:
            self.machine.sampler.restart()
        self.hands.prepare()

    def _next_request(self) -> int:
        """The next number whose poison stands in no weight: else the witness would take such a weight for poison."""
        request = self._request + 1
        while self.weights.holds_nan and any(
            map(self.weights.contains_word, self.machine.backend.poison_words(request))
        ):
            request += 1
        return request

    def _ledger_rows(self) -> int:
        """Room for every event that the orders can cause, and as much again for those that they do not list."""
        orders, work = self.orders, self.orders.workload
        layers = self.weights.model.n_layers
        matmuls = (7 * layers + 1) * work.passes * (3 if work.attention == "host" else 1)
        handoff = sum(layers * work.positions * 2 for step in orders.steps if step.op == "handoff")
        return 2 * (len(orders.steps) + matmuls + 2 * work.passes + min(handoff, 1 << 22)) + _SPARE_ROWS

    def _step(self, order: int, step: Step) -> None:
        if step.op == "stage":
            assert step.tensor is not None
            self.hands.stage(order, step.tensor, step.dst)
        elif step.op == "prefill":
            self._prefill(order)
        elif step.op == "decode":
            self._decode(order)
        elif not self._left_out(step):
            self.hands.handoff(order, step)

    def _left_out(self, step: Step) -> bool:
        """Whether `without` leaves this order out: the device-to-device copies of the handoff."""
        return step.op == "handoff" and step.mode not in ("up", "down") and "handoff" in self._without

    def _enter(self, order: int, step: Step) -> None:
        if self._guard is None:
            return
        parties = {step.dst}
        if step.op == "handoff" and step.src is not None:
            parties |= {step.src, "host:bounce"} if step.mode == "staged" else {step.src}
        elif step.op in ("prefill", "decode"):
            parties.add(self.machine.cache_arena(step.op))
        self._guard.enter(self.machine, step.op, order, frozenset(parties))

    def _look(self, after: str, looked: set[str]) -> None:
        if self._lookout is None or after in looked:
            return
        looked.add(after)
        self._open_all()
        if after == "stage":
            self._lookout.after_stage()
        else:
            self._lookout.after_handoff()

    def _prefill(self, order: int) -> None:
        """min(P, N) passes; fewer when the prompt itself holds a BOS: llama2.c stops at a forced one too.

        A model that is not llama2.c's has no such id here: it makes the passes that were planned.
        """
        work = self.orders.workload
        prompt = list(work.prompt_ids or ())
        passes = min(len(prompt), work.passes)
        passes = next((i for i in range(1, passes) if self._ends(prompt[i])), passes)
        self._recorder.tokens = prompt[: passes + 1]
        if self.path == "fused":
            self._prefill_fused(order, prompt, passes)
            return
        instance, cache = self.hands.instance("prefill", order), self.hands.cache("prefill")
        for first in range(0, passes, work.prefill_chunk):
            ids = prompt[first : min(first + work.prefill_chunk, passes)]
            began = self._pass_begins(first)
            last = first + len(ids) == len(prompt)
            sampled = self.hands.forward(instance, cache, ids, first, last)
            self._recorder.call(instance, len(ids), began)
            if last and sampled is not None:
                self._chosen(sampled)

    def _prefill_fused(self, order: int, prompt: list[int], passes: int) -> None:
        """The first call goes alone: llama2.c's own rate counts from its end."""
        chunk = self.orders.workload.prefill_chunk
        alone = min(chunk, passes)
        for first, last in ((0, alone), (alone, passes)):
            if first < last:
                ids, wants_logits = tuple(prompt[first:last]), last == len(prompt)
                self._walk(Stretch(
                    phase="prefill", order=order, first=first, passes=last - first, ids=ids, chunk=chunk,
                    wants_logits=wants_logits,
                ))  # fmt: skip

    def _decode(self, order: int) -> None:
        recorder, work = self._recorder, self.orders.workload
        if self._ends(recorder.tokens[-1]) and len(recorder.tokens) > 1:
            return
        if self.path == "fused":
            passes, ids = work.passes - work.prompt_tokens, tuple(recorder.tokens[-1:])
            self._walk(Stretch(phase="decode", order=order, first=work.prompt_tokens, passes=passes, ids=ids))
            return
        instance, cache = self.hands.instance("decode", order), self.hands.cache("decode")
        for position in range(work.prompt_tokens, work.passes):
            began = self._pass_begins(position)
            sampled = self.hands.forward(instance, cache, recorder.tokens[-1:], position, True)
            recorder.call(instance, 1, began)
            assert sampled is not None
            self._chosen(sampled)
            if self._ends(sampled):
                return

    def _ends(self, token: int) -> bool:
        """Whether an id ends a walk."""
        return token == BOS and self.weights.model.recipe is None

    def _walk(self, stretch: Stretch) -> None:
        began = self._pass_begins(stretch.first)
        walked = self.hands.phase(stretch)
        self._recorder.walk(stretch.phase, walked, began)
        for token in walked.chosen:
            self._chosen(token)

    def _pass_begins(self, number: int) -> float:
        if self._guard is not None:
            self._guard.step(number)
        return time.perf_counter()

    def _chosen(self, token: int) -> None:
        self._recorder.tokens.append(token)
        self._recorder.generated.append(token)

    def _facts(self) -> RunFacts:
        recorder, work, backend = self._recorder, self.orders.workload, self.machine.backend
        stopped: Literal["steps", "bos"] = "steps"
        if self._ends(recorder.tokens[-1]) and len(recorder.tokens) > 1:
            stopped = "bos"
        witness = None if self._lookout is None else self._lookout.witness
        high_water = high_water_marks(backend.arenas()) if "residency" in self._observers else {}
        return RunFacts(
            backend=backend.name,
            tier=backend.tier,
            physical_devices=tuple(backend.physical_devices()),
            tokens=tuple(recorder.tokens),
            generated_tokens=tuple(recorder.generated),
            n_prompt_tokens=work.prompt_tokens,
            device_kinds={device.id: device.kind for device in self.orders.devices},
            stopped=stopped,
            passes=dict(recorder.passes),
            dispatches=tuple(self.ledger.dispatches()),
            program={phase: tuple(recorder.program(phase)) for phase in _PHASES},
            logits_top1_bits=tuple(recorder.top1_bits),
            waybill=tuple(self.ledger.waybill_rows(work.prompt_tokens, recorder.passes)),
            edges=tuple(self.ledger.edges()),
            observed=None if witness is None else dict(witness.observed),
            arrivals=None if witness is None else tuple(witness.digests),
            resident=high_water,
            cache_written=None if witness is None else witness.written,
            stray=StrayReport(accesses=0, detail=_NO_STRAY) if self._guard is not None else None,
            rates={
                "prefill_tok_s": recorder.tokens_per_second("prefill"),
                "decode_tok_s": recorder.tokens_per_second("decode"),
                "llama2c_tok_s": recorder.llama2c_tokens_per_second(),
            },
            settings={
                "attention": work.attention,
                "kv_extent": work.kv_extent,
                "layout": work.layout,
                "positions": work.positions,
                "prefill_chunk": work.prefill_chunk,
                "memory": self._memory,
                "lose": self._lose,
                "without": sorted(self._without),
                "observers": sorted(self._observers),
                "isolated": self._guard is not None,
                "threads": self._threads,
                "fast": self._fast,
                **_choice(work.sampling),
                **narrow_setting(backend),
            },
            path=self.path,
            driver_seen=None if self._sight is None else dict(self._sight.seen),
            far=out_of_reach(self.machine),
            driver=self._driver(),
            spans=tuple(recorder.spans),
        )


_PHASES: tuple[Phase, ...] = ("prefill", "decode")


def _choice(sampling: Sampling | None) -> dict[str, float | int]:
    """How ids were chosen, for the settings; top-p and seed mean nothing at temperature 0."""
    return {"temperature": 0.0} if sampling is None else asdict(sampling)


def _known(what: str, given: Collection[str], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise DescriptionError.at("run", what, f"{name!r} is not known; use {', '.join(known)}")
