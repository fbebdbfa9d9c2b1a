"""Arenas and buffers: blocks, fences, poison, protection."""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor import arena as arenas
from executor.arena import Arena, machine_bytes, poison_word, require_memory
from executor.buffer import Block, Buffer
from fleet.errors import BackendError, CopyError, FenceError, InconclusiveError


def _end_of_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; 0 when it came through, else the signal that killed it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks beside threads of a library
        pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _buffer(arena: Arena, *shape: int) -> Buffer:
    nbytes = 4 * int(np.prod(shape))
    address = arena.address + arena.allocate("b", nbytes)
    return Buffer(Block(arena, address, nbytes), "b", shape, "fp32", address)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30), st.integers(0, 9)), max_size=40))
def test_blocks_never_overlap_and_high_water_is_the_largest_end(moves: list[tuple[bool, int, int]]) -> None:
    arena = Arena("gpu:0", 400, 7)
    live: dict[int, int] = {}
    highest = 0
    for frees, words, which in moves:
        if frees and live:
            offset = sorted(live)[which % len(live)]
            arena.free(offset)
            del live[offset]
        else:
            gaps = [end for end in (0, *(o + n for o, n in live.items())) if _is_free(live, end, 4 * words)]
            if not gaps:
                with pytest.raises(FenceError):
                    arena.allocate("b", 4 * words)
                continue
            offset = arena.allocate("b", 4 * words)
            assert offset == min(gaps)
            live[offset] = 4 * words
            highest = max(highest, offset + 4 * words)
        assert arena.high_water == highest <= arena.fence


def _is_free(live: dict[int, int], start: int, nbytes: int) -> bool:
    return start + nbytes <= 400 and all(start + nbytes <= o or o + n <= start for o, n in live.items())


@given(st.integers(0, 5000), st.integers(1, 5000))
def test_fence_is_exact_to_the_byte(fence: int, asked: int) -> None:
    arena = Arena("host:bounce", fence, 0)
    if asked <= fence:
        assert arena.allocate("b", asked) == 0
    else:
        with pytest.raises(FenceError, match=rf"host:bounce: b asks .*\({asked - fence:,} B short\)"):
            arena.allocate("b", asked)
        assert arena.high_water == 0


def test_a_block_starts_on_a_multiple_of_the_alignment() -> None:
    arena = Arena("gpu:0", 1000, 0)
    assert [arena.allocate(n, 5, 256) for n in "abc"] == [0, 256, 512]
    assert arena.high_water == 517


def test_poison_is_a_signalling_nan_that_changes_with_each_request() -> None:
    words = [poison_word("gpu:0", request) for request in range(2000)]
    assert len(set(words)) == len(words)
    floats = np.array(words, np.uint32).view(np.float32)
    assert np.isnan(floats).all()
    assert not (np.array(words) & 0x00400000).any()
    assert poison_word("gpu:0", 3) != poison_word("gpu:1", 3)


def test_fill_reaches_all_words_and_views_share_the_memory() -> None:
    arena = Arena("gpu:0", 48, 0x7FA00001)
    assert (arena.snapshot() == 0x7FA00001).all()
    view = arena.view(8, (2, 3), "fp32")
    view[:] = 1.5
    assert (arena.snapshot()[2:8] == np.float32(1.5).view(np.uint32)).all()
    assert (arena.snapshot()[:2] == 0x7FA00001).all()
    arena.fill(0)
    assert arena.poison == 0
    assert not view.any()


def test_freeing_poisons_the_block_alone() -> None:
    arena = Arena("gpu:0", 16, 9)
    offsets = [arena.allocate(name, 4) for name in "abcd"]
    arena.view(0, (4,), "int32")[:] = 5
    arena.free(offsets[1])
    assert arena.snapshot().tolist() == [5, 9, 5, 5]
    with pytest.raises(BackendError, match="offset 4"):
        arena.free(offsets[1])


def test_addresses_belong_to_one_arena_up_to_its_fence() -> None:
    arena, other = Arena("gpu:0", 10, 0), Arena("gpu:1", 10, 0)
    assert arena.contains(arena.address)
    assert arena.contains(arena.address + 9)
    assert not arena.contains(arena.address + 10)
    assert not arena.contains(other.address)
    assert not Arena("empty", 0, 0).contains(arena.address)


def test_reading_a_protected_arena_dies_and_the_others_stay_readable() -> None:
    arena, other = Arena("gpu:0", 64, 1), Arena("gpu:1", 64, 2)
    view = arena.view(0, (16,), "int32")

    def stray() -> None:
        arena.protect()
        view.sum()

    def honest() -> None:
        arena.protect()
        other.view(0, (16,), "int32").sum()
        arena.unprotect()
        assert view.sum() == 16

    assert _end_of_child(stray) == signal.SIGSEGV
    assert _end_of_child(honest) == 0
    assert view.sum() == 16  # the child's protection was its own


