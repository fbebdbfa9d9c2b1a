"""The arrival witness: it counts words that are no longer poison, and knows nothing else."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import executor.observers
from executor.arena import Arena
from executor.events import Copied, Label
from executor.observers.arrival import ArrivalWitness, LegKey
from executor.observers.digest import tree_digest

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


def slow_digest(content: bytes) -> str:
    """The digest as its page tells it, level by level."""
    level = content
    while True:
        nodes = []
        for at in range(0, max(len(level), 1), 4096):
            nodes.append(hashlib.sha256(level[at : at + 4096]).digest())
        if len(nodes) == 1:
            return nodes[0].hex()
        level = b"".join(nodes)


@pytest.mark.parametrize("nbytes", [0, 4, 4092, 4096, 4100, 128 * 4096, 128 * 4096 + 4, 3 * 128 * 4096 - 4])
def test_a_digest_is_of_blocks_and_of_their_digests(nbytes: int) -> None:
    content = np.random.default_rng(nbytes).bytes(nbytes)
    assert tree_digest(content) == slow_digest(content)
    if nbytes:
        assert tree_digest(content[:-1] + bytes([content[-1] ^ 1])) != tree_digest(content)


def test_an_arena_digests_and_counts_ranges_that_lie_apart() -> None:
    arena = Arena("gpu:0", 4 * 1024, 7)
    words = np.arange(1000, dtype=np.uint32)
    arena.poke(8, words)
    found = arena.digests(8 + 40, 400, 1200, 3)
    assert found == [tree_digest(words[10 + 300 * i : 110 + 300 * i].tobytes()) for i in range(3)]
    assert arena.count_other(0, 4 * 1024, 0, 1, 7) == 999  # the word 7 is among them, and 24 words hold poison
    assert arena.count_other(8, 12, 1200, 3, 300) == 8


def test_witnesses_import_neither_planner_nor_ledger() -> None:
    for path in Path(executor.observers.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith("planner") or "ledger" in name], path
