"""Whole requests on the CUDA backend over a driver that is none: tokens, rows, the driver's witness, identity."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from executor.backends import cupy_gpu
from executor.cuda.kernels import LARGEST_HEAD
from executor.device import Backend, Buffer
from executor.events import Label
from executor.facts import RunFacts, run_document
from executor.hands import Hands, Piece
from executor.instance import Phase
from executor.run import Executor
from fleet.errors import BackendError, BackendUnavailableError, DeviceMismatchError, InconclusiveError
from planner.plan import make_orders, prediction_document
from tests.executor.requests import BACK, ORACLE, SPLIT, admitted, embedded, random_weights, run_once
from tests.executor.test_run import rows
from tests.gpu.fake import on
from tests.gpu.fake_driver import FakeDriver, FakeTrace
from tests.planner.fleets import llama2c

TO_CPU, FROM_CPU = ("gpu:0", "cpu:0"), ("cpu:0", "gpu:1")
PATHS = ["dispatch", "fused"]
LOOKED_AT = ("stage", "handoff")


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(cards=2)


@pytest.fixture
def cuda(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Backend]]:
    with on(driver, monkeypatch) as backend:
        yield backend


def as_predicted(backend: Any, **request: Any) -> tuple[RunFacts, dict[str, Any]]:
    """A run on the embedded model, with its rows held against the plan's: bytes, copies, and who saw them."""
    options = {"hands": request.pop("hands", None), "path": request.pop("path", "dispatch")}
    admission = admitted(embedded().model, steps=request.pop("steps", 24), **request)
    facts = run_once(make_orders(admission), embedded(), backend=backend, **options)
    run = run_document(facts)

    assert rows(run, 1) == rows(prediction_document(admission), 1)
    for row in run["waybill"]:
        for leg in row["legs"]:
            on_card = "gpu" in leg["src"] + leg["dst"]
            assert leg["witness"] == ("cupti" if on_card else "arrival" if row["phase"] in LOOKED_AT else "none")
            if on_card:
                assert (leg["observed_bytes"], leg["observed_copies"]) == (leg["bytes"], leg["copies"])
    assert [d.digest_src for d in facts.arrivals or ()] == [d.digest_dst for d in facts.arrivals or ()]
    return facts, run


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("attention", ["device", "host"])
@pytest.mark.parametrize("devices", [SPLIT, BACK, ORACLE, TO_CPU, FROM_CPU])
@pytest.mark.parametrize("access", ["direct", "staged"])
def test_a_run_has_the_processors_tokens_and_the_plans_rows(
    cuda: type[Backend], driver: FakeDriver, access: str, devices: tuple[str, str], attention: str, path: str
) -> None:
    if attention == "host" and path == "fused":
        path = "dispatch"
    request = {"devices": devices, "peer_access": access, "attention": attention}
    facts, run = as_predicted(cuda, path=path, **request)
    admission = admitted(embedded().model, steps=24, **request)
    assert facts.tokens == run_once(make_orders(admission), embedded()).tokens
    assert run["tier"] == "on-device"
    assert driver.held == 0
    assert "copy_peer" in driver.calls if (devices in (SPLIT, BACK) and access == "direct") else True


def test_what_was_current_at_dispatch_and_the_uuids_are_in_the_run(cuda: type[Backend], driver: FakeDriver) -> None:
    _, run = as_predicted(cuda)
    shown = run["driver"]["current_device_at_dispatch"]
    assert [(d["device"], d["ordinal"], d["uuid"]) for d in shown] == [
        ("gpu:0", 0, driver.machine[0].uuid),
        ("gpu:1", 1, driver.machine[1].uuid),
    ]
    assert [(d["ordinal"], d["uuid"]) for d in run["dispatches"]] == [(n, driver.machine[n].uuid) for n in (0, 1)]
    handoff = [c for c in run["driver"]["copies"] if c["phase"] == "handoff"]
    assert {(c["kind"], c["src_ordinal"], c["dst_ordinal"]) for c in handoff} == {("p2p", 0, 1)}
    assert all(c["peer_calls"] == c["copies"] for c in handoff)


def test_a_plan_runs_on_the_planned_cards_in_whatever_order_they_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(order=[1, 0])
    orders = make_orders(admitted(embedded().model, steps=20))

    devices = tuple(
        replace(d, uuid=driver.machine[d.index].uuid) if d.kind == "gpu" and d.index is not None else d
        for d in orders.devices
    )
    with on(driver, monkeypatch) as backend:
        facts = run_once(replace(orders, devices=devices), embedded(), backend=backend)
    assert [(d["device"], d["ordinal"]) for d in facts.dispatches] == [("gpu:0", 1), ("gpu:1", 0)]
    assert [d["uuid"] for d in facts.dispatches] == [driver.machine[0].uuid, driver.machine[1].uuid]


