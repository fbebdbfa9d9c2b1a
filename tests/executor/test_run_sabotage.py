"""The seam of `Hands`: each fault is a few lines, is carried out, and shows in just the facts that must show it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from executor.events import Copied, Dispatched, Event, Label
from executor.facts import RunFacts, run_document
from executor.hands import Hands, Piece
from executor.instance import BaseInstance, Phase
from executor.kernels import run_op
from executor.transformer import Cache, transformer
from planner.orders import Step
from tests.executor.requests import PROMPT, embedded, orders_for, run_once

STEPS = 40


@cache
def clean(attention: str = "device") -> RunFacts:
    return run_once(orders_for(embedded().model, steps=STEPS, attention=attention), embedded(), path="dispatch")


def sabotaged(hands: Hands, attention: str = "device", **options: Any) -> RunFacts:
    orders = orders_for(embedded().model, steps=STEPS, attention=attention)
    return run_once(orders, embedded(), hands=hands, path="dispatch", **options)


def handoff(facts: RunFacts, figure: str = "bytes") -> dict[str, Any]:
    """k and v of the device-to-device rows."""
    rows = run_document(facts)["waybill"]
    return {r["tensor"]: r[figure] for r in rows if r["phase"] == "handoff" and r["src"] != "host" != r["dst"]}


def content_arrived(facts: RunFacts) -> bool:
    assert facts.arrivals
    return all(arrival.digest_src == arrival.digest_dst for arrival in facts.arrivals)


class NoHandoff(Hands):
    def handoff(self, order: int, step: Step) -> None:
        pass


class Swapped(Hands):
    def source(self, piece: Piece) -> Any:
        return super().source(replace(piece, tensor={"k": "v", "v": "k"}[piece.tensor]))


class WrongLayer(Hands):
    def source(self, piece: Piece) -> Any:
        return super().source(replace(piece, layer=(piece.layer + 1) % self.machine.model.n_layers))


class OneShort(Hands):
    def copy(self, piece: Piece) -> None:
        super().copy(replace(piece, p1=piece.p1 - 1))


class Twice(Hands):
    def copy(self, piece: Piece) -> None:
        super().copy(piece)
        if (piece.tensor, piece.layer) == ("k", 0):
            super().copy(piece)


class Remembering(Hands):
    """Keeps what each piece of a handoff held."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], Any] = {}

    def copy(self, piece: Piece) -> None:
        self.kept[piece.tensor, piece.layer] = self.source(piece).array.copy()
        super().copy(piece)


class Stale(Hands):
    """The cache of another prompt lies there already; the copy is not made, but told."""

    def __init__(self) -> None:
        other = Remembering()
        run_once(orders_for(embedded().model, (1, *PROMPT[:0:-1]), steps=STEPS), embedded(), hands=other)
        self.kept = other.kept

    def copy(self, piece: Piece) -> None:
        target = self.target(piece)
        target.array[:] = self.kept[piece.tensor, piece.layer]
        label = Label("handoff", piece.order, piece.tensor, piece.layer, piece.p0, piece.p1 - piece.p0)
        self.hear(Copied("p2p", piece.src, piece.dst, 500, 501, target.nbytes, label))


class RawTheatre(Hands):
    """The copy is made, but decode fetches prefill's own array past the ABI."""

    def forward(
        self, instance: BaseInstance, cache: Cache, ids: Sequence[int], position: int, wants_logits: bool
    ) -> int | None:
        if instance.phase == "decode":
            for tensor in ("k", "v"):
                there = self.machine.cache(self.machine.cache_arena("prefill"), "prefill", tensor)
                own = self.machine.cache(self.machine.cache_arena("decode"), "decode", tensor)
                own.array[:, : len(PROMPT)] = there.array[:, : len(PROMPT)]
        return super().forward(instance, cache, ids, position, wants_logits)


class HostTheatre(Hands):
    def cache(self, phase: Phase) -> Cache:
        return super().cache("prefill")