@pytest.mark.parametrize("words_off", [-1, 1])
def test_the_pages_around_an_arena_may_not_be_touched(words_off: int) -> None:
    page = os.sysconf("SC_PAGESIZE")
    arena = Arena("gpu:0", page, 0)
    address = arena.address - 4 if words_off < 0 else arena.address + page
    assert _end_of_child(lambda: _word_at(address)) == signal.SIGSEGV
    assert _end_of_child(lambda: _word_at(arena.address)) == 0


def _word_at(address: int) -> int:
    import ctypes

    return ctypes.c_uint32.from_address(address).value


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="this system does not list its mappings")
def test_memory_goes_when_the_arena_is_closed_and_no_array_is_left() -> None:
    arena = Arena("gpu:0", 4096, 0)
    start = f"{arena.address:x}-"
    view = arena.view(0, (4,), "int32")
    arena.close()
    arena.close()
    view[0] = 1  # an array keeps its memory
    assert start in Path("/proc/self/maps").read_text()
    del view, arena
    gc.collect()
    assert start not in Path("/proc/self/maps").read_text()


def test_more_memory_than_the_machine_has_is_told_before_it_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    there = machine_bytes()
    assert there is not None
    require_memory(there)
    with pytest.raises(InconclusiveError, match=f"fence {there + 1:,} B of memory and this machine has {there:,} B"):
        require_memory(there + 1)
    monkeypatch.setattr(arenas, "machine_bytes", lambda: None)
    require_memory(1 << 60)  # a system that does not tell its size is asked by mapping


def test_a_control_group_that_allows_less_is_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("4096\n")
    monkeypatch.setattr(arenas, "_CGROUP_LIMITS", (str(tmp_path / "none"), str(tmp_path / "memory.max")))
    assert machine_bytes() == 4096
    (tmp_path / "memory.max").write_text("max\n")
    assert machine_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_closed_arena_and_an_impossible_one_are_refused() -> None:
    arena = Arena("gpu:0", 64, 0)
    arena.close()
    for call in (lambda: arena.allocate("b", 4), lambda: arena.view(0, (1,), "fp32"), arena.protect, arena.snapshot):
        with pytest.raises(BackendError, match="gpu:0 is closed"):
            call()
    with pytest.raises(InconclusiveError, match="cannot map"):
        Arena("gpu:0", 1 << 60, 0)
    with pytest.raises(BackendError, match="-1 B"):
        Arena("gpu:0", -1, 0)
    with pytest.raises(FenceError, match="at least one element"):
        Arena("gpu:0", 64, 0).allocate("b", 0)


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5), st.data())
def test_views_of_a_buffer_are_the_rows_of_its_array(a: int, b: int, c: int, data: st.DataObject) -> None:
    buffer = _buffer(Arena("gpu:0", 500, 0), a, b, c)
    buffer.array[:] = np.arange(a * b * c).reshape(a, b, c)
    first = data.draw(st.integers(0, a - 1))
    count = data.draw(st.integers(1, a - first))
    row = data.draw(st.integers(0, b - 1))
    view = buffer.view(first, count)
    assert np.array_equal(view.array, buffer.array[first : first + count])
    assert view.nbytes == view.array.nbytes
    at = buffer.at(first).at(row)
    assert (at.shape, at.array.tolist()) == ((c,), buffer.array[first, row].tolist())
    assert np.array_equal(buffer.reshape(c, b).array.ravel(), buffer.array.ravel()[: b * c])
    view.array[0, 0, 0] = -1
    assert buffer.array[first, 0, 0] == -1


def test_a_view_outside_its_buffer_is_refused() -> None:
    buffer = _buffer(Arena("gpu:0", 500, 0), 3, 2)
    for call in (
        lambda: buffer.view(-1, 1),
        lambda: buffer.view(2, 2),
        lambda: buffer.view(0, 0),
        lambda: buffer.at(3),
        lambda: buffer.at(0).at(0),
        lambda: buffer.reshape(7),
        lambda: buffer.reshape(-1, 2),
        lambda: Buffer(buffer.block, "b", (7,), "fp32", buffer.address),
        lambda: Buffer(buffer.block, "b", (1,), "fp32", buffer.address - 4),
    ):
        with pytest.raises(CopyError, match="b: "):
            call()


def test_a_view_is_freed_with_its_buffer() -> None:
    buffer = _buffer(Arena("gpu:0", 500, 0), 3, 2)
    view = buffer.at(1)
    assert not view.freed
    buffer.block.freed = True
    assert view.freed
    with pytest.raises(CopyError, match="was freed"):
        _ = view.array