def test_an_absent_card_is_code_3_and_emulated_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(cards=1)
    orders = make_orders(admitted(embedded().model, steps=20))
    with on(driver, monkeypatch) as backend:
        with pytest.raises(InconclusiveError, match="gpu:1"):
            run_once(orders, embedded(), backend=backend)
        assert driver.held == 0
        facts, run = as_predicted(cupy_gpu.Backend.emulating())
    assert (facts.tier, {d["uuid"] for d in facts.physical_devices}) == ("emulated", {driver.machine[0].uuid})
    handoff = [c for c in run["driver"]["copies"] if c["phase"] == "handoff"]
    assert {(c["kind"], c["src_ordinal"], c["dst_ordinal"]) for c in handoff} == {("d2d", 0, 0)}


class _Unplanned(Hands):
    """A copy that nobody ordered beside each of K's and V's, made past the ABI."""

    def handoff(self, order: int, step: Any) -> None:
        super().handoff(order, step)
        backend: Any = self.machine.backend
        lane, arena = backend._lanes["gpu:1"], backend.arenas()["gpu:1"]
        with backend._select(backend.devices["gpu:1"]):
            backend._driver.copy("d2d", arena.address, arena.address, 64, lane.stream)


def test_a_copy_that_nobody_ordered_is_a_row_of_its_own(cuda: type[Backend]) -> None:
    admission = admitted(embedded().model, steps=24)
    run = run_document(run_once(make_orders(admission), embedded(), backend=cuda, hands=_Unplanned()))
    (odd,) = [row for row in run["waybill"] if not row["bytes"]]
    assert (odd["phase"], odd["src"], odd["dst"], odd["observed_bytes"]) == ("unattributed", "gpu:1", "gpu:1", 128)


class _Untold(Hands):
    """The copy is told and not made."""

    def copy(self, piece: Piece) -> None:
        backend: Any = self.machine.backend
        real, backend._p2p = backend._p2p, lambda *_: None
        try:
            super().copy(piece)
        finally:
            backend._p2p = real


def test_a_copy_that_is_only_told_is_not_seen_by_the_driver(cuda: type[Backend]) -> None:
    run = run_document(
        run_once(make_orders(admitted(embedded().model, steps=24)), embedded(), backend=cuda, hands=_Untold())
    )
    told = [(row["bytes"] > 0, row["observed_bytes"]) for row in run["waybill"] if row["phase"] == "handoff"]
    assert told == [(True, 0), (True, 0)]
    assert any(a["digest_src"] != a["digest_dst"] for a in run["arrivals"])


def test_without_the_library_nothing_of_a_card_is_witnessed(monkeypatch: pytest.MonkeyPatch) -> None:
    with on(FakeDriver(trace="CUPTI is not installed"), monkeypatch) as backend:
        facts = run_once(make_orders(admitted(embedded().model, steps=20)), embedded(), backend=backend)
    run = run_document(facts)
    assert {row["witness"] for row in run["waybill"]} == {"none"}
    assert run["driver"]["why_not"] == "CUPTI is not installed"


def test_lost_records_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(trace=FakeTrace(lost=3))
    with on(driver, monkeypatch) as backend, pytest.raises(BackendError, match="lost 3 records"):
        run_once(make_orders(admitted(embedded().model, steps=20)), embedded(), backend=backend)
    assert driver.held == 0


@pytest.mark.parametrize(
    ("method", "kind", "error", "words"),
    [
        ("malloc", "memory", InconclusiveError, "B are free"),
        ("count", "too old", InconclusiveError, "newer driver"),
        ("copy", "lost", BackendError, "nothing of this run counts"),
        ("launch", "lost", BackendError, "the device is lost"),
        ("copy_peer", "lost", BackendError, "gpu:1"),
        ("module", "library", InconclusiveError, "compiling kernels on gpu:0"),
        ("stream", "memory", InconclusiveError, "gpu:0"),
    ],
)
def test_a_fault_of_the_driver_is_one_sentence_and_leaves_nothing(
    cuda: type[Backend], driver: FakeDriver, method: str, kind: Any, error: type[Exception], words: str
) -> None:
    driver.faults[method] = (0 if method != "copy" else 12, kind)
    with pytest.raises(error, match=words) as caught:
        run_once(make_orders(admitted(embedded().model, steps=20)), embedded(), backend=cuda)
    assert "\n" not in str(caught.value)
    driver.faults.clear()
    assert driver.held == 0


def test_a_second_arena_that_does_not_fit_gives_the_first_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver(cards=2)
    driver.faults["malloc"] = (1, "memory")
    with on(driver, monkeypatch) as backend, pytest.raises(InconclusiveError, match=r"arena of [0-9,]+ B .* on gpu:1"):
        run_once(make_orders(admitted(embedded().model, steps=20)), embedded(), backend=backend)
    assert driver.held == 0


def test_a_direct_plan_without_peer_access_ends_and_a_staged_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with on(FakeDriver(peers=False), monkeypatch) as backend:
        with pytest.raises(InconclusiveError, match=r"plan says direct.*staged"):
            run_once(make_orders(admitted(embedded().model, steps=20)), embedded(), backend=backend)
        _, run = as_predicted(backend, peer_access="staged")
    assert [(p["can"], p["enabled"]) for p in run["driver"]["peer_access"]] == [(False, False)] * 2
    legs = {(c["kind"]) for c in run["driver"]["copies"] if c["phase"] == "handoff"}
    assert legs == {"d2h", "h2d"}