class OneElsewhere(Hands):
    """One matmul of a decode pass on gpu:0; its operands are carried there and back past the ABI."""

    def dispatch(self, device: str, op: str, out: Any, *operands: Any, label: Label, **scalars: int) -> None:
        if (label.phase, label.step, label.tensor, label.layer) != ("decode", 20, "wq", 1):
            super().dispatch(device, op, out, *operands, label=label, **scalars)
            return
        there = [self.machine.buffer("gpu:0", name).reshape(*out.shape) for name in ("act/q", "act/xb")]
        there[1].array[:] = operands[0].array
        weight = self.machine.buffer("gpu:0", "weights/wq").at(label.layer)
        super().dispatch("gpu:0", op, there[0], there[1], weight, label=label)
        out.array[:] = there[0].array


class AllOnFirst(Hands):
    """Decode runs on gpu:0, on prefill's cache; the trace says gpu:1."""

    def cache(self, phase: Phase) -> Cache:
        return super().cache("prefill")

    def instance(self, phase: Phase, order: int) -> BaseInstance:
        here = self.machine
        self.machine = replace(here, orders=replace(here.orders, decode="gpu:0"))
        try:
            return super().instance(phase, order)
        finally:
            self.machine = here

    def hear(self, event: Event) -> None:
        if isinstance(event, Copied | Dispatched) and event.label.phase == "decode":
            names = ("device",) if isinstance(event, Dispatched) else ("src", "dst")
            event = replace(event, **{n: "gpu:1" for n in names if getattr(event, n) == "gpu:0"})
        super().hear(event)


def gate_last(device: Any, weights: Any, kv: Any, tokens: Any, position: int) -> None:
    """The program text with w1 and w3 in the other order: the same tokens, another sequence."""

    class Reordered:
        def __getattr__(self, name: str) -> Any:
            return getattr(device, name)

        def matmul(self, out: Any, x: Any, weight: Any) -> None:
            other = {"w1": (weights.w3, device.rows().hb2), "w3": (weights.w1, device.rows().hb)}
            if weight.name in other:
                tensors, out = other[weight.name]
                weight = tensors[weight.layer]
            device.matmul(out, x, weight)

    transformer(Reordered(), weights, kv, tokens, position)  # type: ignore[arg-type]  # a stand-in for an instance


class OtherBody(Hands):
    def program(self, phase: Phase) -> Any:
        return gate_last if phase == "decode" else super().program(phase)


class OddPass(Hands):
    passes = 0

    def program(self, phase: Phase) -> Any:
        self.passes += phase == "decode"
        return gate_last if self.passes == 7 else super().program(phase)


class Unstaged(Hands):
    def stage(self, order: int, tensor: str, device: str) -> None:
        if device != "gpu:1":
            super().stage(order, tensor, device)


class Extra(Hands):
    def prepare(self) -> None:
        self.machine.backend.alloc("gpu:1", "extra", (3,), "fp32")


class NoDispatch(Hands):
    def dispatch(self, device: str, op: str, out: Any, *operands: Any, label: Label, **scalars: int) -> None:
        if label.phase == "decode":
            run_op(op, out.array, *(operand.array for operand in operands), **scalars)
        else:
            super().dispatch(device, op, out, *operands, label=label, **scalars)


@pytest.mark.parametrize("memory", ["poisoned", "zeroed"])
def test_a_deleted_handoff_changes_tokens_and_logits(memory: str) -> None:
    facts = sabotaged(NoHandoff(), memory=memory)
    assert facts.tokens != clean().tokens
    assert facts.logits_top1_bits[1:] != clean().logits_top1_bits[1:]
    assert handoff(facts) == {}
    assert not content_arrived(facts)


@pytest.mark.parametrize("hands", [Swapped, WrongLayer, Stale])
def test_wrong_content_of_the_right_size_shows_in_the_digests_alone(hands: type[Hands]) -> None:
    facts = sabotaged(hands())
    assert handoff(facts) == handoff(clean())
    assert handoff(facts, "observed_bytes") == handoff(clean(), "observed_bytes")
    assert facts.edges == clean().edges
    assert not content_arrived(facts)
    assert facts.tokens != clean().tokens


