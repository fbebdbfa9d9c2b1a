"""The ledger: rows of fixed integers, folds that add up, overflow as an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.events import Allocated, Copied, CopyKind, Dispatched, Label
from executor.ledger import COLUMNS, Ledger, Place
from fleet.errors import LedgerOverflowError

PLACES = (
    Place(id="gpu:0", kind="gpu", topology_id=500, ordinal=0),
    Place(id="gpu:1", kind="gpu", topology_id=501, ordinal=1, uuid="GPU-1"),
    Place(id="cpu:0", kind="cpu", topology_id=0, ordinal=0),
)


def copied(kind: CopyKind, src: str, dst: str, nbytes: int, label: Label) -> Copied:
    return Copied(kind, src, dst, None, None, nbytes, label)


def matmul(device: str, phase: str, step: int, n_tokens: int = 1, tensor: str = "wq") -> Dispatched:
    label = Label(phase, 0, tensor, 0, step, n_tokens, step)  # type: ignore[arg-type]  # words from tables
    return Dispatched(device, 0, 0, "matmul", (n_tokens, 4, 4), label)


def test_a_row_holds_the_columns_of_version_1() -> None:
    ledger = Ledger(4, PLACES)
    ledger.hear(copied("p2p", "gpu:0", "gpu:1", 96, Label("handoff", 7, "k", 2, 3, 5)))
    ledger.hear(matmul("gpu:1", "decode", 9))
    assert COLUMNS == ("seq", "phase", "order", "op", "src", "dst", "layer", "pos0", "n_pos", "bytes", "passes")
    assert ledger.rows.dtype == np.int64
    first, second = (dict(zip(COLUMNS, map(int, row), strict=True)) for row in ledger.rows)
    assert (first["seq"], first["phase"], first["order"], first["layer"]) == (0, 2, 7, 2)
    assert (first["pos0"], first["n_pos"], first["bytes"], first["passes"]) == (3, 5, 96, 0)
    assert first["src"] != first["dst"]
    assert (second["seq"], second["phase"], second["bytes"], second["passes"]) == (1, 3, 0, 1)
    assert second["src"] == second["dst"] == first["dst"]
    assert ledger.ops[first["op"]].tensor == "k"


def test_a_full_ledger_is_an_error_and_loses_no_row() -> None:
    ledger = Ledger(2, PLACES)
    for step in range(2):
        ledger.hear(matmul("gpu:0", "decode", step))
    with pytest.raises(LedgerOverflowError, match="holds 2 rows"):
        ledger.hear(matmul("gpu:0", "decode", 2))
    assert len(ledger.rows) == 2


def test_allocations_and_other_operations_are_no_rows() -> None:
    ledger = Ledger(1, PLACES)
    ledger.hear(Allocated("gpu:0", 500, "x", 4, 0))
    ledger.hear(Dispatched("gpu:0", 500, 0, "rope", (1, 4, 4), Label("decode", 0, "")))
    assert len(ledger.rows) == 0


def test_a_staged_row_counts_one_traversal_and_both_legs() -> None:
    ledger = Ledger(99, PLACES)
    for layer in range(3):
        label = Label("handoff", 1, "v", layer, 0, 4, row_src="gpu:0", row_dst="gpu:1")
        ledger.hear(copied("d2h", "gpu:0", "host", 64, label))
        ledger.hear(copied("h2d", "host", "gpu:1", 64, label))
    (row,) = ledger.waybill_rows(3, {})
    assert (row["src"], row["dst"], row["kind"]) == ("gpu:0", "gpu:1", "p2p")
    assert (row["bytes"], row["copies"], row["payload_bytes"]) == (192, 3, 144)
    assert [(leg["src"], leg["dst"], leg["kind"], leg["bytes"], leg["copies"]) for leg in row["legs"]] == [
        ("gpu:0", "host", "d2h", 192, 3),
        ("host", "gpu:1", "h2d", 192, 3),
    ]
    assert {(e["src"], e["dst"]): e["bytes"] for e in ledger.edges()} == {
        ("gpu:0", "host"): 192,
        ("host", "gpu:1"): 192,
    }


@pytest.mark.parametrize(
    ("src", "dst", "row", "leg"),
    [
        ("gpu:0", "gpu:1", "p2p", "p2p"),
        ("gpu:0", "cpu:0", "p2p", "d2h"),
        ("cpu:0", "gpu:1", "p2p", "h2d"),
    ],
)
def test_a_copy_between_unlike_devices_has_the_drivers_kind(src: str, dst: str, row: str, leg: str) -> None:
    ledger = Ledger(1, PLACES)
    ledger.hear(copied("p2p", src, dst, 8, Label("handoff", 0, "k", 0, 0, 1)))
    (found,) = ledger.waybill_rows(1, {})
    assert (found["kind"], found["legs"][0]["kind"]) == (row, leg)


def test_a_copy_within_a_device_is_d2d() -> None:
    ledger = Ledger(1, PLACES)
    ledger.hear(copied("d2d", "gpu:0", "gpu:0", 8, Label("handoff", 0, "k", 0, 0, 1)))
    assert ledger.waybill_rows(1, {})[0]["kind"] == "d2d"
    assert ledger.edges() == [{"src": "gpu:0", "dst": "gpu:0", "kind": "d2d", "bytes": 8, "copies": 1}]


def test_figures_per_pass_are_told_only_where_each_pass_moved_the_same() -> None:
    ledger = Ledger(99, PLACES)
    for step in range(6):
        ledger.hear(copied("d2h", "gpu:1", "host", 4, Label("decode", 0, "next_token", pos0=step, n_pos=1, step=step)))
    assert ledger.waybill_rows(1, {"decode": 6})[0]["per_pass"] == {"bytes": 4, "copies": 1}
    assert "per_pass" not in ledger.waybill_rows(1, {"decode": 5})[0]
    assert "per_pass" not in ledger.waybill_rows(1, {"decode": 0})[0]


def test_dispatches_are_run_lengths_in_order() -> None:
    ledger = Ledger(99, PLACES)
    assert ledger.dispatches() == []
    for step in (0, 3):
        ledger.hear(matmul("gpu:0", "prefill", step, n_tokens=3))
    for step, device in ((6, "gpu:1"), (6, "gpu:1"), (7, "gpu:0"), (8, "gpu:1")):
        ledger.hear(matmul(device, "decode", step))
    found = ledger.dispatches()
    assert [(d["phase"], d["device"], d["count"], d["first_step"], d["last_step"]) for d in found] == [
        ("prefill", "gpu:0", 2, 0, 5),
        ("decode", "gpu:1", 2, 6, 6),
        ("decode", "gpu:0", 1, 7, 7),
        ("decode", "gpu:1", 1, 8, 8),
    ]
    assert (found[1]["topology_id"], found[1]["ordinal"], found[1]["uuid"]) == (501, 1, "GPU-1")


ends = st.sampled_from([("h2d", "host", "gpu:0"), ("d2h", "gpu:1", "host"), ("p2p", "gpu:0", "gpu:1")])


@given(st.lists(st.tuples(ends, st.sampled_from(["a", "b"]), st.integers(0, 2**40)), max_size=40))
def test_rows_and_edges_add_up_to_what_was_heard(events: list[tuple[tuple[CopyKind, str, str], str, int]]) -> None:
    ledger = Ledger(40, PLACES)
    for (kind, src, dst), tensor, nbytes in events:
        ledger.hear(copied(kind, src, dst, nbytes, Label("prefill", 0, tensor)))
    total = sum(nbytes for _, _, nbytes in events)
    assert sum(row["bytes"] for row in ledger.waybill_rows(1, {})) == total
    assert sum(edge["bytes"] for edge in ledger.edges()) == total
    assert sum(edge["copies"] for edge in ledger.edges()) == len(events)
