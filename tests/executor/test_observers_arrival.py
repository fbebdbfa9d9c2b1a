"""The arrival witness: it counts words that are no longer poison, and knows nothing else."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import executor.observers
from executor.events import Copied, Label
from executor.observers.arrival import ArrivalWitness, LegKey

WORD = 0x7FA12345
KEY: LegKey = ("handoff", "k", "gpu:0", "gpu:1", "gpu:0", "gpu:1")


def region(*shape: int) -> np.ndarray:
    array = np.zeros(shape, np.float32)
    array.view(np.uint32).fill(WORD)
    return array


@given(st.sets(st.integers(0, 23)), st.sets(st.integers(0, 23)))
def test_counts_each_changed_word_once_wherever_it_lies(first: set[int], second: set[int]) -> None:
    array = region(2, 3, 4)
    for writes in (first, second):
        array.reshape(-1)[list(writes)] = 1.5
    witness = ArrivalWitness()
    witness.count(KEY, [array], WORD)
    assert witness.observed[KEY] == 4 * len(first | second)


def test_zeros_that_arrive_are_seen_and_poison_that_stays_is_not() -> None:
    witness = ArrivalWitness()
    witness.count(KEY, [np.zeros(5, np.float32), region(7)], WORD)
    assert witness.observed[KEY] == 20


def test_another_arenas_poison_counts_as_arrived() -> None:
    other = region(3)
    other.view(np.uint32).fill(WORD + 1)
    witness = ArrivalWitness()
    witness.count(KEY, [other], WORD)
    assert witness.observed[KEY] == 12


def test_a_marked_destination_shows_a_copy_of_its_own_arenas_poison() -> None:
    source, target = region(4), region(4)
    witness = ArrivalWitness()
    mark = witness.mark_of(WORD)
    target.view(np.uint32).fill(mark)
    witness.count(KEY, [target], mark)
    assert witness.observed[KEY] == 0
    target[:] = source
    witness.count(KEY, [target], mark)
    assert witness.observed[KEY] == 16


def leg(src: str, dst: str) -> Copied:
    label = Label("handoff", 0, "k", 0, 0, 2, row_src="gpu:0", row_dst="gpu:1")
    return Copied("d2h", src, dst, None, None, 8, label)


def test_the_bounce_buffer_is_looked_at_after_each_fill_and_poisoned_after_each_emptying() -> None:
    bounce = region(4)
    witness = ArrivalWitness()
    witness.watch_bounce(bounce, WORD)
    for filled in (4, 2):
        bounce[:filled] = 1.0
        witness.hear(leg("gpu:0", "host"))
        witness.hear(leg("host", "gpu:1"))
        assert (bounce.view(np.uint32) == WORD).all()
    assert witness.observed["handoff", "k", "gpu:0", "gpu:1", "gpu:0", "host"] == 24


def test_a_leg_that_is_told_but_not_made_is_not_observed() -> None:
    witness = ArrivalWitness()
    witness.watch_bounce(region(4), WORD)
    witness.hear(leg("gpu:0", "host"))
    assert witness.observed["handoff", "k", "gpu:0", "gpu:1", "gpu:0", "host"] == 0


def test_digests_are_of_the_bytes_in_wire_order() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    witness = ArrivalWitness()
    witness.digest("k", 3, array[:2], array[1:3])
    (digest,) = witness.digests
    assert (digest.tensor, digest.layer) == ("k", 3)
    assert digest.digest_src == hashlib.sha256(array.tobytes()[: 2 * 24]).hexdigest()
    assert digest.digest_dst == hashlib.sha256(array.tobytes()[24 : 3 * 24]).hexdigest()


def test_witnesses_import_neither_planner_nor_ledger() -> None:
    for path in Path(executor.observers.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("planner") or "ledger" in name], path