def test_one_position_short_shows_in_counted_and_observed_bytes() -> None:
    facts = sabotaged(OneShort())
    short = {t: n * (len(PROMPT) - 1) // len(PROMPT) for t, n in handoff(clean()).items()}
    assert handoff(facts) == handoff(facts, "observed_bytes") == short
    assert not content_arrived(facts)


def test_a_copy_too_many_shows_in_the_count_alone() -> None:
    facts = sabotaged(Twice())
    assert handoff(facts, "copies")["k"] == handoff(clean(), "copies")["k"] + 1
    assert handoff(facts, "observed_bytes") == handoff(clean(), "observed_bytes")
    assert content_arrived(facts)
    assert facts.tokens == clean().tokens


@pytest.mark.parametrize(("hands", "attention"), [(RawTheatre, "device"), (RawTheatre, "host"), (HostTheatre, "host")])
def test_theatre_needs_no_handoff_to_give_the_right_tokens(hands: type[Hands], attention: str) -> None:
    facts = sabotaged(hands(), attention)
    assert (facts.tokens, facts.edges, facts.arrivals) == (
        clean(attention).tokens, clean(attention).edges, clean(attention).arrivals,
    )  # fmt: skip
    assert sabotaged(hands(), attention, without={"handoff"}).tokens == clean(attention).tokens


def test_one_dispatch_elsewhere_makes_a_run_of_its_own() -> None:
    facts = sabotaged(OneElsewhere())
    assert facts.tokens == clean().tokens
    assert [(d["device"], d["count"]) for d in facts.dispatches][1:] == [
        ("gpu:1", 6 * (7 * embedded().model.n_layers + 1) + 7), ("gpu:0", 1),
        ("gpu:1", 26 * (7 * embedded().model.n_layers + 1) - 6 * (7 * embedded().model.n_layers + 1) - 8),
    ]  # fmt: skip


def test_all_on_one_device_under_a_forged_trace_looks_clean_to_the_ledger() -> None:
    facts = sabotaged(AllOnFirst())
    assert (facts.tokens, facts.dispatches, facts.edges) == (clean().tokens, clean().dispatches, clean().edges)


@pytest.mark.parametrize("hands", [OtherBody, OddPass])
def test_another_function_body_shows_in_the_program(hands: type[Hands]) -> None:
    facts = sabotaged(hands())
    assert facts.tokens == clean().tokens
    assert facts.program["prefill"] == clean().program["prefill"]
    assert facts.program["decode"] != clean().program["decode"]
    assert sorted(facts.program["decode"]) == sorted(clean().program["decode"])


def test_weights_missing_on_a_device_show_in_its_row_and_in_the_witness() -> None:
    facts = sabotaged(Unstaged())
    assert ("stage", "weights", "host", "gpu:1", "host", "gpu:1") in (facts.observed or {})
    rows = [row["dst"] for row in run_document(facts)["waybill"] if row["phase"] == "stage"]
    assert rows == ["gpu:0"]
    assert facts.tokens != clean().tokens


def test_an_allocation_that_nobody_ordered_shows_in_the_high_water_mark() -> None:
    facts = sabotaged(Extra())
    assert facts.resident["gpu:1"] == clean().resident["gpu:1"] + 12
    assert facts.resident["gpu:0"] == clean().resident["gpu:0"]
    assert facts.tokens == clean().tokens


def test_no_decode_dispatch_shows_in_the_dispatches_alone() -> None:
    facts = sabotaged(NoDispatch())
    assert facts.tokens == clean().tokens
    assert [d["phase"] for d in facts.dispatches] == ["prefill"]
    assert facts.edges == clean().edges


def test_what_arrives_without_a_count_is_a_row_of_its_own() -> None:
    class Smuggled(Hands):
        def copy(self, piece: Piece) -> None:
            np.copyto(self.target(piece).array, self.source(piece).array)

    facts = sabotaged(Smuggled())
    assert handoff(facts) == {"k": 0, "v": 0}
    assert handoff(facts, "kind") == {"k": "p2p", "v": "p2p"}
    assert handoff(facts, "observed_bytes") == handoff(clean(), "observed_bytes")
