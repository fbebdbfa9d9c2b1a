"""The compiled path of a CUDA device: decode as a captured graph, replayed for every position; prefill in whole chunks.

A graph holds the kernels of a pass and the copy of the chosen id down, which the driver records at every replay; a peer
copy between two cards stays outside. Which operations a replay does was noted as it was captured. Rows of the
ledger are written for a stretch at once, each under the device in whose memory its weight lies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from executor.cuda.driver import Driver, faults, selected
from executor.cuda.lane import SCRATCH_BYTES, Handle, Lane
from executor.cuda.narrow import NarrowSteps, narrow_weights
from executor.cuda.steps import Memory, Steps
from executor.cuda.witness import Tags
from executor.instance import Entry
from executor.ledger import COLUMNS, Ledger
from executor.machine import Machine
from executor.stretch import Span, Stretch, Walked
from fleet.errors import BackendError, BackendUnavailableError, DeviceMismatchError, LedgerOverflowError

__all__ = ["GraphPath"]

BOS = 1
_SEQ, _PHASE, _ORDER, _OP, _SRC, _DST, _LAYER, _POS0, _N_POS, _BYTES, _PASSES = range(len(COLUMNS))
_PHASE_CODES = {"prefill": 1, "decode": 3}
_IDS_AT, _NEXT_AT = SCRATCH_BYTES // 2, 0
"""Where in the pinned scratch ids wait to go up, and where one that came down lies."""


class GraphPath:
    """One phase's compiled calls on a CUDA device, for one request.

    `narrowed`: devices whose weights the request has made narrow by now; both phases of a request share it.
    """

    def __init__(
        self, machine: Machine, ledger: Ledger, lane: Lane, handle: Handle, tags: Tags, narrowed: set[str] | None = None
    ) -> None:
        self._machine, self._ledger, self._lane, self._handle, self._tags = machine, ledger, lane, handle, tags
        self._narrowed: set[str] = set() if narrowed is None else narrowed
        self._driver: Driver = lane.driver
        self._tabled = False
        model = machine.model
        names = [spec.name for spec in model.tensors if spec.role != "unread"]
        self._ops = [*(("matmul", name) for name in names), ("h2d", "tokens"), ("d2h", "next_token"), ("d2h", "logits")]
        self._slots = {op: slot for slot, op in enumerate(self._ops)}

    def run(self, stretch: Stretch, address: Callable[[str], int], places: Sequence[Span]) -> Walked:
        """See `executor.fused_path.FusedPath.run`."""
        lane = self._lane
        machine, phase = self._machine, stretch.phase
        positions = machine.cache(lane.device, phase, "k").shape[1]
        kernels = self._handle.kernels
        narrow = kernels.dtype != "fp32"
        memory = Memory(machine.model, phase, self._checked(address), positions, 2 if narrow else 4)
        steps = (NarrowSteps if narrow else Steps)(kernels, memory)
        with selected(self._driver, lane.ordinal), faults(f"{phase} as compiled calls", lane.device):
            if narrow and lane.device not in self._narrowed:
                narrow_weights(kernels, machine.model, memory, lane.device, self._words)
                self._narrowed.add(lane.device)
            if not self._tabled:
                steps.tables()
                self._tabled = True
            walk = _Walk(self, stretch, steps, places)
            try:
                return walk.batched() if stretch.chunk > 1 else walk.token_by_token()
            except NotImplementedError as error:  # a kernel declines a shape; no other device does its work
                told = f"{lane.device} declined {phase}: {error}; work is not moved to another device"
                raise BackendUnavailableError(told) from error

    def _words(self, address: int, count: int) -> npt.NDArray[np.uint32]:
        """Words of the device, looked at: no row comes of it."""
        words = np.empty(count, np.uint32)
        with self._tags.looking():
            self._driver.copy("d2h", words.ctypes.data, address, words.nbytes, self._lane.stream)
            self._lane.synchronize()
        return words

    def _checked(self, address: Callable[[str], int]) -> Callable[[str], int]:
        """Addresses that the driver says lie on this device; DeviceMismatchError for any other."""

        def find(name: str) -> int:
            at = address(name)
            if self._driver.owner(at) != self._lane.ordinal:
                told = f"{name} lies on device {self._driver.owner(at)}, the work is on {self._lane.ordinal}"
                raise DeviceMismatchError(f"{self._lane.device}: {told}")
            return at

        return find


class _Walk:
    """One stretch under way."""

    def __init__(self, path: GraphPath, stretch: Stretch, steps: Steps, places: Sequence[Span]) -> None:
        self.path, self.stretch, self.steps, self.places = path, stretch, steps, places
        self.lane, self.driver = path._lane, path._driver
        self.memory = steps.memory
        self.sampler = path._machine.sampler
        self.walked = Walked()
        self.calls: list[tuple[npt.NDArray[np.int64], int]] = []
        self.templates: dict[tuple[int, bool], npt.NDArray[np.int64]] = {}
        self.graphs: dict[tuple[int, bool], tuple[Any, list[Entry]]] = {}
        # Of prefill only the last pass has logits, and so one word of bits.
        self.first_bits = stretch.first + (stretch.passes - 1 if stretch.phase == "prefill" else 0)
        device = self.lane.device
        host = path._machine.orders.device(device).host
        phase = stretch.phase
        self.up = (phase, "tokens", host, device, host, device)
        self.down = (phase, "next_token", device, host, device, host)
        self.home = (phase, "logits", device, host, device, host)

    def batched(self) -> Walked:
        """Prefill, `chunk` tokens a call."""
        stretch = self.stretch
        for first in range(0, stretch.passes, stretch.chunk):
            ids = stretch.ids[first : first + stretch.chunk]
            position, last = stretch.first + first, first + len(ids) == stretch.passes
            wants = stretch.wants_logits and last
            self._set_position(position + len(ids) - 1)
            self._lay_out(np.array(ids, np.int32))
            self._upload(0, len(ids))
            self.steps.batch(self.memory.at("act/tokens"), len(ids), position, wants)
            self._did(self.steps.entries, wants, position, len(ids), uploaded=True)
            if wants:
                self._bring_home()
                self._choose()
        return self._end(stretch.passes)

    def token_by_token(self) -> Walked:
        """A pass a token: prefill's ids from the stretch, decode's first one, then what was chosen on the device."""
        stretch = self.stretch
        self._set_position(stretch.first)
        self._lay_out(np.array(stretch.ids, np.int32))
        prefill = stretch.phase == "prefill"
        with self.path._tags.leg(self.down):  # for the copy that a replayed graph makes
            made = self._passes(prefill)
        return self._end(made)

    def _passes(self, prefill: bool) -> int:
        stretch, made = self.stretch, 0
        for number in range(stretch.passes):
            wants = stretch.wants_logits and (not prefill or number == stretch.passes - 1)
            fresh = prefill or self.sampler is not None or (number == 0 and not stretch.continues)
            if fresh and not prefill and number:
                self._lay_out(np.array(self.walked.chosen[-1:], np.int32))
            if fresh:
                self._upload(number if prefill else 0, 1)
            entries = self._replay(self.memory.at("act/tokens" if fresh else "act/next"), wants)
            self._did(entries, wants, stretch.first + number, 1, uploaded=fresh)
            made += 1
            if wants and self._choose() == BOS and not prefill:
                break
        return made

    def _set_position(self, position: int) -> None:
        self.driver.fill(self.memory.position, position, 1, self.lane.stream)  # a memset: no copy, no row

    def _lay_out(self, ids: npt.NDArray[np.int32]) -> None:
        """Ids into pinned memory, from where they go up."""
        if ids.nbytes > SCRATCH_BYTES - _IDS_AT:
            raise BackendError(f"{len(ids):,} ids at once; {(SCRATCH_BYTES - _IDS_AT) // 4:,} fit, use fewer")
        self.lane.synchronize()
        ctypes.memmove(self.lane.scratch + _IDS_AT, ids.ctypes.data, ids.nbytes)

    def _upload(self, first: int, count: int) -> None:
        """The ids of a call: one copy, one row."""
        at = self.lane.scratch + _IDS_AT + 4 * first
        with self.path._tags.leg(self.up):
            self.driver.copy("h2d", self.memory.at("act/tokens"), at, 4 * count, self.lane.stream)

    def _replay(self, source: int, wants_logits: bool) -> list[Entry]:
        """One token by the graph of its kind, which is captured when it is first needed."""
        key = (source, wants_logits)
        if key not in self.graphs:
            self.driver.begin_capture(self.lane.stream)
            try:
                self.steps.token(source, wants_logits, self.first_bits)
                if wants_logits and self.sampler is None:
                    self._bring_home()
            finally:
                graph = self.driver.end_capture(self.lane.stream)
            self.graphs[key] = (graph, self.steps.entries)
        graph, entries = self.graphs[key]
        self.driver.replay(graph, self.lane.stream)
        return entries

    def _bring_home(self) -> None:
        """The id that was chosen, into pinned memory: of a captured step a part of its graph."""
        with self.path._tags.leg(self.down):
            self.driver.copy("d2h", self.lane.scratch + _NEXT_AT, self.memory.at("act/next"), 4, self.lane.stream)

    def _choose(self) -> int:
        """The id that a pass with logits chose: what came home, or drawn from the logits that come now."""
        lane, driver = self.lane, self.driver
        if self.sampler is not None:
            logits = self.sampler.logits
            with self.path._tags.leg(self.home):
                driver.copy("d2h", logits.ctypes.data, self.memory.at("act/logits"), logits.nbytes, lane.stream)
            lane.synchronize()
            chosen, bits = self.sampler.choose()
            self.walked.top1_bits.append(bits)
        else:
            lane.synchronize()
            chosen = ctypes.c_int32.from_address(lane.scratch + _NEXT_AT).value
        self.walked.chosen.append(chosen)
        return chosen

    # The account

    def _did(self, entries: list[Entry], wants: bool, position: int, n_tokens: int, *, uploaded: bool) -> None:
        """The rows of a call: ids up, its matmuls in order, what came home."""
        key = (id(entries), uploaded)
        if key not in self.templates:
            if self.walked.programs.setdefault(wants, entries) != entries and self.walked.odd is None:
                self.walked.odd = entries
            self.templates[key] = self._template(entries, wants, n_tokens, uploaded)
        template = (
            self.templates[key] if self.stretch.chunk == 1 else self._template(entries, wants, n_tokens, uploaded)
        )
        self.lane.dispatched(sum(1 for entry in entries if entry[0] == "matmul"))
        self.calls.append((template, position))

    def _template(self, entries: list[Entry], wants: bool, n_tokens: int, uploaded: bool) -> npt.NDArray[np.int64]:
        """The rows of one call, but for its position."""
        slots = self.path._slots
        found = [(self._place(self.memory.at(f"weights/{e[2]}")), slots["matmul", e[2]], e[1], 0) for e in entries
                 if e[0] == "matmul"]  # fmt: skip
        here = self._place(self.memory.at("act/x"))
        if uploaded:
            found.insert(0, (here, slots["h2d", "tokens"], -1, 4 * n_tokens))
        if wants and self.sampler is not None:
            found.append((here, slots["d2h", "logits"], -1, self.sampler.logits.nbytes))
        elif wants:
            found.append((here, slots["d2h", "next_token"], -1, 4))
        table = np.zeros((len(found), len(COLUMNS)), np.int64)
        wide = np.array(found, np.int64)
        table[:, _OP] = wide[:, 0] * len(self.path._ops) + wide[:, 1]
        table[:, _LAYER], table[:, _BYTES] = wide[:, 2], wide[:, 3]
        table[:, _PHASE], table[:, _ORDER] = _PHASE_CODES[self.stretch.phase], self.stretch.order
        table[:, _N_POS], table[:, _PASSES] = n_tokens, n_tokens
        return table

    def _place(self, address: int) -> int:
        for number, span in enumerate(self.places):
            if span.start <= address < span.end:
                return number
        raise DeviceMismatchError(f"{self.lane.device}: an operand at {address:#x} lies in no place")

    def _end(self, passes: int) -> Walked:
        """Rows into the ledger, bits of the logits, and whether the device went as far as it should have."""
        self.lane.synchronize()
        for graph, _ in self.graphs.values():
            self.driver.end_graph(graph)
        walked = self.walked
        walked.passes = passes
        table = np.concatenate([template for template, _ in self.calls])
        table[:, _POS0] = np.repeat([at for _, at in self.calls], [len(template) for template, _ in self.calls])
        self._enter(table)
        if self.sampler is None:
            walked.top1_bits += self._bits(len(walked.chosen))
        reached, wanted = int(self.path._words(self.memory.position, 1)[0]), self.stretch.first + passes
        if self.stretch.chunk == 1 and reached != wanted:
            raise BackendError(
                f"{self.lane.device}: replayed graphs left off at position {reached}, wanted is {wanted}"
            )
        return walked

    def _bits(self, count: int) -> list[int]:
        """The bits words: one a pass with logits."""
        return [int(word) for word in self.path._words(self.memory.bits, count)] if count else []

    def _enter(self, table: npt.NDArray[np.int64]) -> None:
        rows, count = self.path._ledger.room()
        end = count + len(table)
        if end > len(rows):
            raise LedgerOverflowError(f"the ledger holds {len(rows):,} rows and {end:,} came; make it larger")
        table[:, _SEQ] = np.arange(count, end)
        rows[count:end] = table
        orders = self.path._machine.orders
        ends = [(span.device, orders.device(span.device).host) for span in self.places]
        self.path._ledger.absorb(end, self.stretch.phase, ends, self.path._ops)