def test_forced_tf32_is_refused_and_says_how_to_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with on(FakeDriver(settings={"NVIDIA_TF32_OVERRIDE": "1"}), monkeypatch) as backend:
        with pytest.raises(InconclusiveError, match=r"NVIDIA_TF32_OVERRIDE=1 forces TF32.*unset it"):
            run_once(make_orders(admitted(embedded().model, steps=20)), embedded(), backend=backend)
        assert "NVIDIA_TF32_OVERRIDE" in str(cupy_gpu.probe())


def test_a_kernel_is_never_handed_the_memory_of_another_card(cuda: type[Backend]) -> None:
    class Mixed(Hands):
        def dispatch(self, device: str, op: str, out: Buffer, *operands: Buffer, label: Label, **scalars: int) -> None:
            if op == "attention" and device == "gpu:1":
                cache = self.machine.cache("gpu:0", "prefill", "k").at(label.layer if label.layer >= 0 else 0)
                operands = (operands[0], cache, *operands[2:])
            super().dispatch(device, op, out, *operands, label=label, **scalars)

    orders = make_orders(admitted(embedded().model, steps=20))
    with pytest.raises(DeviceMismatchError, match="attention on gpu:1"):
        run_once(orders, embedded(), backend=cuda, hands=Mixed(), path="dispatch")

    class Astray(Hands):
        def address(self, phase: Phase, name: str) -> int:
            there = "gpu:0" if name == "weights/wq" else self.machine.device_of(phase)
            return self.machine.buffer(there, name).address

    with pytest.raises(DeviceMismatchError, match="weights/wq lies on device 0, the work is on 1"):
        run_once(orders, embedded(), backend=cuda, hands=Astray(), path="fused")


def test_requests_one_after_the_other_are_alike(cuda: type[Backend], driver: FakeDriver) -> None:
    with Executor(make_orders(admitted(embedded().model, steps=24)), embedded(), cuda) as executor:
        first, second = executor.run(), executor.run()
    assert (first.tokens, first.logits_top1_bits) == (second.tokens, second.logits_top1_bits)
    assert first.driver_seen == second.driver_seen
    assert driver.held == 0


def test_prefill_in_chunks_and_drawn_ids_go_the_compiled_way_too(cuda: type[Backend]) -> None:
    for request in ({"prefill_chunk": 5}, {"temperature": 0.8, "top_p": 0.9, "seed": 7}):
        admission = admitted(embedded().model, steps=24, **request)
        orders = make_orders(admission)
        mine = run_once(orders, embedded(), backend=cuda, path="fused")
        other = run_once(orders, embedded())
        assert mine.tokens == other.tokens
        assert mine.logits_top1_bits == other.logits_top1_bits
        chunk = request.get("prefill_chunk", 1)
        assert rows(run_document(mine), chunk) == rows(run_document(other), chunk)


def test_a_card_that_cannot_run_all_blocks_at_once_gets_launches_a_part_and_the_same_ids(
    driver: FakeDriver, cuda: type[Backend], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, _ = as_predicted(cuda, path="fused")
    assert "decode_step" in driver.launched
    assert "decode_qkv" not in driver.launched
    driver.launched.clear()
    monkeypatch.setattr(driver, "at_once", (0, driver.at_once[1]))
    parts, _ = as_predicted(cuda, path="fused")
    monkeypatch.setattr(driver, "at_once", (8, 100 << 10))  # blocks, and no room for their queues
    no_room, _ = as_predicted(cuda, path="fused")
    assert "decode_step" not in driver.launched
    facts = [(run.tokens, run.logits_top1_bits, run.program, run.waybill) for run in (whole, parts, no_room)]
    assert facts[0] == facts[1] == facts[2]


@pytest.mark.parametrize(
    ("shape", "whole"),
    [((512, 64, 1, 2, 1, 40, 40), True), ((512, 64, 1, 1, 1, 40, 40), False), ((4096, 16, 1, 32, 1, 8, 24), False)],
    ids=["heads of 256", "a head of 512", "rows of 4,096"],
)
def test_a_step_goes_in_one_launch_only_where_its_kernel_holds_it(
    driver: FakeDriver, cuda: type[Backend], shape: tuple[int, ...], whole: bool
) -> None:
    model = llama2c(*shape, shared=True)
    orders = make_orders(admitted(model, (1, 2), steps=6, devices=ORACLE))
    declined = model.head_dim > LARGEST_HEAD
    told = pytest.raises(BackendUnavailableError, match="heads of 512; the kernel holds up to 256")
    with Executor(orders, random_weights(model), cuda) as executor, told if declined else contextlib.nullcontext():
        executor.run()
    assert ("decode_step" in driver.launched) == whole
