"""The compiled call of a phase against the dispatch path, whole: ids, KV cache, logits, ledger rows, program."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from executor.ledger import PHASES, Ledger
from executor.packed import slots
from executor.packed.desk import Desk, own_book
from executor.packed.fused import Book
from executor.packed.lanes import FAST, STRICT
from executor.packed.layout import padding
from executor.packed.plan import Call, make_plan, new_state, new_trace, op_order, weight_names
from executor.run import Executor
from executor.weights import Weights, open_weights
from fleet.checkpoints import load_model, seeded_model
from fleet.errors import BackendError, DeviceMismatchError, LedgerOverflowError
from fleet.model import Model
from tests.checkpoint_files import Dims, write_checkpoint
from tests.executor.requests import GOLDEN, GOLDEN_ABSENT, orders_for, random_weights

SHAPES = {
    "grouped heads of 6, odd hidden": Dims(24, 37, 2, 4, 2, 53, 64),
    "one KV head for three": Dims(30, 17, 2, 3, 1, 40, 64, shared=False),
    "heads of 16": Dims(64, 48, 1, 4, 4, 64, 64),
    "heads of 18, seven of them": Dims(126, 130, 2, 7, 7, 33, 64, shared=False),
    "one head of 34": Dims(34, 5, 3, 1, 1, 17, 64),
    "eight heads on one": Dims(80, 96, 1, 8, 1, 65, 64),
}


@cache
def weights_of(shape: str, folder: Path) -> Weights:
    return random_weights(load_model(str(write_checkpoint(folder, SHAPES[shape]))), seed=len(shape))


@pytest.fixture(params=SHAPES)
def weights(request: pytest.FixtureRequest, tmp_path: Path) -> Weights:
    return weights_of(request.param, tmp_path)


@cache
def embedded() -> Weights:
    return open_weights(seeded_model())


def words(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(array).view(np.uint32)


def prompt(model: Model, length: int) -> tuple[int, ...]:
    """BOS, then ids of which none is BOS."""
    return (1, *(2 + (7 * i * i + 3 * i) % (model.vocab_size - 2) for i in range(length - 1)))


def desk(name: str, phase: str, weights: Weights, positions: int, chunk: int) -> Desk:
    made = Desk(name, weights.model, (phase,), positions, chunk)
    made.stage(weights.tensor)
    return made


def phase_start(ledger: Ledger, phase: str) -> int:
    """The first ledger row of a phase."""
    return int(np.flatnonzero(ledger.rows[:, 1] == PHASES.index(phase))[0])


def book_like(ledger: Ledger, phase: str, wants_logits: bool, desk: Desk, device: str) -> Book:
    """A book that goes on where the dispatch path stood when `phase` began, with its codes."""
    model, first = desk.model, phase_start(ledger, phase)
    codes = np.full((1, slots.OP_CODES), -1, np.int64)
    words_of = [(op.phase, op.tensor, op.kind) for op in ledger.ops]
    for slot, tensor, kind in op_order(model, wants_logits):
        codes[0, slot] = words_of.index((phase, tensor, kind))
    places = np.array([[desk.arena.address, desk.arena.address + desk.arena.fence, ledger._ends[device], 0]], np.int64)
    places[0, slots.HOST_CODE] = ledger._ends["host"]
    rows = np.full((len(ledger.rows) + 1, 11), -9, np.int64)
    return Book(rows=rows, places=places, codes=codes, trace=new_trace(model), state=new_state(first))


def check_against_dispatch(weights: Weights, length: int, passes: int, chunk: int, positions: int) -> None:
    """Both phases split over two devices, on both paths; everything must be equal to the bit."""
    model, ids = weights.model, prompt(weights.model, length)
    orders = orders_for(model, ids, steps=passes, positions=positions, prefill_chunk=chunk)
    with Executor(orders, weights) as executor:
        facts = executor.run()
        machine, ledger = executor.machine, executor.ledger
        n = min(length, passes)
        steps = {step.op: i for i, step in enumerate(orders.steps)}
        one = desk("gpu:0", "prefill", weights, positions, chunk)
        book = book_like(ledger, "prefill", passes >= length, one, "gpu:0")
        call = Call(
            phase="prefill", order=steps["prefill"], first=0, passes=n, positions=positions, chunk=chunk,
            wants_logits=passes >= length,
        )  # fmt: skip
        got = one.call(call, ids[:n], book=book)
        last = check_phase(ledger, book, machine, one, "prefill", n, got, facts)
        chosen, bits = list(got.chosen), list(got.top1_bits)
        if passes > length and chosen[-1] != slots.BOS:
            two = desk("gpu:1", "decode", weights, positions, 1)
            two.receive("decode", *one.kv("prefill", n))
            book = book_like(ledger, "decode", True, two, "gpu:1")
            call = Call(phase="decode", order=steps["decode"], first=n, passes=passes - n, positions=positions)
            got = two.call(call, chosen, book=book)
            last = check_phase(ledger, book, machine, two, "decode", n + got.passes, got, facts)
            chosen, bits = chosen + got.chosen, bits + got.top1_bits
        assert last == len(ledger.rows)
        assert tuple(chosen) == facts.generated_tokens
        assert tuple(bits) == facts.logits_top1_bits


def check_phase(
    ledger: Ledger, book: Book, machine: Any, desk: Desk, phase: str, filled: int, got: Any, facts: Any
) -> int:
    """Rows, caches, logits and program of one phase; gives the number of ledger rows written so far."""
    first, last = phase_start(ledger, phase), int(book.state[slots.LEDGER_ROWS])
    assert last > first
    assert np.array_equal(book.rows[first:last], ledger.rows[first:last])
    assert (ledger.rows[first:last, 1] == PHASES.index(phase)).all()
    for tensor, cache_ in zip(("k", "v"), desk.kv(phase, filled), strict=True):
        whole = machine.cache(desk.name, phase, tensor).array[:, :filled]
        assert np.array_equal(words(cache_), words(whole))
    if got.chosen:
        logits = machine.buffer(desk.name, "act/logits").array
        assert np.array_equal(words(desk.arrays["act/logits"]), words(logits))
    assert got.entries == list(facts.program[phase])
    for memory in desk.memory.values():
        if memory.rows:
            assert (words(padding(desk.arrays[memory.name], memory.rows)) == desk.arena.poison).all(), memory.name
    return last


@pytest.mark.parametrize("chunk", [1, 3, 19])
def test_both_phases_have_the_bits_and_the_rows_of_the_dispatch_path(weights: Weights, chunk: int) -> None:
    check_against_dispatch(weights, 19, 36, chunk, 40)


@settings(deadline=None, max_examples=25)
@given(data=st.data(), length=st.integers(1, 35), chunk=st.integers(1, 36))
def test_any_prompt_length_any_chunk_any_page_edge(data: st.DataObject, length: int, chunk: int) -> None:
    passes = data.draw(st.integers(1, 50))
    positions = data.draw(st.integers(passes, 64))
    check_against_dispatch(embedded(), length, passes, min(chunk, max(1, min(length, passes))), positions)


@settings(deadline=None, max_examples=20)
@given(length=st.integers(1, 50), chunk=st.integers(2, 50))
def test_batched_prefill_has_the_bits_of_token_by_token(length: int, chunk: int) -> None:
    model, ids = embedded().model, prompt(embedded().model, length)
    desks = [desk("gpu:0", "prefill", embedded(), 50, c) for c in (1, chunk)]
    got = [
        d.call(Call(phase="prefill", order=0, first=0, passes=length, positions=50, chunk=d.chunk), ids) for d in desks
    ]
    assert got[0].top1_bits == got[1].top1_bits
    assert np.array_equal(words(desks[0].arrays["act/logits"]), words(desks[1].arrays["act/logits"]))
    for one, many in zip(*(d.kv("prefill", length) for d in desks), strict=True):
        assert np.array_equal(words(one), words(many))
    assert one.shape == (model.n_layers, length, model.kv_dim)


def test_what_lies_in_padding_and_in_unused_positions_changes_nothing() -> None:
    weights, results = embedded(), []
    ids = prompt(weights.model, 20)
    for request in (0, 7):
        one = Desk("gpu:0", weights.model, ("prefill",), 40, 4, request)
        one.stage(weights.tensor)
        got = one.call(Call(phase="prefill", order=0, first=0, passes=20, positions=40, chunk=4), ids)
        results.append((got, words(one.arrays["act/logits"]).tolist()))
    assert results[0] == results[1]


def split_run(weights: Weights, ids: tuple[int, ...], passes: int, chunk: int, mode: Any) -> tuple[list[int], int]:
    """The ids walked and the passes made, over two desks."""
    n, positions = min(len(ids), passes), weights.model.seq_len
    one = desk("gpu:0", "prefill", weights, positions, chunk)
    call = Call(
        phase="prefill", order=0, first=0, passes=n, positions=positions, chunk=chunk, wants_logits=passes >= len(ids)
    )
    got = one.call(call, ids[:n], mode=mode)
    tokens, made = [*ids[: n + 1], *got.chosen], n
    if passes > len(ids) and tokens[-1] != slots.BOS:
        two = desk("gpu:1", "decode", weights, positions, 1)
        two.receive("decode", *one.kv("prefill", n))
        call = Call(phase="decode", order=0, first=n, passes=passes - n, positions=positions)
        got = two.call(call, tokens[-1:], mode=mode)
        tokens, made = tokens + got.chosen, made + got.passes
    return tokens, made


@pytest.mark.shared
@pytest.mark.skipif(not GOLDEN.is_dir(), reason=GOLDEN_ABSENT)
@pytest.mark.parametrize("mode", [STRICT, FAST], ids=["strict", "fast"])
def test_all_golden_runs_have_llama2cs_ids_in_both_modes(mode: Any) -> None:
    stories = open_weights(load_model(str(GOLDEN / "stories260K.bin")))
    runs = json.loads((GOLDEN / "golden.json").read_text())
    assert len(runs) == 20
    for run in runs:
        got = split_run(stories, tuple(run["prompt_tokens"]), run["steps_effective"], 128, mode)
        assert got == (run["token_ids"], run["forward_calls"]), run["name"]


def test_fast_logits_are_close_to_strict_ones_but_not_the_same_arithmetic() -> None:
    ids, logits = prompt(embedded().model, 40), []
    for mode in (STRICT, FAST):
        one = desk("gpu:0", "prefill", embedded(), 64, 40)
        one.call(Call(phase="prefill", order=0, first=0, passes=40, positions=64, chunk=40), ids, mode=mode)
        logits.append(one.arrays["act/logits"].copy())
    assert np.abs(logits[0] - logits[1]).max() < 1e-3
    assert not np.array_equal(words(logits[0]), words(logits[1]))


def test_a_full_ledger_is_an_error_and_no_row_is_written_past_its_end() -> None:
    model, ids = embedded().model, prompt(embedded().model, 9)
    one = desk("gpu:0", "prefill", embedded(), 16, 9)
    needed = 1 + 7 * model.n_layers + 2
    full = own_book([one], model, 9)
    call = Call(phase="prefill", order=0, first=0, passes=9, positions=16, chunk=9)
    guard = np.full((needed, 11), -5, np.int64)
    one.call(call, ids, book=full._replace(rows=guard.copy()))
    for room in (0, 1, 5, needed - 1):
        rows = guard.copy()
        book = full._replace(rows=rows[:room], state=new_state())
        with pytest.raises(LedgerOverflowError, match=f"holds {room} rows"):
            one.call(call, ids, book=book)
        assert (rows[room:] == -5).all()


def test_a_matmul_whose_weight_lies_on_another_device_is_booked_there() -> None:
    model, ids = embedded().model, prompt(embedded().model, 3)
    one, two = (desk(name, "prefill", embedded(), 16, 3) for name in ("gpu:0", "gpu:1"))
    book = own_book([one, two], model, 3)
    held = one.arrays["weights/wo"]
    one.arrays["weights/wo"] = two.arrays["weights/wo"]
    one.call(Call(phase="prefill", order=0, first=0, passes=3, positions=16, chunk=3), ids, book=book)
    rows = book.rows[: int(book.state[slots.LEDGER_ROWS])]
    elsewhere = rows[rows[:, 4] == 2]
    assert len(elsewhere) == model.n_layers
    assert (elsewhere[:, 3] == slots.OP_CODES + slots.WO).all()
    one.arrays["weights/wo"] = held.copy()
    with pytest.raises(DeviceMismatchError, match="in no arena"):
        one.call(Call(phase="prefill", order=0, first=0, passes=3, positions=16, chunk=3), ids)


def test_an_id_outside_the_vocabulary_is_an_error() -> None:
    one = desk("gpu:0", "prefill", embedded(), 16, 3)
    call = Call(phase="prefill", order=0, first=0, passes=3, positions=16, chunk=3)
    for bad in (-1, embedded().model.vocab_size):
        with pytest.raises(BackendError, match="not below"):
            one.call(call, (1, bad, 4))


def test_a_call_that_does_not_fit_is_refused() -> None:
    one = desk("gpu:0", "prefill", embedded(), 16, 3)
    for first, passes in ((0, 17), (15, 2), (-1, 3), (0, 0)):
        call = Call(phase="prefill", order=0, first=first, passes=passes, positions=16, chunk=3)
        with pytest.raises(BackendError, match="do not fit"):
            make_plan(embedded().model, call, one.address)


def test_decoding_stops_when_it_chooses_bos() -> None:
    """BOS and an id that a plain walk chooses are swapped in the tables: the walk is the same but for their names."""
    weights = embedded()
    call = Call(phase="decode", order=0, first=0, passes=8, positions=16)
    plain = desk("gpu:0", "decode", weights, 16, 1).call(call, (3,)).chosen
    at = next(i for i in range(8) if plain[i] not in (1, 3, *plain[:i]) and i >= 1)
    assert slots.BOS not in plain[:at]
    tensors = {name: weights.tensor(name) for name in weight_names(weights.model)}
    for name in {"token_embedding", weights.model.classifier_name}:
        table = tensors[name].copy()
        table[[slots.BOS, plain[at]]] = table[[plain[at], slots.BOS]]
        tensors[name] = table
    got = desk("gpu:0", "decode", Weights(weights.model, tensors), 16, 1).call(call, (3,))
    assert got.chosen == [*plain[:at], slots.BOS]
    assert got.passes == at + 1


def test_rows_shared_out_over_threads_have_the_same_bits() -> None:
    ids, seen = prompt(embedded().model, 40), []
    for threads in (1, 2, 5):
        one = desk("gpu:0", "prefill", embedded(), 64, 40)
        call = Call(phase="prefill", order=0, first=0, passes=40, positions=64, chunk=40)
        got = one.call(call, ids, threads=threads)
        seen.append((got, words(one.arrays["act/logits"]).tolist(), [words(c).tolist() for c in one.kv("prefill", 40)]))
    assert seen[0] == seen[1] == seen[2]


FROM_CACHE = """
from tests.executor.test_packed_fused import Call, desk, embedded, prompt

one = desk("gpu:0", "prefill", embedded(), 64, 40)
call = Call(phase="prefill", order=0, first=0, passes=40, positions=64, chunk=40)
print(one.call(call, prompt(embedded().model, 40), threads=2).chosen)
"""


def test_threads_run_in_a_process_whose_code_comes_from_the_cache() -> None:
    one = desk("gpu:0", "prefill", embedded(), 64, 40)
    call = Call(phase="prefill", order=0, first=0, passes=40, positions=64, chunk=40)
    wanted = one.call(call, prompt(embedded().model, 40), threads=2).chosen
    done = subprocess.run([sys.executable, "-c", FROM_CACHE], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == str(wanted)
